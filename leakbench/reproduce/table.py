"""A table of cells: one YAML file in `studies/` with its cells, what a paper prints of them, and what was found.

kind:     cells, or not said; another kind is read by `leakbench.reproduce.accounting.table`.
title:    of its page.            cite:  the paper, for a table of a paper.      text:  setting, under the box of the page.
question: the claim that the page tests, for the box at its top.                  answer: the verdict in words, without numbers.
columns:  a set of `leakbench.reproduce.columns`.
given:    fields of `leakbench.cell.Request` for all cells; the path of a recipe begins where the file lies.
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
rows:     [{name, given, each, printed, claim, aim, apart, because, seeds, most_seeds, quick}]: `Line`, `leakbench.study.grid`.
found:    summary of the numbers, below them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from os.path import normpath
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.core.errors import InputError, nearest
from leakbench.core.recipe import own_recipes
from leakbench.data.find import Load
from leakbench.reproduce.columns import COLUMNS, measures_of
from leakbench.reproduce.curves import SPANS, Order, Rounds
from leakbench.reproduce.file import (
    WrittenOrder,
    WrittenRow,
    WrittenTable,
    as_written,
    body_of,
    called,
    check_claims,
    check_given,
    check_kind,
    claims_of,
)
from leakbench.reproduce.verdict import CLAIMS, LEAST_SEEDS, Compared, compared, digits_of
from leakbench.study.grid import spelled_out
from leakbench.study.rows import Row, RowFormat, of_table
from leakbench.study.stale import Published, Today, hash_of, together

__all__ = ["AUTO", "SCALES", "Line", "Table", "read_table", "scale_of", "table_of", "with_claims"]

SCALES = ("quick", "full")

AUTO = "auto"
"""The scale that measures each cell at `full` or at `quick`, by its cost."""

COUNTS = ("victims", "candidates", "seeds")
"""Fields whose smaller values make intervals wider and change no other number."""


@dataclass(frozen=True)
class Line:
    """A cell of a table.

    Args:
        given: Fields of a `Request`.
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
            **self.claims.get(point.split("@", maxsplit=1)[0], {}),
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
        """Return how cells of the scale `quick` differ from the paper's; fewer victims or seeds do not count."""
        cut = [name for name in self.quick or {} if name not in COUNTS]
        return f"scale quick: other {', '.join(cut)}" if cut else ""

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
        given = {**self.given, **quick, **changed}
        fields: dict[str, Any] = {k: tuple(map(str, v)) if isinstance(v, list) else v for k, v in given.items()}
        first = Request(**fields)
        return [dataclasses.replace(first, seed=first.seed + i) for i in range(seeds)]


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
        quick = line.less() if scale == "quick" else ""
        apart = {what: "; ".join(filter(None, (line.apart.get(what, ""), quick))) for what in claim}
        digits = digits_of(claim for line in self.lines for claim in line.claims.values())
        return compared(row, claim, apart, line.because, digits, line.samples, len(line.counts(scale)))

    def names(self, scale: str) -> list[str]:
        """Return the names of its cells at a scale."""
        return [line.name for line in self.at(scale)]

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
            return [found[0], dataclasses.replace(found[0], defense="none")] if self.repeats else found

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
    for row in body["rows"]:
        as_written(path, WrittenRow, row, f"row {row.get('name')!r}: ")
    pictures, repeats, window = (_count(path, body, key) for key in ("pictures", "repeats", "window"))
    check_kind(path, body)
    lines = tuple(_line(path, body, row) for row in spelled_out(body["rows"], f"{path}"))
    for name_ in {line.name for line in lines if [other.name for other in lines].count(line.name) > 1}:
        raise InputError(f"{path}: rows: two are called {name_!r}")
    for line in lines:
        if pictures and line.given.get("pictures") is False:
            raise InputError(
                f"{path}: row {line.name!r}: pictures: got false, so the figure of the table cannot show the row"
            )
    words = ("title", "text", "cite", "found", "samples_from", "question", "answer")
    texts: dict[str, Any] = {name: getattr(written, name).strip() for name in words}
    if bool(written.samples) != bool(texts["samples_from"]):
        raise InputError(f"{path}: samples, samples_from: each needs the other; add where the paper gives the sizes")
    rounds = _rounds(path, body, lines, window or 1)
    counts: dict[str, Any] = {"pictures": pictures, "repeats": repeats, "rounds": rounds}
    return Table(path.stem, lines=lines, called=called(path), columns=written.columns, **texts, **counts)


