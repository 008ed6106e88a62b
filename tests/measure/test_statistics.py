import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binomtest, chi2, ttest_1samp
from scipy.stats import t as student

from leakbench.measure.statistics import (
    exact,
    mean_interval,
    median_interval,
    networks_limit,
    networks_test,
    paired_means,
    paired_shares,
    proportion,
    share_of_networks,
    threshold_curve,
    wilson,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (1, 10), (5, 10), (10, 10), (3, 1000), (999, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_wilson_equals_scipy(successes: int, trials: int, confidence: float) -> None:
    expected = binomtest(successes, trials).proportion_ci(confidence, "wilson")
    assert wilson(successes, trials, confidence) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_interval_of_a_share_next_to_an_edge_stays_within() -> None:
    """Rounding made the lower end of 3e-16 of a trial -6e-17, which no reader of a CSV accepts."""
    for trials in (1, 2, 3, 5, 10):
        for share in np.logspace(-18, -3, 400):
            for each in (share, 1 - share):
                low, high = wilson(each * trials, trials)
                assert 0 <= low <= high <= 1


def test_wilson_at_the_edges() -> None:
    z = 1.959963984540054
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 20) == pytest.approx((0.0, z**2 / (20 + z**2)))
    assert wilson(0, 20)[0] == 0.0 and wilson(20, 20)[1] == 1.0
    with pytest.raises(ValueError, match="successes"):
        wilson(3, 2)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_proportion_of_single_members_equals_wilson(success: list[bool]) -> None:
    share, low, high = proportion(success, range(len(success)))
    assert share == pytest.approx(np.mean(success))
    assert (low, high) == pytest.approx(wilson(sum(success), len(success)))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 6)), min_size=1, max_size=60))
def test_proportion_is_never_narrower_than_for_independent_trials(trials: list[tuple[bool, int]]) -> None:
    success, cluster = zip(*trials, strict=True)
    share, low, high = proportion(success, cluster)
    plain = wilson(sum(success), len(success))
    assert 0 <= low <= share <= high <= 1
    assert low <= plain[0] + 1e-12 and high >= plain[1] - 1e-12


def test_proportion_counts_whole_clusters_if_members_agree() -> None:
    success = np.repeat([0, 1, 0, 1, 1, 0, 1, 0, 0, 1] * 10, 8)  # 100 clusters of 8 equal members.
    _, low, high = proportion(success, np.repeat(np.arange(100), 8))
    assert (low, high) == pytest.approx(wilson(50, 100), abs=0.003)


@pytest.mark.parametrize("value", [0, 1])
def test_proportion_without_variance_counts_clusters(value: int) -> None:
    share, low, high = proportion(np.full(40, value), np.repeat(np.arange(5), 8))
    assert (share, low, high) == (value, *wilson(5 * value, 5))


def test_proportion_of_one_cluster_is_one_trial_and_of_none_is_unknown() -> None:
    assert proportion([1, 0, 1], [7, 7, 7])[1:] == pytest.approx(wilson(2 / 3, 1))
    share, low, high = proportion([], [])
    assert math.isnan(share) and (low, high) == (0.0, 1.0)


def test_a_missing_value_is_a_failure() -> None:
    nan = float("nan")
    cluster = [0, 1, 2, 3]
    assert proportion([1, nan, 1, nan], cluster) == proportion([1, 0, 1, 0], cluster)
    assert proportion(torch.tensor([1, nan, 1, nan]), torch.arange(4)) == proportion([1, 0, 1, 0], cluster)
    assert threshold_curve([0.1, nan, nan, nan], [0.05, 0.1, 9.0]).tolist() == [0.0, 0.25, 0.25]
    assert median_interval([0.1, nan, nan])[0] == math.inf


def test_a_score_is_refused_instead_of_a_success() -> None:
    with pytest.raises(ValueError, match="hold a score against a threshold"):
        proportion([0.3, 0.2], [0, 1])
    with pytest.raises(ValueError, match="cluster: got 1 names for 2 trials"):
        proportion([1, 0], [0])


