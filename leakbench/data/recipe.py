"""The recipe of a data set: its format, its origin, and the federation that the paper trains on it."""

from __future__ import annotations

import math
import re
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from leakbench.core.errors import InputError
from leakbench.core.part import Count, Fraction, Inside, NonNegative, Positive, Text, part
from leakbench.core.recipe import nested
from leakbench.core.types import Clock
from leakbench.core.untrusted import is_inside
from leakbench.data.addresses import is_safe
from leakbench.data.availability import UNIFORM, check_availability
from leakbench.data.formats import FORMAT, Format
from leakbench.data.image_folder import ImageFolder
from leakbench.data.partition import PARTITION, Iid, Partitioner
from leakbench.data.sizes import Sizes
from leakbench.data.targets import TARGETS, Retarget

__all__ = ["DatasetRecipe", "Federation", "Origin"]


def _address(url: str) -> str:
    if not is_safe(url) or not url.endswith("/"):
        raise ValueError("expected https://.../ (http only of this machine)")
    return url


def _file_name(name: str) -> str:
    if name and (not is_inside(name) or "/" in name):
        raise ValueError("expected the name of a file")
    return name


def _availability(words: str) -> str:
    try:
        check_availability(words)
    except InputError as error:
        raise ValueError(str(error).removeprefix("availability: ")) from None
    return words


@part("federation")
class Federation:
    """The federation of a data set: N clients of |D_i| examples; T rounds of K_t clients, L local iterations, batch B.

    The defaults are those of the Fed-alphaCDP paper for all its data sets; `learning_rate` is that of its released code.
    """

    rounds: Annotated[int, Field(ge=0, description="Number of rounds T.")]
    batch: Annotated[Count, Field(description="Batch size B of a local iteration.")]
    examples_per_client: Annotated[Count, Field(description="Number of training examples |D_i| of each client.")]
    clients: Annotated[Count, Field(description="Number of clients N.")] = 1000
    clients_per_round: Annotated[Count, Field(description="Number of clients K_t in a round.")] = 100
    local_iterations: Annotated[Count, Field(description="Number of local iterations L of a client in a round.")] = 100
    epochs: Annotated[
        int,
        Field(
            ge=0,
            description=(
                "Number of passes of a client over its examples in a round, each in a new order; `local_iterations` is then this "
                "number times |D_i| / B. 0 for local iterations whose batches the defense draws."
            ),
        ),
    ] = 0
    learning_rate: Annotated[Positive, Field(description="Learning rate of the clients.")] = 0.05
    dropout: Annotated[
        Fraction,
        Field(description="Probability that a sampled client fails in its round; see `Defense.on_dropout`."),
    ] = 0.0
    client_optimizer: Annotated[
        Literal["sgd", "adam"],
        Field(
            description="Optimizer of the clients, with a new state in each round: plain SGD, or Adam with torch's defaults."
        ),
    ] = "sgd"
    momentum: Annotated[
        float, Field(ge=0, lt=1, description="Momentum of the clients' SGD, as in torch.optim.SGD without dampening.")
    ] = 0.0
    weight_decay: Annotated[
        NonNegative,
        Field(description="Weight decay of the clients: this factor times the weights is added to each gradient."),
    ] = 0.0
    algorithm: Annotated[
        Literal["fedavg", "fedprox", "scaffold"],
        Field(
            description="Training of a client: FedAvg, FedProx, whose loss has a proximal term, or SCAFFOLD with control variates."
        ),
    ] = "fedavg"
    proximal: Annotated[
        NonNegative,
        Field(description="mu of FedProx: the loss has the term mu / 2 |w - w_t|^2; 0 without FedProx."),
    ] = 0.0
    availability: Annotated[
        Annotated[str, AfterValidator(_availability)],
        Field(
            description=(
                "Clients that can be drawn in a round: `uniform` (all), `beta:A,B` or `diurnal:D`, see "
                "`leakbench.data.availability.check_availability`."
            )
        ),
    ] = UNIFORM
    partition: Annotated[Partitioner, PARTITION] = Iid()

    def __post_init__(self) -> None:
        for small, large in (("clients_per_round", "clients"), ("batch", "examples_per_client")):
            got, most = getattr(self, small), getattr(self, large)
            if got > most:
                text = f"{small}: got {got}, expected at most {large} ({most})"
                raise PydanticCustomError("slot", "{text}", {"text": text})
        if self.epochs and self.local_iterations * self.batch != self.epochs * self.examples_per_client:
            text = (
                f"epochs: got {self.epochs} of {self.examples_per_client} examples in batches of {self.batch}, expected whole"
                " batches, and local_iterations the number of all of them"
            )
            raise PydanticCustomError("slot", "{text}", {"text": text})
        if self.momentum and self.client_optimizer != "sgd":
            text = f"momentum: got {self.momentum:g} with the optimizer {self.client_optimizer}, expected 0, or sgd"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        plain = self.client_optimizer == "sgd" and not self.momentum and not self.weight_decay
        if self.algorithm == "scaffold" and not plain:
            text = "algorithm: got scaffold with another optimizer than plain SGD, expected sgd without momentum and weight decay"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        if (self.algorithm == "fedprox") != (self.proximal > 0):
            text = f"proximal: got {self.proximal:g} with {self.algorithm}, expected a number > 0 with fedprox, and 0 otherwise"
            raise PydanticCustomError("slot", "{text}", {"text": text})

    def clock(self, round_number: int, local_iteration: int = 0) -> Clock:
        """Return the clock of this federation at one moment."""
        return Clock(
            round_number,
            local_iteration,
            self.rounds,
            self.local_iterations,
            cohort=self.clients_per_round,
            clients=self.clients,
            examples_per_client=self.examples_per_client,
            client_optimizer=self.client_optimizer,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            proximal=self.proximal,
        )


