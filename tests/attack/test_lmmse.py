"""The linear estimate: the posterior mean for Gaussian data, and ridge regression in its dual form for all other data."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.learn.linear_map import linear_map
from leakbench.attack.learn.ridge import SHARES, leave_one_out
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.methods.lmmse import Lmmse, LmmseStart
from leakbench.attack.public import FEW, public_of
from leakbench.attack.public_gradients import flat
from leakbench.cell import Request, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.defense.clip import ClipWhole
from leakbench.defense.transform import Stations
from leakbench.execute import _sent, hand_out
from leakbench.experiment.victims import draw_victims, public_examples, view_of
from leakbench.federated.view import Public, View
from leakbench.models import one_hot, parameters


class Seen(nn.Module):
    """Logits W (B x) at W = 0 of two classes: with label 0 the gradient is (-B x / 2, B x / 2), linear in x."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.register_buffer("matrix", matrix)
        self.weight = nn.Parameter(matrix.new_zeros(2, len(matrix)))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.matrix.T @ self.weight.T


def seen(
    model: nn.Module, x: Tensor, labels: Tensor, public: Public, noise: float | None = None, seed: int = 0
) -> View:
    """Return a view of victims x (V, d), with noise of that deviation on the leak."""
    network = Network(model, parameters(model))
    view = View(
        "type-1", network, {}, 1, tuple(x.shape[1:]), 1 + int(public.labels.max().clamp_min(1)), 0.1, public=public
    )
    leaked = view.respond(x[:, None], one_hot(labels, view.classes).to(x)[:, None])
    rng = generator(seed, "noise")
    noisy = {n: u + (noise or 0) * torch.randn(u.shape, generator=rng, dtype=u.dtype) for n, u in leaked.items()}
    return dataclasses.replace(view, update={n: u.detach() for n, u in noisy.items()}, noise=noise)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=generator(seed, "random", *shape), dtype=torch.float64)


def small(seed: int = 0, noise: float | None = 0.05, count: int = 20) -> View:
    """Return five victims and `count` public examples of a network of two layers, in float64."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_(random(*weights.shape, seed=seed))
    x = torch.rand(count + 5, 6, generator=generator(seed, "x"), dtype=torch.float64)
    y = torch.randint(3, (count + 5,), generator=generator(seed, "y"))
    y[5], y[6], y[7] = 0, 1, 2
    return seen(model, x[:5], y[:5], Public(x[5:], y[5:]), noise, seed)


def gradients(view: View, some: Public) -> list[Tensor]:
    """Return {tensor: gradients (n, size)}, one example at a time."""
    found = []
    for x, y in zip(some.inputs, some.labels, strict=True):
        held = {n: p.clone().requires_grad_() for n, p in view.network.parameters.items()}
        loss = nn.functional.cross_entropy(torch.func.functional_call(view.network.model, held, (x,)), y)
        found.append([g.flatten() for g in torch.autograd.grad(loss, list(held.values()))])
    return [torch.stack(tensors) for tensors in zip(*found, strict=True)]


def estimate(view: View, ridge: float | None = None) -> Tensor:
    assert view.public is not None
    return linear_map((view,), view.public, ridge)((flat(view.update),))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), noise=st.floats(0.01, 10))
def test_it_equals_ridge_regression_on_gradients(seed: int, noise: float) -> None:
    """(A^T A + n s^2 I)^-1 A^T X over coordinates, where the code solves (A A^T + n s^2 I)^-1 over examples."""
    view = small(seed, noise)
    assert view.public is not None
    a, x = torch.cat(gradients(view, view.public), 1).numpy(), view.public.inputs.numpy()
    centred, mean = a - a.mean(0), x.mean(0)
    slope = np.linalg.solve(centred.T @ centred + 20 * noise**2 * np.eye(a.shape[1]), centred.T @ (x - mean))
    expected = mean + (flat(view.update).numpy() - a.mean(0)) @ slope
    np.testing.assert_allclose(estimate(view).numpy(), expected, rtol=1e-7, atol=1e-9)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), ridge=st.floats(1e-5, 1e-1))
def test_without_noise_every_tensor_has_equal_weight(seed: int, ridge: float) -> None:
    """Each tensor's centred gradients at a root mean square of 1, the ridge a share of the mean of |a_i|^2."""
    view = small(seed, None)
    assert view.public is not None
    sent = np.split(flat(view.update).numpy(), np.cumsum([p.numel() for p in view.network.parameters.values()])[:-1], 1)
    left, right = [], []
    for tensor, observed in zip(gradients(view, view.public), sent, strict=True):
        centred = tensor.numpy() - tensor.numpy().mean(0)
        size = np.sqrt(np.mean(centred**2))
        left.append(centred / size)
        right.append((observed - tensor.numpy().mean(0)) / size)
    a, y = np.hstack(left), np.hstack(right)
    x, mean = view.public.inputs.numpy(), view.public.inputs.numpy().mean(0)
    added = ridge * np.mean(np.sum(a**2, 1))
    expected = mean + y @ np.linalg.solve(a.T @ a + added * np.eye(a.shape[1]), a.T @ (x - mean))
    np.testing.assert_allclose(estimate(view, ridge).numpy(), expected, rtol=1e-5, atol=1e-7)


