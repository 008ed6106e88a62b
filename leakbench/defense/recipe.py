"""A defense: transforms at four stations, the claimed epsilon, and the sampling that its epsilon depends on."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Annotated, Literal

from pydantic import Field
from pydantic_core import PydanticCustomError

from leakbench.core.part import Count, Text, part
from leakbench.core.recipe import Slot, nested
from leakbench.core.types import Clock
from leakbench.data.recipe import Federation
from leakbench.defense.augmentation import AUGMENTATION, Augmentation
from leakbench.defense.network import NETWORK, Extension
from leakbench.defense.transform import STATIONS, Stations, Transform, acts_on, name_of
from leakbench.privacy.budget import Budget
from leakbench.privacy.claim import CLAIM, Claim, NoClaim
from leakbench.privacy.decay import Multiplier

__all__ = ["TRANSFORM", "Defense"]

TRANSFORM = Slot("transform", ("leakbench.defense",))

Step = Annotated[Transform, TRANSFORM]


@part("defense")
class Defense:
    """The recipe of a defense.

    Each of `example`, `batch`, `client` and `server` holds the transforms of one station, in order (see `leakbench.federated`).
    `network` holds changes of the network itself, in order (`leakbench.defense.network`), and `inputs` changes of a client's batch
    before its gradients are computed (`leakbench.defense.augmentation`).
    """

    title: Annotated[Text, Field(description="Short name for tables and pages.")]
    cite: Annotated[Text, Field(description="Source of the defense.")]
    unit: Annotated[
        Literal["example", "client"], Field(description="Unit of one epsilon, an `example` or a whole `client`.")
    ]
    note: Annotated[str, Field(description="Remarks for the reader of the recipe.")] = ""
    network: tuple[Annotated[Extension, NETWORK], ...] = ()
    inputs: tuple[Annotated[Augmentation, AUGMENTATION], ...] = ()
    example: tuple[Step, ...] = ()
    batch: tuple[Step, ...] = ()
    client: tuple[Step, ...] = ()
    server: tuple[Step, ...] = ()
    batches: Annotated[
        Literal["fixed", "split", "poisson"],
        Field(
            description=(
                "How a client draws its batches: `fixed` (B of its examples without replacement, drawn again in each local "
                "iteration), `split` (one pass over a shuffled, fixed split), `poisson` (each example with probability B / |D_i|)."
            )
        ),
    ] = "fixed"
    cohorts: Annotated[
        Literal["fixed", "poisson", "in_turn"],
        Field(
            description=(
                "How the server draws its clients: `fixed` (K_t of N), `poisson` (each with probability K_t / N) or `in_turn` (the "
                "next K_t of one shuffled list, over and over, so that a client takes part in at most one of any N / K_t "
                "consecutive rounds, rounded down)."
            )
        ),
    ] = "fixed"
    cohort_groups: Annotated[
        Count,
        Field(
            description=(
                "Number G of groups, at most N / K_t, into which the clients are divided once; round t draws only from group t "
                "modulo G, each client with probability G K_t / N (with `cohorts: poisson`). 1 for no groups."
            )
        ),
    ] = 1
    cohort_growth: Annotated[
        Multiplier,
        Field(description="Factor of K_t in a round, a number or a schedule, as m_t in Geyer et al. 2017, section 4."),
    ] = 1.0
    on_dropout: Annotated[
        Literal["continue", "abort"],
        Field(
            description=(
                "What a round does if a client fails (`Federation.dropout`): `continue` sums up the other clients and still "
                "divides by K_t, to which the noise is calibrated; `abort` changes nothing and releases nothing."
            )
        ),
    ] = "continue"
    aggregation: Annotated[
        Literal["plain", "secure", "shuffled"],
        Field(
            description=(
                "What the server receives: every update (`plain`), only the sum of a round's updates (`secure`), or every update "
                "in a random order and without the client's name (`shuffled`)."
            )
        ),
    ] = "plain"
    model: Annotated[
        str,
        Field(
            description="Network that is trained; empty for the data set's usual one. The command line overrides it."
        ),
    ] = ""
    leak_model: Annotated[
        str,
        Field(
            description=(
                "Network that leaks in the `paper` protocol; empty for the data set's usual one. The command line overrides it."
            )
        ),
    ] = ""
    claim: Annotated[Claim, CLAIM] = NoClaim(reason="no epsilon is claimed")
    budget: Annotated[
        Budget | None,
        nested(Budget),
        Field(description="Epsilon at which training stops; None for all rounds. The command line overrides it."),
    ] = None
    printed_by: Annotated[str, Field(description="Source of the printed values, if it is not `cite`.")] = ""
    printed: Annotated[
        dict[str, dict[str, Annotated[float, Field(allow_inf_nan=False)]]],
        Field(
            description=(
                "Values that the paper prints, {`accuracy` | `epsilon` | `rmse TAP`: {dataset: value}}, to compare with the "
                "measurement."
            )
        ),
    ] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        # NbAFL's formula does not say whose sensitivity it uses, and neither may a user's own claim: both then have no unit.
        if self.cohorts == "in_turn" and self.cohort_growth != 1:
            text = "cohort_growth: clients that take turns (cohorts: in_turn) need as many places in each round; expected 1"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        if self.cohort_groups > 1 and (self.cohorts != "poisson" or self.cohort_growth != 1):
            text = "cohort_groups: groups take turns with Poisson cohorts that do not grow alone; expected cohorts: poisson"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        claimed = getattr(self.claim, "unit", self.unit)
        if claimed != self.unit:
            text = f"claim: its unit is {claimed!r}, the defense's is {self.unit!r}; expected the same"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        if any(acts_on(t) == "mean" for t in self.server):
            text = "server: noise `to: mean` depends on how many updates arrive; expected `to: sum` (K_t times the multiplier)"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        if self.aggregation == "secure" and not all(acts_on(t) == "sum" for t in self.server):
            text = "server: under `aggregation: secure` it sees no single update; expected nothing there but noise `to: sum`"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        sums = [name_of(t) for t in self.client if hasattr(t, "at_server")]
        if sums and self.aggregation != "secure":
            text = f"aggregation: the messages of {sums[0]} are read as their sum modulo m alone; expected secure"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        if len(sums) > 1:
            text = f"client: got {' and '.join(sums)}, whose messages are integers of different grids; expected one of them"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        if sums and not hasattr(self.client[-1], "at_server"):
            after = name_of(self.client[-1])
            text = f"client: {after} comes after {sums[0]}, whose messages are integers; expected nothing after it"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        if self.batches == "poisson" and any(acts_on(t) != "each" for t in self.example):
            text = "example: a noise for the sum of a Poisson batch, which may be empty, belongs to the batch station"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        self._check_memory()
        self._check_places()

    def _check_memory(self) -> None:
        several_rounds = [name_of(t) for t in self.server if getattr(t, "over_rounds", False)]
        if len(several_rounds) > 1:
            text = f"server: got {' and '.join(several_rounds)}, whose noise is that of a whole training; expected one of them"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        if self.on_dropout == "abort" and several_rounds:
            text = "on_dropout: a round that is aborted takes its correlated noise along; expected continue"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        stateful = Counter(name_of(t) for t in self.stations.transforms if getattr(t, "stateful", False))
        for called, count in stateful.items():
            if count > 1:
                text = f"{called}: appears twice, but what it remembers is one; expected one in a defense"
                raise PydanticCustomError("slot", "{text}", {"text": text})

    def _check_places(self) -> None:
        for station in STATIONS:
            for t in getattr(self, station):
                accepted = getattr(t, "stations", STATIONS)
                if station not in accepted:
                    text = f"{station}: {name_of(t)} is at the {station} station, expected at the {' or '.join(accepted)} station"
                    raise PydanticCustomError("slot", "{text}", {"text": text})

    def clock(self, federation: Federation, round_number: int, local_iteration: int = 0) -> Clock:
        """Return the federation's clock with this defense's number of clients in the round, between 1 and all, and its turns."""
        plain = federation.clock(round_number, local_iteration)
        growth = self.cohort_growth(plain) if callable(self.cohort_growth) else self.cohort_growth
        cohort = max(1, min(plain.clients, round(plain.cohort * growth)))
        groups = min(self.cohort_groups, plain.clients // cohort)
        return dataclasses.replace(plain, cohort=cohort, in_turn=self.cohorts == "in_turn", groups=groups)

    @property
    def stations(self) -> Stations:
        """The transforms of all stations and the changes of inputs, without the rest of the recipe."""
        reading = tuple(t.at_server for t in self.client if hasattr(t, "at_server"))
        return Stations(self.example, self.batch, self.client, (*reading, *self.server), self.inputs)

    def shows_sum(self, tap: str) -> bool:
        """Return whether an attacker at the tap sees only the sum (or mean) of a round's updates, not a single one."""
        return tap == "global" or (tap == "type-0" and self.aggregation == "secure")
