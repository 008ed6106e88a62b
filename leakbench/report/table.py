"""The table of one run on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from leakbench.report.bounds import bounds, violations
from leakbench.report.columns import PAGE_FIELDS, Column, columns
from leakbench.report.conspicuous import conspicuous
from leakbench.report.epsilons import caveats, compared, epsilons
from leakbench.report.verdicts import STYLES, verdicts
from leakbench.report.words import batches, notes, over_rounds, reading, training

__all__ = ["print_table"]

UNTRAINED = (
    "nothing was trained (--train-rounds 0): these epsilons are for 0 rounds, in which no model is released. Guarantees and bounds"
    " at a leakage point are for what leaked there. `leakbench epsilon` computes the epsilons of a training"
)
"""Line below the epsilons of a run without a training."""


def print_table(summary: Mapping[str, Any], console: Console) -> None:
    """Print the summary of a run: leakage points, accuracy, epsilon, and the reason for every n/a.

    summary: as `run --json` prints it; nothing in it is taken as markup. A table wider than the terminal is printed in
    pieces, each with the leakage points, for a number that is cut short is another number. A column that has no number at
    any leakage point is left out; the lines below the table have its reason.
    """
    _print_hanging(reading(summary), console)
    _print_verdicts(summary, console)
    taps = summary["taps"]
    shown = [column for column in columns(summary) if any(column.text(tap) != "n/a" for tap in taps.values())]
    for table in _tables(taps, shown, console):
        console.print(table)
    for line in violations(summary):
        _print_hanging(line, console, style="bold red")
    for line in summary.get("warnings", ()):
        _print_hanging(f"warning: {line}", console, style="yellow")
    for line in (
        *over_rounds(summary),
        *batches(summary).splitlines(),
        *bounds(summary),
        training(summary),
        *conspicuous(summary),
        *_epsilon_lines(summary),
    ):
        _print_hanging(line, console)
    for what, reason in notes(summary, PAGE_FIELDS):
        _print_hanging(f"{what}: {reason}", console, style="dim")


def _print_verdicts(summary: Mapping[str, Any], console: Console) -> None:
    for said in verdicts(summary):
        line = Text(f"{', '.join(said.places)}: ") + Text(said.word, style=STYLES.get(said.word, ""))
        _print_hanging(line + Text(f": {said.reason}" if said.reason else ""), console)
        for sentence in said.sentences:
            _print_hanging(f"  {sentence}", console)
        if said.command:
            # One line, so that it can be copied.
            console.print(Text(f"  To decide: {said.command}"), soft_wrap=True)


def _tables(taps: Mapping[str, Mapping[str, Any]], shown: Sequence[Column], console: Console) -> Iterator[Table]:
    """Yield as few tables as hold all columns at the width of the console."""
    unbounded = console.options.update(width=10_000)
    left = list(shown)
    while left:
        many = len(left)
        while many > 1 and Measurement.get(console, unbounded, _table(left[:many], taps)).maximum > console.width:
            many -= 1
        yield _table(left[:many], taps)
        left = left[many:]


def _table(columns: Sequence[Column], taps: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False)
    table.add_column(Text("leakage\npoint"), no_wrap=True)
    for column in columns:
        table.add_column(Text(column.heading.replace(" ", "\n", 1)), justify="right", no_wrap=True)
    for name, tap in taps.items():
        table.add_row(Text(name), *(Text(column.text(tap)) for column in columns))
    return table


def _epsilon_lines(summary: Mapping[str, Any]) -> list[str]:
    claimed, observed = epsilons(summary)
    if not observed:
        return []
    epsilon = summary["epsilon"]
    released, *taps = observed
    delta = f" at delta {epsilon['delta']:g}" if epsilon.get("delta") else ""
    whose = f"for one {epsilon.get('unit')}{delta}, observer: {released.observer}"
    same: dict[str, list[str]] = {}
    for tap in taps:
        same.setdefault(tap.text, []).append(tap.observer)
    return [
        f"epsilon: claimed {claimed} | valid {released.text}",
        f"  {whose}",
        *compared(released),
        *(f"  valid against an attacker at {', '.join(names)}: {text}" for text, names in same.items()),
        *(f"  not as claimed: {sentence}" for sentence in caveats(summary)),
        *([f"  {UNTRAINED}"] if summary.get("rounds") == 0 else []),
    ]


def _print_hanging(line: str | Text, console: Console, style: str = "") -> None:
    # Long reasons break at words, and what follows is set in, so that each entry starts at the margin.
    indent = len(str(line)) - len(str(line).lstrip())
    text = line if isinstance(line, Text) else Text(line.lstrip(), style=style)
    first, *rest = text.wrap(console, max(20, console.width - indent - 2))
    for margin, piece in ((indent, first), *((indent + 2, piece) for piece in rest)):
        console.print(Text(" " * margin) + piece, soft_wrap=True)
