"""The behaviour versions of everything that the numbers of a cell depend on, by name.

The recipes have the parts. The pieces that cells share are listed here, with the condition under which a cell uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from leakbench.attack import Attack
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.rankings.attributes import Attributes
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.rankings.classes import Classes
from leakbench.attack.servers.server import lies
from leakbench.cell.settings import Settings
from leakbench.core.behaviour import SHARED, behaviour_of, identity_name, versions_of_parts
from leakbench.data.dataset import Dataset
from leakbench.data.recipe import DatasetRecipe
from leakbench.defense import Defense
from leakbench.models import architecture
from leakbench.models.references import shown

__all__ = ["behaviours_of"]


class Resolved(Protocol):
    """The contents of a cell that its numbers depend on."""

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


USED: dict[str, Callable[[Resolved], bool]] = {
    "closed forms": lambda cell: isinstance(cell.attack.method, AutoLeak) and cell.settings.leaking.startswith("vit_"),
    "engine": lambda cell: cell.settings.engine == "fast",
    "training": lambda cell: cell.settings.federation.rounds > 0,
    "rankings": lambda cell: cell.settings.victims > 1,
    "batches": lambda cell: cell.settings.victims > 1 and _together(cell),
    "local steps": lambda cell: cell.settings.victims > 1 and _several_steps(cell),
    "accounting": lambda cell: bool(cell.defense.stations.transforms),
    "bounds": lambda cell: bool(cell.defense.stations.transforms),
}
"""{a piece that cells share: whether a cell uses it}; every cell uses the others."""


def _together(cell: Resolved) -> bool:
    """Return whether the update at any leakage point is of several examples."""
    s = cell.settings
    of_client = s.leak_batch * (s.federation.local_iterations if s.protocol == "live" else 1)
    return any(tap != "type-2" and (of_client > 1 or cell.defense.shows_sum(tap)) for tap in s.taps)


def _several_steps(cell: Resolved) -> bool:
    """Return whether the update at any leakage point is of several local steps of SGD at weights that the server did not change."""
    s, f = cell.settings, cell.settings.federation
    several = s.protocol == "live" and f.local_iterations > 1 and f.client_optimizer == "sgd"
    return several and not lies(cell.attack.server) and any(tap != "type-2" for tap in s.taps)


def behaviours_of(cell: Resolved) -> dict[str, int]:
    """Return {name: version} of everything that the numbers of a cell depend on, with its networks as `network NAME`.

    A planned cell without data has the same versions.
    """
    s = cell.settings
    networks = {s.leaking, *([s.model] if s.federation.rounds else [])}
    ranks = (Candidates, Classes, *([Attributes] if cell.data.kind == "tabular" else []))
    return {
        **versions_of_parts([cell.attack, cell.defense, cell.recipe.format, cell.recipe.federation.partition]),
        **versions_of_parts(s.federation.partition),
        **{identity_name(cls): behaviour_of(cls) for cls in ranks},
        **{f"network {shown(name)}": architecture(name).behaviour for name in networks},
        **{name: version for name, version in SHARED.items() if name not in USED or USED[name](cell)},
    }
