"""The file that answers are written to: a new one, in a folder that takes it, which is tried before anything is attacked."""

from __future__ import annotations

import errno
import io
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from safetensors.torch import save
from torch import Tensor

from leakbench.answers import Reconstruction
from leakbench.errors import InputError
from leakbench.leakage_points import listed, point_name
from leakbench.report.columns import COLUMNS, COUNTS, with_values
from leakbench.report.headline import COLOURS, headline
from leakbench.report.own import SHOWN
from leakbench.report.table import VERDICT, core_columns, print_hanging, print_headline, print_points, printed_width
from leakbench.store import write_atomically
from leakbench.summary.verdict_words import INCONCLUSIVE, LEAKING

__all__ = [
    "UNKNOWN",
    "Outcome",
    "Row",
    "as_html",
    "as_json",
    "as_text",
    "check_answers_file",
    "numbers",
    "print_rows",
    "write_rebuilt",
]


def check_answers_file(path: Path, inputs: Sequence[Path]) -> None:
    """Raise InputError unless a file can be written at `path` where there is none yet; leave nothing behind.

    Args:
        inputs: Files and folders that are read, into whose folders no answers go: they would be read as another victim's.
    """
    if os.path.lexists(path):
        raise InputError(
            f"out: {str(path)!r} is there already and is not overwritten; move it away or give another --out"
        )
    if any(folder.is_dir() and folder.resolve() == path.parent.resolve() for folder in inputs):
        raise InputError(f"out: {str(path)!r} is one of the files that are read from its folder; give another --out")
    missing = [p for p in path.parents if not p.exists()]
    try:
        if path.parent.exists() and not path.parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        # Under such a name as it is later written by, so that one that is too long shows.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        Path(name).unlink()
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else None) or error
        raise InputError(f"out: cannot write to {str(path)!r}: {said}; give another --out") from None
    finally:
        with suppress(OSError):  # Somebody else has begun to use it, or it was never made.
            for made in missing:
                made.rmdir()


UNKNOWN = "no true examples were given, so nothing is scored"
"""Note of an update whose true examples are not known."""


@dataclass(frozen=True, repr=False)
class Outcome:
    """What an attack on V clients answered: summary as of a leakage point of `leakbench run`, None where no truth is known.

    `print` prints what `leakbench attack` prints; a notebook shows the same as a table.

    Args:
        answer: Its examples.
        distance: (V,), the attacker's own, lower is surer.
        rows: One for each example, as of a run.
        matched: Its inputs (V, M, *s) in the order of the truth; None where no truth is known.
        budget: The limit in seconds that stopped searches; None where none was stopped.
        tap: The leakage point, and the round in which it leaked, counted from 1.
        round: The leakage point, and the round in which it leaked, counted from 1.
        untried: What might find more.
        seconds: What the attack took, its preparation and its scores among them.
        left_out: That a budget reduced the number of candidates; empty where it did not.
        assumptions: What the attack assumes, a sentence a line.
        warnings: The lines among them that change how the result is read.
    """

    summary: Mapping[str, Any] | None
    answer: Reconstruction
    distance: Tensor
    rows: pd.DataFrame | None = None
    matched: Tensor | None = None
    budget: float | None = None
    tap: str = "type-1"
    round: int = 1
    untried: tuple[str, ...] = ()
    seconds: float = 0.0
    left_out: str = ""
    assumptions: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> str | None:
        """The verdict, as of a run; None where no truth is known."""
        return None if self.summary is None else str(self.summary["verdict"])

    def __str__(self) -> str:
        """Return what `leakbench attack` prints of these reconstructions."""
        return as_text([self._row])

    def __repr__(self) -> str:
        return f"<Outcome at the {point_name(self.tap)}: {self.verdict or 'not scored'}>"

    def _repr_html_(self) -> str:
        """Return the verdict and the table for a notebook."""
        return as_html([self._row])

    @property
    def _row(self) -> Row:
        victims, examples = self.answer.inputs.shape[:2]
        note = "\n".join(filter(None, [self.assumptions, self.note]))
        return Row(self.tap, self.round, self, victims, examples, note, self.warnings)

    @property
    def searches(self) -> tuple[str, ...]:
        """The name of the search that found each of the V reconstructions; () for a method that is not made of several."""
        stage, names = self.answer.stage, self.answer.stages
        return () if stage is None else tuple("none" if n < 0 else names[n] for n in stage.tolist())

    @property
    def note(self) -> str:
        """Lines that say which searches found the reconstructions, and whether a budget stopped searches; empty for neither."""
        return "\n".join(filter(None, [self.by_search, self.by_budget]))

    @property
    def by_search(self) -> str:
        """How many reconstructions each search found; empty for a method that is not made of several."""
        counts = Counter(self.searches).most_common()
        if len(counts) < 2:
            return f"all reconstructions are from the search {counts[0][0]}" if counts else ""
        return f"reconstructions by search: {', '.join(f'{many} from {name}' for name, many in counts)}"

    @property
    def by_budget(self) -> str:
        """Lines that say what a budget stopped or left out; empty where nothing."""
        return "\n".join(filter(None, [self._stopped, self._not_begun, self.left_out]))

    @property
    def _stopped(self) -> str:
        if self.budget is None:
            return ""
        limit = f"the budget of {self.budget:g} s ({self.seconds:.1f} s taken)"
        if self.summary is not None and self.summary["verdict"] not in LEAKING:
            return f"no leak found with {limit}, which is not evidence that the update does not leak"
        return f"{limit} stopped searches; a longer attack may reconstruct more"

    @property
    def _not_begun(self) -> str:
        names = dict.fromkeys(self.answer.not_begun)
        return f"not begun within the budget: {', '.join(names)}" if names else ""


