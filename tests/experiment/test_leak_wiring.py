"""Victims, network, numbers and generators that a leakage point gives to its attacker."""

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from leakbench.attack import Attack
from leakbench.cell import Cell, Request, identity, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.core.answers import Ranking
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Generators, Network, Parameters
from leakbench.data.partition import Partition
from leakbench.defense.clip import ClipWhole
from leakbench.defense.precode import Precode
from leakbench.defense.transform import Stations
from leakbench.execute import execute
from leakbench.experiment import victims as victims_module
from leakbench.experiment.stage_attack import CellLeak, _twin
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, draw_victims, view_of
from leakbench.federated.leakage import leak, rounded
from leakbench.federated.view import View
from leakbench.models import build, one_hot, parameters
from leakbench.storage.store import open_run


def live(**asked: object) -> Cell:
    """Return four clients of the digits, each with L = 2 iterations of B = 2."""
    federation = {"clients": 4, "clients_per_round": 4, "local_iterations": 2, "batch": 2, "train_rounds": 1}
    named = {
        "attack": "cpl",
        "dataset": "digits",
        "protocol": "live",
        "victims": 2,
        "leak_rounds": ("0", "1"),
        "candidates": 20,
    }
    return resolve_cell(Request(**{**named, **federation, **asked}), None)  # type: ignore[arg-type]


def paper(**asked: object) -> Cell:
    """Return one update of B = 2 digits for each victim."""
    named = {"attack": "cpl", "dataset": "digits", "victims": 3, "train_rounds": 0, "leak_batch": 2}
    return resolve_cell(Request(**{**named, **asked}), None)  # type: ignore[arg-type]


def sent(cell: Cell, scale: float = 1.0) -> Sent:
    """Return the initial weights, or a multiple of them."""
    model, weights = fresh_network(cell, trained=True)
    return Sent(Network(model, {n: scale * w for n, w in weights.items()}))


def quiet(phase: str, done: int, total: int) -> None:
    """Show no progress."""


def same(a: Parameters, b: Parameters) -> bool:
    return all(torch.equal(a[n], b[n]) for n in b)


def test_joined_rounds_give_a_view_of_each_round() -> None:
    """Each with its own network and moment, both of the same victims."""
    some = live(join_rounds=True)
    joined = CellLeak(some, hand_out(some), {0: sent(some), 1: sent(some, 0.5)}, "type-1")
    victims, lanes = joined.victims(), torch.arange(2)
    views = joined.views(victims, lanes)
    assert [view.clock.round for view in views] == [0, 1]
    for number, view in enumerate(views):
        alone = view_of(some, "type-1", number, victims, lanes, joined.sent[number])
        assert same(view.network.parameters, joined.sent[number].network.parameters)
        assert same(view.update, alone.update)
    assert not same(views[0].update, views[1].update)


def test_the_victims_of_joined_rounds_are_those_of_the_first() -> None:
    """Each round draws other batches, so it matters which round is used."""
    some = live(join_rounds=True)
    handed = hand_out(some)
    first, second = (draw_victims(some, "type-1", number, handed).indices for number in (0, 1))
    found = CellLeak(some, handed, {0: sent(some), 1: sent(some)}, "type-1").victims().indices
    assert torch.equal(found, first)
    assert not torch.equal(first, second)


def test_only_updates_read_from_weights_are_rounded() -> None:
    """Rounded by the step of two local iterations, after the leak; a gradient is not rounded, as at type-2."""
    exact, read = live(), live(reads="weights")
    given, victims = sent(exact), draw_victims(exact, "type-1", 0, hand_out(exact))
    length = 2 * exact.settings.federation.learning_rate

    def both(tap: str) -> list[Parameters]:
        return [view_of(c, tap, 0, victims, torch.arange(2), given).update for c in (exact, read)]

    gradient, weights = both("type-1")
    assert same(weights, rounded(gradient, given.network.parameters, length))
    assert not same(weights, gradient)
    inputs = exact.data.train_inputs[victims.indices]
    targets = one_hot(exact.data.train_targets[victims.indices], exact.data.classes)
    clock = exact.defense.clock(exact.settings.federation, 0)
    assert same(gradient, leak("type-1", given.network, inputs, targets, length / 2, Stations(), clock, None))
    assert same(*both("type-2"))


def attackable(cell: Cell, first: int, last: int) -> Cell:
    """Return the same cell, with only some examples as possible victims."""
    return dataclasses.replace(cell, data=dataclasses.replace(cell.data, victims=torch.arange(first, last)))


@pytest.mark.parametrize("tap", ["type-2", "type-1"])
def test_only_possible_victims_are_attacked(tap: str) -> None:
    """Victims and the other members of their batches are possible victims, and all victims differ."""
    few = attackable(paper(victims=10), 700, 730)
    drawn = draw_victims(few, tap, 0, hand_out(few)).indices
    assert drawn.shape == (10, 1, 1, 2)
    assert torch.isin(drawn, few.data.victims).all()
    assert len(set(drawn[:, 0, 0, 0].tolist())) == 10


