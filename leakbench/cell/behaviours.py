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
from leakbench.attack import Attack, batch_features
from leakbench.attack.rankings.attributes import Attributes
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.rankings.classes import Classes
from leakbench.behaviour import behaviour_of, identity_name, versions_of_parts
from leakbench.cell.settings import Settings
from leakbench.data.dataset import Dataset
from leakbench.data.recipe import DatasetRecipe
from leakbench.defense import Defense
from leakbench.federated import leakage, simulate
from leakbench.measure import metrics, rankings, recognised, statistics
from leakbench.models import MODELS
from leakbench.summary import verdict

__all__ = ["behaviours_of"]


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
class Shared:
    """A module whose constant `BEHAVIOUR` is the version of a piece that cells share, and which cells use it."""

    module: ModuleType
    used: Callable[[Resolved], bool] = lambda _: True


SHARED = {
    "engine": Shared(leakbench.engine, lambda cell: cell.settings.engine == "fast"),
    "training": Shared(simulate, lambda cell: cell.settings.federation.rounds > 0),
    "leakage": Shared(leakage),
    "metrics": Shared(metrics),
    "intervals": Shared(statistics),
    "recognition": Shared(recognised),
    "verdicts": Shared(verdict),
    "rankings": Shared(rankings, lambda cell: cell.settings.victims > 1),
    "batches": Shared(batch_features, lambda cell: cell.settings.victims > 1 and _together(cell)),
    "baseline guess": Shared(leakbench.attack.null),
    "accounting": Shared(leakbench.privacy, lambda cell: bool(cell.defense.stations.transforms)),
    "bounds": Shared(leakbench.limits, lambda cell: bool(cell.defense.stations.transforms)),
}
"""{name: a piece that cells share}."""


def _together(cell: Resolved) -> bool:
    """Say whether what leaks at any leakage point is of several examples."""
    s = cell.settings
    of_client = s.leak_batch * (s.federation.local_iterations if s.protocol == "live" else 1)
    return any(tap != "type-2" and (of_client > 1 or cell.defense.shows_sum(tap)) for tap in s.taps)


def behaviours_of(cell: Resolved) -> dict[str, int]:
    """Return {name: version} of everything that the numbers of a cell depend on, with its networks as `network NAME`.

    A cell that is planned without its data has the same versions.
    """
    s = cell.settings
    networks = {s.leaking, *([s.model] if s.federation.rounds else [])}
    ranks = (Candidates, Classes, *([Attributes] if cell.data.kind == "tabular" else []))
    return {
        **versions_of_parts([cell.attack, cell.defense, cell.recipe.format, cell.recipe.federation.partition]),
        **versions_of_parts(s.federation.partition),
        **{identity_name(cls): behaviour_of(cls) for cls in ranks},
        **{f"network {name}": MODELS[name].behaviour for name in networks},
        **{name: shared.module.BEHAVIOUR for name, shared in SHARED.items() if shared.used(cell)},
    }