@dataclass(frozen=True)
class Row:
    """What an attack came to at a leakage point in a round, or why nothing could be attacked there.

    Args:
        victims: V clients, M examples in the leak of each.
        examples: V clients, M examples in the leak of each.
        note: What else a reader should know, a sentence a line.
        warnings: The lines of the note that change how the result is read.
    """

    tap: str
    round: int
    outcome: Outcome | None
    victims: int = 0
    examples: int = 0
    note: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def leaks(self) -> bool:
        """Whether the verdict states a leak."""
        return self.outcome is not None and self.outcome.verdict in LEAKING

    @property
    def notes(self) -> list[str]:
        """The lines of the note that are printed as notes, not as a warning or with the answer."""
        lines = [line for line in self.note.split("\n") if line and line not in self.warnings]
        if self.outcome is None:
            return lines[1:]
        return [line for line in lines if line not in self.outcome.note.split("\n") and line != UNKNOWN]


def print_rows(rows: Sequence[Row], console: Console, verbose: bool = False) -> None:
    """Print the verdicts, the searches that found the reconstructions, and a table of the leakage points.

    Where no leak is stated, what was not tried and what was assumed follow: either may be why.

    Args:
        rows: One for each leakage point and round.
        console: Where to print.
        verbose: Also print all columns, the reasons of the verdicts and all notes.
    """
    _print_answer(rows, console, verbose)
    hidden = sum(len(row.notes) for row in rows if row.leaks)
    if any(row.leaks for row in rows) and not verbose:
        count = f"{hidden} note{'' if hidden == 1 else 's'}, " if hidden else ""
        print_hanging(f"-v also prints {count}the reasons of the verdicts and all columns.", console, "dim")


def _print_answer(rows: Sequence[Row], console: Console, verbose: bool = False) -> None:
    """Print everything but the line about `-v`."""
    names = [point_name(name) for name in _names(rows)]
    summary = _summary(rows)
    taps = summary["taps"]
    if taps:
        print_headline(headline(summary, external=True), console)
    for line in _lines(rows):
        print_hanging(line, console)
    if taps:
        console.print()
        print_points(taps, [*_columns(summary), VERDICT] if verbose else core_columns(summary), console)
        console.print()
    for name, row in zip(names, rows, strict=True):
        where = f"{name}: " if len(rows) > 1 else ""
        for line in row.warnings:
            print_hanging(f"warning: {where}{line}", console, "yellow")
        for line in row.notes if verbose or not row.leaks else ():
            print_hanging(f"note: {where}{line}", console, "dim")
    if verbose:
        reasons = [f"{point_name(name)}: {tap['verdict']}: {tap['verdict_reason']}" for name, tap in taps.items()]
        for line in (*reasons, *dict.fromkeys(map(_success, taps.values()))):
            print_hanging(line, console, "dim")


