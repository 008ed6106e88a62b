"""Unpacks untrusted archives: only plain files below the target folder, with a limit on the number of bytes."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
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

CHUNK = 1 << 20

BROKEN = (
    *(tarfile.TarError, zipfile.BadZipFile, NotImplementedError),
    *(EOFError, ValueError, OverflowError, gzip.BadGzipFile, zlib.error),
)
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
    """Unpack a zip archive, or a tar archive, plain or compressed by gzip or bzip2, and delete it.

    The archive contains a folder with `folder`'s name.

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
    if _head(packed) == b"PK\x03\x04":
        _extract_zip(packed, scratch, most)
        return
    count = size = 0
    with _opened(packed) as file:
        bounded = cast(IO[bytes], _Bounded(file, most))
        with tarfile.open(fileobj=bounded, mode="r:") as archive:
            for member in archive:
                count, size = count + 1, size + member.size
                _check(member, count, size, most)
                archive.extract(member, scratch, filter="data")


def _extract_zip(packed: Path, scratch: Path, most: int) -> None:
    """Unpack a zip archive. The limit applies to the bytes that are written, since a hostile header may state fewer."""
    left = most
    with zipfile.ZipFile(packed) as archive:
        members = archive.infolist()
        if len(members) > MOST_FILES:
            raise zipfile.BadZipFile(f"holds more than {MOST_FILES:,} files")
        for member in members:
            _check_zip(member)
            try:
                left -= _write(archive, member, scratch / member.filename, left)
            except (FileExistsError, NotADirectoryError):
                raise zipfile.BadZipFile(f"holds {said(member.filename)} twice, or a file as a folder") from None
            if left < 0:
                raise zipfile.BadZipFile(f"unpacks to more than {most:,} bytes")


def _write(archive: zipfile.ZipFile, member: zipfile.ZipInfo, place: Path, left: int) -> int:
    """Write one entry to a new file or folder, and return its bytes; writing stops after more than `left` bytes."""
    if member.is_dir():
        place.mkdir(parents=True, exist_ok=True)
        return 0
    place.parent.mkdir(parents=True, exist_ok=True)
    size = 0
    with archive.open(member) as source, place.open("xb") as target:
        while size <= left and (chunk := source.read(CHUNK)):
            target.write(chunk)
            size += len(chunk)
    return size


def _check_zip(member: zipfile.ZipInfo) -> None:
    name = said(member.filename)
    if not is_inside(member.filename):
        raise zipfile.BadZipFile(f"holds {name}, expected names below the archive's folder")
    # The upper half is the mode of Unix, with the kind of the file; other systems leave the kind empty.
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise zipfile.BadZipFile(f"holds {name}, which is a link or a device, expected files and folders")
    if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile(f"holds {name}, which is encrypted, or compressed by another method than deflate")


def _check(member: tarfile.TarInfo, count: int, size: int, most: int) -> None:
    name = said(member.name)
    if not is_inside(member.name):
        raise tarfile.ReadError(f"holds {name}, expected names below the archive's folder")
    if not (member.isfile() or member.isdir()):
        raise tarfile.ReadError(f"holds {name}, which is a link or a device, expected files and folders")
    if count > MOST_FILES or size > most:
        raise tarfile.ReadError(f"unpacks to more than {most:,} bytes or {MOST_FILES:,} files")


def _head(packed: Path) -> bytes:
    with packed.open("rb") as file:
        return file.read(4)


def _opened(packed: Path) -> IO[bytes]:
    head = _head(packed)[:3]
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
