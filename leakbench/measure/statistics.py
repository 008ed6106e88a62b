"""Intervals for shares and medians of trials, where a trial without an answer (NaN) is a failure, never left out."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, stdtr, stdtrit
from scipy.stats import binom, chi2
from torch import Tensor

__all__ = [
    "accuracy_interval",
    "difference_interval",
    "exact",
    "exact_low",
    "mean_interval",
    "median_interval",
    "networks_limit",
    "networks_test",
    "paired_means",
    "paired_shares",
    "proportion",
    "share_of_networks",
    "shared",
    "student_quantile",
    "threshold_curve",
    "wilson",
]

Values: TypeAlias = Tensor | ArrayLike
Floats: TypeAlias = NDArray[np.float64]
Interval: TypeAlias = tuple[float, float, float]
"""(estimate, low, high)."""


@cache
def student_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's distribution.

    By the special function: a table needs thousands of quantiles, and `scipy.stats.t.ppf` takes a millisecond for the same number.
    """
    return float(stdtrit(freedom, share))


@cache
def _rank(n: int, confidence: float) -> int:
    """Return the rank of the lower end of the interval of a median of n independent values."""
    return int(np.searchsorted(binom.cdf(np.arange(n), n, 0.5), (1 - confidence) / 2, side="right"))


def wilson(successes: float, trials: float, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval (low, high) of a share; (0, 1) for no trials. Both counts may be effective ones.

    Wilson, JASA 22, 1927; Brown, Cai and DasGupta, Statistical Science 16, 2001, eq. 4.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes: got {successes} of {trials} trials, expected 0 <= successes <= trials")
    if trials == 0:
        return 0.0, 1.0
    return _score_interval(successes / trials, trials, NormalDist().inv_cdf(0.5 + confidence / 2))


def _score_interval(share: float, trials: float, quantile: float) -> tuple[float, float]:
    centre = (share + quantile**2 / (2 * trials)) / (1 + quantile**2 / trials)
    variance = share * (1 - share) / trials + quantile**2 / (4 * trials**2)
    half = quantile * variance**0.5 / (1 + quantile**2 / trials)
    # At 0 and 1 the ends are exact; rounding must not move them, nor those of a share next to them beyond.
    return 0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half)


def proportion(
    success: Values, cluster: Values, confidence: float = 0.95, *, network: Values | None = None
) -> Interval:
    """Return the share of successes with its interval, for trials that are not independent.

    Trials on one network: Wilson's interval at the effective sample size (Dean and Pagano, J. Survey Statistics and
    Methodology 3, 2015): n over the design effect of the ratio estimator (Kish, Survey Sampling, 1965), times the
    correction for few clusters of Korn and Graubard (Survey Methodology 24, 1998). Never above n; one member a cluster
    gives plain Wilson; all 0 or all 1 show no variance, so there each cluster counts as one trial.

    Trials on k >= 2 networks: the interval is for the mean over all networks that could have been drawn, see
    `_over_networks`. Near 0 and 1 the networks show little or no variance. The interval is then for networks like the measured
    ones, and `networks_limit` is the limit for all networks.

    Args:
        success: (n,) outcomes, 0 or 1; NaN is a failure.
        cluster: (n,) names of the batches, whose trials are not independent.
        confidence: Coverage of the interval.
        network: (n,) names of the networks; each network contains whole clusters. None for one network.

    Returns:
        (share, low, high); (NaN, 0, 1) for no trials.

    Raises:
        ValueError: For outcomes other than 0, 1 and NaN.
    """
    return shared(_outcomes(success), cluster, confidence, network=network)


def shared(outcome: Values, cluster: Values, confidence: float = 0.95, *, network: Values | None = None) -> Interval:
    """Return what `proportion` does for outcomes (n,) in [0, 1], where a tie between m answers counts 1 / m."""
    outcome = _floats(outcome)
    sums, sizes = _by_cluster(outcome, cluster)
    if not len(outcome):
        return float("nan"), 0.0, 1.0
    share = float(outcome.mean())
    trials = _effective_trials(sums, sizes, share * (1 - share), confidence)
    over = (
        None
        if network is None
        else _over_networks(*_by_cluster(outcome, network), share * (1 - share), trials, confidence)
    )
    return share, *_score_interval(share, *(over or (trials, NormalDist().inv_cdf(0.5 + confidence / 2))))


