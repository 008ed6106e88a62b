"""The gradient of a batch one example at a time: the same numbers and derivatives as that of the whole batch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack import public_gradients
from leakbench.core.types import Clock, Network
from leakbench.defense.transform import Stations
from leakbench.engine import saved
from leakbench.experiment import stage_attack
from leakbench.federated import client
from leakbench.federated.leakage import leak
from leakbench.federated.view import Public, View
from leakbench.models import parameters
from leakbench.models.batch_norm import BatchNorm, in_client_mode

SHAPE, CLASSES = (3, 64, 64), 4


def _network(mode: str) -> Network:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 4, 5, stride=4),
        BatchNorm(4),
        nn.Sigmoid(),
        nn.Conv2d(4, 2, 3, stride=4),
        nn.Flatten(),
        nn.Linear(32, 4),
    ]
    model = in_client_mode(nn.Sequential(*layers), mode).double()
    return Network(model, parameters(model), engine="reference")


def _derivatives(network: Network, steps: int) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
    rng = torch.Generator().manual_seed(1)
    x = torch.rand(2, 1, steps, 3, *SHAPE, generator=rng, dtype=torch.float64, requires_grad=True)
    y = torch.rand(2, 1, steps, 3, CLASSES, generator=rng, dtype=torch.float64, requires_grad=True)
    update = leak("type-1", network, x, y, 0.1, Stations(), Clock(0, 0, 1, steps), None)
    return update, torch.autograd.grad(sum(u.square().sum() for u in update.values()), (x, y))


@pytest.mark.parametrize(("mode", "steps", "alone"), [("eval", 1, True), ("eval", 2, True), ("train", 1, False)])
def test_numbers_and_derivatives_are_the_same(
    mode: str, steps: int, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = _network(mode)
    whole, slopes = _derivatives(network, steps)
    calls = []
    summed = client.summed_by_member
    monkeypatch.setattr(client, "summed_by_member", lambda *given: calls.append(1) or summed(*given))
    monkeypatch.setattr(saved, "MOST_SAVED", 0)
    update, again = _derivatives(network, steps)
    assert bool(calls) == alone
    for name, u in whole.items():
        torch.testing.assert_close(update[name], u)
    for one, other in zip(slopes, again, strict=True):
        torch.testing.assert_close(one, other)


def test_the_estimate_is_that_of_one_example_where_it_is_computed_alone() -> None:
    network = _network("eval")
    counted = saved.activations(network, SHAPE)
    # The outputs of the layers: 4 x 15 x 15 three times, 2 x 4 x 4 twice (flattened too), and the logits.
    assert counted == 3 * 4 * 15 * 15 + 2 * 2 * 4 * 4 + 4
    assert saved.activations(network, (3, 32, 32)) == 0
    weights = sum(p.numel() for p in network.parameters.values())
    assert saved.search_bytes(network, SHAPE, 3, mixes=True) == 4 * (7 * weights + 9 * counted)
    many = saved.MOST_SAVED // counted
    assert saved.search_bytes(network, SHAPE, many, mixes=False) == 4 * (7 * weights + 3 * counted)
    assert saved.search_bytes(network, SHAPE, many, mixes=True) == 4 * (7 * weights + 3 * many * counted)


def test_the_bytes_of_a_chunk_of_gradients_are_those_of_its_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes its gradient while it is computed and three copies of it; `CHUNK` limits how many are computed at once."""
    network = _network("eval")
    counted = saved.activations(network, SHAPE)
    weights = sum(p.numel() for p in network.parameters.values())
    each = 8 * 3 * weights + 4 * 3 * (
        weights + counted
    )  # The network has float64 numbers; the estimate of a gradient has 4 bytes.
    for examples in (1, 5):
        monkeypatch.setattr(public_gradients, "CHUNK", examples * saved.gradient_bytes(network, SHAPE))
        assert public_gradients.chunk_bytes(network, SHAPE) == examples * each
    several = {name: torch.stack([p, p]) for name, p in network.parameters.items()}
    lanes = Network(network.model, several, shared=False)
    assert public_gradients.chunk_bytes(lanes, SHAPE) == public_gradients.chunk_bytes(network, SHAPE)


def test_a_chunk_has_at_most_64_gradients_and_600_mb_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate counts the examples that `gradients_alone` computes at once: of a small network, 64."""
    network = _network("eval")
    weights = sum(p.numel() for p in network.parameters.values())
    each = saved.gradient_bytes(network, SHAPE) + 8 * 3 * weights
    view = View("type-2", network, {}, 1, SHAPE, CLASSES, 0.1)
    public = Public(torch.rand(70, *SHAPE, dtype=torch.float64), torch.zeros(70, dtype=torch.int64))
    monkeypatch.setattr(public_gradients, "CHUNK", 10**12)
    assert public_gradients.chunk_bytes(network, SHAPE) == 64 * each
    assert [len(g) for g in public_gradients.gradients_alone(view, public)] == [64, 6]
    monkeypatch.setattr(public_gradients, "STORED", 30 * 4 * weights)
    assert public_gradients.chunk_bytes(network, SHAPE) == 30 * each
    assert [len(g) for g in public_gradients.gradients_alone(view, public)] == [30, 30, 10]


def test_the_estimate_of_a_run_counts_its_parts_once() -> None:
    """The process, freed memory, two copies of the pictures, five of the weights, and the larger of searches and rankings."""
    network = _network("eval")
    weights = sum(p.numel() for p in network.parameters.values())
    sizes = {"train_targets": torch.zeros(6), "test_targets": torch.zeros(4), "victims": torch.arange(5)}
    data = SimpleNamespace(shape=SHAPE, classes=CLASSES, **sizes)
    ranking = 2 * 4 * CLASSES * weights + public_gradients.chunk_bytes(network, SHAPE)
    base = 700_000_000 + 512 * 1024**2 + (2 * 4 * 10 + 5 * 8 * 5) * 3 * 64 * 64 + 20 * weights
    assert stage_attack.needed_bytes(network, data, 0) == base + ranking
    assert stage_attack.needed_bytes(network, data, ranking + 8) == base + ranking + 8
