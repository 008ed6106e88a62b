"""The folder of an app's leaks, before a run replaces them: nothing is removed or overwritten there that is not leakbench's own."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from leakbench.errors import InputError
from leakbench.flower.leaks import SENT

__all__ = ["REBUILT", "check_own", "cleared"]

REBUILT = "rebuilt.safetensors"
"""The file of the attacker's answers."""

LEAK = re.compile(r"round\d{5,}-node-?\d+\.safetensors")
HELD = re.compile(r"\w[\w-]*\.round\d+\.(inputs|labels)")
CUT_SHORT = re.compile(r"\.part-\w+|\.rebuilt\.safetensors\.\w+\.tmp")
"""Temporary files of a process that was killed while it wrote."""


def check_own(folder: Path, taps: tuple[str, ...]) -> None:
    """Raise InputError, which names it, for whatever in a folder is no leak of one of the taps and no answers to one.

    A file is known by its name and by what it holds. A folder that is not there yet, or empty, is as good.
    """
    _own(folder, taps)


def cleared(folder: Path, taps: tuple[str, ...]) -> None:
    """Remove the leaks and answers of an earlier run; raises InputError as `check_own`, before anything is removed."""
    for path in _own(folder, taps):
        path.unlink()


def _own(folder: Path, taps: tuple[str, ...]) -> list[Path]:
    """Return the files of an earlier run."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise InputError(f"out: {str(folder)!r} is a file, expected a folder")
    found = []
    for path in sorted(folder.iterdir()):
        if path.name in (*taps, SENT) and path.is_dir() and not path.is_symlink():
            found += sorted(path.iterdir())
        else:
            found.append(path)
    for path in found:
        if path.is_symlink() or not path.is_file() or not _is_own(path, folder, taps):
            raise InputError(
                f"out: {str(path)!r} is not of `leakbench flower`, which replaces what an earlier run left in its folder; give"
                " another --out"
            )
    return found


def _is_own(path: Path, folder: Path, taps: tuple[str, ...]) -> bool:
    if CUT_SHORT.fullmatch(path.name):
        return True
    if path.parent == folder:
        held = _opened(path)
        return path.name == REBUILT and held is not None and all(HELD.fullmatch(name) for name in held[0])
    if path.parent.name == SENT:
        return path.name == f"{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.safetensors"
    held = _opened(path)
    return bool(LEAK.fullmatch(path.name)) and held is not None and {"round", "node-id"} <= held[1]


def _opened(path: Path) -> tuple[set[str], set[str]] | None:
    """Return the names of the arrays and of the words in a file; None of what is no safetensors."""
    try:
        with safe_open(path, framework="numpy") as file:
            return set(file.keys()), set(file.metadata() or {})
    except SafetensorError:
        return None
