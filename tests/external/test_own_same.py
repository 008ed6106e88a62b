"""An attack on an external update and on a benchmark run give the same result for the same gradient."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from torch import nn

import leakbench
from leakbench.cell import Cell, Request, identity
from leakbench.cell.budget import prepare
from leakbench.core.progress import Reporter
from leakbench.execute import _sent, execute, hand_out
from leakbench.experiment.stage_attack import CellLeak
from leakbench.experiment.victims import truth
from leakbench.external.attacker import AttackerOptions
from leakbench.external.trace import Trace, Training
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.storage.store import open_run

RECIPE = {"title": "mine", "cite": "nobody", "unit": "example"}
CLIPPED = {**RECIPE, "example": [{"clip_whole": {"norm": 1.0}}]}
NOISY = {**CLIPPED, "batch": [{"gaussian_noise": {"multiplier": 0.01, "to": "sum"}}]}
AT_CLIENT = {
    **RECIPE,
    "unit": "client",
    "client": [{"clip_whole": {"norm": 0.1}}, {"gaussian_noise": {"multiplier": 0.01, "to": "each"}}],
}


def cell_of(tmp_path: Path, attack: str, defense: dict[str, Any] | None, tap: str, batch: int) -> tuple[Cell, str]:
    name = "none"
    if defense is not None:
        name = str(tmp_path / "mine.yaml")
        Path(name).write_text(yaml.safe_dump(defense), encoding="utf-8")
    given: dict[str, Any] = {"iterations": None if attack == "analytic_fc" else 3, "train_rounds": 0, "candidates": 100}
    asked = Request(
        dataset="digits",
        defense=name,
        attack=attack,
        taps=(tap,),
        victims=3,
        networks=1,
        leak_batch=batch,
        device="cpu",
        **given,
    )
    return prepare(asked, None, Reporter(quiet=True)), name


def holding(view: View) -> nn.Module:
    """Return the cell's network with the sent weights."""
    model = copy.deepcopy(view.network.model)
    model.load_state_dict(view.network.parameters, strict=False)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attack", "defense", "tap", "batch"),
    [
        ("cpl", None, "type-2", 1),
        ("autoleak", None, "type-1", 2),
        ("inverting_gradients_short", None, "type-1", 2),
        ("autoleak", CLIPPED, "type-2", 1),
        ("autoleak", NOISY, "type-1", 2),
    ],
)
def test_the_same_gradient_has_a_bit_identical_reconstruction(
    attack: str, defense: dict[str, Any] | None, tap: str, batch: int, tmp_path: Path
) -> None:
    """Also in the run's own rows: reconstructions, labels, distances; identification has other candidates."""
    cell, name = cell_of(tmp_path, attack, defense, tap, batch)
    with open_run(tmp_path / "run", identity(cell, "test")) as run:
        execute(cell, run, Reporter(quiet=True))
        theirs, rows = run.read_tensors("reconstructions.safetensors"), run.read_rows("rows.parquet")
        leak = CellLeak(cell, hand_out(cell), {0: _sent(cell, run, 0, tap)}, tap)
    victims = leak.victims()
    (view,) = leak.views(victims, torch.arange(3))
    inputs, labels, _ = truth(cell, tap, victims)
    found = leakbench.attack_update(
        holding(view),
        [{n: u[v] for n, u in view.update.items()} for v in range(3)],
        shape=view.shape,
        classes=view.classes,
        batch=batch,
        tap=tap,
        truth=(inputs, labels),
        attack=attack,
        iterations=3,
        defense=name,
        dataset="digits",
    )
    assert found.matched is not None and found.rows is not None
    torch.testing.assert_close(found.matched, theirs[f"{tap}.round0.reconstruction"], atol=0, rtol=0, equal_nan=True)
    alike = ["rmse", "label_guess", "distance", "success", "eta", "null_rmse", "iterations", "evaluations", "doubts"]
    pd.testing.assert_frame_equal(found.rows[alike], rows[alike])


def test_a_clients_defense_is_in_the_units_of_its_update(tmp_path: Path) -> None:
    """The clip acts on the change of weights, and its noise appears divided by the learning rate."""
    cell, name = cell_of(tmp_path, "autoleak", AT_CLIENT, "type-1", 2)
    with open_run(tmp_path / "run", identity(cell, "test")) as run:
        leak = CellLeak(cell, hand_out(cell), {0: _sent(cell, run, 0, "type-1")}, "type-1")
    victims = leak.victims()
    (view,) = leak.views(victims, torch.arange(3))
    assert view.noise is not None
    inputs, labels, _ = truth(cell, "type-1", victims)
    added = [{n: -view.learning_rate * u[v] for n, u in view.update.items()} for v in range(3)]
    how = Training(2, 1, view.learning_rate)
    seen = Trace(holding(view), added, view.shape, view.classes, how, None, "type-1", (inputs, labels))
    mine = AttackerOptions("autoleak", name, "digits")().view(seen)
    assert mine.noise == pytest.approx(view.noise)
    targets = one_hot(labels, view.classes)
    for parameter, wanted in view.respond(inputs, targets).items():
        torch.testing.assert_close(mine.respond(inputs, targets)[parameter], wanted, atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(mine.update[parameter], view.update[parameter], atol=1e-6, rtol=1e-4)