def networks_limit(share: float, networks: int, confidence: float = 0.95) -> float | None:
    """Return the limit of a share near 0 or 1 over all networks, whatever the other networks show; None for another share.

    A share is near 0 if one network with nothing but successes would have more of them, and near 1 likewise. Then a few networks
    that leak everything, none of which was drawn, can be most of the mean over all networks, and the variance between the drawn
    ones does not show it. The limit counts each network as one trial, which is the largest variance that shares in [0, 1] can have.

    Args:
        share: Mean success rate in [0, 1].
        networks: Number k of networks, each with about as many victims.
        confidence: One-sided.

    Returns:
        Clopper and Pearson's limit of k * `share` successes in k trials: the upper one near 0, 1 - .05^(1/k) at 0; the lower one
        near 1. None for one network, which shows nothing about others.
    """
    near = min(share, 1.0 - share) * networks
    if networks < 2 or near > 1 - 1e-9:  # 1 - .8 is below .2.
        return None
    away = float(betaincinv(near + 1.0, networks - near, confidence))
    return away if share < 0.5 else 1.0 - away


def exact_low(success: Values, cluster: Values, confidence: float = 0.95, *, network: Values | None = None) -> float:
    """Return the exact lower limit of a share, for which no luck of few trials passes as evidence; 0 for no trials.

    Clopper and Pearson's limit (Biometrika 26, 1934) at the effective sample size (Korn and Graubard 1998). Wilson's is too high
    near 0, where a single success of 10 would refute a share of .0179 that gives one in every sixth.

    Args:
        success: (n,) in [0, 1], NaN a failure.
        cluster: (n,) as in `proportion`.
        network: (n,) as in `proportion`.
    """
    outcome = np.nan_to_num(_floats(success), nan=0.0)
    sums, sizes = _by_cluster(outcome, cluster)
    share = float(outcome.mean()) if len(outcome) else 0.0
    if share == 0:
        return 0.0
    trials = _effective_trials(sums, sizes, share * (1 - share), confidence)
    if network is not None and (
        over := _over_networks(*_by_cluster(outcome, network), share * (1 - share), trials, confidence)
    ):
        # As many independent trials as have a normal interval of the same width (Korn and Graubard 1998).
        trials = max(1.0, over[0] * (NormalDist().inv_cdf(0.5 + confidence / 2) / over[1]) ** 2)
    return float(betaincinv(share * trials, (1 - share) * trials + 1, (1 - confidence) / 2))


def exact(success: Values, cluster: Values, confidence: float = 0.95, *, network: Values | None = None) -> Interval:
    """Return (share, low, high) by Clopper and Pearson (Biometrika 26, 1934), at the effective sample size of `proportion`.

    For independent trials, the coverage is at least `confidence` at every share; Wilson's has it only on average.
    No trials give (NaN, 0, 1).
    """
    outcome = _outcomes(success)
    low = exact_low(outcome, cluster, confidence, network=network)
    return proportion(outcome, cluster)[0], low, 1.0 - exact_low(1.0 - outcome, cluster, confidence, network=network)


LUCK = 0.05
"""Networks that agree more than they do in this share of all draws, were they all alike, are taken to agree by luck."""


def share_of_networks(right: Values, sizes: Values) -> Interval:
    """Return what `shared` does for independent trials, from how many are right (k,) of how many (k,) on each network."""
    sums, numbers = _floats(right), _floats(sizes)
    trials = float(numbers.sum())
    share = float(sums.sum()) / trials
    over = _over_networks(sums, numbers, share * (1 - share), trials, 0.95)
    return share, *_score_interval(share, *(over or (trials, NormalDist().inv_cdf(0.975))))


