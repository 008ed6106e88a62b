"""Packages that only some engines need: where one is missing, the line that installs it."""

from __future__ import annotations

import importlib
from typing import Any

from leakbench.errors import InputError

__all__ = ["needed"]


def needed(package: str) -> Any:
    """Return the package of the extra of this name; raises InputError where it is not installed, or does not work."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == package
        why = "is not installed" if missing else f"cannot be imported ({error})"
        raise InputError(f"engine: {package} {why}; pip install 'leakbench[{package}]'") from None
