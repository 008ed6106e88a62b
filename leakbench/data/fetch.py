"""Download a data set: mirrors in order, resumed where it was cut off, checked before it gets its name."""

from __future__ import annotations

import gzip
import http.client
import os
import shutil
import ssl
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from leakbench.data.checks import sha256_of
from leakbench.data.formats import Format
from leakbench.data.recipe import Origin
from leakbench.errors import InputError

__all__ = ["Progress", "download", "fetch_origin"]

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Told (file, bytes so far, bytes in all or None where the server does not say)."""

TIMEOUT = 30.0
CHUNK = 1 << 18


def fetch_origin(form: Format, origin: Origin, root: Path, progress: Progress | None = None) -> Path:
    """Fetch what is missing or wrong of a set into the data folder `root`; return the set's folder.

    Raises InputError, one line, where no mirror has it, a checksum is wrong, or `root` cannot be written.
    """
    folder = root / origin.layouts[0]
    try:
        if all(c.ok for c in form.check(folder)):
            return folder
        if origin.archive:
            packed = folder.parent / origin.archive
            download([m + origin.archive for m in origin.mirrors], packed, origin.archive_sha256, progress)
            _unpack(packed, folder)
        else:
            for needed in [c for c in form.check(folder) if not c.ok]:
                urls = [m + needed.file for m in origin.mirrors]
                download(urls, folder / needed.file, needed.expected[0], progress)
    except OSError as error:
        raise InputError(f"{error.filename or root}: cannot be written: {error.strerror or error}") from None
    wrong = [c for c in form.check(folder) if not c.ok]
    if wrong:
        raise InputError(
            f"{folder}: {wrong[0].file}: fetched, but its content is not what was expected ({wrong[0].got})"
        )
    return folder


def download(
    urls: list[str], target: Path, sha256: str, progress: Progress | None = None, timeout: float = TIMEOUT
) -> None:
    """Fetch one file from the first of `urls` that has it; `<target>.part` holds what came so far and is resumed.

    sha256: of the whole file; empty where it is unknown. Raises InputError that says what was wrong with each address;
    OSError where `target` cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    problems = []
    for url in urls:
        try:
            _whole(url, part, sha256, progress, timeout)
        except _Failed as failure:
            problems.append(f"{url}: {failure}")
        else:
            os.replace(part, target)
            return
    raise InputError(f"{target.name}: " + "; ".join(problems))


class _Failed(Exception):
    """Why one address did not give the file."""


def _whole(url: str, part: Path, sha256: str, progress: Progress | None, timeout: float) -> None:
    """Fetch one file into `part`, resuming after each cut as long as something came."""
    resumed = False
    while True:
        before = _size(part)
        resumed = resumed or before > 0
        try:
            _transfer(url, part, progress, timeout)
        except _Failed:
            if _size(part) <= before:
                raise
            continue
        got = sha256_of(part)
        if sha256 in ("", got):
            return
        part.unlink()
        if not resumed:
            raise _Failed(f"wrong checksum: sha256 {got}, expected {sha256}; what came was deleted")
        resumed = False  # The beginning may have been another file's: once more, from the start.


def _transfer(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """Append to `part` what the server still has; start over where it does not resume."""
    before = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={before}-"} if before else {})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            start = before if response.status == 206 else 0
            length = response.headers.get("Content-Length")
            total = start + int(length) if length else None
            done = _copy(response, part, start, total, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and before and error.headers.get("Content-Range") == f"bytes */{before}":
            return  # All of it is here already.
        if error.code == 416 and before:  # What is here is longer than the file, so it is another one.
            part.unlink()
            return _transfer(url, part, progress, timeout)
        raise _Failed(f"HTTP {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        raise _Failed(str(error.reason)) from None
    except (TimeoutError, http.client.HTTPException, ConnectionError, ssl.SSLError) as error:
        raise _Failed(f"{type(error).__name__} {error}".strip()) from None
    if total is not None and done != total:
        raise _Failed(f"cut off after {done:,} of {total:,} bytes")


def _copy(
    response: http.client.HTTPResponse, part: Path, start: int, total: int | None, progress: Progress | None
) -> int:
    """Write the body behind the first `start` bytes of `part`; return how long it is then."""
    name = part.name.removesuffix(".part")
    done = start
    with part.open("r+b" if start else "wb") as stream:
        stream.seek(start)
        while chunk := response.read(CHUNK):
            stream.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(name, done, total)
    return done


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _unpack(packed: Path, folder: Path) -> None:
    """Unpack a tar archive, which must hold a folder of `folder`'s name, and delete it."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unpacking-") as scratch:
        try:
            with tarfile.open(packed) as archive:
                archive.extractall(scratch, filter="data")
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            packed.unlink()
            raise InputError(f"{packed.name}: not a whole, safe archive: {error}; it was deleted") from None
        fresh = Path(scratch) / folder.name
        if not fresh.is_dir():
            raise InputError(f"{packed.name}: holds no folder {folder.name!r}")
        if folder.exists():  # Damaged: each file is replaced, and whatever else lies there is left alone.
            shutil.copytree(fresh, folder, dirs_exist_ok=True)
        else:
            os.replace(fresh, folder)
    packed.unlink()
