"""Packages that only an extra of leakbench installs."""

from __future__ import annotations

import importlib
from typing import Any

from leakbench.core.errors import InputError

__all__ = ["need"]


def need(package: str, what: str, extra: str = "text") -> Any:
    """Import a package of an extra.

    Args:
        package: Name of the package.
        what: What needs it, for the message.
        extra: Name of the extra.

    Raises:
        InputError: If the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError:
        raise InputError(
            f"{what}: needs the package {package!r}, which is not installed: pip install 'leakbench[{extra}]'"
        ) from None
