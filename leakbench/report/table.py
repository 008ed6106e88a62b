"""The result of a run on the terminal: the headline and the core table; everything else where it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from leakbench.leakage_points import listed, point_name
from leakbench.report.bounds import bounds, violations
from leakbench.report.columns import PAGE_FIELDS, Column, columns
from leakbench.report.conspicuous import conspicuous
from leakbench.report.epsilons import caveats, compared, epsilons
from leakbench.report.headline import STYLES, Headline, headline
from leakbench.report.verdicts import verdicts
from leakbench.report.words import batches, notes, number, over_rounds, training, warnings
from leakbench.summary.verdict_words import INCONCLUSIVE

if TYPE_CHECKING:
    from leakbench.privacy.audit.verdict import Audit

__all__ = ["print_headline", "print_table"]

UNTRAINED = (
    "nothing was trained (--train-rounds 0): these epsilons are for 0 rounds, in which no model is released. Guarantees and bounds"
    " at a leakage point are for the leak there. `leakbench epsilon` computes the epsilons of a training"
)
"""Line below the epsilons of a run without a training."""

CORE = ("ASR [95% CI]", "baseline ASR", "identified", "RMSE")
TABLE_CORE = ("ASR [95% CI]", "baseline ASR", "features right", "baseline features", "identified")
"""Headings of the columns between the leakage point and its verdict, of images and of tables."""

PLAIN = {"features right": lambda tap: number(tap.get("feature_accuracy"))}
"""{heading: its text without an interval, which has no room}."""

VERDICT = Column("verdict", "What the evidence shows.", lambda tap: tap.get("verdict") or INCONCLUSIVE)


def print_table(
    summary: Mapping[str, Any], console: Console, verbose: bool = False, audit: Audit | None = None
) -> None:
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
    taps = summary["taps"]
    console.print()
    for table in _tables(taps, _core_columns(summary), console):
        console.print(table)
    console.print()
    for line in violations(summary):
        _print_hanging(line, console, style="bold red")
    if verbose:
        _print_details(summary, console)
        return
    hidden = [
        f"{len(lines)} {name}{'' if len(lines) == 1 else 's'}"
        for name, lines in (("warning", warnings(summary)), ("note", notes(summary, PAGE_FIELDS)))
        if lines
    ]
    more = f"{listed(hidden)}, " if hidden else ""
    _print_hanging(f"-v also prints {more}the reasons of the verdicts, all columns, settings and bounds.", console, "dim")


def print_headline(found: Headline, console: Console) -> None:
    """Print the verdicts, the worst first, then accuracy and epsilon, a line each."""
    for number, finding in enumerate(found.findings):
        style = STYLES.get(finding.word, "")
        if number:
            line = Text(f"  {finding.names}: ") + Text(finding.word, style) + finding.short.split(finding.word, 1)[1]
        else:
            line = Text(finding.word.upper(), style) + Text(f": {finding.text}", "bold")
        _print_hanging(line, console)
    for sentence in dict.fromkeys(filter(None, (finding.guaranteed for finding in found.findings))):
        _print_hanging(sentence, console)
    for command in dict.fromkeys(filter(None, (finding.command for finding in found.findings))):
        # One line, so that it can be copied.
        console.print(Text(f"To decide: {command}"), soft_wrap=True)
    for text in filter(None, (found.accuracy, found.epsilon)):
        _print_hanging(text, console)


def _print_details(summary: Mapping[str, Any], console: Console) -> None:
    taps = summary["taps"]
    for table in _tables(taps, _with_values(columns(summary), taps), console):
        console.print(table)
    for reason in verdicts(summary):
        _print_hanging(": ".join(filter(None, (_named(reason.places), reason.word, reason.reason))), console)
        for sentence in reason.sentences:
            _print_hanging(f"  {sentence}", console)
    for line in warnings(summary):
        _print_hanging(f"warning: {line}", console, "yellow")
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
        _print_hanging(f"{what}: {reason}", console, "dim")


def _with_values(columns: Sequence[Column], taps: Mapping[str, Mapping[str, Any]]) -> list[Column]:
    return [column for column in columns if any(column.text(tap) != "n/a" for tap in taps.values())]


def _core_columns(summary: Mapping[str, Any]) -> list[Column]:
    """Return the columns that have room next to the leakage point on a terminal of 80 columns, the verdict last."""
    of = {column.heading: column for column in columns(summary)}
    names = TABLE_CORE if "features right" in of else CORE
    chosen = [replace(of[name], text=PLAIN[name]) if name in PLAIN else of[name] for name in names]
    return [*_with_values(chosen, summary["taps"]), VERDICT]


def _tables(taps: Mapping[str, Mapping[str, Any]], shown: Sequence[Column], console: Console) -> Iterator[Table]:
    """Yield as few tables as hold all columns at the width of the console."""
    unbounded = console.options.update(width=10_000)
    left = list(shown)
    while left:
        many = len(left)
        while many > 1 and Measurement.get(console, unbounded, _table(left[:many], taps)).minimum > console.width:
            many -= 1
        yield _table(left[:many], taps)
        left = left[many:]


def _table(columns: Sequence[Column], taps: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    # Only a name is broken into lines: a number that is cut short is another number.
    table.add_column("leakage point", min_width=18)
    for column in columns:
        left = column is VERDICT
        heading = Text(column.heading if left else column.heading.replace(" ", "\n", 1))
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for name, tap in taps.items():
        texts = [(column, column.text(tap)) for column in columns]
        cells = (Text(text, STYLES.get(text, "") if column is VERDICT else "") for column, text in texts)
        table.add_row(Text(point_name(name)), *cells)
    return table


def _named(points: Sequence[str]) -> str:
    return listed([point_name(point) for point in points])


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
        *(f"  valid against an attacker at {_named(names)}: {text}" for text, names in same.items()),
        *(f"  not as claimed: {sentence}" for sentence in caveats(summary)),
        *([f"  {UNTRAINED}"] if summary.get("rounds") == 0 else []),
    ]


def _print_hanging(line: str | Text, console: Console, style: str = "") -> None:
    # Long lines break at words, and the rest is indented, so that each entry starts at the margin.
    indent = len(str(line)) - len(str(line).lstrip())
    text = line if isinstance(line, Text) else Text(line, style=style)
    text = text[indent:]
    first, *rest = text.wrap(console, max(20, console.width - indent - 2))
    for margin, piece in ((indent, first), *((indent + 2, piece) for piece in rest)):
        console.print(Text(" " * margin) + piece, soft_wrap=True)