@pytest.mark.parametrize(("clusters", "members", "share", "agreement"), [(10, 8, 0.3, 0.3), (20, 5, 0.5, 0.8)])
def test_proportion_covers_clusters_unlike_plain_wilson(
    clusters: int, members: int, share: float, agreement: float
) -> None:
    rng = np.random.default_rng(0)
    a, b = share * (1 - agreement) / agreement, (1 - share) * (1 - agreement) / agreement
    covered, plain = [], []
    for _ in range(400):
        success = rng.random((clusters, members)) < rng.beta(a, b, (clusters, 1))
        _, low, high = proportion(success.ravel(), np.repeat(np.arange(clusters), members))
        covered.append(low <= share <= high)
        low, high = wilson(success.sum(), success.size)
        plain.append(low <= share <= high)
    assert 0.92 <= np.mean(covered) <= 0.99
    assert np.mean(plain) < 0.85


def test_paired_shares_in_closed_form() -> None:
    a, b = np.tile([1, 1, 0, 1], 50), np.tile([0, 1, 0, 0], 50)
    difference, low, high = paired_shares(a, b, np.arange(200), seeded())
    error = (a - b).std() / 200**0.5
    assert difference == 0.5
    assert (low, high) == pytest.approx((0.5 - 1.96 * error, 0.5 + 1.96 * error), abs=0.01)


def test_paired_shares_draw_whole_clusters_and_are_repeatable() -> None:
    a, cluster = np.repeat([0, 1] * 10, 10), np.repeat(np.arange(20), 10)
    by_cluster = paired_shares(a, np.zeros(200), cluster, seeded(), draws=2500)
    alone = paired_shares(a, np.zeros(200), np.arange(200), seeded(), draws=2500)
    assert by_cluster[2] - by_cluster[1] > 2.5 * (alone[2] - alone[1])
    assert by_cluster == paired_shares(a, np.zeros(200), cluster, seeded(), draws=2500)
    assert by_cluster[2] - by_cluster[1] == pytest.approx(2 * 1.96 * (0.25 / 20) ** 0.5, abs=0.05)


def test_no_observed_difference_still_has_an_interval() -> None:
    """Victims without a difference may still differ at 1 - .025 ** (1 / n) to a side: the bootstrap alone would say [0, 0]."""
    same = np.zeros(200)
    difference, low, high = paired_shares(same, same, np.arange(200), seeded())
    assert difference == 0
    assert -low == high == pytest.approx(1 - 0.025 ** (1 / 200), abs=0.005)


def test_median_interval_is_between_order_statistics() -> None:
    median, low, high = median_interval(np.arange(1, 101))
    assert (median, low, high) == (50.5, 40.0, 61.0)  # The tabulated ranks 40 and 61 of 100.
    assert median_interval([3, 1, 2, 6, 5, 4]) == (3.5, 1.0, 6.0)  # 1 - 2 / 2**6 = .969.
    assert median_interval([3, 1, 2, 5, 4]) == (3.0, -math.inf, math.inf)
    assert math.isnan(median_interval([])[0])


def test_median_interval_covers() -> None:
    rng = np.random.default_rng(0)
    intervals = [median_interval(rng.exponential(size=25))[1:] for _ in range(600)]
    assert np.mean([low <= math.log(2) <= high for low, high in intervals]) >= 0.94


def test_threshold_curve_counts_the_threshold_itself() -> None:
    assert threshold_curve([0.1, 0.2, 0.2, 0.4], [0.0, 0.1, 0.2, 0.4]).tolist() == [0.0, 0.25, 0.75, 1.0]
    assert np.isnan(threshold_curve([], [0.1])).all()


def test_clopper_and_pearson_have_their_closed_forms() -> None:
    """0 of n: 1 - .025 ** (1 / n); n of n: its mirror image; between: scipy's."""
    for n in (1, 10, 100):
        zero, one = exact(np.zeros(n), np.arange(n)), exact(np.ones(n), np.arange(n))
        assert zero == pytest.approx((0, 0, 1 - 0.025 ** (1 / n)))
        assert one == pytest.approx((1, 0.025 ** (1 / n), 1))
    some = exact(np.arange(50) < 12, np.arange(50))
    slow = binomtest(12, 50).proportion_ci(0.95, "exact")
    assert some == pytest.approx((0.24, slow.low, slow.high))
    assert math.isnan(exact([], [])[0])


def test_clopper_and_pearson_count_failures_and_batches() -> None:
    """NaN is a failure; four equal members of ten batches are ten trials."""
    assert exact([1, math.nan], [0, 1]) == exact([1, 0], [0, 1])
    assert exact(np.zeros(40), np.repeat(np.arange(10), 4)) == pytest.approx((0, 0, 1 - 0.025 ** (1 / 10)))