def gaussian(noise: float | None, rows: int = 3) -> tuple[View, Tensor, Tensor, Tensor, Tensor]:
    """Return (view, G, m, S, x): 200 victims x from N(m, S) that leak G x + noise; 60 public examples with exactly that m and S."""
    matrix, root, mean = random(rows, 5, seed=1), random(5, 5, seed=2), random(5, seed=3)
    z = random(60, 5, seed=4)
    z = z - z.mean(0)
    z = z @ torch.linalg.inv(torch.linalg.cholesky(z.T @ z / 60)).T
    x = mean + random(200, 5, seed=5) @ root.T
    zeros = torch.zeros(200, dtype=torch.int64)
    view = seen(Seen(matrix), x, zeros, Public(mean + z @ root.T, zeros[:60]), noise)
    return view, torch.cat([-matrix / 2, matrix / 2]), mean, root @ root.T, x


@pytest.mark.parametrize(("noise", "wrong"), [(0.01, (0.3,)), (0.3, (0.01, 9.0)), (5.0, (0.1, 150.0))])
def test_for_gaussian_data_it_is_the_posterior_mean(noise: float, wrong: tuple[float, ...]) -> None:
    """E[x | y] = m + S G^T (G S G^T + s^2 I)^-1 (y - G m), the optimum; a wrong noise does worse."""
    view, g, mean, covariance, x = gaussian(noise)
    y = flat(view.update)
    gain = covariance @ g.T @ torch.linalg.inv(g @ covariance @ g.T + noise**2 * torch.eye(len(g)).double())
    torch.testing.assert_close(estimate(view), mean + (y - mean @ g.T) @ gain.T)
    best = (estimate(view) - x).square().mean()
    expected = (covariance - gain @ g @ covariance).trace() / 5
    assert float(best) == pytest.approx(float(expected), rel=0.35)
    for told in wrong:
        assert best < (estimate(dataclasses.replace(view, noise=told)) - x).square().mean()


def test_without_noise_an_invertible_map_is_inverted() -> None:
    view, *_, x = gaussian(None, rows=5)
    torch.testing.assert_close(estimate(view, 1e-12), x, rtol=0, atol=1e-4)
    torch.testing.assert_close(estimate(view), x, rtol=0, atol=1e-2)


@pytest.mark.parametrize("seed", (0, 1, 5, 8))
def test_the_ridge_minimises_the_leave_one_out_error(seed: int) -> None:
    """Refitted without each of them in turn, including means, over all candidate ridges; with eight examples,
    for which each example's effect on the means matters too.
    """
    a, slope = random(8, 9, seed=seed) * 10.0 ** -torch.arange(9), random(9, 3, seed=seed + 10)
    x = a @ slope + 0.03 * random(8, 3, seed=seed + 20)
    errors = {}
    for share in SHARES:
        ridge = share * float((a - a.mean(0)).square().sum(1).mean())
        error = 0.0
        for i in range(8):
            rest = [j for j in range(8) if j != i]
            away, mean = a[rest] - a[rest].mean(0), x[rest].mean(0)
            slope = torch.linalg.solve(away.T @ away + ridge * torch.eye(9).double(), away.T @ (x[rest] - mean))
            error += float((x[i] - mean - (a[i] - a[rest].mean(0)) @ slope).square().sum())
        errors[ridge] = error
    best = min(errors, key=errors.__getitem__)
    assert min(errors) < best < max(errors)
    assert leave_one_out(a @ a.T, x) == pytest.approx(best)


def test_the_first_examples_decide_the_ridge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakbench.attack.learn.ridge.FEW", 30)
    a, x = random(50, 4), random(50, 2)
    assert leave_one_out(a @ a.T, x) == pytest.approx(leave_one_out(a[:30] @ a[:30].T, x[:30]))
    assert leave_one_out(a @ a.T, x) != pytest.approx(leave_one_out(a[20:] @ a[20:].T, x[20:]))


