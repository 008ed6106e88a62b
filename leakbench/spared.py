"""Files of runs, which no command overwrites that is asked to write elsewhere."""

from __future__ import annotations

from pathlib import Path

from leakbench.errors import InputError
from leakbench.manifest_file import read_manifest

__all__ = ["check_spared"]


def check_spared(field: str, path: Path) -> None:
    """Raise InputError, with the option, where a file that is to be written is one of a run's."""
    at = path.resolve()
    for folder in at.parents[:2]:  # The second for its parts.
        if at.exists() and (folder / "manifest.json").exists() and _knows(folder, at.relative_to(folder).as_posix()):
            raise InputError(
                f"{field}: got {str(path)!r}, which is a file of the run in {str(folder)!r}; give another file"
            )


def _knows(folder: Path, name: str) -> bool:
    try:
        return name == "manifest.json" or name in read_manifest(folder)["files"]
    except (InputError, KeyError):
        return True  # What lies there may be all that is left of a run.
