"""Coverage of intervals of one share: exact over all outcomes if trials are independent, by simulation for batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import beta, binom

from leakbench.measure.statistics import exact, proportion, wilson
from tests.published_files import RESULTS
from tests.reliability.tally import Tally

__all__ = ["LEVEL", "NUMBERS", "WITHIN", "check_batches", "check_networks", "check_shares", "coverage", "limits"]

Floats: TypeAlias = NDArray[np.float64]

LEVEL, WITHIN = 0.95, 0.015

NUMBERS = (10, 20, 40, 50, 100, 500)

WORST = 0.83
"""For a share near .177 / n Wilson's interval covers exp(-.177) = 84 % at any n (Brown, Cai and DasGupta 2001, 3.1)."""


def limits(number: int, interval: Callable[[int, int], tuple[float, float]]) -> Floats:
    """Return (n + 1, 2): the interval for each number of successes."""
    return np.array([interval(hits, number) for hits in range(number + 1)])


def coverage(ends: Floats, shares: Floats) -> Floats:
    """Return (k,): the probability that the interval (n + 1, 2) of a draw contains each share (k,)."""
    hits = np.arange(len(ends))
    held = (ends[:, 0] <= shares[:, None]) & (shares[:, None] <= ends[:, 1])
    return np.asarray((binom.pmf(hits, len(ends) - 1, shares[:, None]) * held).sum(1))


def clopper_pearson(hits: int, number: int) -> tuple[float, float]:
    """Return the limits of `exact`."""
    _, low, high = exact(np.arange(number) < hits, np.arange(number))
    return low, high


def check_shares(tally: Tally, points: int) -> None:
    """Wilson's interval covers 95 % on average over shares and never less than `WORST`.

    The exact one covers 95 % of every share.
    """
    shares = (np.arange(points) + 0.5) / points
    means, worst, near = [], [], []
    for number in NUMBERS:
        found = coverage(limits(number, wilson), shares)
        means.append(float(found.mean()))
        worst.append((float(found.min()), float(shares[int(found.argmin())])))
        near.append(float((np.abs(found - LEVEL) <= WITHIN).mean()))
        said = f"Wilson's interval of {number} trials"
        tally.expect(
            abs(means[-1] - LEVEL) <= WITHIN, f"{said}: covers {means[-1]:.4f} on average, expected .95 +- .015"
        )
        tally.expect(
            worst[-1][0] >= WORST, f"{said}: covers {worst[-1][0]:.4f} at p={worst[-1][1]:.4f}, expected >= {WORST}"
        )
        sure = float(coverage(limits(number, clopper_pearson), shares).min())
        tally.expect(
            sure >= LEVEL - 1e-12, f"the exact interval of {number} trials: covers {sure:.4f}, expected >= .95"
        )
    by_number = (
        f"{number}: {mean:.3f}, worst {low:.3f} at p={p:.3f}, {n:.0%}"
        for number, mean, (low, p), n in zip(NUMBERS, means, worst, near, strict=True)
    )
    tally.figures.append(
        f"Wilson by trials (mean over shares, worst share, how many shares within 1.5 points): {'; '.join(by_number)}; "
        "Clopper and Pearson never below .95"
    )
    held, cells = _of_tables()
    tally.expect(
        abs(held - LEVEL) <= WITHIN,
        f"Wilson's interval over the cells of results/: covers {held:.4f}, expected .95 +- .015",
    )
    tally.figures.append(
        f"over the {cells} ASRs of single examples in results/, each p drawn from what its cell leaves open: {held:.3f}"
    )


