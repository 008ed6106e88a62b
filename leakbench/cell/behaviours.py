"""The behaviour versions of everything that the numbers of a cell depend on, by name.

Parts are found in the recipes. What every cell shares is listed here, with the cells that it is used by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import leakbench.attack.null
import leakbench.engine
import leakbench.limits
import leakbench.privacy
from leakbench.attack import Attack
from leakbench.attack.rankings.attributes import Attributes
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.rankings.classes import Classes
from leakbench.behaviour import behaviour_of, versions_of_parts
from leakbench.cell.settings import Settings
from leakbench.data.dataset import Dataset
from leakbench.data.recipe import DatasetRecipe
from leakbench.defense import Defense
from leakbench.defense.transform import STATIONS
from leakbench.federated import leakage, simulate
from leakbench.measure import metrics, rankings, statistics
from leakbench.models import MODELS

__all__ = ["behaviours_of", "behaviours_without_data"]


class Resolved(Protocol):
    """What a cell has that decides its numbers."""

    @property
    def attack(self) -> Attack: ...
    @property
    def defense(self) -> Defense: ...
    @property
    def recipe(self) -> DatasetRecipe: ...
    @property
    def data(self) -> Dataset: ...
    @property
    def settings(self) -> Settings: ...


@dataclass(frozen=True)
class Use:
    """What decides which shared pieces a cell uses.

    rounds: of training.  acts: whether the defense does anything.  victims: of each leakage point; a cell with one victim measures
    a training, and its rankings are no rates.
    """

    engine: str
    rounds: int
    acts: bool
    victims: int


@dataclass(frozen=True)
class Shared:
    """A module whose constant `BEHAVIOUR` is the version of a piece that cells share, and which cells use it."""

    module: ModuleType
    used: Callable[[Use], bool] = lambda _: True


SHARED = {
    "engine": Shared(leakbench.engine, lambda use: use.engine == "fast"),
    "training": Shared(simulate, lambda use: use.rounds > 0),
    "leakage": Shared(leakage),
    "metrics": Shared(metrics),
    "intervals": Shared(statistics),
    "rankings": Shared(rankings, lambda use: use.victims > 1),
    "baseline guess": Shared(leakbench.attack.null),
    "accounting": Shared(leakbench.privacy, lambda use: use.acts),
    "bounds": Shared(leakbench.limits, lambda use: use.acts),
}
"""{name: a piece that cells share}."""


def behaviours_of(cell: Resolved) -> dict[str, int]:
    """Return {name: version} of everything that the numbers of a cell depend on, with its networks as `network NAME`."""
    s = cell.settings
    networks = {s.leaking, *([s.model] if s.federation.rounds else [])}
    return {
        **behaviours_without_data(cell.attack, cell.defense, cell.recipe, s.engine, s.federation.rounds, s.victims),
        **versions_of_parts(s.federation.partition),
        **{f"network {name}": MODELS[name].behaviour for name in networks},
        **({Attributes.__name__: behaviour_of(Attributes)} if cell.data.features else {}),
    }


def behaviours_without_data(
    attack: Attack, defense: Defense, dataset: DatasetRecipe, engine: str, rounds: int, victims: int
) -> dict[str, int]:
    """Return what of `behaviours_of` is known without the data: all but the networks and the ranking of attributes.

    rounds: of training.  victims: of each leakage point.
    """
    use = Use(engine, rounds, any(getattr(defense, station) for station in STATIONS), victims)
    return {
        **versions_of_parts([attack, defense, dataset.format, dataset.federation.partition]),
        **{cls.__name__: behaviour_of(cls) for cls in (Candidates, Classes)},
        **{name: shared.module.BEHAVIOUR for name, shared in SHARED.items() if shared.used(use)},
    }
