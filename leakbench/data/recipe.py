"""The recipe of a data set: what it is, where it lies or comes from, and the federation that the paper trains on it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from leakbench.data.addresses import is_safe
from leakbench.data.formats import FORMATS, Format
from leakbench.data.sizes import Sizes
from leakbench.federated.partition import PARTITIONS, Iid, Partitioner
from leakbench.inside import is_inside
from leakbench.nested import nested
from leakbench.part import Count, Fraction, Inside, Positive, Text, part
from leakbench.recipe import slot
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


@part
class Federation:
    """How a set is federated: N clients of |D_i| examples; T rounds of K_t clients, L local iterations, batch B.

    The defaults are those that the Fed-alphaCDP paper shares among its sets; learning_rate is its released code's.
    dropout: the probability with which a sampled client fails in its round; `Defense.on_dropout` says what follows.
    client_optimizer: how clients step, each round from a fresh state: plain SGD, or Adam as torch.optim.Adam has it by default.
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
    partition: Annotated[Partitioner, *slot("partition", PARTITIONS)] = Iid()

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


@part
class Origin:
    """Where the files of a set lie on a disk and where they come from.

    layouts: folders, below a data folder, in which people keep the set; it is fetched into the first.
    marker: a pattern that one of its files matches there.  megabytes: how much is fetched.
    mirrors: addresses of folders by https (of this machine also by http), in the order in which they are tried.
    archive: the one file, a tar, plain or by gzip or bzip2, to fetch and unpack beside the first layout; empty where the files
        of the format are fetched.
    archive_sha256: empty where none is published; what was unpacked is checked all the same.
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


@part
class DatasetRecipe:
    """A data set of the catalog, or a user's own.

    license: its terms, shortly.  origin: None for an embedded set.
    sizes: recorded sizes, from which options are checked and epsilons computed without the data; None where they are not recorded,
        then the data are loaded for it. Loaded data of other sizes are refused.
    sensitive: the categories of a table that an attacker wants to know of a person; empty for all of at most 20 values.
    """

    title: Text
    cite: Text
    license: str
    format: Annotated[Format, *slot("format", FORMATS)]
    federation: Annotated[Federation, nested(Federation)]
    origin: Annotated[Origin | None, nested(Origin)] = None
    sizes: Annotated[Sizes | None, nested(Sizes)] = None
    sensitive: tuple[Text, ...] = ()
    note: str = ""
