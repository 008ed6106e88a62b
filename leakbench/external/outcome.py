"""The outcome of an attack on external updates: as text and HTML, as JSON, as files and as a run folder."""

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
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
from rich.console import Console
from safetensors.torch import save
from torch import Tensor

from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.leakage_points import LeakagePoint, listed, point_name
from leakbench.core.verdict_words import INCONCLUSIVE, LEAKING
from leakbench.data.vocabulary import Vocabulary
from leakbench.data.words import WORDS, words_of
from leakbench.external.trace import Trace
from leakbench.measure.rates import ASR
from leakbench.report.columns import BATCH, FAILED, VERDICT, VICTIMS, PointColumn, update_columns, with_values
from leakbench.report.headline import headline, headline_html
from leakbench.report.own import own_report_into
from leakbench.report.table import core_columns, print_hanging, print_headline, print_points, printed_width
from leakbench.storage.atomic import write_bytes
from leakbench.storage.store import Run
from leakbench.storage.summary import Summary, Tap
from leakbench.summary.texts import distance_of

__all__ = [
    "UNKNOWN",
    "NotAttacked",
    "Outcome",
    "Row",
    "as_html",
    "as_json",
    "as_text",
    "check_new_file",
    "print_rows",
    "write_reconstructions",
    "write_run",
]

UNKNOWN = "no true examples were given, so nothing is scored"
"""Note of an update whose true examples are not known."""

WITHOUT_TRUTH = "Without --truth, the reconstructions cannot be scored."