@part("origin")
class Origin:
    """Locations of the files of a data set, on disk and on the web."""

    layouts: Annotated[
        tuple[Annotated[Inside, Field(pattern=r"^[^/.]")], ...],
        Field(description="Usual folders of the data set, below a data folder; downloads go into the first one."),
    ]
    marker: Annotated[Inside, Field(description="Pattern that one of the set's files in its folder matches.")]
    megabytes: Annotated[
        Positive | None, Field(description="Size of the download; None for a set that leakbench cannot download.")
    ]
    mirrors: Annotated[
        tuple[Annotated[str, AfterValidator(_address)], ...],
        Field(description="Https addresses of folders (on this machine also http), in the order of the tries."),
    ]
    archive: Annotated[
        str,
        AfterValidator(_file_name),
        Field(
            description=(
                "Zip file, or tar file, plain or compressed by gzip or bzip2, to unpack next to the first layout; empty to fetch "
                "the files of the format."
            )
        ),
    ] = ""
    archive_sha256: Annotated[
        str,
        Field(
            pattern="^([0-9a-f]{64})?$",
            description="Hash of the archive; empty if it is not published. The unpacked files are checked in any case.",
        ),
    ] = ""

    def __post_init__(self) -> None:
        if self.mirrors and self.megabytes is None:
            raise PydanticCustomError(
                "slot", "{text}", {"text": "megabytes: got none, expected the size of the download"}
            )

    @property
    def candidates(self) -> tuple[str, ...]:
        """Every tail of every layout, longest first, down to `.`, since a user may give the set's own folder."""
        layouts = [PurePosixPath(layout).parts for layout in self.layouts]
        tails = [parts[i:] for parts in layouts for i in range(len(parts) + 1)]
        return tuple(dict.fromkeys(str(PurePosixPath(*tail)) for tail in sorted(tails, key=len, reverse=True)))


@part("dataset_recipe")
class DatasetRecipe:
    """A data set of the catalog, or a user's own."""

    title: Annotated[Text, Field(description="Short name for tables and pages.")]
    cite: Annotated[Text, Field(description="Source of the data.")]
    license: Annotated[str, Field(description="Short statement of the terms.")]
    format: Annotated[Format, FORMAT]
    federation: Annotated[
        Federation, nested(Federation), Field(description="Federation that the paper trains on the data.")
    ]
    origin: Annotated[
        Origin | None, nested(Origin), Field(description="Locations of the files; None for an embedded set.")
    ] = None
    sizes: Annotated[
        Sizes | None,
        nested(Sizes),
        Field(
            description=(
                "Recorded sizes, for checks of options and for epsilons without the data; None loads the data for these. "
                "Loaded data with other sizes are refused."
            )
        ),
    ] = None
    targets: Annotated[
        dict[str, Annotated[Retarget, TARGETS]],
        Field(
            default_factory=dict,
            description="What networks can answer instead of the class: labels, numbers or masks, by the names for `--targets`.",
        ),
    ] = field(default_factory=dict)
    candidates: Annotated[int, Field(ge=2, description="Default number of candidates k of identification.")] = 1000
    sensitive: Annotated[
        tuple[Text, ...],
        Field(
            description=(
                "Categories of a table that an attacker wants to infer about a person; empty for all with at most 20 values."
            )
        ),
    ] = ()
    private_preparation: Annotated[
        str,
        Field(
            description=(
                "What was computed from the private training data before the format reads the files, as the start of a sentence: "
                "`The numbers are standardised by the mean and deviation of the private training data`. It is printed next to "
                "each epsilon, which does not cover it. Empty for nothing; a format states its own part."
            )
        ),
    ] = ""
    note: Annotated[str, Field(description="Remarks for the reader of the recipe.")] = ""
    page: Annotated[
        str, Field(description="Address from which a user gets the files of a set that leakbench cannot download.")
    ] = ""

    @property
    def preparations(self) -> tuple[str, ...]:
        """What was computed from the private training data to prepare the inputs, each the start of a sentence."""
        return tuple(filter(None, (self.private_preparation, getattr(self.format, "private_preparation", ""))))

    @classmethod
    def of_folder(cls, path: str) -> tuple[str, DatasetRecipe]:
        """Return (name, recipe) of a folder of the user's own pictures, with a small federation for their number.

        The name is that of the folder. The ten clients have a tenth of the training pictures each, and at most 50.

        Raises:
            InputError: For a folder without classes or pictures, see `ImageFolder`.
        """
        form = ImageFolder(folder=path)
        held = max(1, min(50, form.training_count() // 10))
        batch = min(4, held)
        federation = Federation(
            rounds=5,
            batch=batch,
            examples_per_client=held,
            clients=10,
            clients_per_round=5,
            local_iterations=math.ceil(held / batch),
        )
        name = re.sub(r"[^A-Za-z0-9_]+", "_", Path(path).expanduser().resolve().name).strip("_") or "pictures"
        own = "the user's own"
        return name, cls(f"Pictures in {name}", own, own, form, federation)
