"""The test of a printed number against a measurement: its size and power by simulation, its edges, and Holm's correction."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import t as student

from leakbench.measure.statistics import difference_interval, mean_interval, proportion, wilson
from leakbench.reproduce.agreement import LEVEL, agreement, holm, mean_test

HALF = 0.0005
"""Half of the third digit, the last one that papers print."""

EXAMPLES = 10_000


def normal(rng: np.random.Generator, mean: NDArray[np.floating], spread: float, units: int) -> NDArray[np.floating]:
    return np.clip(rng.normal(mean[:, None], spread, (len(mean), units)), 0, 1)


def skewed(rng: np.random.Generator, mean: NDArray[np.floating], spread: float, units: int) -> NDArray[np.floating]:
    """A beta distribution: near 1 its tail points to 0."""
    count = (mean * (1 - mean) / spread**2 - 1)[:, None]
    return rng.beta(mean[:, None] * count, (1 - mean[:, None]) * count, (len(mean), units))


def false_pages(draw: object, units: int, spread: float, claims: int, pages: int) -> int:
    """Return the number of contradicted pages, although each number comes from one more training of the same population.

    All trainings of a claim share one test set; the printed number has a different one.
    """
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(pages):
        mean = rng.uniform(0.55, 0.97, claims)
        true = draw(rng, mean, spread, units + 1)  # type: ignore[operator]
        luck = rng.normal(0, np.sqrt(mean * (1 - mean) / EXAMPLES))[:, None]
        ours = np.round(np.clip(true[:, :units] + luck, 0, 1) * EXAMPLES) / EXAMPLES
        printed = np.round(rng.binomial(EXAMPLES, true[:, units]) / EXAMPLES, 3)
        ps = [
            agreement(*mean_interval(each), units, float(number), HALF, EXAMPLES).p
            for each, number in zip(ours, printed, strict=True)
        ]
        wrong += any(p <= LEVEL for p in holm(ps))
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("draw", [normal, skewed])
@pytest.mark.parametrize("units", [3, 5, 10])
@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_at_most_one_page_in_a_hundred_has_a_false_contradiction(draw: object, units: int, spread: float) -> None:
    """Pages of 20 numbers: more than 5 of 150 have a probability of .4 % at a rate of 1 %, and of 99.8 % at a rate of 10 %."""
    assert false_pages(draw, units, spread, 20, 150) <= 5


def test_a_page_of_one_number_has_the_same_rate() -> None:
    """More than 20 of 1,000 have a probability of .1 % at a rate of 1 %."""
    assert false_pages(normal, 3, 0.02, 1, 1000) <= 20


def ended(shares: NDArray[np.floating], printed: float, tests: int, least: int) -> tuple[int, float]:
    """Return the number of units at which a row ends, and its p-value: at the first that `tests` tests cannot undo, or at all."""
    for units in range(least, len(shares) + 1):
        looks = len(shares) - least + 1
        p = agreement(*mean_interval(shares[:units]), units, printed, HALF, EXAMPLES, looks).p
        if tests * p <= LEVEL:
            return units, p
    return units, p


@pytest.mark.slow
@pytest.mark.parametrize("draw", [normal, skewed])
@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_pages_whose_rows_end_early_have_the_same_rate(draw: object, spread: float) -> None:
    """3 to 8 trainings a row, 20 rows: without the correction for looks far more pages are wrong (the next test)."""
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(100):
        mean = rng.uniform(0.55, 0.97, 20)
        ours = draw(rng, mean, spread, 9)  # type: ignore[operator]
        ps = [ended(each[:8], round(float(each[8]), 3), 20, 3)[1] for each in ours]
        wrong += any(p <= LEVEL for p in holm(ps))
    assert wrong <= 4


def test_looking_often_without_a_correction_finds_more() -> None:
    """Single numbers, 3 to 20 trainings: the first look that finds p <= 1 % counts; corrected, at most 1 %."""
    rng, raw, corrected = np.random.default_rng(2), 0, 0
    for _ in range(400):
        ours = rng.normal(0.8, 0.03, 21)
        printed, looks = round(float(ours[20]), 3), range(3, 21)
        ps = [agreement(*mean_interval(ours[:n]), n, printed, HALF, None).p for n in looks]
        raw += min(ps) <= LEVEL
        corrected += min(ps) * len(looks) <= LEVEL
    assert raw >= 10 and corrected <= 9


def test_a_look_more_widens_the_interval_and_raises_p() -> None:
    """Two looks: twice the p-value, and the interval of level .975."""
    ours = np.array([0.5, 0.6, 0.7])
    one, two = (agreement(*mean_interval(ours), 3, 0.4, HALF, None, looks) for looks in (1, 2))
    assert two.p == pytest.approx(2 * one.p)
    assert two.high - two.low == pytest.approx((one.high - one.low) * student.ppf(0.9875, 2) / student.ppf(0.975, 2))
    assert agreement(*mean_interval(ours), 3, 0.59, HALF, None, 5).p == 1.0


def test_a_row_far_from_its_number_ends_first() -> None:
    far, near = (
        np.array([0.19, 0.20, 0.21, 0.20, 0.19, 0.21, 0.20, 0.2]),
        np.array([0.9, 0.91, 0.92, 0.9, 0.92, 0.91, 0.9, 0.9]),
    )
    assert ended(far, 0.9, 20, 3)[0] < 6
    assert ended(near, 0.905, 20, 3)[0] == 8


def test_success_rates_over_networks_have_the_same_rate() -> None:
    """Intervals clustered by network: 20 victims on each of 5 networks, whose rates differ; 1,000 single numbers."""
    rng, wrong = np.random.default_rng(0), 0
    network = np.repeat(np.arange(5), 20)
    for _ in range(1000):
        rates = np.clip(rng.normal(rng.uniform(0.3, 0.97), 0.1, 6), 0, 1)
        share, low, high = proportion(rng.random(100) < rates[network], network)
        printed = round(rng.binomial(100, rates[5]) / 100, 3)
        wrong += agreement(share, low, high, 5, printed, HALF, 100).p <= LEVEL
    assert wrong <= 20


def test_orders_have_the_same_rate() -> None:
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(300):
        tests = [mean_test(*difference_interval(rng.normal(0, 3, 3)), 3) for _ in range(10)]
        wrong += any(p <= LEVEL for p in holm([test.p for test in tests]))
    assert wrong <= 9


def test_a_large_difference_is_contradicted() -> None:
    """Printed .95 on 10,000 examples; measured .60 with a deviation of .02 over ten trainings."""
    ours = 0.6 + 0.02 * np.linspace(-1.5, 1.5, 10)
    assert agreement(*mean_interval(ours), 10, 0.95, HALF, EXAMPLES).p < 1e-5


def test_the_interval_is_that_of_one_more_training() -> None:
    """It is Student's prediction interval if there are so many examples that their error does not count."""
    ours = np.array([0.5, 0.6, 0.7])
    found = agreement(*mean_interval(ours), 3, 0.4, HALF, None)
    half = student.ppf(0.975, 2) * 0.1 * math.sqrt(1 + 1 / 3)
    assert found.low == pytest.approx(0.2 - half) and found.high == pytest.approx(0.2 + half)
    on_shares = 2 * student.sf((0.2 - HALF) / (0.1 * math.sqrt(4 / 3)), 2)
    assert found.p >= on_shares


