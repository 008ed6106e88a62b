"""Parallel chunks: in order, complete, with the first error raised, and the number of threads restored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from leakbench.attack.looks import cut_of
from leakbench.attack.methods import gradient_matching
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.core.answers import Reconstruction
from leakbench.core.recipe import construct
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Generators, Network, Signal
from leakbench.defense.clip import ClipLayers
from leakbench.defense.soteria import Soteria
from leakbench.defense.transform import Stations
from leakbench.engine import memory
from leakbench.engine.budget import lanes_within
from leakbench.engine.side_by_side import Pieces, pieces_of, shares_of, side_by_side
from leakbench.federated.client import runs_apart
from leakbench.federated.view import View
from leakbench.models import parameters


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_chunks_run_on_separate_threads_and_return_in_order(two_threads: None) -> None:
    together = threading.Barrier(2, timeout=10)

    def piece(number: int) -> tuple[int, int]:
        together.wait()  # Breaks if one chunk waits for another's end.
        return number, torch.get_num_threads()

    assert side_by_side([partial(piece, n) for n in range(4)]) == [(n, 1) for n in range(4)]
    assert torch.get_num_threads() == 2
    fresh = list[int]()
    other = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert fresh == [2]


def test_an_error_of_a_chunk_is_raised_and_threads_are_restored(two_threads: None) -> None:
    def fails() -> int:
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        side_by_side([lambda: 1, fails, lambda: 2])
    assert torch.get_num_threads() == 2


@given(st.integers(1, 200), st.integers(1, 50))
def test_chunks_cover_all_lanes_once_within_the_size_limit(count: int, size: int) -> None:
    found = pieces_of(count, size)
    assert [i for where in found for i in range(count)[where]] == list(range(count))
    lengths = [where.stop - where.start for where in found]
    assert min(lengths) >= 1 and max(lengths) <= size
    assert max(lengths) - min(lengths) <= 1


def test_threads_do_not_share_networks_with_user_code() -> None:
    class Elsewhere:
        def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
            return signal

    chain, other = nn.Sequential(nn.Linear(3, 2)), nn.Linear(3, 2)
    sent = Network(chain, parameters(chain))
    assert runs_apart(sent, Stations(example=(ClipLayers(norm=1.0),)), (3,))
    assert not runs_apart(sent, Stations(example=(Soteria(share=0.5),)), (3,))
    assert not runs_apart(sent, Stations(client=(Elsewhere(),)), (3,))
    assert not runs_apart(Network(other, parameters(other)), Stations(), (3,))
    assert not runs_apart(Network(chain, parameters(chain), engine="reference"), Stations(), (3,))
    # On rows of three numbers, a linear layer acts on each row: the network's own code.
    assert not runs_apart(sent, Stations(), (2, 3))


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 9))
def test_shares_cover_all_lanes_once_and_none_is_empty(count: int, size: int, threads: int) -> None:
    """Also for fewer lanes than threads, where each lane fills the caches alone."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: threads)
        found = shares_of(count, size)
    assert [i for share in found for i in range(share.start, share.stop)] == list(range(count))
    assert all(share.start < share.stop for share in found) and len(found) <= threads


def test_a_cut_gives_chunks_and_threads(two_threads: None) -> None:
    assert Pieces(None).pieces(7) == Pieces(None).shares(7) == [slice(0, 7)]
    assert Pieces(2).pieces(8) == pieces_of(8, 2) and Pieces(2).shares(8) == shares_of(8, 2)
    one = [torch.get_num_threads]
    assert (Pieces(None)(one), Pieces(1)(one), Pieces(2)(one)) == ([2], [2], [1])


def test_searches_are_cut_where_threads_may_share_the_network() -> None:
    chain = nn.Sequential(nn.Linear(3, 2))

    def shown(engine: str = "fast", stations: Stations = Stations(), model: nn.Module = chain) -> View:  # noqa: B008
        network = Network(model, parameters(model), engine=engine)
        update = {n: torch.zeros(2, *p.shape) for n, p in model.named_parameters()}
        return View("type-2", network, update, 1, (3,), 2, 0.1, stations=stations)

    # A gradient of 8 numbers and an input of 3, 4 bytes each, in 16 MB.
    assert cut_of((shown(),)) == Pieces(16_000_000 // 44)
    assert cut_of((shown(engine="reference"),)) == Pieces(None)
    assert cut_of((shown(stations=Stations(example=(Soteria(share=0.5),))),)) == Pieces(None)
    assert cut_of((shown(), shown(engine="reference"))) == Pieces(None)


def test_lanes_within_a_budget() -> None:
    assert [lanes_within(100, each) for each in (1, 30, 1000, 0)] == [100, 3, 1, 100]
    assert lanes_within(100, 1, most=64) == 64 and lanes_within(100, 30, most=64) == 3


def test_small_chunks_have_one_thread_and_few_lanes_one_chunk(two_threads: None) -> None:
    counts = side_by_side([torch.get_num_threads], 1)
    assert (counts, torch.get_num_threads()) == ([1], 2)
    assert side_by_side([torch.get_num_threads]) == [2]
    assert len(shares_of(14, 3)) == len(pieces_of(14, 14)) == 2
    # Threads that wait for each other's small operations gain nothing.
    assert len(shares_of(7, 16)) == len(pieces_of(7, 16)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [1, 2])
def test_searches_in_shares_find_what_they_find_together(
    restarts: int, two_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = generator(0, "shares")
    model = nn.Sequential(nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 3)).double()
    weights = {n: torch.randn(p.shape, generator=rng, dtype=torch.float64) for n, p in model.named_parameters()}
    update = {n: torch.randn(7, *w.shape, generator=rng, dtype=torch.float64) for n, w in weights.items()}
    view = View("type-2", Network(model, weights), update, 1, (5,), 3, 0.1)
    parts = {"labels": "last_layer", "start": "normal", "distance": "squared_l2", "descent": "lbfgs"}
    attack = construct(GradientMatching, {**parts, "stop": {"iterations": {"limit": 5}}, "restarts": restarts})

    def answered(size: int | None) -> Reconstruction:
        monkeypatch.setattr(gradient_matching, "cut_of", lambda views: Pieces(size))
        return attack((view,), generators(0, "attack", [(v,) for v in range(7)]))

    apart, whole = answered(3), answered(None)
    for name in ("inputs", "labels", "certainty", "trajectory", "steps", "evaluations", "iterates", "spent"):
        torch.testing.assert_close(getattr(apart, name), getattr(whole, name), rtol=1e-5, atol=1e-8, equal_nan=True)
    assert apart.snapshots == whole.snapshots


@pytest.mark.parametrize("lanes", [[0, 1, 2], [1, 2], [2], [2, 1], [0, 2], [1, 1], []])
def test_the_leak_of_some_victims_does_not_depend_on_their_positions(lanes: list[int]) -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    update = {n: torch.randn(3, *p.shape) for n, p in model.named_parameters()}
    view = View("type-2", Network(model, parameters(model)), update, 1, (3,), 2, 0.1)
    for name, some in view.observed(torch.tensor(lanes, dtype=torch.int64)).items():
        assert torch.equal(some, torch.stack([update[name][i] for i in lanes]) if lanes else update[name][:0])


def test_the_memory_limit_of_the_environment_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000")
    assert not memory.keep_freed_memory()
