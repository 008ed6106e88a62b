"""Leaks as files: Flower's engines run clients in separate processes, so each tap writes what passes it.

    FOLDER/TAP/round00001-node123.safetensors    the arrays as they passed the tap; everything else in the header
    FOLDER/sent/HASH.safetensors                 the arrays that the server sent, once for all clients that got them

Each file is written atomically, contains arrays and text only, and is never a pickle. Arrays are read in the order of the
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

from leakbench.core.errors import InputError
from leakbench.core.leakage_points import OWN as TAPS
from leakbench.core.untrusted import said
from leakbench.storage.atomic import write_bytes

__all__ = ["FIRST", "REBUILT", "Leak", "Named", "leak_files", "leaked_rounds", "read_leaks", "write_leak"]

Named: TypeAlias = Mapping[str, NDArray[Any]]
"""{name: array}."""

SENT = "sent"
"""The folder of the arrays that the server sent, and the key of their hash in a header."""

FIRST = "first-sample"
"""Key in a header of the number of observed examples before the first whose gradient Opacus left, or `unknown`; missing for 0."""

REBUILT = "rebuilt.safetensors"
"""The file of the reconstructions."""

LEAK = re.compile(r"round(\d{5,})-node-?\d+\.safetensors")
RECONSTRUCTION = re.compile(r"\w[\w-]*\.round\d+\.(inputs|labels)")
TEMPORARY = re.compile(r"\.part-\w+|\.rebuilt\.safetensors\.\w+\.tmp")
"""Temporary files of a process that was killed while it wrote."""


@dataclass(frozen=True)
class Leak:
    """What one message showed at one tap.

    Args:
        tap: Name of the folder, `type-1` or another.
        round: Round of the server, from 1.
        node: Flower's id of the client's node.
        partition: The client's partition-id; None where the tap does not know it, as at the server.
        arrays: {name: array} as they passed the tap.
        sent: The same for what the server sent to this client; {} if unknown.
        said: Further {key: text} of the header.
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
        """Name of the file within the tap's folder."""
        return f"round{self.round:05d}-node{self.node}.safetensors"


def write_leak(folder: Path, leak: Leak) -> Path:
    """Write a leak in place of an earlier one of the same tap, round and node, and return its file."""
    header = {**leak.said, "round": str(leak.round), "node-id": str(leak.node)}
    if leak.partition is not None:
        header["partition-id"] = str(leak.partition)
    if leak.sent:
        content = save(_contiguous(leak.sent))
        header[SENT] = _hash(content)
        before = _sent_file(folder, header[SENT])
        if not before.exists():
            write_bytes(before, content, private=True)
    path = folder / leak.tap / leak.name
    write_bytes(path, save(_contiguous(leak.arrays), header), private=True)
    return path


def leaked_rounds(folder: Path) -> list[int]:
    """Return the rounds in which any tap recorded a message, by the names of the files."""
    names = (LEAK.fullmatch(path.name) for tap in TAPS for path in (folder / tap).glob("round*.safetensors"))
    return sorted({int(found[1]) for found in names if found})


def read_leaks(folder: str | Path, tap: str, number: int | None = None) -> list[Leak]:
    """Return the leaks of one tap by round, then by partition, or by node if the partition is unknown.

    Args:
        folder: Folder of the leaks.
        tap: Name of the tap.
        number: Round, from 1; None for all rounds.

    Raises:
        InputError: For a missing folder, a damaged file, and a file that names the arrays that the server sent by anything
            but the hash of an existing file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of leaks")
    sent: dict[str, Named] = {}
    names = "round*.safetensors" if number is None else f"round{number:05d}-*.safetensors"
    found = [_read(folder, tap, path, sent) for path in sorted((folder / tap).glob(names))]
    return sorted(found, key=lambda leak: (leak.round, leak.node if leak.partition is None else leak.partition))


def _read(folder: Path, tap: str, path: Path, sent: dict[str, Named]) -> Leak:
    """Return one leak; `sent` has the arrays that the server sent by their hash, and gets new ones."""
    arrays, header = _opened(path)
    if SENT in header and header[SENT] not in sent:
        if not re.fullmatch("[0-9a-f]{16}", header[SENT]):
            raise InputError(f"{path}: sent: got {said(header[SENT])}, expected a hash")
        before = _sent_file(folder, header[SENT])
        if not before.is_file():
            raise InputError(f"{path}: {before.name}, what the server had sent, is not in {before.parent}")
        sent[header[SENT]] = _opened(before)[0]
    partition = header.get("partition-id")
    known = ("round", "node-id", "partition-id", SENT)
    words = {key: text for key, text in header.items() if key not in known}
    try:
        where = int(header["round"]), int(header["node-id"]), None if partition is None else int(partition)
        return Leak(tap, *where, arrays, sent.get(header.get(SENT, ""), {}), words)
    except (KeyError, ValueError):
        got = ", ".join(f"{key} {said(header.get(key, 'missing'))}" for key in ("round", "node-id", "partition-id"))
        raise InputError(f"{path}: its header has {got}; expected whole numbers, as a tap writes them") from None


def _opened(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays and the header of a file."""
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, TypeError) as error:  # A TypeError is about numbers that NumPy does not have, as bfloat16.
        raise InputError(f"{path}: cannot be read as safetensors ({said(error)})") from None


def _sent_file(folder: Path, digest: str) -> Path:
    return folder / SENT / f"{digest}.safetensors"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _contiguous(arrays: Named) -> dict[str, NDArray[Any]]:
    return {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}


def leak_files(folder: Path) -> list[Path]:
    """Return the files that an earlier run of `leakbench flower` left in a folder; [] for a missing or empty folder.

    A file is recognised by its name and by its content.

    Raises:
        InputError: For anything else in the folder, with its name.
    """
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise InputError(f"out: {str(folder)!r} is a file, expected a folder")
    found = []
    for path in sorted(folder.iterdir()):
        inside = path.name in (*TAPS, SENT) and path.is_dir() and not path.is_symlink()
        found += sorted(path.iterdir()) if inside else [path]
    for path in found:
        if path.is_symlink() or not path.is_file() or not _is_own(path, folder):
            raise InputError(
                f"out: {str(path)!r} is not of `leakbench flower`, which replaces what an earlier run left in its folder; give"
                " another --out"
            )
    return found


def _is_own(path: Path, folder: Path) -> bool:
    if TEMPORARY.fullmatch(path.name):
        return True
    if path.parent.name == SENT and path.parent != folder:
        return path.name == f"{_hash(path.read_bytes())}.safetensors"
    try:
        with safe_open(path, framework="numpy") as file:
            names, header = set(file.keys()), set(file.metadata() or {})
    except SafetensorError:
        return False
    if path.parent == folder:
        return path.name == REBUILT and all(RECONSTRUCTION.fullmatch(name) for name in names)
    return bool(LEAK.fullmatch(path.name)) and {"round", "node-id"} <= header
