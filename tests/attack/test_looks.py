"""Repeated observations: n noises on one gradient of the same examples, from the command line to the bounds."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import called
from flat_noise import runs_behind_flat_noise
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.attack.looks import averaged, releases, responses
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.methods.stage import Stage
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.slots.distance import SquaredL2
from leakbench.cell import Cell, Request, looks_at, random_at, resolve_cell
from leakbench.cell import looks as looks_module
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.types import Network
from leakbench.experiment import stage_attack
from leakbench.experiment.stage_attack import CellLeak, _chunk
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, aware, candidates, draw_victims, view_of
from leakbench.federated.view import View
from leakbench.limits.floor import floor
from leakbench.limits.guards import Guard, together
from leakbench.models import one_hot
from leakbench.privacy.bounds import gaussian_robustness

LANES = torch.arange(3)


def cell(**asked: Any) -> Cell:
    """Return three digits, each behind an update of two."""
    plain = {
        "attack": "cpl",
        "dataset": "digits",
        "victims": 3,
        "networks": 1,
        "train_rounds": 0,
        "leak_batch": 2,
        "candidates": 20,
    }
    return resolve_cell(Request(**{**plain, "defense": "fed_cdp", **asked}), None)


def leak_of(some: Cell, tap: str = "type-2") -> CellLeak:
    network = Network(*fresh_network(some, trained=False))
    return CellLeak(some, hand_out(some), {0: Sent(network)}, tap)


def views(some: Cell, tap: str = "type-2") -> tuple[View, ...]:
    leak = leak_of(some, tap)
    return leak.views(leak.victims(), LANES)


def flat(view: View) -> torch.Tensor:
    return torch.cat([u.flatten(1) for u in view.update.values()], 1)


@pytest.mark.parametrize("tap", ["type-2", "type-1", "type-0"])
def test_the_first_observation_equals_a_single_one(tap: str) -> None:
    """Bit-identical; the others have the same inputs with separate noise, all different."""
    (alone,) = views(cell(), tap)
    first, *others = views(cell(observations=4), tap)
    assert torch.equal(flat(first), flat(alone))
    assert len(others) == 3
    drawn = [flat(view)[0, :5].tolist() for view in (first, *others)]
    assert len({tuple(numbers) for numbers in drawn}) == 4
    assert all(view.network is first.network for view in others)


def test_the_noise_of_n_observations_averages_out() -> None:
    """The remaining noise around the gradient has 1 / sqrt(n) of the deviation that the defense adds."""
    some = cell(observations=25)
    shown = tuple(aware(view, some) for view in views(some))
    ((mean, n),) = averaged(shown)
    victims = draw_victims(some, "type-2", 0, hand_out(some)).indices[:, :1, :1, :1].flatten(1)
    x, y = some.data.train_inputs[victims], one_hot(some.data.train_targets[victims], 10)
    clean = torch.cat([g.flatten(1) for g in mean.respond(x, y).values()], 1)
    assert n == 25
    assert mean.noise == pytest.approx(shown[0].noise / 5)  # type: ignore[operator]
    assert float((flat(mean) - clean).std()) == pytest.approx(mean.noise, rel=0.02)
    assert float((flat(shown[0]) - clean).std()) == pytest.approx(shown[0].noise, rel=0.02)


@given(n=st.integers(1, 4), rounds=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_observations_of_a_release_are_merged_and_rounds_are_not(n: int, rounds: int) -> None:
    view = View("type-2", Network(torch.nn.Linear(2, 2), {}), {"w": torch.ones(1, 2)}, 1, (2,), 2, 0.1)
    later = [dataclasses.replace(view, clock=dataclasses.replace(view.clock, round=t)) for t in range(rounds)]
    all_of_them = tuple(v for v in later for _ in range(n))
    assert [len(looks) for looks in releases(all_of_them)] == [n] * rounds
    assert tuple(v for looks in releases(all_of_them) for v in looks) == all_of_them
    assert releases((view,)) == ((view,),)
    assert averaged((view,))[0][0] is view


def test_log_scores_add() -> None:
    """The ranking by the mean equals the sum of the rankings by each observation, without assuming sufficient statistics."""
    some = cell(observations=5)
    shown = candidates(some, draw_victims(some, "type-2", 0, hand_out(some)))[0]
    told = tuple(dataclasses.replace(aware(v, some), candidates=shown) for v in views(some))
    together_ = Candidates()(told, ()).scores
    slow = torch.stack([Candidates()((view,), ()).scores for view in told]).sum(0)
    torch.testing.assert_close(together_, slow, rtol=1e-4, atol=1e-2 * float(slow.abs().mean()))


@pytest.mark.parametrize("defense", ["fed_cdp", "prune_random_50"])
def test_a_guess_is_compared_with_every_observation(defense: str, tmp_path: Path) -> None:
    """Its response, computed once if the observations allow it, equals that of every view by itself."""
    recipe = tmp_path / "prune_random_50.yaml"
    recipe.write_text("title: t\ncite: c\nunit: example\nexample:\n- prune_random: {share: 0.5}\n")
    some = cell(defense=str(recipe) if defense.startswith("prune") else defense, observations=3)
    told = tuple(aware(v, some) for v in views(some))
    x, y = torch.rand(3, 1, *some.data.shape), one_hot(torch.tensor([[0], [1], [2]]), 10)
    distances = [SquaredL2()(guess, v.observed(LANES), v) for guess, v in responses(told, x, y, LANES)]
    slow = [SquaredL2()(v.respond(x, y, LANES, by_what_leaked=True), v.observed(LANES), v) for v in told]
    assert len(distances) == 3
    torch.testing.assert_close(torch.stack(distances), torch.stack(slow))


def test_several_observations_without_noise_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In one line; at a leakage point before the noise there is one observation, and the summary says why."""
    options = ["run", "--dataset", "digits", "--train-rounds", "0", "--out", str(tmp_path / "run")]
    code, _, said = called(monkeypatch, capsys, *options, "--observations", "3")
    assert code != 0
    assert "observations: got 3, but nothing that 'none' draws at random shows at type-2, type-1, type-0" in said
    assert len(said.strip().splitlines()) == 1
    for wrong in (0, -1, 10_001):
        with pytest.raises(InputError, match="observations: got"):
            cell(observations=wrong)
    server = cell(defense="fed_sdp_server", observations=3, clients=4, clients_per_round=4)
    assert [looks_at(server, tap) for tap in ("type-2", "type-1", "type-0")] == [1, 1, 3]
    assert [len(views(server, tap)) for tap in ("type-1", "type-0")] == [1, 3]
    assert not random_at(cell(defense="none"), "type-2")


