"""The result of a run on the terminal: the headline and the core table; everything else where it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from leakbench.core.leakage_points import listed, point_name
from leakbench.report.bounds import bounds, violations
from leakbench.report.columns import (
    BASELINE,
    BASELINE_FEATURES,
    PAGE_FIELDS,
    PICKED,
    RECOGNISED_COLUMN,
    RIGHT_FEATURES,
    RMSE,
    SUCCESS,
    TARGET_COLUMNS,
    TEXT_COLUMNS,
    VERDICT,
    PointColumn,
    columns,
    counts_recognition,
    has_records,
    has_targets,
    has_texts,
    with_values,
)
from leakbench.report.epsilons import audit_details, caveats, compared, epsilons, not_covered
from leakbench.report.headline import STYLES, Headline, headline
from leakbench.report.verdicts import verdicts
from leakbench.report.words import batches, conspicuous, notes, number, over_networks, over_rounds, training, warnings
from leakbench.storage.summary import Summary, Tap

if TYPE_CHECKING:
    from leakbench.auditing.verdict import Audit

__all__ = [
    "core_columns",
    "print_hanging",
    "print_headline",
    "print_points",
    "print_table",
    "printed_width",
]

UNTRAINED = (
    "nothing was trained (--train-rounds 0): these epsilons are for 0 rounds, in which no model is released. Guarantees and bounds"
    " at a leakage point are for the leak there. `leakbench epsilon` computes the epsilons of a training"
)
"""Line below the epsilons of a run without a training."""

WIDTH = 100
"""Columns of text that is printed where no terminal and no variable COLUMNS states a width."""

FOLDED = 18
"""Columns of a leakage point's name that is folded."""

ROOMY = 90
"""Columns from which on the columns of a table are set apart by two spaces."""


