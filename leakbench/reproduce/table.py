"""A table of cells: one YAML file in `studies/` with its cells, what a paper prints of them, and what was found.

kind:     cells, or not said; another kind is read by `leakbench.reproduce.accounting.table`.
title:    of its page.            cite:  the paper, for a table of a paper.      text:  setting, under the box of the page.
question: the claim that the page tests, for the box at its top.                  answer: the verdict in words, without numbers.
columns:  a set of `leakbench.reproduce.columns`.
given:    fields of `leakbench.cell.Request` for all cells; the path of a recipe begins where the file lies. Tables of
          `accuracy` and `cost` have the smallest attack, `TRAINING_ONLY`.
quick:    what `--scale quick` gives instead of them; `quick: false` in a row leaves the row out there.
apart:    {what papers print: how every row's setting differs from the paper's}; a row may have its own.
samples:  {what papers print: on how many examples, or {data set: on how many}}, where the paper gives it; with it goes
samples_from: where in the paper.
seeds:    how often each cell is run, with other seeds; 1 if it is not said.
most_seeds: how often at most, at full size: one more at a time until the row's verdict is certain; `seeds` if it is not said.
pictures: number of examples whose truth and reconstructions the page's figure shows, see `leakbench.reproduce.table_figures`.
repeats:  how often local iterations are timed with and without the defense, in a table of costs, see `leakbench.reproduce.cost`.
curves:   {panel of the figure of accuracy over rounds: names of its rows}, see `leakbench.reproduce.curves`; with it may be
orders:   [{says, more, less, rounds, apart}], claims that rows are above others, and
window:   how many rounds `first` and `last` are; 1 if it is not said.
leaks:    name of a table of attacks on cells of the same names, for sweeps that aim at an accuracy: `leakbench.reproduce.price`.
rows:     [{name, given, each, printed, claim, aim, apart, because, seeds, most_seeds, quick}]: `Line`, `leakbench.study.grid`.
found:    summary of the numbers, below them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from os.path import normpath
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.core.errors import InputError, nearest
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.recipe import own_recipes, resolve
from leakbench.core.request import TRAINING_ONLY
from leakbench.data.find import Load
from leakbench.data.recipe import DatasetRecipe
from leakbench.reproduce.columns import COLUMNS, WITHOUT_LEAKS, measures_of
from leakbench.reproduce.curves import Order, Rounds
from leakbench.reproduce.file import (
    WrittenRow,
    WrittenTable,
    as_written,
    body_of,
    called,
    cell_fields,
    check_claims,
    check_kind,
    check_leaks,
    claims_of,
    quick_fields,
)
from leakbench.reproduce.verdict import CLAIMS, COLLAPSED, LEAST_SEEDS, Compared, compared, digits_of
from leakbench.study.grid import combinations, labelled
from leakbench.study.rows import Row, RowFormat, of_table
from leakbench.study.stale import Published, Today, hash_of, together

__all__ = ["AUTO", "SCALES", "Line", "Table", "read_table", "scale_of", "table_of"]

SCALES = ("quick", "full")

AUTO = "auto"
"""The scale that measures each cell at `full` or at `quick`, by its cost."""

COUNTS = ("victims", "candidates", "seeds")
"""Fields of which the scale `quick` has fewer, in the same setting."""

CLAIMED = "claimed_"
"""Start of the columns with what a paper prints."""


@dataclass(frozen=True)
class Line:
    """A cell of a table.

    Args:
        given: Fields of a `Request`, with the values that it has.
        claims: {leakage point, "" for every one: {what the paper prints: the number}}.
        apart: {what is claimed in another setting: how the setting differs}.
        because: Why measured numbers differ from printed ones, and what was tried to find out.
        seeds: How often the cell is run, with other seeds; the accuracy is that of all.
        most: How often at most: at full size it is run again until its verdict is certain.
        quick: What the scale `quick` gives instead of some fields and of `seeds`; None where it leaves the cell out.
        aim: The accuracy that a sweep tries to reach, see `leakbench.reproduce.reached`.
        samples: {what is claimed: on how many examples the printed number was measured}, where the paper gives it.
    """

    name: str
    given: Mapping[str, Any]
    claims: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    apart: Mapping[str, str] = field(default_factory=dict)
    because: str = ""
    seeds: int = 1
    most: int = 1
    quick: Mapping[str, Any] | None = field(default_factory=dict)
    aim: float | None = None
    samples: Mapping[str, int] = field(default_factory=dict)

    def claimed(self, point: str) -> dict[str, float]:
        """Return what is claimed of a leakage point: `type-1`, or `type-1@5` after five rounds."""
        return {
            **self.claims.get("", {}),
            **self.claims.get(LeakagePoint.of(point).tap, {}),
            **self.claims.get(point, {}),
        }

    def unmeasured(self) -> dict[str, dict[str, float]]:
        """Return {row: claims} of the cell before it is measured: a row for each leakage point that has claims."""
        points = [point for point in self.claims if point]
        if "" in self.claims:
            points = list(dict.fromkeys([*self.given.get("taps", Request.taps), *points]))
        several = len(points) > 1
        return {f"{self.name}, {point}" if several else self.name: self.claimed(point) for point in points}

    def less(self) -> str:
        """Return how cells of the scale `quick` differ from those at full size, for which the table is written."""
        cut = [name for name in self.quick or {} if name not in COUNTS]
        return f"scale quick: {'other' if cut else 'fewer'} {', '.join(cut or self.quick or ())}"

    def scale(self, asked: str) -> str:
        """Return the scale of a row that is measured at a scale: `full` also at `quick` where that changes nothing."""
        same = self.counts("quick") == self.counts("full") and self.requests("quick", {}) == self.requests("full", {})
        return "full" if same and self.quick is not None else asked

    def counts(self, scale: str) -> range:
        """Return the numbers of seeds after which the row of a scale may end."""
        if scale == "quick" and self.quick:
            least = int(self.quick.get("seeds", self.seeds))
            return range(least, least + 1)
        return range(self.seeds, self.most + 1)

    def requests(self, scale: str, changed: Mapping[str, Any], seeds: int = 0) -> list[Request]:
        """Return what is asked for at a scale, some fields changed: one for each seed, by default the least number of seeds."""
        quick = dict(self.quick or {}) if scale == "quick" else {}
        quick.pop("seeds", None)
        seeds = seeds or self.counts(scale).start
        given: dict[str, Any] = {**self.given, **quick, **changed}
        first = Request(**given)
        return [replace(first, seed=first.seed + i) for i in range(seeds)]


def _accuracies(row: Row) -> list[list[float]]:
    """Return the accuracies of each training of a row, or their mean where it does not keep them; empty without a training."""
    kept, mean = row.get("accuracies"), row.get("trained_accuracy")
    if isinstance(kept, str):
        found: list[list[float]] = json.loads(kept)
        return found
    return [] if mean is None or math.isnan(mean) else [[float(mean)]]


@cache
def _chance(dataset: str) -> tuple[float, float]:
    """Return the share of the commonest class, and the largest accuracy on the test examples that it explains; NaN if unknown."""
    sizes = resolve("datasets", DatasetRecipe, dataset)[1].sizes
    if sizes is None or len(sizes.train) < 2:
        return math.nan, math.nan
    share = max(sizes.train) / sum(sizes.train)
    return share, share + 3 * math.sqrt(share * (1 - share) / sizes.test)


@dataclass(frozen=True)
class Table:
    """What a file of a table says.

    Args:
        called: How a command asks for it.
    """

    name: str
    title: str
    text: str
    lines: tuple[Line, ...]
    cite: str = ""
    columns: str = "claims"
    found: str = ""
    pictures: int = 0
    repeats: int = 0
    rounds: Rounds | None = None
    called: str = ""
    samples_from: str = ""
    question: str = ""
    answer: str = ""
    leaks: str = ""

    computed: ClassVar[bool] = False

    @property
    def alone(self) -> str:
        """Why an engine cannot measure its cells in parallel; empty if it can."""
        return "measures the time of one cell after the other" if self.repeats else ""

    @property
    def format(self) -> RowFormat:
        """What the CSV of its rows must hold."""
        return of_table(self.columns, bool(self.rounds))

    @property
    def tests(self) -> int:
        """The most tests that its page can have."""
        # A cell that leaks in several rounds has a row for each of them.
        tests = sum(
            bool(CLAIMS[what].unit) * max(1, len(line.given.get("leak_rounds", ())))
            for line in self.lines
            for claim in line.unmeasured().values()
            for what in claim
        )
        return tests + len(self.rounds.orders if self.rounds else ())

    def compared(self, line: Line, row: Row) -> list[Compared]:
        """Compare each claim of a row of this line, see `leakbench.reproduce.verdict.compared`."""
        claim, scale = line.claimed(str(row["point"])), str(row.get("scale"))
        quick = self.smaller([row]).get(line.name, "")
        apart = {what: "; ".join(filter(None, (line.apart.get(what, ""), quick))) for what in claim}
        digits = digits_of(claim for line in self.lines for claim in line.claims.values())
        collapsed = self.collapsed([row]).get(line.name, "")
        return compared(row, claim, apart, line.because, digits, line.samples, len(line.counts(scale)), collapsed)

    def collapsed(self, rows: Iterable[Row]) -> dict[str, str]:
        """Return {cell with a training that learned nothing: the reason why no test over its trainings is made}.

        Such a training answers with one class or at random, and its accuracy is at most that of the commonest class, within
        sampling error. The spread of these accuracies is that of the classes, and not the normal or skewed one for which the error
        rate of the page is simulated. A row without the accuracy of each training is judged by its mean.
        """
        found, lines = {}, {line.name: line for line in self.lines}
        for row in rows:
            least = min((each[-1] for each in _accuracies(row)), default=math.nan)
            chance, limit = _chance(str(lines[row["cell"]].given.get("dataset", Request.dataset)))
            if least <= limit:
                found[str(row["cell"])] = (
                    f"{COLLAPSED}: the least accuracy, {least:.3f}, is not significantly above that of one class for all"
                    f" ({chance:.3f}), and no test is made"
                )
        return found

    def smaller(self, rows: Iterable[Row]) -> dict[str, str]:
        """Return {cell with a row of scale `quick`: how it differs from full size}; such a row decides nothing."""
        quick = {row["cell"] for row in rows if row.get("scale") == "quick"}
        return {line.name: line.less() for line in self.lines if line.name in quick}

    def names(self, scale: str) -> list[str]:
        """Return the names of its cells at a scale."""
        return [line.name for line in self.at(scale)]

    def current(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of cells that the table has, their claims, aims and scales as it says them.

        A number that was misread in a paper is corrected in the table's file alone, and a cell that it no longer has leaves no
        row.
        """
        lines = {line.name: line for line in self.lines}
        rows = rows[rows["cell"].isin(lines)].reset_index(drop=True)
        of = [
            (lines[cell].claimed(str(point)), lines[cell].aim)
            for cell, point in zip(rows["cell"], rows["point"], strict=True)
        ]
        kept = [name for name in map(str, rows) if name.startswith(CLAIMED)]
        named = dict.fromkeys([*kept, *(f"{CLAIMED}{what}" for claim, _ in of for what in claim)])
        found = {name: [claim.get(name.removeprefix(CLAIMED)) for claim, _ in of] for name in named}
        if any(aim is not None for _, aim in of):
            found["aim"] = [aim for _, aim in of]
        if "scale" in rows:
            scales = {name: line.scale("quick") for name, line in lines.items()}
            rows = rows.assign(scale=rows["scale"].mask(rows["scale"] == "quick", rows["cell"].map(scales)))
        return rows.assign(**{name: pd.Series(values, dtype=float) for name, values in found.items()})

    def published(self, row: Mapping[Any, Any], data_dir: Path | None) -> Published:
        """Return what a row of its CSV says, for `leakbench.study.stale`."""
        scale, changed = scale_of(row)
        lines = {line.name: line for line in self.at(scale)}

        def requests() -> list[Request]:
            """Return the requests of the row's cells; a table of costs has an undefended one next to the first."""
            if row["cell"] not in lines:
                raise InputError(f"{self.called} has no row {row['cell']!r} at scale {scale}")
            line, seeds = lines[row["cell"]], row.get("seeds")
            found = line.requests(scale, changed, int(seeds) if seeds and seeds in line.counts(scale) else 0)
            return [found[0], replace(found[0], defense="none")] if self.repeats else found

        def today(load: Load) -> Today:
            cells = [prepare(request, data_dir, load=load) for request in requests()]
            return Today(hash_of(cells[:1] if self.repeats else cells), together(cells))

        dataset = str(lines[row["cell"]].given.get("dataset", Request.dataset)) if row["cell"] in lines else ""
        return Published(self.name, row["cell"], "", dataset, today, requests, scale=scale, changed=changed)

    def line_of(self, row: Row) -> str:
        """Return the line that reports a new row: what was measured."""
        return f"{row['row']}: {measures_of(row, self.columns)}"

    def at(self, scale: str) -> tuple[Line, ...]:
        """Return the cells of a scale: `quick` and `auto` have those that fit into `quick`."""
        return tuple(line for line in self.lines if scale == "full" or line.quick is not None)