def _line(path: Path, body: Mapping[str, Any], row: Mapping[str, Any]) -> Line:
    where = f"{path}: row {row['name']!r}: "
    given = {**body["given"], **row.get("given", {})}
    claims, apart = (
        claims_of(where, row.get("claim", {}), tuple(CLAIMS)),
        {**body.get("apart", {}), **row.get("apart", {})},
    )
    for name in apart:
        if name not in CLAIMS:
            raise InputError(f"{where}apart: {name!r} is not measured{nearest(str(name), list(CLAIMS))}")
    quick = row.get("quick", {})
    quick = None if quick is False else {**body.get("quick", {}), **quick}
    check_given(where, given, quick)
    check_claims(where, claims, given, bool(body.get("repeats")))
    own = {slot: normpath(path.parent / name) for slot, name in own_recipes(given).items()}
    seeds = row.get("seeds", body.get("seeds", 1))
    most = row.get("most_seeds", body.get("most_seeds", seeds) if "seeds" not in row else seeds)
    if most < seeds:
        raise InputError(f"{where}most_seeds: got {most}, expected at least seeds, {seeds}")
    if most > seeds and seeds < LEAST_SEEDS:
        raise InputError(
            f"{where}seeds: got {seeds} with most_seeds, expected at least {LEAST_SEEDS}: fewer give no verdict"
        )
    words = row.get("because", "")
    samples = _samples(where, body.get("samples", {}), given)
    return Line(row["name"], given | own, claims, apart, words, seeds, most, quick, row.get("aim"), samples)


def _samples(where: str, samples: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, int]:
    """Return {what is claimed: number of examples} of a row's data set; a data set that is not named has none."""
    found = {}
    for what, number in samples.items():
        if what not in CLAIMS:
            raise InputError(f"{where}samples: {what!r} is not measured{nearest(what, list(CLAIMS))}")
        of_set = number.get(Path(given["dataset"]).stem) if isinstance(number, Mapping) else number
        if of_set is None:
            continue
        if type(of_set) is not int or of_set < 1:
            raise InputError(f"{where}samples: {what}: got {of_set!r}, expected a whole number >= 1")
        found[what] = of_set
    return found


def _rounds(path: Path, body: Mapping[str, Any], lines: Iterable[Line], window: int) -> Rounds | None:
    for order in body.get("orders", []):
        as_written(path, WrittenOrder, order, "orders: ")
        if order.get("rounds", "all") not in SPANS:
            raise InputError(f"{path}: orders: rounds: got {order['rounds']!r}{nearest(order['rounds'], SPANS)}")
    panels = {title: tuple(names) for title, names in body.get("curves", {}).items()}
    orders = [{**order, "more": tuple(order["more"]), "less": tuple(order["less"])} for order in body.get("orders", [])]
    known = [line.name for line in lines]
    for name in {
        name for named in (*panels.values(), *(o[side] for o in orders for side in ("more", "less"))) for name in named
    }:
        if name not in known:
            raise InputError(f"{path}: curves, orders: {name!r} is not a row{nearest(name, known)}")
    return Rounds(window, panels, tuple(Order(**order) for order in orders)) if panels else None


def _count(path: Path, body: Mapping[str, Any], name: str) -> int:
    found = body.get(name, 0)
    if type(found) is not int or found < 0:
        raise InputError(f"{path}: {name}: got {found!r}, expected a whole number >= 0")
    return found


def scale_of(row: Mapping[Any, Any]) -> tuple[str, dict[str, Any]]:
    """Return the scale that a row was measured at, and the numbers of its trial; empty for a row that is not a trial's."""
    scale, changed = row.get("scale"), row.get("changed")
    return scale if isinstance(scale, str) else "full", json.loads(changed) if isinstance(changed, str) else {}


CLAIMED = "claimed_"


def with_claims(table: Table, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of cells that the table has, their claims and aims as it says them.

    A number that was misread in a paper is corrected in the table's file alone, and a cell that it no longer has leaves no row.
    """
    lines = {line.name: line for line in table.lines}
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
    return rows.assign(**{name: pd.Series(values, dtype=float) for name, values in found.items()})