def _over_networks(
    sums: Floats, sizes: Floats, spread: float, trials: float, confidence: float
) -> tuple[float, float] | None:
    """Return (effective trials, quantile) of a mean over several networks; None for one network, or without any variance.

    The variance of the mean comes from the k networks' own means, by the ratio estimator, and has k - 1 degrees of
    freedom, so that the quantile is Student's. A few networks can agree by luck: the variance is at least the `LUCK` quantile
    of what independent trials would show (a chi-square of k - 1 degrees of freedom).

    Args:
        sums: (k,) sums of the outcomes of each network.
        sizes: (k,) numbers of them.
        spread: Variance of the outcomes.
        trials: How many independent trials the outcomes are worth on one network.
        confidence: Two-sided coverage that the quantile is for.
    """
    if len(sizes) < 2 or spread <= 0:
        return None
    least, quantile = _quantiles(len(sizes), confidence)
    return max(1.0, spread / max(_variance(sums, sizes), spread / trials * least)), quantile


def _variance(sums: Floats, sizes: Floats) -> float:
    """Return the variance of the mean of all trials, from the sums (k,) and sizes (k,) of k >= 2 groups (Kish 1965)."""
    k, mean = len(sizes), float(sums.sum() / sizes.sum())
    return k / (k - 1) * float(((sums - mean * sizes) ** 2).sum()) / float(sizes.sum()) ** 2


@cache
def _quantiles(networks: int, confidence: float) -> tuple[float, float]:
    """Return (the least share of the independent variance, Student's quantile) for so many networks."""
    freedom = networks - 1
    return float(chi2.ppf(LUCK, freedom)) / freedom, student_quantile(0.5 + confidence / 2, freedom)


def _effective_trials(sums: Floats, sizes: Floats, variance: float, confidence: float) -> float:
    """Return how many independent trials tell as much as these clusters (c,) of trials with that variance."""
    trials, clusters = float(sizes.sum()), len(sizes)
    if trials == clusters:
        return trials
    if variance <= 0 or clusters == 1:
        return float(clusters)
    independent = variance / (trials - 1)
    quantile = 0.5 + confidence / 2
    few = (student_quantile(quantile, trials - 1) / student_quantile(quantile, clusters - 1)) ** 2
    return max(1.0, few * trials / max(1.0, _variance(sums, sizes) / independent))


def paired_shares(
    a: Values,
    b: Values,
    cluster: Values,
    rng: torch.Generator,
    *,
    draws: int = 10_000,
    confidence: float = 0.95,
    network: Values | None = None,
) -> Interval:
    """Return (difference, low, high) of the mean of outcomes, a minus b, for two attacks on the same victims.

    Args:
        a: (n,) 0, 1 or between them where a tie counts in part.
        b: (n,) 0, 1 or between them where a tie counts in part.
        cluster: (n,), whole clusters are drawn with replacement.
        network: (n,) names of the networks. With several, the interval also contains Student's over the networks' mean
            differences, so that it is for networks that could be drawn. None for one network.

    Returns:
        The percentile interval (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13) of the observed clusters
        and two added ones: one that gains and one that loses. Each added cluster has as many trials as carry the information of
        one independent trial (Bonett and Price, J. Educational and Behavioral Statistics 37, 2012, add them to the counts). Without
        the added clusters, the interval covers 89 % at ten victims, and far less where few differ. No trials give (NaN, -1, 1).

    Raises:
        ValueError: For NaN, as in `paired_means`.
    """
    each = _differences(a, b)
    gains, sizes = _by_cluster(each, cluster)
    if not len(sizes):
        return float("nan"), -1.0, 1.0
    alike = len(each) / _effective_trials(gains, sizes, float(each.var()), confidence)
    size = min(alike, float(sizes.mean()))
    with_unseen = np.append(gains, [size, -size]), np.append(sizes, [size, size])
    # One draw more than there are: quantiles in steps of 1/n are rounded outwards, which of few clusters is too wide.
    ends = _percentiles(*with_unseen, len(sizes) + 3, draws, (1 - confidence) / 2, rng)
    return float(gains.sum() / sizes.sum()), *_widened(each, network, ends, confidence)