@pytest.mark.parametrize("noise", [0.1, None])
def test_observations_add_up(noise: float | None) -> None:
    """Two observations with noise s of one gradient equal one with s / sqrt(2) of their mean.

    Without noise the second adds nothing.
    """
    first, second = small(noise=noise), small(noise=noise)
    second = dataclasses.replace(second, update={n: u + 0.1 * random(*u.shape) for n, u in first.update.items()})
    mean = {n: (u + second.update[n]) / 2 for n, u in first.update.items()}
    once = dataclasses.replace(first, update=mean, noise=None if noise is None else noise / 2**0.5)
    assert first.public is not None
    both = linear_map((first, second), first.public)((flat(first.update), flat(second.update)))
    torch.testing.assert_close(both, estimate(once), rtol=1e-6, atol=1e-8)


def test_the_fit_does_not_read_the_leak() -> None:
    view = small()
    alone = {n: u[2:3] for n, u in view.update.items()}
    among, by_itself = Lmmse()((view,), ()), Lmmse()((dataclasses.replace(view, update=alone),), ())
    torch.testing.assert_close(by_itself.inputs, among.inputs[2:3])
    assert among.fit is not None
    assert among.fit.public == 20
    assert among.fit.seconds > 0
    assert (among.steps.tolist(), among.evaluations.tolist(), among.snapshots) == ([1] * 5, [1] * 5, (1,))


def test_the_deterministic_part_of_a_known_defense_runs_on_public_gradients() -> None:
    """Gradients are clipped to a length of 1/100, in the units of the leak."""
    stations = Stations(example=(ClipWhole(0.01),))
    aware = dataclasses.replace(small(noise=1e-4), stations=stations)
    assert aware.public is not None
    [side] = linear_map((aware,), aware.public).sides
    lengths = (side.centred / side.scale + side.mean).norm(dim=1)
    torch.testing.assert_close(lengths, torch.full_like(lengths, 0.01))


def test_a_diverged_model_gives_no_answer() -> None:
    view = small()
    view.network.parameters["0.weight"][:] = torch.nan
    assert Lmmse()((view,), ()).inputs.isnan().all()


def test_public_gradients_that_do_not_differ_leave_the_public_mean() -> None:
    view = small(noise=None)
    assert view.public is not None
    one = Public(view.public.inputs[:1], view.public.labels[:1])
    answer = estimate(dataclasses.replace(view, public=one))
    torch.testing.assert_close(answer, one.inputs.expand(5, -1))


def test_unsuitable_inputs_are_refused() -> None:
    view = small()
    for other, said in (
        (dataclasses.replace(view, batch=2), "reads what one example leaks, got 2"),
        (dataclasses.replace(view, local_steps=3), "got 3 together"),
        (dataclasses.replace(view, public=None), "public"),
        (
            dataclasses.replace(
                view, network=view.network.moved({n: torch.zeros_like(u) for n, u in view.update.items()}, 1.0)
            ),
            "got a different network for each victim",
        ),
    ):
        for method in (lambda v: Lmmse()((v,), ()), lambda v: LmmseStart()(v, ())):
            with pytest.raises(InputError, match=said) as error:
                method(other)
            assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="some of the joined rounds are noisy"):
        Lmmse()((view, dataclasses.replace(view, noise=None)), ())
    large = Network(nn.Identity(), {"w": torch.zeros(1).expand(200_000_000)})
    with pytest.raises(InputError, match="20 public gradients take 16 GB, expected at most 8"):
        Lmmse()((dataclasses.replace(view, network=large),), ())
    for fields, word in (
        ({"public": 0}, "public"),
        ({"ridge": 0.0}, "ridge"),
        ({"noise": 1.0}, "unknown field 'noise'"),
    ):
        with pytest.raises(InputError, match=word):
            construct(Attack, {"title": "a", "cite": "b", "method": {"lmmse": fields}})


def digits(attack: str = "lmmse") -> View:
    cell = resolve_cell(Request(dataset="digits", attack=attack, taps=("type-2",), victims=3), None)
    victims = draw_victims(cell, "type-2", 0, hand_out(cell))
    return view_of(cell, "type-2", 0, victims, torch.arange(3), _sent(cell, None, None))  # type: ignore[arg-type]