def printed_width() -> int:
    """Return the width of text that no terminal shows: the variable COLUMNS where it is a number, else `WIDTH`."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() else WIDTH


def print_table(summary: Summary, console: Console, verbose: bool = False, audit: Audit | None = None) -> None:
    """Print the result of a run: the headline, then the core table.

    A number is never cut short: a table that is wider than the terminal is printed in parts. A column without a number at any
    leakage point is left out. Nothing in the summary is taken as markup.

    Args:
        summary: As `leakbench run --json` prints it.
        console: Where to print.
        verbose: Also print all columns, the reasons of the verdicts, settings, all epsilons, and why a number has no value.
        audit: Audit of the run's defense; None without one.
    """
    print_headline(headline(summary, audit), console)
    taps = summary.taps
    console.print()
    shown = [*with_values(columns(summary), summary), VERDICT] if verbose else core_columns(summary)
    print_points(taps, shown, console)
    console.print()
    for line in violations(summary):
        print_hanging(line, console, style="bold red")
    # A warning about the training changes how accuracy is read; the verdicts include those about a leakage point.
    of_points = [line for line in warnings(summary) if line.startswith(tuple(map(point_name, taps)))]
    for line in warnings(summary):
        if line not in of_points:
            print_hanging(f"warning: {line}", console, "yellow")
    if verbose:
        for line in of_points:
            print_hanging(f"warning: {line}", console, "yellow")
        _print_details(summary, console)
        return
    hidden = [
        f"{len(lines)} {name}{'' if len(lines) == 1 else 's'}"
        for name, lines in (("warning", of_points), ("note", notes(summary, PAGE_FIELDS)))
        if lines
    ]
    more = f"{listed(hidden)}, " if hidden else ""
    print_hanging(
        f"-v also prints {more}the reasons of the verdicts, all columns, settings and bounds.", console, "dim"
    )
    for line in over_networks(summary):
        print_hanging(line, console, "dim")


def print_points(taps: Mapping[str, Tap], shown: Sequence[PointColumn], console: Console) -> None:
    """Print the table of the leakage points, in parts where it is wider than the console."""
    for table in _tables(taps, shown, console):
        console.print(table)


def print_headline(found: Headline, console: Console) -> None:
    """Print the verdicts, the worst first, then accuracy and epsilon, a line each."""
    for place, finding in enumerate(found.findings):
        style = STYLES.get(finding.word, "")
        if place:
            line = Text(f"  {finding.where}: ") + Text(finding.word, style) + finding.short.split(finding.word, 1)[1]
        else:
            line = Text(finding.word.upper(), style) + Text(f": {finding.text}", "bold")
        print_hanging(line, console)
    for sentence in dict.fromkeys(filter(None, (finding.guaranteed for finding in found.findings))):
        print_hanging(sentence, console)
    for caveat in dict.fromkeys(filter(None, (finding.caveat for finding in found.findings))):
        print_hanging(caveat, console)
    for command in dict.fromkeys(filter(None, (finding.command for finding in found.findings))):
        # One line, so that it can be copied.
        console.print(Text(f"To decide: {command}"), soft_wrap=True)
    for text in filter(None, (found.accuracy, found.epsilon)):
        print_hanging(text, console)


def _print_details(summary: Summary, console: Console) -> None:
    for why in verdicts(summary):
        print_hanging(": ".join(filter(None, (_named(why.places), why.word, why.reason))), console)
        for sentence in why.sentences:
            print_hanging(f"  {sentence}", console)
    for line in (
        *over_networks(summary),
        *over_rounds(summary),
        *batches(summary).splitlines(),
        *bounds(summary),
        training(summary),
        *conspicuous(summary),
        *_epsilon_lines(summary),
    ):
        print_hanging(line, console)
    for what, reason in notes(summary, PAGE_FIELDS):
        print_hanging(f"{what}: {reason}", console, "dim")


def core_columns(summary: Summary) -> list[PointColumn]:
    """Return the columns that have room next to the leakage point on a terminal of 80 columns, the verdict last."""
    decisive = RECOGNISED_COLUMN if counts_recognition(summary) else PICKED
    chosen: tuple[PointColumn, ...] = (SUCCESS, BASELINE, decisive, RMSE)
    if has_targets(summary):
        error = replace(TARGET_COLUMNS[0], text=lambda tap: number(tap.target_error))
        chosen = (SUCCESS, error, TARGET_COLUMNS[1], PICKED)
    elif has_records(summary):
        # The interval has no room.
        features = replace(RIGHT_FEATURES, text=lambda tap: number(tap.feature_accuracy))
        chosen = (SUCCESS, BASELINE, features, BASELINE_FEATURES, PICKED)
    elif has_texts(summary):
        chosen = (SUCCESS, BASELINE, *TEXT_COLUMNS[1:3], PICKED)
    return [*with_values(chosen, summary), VERDICT]


def _tables(taps: Mapping[str, Tap], shown: Sequence[PointColumn], console: Console) -> Iterator[Table]:
    """Yield as few tables as hold all columns at the width of the console; names are folded where that is needed."""
    unbounded = console.options.update(width=10_000)
    padding = int(console.width >= ROOMY)

    def fits(columns: Sequence[PointColumn], fold: bool) -> bool:
        return Measurement.get(console, unbounded, _table(columns, taps, padding, fold)).maximum <= console.width

    fold = not fits(shown, False)
    left = list(shown)
    while left:
        many = len(left)
        while many > 1 and not fits(left[:many], fold):
            many -= 1
        yield _table(left[:many], taps, padding, fold)
        left = left[many:]


def _table(columns: Sequence[PointColumn], taps: Mapping[str, Tap], padding: int, fold: bool) -> Table:
    # No cell is wrapped by rich, which would break numbers too: a number that is cut short is another number.
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, padding), pad_edge=False, show_edge=False)
    table.add_column("leakage point", no_wrap=True)
    for column in columns:
        heading = Text(column.heading.replace(" ", "\n", 1) if column.numeric else column.heading)
        table.add_column(heading, justify="right" if column.numeric else "left", no_wrap=True)
    for name, tap in taps.items():
        texts = [(column, column.text(tap)) for column in columns]
        cells = (Text(text, STYLES.get(text, "") if column is VERDICT else "") for column, text in texts)
        full = point_name(name)
        table.add_row(Text("\n".join(wrap(full, FOLDED)) if fold else full), *cells)
    return table


def _named(points: Sequence[str]) -> str:
    return listed([point_name(point) for point in points])


def _epsilon_lines(summary: Summary) -> list[str]:
    claimed, observed = epsilons(summary)
    if not observed:
        return []
    epsilon = summary.epsilon
    released, *taps = observed
    delta = f" at delta {epsilon.delta:g}" if epsilon.delta else ""
    whose = f"for one {epsilon.unit}{delta}, observer: {released.observer}"
    same: dict[str, list[str]] = {}
    for tap in taps:
        same.setdefault(tap.text, []).append(tap.observer)
    return [
        f"epsilon: claimed {claimed} | valid {released.text}",
        f"  {whose}",
        *compared(released),
        *(f"  valid against an attacker at {_named(names)}: {text}" for text, names in same.items()),
        *(f"  {line}" for line in audit_details(summary)),
        *(f"  not as claimed: {sentence}" for sentence in caveats(summary)),
        *(f"  {sentence}" for sentence in not_covered(summary)),
        *([f"  {UNTRAINED}"] if summary.rounds == 0 else []),
    ]


def print_hanging(line: str | Text, console: Console, style: str = "") -> None:
    """Print an entry: long lines break at words, and the rest is indented, so that each entry starts at the margin."""
    indent = len(str(line)) - len(str(line).lstrip())
    text = line if isinstance(line, Text) else Text(line, style=style)
    text = text[indent:]
    first, *rest = text.wrap(console, max(20, console.width - indent - 2))
    for margin, piece in ((indent, first), *((indent + 2, piece) for piece in rest)):
        piece.rstrip()
        console.print(Text(" " * margin) + piece, soft_wrap=True)