def paired_means(
    a: Values,
    b: Values,
    cluster: Values,
    rng: torch.Generator,
    *,
    draws: int = 10_000,
    confidence: float = 0.95,
    network: Values | None = None,
) -> Interval:
    """Return (difference, low, high) of the means of scores (n,) in [0, 1], a minus b, for two attacks on the same victims.

    Args:
        cluster: (n,), whole clusters are drawn with replacement.
        network: (n,), as in `paired_shares`.

    Returns:
        The percentile interval, between quantiles so far out that a normal interval would be Student's (Hesterberg, The American
        Statistician 69, 2015, section 5.3). No trials give (NaN, -1, 1), one cluster (difference, -1, 1).

    Raises:
        ValueError: For NaN, because the caller must decide how a failure counts.
    """
    each = _differences(a, b)
    gains, sizes = _by_cluster(each, cluster)
    n = len(sizes)
    if n < 2:
        return float(gains.sum() / sizes.sum()) if n else float("nan"), -1.0, 1.0
    student_tail = NormalDist().cdf(-((n / (n - 1)) ** 0.5) * student_quantile(0.5 + confidence / 2, n - 1))
    ends = _percentiles(gains, sizes, n, draws, student_tail, rng)
    return float(gains.sum() / sizes.sum()), *_widened(each, network, ends, confidence)


def networks_test(a: Values, b: Values, network: Values) -> float:
    """Return the two-sided p-value of Student's test that a minus b (n,) has the mean 0 over networks that could be drawn.

    Args:
        network: (n,) names of the networks.

    Returns:
        The p-value; NaN for fewer than two networks, which show no variance.
    """
    sums, sizes = _by_cluster(_differences(a, b), network)
    if len(sizes) < 2:
        return float("nan")
    mean, variance = float(sums.sum() / sizes.sum()), _variance(sums, sizes)
    if variance <= 0:
        return float(mean == 0)
    return float(2 * stdtr(len(sizes) - 1, -abs(mean) / variance**0.5))


def _widened(
    values: Floats, network: Values | None, ends: tuple[float, float], confidence: float
) -> tuple[float, float]:
    """Return the ends of an interval of a mean difference, as far apart as Student's over the means of several networks.

    Never closer than `ends`, which are by the victims: networks can agree by luck.
    """
    sums, sizes = _by_cluster(values, np.zeros(len(values)) if network is None else network)
    k = len(sizes)
    if k < 2:
        return ends
    half = student_quantile(0.5 + confidence / 2, k - 1) * _variance(sums, sizes) ** 0.5
    mean = float(sums.sum() / sizes.sum())
    return min(ends[0], max(-1.0, mean - half)), max(ends[1], min(1.0, mean + half))


def _differences(a: Values, b: Values) -> Floats:
    x, y = _floats(a), _floats(b)
    if np.isnan(x).any() or np.isnan(y).any():
        raise ValueError("scores: got NaN, expected numbers; a failure counts as the worst score there is")
    return np.asarray(x - y)


def _percentiles(
    gains: Floats, sizes: Floats, number: int, draws: int, tail: float, rng: torch.Generator
) -> tuple[float, float]:
    """Return the two quantiles of the mean gain of `number` clusters, drawn from all with replacement."""
    differences = []
    for start in range(0, draws, 1000):
        picked = torch.randint(len(sizes), (min(1000, draws - start), number), generator=rng).numpy()
        differences.append(gains[picked].sum(1) / sizes[picked].sum(1))
    low, high = np.quantile(np.concatenate(differences), [tail, 1 - tail])
    return float(low), float(high)


def mean_interval(values: Values, confidence: float = 0.95, *, network: Values | None = None) -> Interval:
    """Return (mean, low, high) of independent values (n,) in [0, 1], one a cluster.

    Student's interval; of equal values, which show no spread, Wilson's of n trials. No values give (NaN, 0, 1).

    Args:
        network: (n,) names of the networks, whose means then show the spread (`_over_networks`); None for one network.
    """
    found = _floats(values)
    n = len(found)
    if n == 0:
        return float("nan"), 0.0, 1.0
    mean = float(found.mean())
    if np.ptp(found) == 0:
        return mean, *wilson(mean * n, n, confidence)
    half = _half_width(found, network, confidence)
    return mean, max(0.0, mean - half), min(1.0, mean + half)


def accuracy_interval(accuracies: Values, examples: int) -> Interval:
    """Return (mean, low, high) of the accuracies (n,) of trainings that differ in their seed, on the same test examples.

    The interval is Student's over trainings (`mean_interval`). For one training it is Wilson's over its test examples.

    Args:
        accuracies: (n,) in [0, 1], at least one.
        examples: Number of test examples.
    """
    found = _floats(accuracies)
    if len(found) == 1:
        return float(found[0]), *wilson(float(found[0]) * examples, examples)
    return mean_interval(found)


