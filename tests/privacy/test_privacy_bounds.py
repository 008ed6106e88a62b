"""Reconstruction robustness: published values, closed forms, slow references, and properties of every error curve."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr, ndtri

from leakbench.core.errors import InputError
from leakbench.privacy.bounds import Seen, gaussian_robustness, reconstruction_robustness
from leakbench.privacy.mechanism import Mechanism

KAPPAS = np.array([0.1, 0.01, 1e-3])


@pytest.mark.parametrize(
    ("mechanism", "expected"),
    [
        (Mechanism(6.0, 1.0, 1), (0.132, 0.0154, 0.00173)),
        (Mechanism(1.0, 1.0, 1), (0.389, 0.0924, 0.0183)),
        (Mechanism(0.5, 1.0, 1), (0.764, 0.372, 0.138)),
        (Mechanism(6.0, 0.01, 10_000), (0.133, 0.0155, 0.00174)),  # Fed-CDP
        (Mechanism(0.8, 0.01, 1000), (0.251, 0.0463, 0.00785)),
    ],
)
def test_reference_values(mechanism: Mechanism, expected: tuple[float, ...]) -> None:
    """Measured with other code; equal to the digits that were written down."""
    assert reconstruction_robustness(KAPPAS, (mechanism,)) == pytest.approx(expected, rel=4e-3)


@given(
    st.floats(1e-6, 1 - 1e-6),
    st.floats(0.2, 50.0),
    st.integers(1, 20),
    st.sampled_from(["poisson", "fixed", "visible"]),
)
def test_without_sampling_it_is_the_closed_form(kappa: float, sigma: float, steps: int, sampling: str) -> None:
    """q = 1: Phi(Phi^-1(kappa) + sqrt(steps) / sigma), for any sampling."""
    found = reconstruction_robustness(kappa, (Mechanism(sigma, 1.0, steps, sampling),))  # type: ignore[arg-type]
    assert float(found) == pytest.approx(float(ndtr(ndtri(kappa) + math.sqrt(steps) / sigma)), abs=1e-12)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_one_poisson_step(sigma: float, rate: float) -> None:
    """The likelihood ratio rises with x, so the best test is a threshold: (1 - q) kappa + q Phi(Phi^-1(kappa) + s)."""
    exact = (1 - rate) * KAPPAS + rate * ndtr(ndtri(KAPPAS) + 1 / sigma)
    found = reconstruction_robustness(KAPPAS, (Mechanism(sigma, rate, 1),))
    assert (found >= exact - 1e-12).all()
    assert found == pytest.approx(exact, rel=2e-3)


def test_two_poisson_steps_by_brute_force() -> None:
    """Every cell of a fine grid over both outputs, in order of the likelihood ratio."""
    sigma, rate = 0.8, 0.3
    x = np.arange(-8.0, 9.5, 0.02)
    null = np.diff(ndtr(x))
    with_unit = (1 - rate) * null + rate * np.diff(ndtr(x - 1 / sigma))
    p, q = np.outer(with_unit, with_unit).ravel(), np.outer(null, null).ravel()
    order = np.argsort(-p / np.maximum(q, 1e-300), kind="stable")
    exact = np.interp(KAPPAS, np.cumsum(q[order]), np.cumsum(p[order]))
    found = reconstruction_robustness(KAPPAS, (Mechanism(sigma, rate, 2),))
    assert (found >= exact * (1 - 5e-4)).all()
    assert found == pytest.approx(exact, rel=3e-3)


@pytest.mark.parametrize("sigma", [0.6, 1.5])
@pytest.mark.parametrize("rate", [0.05, 0.4])
def test_one_fixed_size_step_covers_its_worst_instances(sigma: float, rate: float) -> None:
    """The replacement is opposite to the unit (distinguished by a threshold), and parallel to it with the two roles exchanged."""
    s, found = 1 / sigma, reconstruction_robustness(KAPPAS, (Mechanism(sigma, rate, 1, "fixed"),))

    def mixed(kappa: float, here: tuple[float, float], there: tuple[float, float], sign: float) -> float:
        def tail(x: float, means: tuple[float, float]) -> float:
            return float((1 - rate) * ndtr(sign * (means[0] - x)) + rate * ndtr(sign * (means[1] - x)))

        return tail(brentq(lambda x: tail(x, there) - kappa, -20, 20), here)

    opposite = [mixed(k, (-s, s), (-s, 0.0), 1.0) for k in KAPPAS]
    alike = [mixed(k, (s, 0.0), (s, s), -1.0) for k in KAPPAS]
    exact = np.maximum(opposite, alike)
    assert (found >= exact * (1 - 1e-6)).all()
    assert found == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("kappa", [0.3, 0.05, 0.01])
def test_one_visible_use_spends_its_errors_where_the_unit_is(kappa: float) -> None:
    """Used with q = .2 and visible: the best split of kappa between the two cases."""
    sigma, rate = 0.7, 0.2

    def missed(used: float) -> float:
        return -(rate * float(ndtr(ndtri(used) + 1 / sigma)) + kappa - rate * used)

    exact = -minimize_scalar(missed, bounds=(1e-9, min(1.0, kappa / rate)), method="bounded").fun
    found = float(reconstruction_robustness(kappa, (Mechanism(sigma, rate, 1, "visible"),)))
    assert found >= exact - 1e-9
    assert found == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("sampling", ["poisson", "fixed", "visible"])
def test_other_releases_are_composed(sampling: str) -> None:
    """At q near 1 other releases add up in squares; at any q they never lower the curve."""
    near = Mechanism(3.0, 1 - 1e-9, 4, sampling)  # type: ignore[arg-type]
    together = gaussian_robustness(KAPPAS, math.sqrt(4 / 9 + 1 / 4))
    assert reconstruction_robustness(KAPPAS, (near, Mechanism(2.0, 1.0, 1))) == pytest.approx(together, rel=3e-3)
    rare = Mechanism(3.0, 0.05, 40, sampling)  # type: ignore[arg-type]
    both = reconstruction_robustness(KAPPAS, (rare, Mechanism(2.0, 1.0, 1)))
    for alone in (reconstruction_robustness(KAPPAS, (rare,)), gaussian_robustness(KAPPAS, 0.5)):
        assert (both >= alone).all()


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(
    st.floats(0.3, 8.0), st.floats(0.001, 0.9), st.integers(1, 500), st.sampled_from(["poisson", "fixed", "visible"])
)
def test_it_is_an_error_curve(sigma: float, rate: float, steps: int, sampling: str) -> None:
    """From 0 to 1, above the diagonal, rising, concave; never above the same steps without sampling."""
    levels = np.linspace(0, 1, 41)
    curve = reconstruction_robustness(levels, (Mechanism(sigma, rate, steps, sampling),))  # type: ignore[arg-type]
    assert 0 <= curve[0] < 1 + 1e-12
    assert curve[-1] == 1
    assert (curve >= levels).all()
    assert (np.diff(curve) >= -1e-9).all()
    assert (np.diff(curve, 2) <= 1e-6).all()
    if sampling != "fixed":  # The replacement moves the output as well.
        # Epsilons end at 50, so at kappa = 0 itself the bound may be loose.
        assert (curve[1:] <= gaussian_robustness(levels, math.sqrt(steps) / sigma)[1:] + 2e-3).all()


def test_more_steps_and_less_noise_reveal_more() -> None:
    curves = [
        reconstruction_robustness(KAPPAS, (Mechanism(s, 0.05, n),)) for s, n in ((4.0, 50), (2.0, 50), (2.0, 200))
    ]
    for less, more in itertools.pairwise(curves):
        assert (more > less).all()


@pytest.mark.parametrize(("sigma", "k", "reached"), [(6.0, 10, 0.128), (1.0, 10, 0.341), (1.0, 100, 0.083)])
def test_the_best_attack_on_orthogonal_candidates_comes_close(sigma: float, k: int, reached: float) -> None:
    """One of k orthogonal gradients of length 1 in noise of sigma, chosen by the largest correlation: at most gamma(1/k)."""
    seen = np.random.default_rng(0).normal(0, sigma, (40_000, k))
    seen[:, 0] += 1
    success = float((seen.argmax(1) == 0).mean())
    assert success == pytest.approx(reached, abs=0.006)
    assert success <= float(Seen(sigma, 1).robustness(1 / k)) < 1.2 * reached


def test_observed_releases_add_up() -> None:
    """Releases of one kind count as steps; the earlier training is composed with them."""
    assert Seen(2.0, 9).robustness(KAPPAS) == pytest.approx(gaussian_robustness(KAPPAS, 1.5))
    trained = Mechanism(2.0, 1.0, 7)
    assert Seen(2.0, 9, (trained,)).robustness(KAPPAS) == pytest.approx(gaussian_robustness(KAPPAS, 2.0))
    assert Seen(0.0, 1, (Mechanism(1.0, 0.1, 5),)).robustness(KAPPAS).tolist() == [1.0, 1.0, 1.0]


def test_bounds_without_releases_and_without_noise() -> None:
    for silent in (Mechanism(1.0, 0.0, 9), Mechanism(1.0, 0.5, 0), Mechanism(math.inf, 0.5, 9)):
        assert reconstruction_robustness(KAPPAS, (silent,)).tolist() == pytest.approx(KAPPAS.tolist())
    for bare in (Mechanism(0.0, 0.5, 1), Mechanism(0.02, 0.5, 300), Mechanism(0.02, 0.5, 300, "visible")):
        assert (reconstruction_robustness(KAPPAS, (bare,)) > 0.5).all()


@pytest.mark.parametrize("kappa", [-0.1, 1.1, math.nan])
def test_a_kappa_that_is_not_a_probability_is_refused(kappa: float) -> None:
    with pytest.raises(InputError, match="kappa"):
        reconstruction_robustness(kappa, (Mechanism(1.0, 1.0, 1),))


def test_releases_that_reveal_with_certainty_are_not_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shift of 400 with a sampled training gives a bound of 1 for every kappa that is not zero, at once."""

    def never(*_: object) -> None:
        raise AssertionError("composed")

    monkeypatch.setattr("leakbench.privacy.bounds.losses", never)
    both = (Mechanism(0.0025, 0.01, 10), Mechanism(0.0025, 1.0, 1))
    assert reconstruction_robustness([0.0, 1e-300, 0.001, 1.0], both).tolist() == [0.0, 1.0, 1.0, 1.0]
    assert float(gaussian_robustness(1e-300, 40.0)) > 0.99


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", "fixed", "visible"])
@pytest.mark.parametrize(("sigma", "q", "steps"), [(0.001, 0.01, 1), (0.1, 1e-5, 10_000), (1.0, 0.01, 10_000)])
def test_an_event_impossible_without_the_unit_stays_impossible(
    sampling: str, sigma: float, q: float, steps: int
) -> None:
    """The probability outside of the grid of losses must not count as the success of a guess that is never right."""
    bounds = reconstruction_robustness([0.0, 1e-9], (Mechanism(sigma, q, steps, sampling),))  # type: ignore[arg-type]
    assert bounds[0] == 0 < bounds[1]
