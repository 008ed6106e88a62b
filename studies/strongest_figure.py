"""One face under increasing noise, as five attackers reconstruct it, and what leaks without images: docs/strongest-attacker.md.

    python studies/strongest_figure.py [--data-dir FOLDER] [--runs FOLDER] [--only TEXT] [--page]

Measures a cell for each attack and noise multiplier, each in a separate folder, where it resumes after an interruption. Writes
results/attacks/strongest_figure.csv, then the figure and the numbers of docs/strongest-attacker.md, whose prose does not change;
with `--page` only the figure and the numbers, from the existing rows. The images of the face stay in the runs' folder, in
strongest_figure_faces.png, since data sets are not committed. Without that sheet the figure does not change.
`--only` measures the cells whose name contains the text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from shared.options import checked, parser
from shared.rows import measured, store_of
from strongest_figure_draw import draw
from strongest_figure_faces import Sheet
from strongest_figure_numbers import PICTURES, SIGMAS
from strongest_figure_page import filled, whole

from leakbench.cell import Cell, Request
from leakbench.cell.budget import prepare
from leakbench.core.scripts import one_line
from leakbench.measure.statistics import wilson
from leakbench.reproduce.choose import chosen
from leakbench.storage.store import Run
from leakbench.study.rows import Row
from leakbench.study.study import executed, limit_of, minutes_of

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "attacks"
DOCS = HERE.parent / "docs"

FACE = 0
"""Which victim of seed 0 is shown: the first, the same in every cell."""

GIVEN: dict[str, Any] = {"dataset": "lfw", "taps": ("type-2",), "train_rounds": 0, "candidates": 1000, "seed": 0}

SEARCH = {"victims": 20, "iterations": 50}
MEASURED: dict[str, dict[str, Any]] = {
    "identification": {"attack": "identification", "victims": 1000},
    "labels": {"attack": "whitened", "victims": 200, "iterations": 1},
    "whitened_public": {"attack": "whitened_public", **SEARCH},
    "whitened": {"attack": "whitened", **SEARCH},
    "cpl": {"attack": "cpl", **SEARCH},
    "dlg": {"attack": "dlg", **SEARCH},
    "inverting_gradients_short": {"attack": "inverting_gradients_short", "victims": 10, "iterations": 4000},
}
"""{what is measured: fields of a `Request`}; labels are read before the search begins, so that one iteration does."""

LONGER: dict[tuple[str, float], dict[str, Any]] = {("dlg", 0.0): {"iterations": 300}}
"""Changes for single cells. Without a defense, DLG reconstructs little in 50 iterations, so it has as many as in its recipe."""

COPIED = (
    *("asr", "asr_low", "asr_high", "null_asr", "null_asr_high", "asr_bound", "rmse", "null_rmse", "eta"),
    *("identified", "identified_low", "identified_high", "identified_bound", "candidates"),
    *("label_accuracy", "label_bound", "null_label"),
)
"""Fields that are copied from the summary of a leakage point."""


def cells() -> dict[str, tuple[str, float]]:
    """Return {name of a row: (what is measured, noise multiplier)}, the quick ones first."""
    points = {sigma: f"sigma {sigma:g}" if sigma else "undefended" for sigma in SIGMAS}
    return {f"{what}, {point}": (what, sigma) for what in MEASURED for sigma, point in points.items()}


def cell_of(what: str, sigma: float, data_dir: Path | None) -> Cell:
    """Return the cell of one row."""
    recipe = SIGMAS[sigma]
    defense = recipe if recipe == "none" else str(HERE / "recipes" / f"{recipe}.yaml")
    return prepare(
        Request(**{**GIVEN, **MEASURED[what], **LONGER.get((what, sigma), {}), "defense": defense}), data_dir
    )


def measure(name: str, cell: Cell, runs: Path, sheet: Sheet) -> Row:
    """Run one cell, or read it where it is whole; return its row, and keep the face's picture on the sheet."""
    what, sigma = cells()[name]
    with executed(cell, runs, f"studies/strongest_figure.py: {name}") as (summary, run):
        error = _shown(run, cell, sheet, what, sigma) if what in PICTURES else None
    sheet.save()
    (tap,) = summary.taps.values()
    right = tap.label_accuracy
    low, high = (None, None) if right is None else wilson(round(right * tap.victims), tap.victims)
    return {
        "row": name,
        "what": what,
        "sigma": sigma,
        "victims": tap.victims,
        "limit": limit_of(cell),
        **{key: tap.value(key) for key in COPIED},
        "label_low": low,
        "label_high": high,
        "face_rmse": error,
        "violated": "; ".join(broken.measure for broken in summary.violations),
        "public": len(cell.data.public_targets),
        "minutes": minutes_of(tap),
        "hash": cell.hash[:12],
    }


def _shown(run: Run, cell: Cell, sheet: Sheet, what: str, sigma: float) -> float:
    """Put truth, public mean and answer of the face on the sheet; return the answer's RMSE."""
    tensors, rows = run.read_tensors("reconstructions.safetensors"), run.read_rows("rows.parquet")
    sheet.put("truth", None, tensors["type-2.round0.truth"][FACE, 0])
    sheet.put("mean", None, cell.data.public_inputs.mean(0))
    sheet.put(what, sigma, tensors["type-2.round0.reconstruction"][FACE, 0])
    return float(rows.loc[rows["victim"] == FACE, "rmse"].iloc[0])


def main() -> None:
    """Measure, write, draw; or only write and draw."""
    asked = checked(parser(__doc__, "--data-dir", "--runs", "--only", "--page").parse_args())
    table, page = RESULTS / "strongest_figure.csv", DOCS / "strongest-attacker.md"
    torch.set_num_threads(1)
    names, store = chosen(cells(), asked.only), store_of(table, list(cells()))
    if asked.page:
        names, store = [], store.existing
    whole(page.read_text(encoding="utf-8"))
    kept = asked.runs / "strongest_figure_faces.png"
    asked.runs.mkdir(parents=True, exist_ok=True)
    sheet = Sheet(kept)

    def of(name: str) -> list[Row]:
        return [measure(name, cell_of(*cells()[name], asked.data_dir), asked.runs, sheet)]

    def said(row: Row) -> str:
        return f"ASR {row['asr']}, identified {row['identified']}, {row['minutes']} min"

    rows = measured(store, names, of, said)
    page.write_text(filled(page.read_text(encoding="utf-8"), rows), encoding="utf-8")
    if kept.exists():
        draw(rows, sheet, DOCS / "strongest-attacker.png")
    else:
        print(f"{kept}: is not there, so that the figure stays as it is", flush=True)


if __name__ == "__main__":
    one_line(main)
