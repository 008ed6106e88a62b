"""Protects the files of runs from commands that write other files."""

from __future__ import annotations

from pathlib import Path

from leakbench.errors import InputError
from leakbench.manifest_file import read_manifest

__all__ = ["check_spared"]


def check_spared(field: str, path: Path) -> None:
    """Raise InputError, with the option, if a command would overwrite a file of a run."""
    at = path.resolve()
    for folder in at.parents[:2]:  # A file of a run may be in its folder `parts`.
        if at.exists() and (folder / "manifest.json").exists() and _knows(folder, at.relative_to(folder).as_posix()):
            raise InputError(
                f"{field}: got {str(path)!r}, which is a file of the run in {str(folder)!r}; give another file"
            )


def _knows(folder: Path, name: str) -> bool:
    try:
        return name == "manifest.json" or name in read_manifest(folder)["files"]
    except (InputError, KeyError):
        return True  # The file may be part of a damaged run.