def test_the_effective_sample_of_four_pairs_by_hand() -> None:
    """Pairs with 2, 1, 0 and 1 successes: variance 1/24 between them, 1/28 alone; times the squared ratio of t quantiles.

    Design effect 28 / 24 = 7 / 6; t at .975 is 2.364624 with 7 degrees of freedom and 3.182446 with 3.
    """
    effective = (2.364624 / 3.182446) ** 2 * 8 * 6 / 7
    found = proportion([1, 1, 1, 0, 0, 0, 0, 1], np.repeat(np.arange(4), 2))
    assert found == pytest.approx((0.5, *wilson(effective / 2, effective)), abs=1e-6)


def test_paired_means_weigh_unequal_clusters_by_their_trials() -> None:
    """One trial gained and three not: a quarter, not the mean of 1 and 0; the middle of draws (1/4, 1/2, 1/4) is a quarter too."""
    found = paired_means([1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1], seeded(), confidence=0.1)
    assert found == (0.25, 0.25, 0.25)


def test_paired_means_of_equal_gains_have_no_spread() -> None:
    """Any draw of two unequal clusters has the same gain; one cluster gives no information about others."""
    assert paired_means(np.full(4, 0.5), np.zeros(4), [0, 1, 1, 1], seeded()) == (0.5, 0.5, 0.5)
    assert paired_means([0.5, 0.7], [0.1, 0.1], [3, 3], seeded()) == pytest.approx((0.5, -1.0, 1.0))


def test_one_victim_with_two_unobserved_ones_by_hand() -> None:
    """Drawn four times from gains 1, 1 and -1: at most 1 of 4 in .111, 2 in .407, 3 in .802: quantiles .3 and .7 are 0 and .5."""
    assert paired_shares([1], [0], [0], seeded(), confidence=0.4) == (1.0, 0.0, 0.5)


def test_an_unobserved_victim_weighs_as_one_independent_trial() -> None:
    """Batches of four independent members are nearly as good as single ones; batches of four equal members count as one."""
    rng = np.random.default_rng(0)
    a, b, batch = rng.random(400) < 0.1, rng.random(400) < 0.1, np.repeat(np.arange(100), 4)
    width = {}
    for name, (x, y, cluster) in {
        "lone": (a, b, np.arange(400)),
        "batches": (a, b, batch),
        "alike": (a[::4].repeat(4), b[::4].repeat(4), batch),
        "one of each": (a[::4], b[::4], np.arange(100)),
    }.items():
        _, low, high = paired_shares(x, y, cluster, seeded())
        width[name] = high - low
    assert width["batches"] == pytest.approx(width["lone"], rel=0.15)
    assert width["alike"] == width["one of each"] > 1.5 * width["lone"]


def test_paired_means_are_as_wide_as_students_interval() -> None:
    """Ten differences have Student's interval, 15 % wider than the plain percentiles; NaN counts as no value."""
    gains = np.arange(10) / 10
    difference, low, high = paired_means(gains, np.zeros(10), np.arange(10), seeded())
    student = 2.262157 * gains.std(ddof=1) / 10**0.5
    assert (difference, low, high) == pytest.approx((0.45, 0.45 - student, 0.45 + student), abs=0.01)
    with pytest.raises(ValueError, match="got NaN"):
        paired_means([0.3, float("nan")], [0.1, 0.2], [0, 1], seeded())
    with pytest.raises(ValueError, match="got NaN"):
        paired_shares([0.3, float("nan")], [0.1, 0.2], [0, 1], seeded())


def test_the_interval_over_two_networks_by_hand() -> None:
    """Rates .2 and .6 of ten victims each: the variance of the mean .4 is 2 / 1 x (2 x 2^2) / 20^2 = .04, one degree of freedom."""
    success = np.r_[np.ones(2), np.zeros(8), np.ones(6), np.zeros(4)]
    share, low, high = proportion(success, np.arange(20), network=np.repeat([0, 1], 10))
    trials, quantile = 0.24 / 0.04, float(student.ppf(0.975, 1))
    centre = (0.4 + quantile**2 / (2 * trials)) / (1 + quantile**2 / trials)
    half = quantile * np.sqrt(0.24 / trials + quantile**2 / (4 * trials**2)) / (1 + quantile**2 / trials)
    assert (share, low, high) == pytest.approx((0.4, centre - half, centre + half))


