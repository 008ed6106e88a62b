"""Leaks as files: every engine of Flower runs clients in processes of their own, so that what a tap sees is written down.

    FOLDER/TAP/round00001-node123.safetensors    the arrays as they passed the tap; what else is known in the header
    FOLDER/sent/HASH.safetensors                 the arrays that the server had sent, once for all who got them

Each file is written whole or not at all, holds arrays and text alone, and is never a pickle. Arrays are read in the order of the
file, not of the message.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from leakbench.atomic import write_atomically
from leakbench.errors import InputError
from leakbench.inside import said

__all__ = ["REBUILT", "SENT", "Leak", "Named", "check_own", "cleared", "leaked_rounds", "read_leaks", "write_leak"]


Named: TypeAlias = Mapping[str, NDArray[Any]]

SENT = "sent"
"""The folder of what the server had sent, and the word in a header that names the file there."""


@dataclass(frozen=True)
class Leak:
    """What one message showed at one tap.

    Args:
        tap: The folder's name, `type-1` or another.
        round: The server's, from 1.
        node: Flower's id of the client's node.
        partition: The client's partition-id; None where the tap does not know it, as a server's.
        arrays: {name: array} as they passed the tap.
        sent: Likewise, what the server had sent to this client; {} where it is not told.
        said: What else is known, words by words.
    """

    tap: str
    round: int
    node: int
    partition: int | None
    arrays: Named
    sent: Named
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its file within the tap's folder."""
        return f"round{self.round:05d}-node{self.node}.safetensors"


def write_leak(folder: Path, leak: Leak) -> Path:
    """Write a leak, in the stead of one of the same tap, round and node, and return its file."""
    header = {**leak.said, "round": str(leak.round), "node-id": str(leak.node)}
    if leak.partition is not None:
        header["partition-id"] = str(leak.partition)
    if leak.sent:
        whole = save(_plain(leak.sent))
        header[SENT] = hashlib.sha256(whole).hexdigest()[:16]
        before = folder / SENT / f"{header[SENT]}.safetensors"
        if not before.exists():
            _write(before, whole)
    path = folder / leak.tap / leak.name
    _write(path, save(_plain(leak.arrays), header))
    return path


def leaked_rounds(folder: Path, tap: str) -> list[int]:
    """Return the rounds in which a tap saw anything, by the names of its files."""
    names = (re.fullmatch(r"round(\d+)-node.*", path.stem) for path in (folder / tap).glob("round*.safetensors"))
    return sorted({int(found[1]) for found in names if found})


def read_leaks(folder: str | Path, tap: str, number: int | None = None) -> list[Leak]:
    """Return the leaks of one tap by round and then by partition, or node where no partition is known; [] where there is none.

    Raises InputError for a folder that is not there, and for a file that names what the server had sent by no hash, or by one that
    is not there.

    Args:
        number: Of which round, from 1; None: of all.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of leaks")
    sent: dict[str, Named] = {}
    names = "round*.safetensors" if number is None else f"round{number:05d}-*.safetensors"
    found = [_read(folder, tap, path, sent) for path in sorted((folder / tap).glob(names))]
    return sorted(found, key=lambda leak: (leak.round, leak.node if leak.partition is None else leak.partition))


def _read(folder: Path, tap: str, path: Path, before: dict[str, Named]) -> Leak:
    """Return one leak; `before`, what the server had sent by its hash, is filled as it is met."""
    arrays, header = _opened(path)
    sent: Named = {}
    if SENT in header:
        if header[SENT] not in before:
            before[header[SENT]] = _sent(folder, path, header[SENT])
        sent = before[header[SENT]]
    partition = header.get("partition-id")
    known = ("round", "node-id", "partition-id", SENT)
    words = {key: text for key, text in header.items() if key not in known}
    try:
        where = None if partition is None else int(partition)
        return Leak(tap, int(header["round"]), int(header["node-id"]), where, arrays, sent, words)
    except (KeyError, ValueError):
        got = ", ".join(f"{key} {said(header.get(key, 'missing'))}" for key in ("round", "node-id", "partition-id"))
        raise InputError(f"{path}: its header has {got}; expected whole numbers, as a tap writes them") from None


def _sent(folder: Path, path: Path, name: str) -> Named:
    if not re.fullmatch("[0-9a-f]{16}", name):
        raise InputError(f"{path}: sent: got {said(name)}, expected a hash")
    before = folder / SENT / f"{name}.safetensors"
    if not before.is_file():
        raise InputError(f"{path}: {before.name}, what the server had sent, is not in {before.parent}")
    return _opened(before)[0]


def _opened(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    try:
        return _arrays_and_header(path)
    except (SafetensorError, TypeError) as error:  # TypeError of numbers that NumPy has not, as bfloat16.
        raise InputError(f"{path}: cannot be read as safetensors ({said(error)})") from None


def _arrays_and_header(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def _plain(arrays: Named) -> dict[str, NDArray[Any]]:
    return {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content), private=True)


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
        held = _names_in(path)
        return path.name == REBUILT and held is not None and all(HELD.fullmatch(name) for name in held[0])
    if path.parent.name == SENT:
        return path.name == f"{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.safetensors"
    held = _names_in(path)
    return bool(LEAK.fullmatch(path.name)) and held is not None and {"round", "node-id"} <= held[1]


def _names_in(path: Path) -> tuple[set[str], set[str]] | None:
    """Return the names of the arrays and of the words in a file; None of what is no safetensors."""
    try:
        with safe_open(path, framework="numpy") as file:
            return set(file.keys()), set(file.metadata() or {})
    except SafetensorError:
        return None
