"""Degenerate numbers that were once ignored or caused a traceback: each has a stated result or is refused in one line.

The whole grid is in `tests/reliability/edges.py`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import called

import leakbench
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.types import Clock, Signal
from leakbench.defense.by_norm import member_norms, scale_by_norm, whole_norm
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.quantile import AdaptClip, ClipQuantile
from leakbench.defense.recipe import Defense
from leakbench.defense.sign import Sign
from leakbench.engine.rows import length
from leakbench.privacy.accountants import best
from leakbench.privacy.bounds import reconstruction_robustness
from leakbench.privacy.compositions import advanced, basic, zcdp
from leakbench.privacy.mechanism import Mechanism

CLOCK = Clock(0, 0, 1, 1)


def signal(value: float) -> Signal:
    """Return one lane of two members: the first is `value` throughout, over two tensors of 8 and 4 coordinates; the second is 1."""
    grads = {"a": torch.ones(1, 2, 2, 4), "b": torch.ones(1, 2, 4)}
    for g in grads.values():
        g[:, 0] = value
    return Signal(grads)


@pytest.mark.parametrize("value", [1e20, 1e25, 1e35])
@pytest.mark.parametrize("part", [ClipWhole(1.0), ClipLayers(1.0), ClipQuantile(1.0)])
def test_a_gradient_whose_square_overflows_is_clipped(part: Any, value: float) -> None:
    """Its direction stays; the lengths of others are bit-identical."""
    after = part(signal(value), CLOCK, None)
    plain = part(signal(1.0), CLOCK, None)
    for name in ("a", "b"):
        torch.testing.assert_close(after.grads[name][:, 0], plain.grads[name][:, 0])
        assert torch.equal(after.grads[name][:, 1], plain.grads[name][:, 1])


def test_lengths_are_those_of_torch_where_they_are_finite() -> None:
    vectors = torch.randn(3, 5, 100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(length(vectors, 2), vectors.norm(dim=2))
    assert length(torch.full((2, 4), 1e30), 1).tolist() == pytest.approx([2e30, 2e30])
    assert length(torch.tensor([[math.inf, 1.0], [math.nan, 1.0]]), 1).isfinite().tolist() == [False, False]
    assert float(whole_norm(member_norms(signal(1e30)))[0, 0]) == pytest.approx(12**0.5 * 1e30)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_infinite_members_count_as_zero_and_change_no_other_member(value: float) -> None:
    after = scale_by_norm(ClipWhole(1.0), signal(value), CLOCK)
    assert (after.grads["a"][:, 0] == 0).all() and after.zeroed["update"].tolist() == [1]
    assert torch.equal(after.grads["a"][:, 1], scale_by_norm(ClipWhole(1.0), signal(1.0), CLOCK).grads["a"][:, 1])


@pytest.mark.parametrize("norm", [1e-16, 1e-30])
def test_a_bound_below_what_single_precision_can_square_is_refused(norm: float) -> None:
    """A gradient of 1e-25 in each coordinate had no length in single precision, and passed a clip at 1e-30 unchanged."""
    with pytest.raises(InputError, match="norm: value error, expected at least 1e-15"):
        construct(ClipWhole, {"norm": norm})


def test_the_signs_of_a_member_with_nan_are_zero() -> None:
    after = Sign()(signal(math.nan), CLOCK, None)
    assert (after.grads["a"][:, 0] == 0).all() and (after.grads["a"][:, 1] == 1).all()


def test_an_adaptive_bound_stays_in_the_range_of_clips() -> None:
    for value, bound in ((1.0, 1e-15), (100.0, 1e30)):
        counted = ClipQuantile(2.0 if value == 1 else 1.0)(Signal({"a": torch.full((1, 2, 1), value)}), CLOCK, None)
        after = AdaptClip(target=0.5, learning_rate=1e30)(counted, Clock(0, 0, 1, 1, cohort=2), None)
        assert after.memory["clip_bound"].tolist() == [[pytest.approx(bound)]]


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ({"l2_max_released": {"floor": 10.0, "ceiling": 1.0}}, r"floor: got 10, expected at most the ceiling \(1\)"),
        ({"clip_whole": {"norm": 1e-20}}, "clip_whole: norm: .* at least 1e-15"),
    ],
)
def test_recipes_that_contradict_themselves_are_refused(step: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        construct(Defense, {"title": "t", "cite": "c", "unit": "example", "example": [step]})


@pytest.mark.parametrize("compose", [basic, advanced, zcdp])
def test_zero_steps_without_noise_cost_nothing(compose: Any) -> None:
    assert compose((Mechanism(0.0, 0.5, 0),), 1e-5) == 0.0
    assert compose((Mechanism(0.0, 0.5, 1),), 1e-5) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "rate", "steps", "sampling"),
    [(1e-3, 1e-6, 1, "poisson"), (1.0, 1e-9, 1, "fixed"), (3e-3, 1e-6, 1, "poisson"), (1e9, 0.01, 10**6, "poisson")],
)
def test_little_noise_or_few_draws_do_not_fill_the_memory(
    sigma: float, rate: float, steps: int, sampling: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These asked for terabytes of losses, or for so many that the system killed the process; below `rate` nothing is revealed."""
    kappas = [0.0, 0.001, 0.5, 1.0]
    gammas = reconstruction_robustness(kappas, (Mechanism(sigma, rate, steps, sampling),))
    assert gammas.tolist() == pytest.approx(kappas, abs=2 * rate + 1e-6) and (gammas >= kappas).all()
    epsilon, _ = best((Mechanism(sigma, rate, steps, sampling),), 1e-5)
    assert epsilon == pytest.approx(0.0, abs=1e-6)


