"""Priors over batch normalisation, over a group of restarts and over length, against closed forms and slow sums."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.slots.batch_norm import BatchNormStatistics
from leakbench.attack.slots.consensus import GroupConsistency
from leakbench.attack.slots.priors import PRIOR, Length, TotalVariation
from leakbench.cli import main
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generators
from leakbench.core.types import Network
from leakbench.federated.view import Public, View
from leakbench.models import parameters


def network(victims: int | None = None) -> Network:
    """Return two layers of batch normalisation with uneven statistics; optionally with weights of their own for each victim."""
    torch.manual_seed(0)
    layers = (nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    model = nn.Sequential(*layers).double().eval()
    for norm in (layers[0], layers[2]):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    if victims is None:
        return Network(model, parameters(model))
    scales = torch.arange(1, victims + 1).double()
    held = {n: torch.stack([s * p for s in scales]) for n, p in parameters(model).items()}
    return Network(model, held, shared=False)


def view(of: Network, victims: int = 3) -> View:
    update = {n: torch.zeros(victims, *(p.shape if of.shared else p.shape[1:])) for n, p in of.parameters.items()}
    return View("type-1", of, update, 2, (2, 6, 6), 4, 0.1)


def of_one(model: nn.Module, held: dict[str, Tensor], x: Tensor, memory: dict[str, Tensor]) -> float:
    """Return the slow sum for one victim: layer by layer, channel by channel."""
    total, functional = 0.0, torch.func.functional_call
    for index, layer in enumerate(model):
        own = {n.split(".", 1)[1]: p for n, p in held.items() if n.startswith(f"{index}.")}
        if isinstance(layer, nn.BatchNorm2d):
            mean = memory.get(f"{index}.running_mean", layer.running_mean)
            apart = [
                (float(x[:, c].mean() - mean[c]), float(x[:, c].var(correction=0) - layer.running_var[c]))
                for c in range(x.shape[1])
            ]
            total += sum(m**2 for m, _ in apart) ** 0.5 + sum(v**2 for _, v in apart) ** 0.5
            own |= {"running_mean": mean, "running_var": layer.running_var}
        x = functional(layer, own, (x,))
    return total


@pytest.mark.parametrize("remembered", [False, True])
@pytest.mark.parametrize("shared", [True, False])
def test_batch_norm_sums_over_layers(shared: bool, remembered: bool) -> None:
    """Guesses for victims 2, 0, 2 of three equal the slow sum, with each victim's weights and with statistics that were sent."""
    of = network(None if shared else 3)
    if remembered:
        of = dataclasses.replace(of, memory={"2.running_mean": torch.tensor([3.0, -2.0, 0.5]).double()})
    x, victims = torch.rand(3, 2, 2, 6, 6, dtype=torch.float64), torch.tensor([2, 0, 2])
    found = BatchNormStatistics(weight=0.5)(x, view(of), victims)
    for lane, victim in enumerate(victims.tolist()):
        held = of.parameters if shared else {n: p[victim] for n, p in of.parameters.items()}
        assert float(found[lane]) == pytest.approx(0.5 * of_one(of.model, held, x[lane], of.memory), rel=1e-9)


def test_batch_norm_is_zero_at_its_own_statistics_and_points_to_them() -> None:
    """Statistics equal to those of a guess give zero; else the derivative points downhill."""
    of = network()
    x = torch.rand(1, 2, 2, 6, 6, dtype=torch.float64)
    first = nn.Sequential(of.model[0], nn.Flatten(), nn.Linear(72, 4)).double().eval()
    first[0].running_mean.copy_(x[0].mean((0, 2, 3)))
    first[0].running_var.copy_(x[0].var((0, 2, 3), correction=0))
    alone = view(Network(first, parameters(first)), 1)
    none = torch.zeros(1, dtype=torch.int64)
    assert float(BatchNormStatistics(1.0)(x, alone, none)) == pytest.approx(0, abs=1e-12)
    leaf = (x * 0.5).requires_grad_()
    value = BatchNormStatistics(1.0)(leaf, alone, none)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    downhill = (leaf - 1e-2 * slope).detach()
    assert float(BatchNormStatistics(1.0)(downhill, alone, none)) < float(value.detach())


