"""Download a data set: mirrors in order, a few tries each, resumed after an interruption, checked before it gets its name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from leakbench.core.errors import InputError
from leakbench.data.checks import Md5File, sha256_of
from leakbench.data.formats import Format
from leakbench.data.recipe import Origin
from leakbench.data.transfer import Failed, Progress, size_of, transfer
from leakbench.data.unpack import unpack
from leakbench.storage.store import alone

__all__ = ["Progress", "download", "fetch_origin"]

TIMEOUT = 30.0
TRIES = 4
"""Number of tries of one address in a row that bring fewer than ENOUGH bytes each."""
ENOUGH = 1 << 16
"""Number of bytes after which another try follows in any case."""
PAUSE = 0.5
"""Seconds before the second try; each further pause is twice as long."""
LONGEST_PAUSE = 60.0
"""Longest wait in seconds that a server may ask for; the address fails if it asks for more."""
LARGEST = 1 << 40

Sleep = Callable[[float], None]


def fetch_origin(
    form: Format,
    origin: Origin,
    root: Path,
    progress: Progress | None = None,
    timeout: float = TIMEOUT,
    sleep: Sleep = time.sleep,
) -> Path:
    """Fetch the missing or wrong files of a set, and return the set's folder.

    Other processes that fetch the set wait until this one is done.

    Args:
        form: Format of the set, which has its checksums.
        root: Data folder.
        progress: Called during the download.
        timeout: Seconds without data after which a transfer stalls.
        sleep: Called with the seconds to wait between two tries.

    Raises:
        InputError: If no mirror has the set, a checksum is wrong, or `root` cannot be written.
    """
    folder = root / origin.layouts[0]
    if all(c.ok for c in form.check(folder)):
        return folder
    if not origin.mirrors:
        raise InputError("the recipe has no address for it (mirrors is empty)")
    files = getattr(form, "files", ())
    if not origin.archive and (not files or any(isinstance(f, Md5File) for f in files)):
        raise InputError("origin: archive: missing; such a set is fetched only by its archive")
    try:
        with alone(folder.parent):
            _fill(form, origin, folder, progress, timeout, sleep)
    except OSError as error:
        raise InputError(f"{error.filename or root}: cannot be written: {error.strerror or error}") from None
    wrong = [c for c in form.check(folder) if not c.ok]
    if wrong:
        raise InputError(
            f"{folder}: {wrong[0].file}: fetched, but its content is not what was expected ({wrong[0].got})"
        )
    return folder


def _fill(form: Format, origin: Origin, folder: Path, progress: Progress | None, timeout: float, sleep: Sleep) -> None:
    """Fetch the files that are still missing: another process may have fetched some of them."""
    most = int(4e6 * ((origin.megabytes or 0) + 1))  # The recipe has a rounded size of all files together.
    needed = [c for c in form.check(folder) if not c.ok]
    if needed and origin.archive:
        packed = folder.parent / origin.archive
        download(
            [m + origin.archive for m in origin.mirrors], packed, origin.archive_sha256, progress, timeout, most, sleep
        )
        unpack(packed, folder, form, 10 * most)
        return
    for each in needed:
        urls = [m + each.file for m in origin.mirrors]
        download(urls, folder / each.file, each.expected[0], progress, timeout, most, sleep)


def download(
    urls: list[str],
    target: Path,
    sha256: str,
    progress: Progress | None = None,
    timeout: float = TIMEOUT,
    most: int = LARGEST,
    sleep: Sleep = time.sleep,
) -> None:
    """Fetch one file from the first of `urls` that has it; a partial file `<target>.part` is resumed.

    Args:
        sha256: Hash of the whole file; empty if it is unknown.
        timeout: Seconds without data after which a transfer stalls.
        most: Largest number of bytes.
        sleep: Called with the seconds to wait between two tries.

    Raises:
        InputError: If no address works, with the reason for each.
        OSError: If `target` cannot be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    problems = []
    for url in urls:
        try:
            _whole(url, part, sha256, progress, timeout, most, sleep)
        except Failed as failure:
            problems.append(f"{url}: {failure}")
        else:
            with part.open("rb") as stream:
                os.fsync(stream.fileno())
            os.replace(part, target)
            return
    raise InputError(f"{target.name}: {'; '.join(problems)}")


def _whole(
    url: str, part: Path, sha256: str, progress: Progress | None, timeout: float, most: int, sleep: Sleep
) -> None:
    """Fetch one file into `part`, resuming after each interruption; give up after `TRIES` tries without progress."""
    left, furthest = TRIES, size_of(part)
    while True:
        try:
            _once(url, part, sha256, progress, timeout, most)
            return
        except Failed as failure:
            got_on = size_of(part) >= furthest + ENOUGH
            left, furthest = (TRIES, size_of(part)) if got_on else (left - 1, furthest)
            if not failure.again:
                raise
            wait = failure.wait if failure.wait is not None else 0 if got_on else PAUSE * 2 ** (TRIES - 1 - left)
            if wait > LONGEST_PAUSE:
                raise Failed(f"{failure}, and asks to be left alone for {wait:,.0f} s") from None
            if left <= 0:
                raise Failed(f"{failure}, {TRIES} times without getting on") from None
            sleep(wait)


def _once(url: str, part: Path, sha256: str, progress: Progress | None, timeout: float, most: int) -> None:
    """Fetch the rest of `part` and check it; a wrong file is deleted."""
    resumed = size_of(part) > 0
    try:
        sized = transfer(url, part, most, progress, timeout)
    except Failed:
        # A server may announce more than it has: with the right checksum, the file is complete.
        if sha256 and size_of(part) and sha256_of(part) == sha256:
            return
        raise
    got = sha256_of(part)
    if sha256 in ("", got):
        return
    part.unlink()
    # A resumed file may have started as another one, and without a length the end may be missing: try again from the start.
    raise Failed(f"wrong checksum: sha256 {got}, expected {sha256}; what came was deleted", again=resumed or not sized)
