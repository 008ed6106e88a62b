"""The references of one leakage point: the number of releases, the distinct examples in an update, and reasons for no reference."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.servers.head import Latents
from leakbench.attack.servers.imprint import Bins
from leakbench.attack.servers.peftleak import Layout, PatchBins
from leakbench.attack.servers.scale_mia import LatentBins
from leakbench.cell import Cell, Request
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.data.partition import Partition
from leakbench.experiment.victims import Sent, draw_victims, truth
from leakbench.limits import reference as module
from leakbench.limits.guards import Guard
from leakbench.limits.reference import Reference, alone_in_a_bin, ideal, prior_of, reference
from leakbench.models import parameters

GUARD = Guard(0.2, "", "example", (), 0.1, "")
BINS = 16


@pytest.fixture(scope="module")
def cell() -> Cell:
    asked = Request(dataset="faces", attack="imprint", victims=3, leak_batch=2, taps=("type-1",), train_rounds=0)
    return prepare(dataclasses.replace(asked, success=0.1, leak_model="lenet_cpl"), None)


@pytest.fixture(scope="module")
def partition(cell) -> Partition:
    return hand_out(cell)


def sent(clients: int = 1) -> Sent:
    model = nn.Linear(2, 2)
    edges = torch.linspace(0, 1, BINS + 1)
    lower, upper = (e.repeat(clients) for e in (edges[:-1], edges[1:]))
    bins = Bins("rows", torch.ones(2) / 2, lower, upper, torch.ones(BINS * clients), False, clients)
    return Sent(Network(model, parameters(model)), bins)


def found(cell: Cell, partition: Partition, guard: Guard = GUARD, clients: int = 1) -> Reference:
    return reference(cell, sent(clients), "type-1", 0, partition, guard, prior_of(cell))


def test_n_releases_are_noise_over_the_root_of_n(cell, partition):
    """Four of sigma .2 equal one of .1, with the `ideal` value of the victims' examples."""
    four, one = (found(cell, partition, dataclasses.replace(GUARD, sigma=s, views=n)) for s, n in ((0.2, 4), (0.1, 1)))
    assert (four.asr, four.rmse) == (one.asr, one.rmse)
    inputs = truth(cell, "type-1", draw_victims(cell, "type-1", 0, partition))[0].flatten(2).flatten(0, 1)
    prior = prior_of(cell)
    assert prior is not None
    rmse, reached = ideal(prior.inputs, inputs, 0.1, 0.1, generator(0, "ideal server"))
    assert (four.rmse, four.asr) == (float(rmse.median()), float(reached.mean()))
    assert four.rmse != found(cell, partition).rmse
    missing = found(cell, partition, dataclasses.replace(GUARD, sigma=None, reason="none: why"))
    assert (missing.asr, missing.rmse, missing.no_ideal) == (None, None, "none: why")


def indices_are(monkeypatch: pytest.MonkeyPatch, indices: Tensor) -> None:
    """Set the examples (V, M) behind the victims' updates."""
    shown = torch.rand(*indices.shape, 625, generator=generator(0, "x"))
    monkeypatch.setattr(module, "truth", lambda *_: (shown, torch.zeros_like(indices), indices))


@pytest.mark.parametrize(
    ("clients", "indices", "distinct"),
    [
        (1, [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 3, 3], [0, 1, 2, 3, 4, 4]], 4),
        (2, [[0, 1, 2, 0, 1, 2], [0, 1, 2, 6, 7, 7]], 2),
        (3, [[0, 1, 0, 1, 0, 1]], 2),
        (1, [[0, 1, 0, 1, 0, 1]], 2),
        (1, [[0, 0, 0]], 1),
    ],
)
def test_the_law_counts_distinct_examples_of_one_client_and_of_the_victim_with_fewest(
    cell, partition, monkeypatch, clients, indices, distinct
):
    """An example that two local steps use counts once; clients with separate blocks are counted separately."""
    indices_are(monkeypatch, torch.tensor(indices))
    assert found(cell, partition, clients=clients).alone == alone_in_a_bin(BINS, distinct)


@pytest.mark.parametrize("bins", [8, 16])
def test_bins_of_latents_have_the_same_law(cell, partition, monkeypatch, bins):
    """Scale-MIA has the bins of the first linear layer: four examples are (1 - 1 / k)^3 alone."""
    indices_are(monkeypatch, torch.arange(4)[None])
    edges = torch.linspace(0, 1, bins + 1)
    of_latents = Bins("rows", torch.ones(2) / 2, edges[:-1], edges[1:], torch.ones(bins), True)
    latents = LatentBins(of_latents, Latents(None, torch.zeros(1, 2), None))
    shown = reference(cell, dataclasses.replace(sent(), secret=latents), "type-1", 0, partition, GUARD, prior_of(cell))
    assert (shown.alone, shown.no_alone) == (pytest.approx((1 - 1 / bins) ** 3), "")


def test_bins_of_patches_have_a_law_of_patches_and_not_of_examples(cell, partition, monkeypatch):
    """2 adapters of 5 rows: 8 bins, 2 for each of 4 positions, so that half of the patches of two pictures are alone."""
    indices_are(monkeypatch, torch.arange(2)[None])
    nothing = torch.zeros(1)
    bins = PatchBins(("a", "b"), torch.zeros(2, 5), 1.0, Layout(1, 4), nothing, nothing, 4, nothing)
    shown = reference(cell, dataclasses.replace(sent(), secret=bins), "type-1", 0, partition, GUARD, prior_of(cell))
    assert shown.alone is None
    assert shown.no_alone == "none: bins of patches; 0.500 of the patches are expected to be alone in their bin"


def test_more_blocks_than_clients_count_as_one_each(cell, partition, monkeypatch):
    """One example in each block shares no bin."""
    indices_are(monkeypatch, torch.tensor([[0, 1]]))
    assert found(cell, partition, clients=4).alone == 1.0


@pytest.mark.parametrize(("many", "there"), [(2 * BINS, True), (2 * BINS + 1, False)])
def test_the_law_applies_up_to_two_examples_a_bin(cell, partition, monkeypatch, many, there):
    indices_are(monkeypatch, torch.arange(many)[None])
    shown = found(cell, partition)
    assert (shown.alone is not None) == there == (shown.no_alone == "")
    assert there or shown.no_alone.startswith("none: more than two examples a bin")


def test_references_need_bins_and_a_malicious_server(cell, partition):
    bare = dataclasses.replace(sent(), secret=None)
    shown = reference(cell, bare, "type-1", 0, partition, GUARD, prior_of(cell))
    assert (shown.alone, shown.no_alone) == (None, "none: no bins that each hold what is alone in them")
    assert shown.rmse is not None
    silent = reference(cell, bare, "type-1", 0, partition, GUARD, None)
    assert (silent.alone, silent.asr, silent.rmse) == (None, None, None)