@dataclass(frozen=True, repr=False)
class Outcome:
    """The outcome of an attack on V victims; `print` prints what `leakbench attack` prints, and a notebook shows a table.

    Args:
        summary: Measures and verdict, as of a leakage point of `leakbench run`; None if the truth is unknown.
        answer: The reconstructions, of M examples for each victim.
        distance: The attack's own distance of each victim (V,); lower is more certain.
        rows: One row for each example, as of a run; None if the truth is unknown.
        matched: The reconstructed inputs (V, M, *s) in the order of the truth; None if the truth is unknown.
        budget: The limit in seconds that stopped searches; None if it stopped none.
        tap: The leakage point.
        round: The round of the leak, from 1.
        untried: Attackers that may reconstruct more.
        seconds: Duration of the attack, with preparation and scores.
        left_out: Sentence about candidates that a budget left out; empty for none.
        assumptions: The assumptions of the attack, one sentence a line.
        warnings: Those of the assumptions that change how the result is read.
        sentences: The reconstructions of texts in words, in the attack's order; empty for other data.
        certified: Whether the gradient of each victim's sentences equals its update (V,); None for other data and a known truth.
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
    sentences: tuple[str, ...] = ()
    certified: Tensor | None = None

    @property
    def verdict(self) -> str | None:
        """The verdict, as of a run; None if the truth is unknown."""
        return None if self.summary is None else str(self.summary["verdict"])

    @property
    def leaks(self) -> bool:
        """Whether the verdict or a certificate states a leak."""
        return self.verdict in LEAKING or (self.certified is not None and bool(self.certified.all()))

    def __str__(self) -> str:
        """Return what `leakbench attack` prints of these reconstructions."""
        return as_text([self])

    def __repr__(self) -> str:
        return f"<Outcome at the {point_name(self.tap)}: {self.verdict or 'not scored'}>"

    def _repr_html_(self) -> str:
        """Return the verdict and the table for a notebook."""
        return as_html([self])

    @property
    def searches(self) -> tuple[str, ...]:
        """The name of the search that found each of the V reconstructions; () for a method without several searches."""
        stage, names = self.answer.stage, self.answer.stages
        return () if stage is None else tuple("none" if n < 0 else names[n] for n in stage.tolist())

    @property
    def note(self) -> str:
        """Lines about the searches that found the reconstructions and a budget that stopped searches; empty for neither."""
        return "\n".join(filter(None, [self.by_search, self.by_budget]))

    @property
    def by_search(self) -> str:
        """Number of reconstructions of each search; empty for a method without several searches."""
        counts = Counter(self.searches).most_common()
        if len(counts) < 2:
            return f"all reconstructions are from the search {counts[0][0]}" if counts else ""
        return f"reconstructions by search: {', '.join(f'{many} from {name}' for name, many in counts)}"

    @property
    def by_budget(self) -> str:
        """Lines about what a budget stopped or left out; empty for nothing."""
        names = dict.fromkeys(self.answer.not_begun)
        not_begun = f"not begun within the budget: {', '.join(names)}" if names else ""
        return "\n".join(filter(None, [self._stopped, not_begun, self.left_out]))

    @property
    def _stopped(self) -> str:
        if self.budget is None:
            return ""
        limit = f"the budget of {self.budget:g} s ({self.seconds:.1f} s taken)"
        if self.summary is not None and not self.leaks:
            return f"no leak found with {limit}, which is not evidence that the update does not leak"
        return f"{limit} stopped searches; a longer attack may reconstruct more"

    @property
    def lines(self) -> str:
        """All notes, one sentence a line: the assumptions, the searches and the budget."""
        return "\n".join(filter(None, [self.assumptions, self.note]))

    @property
    def notes(self) -> list[str]:
        """The assumptions that are printed as notes, not as a warning or with the result."""
        others = (*self.warnings, *self.note.split("\n"), UNKNOWN)
        return [line for line in self.assumptions.split("\n") if line and line not in others]


@dataclass(frozen=True)
class NotAttacked:
    """A leakage point in a round at which nothing could be attacked.

    Args:
        tap: The leakage point.
        round: The round, from 1.
        lines: The reason, then notes, one sentence a line.
    """

    tap: str
    round: int
    lines: str

    @property
    def notes(self) -> list[str]:
        """The notes after the reason."""
        return self.lines.split("\n")[1:]


SHOWN = 8
"""Number of sentences that are printed."""

Row: TypeAlias = Outcome | NotAttacked
"""A row of the table: one leakage point in one round."""


def print_rows(rows: Sequence[Row], console: Console, verbose: bool = False) -> None:
    """Print the verdicts, the searches that found the reconstructions, and a table of the leakage points.

    Where no leak is stated or certified, the untried attackers and the assumptions follow, since either may be the reason.

    Args:
        rows: One for each leakage point and round.
        console: Where to print.
        verbose: Also print all columns, the reasons of the verdicts and all notes.
    """
    _print_result(rows, console, verbose)
    leaking = [row for row in rows if _leaks(row)]
    hidden = sum(len(row.notes) for row in leaking)
    if leaking and not verbose:
        parts = [f"{hidden} note{'' if hidden == 1 else 's'}"] if hidden else []
        parts += ["the reasons of the verdicts", "all columns"] if _summary(rows).taps else []
        if parts:
            print_hanging(f"-v also prints {listed(parts)}.", console, "dim")


def _print_result(rows: Sequence[Row], console: Console, verbose: bool = False) -> None:
    """Print everything except the line about `-v`."""
    summary = _summary(rows)
    taps = summary.taps
    if taps:
        print_headline(headline(summary, external=True), console)
    for line in _lines(rows):
        print_hanging(line, console)
    if taps:
        console.print()
        print_points(taps, [*_columns(summary), VERDICT] if verbose else core_columns(summary), console)
        console.print()
    for name, row in zip(_names(rows), rows, strict=True):
        where = f"{point_name(name)}: " if len(rows) > 1 else ""
        for line in row.warnings if isinstance(row, Outcome) else ():
            print_hanging(f"warning: {where}{line}", console, "yellow")
        for line in row.notes if verbose or not _leaks(row) else ():
            print_hanging(f"note: {where}{line}", console, "dim")
    if verbose:
        reasons = [f"{point_name(name)}: {tap.verdict}: {tap.verdict_reason}" for name, tap in taps.items()]
        for line in (*reasons, *dict.fromkeys(map(_success, taps.values()))):
            print_hanging(line, console, "dim")


def as_text(rows: Sequence[Row]) -> str:
    """Return what `print_rows` prints, without the line about `-v`."""
    text = io.StringIO()
    _print_result(rows, Console(file=text, width=printed_width(), highlight=False))
    return text.getvalue().rstrip("\n")


def as_html(rows: Sequence[Row]) -> str:
    """Return the verdicts, the searches and the core table as HTML for a notebook."""
    summary = _summary(rows)
    answer = headline(summary, external=True) if summary.taps else None
    if answer is None:
        return headline_html(_lines(rows), INCONCLUSIVE)
    lines = [*answer.lines(), *_lines(rows)]
    table = pd.DataFrame(
        {column.heading: map(column.text, summary.taps.values()) for column in core_columns(summary)},
        index=pd.Index(map(point_name, summary.taps), name="leakage point"),
    )
    return headline_html(lines, answer.verdict) + table.to_html()


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows for JSON; `measured` is null without a known truth, and so is a distance that is not finite."""
    described = []
    for row in rows:
        found = row if isinstance(row, Outcome) else None
        victims, examples = (0, 0) if found is None else found.answer.inputs.shape[:2]
        described.append(
            {
                "tap": row.tap,
                "round": row.round,
                "victims": victims,
                "examples": examples,
                "measured": None if found is None else found.summary,
                "distance": None if found is None else _numbers(found.distance),
                "note": row.lines,
            }
            | ({"sentences": list(found.sentences)} if found is not None and found.sentences else {})
            | ({"certified": found.certified.tolist()} if found is not None and found.certified is not None else {})
        )
    return described