def test_a_sampling_network_can_be_observed_repeatedly() -> None:
    """PRECODE draws in every pass, without any noise on a gradient."""
    some = cell(defense="precode", observations=2)
    assert random_at(some, "type-2")
    one, other = views(some)
    assert not torch.equal(flat(one), flat(other))


@pytest.mark.parametrize("values", [(torch.nan, 1.0), (torch.nan, torch.inf), (torch.inf, -torch.inf)])
def test_an_update_that_is_not_finite_is_not_random(
    values: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks_module, "leak", lambda *_: {"weight": torch.tensor(values)})
    assert not random_at(cell(defense="none"), "type-2")
    draws = iter(torch.tensor([[values[0], 1.0], [values[0], 2.0]]))
    monkeypatch.setattr(looks_module, "leak", lambda *_: {"weight": next(draws)})
    assert random_at(cell(defense="none"), "type-2")


def test_the_check_for_draws_runs_once_for_each_cell_and_leakage_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed again for a changed cell, with an equal or a different hash."""
    asked, probe = [], looks_module.probe

    def counted(*arguments: Any) -> Any:
        asked.append(arguments[0])
        return probe(*arguments)

    monkeypatch.setattr(looks_module, "probe", counted)
    some = cell(observations=2)
    asked.clear()
    for _ in range(2):
        assert [random_at(some, tap) for tap in ("type-2", "type-1")] == [True, True]
    assert len(asked) <= 2
    bare = dataclasses.replace(some, defense=cell(defense="none").defense)
    assert bare.hash == some.hash
    assert not random_at(bare, "type-2")
    assert random_at(some, "type-2")
    assert len(asked) <= 3


def test_one_observation_does_not_change_the_identity() -> None:
    assert cell().hash == cell(observations=1).hash
    assert cell().hash != cell(observations=2).hash


def test_n_observations_are_n_releases_with_noise_over_root_n() -> None:
    """Two rounds of three observations are six; the floor of 16 observations is that at a quarter of the noise."""
    sure = Guard(sigma=2.0, reason="", unit="example", before=(), commonest=0.1, related="")
    assert together([sure], 3).views == 3
    assert together([sure, dataclasses.replace(sure, sigma=None, reason="none: x")], 3).views == 6
    one, many = cell(), cell(observations=16)
    sent = Sent(Network(*fresh_network(one, trained=False)))
    once, often = (floor(c, lambda _: sent, "type-2", 0, hand_out(one)) for c in (one, many))
    assert often.unbiased == pytest.approx(once.unbiased / 4)  # type: ignore[operator]
    assert often.rmse < once.rmse  # type: ignore[operator]


def test_more_observations_mean_fewer_victims_at_once() -> None:
    few, many = (leak_of(cell(observations=n)) for n in (1, 2000))
    assert _chunk(many, many.victims()) < _chunk(few, few.victims())


def test_restarts_of_a_stage_take_memory_like_those_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five hundred at once in autoleak as alone, in a GB."""
    monkeypatch.setattr(stage_attack, "memory_budget", lambda device: 10**9)
    plain = leak_of(cell(attack="whitened"))
    search = dataclasses.replace(plain.cell.attack.method, restarts=500)  # type: ignore[type-var]
    staged = AutoLeak(stages=(Stage(method=dataclasses.replace(search, restarts=1)), Stage(method=search)))

    def room(method: object) -> int:
        some = dataclasses.replace(plain.cell, attack=dataclasses.replace(plain.cell.attack, method=method))
        leak = dataclasses.replace(plain, cell=some)
        return _chunk(leak, leak.victims())

    assert room(staged) == room(search) < room(plain.cell.attack.method)


