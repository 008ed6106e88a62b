"""Whole updates: read as a difference of weights, unrolled or approximated by fewer steps, at several rounds together."""

import dataclasses
import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.cli import commands
from leakbench.core.errors import InputError
from leakbench.core.types import Network
from leakbench.federated.leakage import rounded
from leakbench.federated.view import View
from leakbench.limits.guards import Guard, together
from leakbench.models import parameters
from leakbench.storage.summary import Tap
from leakbench.summary.summarise import over_rounds

pytestmark = pytest.mark.usefixtures("with_pages")

RATE = 0.05


@pytest.fixture
def view() -> View:
    """Return two victims' updates over L = 4 iterations of B = 2 examples of 6 features, in double precision."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3)).double()
    network = Network(model, {n: p.detach() for n, p in parameters(model).items()})
    blind = View("type-1", network, {}, batch=2, shape=(6,), classes=3, learning_rate=RATE, local_steps=4)
    update = blind.respond(*guess(2))
    return dataclasses.replace(blind, update=update)


def guess(victims: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    inputs = torch.rand(victims, 8, 6, generator=rng, dtype=torch.float64)
    return inputs, torch.randn(victims, 8, 3, generator=rng, dtype=torch.float64).softmax(-1)


def test_an_update_is_unrolled(view: View) -> None:
    """Against torch.optim.SGD, step by step, for each victim."""
    inputs, targets = guess(2)
    for victim in range(2):
        model = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3)).double()
        model.load_state_dict(view.network.parameters)
        optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
        for step in range(4):
            optimiser.zero_grad()
            here = slice(2 * step, 2 * step + 2)
            nn.functional.cross_entropy(model(inputs[victim, here]), targets[victim, here]).backward()
            optimiser.step()
        for name, after in model.named_parameters():
            slow = (view.network.parameters[name] - after.detach()) / (RATE * 4)
            assert torch.allclose(view.update[name][victim], slow, atol=1e-12)


def test_one_step_instead_of_four_is_the_gradient_of_all_examples(view: View) -> None:
    coarse = view.coarser(1)
    assert (coarse.local_steps, coarse.batch, coarse.examples) == (1, 8, view.examples)
    inputs, targets = guess(2)
    found = coarse.respond(inputs, targets)
    model = view.network.model
    for victim in range(2):
        loss = nn.functional.cross_entropy(model(inputs[victim]), targets[victim])
        for (name, _), slow in zip(
            model.named_parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            assert torch.allclose(found[name][victim], slow, atol=1e-12)


def test_two_steps_instead_of_four_are_twice_as_long(view: View) -> None:
    """Against torch.optim.SGD at twice the rate over two batches of four, read in the units of the four steps."""
    inputs, targets = guess(2)
    found = view.coarser(2).respond(inputs, targets)
    for victim in range(2):
        model = nn.Sequential(nn.Linear(6, 5), nn.Sigmoid(), nn.Linear(5, 3)).double()
        model.load_state_dict(view.network.parameters)
        optimiser = torch.optim.SGD(model.parameters(), lr=2 * RATE)
        for here in (slice(0, 4), slice(4, 8)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs[victim, here]), targets[victim, here]).backward()
            optimiser.step()
        for name, after in model.named_parameters():
            slow = (view.network.parameters[name] - after.detach()) / (4 * RATE)
            assert torch.allclose(found[name][victim], slow, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 2])
def test_fewer_steps_are_closer_at_smaller_rates(view: View, steps: int) -> None:
    """The error is of the order of the learning rate."""
    inputs, targets = guess(2)

    def apart(rate: float) -> float:
        exact = dataclasses.replace(view, learning_rate=rate)
        both = [v.respond(inputs, targets)["0.weight"] for v in (exact, exact.coarser(steps))]
        return float((both[0] - both[1]).norm() / both[0].norm())

    assert apart(0.1) == pytest.approx(10 * apart(0.01), rel=0.1)
    assert apart(0.01) > 0


def test_steps_that_do_not_divide_are_refused_and_more_are_exact(view: View) -> None:
    with pytest.raises(InputError, match="local_steps: got 3, expected a divisor of the 4 local iterations"):
        view.coarser(3)
    assert view.coarser(4) is view.coarser(9) is view
    assert dataclasses.replace(view, tap="type-2").coarser(1).local_steps == 4


@pytest.mark.parametrize(("weight", "step"), [(1.5, 2.0**-23), (0.3, 2.0**-25), (0.0, 0.0)])
def test_a_difference_of_weights_is_rounded_to_their_precision(weight: float, step: float) -> None:
    """Half a unit in the last place of the larger weight, over the length; weights of zero are exact."""
    weights = {"w": torch.full((1000,), weight)}
    update = {"w": torch.randn(2, 1000, generator=torch.Generator().manual_seed(0)) * 1e-4}
    found = rounded(update, weights, 0.5)["w"]
    worst = float((found - update["w"]).abs().max())
    assert worst <= step
    if step:
        assert worst > step / 4
        assert float((found * 0.5 / step % 1).abs().max()) == 0
    else:
        assert torch.equal(found, update["w"])


LABEL_RANKED = ("label_ranked", "label_ranked_low", "label_ranked_high")


def leaked(round_number: int, asr: float | None, identified: float) -> Tap:
    names = (
        "asr_low",
        "asr_high",
        "null_asr",
        "identified_low",
        "identified_high",
        "label_accuracy",
        "rmse",
        *LABEL_RANKED,
    )
    return Tap.model_validate(
        {**dict.fromkeys(names, 0.5), "round": round_number, "asr": asr, "identified": identified}
    )


def test_the_worst_round_has_the_most_success() -> None:
    """Then the one with most identified, then the first; a point that leaked once has no curve."""
    curves = over_rounds(
        {
            "type-2@0": leaked(0, 0.2, 1.0),
            "type-2@5": leaked(5, 0.7, 0.1),
            "type-2@9": leaked(9, 0.7, 0.4),
            "type-1@0": leaked(0, None, 0.3),
            "type-1@5": leaked(5, None, 0.3),
            "type-0@0": leaked(0, 1.0, 1.0),
        }
    )
    assert list(curves) == ["type-2", "type-1"]
    assert (curves["type-2"]["worst"], curves["type-1"]["worst"]) == (9, 0)
    assert curves["type-2"]["rounds"] == [0, 5, 9]
    assert curves["type-2"]["asr"] == [0.2, 0.7, 0.7]
    assert curves["type-2"]["label_ranked"] == [0.5, 0.5, 0.5]


def test_guarantees_of_several_rounds_are_combined() -> None:
    """As many releases, each at the least noise; one round without a guarantee leaves none."""
    one = Guard(4.0, "", "example", (), 0.2, "")
    both = together([one, dataclasses.replace(one, sigma=2.0), dataclasses.replace(one, sigma=3.0)])
    assert (both.sigma, both.views) == (2.0, 3)
    none = together([dataclasses.replace(one, sigma=None, reason="none: no noise"), one])
    assert (none.sigma, none.reason, none.views) == (None, "none: no noise", 2)


LIVE = (
    "run --attack cpl --quiet --json --dataset cancer --protocol live --clients 6 --clients-per-round 3 --local-iterations 2 "
    "--batch 1 --train-rounds 2 --victims 3 --iterations 2 --candidates 20 --leak-rounds 0,1,last"
)


def run(folder: Path, *more: str) -> dict[str, object]:
    result = CliRunner().invoke(commands, [*LIVE.split(), "--out", str(folder), *more], catch_exceptions=False)
    assert result.exit_code == 0
    return json.loads(result.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_rounds_joined_are_one_attack_on_the_same_examples(tmp_path: Path) -> None:
    """The noise is drawn for each round, and observed three times; the bound counts all three."""
    found = run(tmp_path, "--join-rounds", "--taps", "type-2,type-1", "--defense", "fed_sdp_client_valid")
    assert list(found["taps"]) == ["type-2@0+1+2", "type-1@0+1+2"]
    assert found["taps"]["type-1@0+1+2"]["seen"]["releases"] == 3  # type: ignore[index]
    assert found["over_rounds"] == {}
    rows = pd.read_parquet(tmp_path / "rows.parquet")
    assert rows.groupby("tap").size().to_dict() == {"type-2": 3, "type-1": 6}


@pytest.mark.slow
def test_each_round_alone_gives_a_curve(tmp_path: Path) -> None:
    found = run(tmp_path, "--taps", "type-1", "--attack", "cpl_one_step", "--reads", "weights")
    curve = found["over_rounds"]["type-1"]  # type: ignore[index]
    assert curve["rounds"] == [0, 1, 2]
    assert curve["worst"] in (0, 1, 2)
    assert all(math.isfinite(x) for x in curve["rmse"])
    assert "Leakage over the rounds of training" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--join-rounds"], "join-rounds: one attack on several rounds takes --protocol live"),
        (["--join-rounds", "--protocol", "live"], "join-rounds: got the leak round 0 alone"),
        (["--join-rounds", "--protocol", "live", "--leak-rounds", "0,0"], "join-rounds: got the leak round 0 alone"),
        (["--reads", "weigths"], "reads: got 'weigths', expected gradient or weights; did you mean 'weights'?"),
    ],
)
def test_wrong_input_is_refused(more: list[str], said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        CliRunner().invoke(
            commands, ["run", "--dataset", "digits", *more], catch_exceptions=False, standalone_mode=False
        )


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_an_invalid_learning_rate_is_refused(rate):
    with pytest.raises(InputError, match=r"learning-rate: got .*, expected a finite number above 0"):
        prepare(Request(learning_rate=rate, train_rounds=0, victims=2, candidates=2), None)


def test_a_learning_rate_belongs_to_the_federation_and_changes_the_cell():
    asked = {"dataset": "cancer", "train_rounds": 0, "victims": 2, "candidates": 2, "attack": "cpl"}
    usual, other = (prepare(Request(**asked, **more), None) for more in ({}, {"learning_rate": 0.7}))
    assert other.settings.federation.learning_rate == 0.7
    assert usual.hash != other.hash
    again = prepare(Request(**asked, learning_rate=usual.settings.federation.learning_rate), None)
    assert again.hash == usual.hash