def test_networks_that_agree_by_chance_have_a_minimal_variance() -> None:
    """Five networks with one success of two each have no variance; 5 % of such draws are below chi-square's quantile."""
    success, network = np.tile([1.0, 0.0], 5), np.repeat(np.arange(5), 2)
    _, low, high = proportion(success, np.arange(10), network=network)
    trials, quantile = 10 / (float(chi2.ppf(0.05, 4)) / 4), float(student.ppf(0.975, 4))
    half = quantile * np.sqrt(0.25 / trials + quantile**2 / (4 * trials**2)) / (1 + quantile**2 / trials)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half))


def test_networks_of_batches_that_agree_by_chance_have_a_minimal_variance() -> None:
    """Twenty pairs of equal outcomes, two pairs right and two wrong on each of five networks.

    Between the pairs the variance of the mean is 20 / 19 x 20 / 40^2 = 1 / 76, for independent trials it is .25 / 39; so 19 / 39 of
    40 trials are effective, times the squared ratio of Student's quantiles.
    """
    success = np.tile([1.0, 1.0, 0.0, 0.0], 10)
    _, low, high = proportion(success, np.repeat(np.arange(20), 2), network=np.repeat(np.arange(5), 8))
    effective = 40 * 19 / 39 * float(student.ppf(0.975, 39) / student.ppf(0.975, 19)) ** 2
    trials, quantile = effective / (float(chi2.ppf(0.05, 4)) / 4), float(student.ppf(0.975, 4))
    half = quantile * np.sqrt(0.25 / trials + quantile**2 / (4 * trials**2)) / (1 + quantile**2 / trials)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half))


def test_one_network_and_equal_outcomes_are_as_without_networks() -> None:
    rng = np.random.default_rng(3)
    success, batch = rng.random(30) < 0.4, np.repeat(np.arange(10), 3)
    assert proportion(success, batch, network=np.zeros(30)) == proportion(success, batch)
    assert exact(success, batch, network=np.zeros(30)) == exact(success, batch)
    for value in (0.0, 1.0):
        alike = np.full(30, value)
        assert proportion(alike, batch, network=np.repeat([0, 1, 2, 3, 4], 6)) == proportion(alike, batch)
        assert mean_interval(alike, network=np.repeat([0, 1], 15)) == mean_interval(alike)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deviation", "mean", "coverage"),
    [
        (0.05, 0.1, 0.953),
        (0.05, 0.3, 0.952),
        (0.05, 0.9, 0.952),
        (0.1, 0.1, 0.932),
        (0.1, 0.3, 0.948),
        (0.1, 0.9, 0.937),
    ],
)
def test_the_interval_over_networks_covers_unlike_that_of_one_network(
    deviation: float, mean: float, coverage: float
) -> None:
    """Five networks of 60 victims whose rates differ by `deviation`: the coverage of 6,000 draws and its error from 1,500.

    It is 95 % +- 0.5 points for a deviation of .05, and for .1 at a share of .3. It is 93 % to 94 % for a deviation of .1 at shares
    of .1 and .9: rates of networks are then far from normally distributed, since many are next to 0 or 1.
    """
    rng = np.random.default_rng(11)
    strength = mean * (1 - mean) / deviation**2 - 1
    network, covered, alone = np.repeat(np.arange(5), 60), [], []
    for _ in range(1500):
        success = (rng.random((5, 60)) < rng.beta(mean * strength, (1 - mean) * strength, (5, 1))).ravel()
        _, low, high = proportion(success, np.arange(300), network=network)
        covered.append(low <= mean <= high)
        low, high = wilson(success.sum(), 300)
        alone.append(low <= mean <= high)
    assert abs(np.mean(covered) - coverage) <= 3 * np.sqrt(coverage * (1 - coverage) / 1500)
    assert np.mean(alone) < 0.9


def test_a_median_over_networks_has_a_wider_interval() -> None:
    values, network = np.arange(100.0), np.repeat(np.arange(5), 20)
    mixed = np.tile(np.arange(5), 20)
    apart, together, alone = (median_interval(values, network=n) for n in (network, mixed, None))
    assert apart[0] == together[0] == alone[0] == 49.5
    assert apart[1] < together[1] <= alone[1] and apart[2] > together[2] >= alone[2]


