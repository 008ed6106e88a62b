"""Unpacks untrusted archives: only plain files below the target folder, with a limit on the number of bytes."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import IO, cast

from leakbench.core.errors import InputError
from leakbench.core.untrusted import is_inside, said
from leakbench.data.formats import Format

__all__ = ["unpack"]

MOST_FILES = 1_000_000
AT_ONCE = 1 << 24
"""Largest number of bytes per read: tarfile reads files in smaller pieces, but a hostile header may request more."""

BROKEN = (tarfile.TarError, EOFError, ValueError, OverflowError, gzip.BadGzipFile, zlib.error)
"""Errors of a damaged or hostile archive."""


class _Bounded:
    """A file with a limit on the bytes that can be read, in total and at once."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self.file, self.most = file, most

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= AT_ONCE:
            raise tarfile.ReadError(f"a header asks for {size:,} bytes")
        self._check(self.file.tell() + size)
        return self.file.read(size)

    def seek(self, place: int, whence: int = 0) -> int:
        self._check(place)
        return self.file.seek(place, whence)

    def tell(self) -> int:
        return self.file.tell()

    def _check(self, place: int) -> None:
        if place > self.most + AT_ONCE:
            raise tarfile.ReadError(f"unpacks to more than {self.most:,} bytes")


def unpack(packed: Path, folder: Path, form: Format, most: int) -> None:
    """Unpack a tar archive, plain or compressed by gzip or bzip2, that contains a folder with `folder`'s name, and delete it.

    Args:
        packed: The archive.
        folder: Target folder.
        form: Format that checks the content before it is moved to the target folder.
        most: Largest number of unpacked bytes.

    Raises:
        InputError: For a damaged archive, one with entries other than files and folders below it, or other content. The target
            folder then does not change.
    """
    for left in folder.parent.glob(".unpacking-*"):  # From a killed process: the caller's lock excludes running ones.
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as scratch:
        try:
            _extract(packed, Path(scratch), most)
        except (*BROKEN, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # An error of the disk, not of the archive.
                raise
            packed.unlink()
            raise InputError(f"{packed.name}: not a whole, safe archive: {error}; it was deleted") from None
        fresh = Path(scratch) / folder.name
        if not fresh.is_dir():
            packed.unlink()
            raise InputError(f"{packed.name}: holds no folder {folder.name!r}; it was deleted")
        wrong = [c for c in form.check(fresh) if not c.ok]
        if wrong:
            packed.unlink()
            raise InputError(
                f"{packed.name}: {wrong[0].file}: fetched, but its content is not what was expected ({wrong[0].got});"
                " it was deleted"
            )
        _put(fresh, folder)
    packed.unlink()


def _extract(packed: Path, scratch: Path, most: int) -> None:
    count = size = 0
    with _opened(packed) as file:
        bounded = cast(IO[bytes], _Bounded(file, most))
        with tarfile.open(fileobj=bounded, mode="r:") as archive:
            for member in archive:
                count, size = count + 1, size + member.size
                _check(member, count, size, most)
                archive.extract(member, scratch, filter="data")


def _check(member: tarfile.TarInfo, count: int, size: int, most: int) -> None:
    name = said(member.name)
    if not is_inside(member.name):
        raise tarfile.ReadError(f"holds {name}, expected names below the archive's folder")
    if not (member.isfile() or member.isdir()):
        raise tarfile.ReadError(f"holds {name}, which is a link or a device, expected files and folders")
    if count > MOST_FILES or size > most:
        raise tarfile.ReadError(f"unpacks to more than {most:,} bytes or {MOST_FILES:,} files")


def _opened(packed: Path) -> IO[bytes]:
    with packed.open("rb") as file:
        head = file.read(3)
    if head[:2] == b"\x1f\x8b":
        return cast(IO[bytes], gzip.open(packed))
    return cast(IO[bytes], bz2.open(packed)) if head == b"BZh" else packed.open("rb")


def _put(fresh: Path, folder: Path) -> None:
    """Move the unpacked files into the target folder, each atomically; other files there stay."""
    if not folder.exists():
        os.replace(fresh, folder)
        return
    for path in sorted(fresh.rglob("*")):
        place = folder / path.relative_to(fresh)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            os.replace(path, place)
