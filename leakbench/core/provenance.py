"""The versions of the software of a run."""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import leakbench
from leakbench import __version__

__all__ = ["code", "versions"]

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


@lru_cache
def code() -> str:
    """Return the beginning of the sha256 of leakbench's own modules, since the version does not change between two releases."""
    digest, home = hashlib.sha256(), Path(leakbench.__path__[0])
    for path in sorted(home.rglob("*.py")):
        digest.update(f"{path.relative_to(home).as_posix()} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]