def difference_interval(values: Values, confidence: float = 0.95, *, network: Values | None = None) -> Interval:
    """Return (mean, low, high) of independent differences (n,) of any size: Student's interval, infinite of fewer than two.

    Args:
        network: (n,) names of the networks, whose means then show the spread (`_over_networks`); None for one network.
    """
    found = _floats(values)
    n = len(found)
    if n < 2:
        return float(found.mean()) if n else float("nan"), -np.inf, np.inf
    mean = float(found.mean())
    half = _half_width(found, network, confidence)
    return mean, mean - half, mean + half


def _half_width(values: Floats, network: Values | None, confidence: float) -> float:
    """Return half the width of Student's interval of the mean of two values or more."""
    n = len(values)
    over = (
        None if network is None else _over_networks(*_by_cluster(values, network), float(values.var()), n, confidence)
    )
    if over is not None:
        return float(over[1] * float(values.std()) / over[0] ** 0.5)
    return float(student_quantile((1 + confidence) / 2, n - 1) * float(values.std(ddof=1)) / n**0.5)


def median_interval(values: Values, confidence: float = 0.95, *, network: Values | None = None) -> Interval:
    """Return (median, low, high) of a score where lower is better for the attacker, such as RMSE or iterations.

    NaN is a failure: worse than any value, so infinite. The interval is between order statistics (Hahn and Meeker, Statistical
    Intervals, 1991, section 5.2). For independent values, it covers the median with at least `confidence` for every distribution.
    With too few values (below 6 at .95) both ends are infinite. No values give NaN.

    Args:
        network: (n,) names of the networks; with several the order statistics are those at the ends of the clustered interval of
            the share of values up to the median (Woodruff, JASA 47, 1952), and never closer to it than those of independent
            values.
    """
    ordered = np.sort(np.nan_to_num(_floats(values), nan=np.inf, posinf=np.inf))
    n = len(ordered)
    if n == 0:
        return float("nan"), -np.inf, np.inf
    middle = ordered[(n - 1) // 2], ordered[n // 2]
    # Of infinite middles the mean is infinite, not NaN.
    median = float(middle[0] if middle[0] == middle[1] else sum(middle) / 2)
    # The largest rank whose tail, fewer than `rank` values below the median, has at most half the error.
    rank = _rank(n, confidence)
    below = (np.nan_to_num(_floats(values), nan=np.inf, posinf=np.inf) <= median).astype(np.float64)
    over = None if network is None else _over_networks(*_by_cluster(below, network), float(below.var()), n, confidence)
    if over is not None:
        rank = min(rank, int(n * _score_interval(0.5, *over)[0]))
    if rank == 0:
        return median, -np.inf, np.inf
    return median, float(ordered[rank - 1]), float(ordered[n - rank])


def threshold_curve(rmse: Values, thresholds: Values) -> Floats:
    """Return the ASR (k,) at each threshold (k,): the share of all trials (n,) with RMSE at most that; NaN never is."""
    scores, limits = _floats(rmse), _floats(thresholds)
    if not len(scores):
        return np.full(len(limits), np.nan)
    share: Floats = np.searchsorted(np.sort(scores[~np.isnan(scores)]), limits, side="right") / len(scores)
    return share


def _floats(values: Values) -> Floats:
    array: Any = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    return np.asarray(array, dtype=np.float64).reshape(-1)


def _outcomes(success: Values) -> Floats:
    outcome = np.nan_to_num(_floats(success), nan=0.0)
    if not np.isin(outcome, (0.0, 1.0)).all():
        raise ValueError("success: got values other than 0, 1 and NaN; hold a score against a threshold first")
    return outcome


def _by_cluster(values: Floats, cluster: Values) -> tuple[Floats, Floats]:
    names = np.asarray(cluster.cpu() if isinstance(cluster, Tensor) else cluster).reshape(-1)
    if len(names) != len(values):
        raise ValueError(f"cluster: got {len(names)} names for {len(values)} trials, expected one each")
    index = np.unique(names, return_inverse=True)[1]
    return np.bincount(index, weights=values).astype(np.float64), np.bincount(index).astype(np.float64)
