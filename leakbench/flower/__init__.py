"""Flower (`pip install leakbench[flower]`): defenses and taps inside its apps, and its apps without an engine.

The package imports flwr only when a name that needs it is used, so that leakbench works without flwr.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from leakbench.core.errors import InputError
from leakbench.external.observation import observe

if TYPE_CHECKING:
    from leakbench.flower.grids import InProcessGrid, ProbeStrategy, TapGrid, VectorisedGrid
    from leakbench.flower.mods import CanaryMod, DefenseMod, StepProbeMod, UpdateTapMod, attach

__all__ = [
    "CanaryMod",
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

MODS = ("CanaryMod", "DefenseMod", "StepProbeMod", "UpdateTapMod", "attach")
"""The public names in `leakbench.flower.mods`; the others that need flwr are in `leakbench.flower.grids`."""

INSTALL = "pip install 'leakbench[flower]'"


def __getattr__(name: str) -> Any:
    """Import a public name that needs flwr; raises InputError if flwr is not installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_flwr()
    return getattr(import_module(f"leakbench.flower.{'mods' if name in MODS else 'grids'}"), name)


def check_flwr() -> None:
    """Check that flwr is installed.

    Raises:
        InputError: If flwr is not installed. The message contains the command that installs it.
    """
    if find_spec("flwr") is None:
        raise InputError(f"flwr is not installed, which leakbench.flower needs: {INSTALL}")
