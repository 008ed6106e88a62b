"""The bounds of one training compared with those of jax_privacy 2.0 on the same scores (pip install 'jax-privacy==2.0.0')."""

import numpy as np
import pytest

from leakbench.auditing.one_run import epsilon_lower_bound, gaussian_lower_bound, guess

auditing = pytest.importorskip("jax_privacy.auditing", reason="no jax_privacy; pip install 'jax-privacy==2.0.0'")


@pytest.mark.parametrize(("canaries", "sigma"), [(200, 0.5), (1000, 1.0), (2000, 2.0), (5000, 0.4)])
@pytest.mark.parametrize("share", [2, 8, 32])
@pytest.mark.parametrize("delta", [1e-6, 1e-5, 1e-3])
def test_both_bounds_agree_with_jax_privacy(canaries: int, sigma: float, share: int, delta: float) -> None:
    """Guesses `included` above a threshold; its searches are to 1e-6 in epsilon."""
    rng, made = np.random.default_rng(canaries), canaries // share
    included = rng.random(canaries) < 0.5
    scores = included + sigma * rng.standard_normal(canaries)
    theirs = auditing.CanaryScoreAuditor(scores[included], scores[~included])
    at = auditing.Explicit(float(np.sort(scores)[canaries - made]))
    ours = guess(scores, included, (made, 0))
    expected = theirs.epsilon_one_run(0.05, delta, threshold_strategy=at)
    assert epsilon_lower_bound(ours, delta, 0.05) == pytest.approx(expected, abs=1e-6, rel=0)
    curve = theirs.epsilon_one_run_fdp(0.05, delta, threshold_strategy=at)
    assert gaussian_lower_bound(ours, delta, 0.05) == pytest.approx(curve, abs=1e-6, rel=0)