def test_the_sampling_error_counts_for_both_numbers() -> None:
    """Ten examples each, with the larger of the two variances p (1 - p); interval and p-value on shares by hand."""
    found = agreement(*mean_interval([0.5, 0.6, 0.7]), 3, 0.5, HALF, 10)
    half = student.ppf(0.975, 2) * math.sqrt(0.01 * (1 + 1 / 3) + 2 * 0.25 / 10)
    assert (found.low, found.high) == pytest.approx((0.1 - half, 0.1 + half))


def test_a_printed_share_of_one_counts_as_half_an_example_less() -> None:
    """10 of 10 counts as .95 and 10,000 of 10,000 as 1 - HALF: shares closer to 1 are not distinguished."""
    ours = np.array([0.48, 0.5, 0.51, 0.49, 0.52])
    spread = ours.std(ddof=1) * math.sqrt(1 + 1 / 5)
    for samples, there in ((10, 0.95), (10_000, 1 - HALF)):
        odds = math.log(there / (1 - there))
        error = math.hypot(spread / 0.25, math.sqrt((1 / 0.25 + 1 / (there * (1 - there))) / samples))
        on_shares = 2 * student.sf((0.5 - HALF) / math.hypot(spread, math.sqrt(2 * 0.25 / samples)), 4)
        on_odds = 2 * student.sf(odds / error, 4)
        found = agreement(*mean_interval(ours), 5, 1.0, HALF, samples)
        assert found.p == pytest.approx(max(on_shares, on_odds))
        assert on_odds > on_shares


