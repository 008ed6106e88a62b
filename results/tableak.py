"""TabLeak and Inverting Gradients on Adult beside the random baseline, against an untrained network: the grid of tableak.yaml.

    python results/tableak.py [--data-dir FOLDER] [--page]

Writes tableak.csv (one row a record) and tableak.md beside itself; with `--page` only the page, from the CSV that is there. Cells
that the CSV holds are not measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from tableak_page import KEYS, page
from torch import Tensor, nn

from leakbench.attack.gradient_matching import GradientMatching
from leakbench.attack.null import null_attack
from leakbench.cell import Cell, Request, resolve_cell
from leakbench.data.columns import Columns, columns_of
from leakbench.measure.scores import Truth
from leakbench.measure.scores_tables import score_table, table_judge
from leakbench.models import parameters
from leakbench.rng import generator, generators
from leakbench.run.stage_train import fresh_network
from leakbench.run.victims import Sent, draw_victims, truth, view_of
from leakbench.types import Network

HERE = Path(__file__).parent


class Standardized(nn.Module):
    """A network that is fed columns less their means, in their deviations."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, columns: Columns, model: nn.Module) -> None:
        super().__init__()
        self.register_buffer("mean", columns.mean.float())
        self.register_buffer("deviation", columns.deviation.float())
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.model((inputs - self.mean) / self.deviation)
        return logits


def cell_of(grid: dict[str, Any], attack: str, batch: int, data_dir: Path | None) -> Cell:
    """Return the cell of one attack and batch, whose victims are records without an unknown category, as TabLeak's are."""
    shared = {"dataset": grid["dataset"], "leak_model": grid["model"], "seed": grid["seed"], "taps": ("type-1",)}
    recipe, changes = grid["attacks"][attack]["recipe"], grid["attacks"][attack].get("changes", {})
    cell = resolve_cell(
        Request(attack=recipe, leak_batch=batch, victims=grid["victims"][batch], train_rounds=0, **shared), data_dir
    )
    columns = columns_of(cell.data)
    assert columns is not None
    assert isinstance(cell.attack.method, GradientMatching)
    known = [(cell.data.train_inputs[:, f.start : f.stop] > 0).any(1) for f in columns.categories]
    data = dataclasses.replace(cell.data, victims=torch.stack(known).all(0).nonzero().flatten())
    space = dataclasses.replace(cell.attack.method.space, **changes)  # type: ignore[type-var]
    restarts = grid["restarts"] if cell.attack.method.restarts > 1 else 1
    method = dataclasses.replace(cell.attack.method, space=space, restarts=restarts)
    return dataclasses.replace(cell, data=data, attack=dataclasses.replace(cell.attack, method=method))


def measure(cell: Cell, standardized: bool) -> pd.DataFrame:
    """Return the rows of one cell: one a record."""
    columns = columns_of(cell.data)
    assert columns is not None
    model, start = fresh_network(cell, trained=False)
    if standardized:
        model = Standardized(columns, model)
        start = dict(zip(parameters(model), start.values(), strict=True))
    victims = draw_victims(cell, "type-1", 0, None)  # type: ignore[arg-type]
    lanes, seed = torch.arange(len(victims.indices)), cell.settings.seed
    view = view_of(cell, "type-1", 0, victims, lanes, Sent(Network(model, start)))
    assert view.labels is not None
    view = dataclasses.replace(view, labels=view.labels.sort(1).values)  # so that the order of a batch says nothing
    answer = cell.attack.method((view,), generators(seed, "attack", [(0, int(v)) for v in lanes]))
    inputs, labels, examples = truth(cell, "type-1", victims)
    public, targets = cell.data.test_inputs, cell.data.test_targets
    null = null_attack(public, targets, labels.numel(), labels.flatten(), 0.1, generator(seed, "null"))
    judge = table_judge(cell.data, null, labels.flatten())
    assert judge is not None
    draws = generators(seed, "random records", [(0, int(v)) for v in lanes])
    rows = score_table(answer.inputs, Truth(lanes, inputs, labels, examples, lanes), judge, draws)  # type: ignore[union-attr]
    return rows.assign(victim=lanes.repeat_interleave(labels.shape[1]).numpy(), example=examples.flatten().numpy())


def measured(grid: dict[str, Any], data_dir: Path | None, path: Path) -> pd.DataFrame:
    """Return the rows of all cells; those that the CSV at `path` has are read, the others measured and kept at once."""
    rows = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=KEYS)
    for network in grid["networks"]:
        for batch in grid["victims"]:
            for attack in grid["attacks"]:
                if ((rows[KEYS] == [network, attack, batch]).all(axis=1)).any():
                    continue
                began = time.perf_counter()
                found = measure(cell_of(grid, attack, batch, data_dir), network == "standardized")
                seconds = time.perf_counter() - began
                found = found.assign(network=network, attack=attack, batch=batch, seconds=round(seconds, 1))
                rows = pd.concat([rows, found[[*KEYS, *(c for c in found if c not in KEYS)]]], ignore_index=True)
                rows.to_csv(path, index=False, float_format="%.6g")
                print(
                    f"{network} {attack} {batch}: {found['feature_accuracy'].mean():.3f}, {seconds:.0f} s", flush=True
                )
    return rows


def main() -> None:
    """Measure what is missing and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    grid = yaml.safe_load((HERE / "tableak.yaml").read_text())
    path = HERE / "tableak.csv"
    rows = pd.read_csv(path) if given.page else measured(grid, given.data_dir, path)
    (HERE / "tableak.md").write_text(page(grid, rows))


if __name__ == "__main__":
    main()
