"""Whether Flower is installed."""

from __future__ import annotations

from importlib.util import find_spec

from leakbench.errors import InputError

__all__ = ["check_flwr"]

INSTALL = "pip install 'leakbench[flower]'"


def check_flwr() -> None:
    """Raise InputError, which names the installation, where flwr is not installed."""
    if find_spec("flwr") is None:
        raise InputError(f"flwr is not installed, which leakbench.flower needs: {INSTALL}")
