"""Archives as attackers could make them.

A good one, and ones that escape the folder, contain devices, lie about sizes, or explode.
"""

from __future__ import annotations

import bz2
import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["archives"]


def archives(source: Path) -> Iterator[tuple[str, bytes, bool]]:
    """Yield (name, bytes, whether it must be accepted); source: the folder that a good archive contains, as `raw`."""
    good = _packed(source)
    plain = gzip.decompress(good)
    yield "good", good, True
    yield "good-plain", plain, True
    yield "good-bzip2", bz2.compress(plain), True
    yield "nothing", b"", False
    yield "no-archive", b"<html>", False
    yield "cut", good[:-200], False
    yield "cut-plain", plain[: len(plain) // 2], False
    yield "no-folder", _packed(source, top="other"), False
    yield "other-content", _packed(source, more=(_file("raw/Ann_A/Ann_A_0001.jpg", b"another"),)), False
    for name, path in (
        ("up", "../../escaped.txt"),
        ("up-inside", "raw/../../../escaped.txt"),
        ("absolute", "/tmp/leakbench-escaped.txt"),
        ("drive", "C:\\escaped.txt"),
        ("controls", "raw/\x1b]0;title\x07.jpg"),
    ):
        yield name, _packed(source, more=(_file(path, b"x"),)), False
    for name, kind, path, target in (
        ("link-out", tarfile.SYMTYPE, "raw/out", "/etc"),
        ("link-in", tarfile.SYMTYPE, "raw/in", "Ann_A"),
        ("hard-link", tarfile.LNKTYPE, "raw/hard", "raw/Ann_A/Ann_A_0001.jpg"),
        ("hard-link-out", tarfile.LNKTYPE, "raw/hard", "../../../../etc/passwd"),
        ("pipe", tarfile.FIFOTYPE, "raw/pipe", ""),
        ("device", tarfile.CHRTYPE, "raw/zero", ""),
    ):
        yield name, _packed(source, more=(_special(kind, path, target),)), False
    through = (_special(tarfile.SYMTYPE, "raw/d", "/tmp"), _file("raw/d/leakbench-escaped.txt", b"x"))
    yield "through-a-link", _packed(source, more=through), False
    yield "bomb", _packed(source, more=(_file("raw/zeros.jpg", bytes(80_000_000)),)), False
    yield "bomb-of-bombs", gzip.compress(gzip.compress(bytes(80_000_000))), False
    yield "header-that-asks-for-all-memory", gzip.compress(_greedy() + bytes(1024)), False
    yield "size-below-zero", gzip.compress(_head("raw/x.jpg", -1) + bytes(1024)), False
    yield "many-names", _packed(source, more=tuple(_file(f"../{n}", b"") for n in range(50))), False


Entry = tuple[tarfile.TarInfo, bytes]


def _file(path: str, content: bytes) -> Entry:
    entry = tarfile.TarInfo(path)
    entry.size = len(content)
    return entry, content


def _special(kind: bytes, path: str, target: str) -> Entry:
    entry = tarfile.TarInfo(path)
    entry.type, entry.linkname = kind, target
    return entry, b""


def _packed(source: Path, top: str = "raw", more: tuple[Entry, ...] = ()) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as packed:
        packed.add(source, top)
        for entry, content in more:
            packed.addfile(entry, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), 6)


def _head(path: str, size: int) -> bytes:
    entry = tarfile.TarInfo(path)
    entry.size = size
    return entry.tobuf(tarfile.GNU_FORMAT)


def _greedy() -> bytes:
    """Return an extended header of a petabyte, which a reader would load into memory whole."""
    entry = tarfile.TarInfo("././@PaxHeader")
    entry.type, entry.size = tarfile.XHDTYPE, 1 << 33
    return entry.tobuf(tarfile.GNU_FORMAT)
