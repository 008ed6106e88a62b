"""The text that an audit of a function prints, and the limits of what it takes for rounding."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from leakbench.auditing.bounds import _thresholds
from leakbench.auditing.canary import BOUNDLESS, neighbours, pointed
from leakbench.auditing.coupled import strength
from leakbench.auditing.function import CallableRelease, load_callable
from leakbench.auditing.own import audit_callable
from leakbench.auditing.trials import drawn, executed
from leakbench.auditing.verdict import Audit
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.privacy.accountants import best
from leakbench.privacy.mechanism import Mechanism

Update = Mapping[str, Any]

SHAPES = {"weight": (20, 30), "bias": (400,)}
SCOPE = "all values are for one release of one client's update; valid as far as these checks see"


def audited(function: Callable[..., Any], takes: str = "seed", trials: int = 200, clip: float | None = None) -> Audit:
    return audit_callable(CallableRelease(function, takes), SHAPES, 0, 1e-5, trials, None, clip)  # type: ignore[arg-type]


def norm(update: Update) -> float:
    return float(np.sqrt(sum(np.square(g.astype(float)).sum() for g in update.values())))


def clipped(update: Update, bound: float) -> dict[str, Any]:
    return {n: g * min(1.0, bound / max(norm(update), 1e-30)) for n, g in update.items()}


def noised(update: Update, seed: int, deviation: float) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {n: g + rng.normal(0.0, deviation, g.shape) for n, g in update.items()}


def sound(update: Update, seed: int) -> dict[str, Any]:
    return noised(clipped(update, 0.5), seed, 1.0)


def test_report_of_a_sound_function():
    found = audited(sound, trials=100_000)
    low, valid = found.lower_bound_family, found.valid
    assert low is not None and valid is not None and found.lower_bound < low < valid
    assert found.reason == f"{low:.4g} audited in the Gaussian family, not more than the valid {valid:.4g}; {SCOPE}"


def test_report_of_noise_that_is_not_gaussian():
    def laplace(update: Update, seed: int) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        return {n: g + rng.laplace(0.0, 1.0, g.shape) for n, g in clipped(update, 1.0).items()}

    words = "the noise is not independent Gaussian noise"
    assert audited(laplace).reason == f"{words}; {words}; {SCOPE}"


def test_report_of_noise_that_depends_on_the_data():
    def follows(update: Update, seed: int) -> dict[str, Any]:
        return noised(clipped(update, 1.0), seed, 1.0 + min(1.0, norm(update)))

    found = "what the same noise adds differs between neighbouring inputs"
    assert audited(follows).reason == f"the noise depends on the data; {found}; {SCOPE}"


def test_report_of_noise_that_is_smaller_for_sparse_updates():
    def less(update: Update, seed: int) -> dict[str, Any]:
        bare = [not g.any() for g in update.values()]
        mostly = any(bare) and not all(bare) and norm(update) < 100
        return noised(clipped(update, 1.0), seed, 0.5 if mostly else 1.0)

    found = audited(less)
    assert (found.verdict, found.valid) == ("no guarantee", None)
    assert found.reason == f"the noise differs where an update is zero; {SCOPE}"


def test_report_without_noise():
    assert audited(lambda update, seed: clipped(update, 1.0)).reason == f"no noise; no noise was found; {SCOPE}"


def test_report_without_a_clip():
    found = audited(lambda update, seed: noised(update, seed, 1.0))
    assert found.reason == f"no clip; no clip: a larger canary moves the release farther without end; {SCOPE}"


def test_report_of_a_violated_claim():
    found = audit_callable(CallableRelease(unclipped, "seed"), SHAPES, 0, 1e-5, 1000, 1.0, None)
    low, claim = f"{found.lower_bound:.4g}", f"{found.claimed:.4g}"
    said = found.reason.removeprefix("no clip; ")
    assert said.startswith(
        f"{low} audited, {'more' if found.lower_bound > float(claim) else 'not more'} than the claimed"
    )


def unclipped(update: Update, seed: int) -> dict[str, Any]:
    return noised(update, seed, 1.0)


def test_without_a_seed_the_stated_clip_counts_and_not_the_measured_one():
    """A measured bound of 2 under a stated bound of 4: half of the noise multiplier."""
    source = np.random.default_rng(0)

    def loose(update: Update) -> dict[str, Any]:
        return {n: g + source.normal(0.0, 2.0, g.shape) for n, g in clipped(update, 2.0).items()}

    found = audited(loose, "none", clip=4.0)
    assert found.sigma_measured == pytest.approx(1.0, rel=0.2)
    assert found.valid == pytest.approx(best((Mechanism(0.5, 1.0, 1),), 1e-5)[0], rel=0.1)


def test_a_less_noisy_world_with_the_canary_still_scores_higher():
    def quieter(update: Update, seed: int) -> dict[str, Any]:
        return noised(update, seed, 1.0 if norm(update) > 0 else 2.0)

    pair = neighbours(SHAPES, 1, (1e-3,), generator(0, "test"))
    scores = executed(CallableRelease(quieter, "seed"), pair, 100)
    assert scores.present.min() > scores.absent.max()


@pytest.mark.parametrize("name", ["rng", "generator"])
def test_a_generator_parameter_is_recognised_by_its_name(name: str, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"told_by_{name}.py").write_text(f"def sound(update, {name}):\n    return update\n")
    assert load_callable(f"told_by_{name}:sound", str(tmp_path)).takes == "generator"


def test_the_pair_with_equal_noise_has_the_largest_bounded_move():
    from leakbench.auditing.coupled import check  # noqa: PLC0415

    def a_little_looser(update: Update, seed: int) -> dict[str, Any]:
        return noised(clipped(update, 0.5 if norm(update) < BOUNDLESS / 10 else 0.504), seed, 1.0)

    found = check(CallableRelease(a_little_looser, "seed"), SHAPES, generator(0, "test"))
    told = float(torch.cat([g.flatten() for g in found.telling.present.values()]).double().norm())
    assert found.clip_holds and 1.0 <= told < BOUNDLESS / 10


def test_a_seed_parameter_is_recognised_by_a_string_annotation(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "told_by_text.py").write_text(
        "from __future__ import annotations\n\ndef sound(update, number: int):\n    return update\n"
    )
    assert load_callable("told_by_text:sound", str(tmp_path)).takes == "seed"


def test_rounding_of_large_values_is_not_taken_for_noise():
    """For values of 1e7, .001 is rounding: two releases of the same seed may differ by it."""
    calls = iter(range(10**9))

    def rounded(update: Update, seed: int) -> dict[str, Any]:
        lost = (next(calls) % 2) * 1e-3
        return {n: g + lost for n, g in noised(clipped(update, 1e6), seed, 1e7).items()}

    assert audited(rounded).clip_holds


def test_a_clip_that_loosens_by_less_than_rounding_holds():
    """A bound of .5, or of .6 for huge values, with noise of 1e5, for which .1 is rounding."""

    def loosened(update: Update, seed: int) -> dict[str, Any]:
        return noised(clipped(update, 0.5 if norm(update) < 1e8 else 0.6), seed, 1e5)

    found = audited(loosened)
    assert found.clip_holds and found.noise_data_independent


def test_noise_alone_that_an_update_does_not_move_is_infinitely_strong():
    """A release that ignores its update: nothing moves, at any noise."""

    def silent(update: Update, seed: int) -> dict[str, Any]:
        return noised({n: np.zeros_like(g) for n, g in update.items()}, seed, 1.0)

    found = audited(silent)
    assert (found.noise_data_independent, found.clip_holds) == (True, True)
    pair = neighbours(SHAPES, 1, (1.0,), generator(0, "test")).at(0)
    assert strength(CallableRelease(silent, "seed"), pair) == math.inf


def test_visible_uses_are_scored_by_the_likelihood_ratio():
    """For n uses at sigma = 1 its mean is n / 2 with the canary and -n / 2 without it."""
    found = drawn(Mechanism(1.0, 0.5, 4, "visible"), 20_000, generator(3, "test"))
    assert (found.present.mean(), found.absent.mean()) == (pytest.approx(1.0, abs=0.1), pytest.approx(-1.0, abs=0.1))


def test_thresholds_of_few_trials_begin_at_a_tenth():
    few = np.arange(21.0)
    assert _thresholds(few, few).max() == 18.0 == np.quantile(few, 0.9)


def test_canaries_of_signs_come_with_their_opposites():
    one, other, up, down, single = pointed({"a": (3, 4), "b": (5,)}, 2.0, generator(0, "test"))
    for n in ("a", "b"):
        assert torch.equal(one.present[n], -other.present[n]) and torch.equal(up.present[n], -down.present[n])
        assert (one.present[n].abs() == 2).all() and (up.present[n] == 2).all()
        assert single.present[n].sum() == 2 == single.present[n].max()


def test_closed_form_draws_depend_only_on_the_generator():
    def scores() -> Any:
        found = drawn(Mechanism(1.0, 0.5, 4), 50, generator(3, "test"))
        return np.concatenate([found.present, found.absent])

    torch.manual_seed(1)
    first = scores()
    torch.manual_seed(2)
    assert (scores() == first).all()


def test_an_unbounded_canary_makes_the_noise_negligible():
    """A clip by the mean absolute coordinate: one large coordinate among many zeros passes it at any size."""

    def by_mean(update: Update, seed: int) -> dict[str, Any]:
        size = np.mean([np.abs(g).mean() for g in update.values()])
        passes = max(np.abs(g).max() for g in update.values()) > 100 * size
        return noised(update if passes else clipped(update, 0.5), seed, 1.0)

    found = audited(by_mean)
    assert (found.noise_data_independent, found.clip_holds, found.sigma_measured) == (True, False, 0.0)


def test_unseeded_data_dependent_noise_is_found_by_the_canary_that_changes_it_most():
    rng = np.random.default_rng(0)

    def following(update: Update) -> dict[str, Any]:
        return {n: g + rng.normal(0.0, 1.0 + norm(update), g.shape) for n, g in clipped(update, 0.5).items()}

    found = audited(following, "none")
    assert not found.noise_data_independent and found.verdict == "no guarantee"
    assert found.sigma_measured is None and found.lower_bound > 1


@pytest.mark.filterwarnings("error")
def test_division_by_zero_in_a_function_prints_no_warning():
    def dividing(update: Update, seed: int) -> dict[str, Any]:
        np.float64(1.0) / np.zeros(1)
        return noised(clipped(update, 0.5), seed, 1.0)

    assert audited(dividing).clip_holds


def test_a_function_without_a_signature_gets_only_the_update(tmp_path):
    found = load_callable("builtins:dict", str(tmp_path))
    assert (found.takes, found.keyword) == ("none", "")


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ("*updates", True),
        ("update", True),
        ("update, other=3", True),
        ("", False),
        ("*, update", False),
        ("*, seed", False),
        ("a, b, c", False),
    ],
)
def test_the_update_is_passed_by_position(arguments: str, taken: bool, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    name = f"placed_{abs(hash(arguments))}"
    (tmp_path / f"{name}.py").write_text(f"def sound({arguments}):\n    return {{}}\n")
    if taken:
        assert load_callable(f"{name}:sound", str(tmp_path)).takes == "none"
    else:
        with pytest.raises(InputError, match=r"expected \(update\) or \(update, seed\)"):
            load_callable(f"{name}:sound", str(tmp_path))


def test_an_epsilon_that_is_equal_to_the_claim_does_not_exceed_it():
    from leakbench.auditing.verdict import Stated, _verdict  # noqa: PLC0415

    assert _verdict(0.0, "audited", Stated(None, 0.0, "", ""))[0] == "holds"
    assert _verdict(1.0, "audited", Stated(1.0, 1.0, "", ""))[0] == "holds"
    assert _verdict(1.1, "audited", Stated(1.0, 1.1, "", "")) == (
        "violated",
        "1.1 audited, more than the claimed 1; the valid 1.1 is not violated",
    )
    assert _verdict(1.2, "audited", Stated(1.0, 1.1, "", "")) == (
        "violated",
        "1.2 audited, more than the valid 1.1",
    )
