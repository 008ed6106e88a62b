"""The command that lists the runs of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakbench.measure.rates import ASR

if TYPE_CHECKING:
    from leakbench.storage.runs import Listed

__all__ = ["runs"]

Line = dict[str, Any]

HEADINGS = {
    "run": "run",
    "state": "state",
    "dataset": "dataset",
    "defense": "defense",
    "attack": "attack",
    "seed": "seed",
    "accuracy": "accuracy",
    "epsilon_valid": "epsilon",
    "point": "point",
    ASR.name: ASR.heading,
    ASR.baseline: "baseline ASR",
    "verdict": "verdict",
}

OF_POINT = (ASR.name, ASR.baseline, "verdict")
"""What a line takes from the summary of a leakage point."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default="runs")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def runs(folder: Path, as_json: bool) -> None:
    """List the runs in FOLDER (default: runs) and their results.

    Prints one line for each leakage point. The epsilon is the valid epsilon; the baseline ASR is that of the best guess
    without any gradient. Damaged and unfinished runs are marked. In Python, `leakbench.read(FOLDER)` reads the rows.
    """
    from leakbench.storage.runs import elsewhere, listed  # noqa: PLC0415

    lines = [line for found in listed(folder) for line in _lines(folder, found)]
    if as_json:
        click.echo(json.dumps(lines, indent=1))
        return
    if not lines:
        click.echo(f"no run in {folder}{elsewhere(folder)}")
        return
    table = [[*HEADINGS.values()], *([_text(line.get(name)) for name in HEADINGS] for line in lines)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells, why in zip(table, ["", *(line.get("why", "") for line in lines)], strict=True):
        shown = "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        click.echo(f"{shown.rstrip()}  {why}".rstrip())


def _lines(place: Path, found: Listed) -> list[Line]:
    """Return what is said of one run: a line for each of its leakage points, at least one."""
    name = str(found.folder.relative_to(place)) if found.folder != place else found.folder.name
    first: Line = {"run": name, "state": found.state}
    if found.manifest is None:
        return [{**first, "why": found.why}]
    cell = found.manifest.get("cell", {})
    first |= {f: cell.get(f) for f in ("dataset", "defense", "attack", "seed")}
    from leakbench.storage.summary import Summary  # noqa: PLC0415

    summary = Summary.of(found.manifest.get("summary", {}) if found.state == "done" else {})
    first |= {"accuracy": summary.accuracy, "epsilon_valid": summary.epsilon.valid}
    points = summary.taps.items()
    return [{**first, "point": name, **{field: tap.value(field) for field in OF_POINT}} for name, tap in points] or [
        first
    ]


def _text(value: object) -> str:
    return "-" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