def test_a_mean_over_networks_has_students_interval_of_their_means() -> None:
    values, network = np.r_[0.1, 0.3, 0.5, 0.7, 0.2, 0.4], np.repeat([0, 1, 2], 2)
    means = np.array([0.2, 0.6, 0.3])
    half = float(student.ppf(0.975, 2)) * means.std(ddof=1) / np.sqrt(3)
    found = mean_interval(values, network=network)
    assert found == pytest.approx((means.mean(), max(0, means.mean() - half), min(1, means.mean() + half)))


def test_counts_by_network_have_the_interval_of_their_outcomes() -> None:
    right, sizes = [3, 0, 7], [10, 8, 9]
    success = np.concatenate([np.arange(n) < r for r, n in zip(right, sizes, strict=True)])
    expected = proportion(success, np.arange(27), network=np.repeat([0, 1, 2], sizes))
    assert share_of_networks(right, sizes) == pytest.approx(expected)
    assert share_of_networks([0, 0], [5, 5])[1:] == wilson(0, 10)
    assert share_of_networks([4], [10])[1:] == pytest.approx(wilson(4, 10))


def test_the_limit_over_all_networks_is_that_of_a_trial_each() -> None:
    """Zero of five: 1 - .05^(1/5). Half a success of five: the root of the beta distribution. One success or more: none."""
    assert networks_limit(0.0, 5) == pytest.approx(1 - 0.05**0.2)
    assert networks_limit(1.0, 5) == pytest.approx(0.05**0.2)
    assert networks_limit(0.1, 5) == pytest.approx(beta.ppf(0.95, 1.5, 4.5))
    assert networks_limit(0.9, 5) == pytest.approx(1 - beta.ppf(0.95, 1.5, 4.5))
    assert networks_limit(0.2, 5) is None and networks_limit(0.8, 5) is None and networks_limit(0.0, 1) is None


RATES = {
    "correlation .3": (0.05, lambda rng, k: rng.beta(0.05 * (1 / 0.3 - 1), 0.95 * (1 / 0.3 - 1), k)),
    "10 % leak everything": (0.1, lambda rng, k: (rng.random(k) < 0.1).astype(float)),
}
"""{how the success rates of networks are drawn: (their mean, the draw)}."""


@pytest.mark.parametrize(
    ("kind", "networks", "victims", "alone"),
    [
        ("correlation .3", 5, 60, 0.77),
        ("correlation .3", 10, 20, 0.82),
        ("10 % leak everything", 5, 20, 0.41),
        ("10 % leak everything", 10, 20, 0.64),
        ("10 % leak everything", 3, 60, 0.27),
    ],
)
def test_the_limit_over_all_networks_covers_what_the_interval_misses(
    kind: str, networks: int, victims: int, alone: float
) -> None:
    """At least 95 %, where the interval alone covers what the documentation states, up to the error of the simulation."""
    mean, draw = RATES[kind]
    rng, network, repeats = np.random.default_rng(8), np.repeat(np.arange(networks), victims), 400
    held = []
    for _ in range(repeats):
        hits = (rng.random((networks, victims)) < draw(rng, networks)[:, None]).ravel()
        found, low, high = proportion(hits, np.arange(len(hits)), network=network)
        limit = networks_limit(found, networks)
        with_limit = min(low, limit or 1.0) if found > 0.5 else low, max(high, limit or 0.0) if found < 0.5 else high
        held.append((low <= mean <= high, with_limit[0] <= mean <= with_limit[1]))
    first, second = np.mean(held, axis=0)
    assert first == pytest.approx(alone, abs=0.08)
    assert second >= 0.95 - 3 * (0.05 * 0.95 / repeats) ** 0.5


def test_students_test_over_networks_in_closed_form() -> None:
    """The t test of the networks' means; equal means have no variance, and one network has no test."""
    network = np.arange(20) % 4
    a, b = np.array([0.1, 0.5, 0.2, 0.4])[network], np.zeros(20)
    assert networks_test(a, b, network) == pytest.approx(ttest_1samp([0.1, 0.5, 0.2, 0.4], 0).pvalue)
    assert networks_test(b + 0.5, b, network) == 0.0 and networks_test(b, b, network) == 1.0
    assert math.isnan(networks_test(a, b, b))