def _leaks(row: Row) -> bool:
    return isinstance(row, Outcome) and row.leaks


def _summary(rows: Sequence[Row]) -> Summary:
    """Return the scored rows as a summary of a run has its leakage points."""
    pairs = zip(_names(rows), rows, strict=True)
    taps = {name: row.summary for name, row in pairs if isinstance(row, Outcome) and row.summary}
    return Summary.of({"taps": taps})


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the key of each row: its leakage point, and in several rounds the number of rounds before it."""
    if len({row.round for row in rows}) < 2:
        return [row.tap for row in rows]
    return [LeakagePoint(row.tap, (row.round - 1,)).key for row in rows]


def _columns(summary: Summary) -> list[PointColumn]:
    return list(with_values((*update_columns(summary), VICTIMS, BATCH, FAILED), summary))


def _lines(rows: Sequence[Row]) -> list[str]:
    """Return the lines after the verdicts: rows without scores, and the searches of the others; equal lines are one."""
    grouped: dict[str, list[str]] = {}
    for name, row in zip(_names(rows), rows, strict=True):
        for line in (*_unscored(row), *_searched(row), *_found(row)):
            grouped.setdefault(line, []).append(point_name(name))
    lines = [line if len(names) == len(rows) else f"{listed(names)}: {line}" for line, names in grouped.items()]
    untried = dict.fromkeys(row.untried for row in rows if isinstance(row, Outcome) and not row.leaks)
    return [*lines, *(f"Not tried: {', '.join(names)}" for names in untried if names)]


def _unscored(row: Row) -> Iterator[str]:
    """Yield the result of a row without scores."""
    if isinstance(row, NotAttacked):
        yield f"NOT ATTACKED: {row.lines.splitlines()[0]}"
    elif row.summary is None:
        total = int(row.answer.inputs.flatten(2).isfinite().all(2).sum())
        if total == 0:
            yield "ATTACK FAILED: no reconstruction. It does not follow that nothing leaks."
            return
        if row.leaks:
            sentences = "this sentence" if total == 1 else f"these {total} sentences"
            yield f"RECONSTRUCTED, certified: the gradient of {sentences} equals the update."
            return
        many = f"{total} reconstruction{'' if total == 1 else 's'}"
        yield f"NOT SCORED: {many}, but no true examples to compare with. {WITHOUT_TRUTH}"
        if row.certified is not None and (proven := int(row.certified.sum())):
            yield f"certified for {proven} of {len(row.certified)} victims: the gradient of their sentences equals the update"


def _found(row: Row) -> Iterator[str]:
    """Yield the first reconstructed sentences."""
    sentences = row.sentences if isinstance(row, Outcome) else ()
    # A sentence of special tokens alone has no word.
    yield from (f"found: {sentence or '(no word)'}" for sentence in sentences[:SHOWN])
    if len(sentences) > SHOWN:
        yield f"{len(sentences) - SHOWN} more sentences are in the files"


def _searched(row: Row) -> Iterator[str]:
    """Yield the searches that found the reconstructions, or those that were tried where none is a success."""
    if isinstance(row, NotAttacked):
        return
    if (row.summary is None or row.leaks or row.summary[ASR.name]) and row.by_search:
        yield row.by_search
    elif row.answer.stages:
        yield f"searches tried: {', '.join(row.answer.stages)}"
    yield from row.by_budget.splitlines()


def _success(measured: Tap) -> str:
    """Return the threshold of success, and the number of candidates for identification."""
    among = f"; identified among {measured.candidates} candidates" if measured.identified is not None else ""
    return f"success is an {distance_of(measured).heading} of at most {measured.eta:.3g}{among}"


def _numbers(values: Tensor) -> list[float | None]:
    """Return numbers (V,) for JSON: None for those that are not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def check_new_file(path: Path, inputs: Sequence[Path]) -> None:
    """Check that a file for reconstructions can be written; leave nothing behind.

    Args:
        path: The file, which must not exist.
        inputs: Files and folders that are read. Their folders are refused: the file would be read as another update.

    Raises:
        InputError: If the file exists or cannot be written.
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
        # The same kind of name as the later temporary file has, so that a name that is too long is noticed here.
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        Path(name).unlink()
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise InputError(f"out: cannot write to {str(path)!r}: {reason}; give another --out") from None
    finally:
        with suppress(OSError):  # Another process uses the folder by now, or it was never made.
            for made in missing:
                made.rmdir()


def write_reconstructions(rows: Sequence[Row], path: Path) -> None:
    """Write the attacker's examples, {TAP.roundN.inputs: (V, M, *s), TAP.roundN.labels: (V, M)}, as safetensors."""
    found = {}
    for row in rows:
        if isinstance(row, Outcome):
            key = LeakagePoint(row.tap, (row.round,)).file
            found[f"{key}.inputs"] = row.answer.inputs.contiguous()
            found[f"{key}.labels"] = row.answer.labels.contiguous()
            if row.answer.targets is not None:
                found[f"{key}.targets"] = row.answer.targets.contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, save(found), private=True)


