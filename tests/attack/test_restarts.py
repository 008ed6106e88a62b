"""Several searches for each victim equal the same searches one after another."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.search.restarts import best_of
from leakbench.attack.slots.descent import Descended
from leakbench.attack.slots.labels import Joint
from leakbench.cli import main
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generator, generators
from leakbench.core.types import Network
from leakbench.federated.view import View

VICTIMS = 3
PARTS = {"labels": "last_layer", "start": "normal", "distance": "squared_l2", "descent": "lbfgs"}


def view() -> View:
    """Return a linear model of 12 weights and random updates of two examples each, which nothing matches, so starts matter."""
    rng = generator(0, "linear")
    model = torch.nn.Linear(5, 2).double()
    weights = {n: torch.randn(p.shape, generator=rng, dtype=torch.float64) for n, p in model.named_parameters()}
    update = {n: torch.randn(VICTIMS, *w.shape, generator=rng, dtype=torch.float64) for n, w in weights.items()}
    return View("type-1", Network(model, weights), update, 2, (5,), 2, 0.1)


def attack(restarts: int, **changed: object) -> GradientMatching:
    return construct(GradientMatching, {**PARTS, "stop": {"iterations": {"limit": 4}}, "restarts": restarts, **changed})


@pytest.mark.slow
@pytest.mark.parametrize("labels", ["last_layer", "joint"])
def test_three_restarts_are_the_best_of_three_searches(labels: str) -> None:
    """Reconstruction, labels and certainty of the best of three searches from the same draws; the counts of all three."""
    together = attack(3, labels=labels)((view(),), generators(0, "attack", [(v,) for v in range(VICTIMS)]))
    rngs = generators(0, "attack", [(v,) for v in range(VICTIMS)])
    single = [attack(1, labels=labels)((view(),), rngs) for _ in range(3)]
    certainty = torch.stack([one.certainty[:, 0] for one in single])
    best = certainty.argmax(0)
    assert len(set(best.tolist())) > 1 or labels == "joint"
    for victim in range(VICTIMS):
        one = single[int(best[victim])]
        torch.testing.assert_close(together.inputs[victim], one.inputs[victim])
        assert torch.equal(together.labels[victim], one.labels[victim])
    torch.testing.assert_close(together.certainty[:, 0], certainty.amax(0))
    assert torch.equal(together.steps, sum(one.steps for one in single))
    assert torch.equal(together.evaluations, sum(one.evaluations for one in single))
    order = torch.stack([one.trajectory for one in single], 1).flatten(0, 1)
    torch.testing.assert_close(together.trajectory, order, equal_nan=True)
    assert together.snapshots == (3, 6, 9, 12)


@given(st.integers(1, 4), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_best_value_so_far_never_rises(restarts: int, seed: int) -> None:
    """Points that are their own values: each snapshot is the least value so far, the last one is the reconstruction."""
    rng = torch.Generator().manual_seed(seed)
    values = torch.rand(5, restarts * VICTIMS, generator=rng, dtype=torch.float64)
    values[3:, 0] = torch.nan  # This search has ended.
    met = values.nan_to_num(nan=torch.inf).cummin(0).values
    none = torch.zeros(restarts * VICTIMS, dtype=torch.int64)
    spent = torch.arange(1, 6)[:, None].expand(5, restarts * VICTIMS)
    found = Descended(met[-1][:, None], met[-1], values, none + 5, none + 6, met[..., None], (1, 2, 3, 4, 5), spent)
    best, chosen = best_of(found, restarts)
    expected: Tensor = met.reshape(5, restarts, VICTIMS).amin(1)
    assert torch.equal(best.snapshots[..., 0], expected)
    assert torch.equal(best.value, expected[-1])
    assert torch.equal(found.value[chosen], best.value)
    assert torch.equal(chosen % VICTIMS, torch.arange(VICTIMS))
    assert best.at == tuple(restarts * k for k in range(1, 6))
    assert best.steps.tolist() == [5 * restarts] * VICTIMS
    assert best.spent.tolist() == [[k * restarts] * VICTIMS for k in range(1, 6)]


def test_a_diverged_search_does_not_win() -> None:
    """If one of two starts is not finite, the other is used. If both are not, the reconstruction is missing."""
    whole = attack(2)

    @dataclasses.dataclass(frozen=True)
    class Lost:
        """Normal starts; some are not finite."""

        def __call__(self, view: View, rngs: object) -> Tensor:
            start = torch.rand(VICTIMS, 2, 5, dtype=torch.float64, generator=drawn)
            start[0] = torch.nan
            if len(calls):
                start[1] = torch.nan
            calls.append(1)
            return start

    calls: list[int] = []
    drawn = generator(0, "start")
    answer = dataclasses.replace(whole, start=Lost(), labels=Joint())(
        (view(),), generators(0, "attack", [(v,) for v in range(VICTIMS)])
    )
    assert answer.inputs[0].isnan().all()
    assert answer.inputs[1:].isfinite().all()
    assert answer.certainty[0, 0] == -torch.inf


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InputError, match="restarts"):
        attack(0)


def test_restarts_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--iterations` limits each search: three of two iterations take six."""
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "title: mine\ncite: me\nmethod:\n  gradient_matching:\n    labels: last_layer\n    start: normal\n"
        "    distance: squared_l2\n    descent: adam\n    restarts: 3\n"
    )
    line = f"leakbench run --quiet --dataset digits --attack {recipe} --iterations 2 --victims 2 --candidates 9"
    monkeypatch.setattr(
        "sys.argv", [*line.split(), *f"--taps type-2 --train-rounds 0 --out {tmp_path / 'run'}".split()]
    )
    main()
    rows = pd.read_parquet(tmp_path / "run" / "rows.parquet")
    assert rows["iterations"].tolist() == [6, 6]
    assert rows["evaluations"].tolist() == [9, 9]
