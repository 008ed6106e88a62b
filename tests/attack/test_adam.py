"""The batched Adam against `torch.optim.Adam` and `MultiStepLR`, victim by victim and step by step."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakbench.attack.search.adam import AdamState
from leakbench.attack.slots.descent import DESCENT, AdamDescent, Terms, descend
from leakbench.attack.slots.stop import Iterations
from leakbench.cli import main
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct

INPUTS, SIZE, VICTIMS = 5, 7, 4


def rugged(points: Tensor, shift: Tensor) -> Tensor:
    """A non-convex function (v, d) -> (v,), another one for each victim."""
    x = points - shift
    return (x.square() * torch.linspace(0.5, 4, x.shape[1], dtype=x.dtype)).sum(1) + (3 * x).sin().sum(1)


def boxed(points: Tensor) -> Tensor:
    return torch.cat([points[:, :INPUTS].clamp(0, 1), points[:, INPUTS:]], 1)


def problem(seed: int) -> tuple[Tensor, Tensor]:
    """Starts and shifts (V, d)."""
    rng = torch.Generator().manual_seed(seed)
    start = torch.randn(VICTIMS, SIZE, generator=rng, dtype=torch.float64) * torch.arange(1, VICTIMS + 1)[:, None]
    return start, torch.randn(VICTIMS, SIZE, generator=rng, dtype=torch.float64)


def objective_of(shift: Tensor) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    def objective(points: Tensor, lanes: Tensor) -> tuple[Tensor, Tensor]:
        leaf = points.clone().requires_grad_()
        values = rugged(leaf, shift[lanes])
        return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]

    return objective


def slow_reference(
    start: Tensor, shift: Tensor, limit: int, signed: bool, box: bool
) -> tuple[list[float], list[Tensor]]:
    """Inverting Gradients' loop for one victim: the value before and the point after each step."""
    x, rest = start[:INPUTS].clone().requires_grad_(), start[INPUTS:].clone().requires_grad_()
    optimiser = torch.optim.Adam([x, rest], lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [limit * k // 8 for k in (3, 5, 7)], gamma=0.1)
    values, points = [], []
    for _ in range(limit):
        optimiser.zero_grad()
        value = rugged(torch.cat([x, rest])[None], shift[None])[0]
        value.backward()
        if signed and x.grad is not None:
            x.grad.sign_()
        optimiser.step()
        schedule.step()
        if box:
            x.data = x.data.clamp(0, 1)
        values.append(float(value.detach()))
        points.append(torch.cat([x, rest]).detach().clone())
    return values, points


@pytest.mark.slow
@given(st.integers(0, 1000), st.sampled_from([8, 21]), st.booleans(), st.booleans())
@settings(max_examples=12, deadline=None)
def test_every_victim_follows_torch(seed: int, limit: int, signed: bool, box: bool) -> None:
    """Different functions, starts and ends: the same value before and the same point after every step."""
    start, shift = problem(seed)
    search = AdamDescent(signed=signed, box=box)(start, Terms(limit, INPUTS, boxed))
    slow = [slow_reference(start[v], shift[v], limit, signed, box) for v in range(VICTIMS)]
    for step in range(limit):
        values = search.step(objective_of(shift))
        expected = torch.tensor([of[0][step] for of in slow], dtype=torch.float64)
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(search.points, torch.stack([of[1][step] for of in slow]), rtol=1e-9, atol=1e-9)
        if box:
            assert search.points[:, :INPUTS].min() >= 0
            assert search.points[:, :INPUTS].max() <= 1
    assert search.evaluations.tolist() == [limit] * VICTIMS
    assert not search.settled.any()


def test_the_rate_falls_at_shares_of_the_limit() -> None:
    """16 steps give 6, 4, 4 and 2; another limit moves them; without milestones the rate is constant."""
    start, _ = problem(0)
    search = AdamDescent(learning_rate=1.0)(start, Terms(16, INPUTS, boxed))
    assert isinstance(search, AdamState)
    assert search.rates == pytest.approx([1.0] * 6 + [0.1] * 4 + [0.01] * 4 + [0.001] * 2)
    long = AdamDescent(learning_rate=1.0)(start, Terms(24_000, INPUTS, boxed))
    assert isinstance(long, AdamState)
    assert [long.rates.count(rate) for rate in sorted(set(long.rates), reverse=True)] == [9000, 6000, 6000, 3000]
    flat = AdamDescent(learning_rate=1.0, milestones=())(start, Terms(16, INPUTS, boxed))
    assert isinstance(flat, AdamState)
    assert set(flat.rates) == {1.0}


def test_a_signed_step_has_one_length() -> None:
    """The first signed step is the learning rate in every coordinate of the inputs, for gradients of any size."""
    start, shift = problem(1)
    search = AdamDescent(signed=True, learning_rate=0.25)(start, Terms(8, INPUTS, boxed))
    search.step(objective_of(shift * 1000))
    torch.testing.assert_close((search.points - start)[:, :INPUTS].abs(), torch.full((VICTIMS, INPUTS), 0.25).double())


def test_finished_victims_leave_without_changing_the_others() -> None:
    start, shift = problem(2)
    stayed = torch.tensor([1, 3])
    together, alone = (AdamDescent()(some, Terms(20, INPUTS, boxed)) for some in (start, start[stayed]))
    for _ in range(5):
        together.step(objective_of(shift))
        alone.step(objective_of(shift[stayed]))
    together.keep(stayed)
    for _ in range(5):
        together.step(objective_of(shift[stayed]))
        alone.step(objective_of(shift[stayed]))
    assert torch.equal(together.points, alone.points)
    assert torch.equal(together.evaluations, alone.evaluations)


def test_the_loop_counts_steps_and_the_last_evaluation() -> None:
    """The end point of a search is evaluated again: one evaluation more than steps."""
    start, shift = problem(3)
    found = descend(AdamDescent()(start, Terms(9, INPUTS, boxed)), objective_of(shift), Iterations(limit=9))
    assert found.steps.tolist() == [9] * VICTIMS
    assert found.evaluations.tolist() == [10] * VICTIMS
    assert (found.value <= found.trajectory.amin(0)).all()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", 0),
        ("milestones", [1.5]),
        ("factor", -1),
        ("decay", [0.9, 1.0]),
        ("signed", "yes"),
        ("rate", 1),
    ],
)
def test_wrong_input_is_refused(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field):
        construct(DESCENT.parts["adam"], {field: value})


def test_a_user_defined_adam_recipe_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Joint labels, the box and the sign from the command line, on a table and on small pictures."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "title: mine\ncite: me\nmethod:\n  gradient_matching:\n    labels: joint\n    start: uniform\n"
        "    distance: cosine\n    priors: [{total_variation: {weight: 1.0e-4}}]\n"
        "    descent: {adam: {signed: true, box: true, milestones: [0.5]}}\n"
    )
    for dataset in ("digits", "cancer"):
        out = tmp_path / dataset
        line = f"leakbench run --quiet --dataset {dataset} --attack {recipe} --iterations 3 --victims 2 --candidates 9"
        monkeypatch.setattr("sys.argv", [*line.split(), *f"--taps type-1 --train-rounds 0 --out {out}".split()])
        main()
        assert "type-1" in capsys.readouterr().out