@pytest.mark.slow
def test_observations_from_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Digits behind one flat noise.

    The bound counts all observations, more are identified, and a single observation is pointed out.
    """
    run = runs_behind_flat_noise(monkeypatch, capsys, tmp_path)
    options = "--attack identification --victims 40 --candidates 40 --taps type-2 --observations"
    found = {n: run(str(n), *options.split(), str(n))[0] for n in (1, 60)}
    one, many = (found[n]["taps"]["type-2"] for n in (1, 60))
    assert (one["observations"], many["observations"]) == (1, 60)
    assert (one["seen"]["releases"], many["seen"]["releases"]) == (1, 60)
    assert many["identified_bound"] == pytest.approx(float(gaussian_robustness(1 / 40, 60**0.5)))
    assert many["identified"] > one["identified"]
    assert many["label_ranked"] > one["label_ranked"]
    assert found[1]["notes"]["observations"].startswith(
        "one observation of the random draws at the example gradient (type-2)"
    )
    assert found[60]["notes"]["observations"] == "60 observations of each gradient, each a separate release"
    assert found[1]["violations"] == found[60]["violations"] == []


@pytest.mark.slow
def test_searches_accept_several_observations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for attack, steps in (("whitened", ["--iterations", "2"]), ("analytic_fc", [])):
        options = (
            f"run --dataset digits --defense fed_cdp --attack {attack} --train-rounds 0 --victims 2 --json --quiet"
        )
        more = ["--taps", "type-1", "--observations", "3", "--leak-batch", "2", "--out", str(tmp_path / attack), *steps]
        code, out, said = called(monkeypatch, capsys, *options.split(), *more)
        assert code == 0, said
        assert [tap["observations"] for tap in json.loads(out)["taps"].values()] == [3]


def test_joined_rounds_are_observed_several_times_each() -> None:
    """A view for each observation of each round, the rounds in order."""
    some = cell(protocol="live", leak_rounds=("0", "1"), join_rounds=True, observations=2, train_rounds=1, clients=4,
                clients_per_round=4, local_iterations=1, batch=2)  # fmt: skip
    network = Network(*fresh_network(some, trained=True))
    leak = CellLeak(some, hand_out(some), {0: Sent(network), 1: Sent(network)}, "type-1")
    victims = leak.victims()
    shown = leak.views(victims, LANES)
    assert [view.clock.round for view in shown] == [0, 0, 1, 1]
    assert [len(looks) for looks in releases(shown)] == [2, 2]
    alone = view_of(some, "type-1", 1, victims, LANES, leak.sent[1])
    assert torch.equal(flat(shown[2]), flat(alone))