def test_different_seeds_draw_different_victims() -> None:
    """In the paper protocol other examples, in the live one other clients, of the same federation."""
    zero, one = (draw_victims(paper(seed=seed), "type-1", 0, hand_out(paper())).indices for seed in (0, 1))
    assert not torch.isin(zero[..., 0], one[..., 0]).any()
    many = {"clients": 50, "clients_per_round": 1, "victims": 1}
    ten_each = Partition(50, 10, torch.ones(500).long(), lambda _: torch.arange(500).reshape(50, 10), 50)
    pair = [draw_victims(live(seed=seed, **many), "type-1", 0, ten_each).indices for seed in (0, 1)]
    owners = [set((drawn.flatten() // 10).tolist()) for drawn in pair]
    assert len(owners[0]) == len(owners[1]) == 1
    assert owners[0] != owners[1]


def test_different_seeds_draw_different_batch_members_and_batches() -> None:
    """All 40 examples and both clients are victims with either seed; the other batch members or used examples differ."""
    zero, one = (attackable(paper(victims=40, seed=seed), 0, 40) for seed in (0, 1))
    handed = hand_out(zero)
    fellows = [dict(draw_victims(c, "type-1", 0, handed).indices.flatten(1).tolist()) for c in (zero, one)]
    assert fellows[0].keys() == fellows[1].keys()
    assert sum(fellows[0][v] == fellows[1][v] for v in range(40)) < 10
    two = {"clients": 2, "clients_per_round": 1, "victims": 2}
    handed = hand_out(live(**two))
    used = [draw_victims(live(seed=seed, **two), "type-1", 0, handed).indices.flatten().tolist() for seed in (0, 1)]
    assert set(used[0]) != set(used[1])


@dataclasses.dataclass(frozen=True)
class Drawing:
    """An attack whose scores are its random draws."""

    seen: list[Tensor]

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Ranking:
        drawn = torch.stack([torch.rand(20, generator=rng) for rng in rngs])
        self.seen.append(drawn)
        return Ranking(drawn)


def test_an_attack_draws_separately_for_each_round_and_victim(tmp_path: Path) -> None:
    drawing = Drawing([])
    some = dataclasses.replace(live(taps=("type-1",)), attack=Attack(title="t", cite="c", method=drawing))
    with open_run(tmp_path / "run", identity(some, "test")) as run:
        execute(some, run, quiet)
    drawn = torch.cat([d for d in drawing.seen if len(d) == 2])
    assert drawn.shape == (4, 20)
    assert len({tuple(row) for row in drawn.tolist()}) == 4


def test_draws_of_a_network_differ_from_the_noise_of_stations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Separate generators, one for each of two victims."""
    some, handed = live(), []

    def spy(*arguments: Any) -> Parameters:
        handed.extend(arguments[-2:])
        return leak(*arguments)

    monkeypatch.setattr(victims_module, "leak", spy)
    view_of(some, "type-1", 0, draw_victims(some, "type-1", 0, hand_out(some)), torch.arange(2), sent(some))
    numbers = [tuple(torch.randn(5, generator=rng).tolist()) for rngs in handed for rng in rngs]
    assert len(numbers) == len(set(numbers)) == 4


def test_equal_leaks_share_a_search_only_with_equal_batch_sizes(tmp_path: Path) -> None:
    """One search on the same bits for one example is not a reconstruction for two."""
    some = paper(leak_batch=1)
    lanes = torch.arange(3)
    view = view_of(some, "type-1", 0, draw_victims(some, "type-1", 0, hand_out(some)), lanes, sent(some))
    with open_run(tmp_path / "run", identity(some, "test")) as run:
        assert _twin(run, "parts/first", (view,), lanes) is None
        run.write_tensors("parts/first.safetensors", {})
        run.write_rows("parts/first.parquet", pd.DataFrame({"none": []}))
        assert _twin(run, "parts/same", (view,), lanes) == "parts/first"
        assert _twin(run, "parts/other", (dataclasses.replace(view, batch=2),), lanes) is None


def test_leaks_with_different_stations_on_a_guess_do_not_share_a_search(tmp_path: Path) -> None:
    """A clip that kept the update still clips a guess; without knowledge of a defense the search is the same at all points."""
    some = paper(leak_batch=1)
    lanes = torch.arange(3)
    taps = [
        view_of(some, t, 0, draw_victims(some, t, 0, hand_out(some)), lanes, sent(some)) for t in ("type-2", "type-1")
    ]
    update, batch = taps[0].update, taps[1].batch
    alike = [dataclasses.replace(view, update=update, batch=batch) for view in taps]
    for number, stations in enumerate((Stations(), Stations(client=(ClipWhole(1e9),)))):
        one, other = ((dataclasses.replace(view, stations=stations),) for view in alike)
        with open_run(tmp_path / str(number), identity(some, "test")) as run:
            assert _twin(run, "parts/first", one, lanes) is None
            run.write_tensors("parts/first.safetensors", {})
            run.write_rows("parts/first.parquet", pd.DataFrame({"none": []}))
            assert _twin(run, "parts/other", other, lanes) == ("parts/first" if not stations.client else None)


def test_type_2_is_the_gradient_of_the_first_example_with_its_draws() -> None:
    """For a sampling network, in batches of 2 over 2 iterations: as behind a station that changes nothing."""
    model = Precode(width=8)(
        build("mlp_256", (1, 8, 8), 10, generator(0, "model")), (1, 8, 8), 10, generator(0, "more")
    )
    network = Network(model, parameters(model))
    assert network.draws > 0
    inputs = torch.rand(3, 1, 2, 2, 1, 8, 8, generator=generator(0, "inputs"))
    targets = one_hot(torch.arange(12).remainder(10).reshape(3, 1, 2, 2), 10)

    def seen(stations: Stations) -> Parameters:
        draws = generators(0, "leak draws", [(v,) for v in range(3)])
        return leak("type-2", network, inputs, targets, 0.1, stations, Clock(0, 0, 1, 2), None, draws)

    alone, let_through = seen(Stations()), seen(Stations(example=(ClipWhole(1e6),)))
    for name, gradient in let_through.items():
        torch.testing.assert_close(alone[name], gradient, rtol=1e-4, atol=1e-6)