def test_a_measured_share_of_almost_one_counts_as_half_a_printed_digit_less() -> None:
    """A paper that prints one digit does not distinguish .99 from .95; nor does the test on log-odds."""
    ours, half = np.array([0.98, 0.99, 1.0]), 0.05
    found = agreement(*mean_interval(ours), 3, 0.8, half, None)
    spread = 0.01 * math.sqrt(4 / 3)
    odds = math.log(0.95 / 0.05) - math.log(0.85 / 0.15)
    on_odds = 2 * student.sf(odds / (spread / (0.95 * 0.05)), 2)
    on_shares = 2 * student.sf((0.99 - 0.85) / spread, 2)
    assert found.p == pytest.approx(max(on_odds, on_shares)) and on_odds > on_shares


def test_an_interval_that_is_cut_at_one_has_the_spread_of_its_whole_side() -> None:
    cut, whole = (agreement(0.98, 0.90, high, 5, 0.7, HALF, None) for high in (1.0, 1.06))
    assert (cut.p, cut.low, cut.high) == pytest.approx((whole.p, whole.low, whole.high))


def test_only_the_very_interval_of_equal_units_has_no_spread() -> None:
    """Wilson's interval of five equal shares; one that is .001 longer at each end shows a spread."""
    low, high = wilson(4, 5)
    assert math.isnan(agreement(0.8, low, high, 5, 0.1, HALF, None).p)
    assert 0 < agreement(0.8, low - 0.001, high + 0.001, 5, 0.1, HALF, None).p < 1


def test_fewer_examples_and_fewer_digits_contradict_less() -> None:
    measured = mean_interval([0.90, 0.91, 0.92])
    p = {n: agreement(*measured, 3, 0.99, HALF, n).p for n in (100, 10_000, None)}
    assert p[100] > p[10_000] > p[None]
    assert agreement(*measured, 3, 0.99, 0.05, None).p > p[None]


def test_a_number_within_its_rounding_does_not_differ() -> None:
    assert agreement(*mean_interval([0.949, 0.953, 0.954]), 3, 0.95, 0.005, None).p == 1.0


@pytest.mark.parametrize(
    ("ours", "printed"),
    [([0.9, 0.9, 0.9], 0.1), ([1.0, 1.0, 1.0], 0.5), ([0.0, 0.0, 0.0], 0.923), ([0.0, 1.0, 0.5], 0.9), ([0.7], 0.1)],
)
def test_an_unknown_spread_decides_nothing(ours: list[float], printed: float) -> None:
    """Equal trainings, an interval that covers every share, and a single training."""
    found = agreement(*mean_interval(ours), len(ours), printed, HALF, EXAMPLES)
    assert math.isnan(found.p) and (found.low, found.high) == (-math.inf, math.inf)


@pytest.mark.parametrize("printed", [0.0, 1.0])
def test_a_printed_share_of_zero_or_one_is_tested(printed: float) -> None:
    found = agreement(*mean_interval([0.48, 0.5, 0.51, 0.49, 0.52]), 5, printed, HALF, None)
    assert 0 < found.p < LEVEL


def test_differences_without_spread_decide_nothing() -> None:
    assert math.isnan(mean_test(*difference_interval([2.0, 2.0, 2.0]), 3).p)
    assert math.isnan(mean_test(*difference_interval([2.0]), 1).p)
    assert mean_test(*difference_interval([1.0, 2.0, 3.0]), 3).p == pytest.approx(2 * student.sf(2 * math.sqrt(3), 2))


def test_holm_corrects_in_steps() -> None:
    """Holm's rule: the smallest p-value times the number of tests, the next times one less; never smaller than the one before."""
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0] and holm([]) == []
    with_unknown = holm([math.nan, 0.01])
    assert math.isnan(with_unknown[0]) and with_unknown[1] == pytest.approx(0.02)