def read_table(name: str) -> Table:
    """Return a table by its name, or by the path of a user's file; raises InputError for a missing or wrong one."""
    return table_of(*body_of(name))


def table_of(path: Path, body: Mapping[str, Any]) -> Table:
    """Return the table in a file; raises InputError for a wrong or missing field."""
    written = as_written(path, WrittenTable, body)
    if written.columns not in COLUMNS:
        raise InputError(f"{path}: columns: got {written.columns!r}{nearest(written.columns, list(COLUMNS))}")
    if not written.rows:
        raise InputError(
            f"{path}: rows: got none, expected at least one cell, as - {{name: mine, given: {{attack: cpl}}}}"
        )
    rows = [as_written(path, WrittenRow, row, f"row {row.get('name')!r}: ") for row in written.rows]
    orders = tuple(as_written(path, Order, order, "orders: ") for order in written.orders)
    check_kind(path, written, rows)
    check_leaks(path, written, rows)
    lines = tuple(line for row in rows for line in _lines(path, written, row))
    names = [line.name for line in lines]
    for name in {name for name in names if names.count(name) > 1}:
        raise InputError(f"{path}: rows: two are called {name!r}")
    for line in lines:
        if written.pictures and line.given.get("pictures") is False:
            raise InputError(
                f"{path}: row {line.name!r}: pictures: got false, so the figure of the table cannot show the row"
            )
    for name in {name for named in (*written.curves.values(), *(o.more + o.less for o in orders)) for name in named}:
        if name not in names:
            raise InputError(f"{path}: curves, orders: {name!r} is not a row{nearest(name, names)}")
    if bool(written.samples) != bool(written.samples_from):
        raise InputError(f"{path}: samples, samples_from: each needs the other; add where the paper gives the sizes")
    return Table(
        path.stem,
        title=written.title.strip(),
        text=written.text.strip(),
        lines=lines,
        cite=written.cite.strip(),
        columns=written.columns,
        found=written.found.strip(),
        pictures=written.pictures,
        repeats=written.repeats,
        rounds=Rounds(written.window or 1, written.curves, orders) if written.curves else None,
        called=called(path),
        samples_from=written.samples_from.strip(),
        question=written.question.strip(),
        answer=written.answer.strip(),
        leaks=written.leaks,
    )