def test_a_model_without_batch_norm_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 4))
    with pytest.raises(InputError, match="priors: batch_norm"):
        BatchNormStatistics(1.0)(
            torch.rand(1, 2, 2, 6, 6), view(Network(model, parameters(model)), 1), torch.tensor([0])
        )


@given(st.integers(2, 4), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_a_group_is_compared_with_its_own_mean(restarts: int, seed: int) -> None:
    """Restarts of three victims in any order: each penalty is the distance to the mean of its victim's guesses."""
    rng = torch.Generator().manual_seed(seed)
    victims = torch.arange(3).repeat(restarts)[torch.randperm(3 * restarts, generator=rng)]
    x = torch.rand(3 * restarts, 2, 2, 6, 6, generator=rng, dtype=torch.float64)
    found = GroupConsistency(weight=2.0)(x, view(network()), victims)
    for lane in range(3 * restarts):
        mean = x[victims == victims[lane]].mean(0)
        assert float(found[lane]) == pytest.approx(2 * float((x[lane] - mean).norm()))


def test_groups_of_two_and_of_three_have_their_own_means() -> None:
    """Constant guesses of 144 numbers at 0 and 2 for one victim, at 0, 3 and 6 for another: 12 times the deviation of each."""
    level = torch.tensor([0.0, 2.0, 0.0, 3.0, 6.0], dtype=torch.float64)
    x = level.reshape(5, 1, 1, 1, 1).expand(5, 2, 2, 6, 6)
    found = GroupConsistency(weight=1.0)(x, view(network(), 2), torch.tensor([0, 0, 1, 1, 1]))
    assert found.tolist() == pytest.approx([12.0, 12.0, 36.0, 0.0, 36.0])


def test_one_restart_has_no_penalty_and_a_diverged_one_does_not_count() -> None:
    """A single guess has no penalty and no derivative; a guess that is not finite does not count.

    The consensus has no derivative.
    """
    x = torch.rand(4, 2, 2, 6, 6, dtype=torch.float64)
    x[1] = torch.nan
    leaf, victims = x.clone().requires_grad_(), torch.tensor([0, 1, 1, 2])
    found = GroupConsistency(weight=1.0)(leaf, view(network()), victims)
    assert found[[0, 2, 3]].tolist() == [0.0, 0.0, 0.0]
    assert found[1].isnan()
    (slope,) = torch.autograd.grad(found[[0, 2, 3]].sum(), leaf)
    assert (slope[[0, 2, 3]] == 0).all()
    pair = torch.rand(2, 1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(GroupConsistency(1.0)(pair, view(network()), torch.tensor([0, 0])).sum(), pair)
    away = (pair - pair.mean(0)).detach()
    torch.testing.assert_close(slope, away / away.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1, 1))


def test_length_is_the_mean_norm() -> None:
    x = torch.zeros(2, 2, 2, 1, 1)
    x[0, 0] = torch.tensor([3.0, 4.0]).reshape(2, 1, 1)
    assert Length(weight=2.0)(x, view(network()), torch.tensor([0, 1])).tolist() == [5.0, 0.0]


@dataclasses.dataclass(frozen=True)
class Watched:
    """A prior that records the guesses given to it."""

    inner: GroupConsistency
    seen: list[Tensor]

    def __call__(self, inputs: Tensor, view: View, victims: Tensor) -> Tensor:
        self.seen.append(inputs.detach())
        return self.inner(inputs, view, victims)


def test_a_group_ends_closer_together_than_restarts_alone() -> None:
    """After twenty iterations, restarts with consistency are less than half as far from their mean."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 4)).double()
    # The reference engine calls the prior at each evaluation; others replay its operations.
    of = view(Network(model, parameters(model), engine="reference"), 2)
    of = dataclasses.replace(of, update={n: u.double() + 0.01 for n, u in of.update.items()})
    parts = {"labels": "last_layer", "start": "uniform", "distance": "squared_l2", "descent": "adam", "restarts": 4}
    plain = construct(GradientMatching, {**parts, "stop": {"iterations": {"limit": 20}}})
    spread = {}
    for weight in (0.0, 10.0):
        watched = Watched(GroupConsistency(weight), [])
        dataclasses.replace(plain, priors=(watched,))((of,), generators(0, "attack", [(0,), (1,)]))
        last = watched.seen[19].reshape(4, 2, -1)
        spread[weight] = float((last - last.mean(0)).norm())
    assert spread[10.0] < 0.5 * spread[0.0]


@pytest.mark.parametrize("name", ["length", "group_consistency", "batch_norm"])
def test_wrong_input_is_refused(name: str) -> None:
    for fields, word in (
        ({}, "weight"),
        ({"weight": -1.0}, "weight"),
        ({"weight": 1.0, "of": 2}, "unknown field 'of'"),
    ):
        with pytest.raises(InputError, match=word):
            construct(PRIOR.parts[name], fields)


@pytest.mark.slow
def test_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The catalog's group on small pictures and a table; a prior that the model cannot evaluate is refused in one line."""
    for dataset in ("digits", "cancer"):
        out = tmp_path / dataset
        line = (
            f"leakbench run --quiet --dataset {dataset} --attack see_through_no_batch_norm --iterations 2 --victims 2"
        )
        monkeypatch.setattr(
            "sys.argv", [*line.split(), *f"--candidates 9 --taps type-1 --train-rounds 0 --out {out}".split()]
        )
        main()
        rows = pd.read_parquet(out / "rows.parquet")
        assert (rows["iterations"] == 8).all()
        assert rows["rmse"].between(0, 1).all()
    capsys.readouterr()
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "title: mine\ncite: me\nmethod:\n  gradient_matching:\n    labels: last_layer\n    start: uniform\n"
        "    distance: squared_l2\n    descent: adam\n    priors: [{batch_norm: {weight: 0.1}}]\n"
    )
    line = f"leakbench run --quiet --dataset digits --attack {recipe} --victims 2 --candidates 9 --train-rounds 0"
    monkeypatch.setattr("sys.argv", [*line.split(), "--out", str(tmp_path / "refused")])
    with pytest.raises(SystemExit):
        main()
    assert "batch_norm needs a model with batch normalisation" in capsys.readouterr().err


def test_standardised_priors_equal_priors_on_standardised_pictures() -> None:
    colours = torch.tensor([[0.1, 0.4], [0.3, 0.8]], dtype=torch.float64)
    public = colours[..., None, None].expand(2, 2, 6, 6)
    public = torch.stack(
        [torch.full((2, 6, 6), 1.0) * torch.tensor(c).reshape(2, 1, 1) for c in ([0.1, 0.4], [0.3, 0.8])]
    )
    seen = dataclasses.replace(view(network()), public=Public(public, torch.zeros(2, dtype=torch.int64)))
    mean, deviation = (
        torch.tensor([0.2, 0.6]).reshape(2, 1, 1).double(),
        torch.tensor([0.1, 0.2]).reshape(2, 1, 1).double(),
    )
    x, one = torch.rand(1, 2, 2, 6, 6, dtype=torch.float64), torch.tensor([0])
    for prior in (TotalVariation, Length):
        inside = prior(weight=3.0)((x - mean) / deviation, seen, one)
        torch.testing.assert_close(prior(weight=3.0, standardised=True)(x, seen, one), inside)
        with pytest.raises(InputError, match="needs"):
            prior(weight=3.0, standardised=True)(x, view(network()), one)
