"""A client or an example that diverges moves the released model by no more than its bound, on every path of the training."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

import leakbench
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network, Signal
from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset
from leakbench.data.partition import Iid, Partition
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.augmentation import copies_of
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.oasis import Oasis
from leakbench.defense.prune import PruneThreshold
from leakbench.defense.quantile import ClipQuantile
from leakbench.defense.sign import Sign
from leakbench.defense.transform import Stations, Transform
from leakbench.federated import simulate
from leakbench.federated.client import Examples, client_update, mean_update
from leakbench.federated.leakage import leak
from leakbench.federated.simulate import MEMBERS, Round, from_tensors, to_tensors, train
from leakbench.models import build, one_hot, parameters
from leakbench.summary.warnings import _zeroed

SHAPE, CLASSES, LANES, STEPS, BATCH = (1, 10, 10), 4, 3, 2, 4
CLOCK = Clock(0, 0, 1, STEPS)
BAD = (math.nan, math.inf, 3e38, 1e25)


def network(name: str = "mlp_sigmoid", engine: str = "fast") -> Network:
    model = build(name, SHAPE, CLASSES, generator(0, "model"))
    return Network(model, parameters(model), engine=engine)


def examples(**other: Any) -> Examples:
    rng = generator(1, "data")
    inputs = torch.rand(LANES, STEPS, BATCH, *SHAPE, generator=rng)
    targets = one_hot(torch.randint(CLASSES, (LANES, STEPS, BATCH), generator=rng), CLASSES)
    return Examples(inputs, targets, torch.ones(LANES, STEPS, BATCH), BATCH, **other)


def poisoned(plain: Examples, value: float, where: tuple[int, ...] = (1, 0, 2)) -> Examples:
    inputs = plain.inputs.clone()
    inputs[where] = value
    return dataclasses.replace(plain, inputs=inputs)


def flat(signal: Signal) -> Tensor:
    return torch.cat([g.flatten(1) for g in signal.grads.values()], 1)


def rngs() -> tuple[torch.Generator, ...]:
    return generators(0, "noise", [(lane,) for lane in range(LANES)])


@pytest.mark.parametrize("clip", [ClipWhole(0.5), ClipLayers(0.5)])
@pytest.mark.parametrize("name", ["mlp_sigmoid", "cnn"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_an_example_that_is_not_finite_counts_as_zero_on_every_path(clip: Transform, name: str, value: float) -> None:
    """Merged, one by one and by torch.func; it equals the same training with padding there, and others are bit-identical."""
    stations = Stations(example=(clip, GaussianNoise(0.0, "each")))
    found = []
    for engine, alone in (("fast", False), ("fast", True), ("reference", True)):
        bad = poisoned(examples(alone=alone), value)
        weights = torch.ones(LANES, STEPS, BATCH)
        weights[1, 0, 2] = 0
        without = dataclasses.replace(examples(alone=alone), weights=weights)
        after, plain = (mean_update(network(name, engine), e, 0.1, stations, CLOCK, rngs()) for e in (bad, without))
        assert torch.equal(flat(after)[[0, 2]], flat(plain)[[0, 2]])
        torch.testing.assert_close(flat(after), flat(plain), rtol=1e-5, atol=1e-7)
        assert after.zeroed["example"].tolist() == [0, 1, 0] and plain.zeroed == {}
        found.append(flat(after))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found[0], found[2], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("engine", ["fast", "reference"])
def test_examples_of_several_steps_are_counted_together(engine: str) -> None:
    stations = Stations(example=(ClipWhole(0.5), GaussianNoise(0.0, "each")))
    bad = poisoned(poisoned(examples(), math.nan), math.inf, (1, 1, 3))
    assert mean_update(network(engine=engine), bad, 0.1, stations, CLOCK, rngs()).zeroed["example"].tolist() == [
        0,
        2,
        0,
    ]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(
    "example", [(), (ClipWhole(0.5),), (ClipQuantile(0.5),), (PruneThreshold(0.5), ClipWhole(0.5))]
)
def test_padding_contributes_nothing_whatever_it_is(example: tuple[Transform, ...], alone: bool, value: float) -> None:
    """A Poisson batch is padded with examples that were not drawn; a weight of zero does not remove an infinite gradient."""
    weights = torch.ones(LANES, STEPS, BATCH)
    weights[1, 0, 2] = 0
    padded = dataclasses.replace(examples(alone=alone), weights=weights)
    targets = padded.targets.clone()
    targets[1, 0, 2, 1] = value
    one, other = (
        mean_update(network("cnn"), e, 0.1, Stations(example=example), CLOCK, rngs())
        for e in (padded, dataclasses.replace(poisoned(padded, value), targets=targets))
    )
    assert flat(one).isfinite().all() and torch.equal(flat(one), flat(other))
    assert not other.zeroed


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("clip", [ClipWhole(0.5), ClipLayers(0.5), ClipQuantile(0.5), Sign(size=0.01)])
@pytest.mark.parametrize("station", ["batch", "client"])
def test_a_client_that_diverges_is_bounded(station: str, clip: Transform, value: float) -> None:
    """The clip acts on the mean gradient of a batch or on the whole update; the other clients are bit-identical."""
    stations = Stations(**{station: (clip,)})
    after, plain = (
        client_update(network("cnn"), e, 0.1, stations, CLOCK, rngs())
        for e in (poisoned(examples(), value), examples())
    )
    assert torch.equal(flat(after)[[0, 2]], flat(plain)[[0, 2]])
    bound = next(
        fact.norm
        for fact in client_update(network("cnn"), examples(), 0.1, Stations(client=(clip,)), CLOCK, None).facts
    )
    longest = bound * (0.1 * STEPS if station == "batch" else 1)
    assert float(flat(after)[1].double().norm()) <= longest * (1 + 1e-5)
    if not math.isfinite(value):
        assert after.zeroed["batch" if station == "batch" else "update"].tolist() == [0, 1, 0]


def test_a_search_sees_that_the_gradient_of_its_guess_is_not_finite() -> None:
    """Zeros could be closer to an update with much noise than any guess."""
    inputs, targets = torch.rand(2, 1, 1, 1, *SHAPE), one_hot(torch.zeros(2, 1, 1, 1, dtype=torch.int64), CLASSES)
    inputs[1] = math.inf
    for tap in ("type-2", "type-1", "type-0"):
        stations = Stations(example=(ClipWhole(1.0),), client=(ClipWhole(1.0),), server=(ClipWhole(1.0),))
        update = leak(tap, network(), inputs, targets, 0.1, stations, Clock(0, 0, 1, 1), None)
        assert all(bool(g[0].isfinite().all()) and bool(g[1].isnan().all()) for g in update.values())


def test_a_search_sees_each_client_that_got_a_network_of_its_own() -> None:
    sent = network()
    own = {n: torch.stack([p, p]) for n, p in sent.parameters.items()}
    inputs = torch.rand(1, 2, 1, 1, *SHAPE)
    targets = one_hot(torch.zeros(1, 2, 1, 1, dtype=torch.int64), CLASSES)
    stations, clock = Stations(client=(ClipWhole(1.0),)), Clock(0, 0, 1, 1, cohort=2)
    for client in range(2):
        bad = inputs.clone()
        bad[0, client] = math.inf
        update = leak("type-0", dataclasses.replace(sent, own=own), bad, targets, 0.1, stations, clock, None)
        assert all(bool(g.isnan().all()) for g in update.values())


def poisoned_data(rows: Tensor) -> Dataset:
    """Return digits with infinite inputs in some rows of the training split."""
    data = load_dataset("digits")[2]
    inputs = data.train_inputs.clone()
    inputs[rows] = math.inf
    return dataclasses.replace(data, train_inputs=inputs)


def trained(recipe: str, data: Dataset, partition: Partition, **other: Any) -> list[Round]:
    defense = resolve("defenses", Defense, recipe)[1]
    model = build("mlp_sigmoid", data.shape, data.classes, generator(0, "model"))
    return list(train(Network(model, parameters(model)), data, partition, FEDERATION, defense, 0, **other))


FEDERATION = Federation(rounds=3, batch=4, examples_per_client=20, clients=6, clients_per_round=6, local_iterations=2)


def handed() -> tuple[Partition, Tensor]:
    """Return the partition of the digits, and the rows of client 1."""
    data = load_dataset("digits")[2]
    partition = Iid()(data.train_targets, FEDERATION.clients, FEDERATION.examples_per_client, generator(0, "partition"))
    return partition, partition.of(torch.tensor([1]))[0]


@pytest.mark.parametrize("recipe", ["fed_sdp_server_flat", "fed_sdp_client_flat", "quantile_client", "sign_client"])
def test_a_client_without_finite_data_counts_as_zero_in_every_round(recipe: str) -> None:
    partition, rows = handed()
    rounds = trained(recipe, poisoned_data(rows), partition)
    for now in rounds:
        assert all(bool(p.isfinite().all()) for p in now.parameters.values())
        assert now.members == {
            **dict.fromkeys(MEMBERS, 0.0),
            **{"examples": 48.0, "batches": 12.0, "updates": 6.0, "updates_zeroed": 1.0},
        }


def test_a_client_that_diverges_once_has_finite_control_variates() -> None:
    """The server clips, so that the update that it gets of this client is not finite."""
    partition, rows = handed()
    defense = resolve("defenses", Defense, "fed_sdp_server_flat")[1]
    data, federation = poisoned_data(rows), dataclasses.replace(FEDERATION, algorithm="scaffold")
    model = build("mlp_sigmoid", data.shape, data.classes, generator(0, "model"))
    for now in train(Network(model, parameters(model)), data, partition, federation, defense, 0):
        assert now.members["updates_zeroed"] == 1
        assert all(bool(value.isfinite().all()) for value in now.memory.values())


def test_the_counts_do_not_depend_on_chunks_and_survive_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    partition, rows = handed()
    data = poisoned_data(rows[:10])
    whole = trained("fed_cdp_valid", data, partition)
    assert all(now.members["examples_zeroed"] > 0 == now.members["updates_zeroed"] for now in whole)
    monkeypatch.setattr(simulate, "lanes_per_chunk", lambda *_, **__: 1)
    apart = trained("fed_cdp_valid", data, partition)
    assert [now.members for now in apart] == [now.members for now in whole]
    first = whole[0]
    row = {name: float(getattr(first, name)) for name in ("round", "accuracy", "loss")} | first.members
    row |= {"between_client_variance": 0.0, "update_scale": 0.0}
    later = trained("fed_cdp_valid", data, partition, done=from_tensors(to_tensors(first), row))
    assert [now.members for now in later] == [now.members for now in whole[1:]]
    assert from_tensors(to_tensors(first), row).members == first.members


def test_the_counts_of_all_clients_of_a_cohort_are_added() -> None:
    lost = torch.tensor([[True], [True], [False], [True]])
    signal = Signal({"a": torch.ones(4, 1, 2)}).without(lost).gathered(2)
    assert signal.zeroed["update"].tolist() == [2, 1]


def test_transformed_copies_of_an_example_are_members_too() -> None:
    defense = Defense(title="t", cite="c", unit="example", inputs=(Oasis(),))
    copies = copies_of(defense.inputs)
    found = simulate._members(Signal({"a": torch.zeros(1, 1, 1)}), torch.full((8,), 2), 2, CLOCK, defense, {})
    assert copies > 1 and found["examples"] == 16 * copies


def test_a_run_says_how_many_members_counted_as_zero() -> None:
    rounds = pd.DataFrame({name: [0.0, 0.0] for name in MEMBERS})
    assert _zeroed(rounds) == _zeroed(rounds.drop(columns=list(MEMBERS))) == []
    rounds["updates"], rounds["updates_zeroed"] = [250.0, 250.0], [0.0, 2.0]
    rounds["examples"], rounds["examples_zeroed"] = [64.0, 64.0], [1.0, 0.0]
    assert _zeroed(rounds) == [
        "training: 1 of 128 example gradients was not finite and counted as zero; a lower --learning-rate may help",
        "training: 2 of 500 updates were not finite and counted as zero; a lower --learning-rate may help",
    ]


@pytest.mark.slow
def test_the_warning_reaches_the_summary() -> None:
    """A learning rate at which the updates of a client overflow; the clip at the client keeps the model finite."""
    run = leakbench.run(
        defense="fed_sdp_client_flat", dataset="digits", learning_rate=1e30, train_rounds=2, local_iterations=3,
        victims=2, candidates=10, iterations=1, taps=("type-2",),
    )  # fmt: skip
    assert any("updates were not finite and counted as zero" in line for line in run.summary["warnings"])
