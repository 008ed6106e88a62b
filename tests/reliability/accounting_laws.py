"""Laws of epsilon: the effect of more steps, a larger q, more noise and a larger delta, and which accountant is tighter."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
from hypothesis import strategies as st

from leakbench.privacy.accountants import ACCOUNTANTS, best, moments_2017, pld, rdp
from leakbench.privacy.mechanism import Mechanism, Mechanisms
from tests.reliability.properties import holds
from tests.reliability.tally import Tally

__all__ = ["check_laws", "deltas", "trainings"]

GRID = 2e-3
"""Tolerance, relative or absolute: above an epsilon of 5 the grid of losses is coarser, so close values may change order."""

SAMPLINGS = ("poisson", "fixed", "visible")

DIRECTIONS = ("steps", "q", "sigma", "delta", "one more")


def logarithmic(low: float, high: float) -> st.SearchStrategy[float]:
    """Return numbers whose logarithms are uniform between both ends."""
    return st.floats(math.log(low), math.log(high)).map(math.exp)


def mechanisms(samplings: tuple[str, ...]) -> st.SearchStrategy[Mechanism]:
    """Return Gaussian sums of every kind; some are not sampled."""
    return st.builds(
        Mechanism,
        logarithmic(0.4, 20.0),
        st.one_of(st.just(1.0), logarithmic(1e-3, 1.0), logarithmic(1e-3, 1.0)),
        logarithmic(1.0, 3000.0).map(round),
        st.sampled_from(samplings),
    )


def trainings(*samplings: str) -> st.SearchStrategy[Mechanisms]:
    """Return one to three mechanisms, one after the other."""
    return st.lists(mechanisms(samplings), min_size=1, max_size=3).map(tuple)


ANY = st.one_of(trainings("poisson"), trainings(*SAMPLINGS))

deltas = logarithmic(1e-9, 0.1)


def accountants_of(training: Mechanisms) -> tuple[str, ...]:
    """Return the names of the accountants that support the mechanism's sampling."""
    return tuple(ACCOUNTANTS) if all(m.sampling == "poisson" for m in training) else ("rdp", "pld")


def _costlier(training: Mechanisms, delta: float, way: str, much: float) -> tuple[Mechanisms, float]:
    if way == "delta":
        return training, delta / (1 + much)
    if way == "one more":
        return (*training, Mechanism(5.0, min(1.0, much), 3, training[0].sampling)), delta
    first, *others = training
    changes = {
        "steps": {"steps": first.steps + max(1, round(much * first.steps))},
        "q": {"sampling_rate": min(1.0, first.sampling_rate * (1 + much))},
        "sigma": {"noise_multiplier": first.noise_multiplier / (1 + much)},
    }
    return (dataclasses.replace(first, **changes[way]), *others), delta


def _not_less(training: Mechanisms, delta: float, way: str, much: float) -> None:
    worse, at = _costlier(training, delta, way, much)
    for name in accountants_of(training):
        less, more = ACCOUNTANTS[name](training, delta), ACCOUNTANTS[name](worse, at)
        room = GRID * max(1.0, less) if name == "pld" and math.isfinite(less) else 1e-9
        assert more >= less - room, f"{name}, {way}: {less} becomes {more}"


def _in_order(training: Mechanisms, delta: float) -> None:
    tight, loose = pld(training, delta), rdp(training, delta)
    found, name = best(training, delta)
    # Losses in the hundreds may exceed the accountant's range; it then returns inf, and `best` takes the looser one.
    assert tight <= loose + GRID * max(0.5, loose) or (math.isinf(tight) and name == "rdp"), f"pld {tight}, rdp {loose}"
    assert found <= tight or name == "rdp", f"best {found} by {name}, pld {tight}"
    if all(m.sampling == "poisson" for m in training):
        old = moments_2017(training, delta)
        assert loose <= old * (1 + 1e-9) + 1e-9, f"rdp {loose}, moments_2017 {old}"


def _in_any_order(training: Mechanisms, delta: float, cut: float) -> None:
    first, *others = training
    done = round(cut * first.steps)
    halves = tuple(dataclasses.replace(first, steps=n) for n in (done, first.steps - done))
    for name in accountants_of(training):
        whole = ACCOUNTANTS[name](training, delta)
        orders = [*itertools.permutations(training), (halves[0], *others, halves[1])]
        found = [ACCOUNTANTS[name](order, delta) for order in orders]
        assert np.allclose(found, whole, rtol=1e-6, atol=1e-9), f"{name}: {whole} becomes {found}"


def check_laws(tally: Tally, examples: int) -> None:
    """Try every law on random trainings, for every accountant that supports their sampling."""
    amount = logarithmic(0.02, 3.0)
    for way in DIRECTIONS:
        holds(tally, f"more is not less: {way}", examples, _not_less, ANY, deltas, st.just(way), amount)
    holds(tally, "pld <= tight rdp <= old rdp", 2 * examples, _in_order, ANY, deltas)
    holds(tally, "order and interruption change nothing", examples, _in_any_order, ANY, deltas, st.floats(0, 1))
