"""Measures how often the paired intervals of two runs contain the true difference, and how often equal runs are said to differ.

For single examples the interval depends only on the numbers of victims that gain and that lose. Its coverage is therefore a sum
over all pairs of numbers, exact except for the bootstrap's own draws.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy.stats import multinomial

from leakbench.core.rng import generator
from leakbench.measure.statistics import paired_means, paired_shares
from leakbench.summary.compare import Difference, _sign_test, differs
from tests.reliability.intervals_shares import LEVEL, WITHIN, Floats
from tests.reliability.tally import Tally

__all__ = ["chances", "check_batches", "check_means", "check_shares", "compared", "pairs"]

STEP = 0.05

WORST = 0.88
"""Lowest coverage, for ten victims, half with a gain and half with a loss: in steps of a tenth, no interval covers every share."""


def pairs(number: int) -> list[tuple[int, int]]:
    """Return every (victims that gain, victims that lose) of this many."""
    return [(gain, lose) for gain in range(number + 1) for lose in range(number + 1 - gain)]


@lru_cache(maxsize=8)
def compared(number: int) -> tuple[Difference, ...]:
    """Return, for each of `pairs`, what `leakbench compare` reports about the ASR of this many victims with one example each."""
    found = []
    for gain, lose in pairs(number):
        first = np.arange(number) < gain
        second = np.arange(number) >= number - lose
        x, y = first.astype(float), second.astype(float)
        ends = paired_shares(x, y, np.arange(number), generator(0, "compare asr"))
        sign = _sign_test(pd.Series(x - y))
        found.append(Difference("type-2", "asr", number, float(x.mean()), float(y.mean()), *ends, sign))
    return tuple(found)


def chances(number: int, gain: float, lose: float) -> Floats:
    """Return the probability of each of `pairs` if a victim gains and loses with these probabilities."""
    counts = np.array([(gains, losses, number - gains - losses) for gains, losses in pairs(number)])
    rest = max(0.0, 1 - gain - lose)
    return np.asarray(multinomial.pmf(counts, number, np.array([gain, lose, rest]) / (gain + lose + rest)))


def check_shares(tally: Tally, numbers: tuple[int, ...]) -> None:
    """The interval covers 95 % on average over all differences; equal runs are rarely said to differ."""
    steps = np.arange(0, 1 + STEP / 2, STEP)
    said: list[str] = []
    for number in numbers:
        ends = np.array([(d.low, d.high) for d in compared(number)])
        called = np.array([differs(d) for d in compared(number)])
        held: list[tuple[float, float, float]] = []
        for gain in steps:
            for lose in steps[gain + steps <= 1 + 1e-9]:
                true = gain - lose
                holds = (ends[:, 0] <= true + 1e-9) & (true - 1e-9 <= ends[:, 1])
                held.append((float(chances(number, gain, lose) @ holds), float(gain), float(lose)))
        mean, (least, gain, lose) = float(np.mean([h for h, _, _ in held])), min(held)
        near = float(np.mean([abs(h - LEVEL) <= WITHIN for h, _, _ in held]))
        wrong = max(float(chances(number, p, p) @ called) for p in np.arange(0.01, 0.5, 0.01))
        name = f"the paired interval of {number} victims"
        tally.expect(abs(mean - LEVEL) <= WITHIN, f"{name}: covers {mean:.4f} on average, expected .95 +- .015")
        tally.expect(
            least >= WORST, f"{name}: covers {least:.4f} at {gain:.2f} gaining, {lose:.2f} losing, expected >= {WORST}"
        )
        tally.expect(
            wrong <= 0.05, f"{number} victims: equal runs are said to differ in {wrong:.4f}, expected at most .05"
        )
        said.append(
            f"{number}: {mean:.3f}, worst {least:.3f} ({gain:.2f} gain, {lose:.2f} lose), within {near:.0%}, false {wrong:.3f}"
        )
    tally.figures.append(
        f"paired shares by victims, mean over all ways to differ, and equal runs said to differ: {'; '.join(said)}"
    )


def check_batches(tally: Tally, repeats: int, draws: int) -> None:
    """By batch, it covers at least 95 % - 1.5 points on average."""
    rng = np.random.default_rng(18)
    held: list[tuple[float, str]] = []
    for batches, members in ((10, 2), (10, 8), (25, 4)):
        for together in (0.01, 0.3, 0.8):
            for before, now in ((0.3, 0.3), (0.3, 0.5), (0.05, 0.15), (0.8, 0.6)):
                batch = np.repeat(np.arange(batches), members)
                chance = [
                    rng.beta(*(p * (1 - together) / together for p in (share, 1 - share)), (repeats, batches, 1))
                    for share in (now, before)
                ]
                hits = [
                    (rng.random((repeats, batches, members)) < c).reshape(repeats, -1).astype(float) for c in chance
                ]
                source = generator(0, f"by batch {len(held)}")
                ends = [paired_shares(x, y, batch, source, draws=draws)[1:] for x, y in zip(*hits, strict=True)]
                share = np.mean([low <= now - before + 1e-9 and now - before - 1e-9 <= high for low, high in ends])
                held.append((float(share), f"{batches} batches of {members} alike {together:g}, {before:g} to {now:g}"))
    mean, (least, where) = float(np.mean([share for share, _ in held])), min(held)
    tally.expect(
        mean >= LEVEL - WITHIN, f"the paired interval by batch: covers {mean:.4f} on average, expected >= .935"
    )
    tally.figures.append(f"paired shares by batch: mean {mean:.3f}, worst {least:.3f} ({where})")


KINDS: dict[str, tuple[Callable[[np.random.Generator, tuple[int, int]], Floats], float]] = {
    "normal": (lambda rng, size: rng.normal(0.02, 0.05, size), 0.02),
    "uniform": (lambda rng, size: rng.uniform(-0.1, 0.3, size), 0.1),
    "skewed": (lambda rng, size: rng.exponential(0.1, size), 0.1),
}
"""Differences of RMSE between two runs: (how they are drawn, their mean)."""


def check_means(tally: Tally, numbers: tuple[int, ...], repeats: int, draws: int) -> None:
    """For means, it covers 95 % if differences are symmetric.

    If they are skewed, less, as any interval from the sample's spread.
    """
    said = []
    for kind, (drawn, true) in KINDS.items():
        held = []
        for number in numbers:
            gains = drawn(np.random.default_rng(19), (repeats, number))
            source = generator(0, f"means {kind} {number}")
            nothing, each = np.zeros(number), np.arange(number)
            ends = [paired_means(g, nothing, each, source, draws=draws)[1:] for g in gains]
            held.append(float(np.mean([low <= true <= high for low, high in ends])))
            if kind != "skewed":
                # Three standard errors of the simulation, on top of the 1.5 points.
                room = WITHIN + 3 * (LEVEL * (1 - LEVEL) / repeats) ** 0.5
                tally.expect(
                    abs(held[-1] - LEVEL) <= room,
                    f"paired means, {kind}, {number} victims: cover {held[-1]:.4f}, expected .95 +- {room:.3f}",
                )
        said.append(f"{kind} {', '.join(f'{h:.3f}' for h in held)}")
    tally.figures.append(f"paired means of {', '.join(map(str, numbers))} victims: {'; '.join(said)}")
