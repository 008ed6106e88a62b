"""Crashes: commands that are killed at any moment, full or read-only disks, two processes in one folder."""

from __future__ import annotations

import itertools
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.reliability.killed import Ended, Kill, drawn, ending, started
from tests.reliability.lying import served
from tests.reliability.moments import check_moments
from tests.reliability.no_room import check_full_disk, check_read_only
from tests.reliability.tally import Tally
from tests.reliability.two_at_once import check_two_at_once
from tests.reliability.unbroken import Unbroken, unbroken

__all__ = ["check"]

KILLS = 100
IN_A_ROW = 8
"""Largest number of kills of one command before it runs to its end."""

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)

SEED = 20240229


def check(full: bool, scratch: Path) -> Tally:
    """Try 100 kills of five commands, full and read-only disks, and two processes at once; half an hour at full length."""
    tally = Tally()
    check_moments(tally, scratch / "moments", 20 if full else 2)
    if full:
        with served() as server:
            wholes = unbroken(tally, server, scratch / "unbroken")
            check_full_disk(tally, scratch / "full", wholes[:3])
            check_read_only(tally, scratch / "read-only", wholes[:3])
            check_two_at_once(tally, scratch / "two", wholes)
            _killed(tally, scratch / "killed", wholes)
    return tally


def _killed(tally: Tally, place: Path, wholes: Sequence[Unbroken]) -> None:
    """Kill every command equally often; the final files must be those of an uninterrupted command."""
    every, took, unheard = list[str](), dict[str, float](), Counter[str]()
    for number, whole in enumerate(wholes):
        rng, signals = random.Random(SEED + number), itertools.cycle(SIGNALS)
        kills = list[tuple[Kill, Ended]]()
        for trial in itertools.count():
            if len(kills) >= KILLS // len(wholes):
                break
            kills += _trial(tally, whole, place / whole.name / str(trial), rng, signals)
        for kill, ended in kills:
            took[kill.number.name] = max(took.get(kill.number.name, 0.0), ended.took)
            unheard[kill.number.name] += ended.unheard
        phases = Counter(ended.phase for _, ended in kills)
        every.append(f"{whole.name}: {len(kills)} in {', '.join(f'{p} ({n})' for p, n in phases.items())}")
    tally.figures.append(f"kills: {'; '.join(every)}")
    longest = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items() if name != "SIGKILL")
    before = ", ".join(f"{n} of {name}" for name, n in unheard.items() if n and name != "SIGKILL")
    tally.figures.append(
        f"longest from the signal to the end: {longest}; before or after anybody listened: {before or 0}"
    )


def _trial(
    tally: Tally, whole: Unbroken, folder: Path, rng: random.Random, signals: Iterator[signal.Signals]
) -> list[tuple[Kill, Ended]]:
    """Kill a command a few times, then let it finish; return the kills."""
    whole.prepare(folder)
    kills = list[tuple[Kill, Ended]]()
    for _ in range(rng.randint(1, IN_A_ROW)):
        kill = drawn(rng, whole.pace, next(signals))
        ended, _ = started(whole.command.words, folder, whole.environment, kill)
        if not ended.killed:
            tally.expect(ended.code == 0, f"{whole.name}: exit code {ended.code}: {ended.err[-300:]}")
            break
        kills.append((kill, ended))
        said = ending(ended, kill)
        tally.expect(not said, f"{whole.name}, {kill.number.name} in {ended.phase}: {said}")
    how = ", ".join(f"{kill.number.name} in {ended.phase}" for kill, ended in kills)
    whole.goes_on(tally, folder, f"{whole.name} after {how or 'nothing'}")
    return kills