SMALL = [
    *("--dataset", "digits", "--victims", "2", "--train-rounds", "1", "--clients", "2", "--clients-per-round", "1"),
    *("--local-iterations", "1", "--batch", "2", "--candidates", "10", "--quiet", "--taps", "type-1"),
]


@pytest.mark.parametrize("rate", ["1e-45", "1e31"])
def test_a_learning_rate_beyond_single_precision_is_refused(
    rate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = called(monkeypatch, capsys, "run", *SMALL, "--learning-rate", rate, "--out", str(tmp_path / "r"))
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert (
        said
        == f"leakbench: learning-rate: got {float(rate)}, expected a number from 1e-30 to 1e30, as single precision holds\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["spear", "cpl", "fishing_feature", "quantile_rows"])
def test_diverged_training_is_reported_and_not_called_a_failed_attack(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before, the table reported that the attack had failed; SPEAR ended with LAPACK's error."""
    options = ("--learning-rate", "1e30", "--protocol", "live", "--leak-rounds", "last", "--attack", attack)
    code, out, _ = called(monkeypatch, capsys, "run", *SMALL, *options, "--out", str(tmp_path / "r"))
    assert code == 0
    said = " ".join(out.split())
    assert "warning: training diverged: from round 1 of 1 on the model's answers are not finite" in said
    assert "the leak of 2 of 2 victims, or the network that they received, is not finite" in said


def test_noise_beyond_single_precision_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "loud.yaml"
    recipe.write_text(
        "title: t\ncite: c\nunit: example\nexample: [{clip_whole: {norm: 1e10}}, {gaussian_noise: {multiplier: 1e29, to: sum}}]\n"
    )
    code, _, said = called(monkeypatch, capsys, "run", *SMALL, "--defense", str(recipe), "--out", str(tmp_path / "r"))
    assert code == 2 and not (tmp_path / "r").exists()
    assert said.startswith("leakbench: defense: at the example station, its noise has a standard deviation of 1e+39")


def small() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4))
    return model, {n: torch.ones_like(p) for n, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"learning_rate": 1e-40}, "learning-rate: got 1e-40, expected 1e-30 to 1e30"),
        ({"learning_rate": 1e-30, "scale": 1e20}, "update: '1.weight' over the learning rate is not finite"),
        ({"truth": math.nan}, "truth: inputs have numbers that are not finite"),
    ],
)
def test_external_updates_that_are_not_finite_are_refused(given: dict[str, float], says: str) -> None:
    model, update = small()
    update = {n: u * given.get("scale", 1.0) for n, u in update.items()}
    truth = (torch.full((1, 1, 1, 4, 4), given.get("truth", 0.5)), torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(InputError, match=says):
        leakbench.attack_update(
            model,
            update,
            shape=(1, 4, 4),
            classes=4,
            truth=truth,
            attack="cpl",
            learning_rate=given.get("learning_rate"),
        )