def _lines(path: Path, table: WrittenTable, row: WrittenRow) -> Iterator[Line]:
    """Yield the cells of a row: one for each combination of its settings, with the numbers that are printed of it."""
    every = combinations(row.each, f"{path}: ")
    for what, numbers in row.printed.items():
        if len(numbers) != len(every):
            said = f"got {len(numbers)} numbers for {len(every)} combinations"
            raise InputError(f"{path}: row {row.name!r}: printed: {what}: {said}")
    for place, (labels, fields) in enumerate(every):
        printed = {what: numbers[place] for what, numbers in row.printed.items() if numbers[place] is not None}
        name, least = labelled(row.name, labels, f"{path}: "), TRAINING_ONLY if table.columns in WITHOUT_LEAKS else {}
        given = {**least, **table.given, **row.given, **fields}
        yield _line(path, table, row, name, given, {**row.claim, **printed})


def _line(
    path: Path, table: WrittenTable, row: WrittenRow, name: str, given: Mapping[str, Any], claim: Mapping[str, Any]
) -> Line:
    """Return a cell of a row, checked.

    Args:
        path: The file.
        table: Its table.
        row: The row.
        name: Name of the cell.
        given: Its fields.
        claim: What is claimed of it.
    """
    where = f"{path}: row {name!r}: "
    claims, apart = claims_of(where, claim, tuple(CLAIMS)), {**table.apart, **row.apart}
    for what in apart:
        if what not in CLAIMS:
            raise InputError(f"{where}apart: {what!r} is not measured{nearest(what, list(CLAIMS))}")
    quick = None if row.quick is False else quick_fields(where, {**table.quick, **row.quick})
    fields = cell_fields(where, given)
    check_claims(where, claims, fields, bool(table.repeats))
    own = own_recipes(fields, lambda recipe: normpath(path.parent / recipe))
    seeds = row.seeds or table.seeds
    most = row.most_seeds or (seeds if row.seeds else table.most_seeds or seeds)
    if most < seeds:
        raise InputError(f"{where}most_seeds: got {most}, expected at least seeds, {seeds}")
    if most > seeds and seeds < LEAST_SEEDS:
        raise InputError(
            f"{where}seeds: got {seeds} with most_seeds, expected at least {LEAST_SEEDS}: fewer give no verdict"
        )
    samples = _samples(where, table.samples, fields)
    return Line(name, fields | own, claims, apart, row.because, seeds, most, quick, row.aim, samples)


def _samples(where: str, samples: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Return {what is claimed: number of examples} of a row's data set; a data set that is not named has none."""
    found = {}
    for what, number in samples.items():
        if what not in CLAIMS:
            raise InputError(f"{where}samples: {what!r} is not measured{nearest(what, list(CLAIMS))}")
        dataset = Path(given.get("dataset", Request.dataset)).stem
        of_set = number.get(dataset) if isinstance(number, Mapping) else number
        if of_set is None:
            continue
        if type(of_set) is not int or of_set < 1:
            raise InputError(f"{where}samples: {what}: got {of_set!r}, expected a whole number >= 1")
        found[what] = of_set
    return found


def scale_of(row: Mapping[Any, Any]) -> tuple[str, dict[str, Any]]:
    """Return the scale that a row was measured at, and the numbers of its trial; empty for a row that is not a trial's."""
    scale, changed = row.get("scale"), row.get("changed")
    return scale if isinstance(scale, str) else "full", json.loads(changed) if isinstance(changed, str) else {}
