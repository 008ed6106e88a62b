"""NVFlare and pfl: their filters and mechanisms as functions for an audit, and a filter that records what a client sends.

The package imports nvflare and pfl only when a name that needs them is used. Their code as a part of a defense is in
`leakbench.defense.frameworks`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from leakbench.core.extras import need
from leakbench.core.typed import typed_arguments
from leakbench.defense.frameworks import Arrays, Step, filtered, processed

if TYPE_CHECKING:
    from leakbench.frameworks.nvflare import UpdateTapFilter

__all__ = ["UpdateTapFilter", "nvflare_function", "pfl_function"]

Function = Callable[[Arrays, int], Arrays]
"""A function of one client's update and a seed, as `leakbench audit --callable` takes it."""


def __getattr__(name: str) -> Any:
    """Import a public name that needs nvflare; raises InputError if nvflare is not installed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    need("nvflare", "leakbench.frameworks.UpdateTapFilter", "nvflare")
    return getattr(import_module("leakbench.frameworks.nvflare"), name)


@typed_arguments
def nvflare_function(build: Callable[[], Any], steps: int = 1) -> Function:
    """Return an NVFlare filter as a function that an audit takes.

    Args:
        build: Function that returns the filter, your own or one of NVFlare; it is called for each update.
        steps: Number of local steps, by which some filters divide.
    """

    def send(update: Arrays, seed: int) -> Arrays:
        return filtered(build, update, seed, steps)

    return send


@typed_arguments
def pfl_function(build: Callable[[], Any], step: Step = "privatize", clients: int = 1) -> Function:
    """Return a step of a pfl mechanism as a function that an audit takes.

    Args:
        build: Function that returns the mechanism, your own or one of pfl; it is called for each update.
        step: Method of the mechanism.
        clients: Number of clients in the sum, for `add_noise`.
    """

    def send(update: Arrays, seed: int) -> Arrays:
        return processed(build, update, seed, step, clients)

    return send
