"""Targets of other tasks than classes: solved from the last layer, searched, and reconstructed with the inputs."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import leakbench
from leakbench.attack.slots.labels import Joint, Solved, solved_targets
from leakbench.core.rng import generators
from leakbench.core.task import Head, Heads, with_task
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipWhole
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import parameters

VICTIMS = 6
HEADS = {
    "labels": Heads((Head("labels", "labels", 5),)),
    "numbers": Heads((Head("age", "numbers", 3, center=(0.5, 0.5, 0.5)),)),
    "classes": Heads((Head("class", "classes", 4),)),
    "mask": Heads((Head("mask", "labels", 1, (2, 3)),)),
    "several": Heads(
        (Head("mask", "labels", 1, (2, 2)), Head("class", "classes", 4), Head("age", "numbers", 2, center=(0.5, 0.5)))
    ),
}


def leaked(heads: Heads, batch: int = 1, stations: Stations | None = None) -> tuple[View, Tensor]:
    rng = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Sigmoid(), nn.Linear(16, heads.size)).double().eval()
    for p in model.parameters():
        nn.init.normal_(p, 0, 0.4, generator=rng)
    network = Network(with_task(model, heads), parameters(model))
    x = torch.rand(VICTIMS, 1, 1, batch, 3, 4, generator=rng, dtype=torch.float64)
    free = torch.randn(VICTIMS, 1, 1, batch, heads.size, generator=rng, dtype=torch.float64)
    y, stations = heads.decided(heads.possible(free)), stations or Stations()
    update = leak("type-1", network, x, y, 0.1, stations, Clock(0, 0, 1, 1), None)
    view = View("type-1", network, update, batch, (3, 4), heads.size, 0.1, stations=stations)
    return view, y.reshape(VICTIMS, batch, -1)


@pytest.mark.parametrize("kind", HEADS)
def test_the_last_layer_shows_the_targets_of_one_example(kind: str) -> None:
    view, targets = leaked(HEADS[kind])
    solved = solved_targets(view)
    assert solved is not None
    torch.testing.assert_close(solved, targets, rtol=0, atol=1e-8)


def test_behind_a_clip_labels_are_still_shown_and_numbers_are_searched() -> None:
    clip = Stations(client=(ClipWhole(norm=0.01),))
    view, targets = leaked(HEADS["labels"], stations=clip)
    solved = solved_targets(view)
    assert solved is not None and torch.equal(solved, targets)
    assert solved_targets(leaked(HEADS["numbers"], stations=clip)[0]) is None


def test_targets_of_a_batch_and_of_an_own_loss_are_searched() -> None:
    rngs = generators(0, "attack", [(v,) for v in range(VICTIMS)])
    view, _ = leaked(HEADS["labels"], batch=3)
    guess = Solved()(view, rngs)
    assert guess.joint and guess.targets.shape == (VICTIMS, 3, 5)
    own = Heads(HEADS["labels"].heads, lambda z, t: (z - t).square().mean(1))
    view, _ = leaked(own)
    assert solved_targets(view) is None and Joint()(view, rngs).joint


@pytest.mark.parametrize("targets", ["properties", "mask", "mask_and_class"])
def test_a_run_reconstructs_inputs_and_targets(targets: str, tmp_path: Path) -> None:
    result = leakbench.run(
        dataset="digits",
        targets=targets,
        attack="whitened_public",
        taps=("type-2",),
        train_rounds=0,
        victims=2,
        networks=1,
        candidates=10,
        iterations=20,
        out=tmp_path,
    )
    tap = result.summary["taps"]["type-2"]
    assert tap["label_accuracy"] is None and tap["label_ranked"] is None
    assert tap["identified"] == 1
    assert tap["null_target_error"] > 0
    if targets == "properties":  # Read from the last layer without a search.
        assert tap["target_error"] == 0
    assert result.table()["baseline_target_error"].item() == pytest.approx(tap["null_target_error"])
    assert "target" in str(result)