def write_run(
    run: Run, outcomes: Sequence[Outcome], traces: Sequence[Trace], vocabulary: Vocabulary | None = None
) -> None:
    """Finish a run folder: rows.parquet if anything was scored, reconstructions.safetensors, and report.html.

    reconstructions.safetensors contains `<tap>.round1.reconstruction` (V, M, *s), in the order of `.truth` if there is
    one, and `.labels` (V, M), the attacker's; `.targets` (V, M, k) for a network that does not name classes.

    Args:
        run: The folder, locked by this process.
        outcomes: One for each leakage point.
        traces: The attacked traces, in the same order.
        vocabulary: The tokens of texts, whose names are stored under `tokens`.
    """
    tensors: dict[str, Tensor] = {}
    scored: list[pd.DataFrame] = []
    for found, trace in zip(outcomes, traces, strict=True):
        key = LeakagePoint(found.tap, (found.round,)).file
        tensors[f"{key}.labels"] = found.answer.labels
        if found.answer.targets is not None:
            tensors[f"{key}.targets"] = found.answer.targets
        tensors[f"{key}.reconstruction"] = found.answer.inputs if found.matched is None else found.matched
        if found.rows is not None and trace.inputs is not None:
            tensors[f"{key}.truth"] = trace.inputs.float()
            scored.append(found.rows.assign(verdict=found.verdict))
    if vocabulary is not None:
        tensors[WORDS] = words_of(vocabulary, {n: t for n, t in tensors.items() if not n.endswith(".labels")})
    if scored:
        run.write_rows("rows.parquet", pd.concat(scored, ignore_index=True))
    else:  # The same attack may have been scored before.
        run.forget("rows.parquet")
    run.write_tensors("reconstructions.safetensors", tensors)
    run.manifest["summary"] = {
        "cell": run.manifest["cell"],
        "taps": {found.tap: found.summary for found in outcomes if found.summary},
        "notes": {
            f"{found.tap}.{n}": line for found in outcomes for n, line in enumerate(found.lines.split("\n")) if line
        },
        "distance": {found.tap: _numbers(found.distance) for found in outcomes},
    }
    if proven := {found.tap: found.certified.tolist() for found in outcomes if found.certified is not None}:
        run.manifest["summary"]["certified"] = proven
    run.manifest["complete"] = True
    run.save()
    run.forget("parts/")
    own_report_into(run)
