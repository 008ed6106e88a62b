"""What leaked, as a table on the terminal, as JSON, and as files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text
from safetensors.torch import save
from torch import Tensor

from leakbench.own.attacked import Outcome
from leakbench.report.columns import COLUMNS
from leakbench.report.own import SHOWN
from leakbench.store import write_atomically

__all__ = ["Row", "as_json", "numbers", "print_rows", "write_rebuilt"]


@dataclass(frozen=True)
class Row:
    """What an attack came to at a tap in a round, or why nothing could be attacked there.

    victims, examples: V clients, M examples behind what leaked of each.  note: what else a reader should know, a sentence a line.
    """

    tap: str
    round: int
    outcome: Outcome | None
    victims: int = 0
    examples: int = 0
    note: str = ""


def print_rows(rows: Sequence[Row], console: Console) -> None:
    """Print one line a tap and round, then the reasons and notes."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    columns = [column for column in COLUMNS if column.heading in SHOWN]
    for heading in ("leakage point", "round", "victims", "examples each", *(column.heading for column in columns)):
        table.add_column(
            Text(heading.replace(" ", "\n", 1)), justify="left" if heading == "leakage point" else "right", no_wrap=True
        )
    for row in rows:
        measured: Mapping[str, Any] = (row.outcome and row.outcome.summary) or {}
        numbers = [column.text(measured) if measured else "n/a" for column in columns]
        table.add_row(row.tap, str(row.round), str(row.victims), str(row.examples), *numbers)
    console.print(table)
    for line in dict.fromkeys(_scored(row.outcome.summary) for row in rows if row.outcome and row.outcome.summary):
        console.print(Text(line, style="dim"), soft_wrap=True)
    for row in rows:
        for line in filter(None, row.note.split("\n")):
            console.print(Text(f"{row.tap}, round {row.round}: {line}", style="dim"), soft_wrap=True)


def _scored(measured: Mapping[str, Any]) -> str:
    """Return by what an answer counts as a success, and among how many the victim is looked for."""
    among = f"; identified among {measured['candidates']} candidates" if measured["identified"] is not None else ""
    return f"success is an RMSE of at most {measured['eta']:.3g}{among}"


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows for machines; `measured` is null where no truth is known or nothing leaked, and an infinite distance is."""
    return [
        {
            "tap": row.tap,
            "round": row.round,
            "victims": row.victims,
            "examples": row.examples,
            "measured": None if row.outcome is None else row.outcome.summary,
            "distance": None if row.outcome is None else numbers(row.outcome.distance),
            "note": row.note,
        }
        for row in rows
    ]


def numbers(values: Tensor) -> list[float | None]:
    """Return numbers (V,) for JSON, which has none that is not finite: None for these."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def write_rebuilt(rows: Sequence[Row], path: Path) -> None:
    """Write the attacker's examples, {TAP.roundN.inputs: (V, M, *s), TAP.roundN.labels: (V, M)}, as safetensors."""
    found = {}
    for row in rows:
        if row.outcome is not None:
            key = f"{row.tap}.round{row.round}"
            found[f"{key}.inputs"] = row.outcome.answer.inputs.contiguous()
            found[f"{key}.labels"] = row.outcome.answer.labels.contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write_bytes(save(found)), private=True)
