"""The audit of one training with many canaries: published values, closed forms, coverage and power."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit, ndtr

from leakbench.auditing.family import gaussian_epsilon
from leakbench.auditing.one_run import (
    Guesses,
    audit_one_run,
    curve_rejected,
    default_choices,
    epsilon_lower_bound,
    family_lower_bound,
    gaussian_curve,
    gaussian_lower_bound,
    guess,
    p_value,
    points_curve,
)
from leakbench.core.errors import InputError
from leakbench.privacy.accountants import best
from leakbench.privacy.mechanism import Mechanism

DELTA = 1e-5


def scored(rng: np.random.Generator, canaries: int, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of a Gaussian mechanism's canaries, and which ones it includes."""
    included = rng.random(canaries) < 0.5
    return included + sigma * rng.standard_normal(canaries), included


@pytest.mark.parametrize(
    ("canaries", "made", "correct", "delta", "printed"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_bounds_of_the_paper(canaries: int, made: int, correct: int, delta: float, printed: float) -> None:
    """Steinke et al. 2023, arXiv version 1: Appendix D, p. 46 (0.673), and section 7, p. 28 (2.675), at 95 %."""
    assert epsilon_lower_bound(Guesses(canaries, made, correct), delta, 0.05) == pytest.approx(printed, abs=1e-3)


def test_without_delta_the_probability_is_a_binomial_tail() -> None:
    """Randomised response attains it, with P[correct] = 1 / (1 + e^-epsilon)."""
    for epsilon in (0.0, 1.0, 3.0):
        assert p_value(Guesses(500, 50, 40), epsilon, 0.0) == pytest.approx(stats.binom.sf(39, 50, expit(epsilon)))
    assert epsilon_lower_bound(Guesses(100, 10, 10), 0.0, 0.05) == pytest.approx(math.log(0.05**0.1 / (1 - 0.05**0.1)))


def test_the_term_of_delta_equals_a_sum_over_all_i() -> None:
    """The maximum over i of P[v > W >= v - i] / i, by its definition."""
    guesses, epsilon, delta = Guesses(300, 60, 50), 1.2, 1e-4
    w = stats.binom(60, expit(epsilon))
    slow = max(sum(w.pmf(k) for k in range(50 - i, 50)) / i for i in range(1, 51))
    assert p_value(guesses, epsilon, delta) == pytest.approx(w.sf(49) + 2 * 300 * delta * slow, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    made=st.integers(1, 200),
    share=st.floats(0.5, 1.0),
    delta=st.sampled_from([0.0, 1e-6, 1e-3, 0.05]),
    seed=st.integers(0, 99),
)
def test_smaller_epsilons_than_the_bound_are_rejected_too(made: int, share: float, delta: float, seed: int) -> None:
    """Also where 2 m delta is above 1, so that single terms of the probability can decrease with epsilon."""
    guesses = Guesses(made * (1 + seed), made, round(share * made))
    bound = epsilon_lower_bound(guesses, delta, 0.05)
    for epsilon in np.linspace(0, max(bound - 1e-6, 0.0), 12) if bound else ():
        assert p_value(guesses, float(epsilon), delta) <= 0.05 + 1e-9
    assert p_value(guesses, bound + 1e-6, delta) >= 0.05 - 1e-6


@settings(max_examples=60, deadline=None)
@given(made=st.integers(1, 80), share=st.floats(0.5, 1.0), size=st.floats(0.1, 5.0), alpha=st.floats(0.01, 0.9))
def test_a_rejected_curve_is_rejected_by_its_best_mechanism(made: int, share: float, size: float, alpha: float) -> None:
    """With a guess for each canary, P[at least v correct] of independent best guesses is at most alpha, for both kinds of curves.

    The best guess of randomised response is right with probability 1 / (1 + e^-epsilon), and of a Gaussian with Phi(mu / 2).
    """
    guesses = Guesses(made, made, round(share * made))
    if curve_rejected(guesses, points_curve(np.array([size]), np.array([0.0])), alpha):
        assert stats.binom.sf(guesses.correct - 1, made, expit(size)) <= alpha + 1e-9
    if curve_rejected(guesses, gaussian_curve(size), alpha):
        assert stats.binom.sf(guesses.correct - 1, made, ndtr(size / 2)) <= alpha + 1e-9


@pytest.mark.parametrize("shift", [0.3, 1.0, 2.5])
def test_one_guess_about_one_canary_is_exact(shift: float) -> None:
    """The best guess about a Gaussian is right with probability Phi(mu / 2)."""
    right = float(ndtr(shift / 2))
    assert curve_rejected(Guesses(1, 1, 1), gaussian_curve(shift), right + 1e-9)
    assert not curve_rejected(Guesses(1, 1, 1), gaussian_curve(shift), right - 1e-9)


def test_the_recursion_equals_its_definition() -> None:
    """Mahloujifar et al. 2025, Algorithm 3 for two choices, written out with lists."""
    m, r, v, alpha = 400, 90, 70, 0.05

    def slow(shift: float) -> bool:
        right, wrong = [0.0] * (v + 1), [0.0] * (v + 1)
        right[v], wrong[v] = alpha * v / m, alpha * (r - v) / m
        for i in range(v - 1, -1, -1):
            wrong[i] = max(wrong[i + 1], float(stats.norm.cdf(stats.norm.ppf(right[i + 1]) - shift)))
            right[i] = right[i + 1] + i / (r - i) * (wrong[i] - wrong[i + 1])
        return right[0] + wrong[0] > r / m

    answers = [slow(shift) for shift in np.linspace(0.05, 3, 60)]
    assert answers == [curve_rejected(Guesses(m, r, v), gaussian_curve(s), alpha) for s in np.linspace(0.05, 3, 60)]
    assert True in answers
    assert False in answers


def test_points_of_a_gaussian_give_back_its_curve() -> None:
    """The envelope of (epsilon, delta(epsilon)) is at most the trade-off function, and near it with many points."""
    epsilons = np.linspace(0, 8, 400)
    deltas = ndtr(0.5 - epsilons) - np.exp(epsilons) * ndtr(-0.5 - epsilons)
    envelope, curve = points_curve(epsilons, deltas), gaussian_curve(1.0)
    for rate in (0.001, 0.1, 0.3, 0.7, 0.99):
        assert curve(rate) - 1e-4 < envelope(rate) <= curve(rate) + 1e-12


def test_a_family_of_one_release_is_gaussian_and_a_sampled_one_agrees_with_its_limit() -> None:
    """At q close to 1 the curve from points gives nearly the bound of the closed form."""
    guesses = Guesses(1000, 100, 90)
    closed = gaussian_lower_bound(guesses, DELTA, 0.05)
    assert family_lower_bound([guesses], Mechanism(1.0, 1.0, 5), DELTA, 0.05) == closed
    sampled = family_lower_bound([guesses], Mechanism(1.0, 0.999, 1), DELTA, 0.05)
    assert sampled == pytest.approx(closed, rel=0.03)


def test_guesses_follow_ranks() -> None:
    """High scores are guessed as included, low ones as left out."""
    scores, included = np.array([3.0, -1.0, 2.0, 0.0]), np.array([True, False, False, True])
    assert guess(scores, included, (1, 1)) == Guesses(4, 2, 2)
    assert guess(scores, included, (2, 2)) == Guesses(4, 4, 2)
    assert guess(scores, included, (0, 0)) == Guesses(4, 0, 0)


def test_gaussian_bounds_are_wrong_in_at_most_five_of_a_hundred() -> None:
    """200 trainings with 400 canaries and Gaussian noise: both bounds together, at 95 %."""
    rng, sigma = np.random.default_rng(3), 1.0
    truth = gaussian_epsilon(1 / sigma, DELTA)
    mechanism = Mechanism(sigma, 1.0, 1)
    audits = [
        audit_one_run(*scored(rng, 400, sigma), DELTA, "client", default_choices(400), mechanism) for _ in range(200)
    ]
    wrong = sum(max(a.lower_bound, a.lower_bound_family or 0.0) > truth for a in audits)
    assert wrong <= 10
    assert np.mean([a.lower_bound_family for a in audits]) > 0.2 * truth


def test_a_tight_mechanism_is_overestimated_in_about_five_of_a_hundred() -> None:
    """Randomised response attains the bound: with one choice it is wrong in nearly 5 % of 2,000 trainings, and not in more."""
    rng, epsilon = np.random.default_rng(0), 1.0
    correct = rng.binomial(500, expit(epsilon), size=2000)
    bounds = {v: epsilon_lower_bound(Guesses(500, 500, int(v)), 0.0, 0.05) for v in set(correct)}
    wrong = np.mean([bounds[v] > epsilon for v in correct])
    assert 0.025 < wrong < 0.065


def test_the_best_of_many_choices_needs_its_correction() -> None:
    """Without any effect, the best of 60 choices without a correction is wrong more often than 5 %, and with it not."""
    rng, choices = np.random.default_rng(1), [(r, 0) for r in range(5, 305, 5)]
    plain = corrected = 0
    for _ in range(200):
        scores, included = rng.standard_normal(1000), rng.random(1000) < 0.5
        least = min(p_value(guess(scores, included, c), 0.0, 0.0) for c in choices)
        plain += least <= 0.05
        corrected += least <= 0.05 / len(choices)
    assert plain > 20
    assert corrected <= 10


def test_a_gaussian_is_found_and_the_curve_finds_more() -> None:
    """1,000 canaries at sigma 1: the bound in the family is larger than the one without assumptions, and below the truth."""
    truth = gaussian_epsilon(1.0, DELTA)
    audit = audit_one_run(
        *scored(np.random.default_rng(0), 1000, 1.0), DELTA, "client", [(32, 31)], Mechanism(1.0, 1.0, 1)
    )
    assert audit.lower_bound_family is not None
    assert 0.25 * truth < audit.lower_bound < audit.lower_bound_family < truth


def test_more_canaries_give_larger_bounds_in_the_family() -> None:
    """Unlike the bound without assumptions, whose share of the truth ends below 1 for a Gaussian."""
    truth = best((Mechanism(1.0, 1.0, 1),), DELTA)[0]
    shares = []
    for canaries in (300, 3000, 30_000):
        scores, included = scored(np.random.default_rng(5), canaries, 1.0)
        made = guess(scores, included, (canaries // 60, canaries // 60))
        shares.append(gaussian_lower_bound(made, DELTA, 0.05) / truth)
    assert 0 < shares[0] < shares[1] < shares[2] < 1


def test_the_result_says_what_it_is() -> None:
    """Its text names the bound, the unit, the confidence, and that a small bound does not guarantee privacy."""
    audit = audit_one_run(*scored(np.random.default_rng(0), 200, 0.5), DELTA, "client", default_choices(200))
    assert audit.lower_bound_family is None
    assert "at least" in str(audit)
    assert "one client" in str(audit)
    assert "does not guarantee" in str(audit)
    assert audit.as_dict()["canaries"] == 200


def test_wrong_input_is_refused() -> None:
    """Counts, choices, delta and confidence outside their ranges, and scores that are not finite."""
    scores, included = scored(np.random.default_rng(0), 20, 1.0)
    with pytest.raises(InputError, match="guesses: got 3 correct of 2"):
        Guesses(10, 2, 3)
    with pytest.raises(InputError, match=r"guesses: got 15 \+ 6"):
        guess(scores, included, (15, 6))
    with pytest.raises(InputError, match="scores: "):
        guess(np.array([math.nan, 1.0]), included[:2], (1, 0))
    with pytest.raises(InputError, match="choices: got none"):
        audit_one_run(scores, included, DELTA, "client", [])
    with pytest.raises(InputError, match=r"alpha: got 0\.3"):
        audit_one_run(scores, included, DELTA, "client", [(2, 2)], confidence=0.7)
    with pytest.raises(InputError, match=r"delta: got 1\.5"):
        epsilon_lower_bound(Guesses(10, 2, 2), 1.5, 0.05)
    with pytest.raises(InputError, match="delta: got 0,"):
        gaussian_lower_bound(Guesses(10, 2, 2), 0, 0.05)
