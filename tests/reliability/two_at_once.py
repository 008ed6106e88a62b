"""Two processes with the same command in one folder: the second waits or is refused in one line; the result is that of one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from tests.reliability.killed import Pace, begun
from tests.reliability.tally import Tally
from tests.reliability.unbroken import Unbroken

__all__ = ["check_two_at_once"]

APART_S = 0.3


def check_two_at_once(tally: Tally, place: Path, wholes: Sequence[Unbroken]) -> None:
    """Run every command twice, shortly after each other, and once more in the end."""
    refused = list[str]()
    for whole in wholes:
        folder = whole.prepare(place / whole.name)
        first = begun(whole.command.words, folder, whole.environment)
        time.sleep(APART_S)
        both = (first, begun(whole.command.words, folder, whole.environment))
        paces = [Pace(process.stderr) for process in both if process.stderr is not None]
        codes = [process.wait(300) for process in both]
        for pace in paces:
            pace.wait()
        name = f"two of {whole.name}"
        tally.expect(0 in codes, f"{name}: exit codes {codes}, said {[pace.lines[-1:] for pace in paces]}")
        for code, pace in zip(codes, paces, strict=True):
            last = "".join(pace.lines[-1:])
            tally.expect(code == 0 or (code == 2 and "another" in last), f"{name}: exit code {code}, said {last!r}")
        refused += [whole.name] * sum(code != 0 for code in codes)
        whole.goes_on(tally, folder, name)
    tally.figures.append(f"of two at once one was refused in one line: {', '.join(refused)}; the others waited")