def test_more_public_examples_do_not_change_attacks_that_read_few() -> None:
    """The first 256 are those that every other attack gets."""
    few, more = digits("cpl").public, digits().public
    assert few is not None
    assert more is not None
    assert (len(few.labels), FEW) == (256, 256)
    assert len(more.labels) > 256
    read = public_of(digits(), "surrogate")
    assert torch.equal(read.inputs, few.inputs)
    assert torch.equal(read.labels, few.labels)
    cell = resolve_cell(Request(dataset="digits", attack="lmmse", taps=("type-2",), victims=3), None)
    assert torch.equal(public_examples(cell).inputs, few.inputs)


def test_the_start_is_the_same_estimate_and_closer_than_the_public_mean() -> None:
    fields = {"labels": "last_layer", "start": "lmmse", "distance": "squared_l2", "descent": "lbfgs"}
    near = construct(GradientMatching, {**fields, "stop": {"iterations": {"limit": 1}}})
    far = construct(GradientMatching, {**fields, "start": "public_mean", "stop": {"iterations": {"limit": 1}}})
    view = digits()
    rngs = tuple(generator(0, "v", v) for v in range(3))
    start = near.start(view, rngs)
    torch.testing.assert_close(start.clamp(0, 1), Lmmse()((view,), rngs).inputs)
    assert (near((view,), rngs).trajectory[0] < far((view,), rngs).trajectory[0]).all()


RUN = [
    "run",
    "--quiet",
    "--json",
    "--dataset",
    "digits",
    "--victims",
    "20",
    "--candidates",
    "30",
    "--networks",
    "1",
    "--train-rounds",
    "0",
]
NOISY = """
title: Noise of standard deviation .03
cite: none
unit: example
example: [{gaussian_noise: {multiplier: 0.03, to: each, uncalibrated: true}}]
claim: {none: {reason: noise without a clip}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("options", [("--taps", "type-2"), ("--taps", "type-2,type-0", "--leak-batch", "1")])
def test_from_the_command_line_it_beats_the_baseline(noisy, options, tmp_path, monkeypatch, capsys):
    recipe = tmp_path / "noisy.yaml"
    recipe.write_text(NOISY)
    defense = str(recipe) if noisy else "none"
    line = (*RUN, "--attack", "lmmse", "--defense", defense, *options, "--out", str(tmp_path / "run"))
    code, out, _ = called(monkeypatch, capsys, *line)
    assert code == 0
    for shown in json.loads(out)["taps"].values():
        assert shown["failures"] == 0
        assert shown["rmse"] < (0.95 if noisy else 0.6) * shown["null_rmse"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "reads what one example leaks, type-1 shows"),
        (("--taps", "global", "--leak-batch", "1"), "global shows"),
        (("--taps", "type-2", "--iterations", "3"), "does not search; leave out --iterations"),
    ],
)
def test_a_leak_of_several_is_refused_before_anything_runs(options, said, tmp_path, monkeypatch, capsys):
    line = (*RUN, "--attack", "lmmse", *options, "--out", str(tmp_path / "run"))
    code, out, err = called(monkeypatch, capsys, *line)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not (tmp_path / "run").exists()


def test_a_search_from_the_estimate_runs_from_the_command_line(tmp_path: Path, monkeypatch, capsys) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: mine\ncite: none\nknows: defense\nmethod:\n  gradient_matching:\n    labels: last_layer\n"
        "    start: {lmmse: {public: 300}}\n    distance: likelihood\n    descent: lbfgs\n    stop: {iterations: {limit: 2}}\n"
    )
    line = (
        *RUN,
        "--attack",
        str(path),
        "--defense",
        "noise_gaussian",
        "--taps",
        "type-2",
        "--out",
        str(tmp_path / "run"),
    )
    code, out, _ = called(monkeypatch, capsys, *line)
    assert code == 0
    assert json.loads(out)["taps"]["type-2"]["failures"] == 0
    code, _, err = called(monkeypatch, capsys, *line, "--taps", "type-1")
    assert code == 2
    assert "type-1 shows" in err


def test_observations_of_one_release_are_averaged() -> None:
    """With two observations the estimate is that of one with their mean and noise smaller by sqrt(2)."""
    first = small(noise=0.3)
    second = dataclasses.replace(first, update={name: u + 0.1 for name, u in first.update.items()})
    mean = dataclasses.replace(first, update={name: u + 0.05 for name, u in first.update.items()}, noise=0.3 / 2**0.5)
    both, one = (Lmmse()(views, ()).inputs for views in ((first, second), (mean,)))
    torch.testing.assert_close(both, one)