def _of_tables() -> tuple[float, int]:
    """Return Wilson's coverage averaged over the measured ASRs of results/, and their number.

    P from Jeffreys' posterior of each.
    """
    counts: dict[tuple[int, int], int] = {}
    for path in sorted(RESULTS.glob("*/*.csv")):
        rows = pd.read_csv(path)
        if not {"asr", "asr_low", "victims"} <= set(rows):
            continue
        alone = rows[(rows["batch"].fillna(1) == 1) if "batch" in rows else rows["asr"].notna()]
        kept = alone.dropna(subset=["asr", "victims"]).query("victims >= 4")
        for asr, victims in zip(kept["asr"], kept["victims"], strict=True):
            cell = (round(float(asr) * int(victims)), int(victims))
            counts[cell] = counts.get(cell, 0) + 1
    quantiles = (np.arange(100) + 0.5) / 100
    total = 0.0
    for (hits, victims), times in counts.items():
        shares = beta.ppf(quantiles, hits + 0.5, victims - hits + 0.5)
        total += times * float(coverage(limits(victims, wilson), shares).mean())
    return total / sum(counts.values()), sum(counts.values())


def check_networks(tally: Tally, draws: int) -> None:
    """If victims are spread over networks with different success rates, the interval covers 95 % +- 1.5 points.

    For each number of networks and victims on each, a network's rate is drawn from a beta distribution around the mean rate, with
    a deviation between networks of 0, .05 or .1; coverage is of the mean rate.
    """
    rng = np.random.default_rng(23)
    lines = []
    for networks, victims in ((5, 20), (5, 60), (10, 20)):
        network = np.repeat(np.arange(networks), victims)
        for deviation in (0.0, 0.05, 0.1):
            held = []
            for mean in (0.2, 0.3, 0.5, 0.7, 0.8):
                strength = mean * (1 - mean) / deviation**2 - 1 if deviation else np.inf
                size = (draws, networks, 1)
                rate = rng.beta(mean * strength, (1 - mean) * strength, size) if deviation else np.full(size, mean)
                hits = (rng.random((draws, networks, victims)) < rate).reshape(draws, -1)
                ends = np.array([proportion(one, np.arange(len(one)), network=network)[1:] for one in hits])
                held.append(float(((ends[:, 0] <= mean) & (mean <= ends[:, 1])).mean()))
            covered = float(np.mean(held))
            # The simulation error is added to the promised tolerance.
            within = WITHIN + 2 * float(np.sqrt(LEVEL * (1 - LEVEL) / (draws * len(held))))
            said = f"{networks} networks of {victims} victims, deviation {deviation:g}"
            tally.expect(abs(covered - LEVEL) <= within, f"{said}: covers {covered:.4f}, expected .95 +- {within:.3f}")
            lines.append(f"{said}: {covered:.3f} (least {min(held):.3f})")
    tally.figures.append(f"by network, mean over shares from .2 to .8: {'; '.join(lines)}")


def check_batches(tally: Tally, draws: int) -> None:
    """By batch, with dependent or independent members, the interval covers at least 95 % - 1.5 points on average over shares."""
    rng = np.random.default_rng(17)
    means, single = [], []
    for batches, members in ((10, 2), (10, 8), (25, 4)):
        held: list[float] = []
        for together in (0.01, 0.3, 0.8):
            for share in (0.05, 0.2, 0.4, 0.6, 0.8, 0.95):
                a, b = (p * (1 - together) / together for p in (share, 1 - share))
                chance = rng.beta(a, b, (draws, batches, 1))
                hits = (rng.random((draws, batches, members)) < chance).reshape(draws, -1)
                batch = np.repeat(np.arange(batches), members)
                ends = np.array([proportion(one, batch)[1:] for one in hits])
                held.append(float(((ends[:, 0] <= share) & (share <= ends[:, 1])).mean()))
                single.append((held[-1], f"{batches} batches of {members}, p={share:g}, members alike {together:g}"))
        means.append(float(np.mean(held)))
        said = f"the interval of {batches} batches of {members}"
        tally.expect(means[-1] >= LEVEL - WITHIN, f"{said}: covers {means[-1]:.4f} on average, expected >= .935")
    least, where = min(single)
    tally.figures.append(
        f"by batch (10 of 2, 10 of 8, 25 of 4): mean {', '.join(f'{m:.3f}' for m in means)}, worst {least:.3f} ({where})"
    )
