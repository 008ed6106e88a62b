"""Disks that are full after this many bytes, and folders that become read-only during a measurement."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.reliability.killed import Pace, begun, started
from tests.reliability.same import results
from tests.reliability.tally import Tally
from tests.reliability.unbroken import Unbroken

__all__ = ["check_full_disk", "check_read_only"]

SIZES = (0.0, 0.5, 0.9)
"""Shares of an uninterrupted command's files; the first has space for a manifest and hardly anything else."""

ROOM = 3
"""Pages of a disk's own folder, of the folder in it, and of the prepared files."""

FILES = (3, 8)

WRITE = 0o222


def check_full_disk(tally: Tally, place: Path, wholes: Sequence[Unbroken]) -> None:
    """Run commands on small disks: one line, finished files are whole, and with more space they resume to the same rows."""
    place.mkdir(parents=True)
    try:
        with _disk(place / "tried", 100):
            pass
    except OSError as error:
        tally.figures.append(f"full disks were not tried: {error}")
        return
    for whole in wholes:
        for share in SIZES:
            name = f"{whole.name} on a disk of {share:.0%} of what it leaves"
            with _disk(place / whole.name, max(ROOM, round(share * whole.pages))) as disk:
                folder = whole.prepare(disk / "in")
                before = set(results(folder))
                ended, _ = started(whole.command.words, folder, whole.environment, None)
                _refused(tally, name, ended.code, ended.err, "No space left")
                with tally.case(f"{name}: what is there is whole"):
                    left = results(folder)
                    if scraps := [path for path in left if path.endswith(".tmp")]:
                        raise AssertionError(f"left {scraps[:3]}")
                    # A sweep ends its other workers at once; these may have begun their cells.
                    if not share and whole.name != "sweep" and set(left) != before:
                        raise AssertionError(f"nothing was finished, and left {sorted(set(left) - before)[:4]}")
                subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
                whole.goes_on(tally, folder, name)


def check_read_only(tally: Tally, place: Path, wholes: Sequence[Unbroken]) -> None:
    """Run commands whose folder becomes read-only midway.

    One line, finished files are whole, and they resume once it is writable.
    """
    bound = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    if bound and shutil.which(bound[0]) is None:
        tally.figures.append("no setpriv: root writes to read-only folders, which were not tried")
        return
    for whole in wholes:
        for files in FILES:
            folder = whole.prepare(place / whole.name / str(files))
            name = f"{whole.name} in a folder that becomes read-only after {files} files"
            code, err = _turned(whole, folder, bound, files)
            _refused(tally, name, code, err, "Permission denied")
            with tally.case(f"{name}: what is there is whole"):
                results(folder)
            whole.goes_on(tally, folder, name)


def _refused(tally: Tally, name: str, code: int, err: str, why: str) -> None:
    last = "".join(err.splitlines()[-1:])
    one = code == 2 and last.startswith("leakbench: ") and why in last and "Traceback" not in err
    tally.expect(one, f"{name}: exit code {code}, said {err[-300:]!r}")


def _turned(whole: Unbroken, folder: Path, bound: tuple[str, ...], files: int) -> tuple[int, str]:
    """Run a command, and make all of its folders read-only after this many files; restore them afterwards."""
    there = len(list(folder.rglob("*")))
    process = begun(whole.command.words, folder, whole.environment, bound)
    assert process.stderr is not None
    pace = Pace(process.stderr)
    while process.poll() is None and len(list(folder.rglob("*"))) < there + files:
        time.sleep(0.002)
    turned = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in turned:
        with contextlib.suppress(FileNotFoundError):
            path.chmod(path.stat().st_mode & ~WRITE)
    code = process.wait(300)
    pace.wait()
    for path in turned:
        with contextlib.suppress(FileNotFoundError):
            path.chmod(path.stat().st_mode | 0o200)
    return code, "".join(pace.lines)


@contextlib.contextmanager
def _disk(place: Path, pages: int) -> Iterator[Path]:
    """Mount a disk with this many pages of 4 KiB; raises OSError if mounting is not allowed."""
    place.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={4 * pages}k", "tmpfs", str(place)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        raise OSError(error.stderr.decode(errors="replace").strip()) from None
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
