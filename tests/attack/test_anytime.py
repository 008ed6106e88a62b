"""The anytime curve: which examples an attack had reconstructed after how much work."""

import dataclasses
import json
import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from leakbench.attack.slots.descent import DESCENT, Terms, descend
from leakbench.attack.slots.stop import Iterations
from leakbench.cli import commands
from leakbench.summary.tap import POINTS, anytime

pytestmark = pytest.mark.usefixtures("with_pages")


def rows(reached: list[float], evaluations: list[int]) -> pd.DataFrame:
    """Return one example for each victim, with 20 evaluations an iteration."""
    return pd.DataFrame(
        {
            "victim": range(len(reached)),
            "iterations": [n // 20 for n in evaluations],
            "evaluations": evaluations,
            "iterations_to_success": reached,
            "evaluations_to_success": [20 * n for n in reached],
        }
    )


def test_a_curve_equals_counts_by_hand() -> None:
    """One of four victims was never reconstructed, two by iteration 3, one by 7.

    The curve ends where the longest search stopped.
    """
    found = anytime(rows([3, math.nan, 7, 3], [200, 400, 140, 60]))
    assert found["iterations"] == {"at": [3, 7, 20], "asr": [0.5, 0.75, 0.75]}
    assert found["evaluations"] == {"at": [60, 140, 400], "asr": [0.5, 0.75, 0.75]}


def test_members_of_a_batch_are_counted_each() -> None:
    """One of two examples behind an update was reconstructed."""
    found = anytime(pd.concat([rows([2.0], [100]), rows([math.nan], [100])]))
    assert found["iterations"] == {"at": [2, 5], "asr": [0.5, 0.5]}


def test_many_points_are_thinned_and_no_points_give_no_curve() -> None:
    many = anytime(rows(list(range(1, 201)), [4000] * 200))["iterations"]
    assert len(many["at"]) == POINTS
    assert (many["at"][0], many["at"][-1], many["asr"][-1]) == (1, 200, 1.0)
    none = anytime(rows([math.nan], [0]))
    assert none["iterations"] == {"at": [0], "asr": [0.0]}


@pytest.mark.parametrize(("name", "each"), [("adam", 1), ("lbfgs", 4)])
def test_evaluations_are_counted_at_each_kept_iteration(name: str, each: int) -> None:
    """Adam takes one an iteration, L-BFGS its inner ones; the last count is the total."""
    start = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def quartic(points: torch.Tensor, lanes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (points**4).sum(1) + points.square().sum(1), 4 * points**3 + 2 * points

    more = {"inner": 4, "learning_rate": 0.05} if name == "lbfgs" else {"learning_rate": 0.01}
    found = descend(DESCENT.parts[name](**more)(start, Terms(12, 5, lambda z: z)), quartic, Iterations(limit=12))
    assert found.at == tuple(range(1, 13))
    assert torch.equal(found.spent[0], torch.full((3,), each))
    assert bool((found.spent[1:] >= found.spent[:-1]).all())
    assert torch.equal(found.spent[-1], found.evaluations)
    assert torch.equal(found.spent[5], torch.full((3,), 6 * each))


@pytest.mark.slow
def test_a_run_has_its_curve(tmp_path: Path) -> None:
    """The curve is in the summary and, if an example was reconstructed, on the page."""
    tiny = (
        "run --quiet --json --dataset digits --victims 3 --iterations 30 --train-rounds 0 --candidates 20 --taps type-2"
    )
    result = CliRunner().invoke(commands, [*tiny.split(), "--out", str(tmp_path)], catch_exceptions=False)
    tap = json.loads(result.stdout)["taps"]["type-2"]
    assert tap["asr"] > 0
    assert tap["anytime"]["evaluations"]["asr"][-1] == pytest.approx(tap["asr"])
    assert "ASR against work" in (tmp_path / "report.html").read_text()


@dataclasses.dataclass
class Walk:
    """A search that halves its points and settles at a different step for each lane."""

    points: Tensor
    settle: Tensor
    taken: int = 0

    @property
    def evaluations(self) -> Tensor:
        return torch.full((len(self.points),), self.taken)

    @property
    def settled(self) -> Tensor:
        return self.settle == self.taken

    def step(self, objective):
        self.taken += 1
        values = objective(self.points, torch.arange(len(self.points)))[0]
        self.points = self.points / 2
        return values

    def keep(self, lanes: Tensor) -> None:
        self.points, self.settle = self.points[lanes], self.settle[lanes]


@pytest.mark.parametrize("others", [[], [9], [2, 60]])
def test_the_last_point_of_a_search_is_kept_independently_of_other_lanes(others):
    """It settles at step 5 at 1/32 and is then evaluated again; that belongs to the snapshot of iteration 5, not to a later one."""
    settle = torch.tensor([5, *others])
    search = Walk(torch.ones(len(settle), 1), settle)
    found = descend(search, lambda z, lanes: (z.flatten(1).abs().sum(1), z), Iterations(limit=60))
    assert found.snapshots[:5, 0, 0].tolist() == [1, 1 / 2, 1 / 4, 1 / 8, 1 / 32]
    assert set(found.snapshots[4:, 0, 0].tolist()) == {1 / 32}
    assert found.spent[:5, 0].tolist() == [1, 2, 3, 4, 6]
    assert set(found.spent[4:, 0].tolist()) == {6}
