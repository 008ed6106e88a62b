"""Flower (`pip install leakbench[flower]`): defenses and taps inside its apps, and its apps without an engine.

Nothing here imports flwr before it is used, so that leakbench works without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from leakbench.own.observed import observe

if TYPE_CHECKING:
    from leakbench.flower.attached import attach
    from leakbench.flower.defense_mod import DefenseMod
    from leakbench.flower.in_process_grid import InProcessGrid
    from leakbench.flower.probe_strategy import ProbeStrategy
    from leakbench.flower.step_probe_mod import StepProbeMod
    from leakbench.flower.tap_grid import TapGrid
    from leakbench.flower.update_tap_mod import UpdateTapMod
    from leakbench.flower.vectorised_grid import VectorisedGrid

__all__ = [
    "DefenseMod",
    "InProcessGrid",
    "ProbeStrategy",
    "StepProbeMod",
    "TapGrid",
    "UpdateTapMod",
    "VectorisedGrid",
    "attach",
    "observe",
]

WHERE = {
    "DefenseMod": "defense_mod",
    "InProcessGrid": "in_process_grid",
    "ProbeStrategy": "probe_strategy",
    "StepProbeMod": "step_probe_mod",
    "TapGrid": "tap_grid",
    "UpdateTapMod": "update_tap_mod",
    "VectorisedGrid": "vectorised_grid",
    "attach": "attached",
}
"""{public name: the module that holds it, which imports flwr}."""


def __getattr__(name: str) -> Any:
    """Import what needs flwr when it is asked for; raises InputError where flwr is not installed."""
    if name not in WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from leakbench.flower.installed import check_flwr  # noqa: PLC0415

    check_flwr()
    return getattr(import_module(f"leakbench.flower.{WHERE[name]}"), name)
