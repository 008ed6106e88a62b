"""What a run was made with."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from leakbench import __version__

__all__ = ["versions"]

PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "scikit-image",
    "scikit-learn",
    "pandas",
    "dp-accounting",
    "lpips",
)


def versions() -> dict[str, str]:
    """Return the versions of Python, the machine, leakbench and the packages that its numbers depend on."""
    found = {"leakbench": __version__, "python": platform.python_version(), "machine": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
