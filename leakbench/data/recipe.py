"""The recipe of a data set: what it is, where it lies or comes from, and the federation that the paper trains on it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from leakbench.data.addresses import is_safe
from leakbench.data.formats import FORMAT, Format
from leakbench.data.partition import PARTITION, Iid, Partitioner
from leakbench.data.sizes import Sizes
from leakbench.inside import is_inside
from leakbench.nested import nested
from leakbench.part import Count, Fraction, Inside, Positive, Text, part
from leakbench.types import Clock

__all__ = ["DatasetRecipe", "Federation", "Origin"]


def _address(url: str) -> str:
    if not is_safe(url) or not url.endswith("/"):
        raise ValueError("expected https://.../ (http only of this machine)")
    return url


def _file_name(name: str) -> str:
    if name and (not is_inside(name) or "/" in name):
        raise ValueError("expected the name of a file")
    return name


@part("federation")
class Federation:
    """The federation of a data set: N clients of |D_i| examples; T rounds of K_t clients, L local iterations, batch B.

    The defaults are those that the Fed-alphaCDP paper uses for all its data sets; learning_rate is its released code's.

    Args:
        dropout: Probability that a sampled client fails in its round; `Defense.on_dropout` decides what happens then.
        client_optimizer: Optimizer of the clients, with a fresh state in each round: plain SGD, or Adam with the defaults of
            torch.
    """

    rounds: Annotated[int, Field(ge=0)]
    batch: Count
    examples_per_client: Count
    clients: Count = 1000
    clients_per_round: Count = 100
    local_iterations: Count = 100
    learning_rate: Positive = 0.05
    dropout: Fraction = 0.0
    client_optimizer: Literal["sgd", "adam"] = "sgd"
    partition: Annotated[Partitioner, PARTITION] = Iid()

    def __post_init__(self) -> None:
        for small, large in (("clients_per_round", "clients"), ("batch", "examples_per_client")):
            got, most = getattr(self, small), getattr(self, large)
            if got > most:
                text = f"{small}: got {got}, expected at most {large} ({most})"
                raise PydanticCustomError("slot", "{text}", {"text": text})

    def clock(self, round_number: int, local_iteration: int = 0) -> Clock:
        """Return the clock that every participant of this federation reads at one moment."""
        return Clock(
            round_number,
            local_iteration,
            self.rounds,
            self.local_iterations,
            cohort=self.clients_per_round,
            clients=self.clients,
            examples_per_client=self.examples_per_client,
            client_optimizer=self.client_optimizer,
        )


@part("origin")
class Origin:
    """Locations of the files of a data set, on disk and on the web.

    Args:
        layouts: Usual folders of the data set, below a data folder; it is fetched into the first.
        marker: a pattern that one of its files matches there.
        megabytes: Size of the download.
        mirrors: Https addresses of folders (on this machine also http), in the order in which they are tried.
        archive: One tar file, plain or compressed by gzip or bzip2, to fetch and unpack next to the first layout; empty where the
            files of the format are fetched.
        archive_sha256: Empty where no source publishes it; the unpacked files are checked in any case.
    """

    layouts: tuple[Annotated[Inside, Field(pattern=r"^[^/.]")], ...]
    marker: Inside
    megabytes: Positive
    mirrors: tuple[Annotated[str, AfterValidator(_address)], ...]
    archive: Annotated[str, AfterValidator(_file_name)] = ""
    archive_sha256: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""

    @property
    def candidates(self) -> tuple[str, ...]:
        """Every tail of every layout, longest first, down to `.`, since a set's own folder may be given as well."""
        layouts = [PurePosixPath(layout).parts for layout in self.layouts]
        tails = [parts[i:] for parts in layouts for i in range(len(parts) + 1)]
        return tuple(dict.fromkeys(str(PurePosixPath(*tail)) for tail in sorted(tails, key=len, reverse=True)))


@part("dataset_recipe")
class DatasetRecipe:
    """A data set of the catalog, or a user's own.

    Args:
        license: Short statement of its terms.
        origin: None for an embedded set.
        sizes: Recorded sizes, for checks of options and for epsilons without the data; None where they are not recorded, and then
            the data are loaded. Loaded data of other sizes are refused.
        sensitive: The categories of a table that an attacker wants to infer about a person; empty for all with at most 20 values.
    """

    title: Text
    cite: Text
    license: str
    format: Annotated[Format, FORMAT]
    federation: Annotated[Federation, nested(Federation)]
    origin: Annotated[Origin | None, nested(Origin)] = None
    sizes: Annotated[Sizes | None, nested(Sizes)] = None
    sensitive: tuple[Text, ...] = ()
    note: str = ""
