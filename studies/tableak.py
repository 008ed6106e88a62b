"""TabLeak, Inverting Gradients and the random baseline on Adult, with an untrained network: the grid of tableak_grid.yaml.

    python studies/tableak.py [--data-dir FOLDER] [--only TEXT] [--page]

Writes tableak.csv (one row per record) and tableak.md to results/attacks; with `--page` only the page, from the existing CSV. Cells
in the CSV are not measured again. `--only` measures the cells whose name contains the text, even if the CSV has them, and no other
cell; a name is like "tableak, standardized, batch 32, 15 searches".
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from shared.options import checked, parser
from shared.rows import measured, store_of
from tableak_page import KEYS, page
from torch import Tensor, nn

from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.slots.pooling import POOLING
from leakbench.cell import Cell, Request, identified, identity, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.core.progress import Reporter
from leakbench.core.scripts import one_line
from leakbench.core.types import Network
from leakbench.data.columns import Columns, columns_of
from leakbench.data.dataset import Dataset
from leakbench.experiment.attack_time import AttackTime
from leakbench.experiment.stage_attack import CellLeak, Judge, attack_leak
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent
from leakbench.models import parameters
from leakbench.reproduce.choose import chosen
from leakbench.scoring.scores_tables import TABLE_COLUMNS
from leakbench.storage.store import open_run
from leakbench.study.rows import Row

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "attacks"


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


def complete(data: Dataset) -> Dataset:
    """Return the data without unknown categories, as TabLeak's, among those who may be attacked and among the public records.

    So both are drawn from the same people: of Adult's test split, who leaves a category open works 34 hours a week, others 41, and
    42 % of them are women, of the others 32 %. A random record of all of them would be a weaker baseline than the victims allow.
    """

    def known(inputs: Tensor) -> Tensor:
        return torch.stack([(inputs[:, f.start : f.stop] > 0).any(1) for f in data.features if f.values]).all(0)

    public = known(data.test_inputs)
    return dataclasses.replace(
        data,
        victims=known(data.train_inputs).nonzero().flatten(),
        test_inputs=data.test_inputs[public],
        test_targets=data.test_targets[public],
    )


def cell_of(grid: dict[str, Any], attack: str, searches: int, batch: int, data_dir: Path | None) -> Cell:
    """Return the cell of one attack, number of searches and batch, of `complete` data."""
    asked = Request(
        attack=grid["attacks"][attack]["recipe"],
        dataset=grid["dataset"],
        leak_model=grid["model"],
        taps=("type-1",),
        victims=grid["victims"][batch],
        leak_batch=batch,
        train_rounds=0,
        candidates=grid["victims"][batch],
        seed=grid["seed"],
    )
    cell = resolve_cell(asked, data_dir)
    assert isinstance(cell.attack.method, GradientMatching)
    changes = grid["attacks"][attack].get("changes", {})
    space = dataclasses.replace(cell.attack.method.space, **changes)  # type: ignore[type-var]
    pooling = POOLING.parts[grid["pooling"]]()
    method = dataclasses.replace(cell.attack.method, space=space, restarts=searches, pooling=pooling)
    recipe = dataclasses.replace(cell.attack, method=method)
    return identified(dataclasses.replace(cell, data=complete(cell.data), attack=recipe))


def measure(cell: Cell, standardized: bool) -> pd.DataFrame:
    """Return the rows of one cell: one a record."""
    with tempfile.TemporaryDirectory() as folder, open_run(Path(folder), identity(cell, "studies/tableak.py")) as run:
        for number in range(cell.settings.networks):
            model, start = fresh_network(cell, False, number)
            if standardized:
                columns = columns_of(cell.data)
                assert columns is not None
                model = Standardized(columns, model)
                start = dict(zip(parameters(model), start.values(), strict=True))
            leak = CellLeak(cell, hand_out(cell), {0: Sent(Network(model, start))}, "type-1", number)
            attack_leak(leak, run, Judge(0.1, "n/a: a table"), Reporter(quiet=True), AttackTime(None, run, 0))
        pieces = [run.read_rows(name) for name in sorted(run.manifest["files"]) if name.endswith(".parquet")]
    return pd.concat(pieces, ignore_index=True)[[*TABLE_COLUMNS, "victim", "example"]]


def cells(grid: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    """Return the values of KEYS of all cells, in the order in which they are measured."""
    networks, attacks = list(grid["networks"]), list(grid["attacks"])
    return [(n, a, s, b) for b in grid["victims"] for n in networks for s in grid["searches"] for a in attacks]


def name_of(network: str, attack: str, searches: int, batch: int) -> str:
    """Return the name of one cell, which `--only` selects by."""
    return f"{attack}, {network}, batch {batch}, {searches} searches"


def measured_cell(grid: dict[str, Any], data_dir: Path | None, name: str) -> list[Row]:
    """Return the rows of the cell of a name, one for each record of each victim."""
    [key] = [key for key in cells(grid) if name_of(*key) == name]
    network, attack, searches, batch = key
    began = time.perf_counter()
    found = measure(cell_of(grid, attack, searches, batch, data_dir), network == "standardized")
    seconds = round(time.perf_counter() - began, 1)
    found = found.assign(row=name, network=network, attack=attack, searches=searches, batch=batch, seconds=seconds)
    return found[["row", *KEYS, *(c for c in found if c not in ("row", *KEYS))]].to_dict("records")


def main() -> None:
    """Measure what is missing and write the page."""
    given = checked(parser(__doc__, "--data-dir", "--only", "--page").parse_args())
    torch.set_num_threads(1)
    grid = yaml.safe_load((HERE / "recipes" / "tableak_grid.yaml").read_text())
    names = [name_of(*key) for key in cells(grid)]
    asked, store = chosen(names, given.only), store_of(RESULTS / "tableak.csv", names)
    rows = store.existing.read() if given.page else store.read()
    if not given.page:
        missing = [name for name in asked if given.only or name not in set(rows["row"])]

        def of(name: str) -> list[Row]:
            return measured_cell(grid, given.data_dir, name)

        rows = measured(store, missing, of, lambda row: f"record {row['example']}: {row['feature_accuracy']:.3f}")
    (RESULTS / "tableak.md").write_text(page(grid, rows))


if __name__ == "__main__":
    one_line(main)
