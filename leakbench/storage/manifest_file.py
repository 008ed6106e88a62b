"""Reads the manifest of a run's folder, and checks files against its checksums, without PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakbench.core.errors import DamagedError, InputError
from leakbench.core.hashes import checksum
from leakbench.core.untrusted import bounded_text, without_controls
from leakbench.storage.atomic import TEMPORARY
from leakbench.storage.manifest import CURE, FORMAT, check_manifest, check_seal

__all__ = [
    "check_files",
    "check_out",
    "check_parts",
    "check_spared",
    "files_left",
    "not_empty",
    "read_manifest",
    "written",
]

LONGEST = 20_000_000
"""Largest number of bytes of a manifest; a usual one has about 20,000."""

LARGEST = 1e300
"""Largest number of a run: an integer beyond the range of floats, such as 10^400, would raise errors in computations."""

AGAIN = "run the cell again"


def written(folder: Path, manifest: Mapping[str, Any], name: str, cure: str = AGAIN) -> Path:
    """Return the path of a file of a run.

    Args:
        cure: The remedy in the message.

    Raises:
        DamagedError: If the file is missing, cannot be read, or is not what the run wrote.
    """
    path = folder / name
    if not path.is_file():
        raise DamagedError(f"{path}: is missing", cure)
    try:
        found = checksum(path)
    except OSError as error:
        raise DamagedError(f"{path}: cannot be read ({error.strerror})", cure) from None
    if found != manifest.get("files", {}).get(name):
        raise DamagedError(f"{path}: is not what the run wrote", cure)
    return path


def check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check every file of a finished run, except the report, which `leakbench report` writes again.

    Args:
        folder: Its folder.
        manifest: Its manifest, as `read_manifest` returns it.

    Raises:
        DamagedError: If a file is missing or not what the run wrote.
    """
    # A run always has rows; an attack on an update without the truth has none.
    needed = () if "kind" in manifest else ("rows.parquet",)
    for name in dict.fromkeys((*needed, *manifest.get("files", ()))):
        if name != "report.html":
            written(folder, manifest, name)


def check_out(folder: Path) -> None:
    """Raise InputError, before any computation, for a folder in which no run can start; `open_run` checks it again."""
    try:
        check_parts(folder)
        is_file = folder.exists() and not folder.is_dir()
    except OSError as error:  # The name is too long, or the folder cannot be read.
        raise InputError(f"out: {str(folder)!r}: {error.strerror}; give another --out") from None
    if is_file:
        raise InputError(f"out: {str(folder)!r} is a file, expected a folder; give another --out")
    if folder.is_dir() and not (folder / "manifest.json").exists() and files_left(folder):
        raise not_empty(folder)


def check_parts(folder: Path) -> None:
    """Raise InputError for the folder in which another run keeps its parts."""
    if folder.name == "parts" and (folder.parent / "manifest.json").exists():
        raise InputError(
            f"out: {str(folder)!r} is where the run in {str(folder.parent)!r} keeps its parts; give another --out"
        )


def files_left(folder: Path) -> bool:
    """Return whether a folder without a manifest has files other than a lock and temporary files of a killed process."""
    return any(path.name != ".lock" and not TEMPORARY.fullmatch(path.name) for path in folder.iterdir())


def not_empty(folder: Path) -> InputError:
    """Return the error of a folder that has files and no run."""
    return InputError(f"out: {str(folder)!r} is not empty and holds no run; give another --out")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a run's folder.

    Raises:
        InputError: Without a manifest, or for one of another version.
        DamagedError: For a manifest that does not fit its checksum, or with fields of other types.
    """
    path = folder / "manifest.json"
    try:
        text = bounded_text(path, LONGEST)
        manifest, wrong = _numbers_in(text)
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_file():
            raise InputError(f"run: {str(folder)!r} is a file, expected the folder of a run") from None
        what = "manifest.json in" if folder.is_dir() else "folder"
        raise InputError(f"run: no {what} {str(folder)!r}; give the folder of a run") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error}); move it away to measure again") from None
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path}: cannot be read ({error})", "move it away to measure again") from None
    found = manifest.get("schema") if isinstance(manifest, dict) else type(manifest).__name__
    if type(found) is not int or found != FORMAT:
        said = f"{path}: schema {found!r}, this version reads {FORMAT}"
        raise InputError(f"{said}; {CURE}") if type(found) is int else DamagedError(said, CURE)
    if wrong:
        raise DamagedError(f"{path}: {wrong}", CURE)
    check_manifest(path, manifest)
    check_seal(path, manifest)
    shown: dict[str, Any] = without_controls(manifest, text)
    return shown


def check_spared(field: str, path: Path) -> None:
    """Raise InputError, with the option, for a folder, or if a command would overwrite a file of a run."""
    if path.is_dir():
        raise InputError(f"{field}: {str(path)!r} is a folder, expected a file")
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


def _numbers_in(text: str) -> tuple[Any, str]:
    """Return (the data of a JSON text, a message about a number that is NaN, infinite or too large, else an empty text)."""
    odd = False

    def number(found: float) -> float:
        nonlocal odd
        odd = odd or not -LARGEST <= found <= LARGEST
        return found

    value = json.loads(
        text,
        parse_float=lambda digits: number(float(digits)),
        parse_int=lambda digits: number(int(digits)),
        parse_constant=lambda name: number(float(name)),
    )
    # The place is searched only if there is such a number.
    return value, _no_number(value, "") if odd else ""


def _no_number(value: Any, place: str) -> str:
    if isinstance(value, float | int) and not -LARGEST <= value <= LARGEST:
        return f"{place}: got {str(value)[:40]}, expected a number that a run can give"
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next(filter(None, (_no_number(item, f"{place}.{name}" if place else f"{name}") for name, item in inner)), "")