def as_text(rows: Sequence[Row]) -> str:
    """Return what `print_rows` prints, for Python."""
    text = io.StringIO()
    _print_answer(rows, Console(file=text, width=printed_width(), highlight=False))
    return text.getvalue().rstrip("\n")


def as_html(rows: Sequence[Row]) -> str:
    """Return the verdicts, the searches and the core table as HTML for a notebook."""
    summary = _summary(rows)
    answer = headline(summary, external=True) if summary["taps"] else None
    first, *others = [*([] if answer is None else answer.lines()), *_lines(rows)]
    colour = COLOURS[INCONCLUSIVE if answer is None else answer.verdict]
    lines = "<br>".join([f'<b style="color:{colour}">{escape(first)}</b>', *map(escape, others)])
    if answer is None:
        return f"<p>{lines}</p>"
    table = pd.DataFrame(
        {column.heading: map(column.text, summary["taps"].values()) for column in core_columns(summary)},
        index=pd.Index(map(point_name, summary["taps"]), name="leakage point"),
    )
    return f"<p>{lines}</p>{table.to_html()}"


def _summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the scored rows as a summary of a run has its leakage points."""
    named = zip(_names(rows), rows, strict=True)
    return {"taps": {name: row.outcome.summary for name, row in named if row.outcome and row.outcome.summary}}


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the key of each row: its leakage point, in several rounds with the number of rounds before it."""
    if len({row.round for row in rows}) < 2:
        return [row.tap for row in rows]
    return [f"{row.tap}@{row.round - 1}" for row in rows]


def _columns(summary: Mapping[str, Any]) -> list[Any]:
    counts = [column for column in COUNTS if column.heading in ("victims", "batch", "failed")]
    return list(with_values((*(c for c in COLUMNS if c.heading in SHOWN), *counts), summary))


def _lines(rows: Sequence[Row]) -> list[str]:
    """Return what follows the verdicts: rows without scores, and the searches of the others; equal lines are one."""
    grouped: dict[str, list[str]] = {}
    for name, row in zip(_names(rows), rows, strict=True):
        for line in (*_unscored(row), *_searched(row)):
            grouped.setdefault(line, []).append(point_name(name))
    lines = [line if len(names) == len(rows) else f"{listed(names)}: {line}" for line, names in grouped.items()]
    untried = dict.fromkeys(row.outcome.untried for row in rows if row.outcome and not row.leaks)
    return [*lines, *(f"Not tried: {', '.join(names)}" for names in untried if names)]


def _unscored(row: Row) -> Iterator[str]:
    """Yield what a row without scores came to."""
    if row.outcome is None:
        yield f"NOT ATTACKED: {row.note.splitlines()[0]}"
    elif row.outcome.summary is None:
        total = int(row.outcome.answer.inputs.flatten(2).isfinite().all(2).sum())
        if total == 0:
            yield "ATTACK FAILED: no reconstruction. It does not follow that nothing leaks."
            return
        many = f"{total} reconstruction{'' if total == 1 else 's'}"
        yield f"NOT SCORED: {many}, but no true examples to compare with. It does not follow what leaks."


def _searched(row: Row) -> Iterator[str]:
    """Yield the searches that found the reconstructions, or those that were tried where none is a success."""
    found = row.outcome
    if found is None:
        return
    if (found.summary is None or row.leaks or found.summary["asr"]) and found.by_search:
        yield found.by_search
    elif found.answer.stages:
        yield f"searches tried: {', '.join(found.answer.stages)}"
    yield from found.by_budget.splitlines()


def _success(measured: Mapping[str, Any]) -> str:
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
