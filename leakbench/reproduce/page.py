"""The page of a table in Markdown: what was measured, which claims hold, what the columns mean, how a row is measured again."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from leakbench.reproduce.claimed import with_claims
from leakbench.reproduce.columns import COLUMNS, Row, text_of
from leakbench.reproduce.curves import ordered
from leakbench.reproduce.reached import reached
from leakbench.reproduce.stale import rows_of, stale_lines
from leakbench.reproduce.table import Line, Table
from leakbench.reproduce.verdict import CLAIMS, FAILS, ORDER, Compared, compared, digits_of
from leakbench.scripts import in_table, markdown_table, untagged

__all__ = ["claims_of", "page_of"]

AGAIN = (
    'A row is measured again by `leakbench reproduce {name} --only "ROW" --again` (`--scale full` where the row is of that;'
    " `--out FOLDER` leaves these pages as they are), ROW being its name without a leakage point (`type-2`, `type-1`, `type-0` or"
    " `global`) at the end; {seeds}."
)

ORDERS = (
    "A claim holds where the 95 % t interval over seeds of the difference, seed by seed, lies above 0, and does not where it lies "
    "below; claims are many, and intervals are not corrected for that."
)

MANY = 12
"""Names of cells that are listed singly at most."""

ONE_SEED = "of one seed: its interval says nothing of what another draw of noise, clients and batches gives"

HEADS = ("row", "what", "claimed", "measured", "95 % interval", "verdict", "reason")


PUBLISHED = "Of the published rows, not of these: "


def claims_of(table: Table, rows: pd.DataFrame) -> list[Compared]:
    """Return every claim of the rows that were measured, beside its number."""
    lines = {line.name: line for line in table.lines}
    digits = digits_of(claim for line in table.lines for claim in line.claims.values())
    of = [(row, lines[row["cell"]]) for row in rows.to_dict("records") if row["cell"] in lines]
    found = list[Compared]()
    for row, line in of:
        claim = line.claimed(row["point"])
        apart = dict.fromkeys(claim, line.less()) if row.get("scale") == "quick" and line.less() else {}
        if row.get("seeds") == 1 and "accuracy" in claim:
            apart = {"accuracy": ONE_SEED} | apart
        found += compared(row, claim, {**line.apart, **apart}, line.because, digits)
    return found + (ordered(table.rounds, rows) if table.rounds else [])


def page_of(table: Table, rows: pd.DataFrame, elsewhere: bool = False) -> str:
    """Return the page; what is claimed and aimed at is what the table says now.

    elsewhere: whether these are not the published rows, of which the table's findings are.
    """
    rows = with_claims(table, rows)
    shown = [(column, [column.show(row) for row in rows.to_dict("records")]) for column in COLUMNS[table.columns]]
    shown = [(column, cells) for column, cells in shown if set(cells) != {"-"}]
    measured = markdown_table((c.heading for c, _ in shown), zip(*(cells for _, cells in shown), strict=True))
    lacking = [line.name for line in table.lines if line.name not in set(rows["cell"])]
    missing = [f"Not measured yet: {untagged('; '.join(_gathered(lacking)))}.", ""] if lacking else []
    legend = [f"- {column.heading}: {column.meaning}." for column, _ in shown if column.meaning]
    cite = [untagged(table.cite), ""] if table.cite else []
    lines = [
        *(
            f"# {untagged(table.title)}",
            "",
            *cite,
            untagged(table.text),
            "",
            *_trial(table, rows),
            *stale_lines(list(rows_of(table, rows))),
            *_drawn(table),
            measured,
            "",
            *missing,
            *legend,
            "",
        ),
        *_verdicts(claims_of(table, rows)),
        *_reached(rows),
        *_at_quick(table, rows),
        AGAIN.format(name=table.called, seeds=_seeds(table, rows)),
        "",
        untagged(f"{PUBLISHED}{table.found}" if elsewhere and table.found else table.found),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _trial(table: Table, rows: pd.DataFrame) -> list[str]:
    """Return which numbers of the rows are not the table's, and how such rows are measured again; nothing where all are."""
    lines = {line.name: line for line in table.lines}
    found: dict[str, list[str]] = {}
    for row in rows.drop_duplicates("cell").to_dict("records"):
        changed = _changed(row)
        if changed:
            given = _given(lines[row["cell"]], row)
            said = ", ".join(f"{name} {value} for {given.get(name, 'its own')}" for name, value in changed.items())
            again = " ".join(f"--set {name}={value}" for name, value in changed.items())
            found.setdefault(untagged(f"- {said} (`{again}`)"), []).append(row["cell"])
    rule = "A trial: these rows were measured with other numbers than the table's, which are not published ones:"
    shown = [f"{said}: {untagged('; '.join(_gathered(names)))}." for said, names in found.items()]
    return [rule, "", *shown, ""] if shown else []


def _changed(row: Row) -> dict[str, Any]:
    """Return {field: number} of what a trial changed in a row."""
    text = row.get("changed")
    return dict(json.loads(text)) if isinstance(text, str) else {}


def _given(line: Line, row: Row) -> dict[str, Any]:
    """Return what the table gives of a row, at its scale."""
    return {**line.given, **((line.quick or {}) if row.get("scale") == "quick" else {})}


def _seeds(table: Table, rows: pd.DataFrame) -> str:
    """Return with which seeds, each the first of its cell, the rows were measured."""
    lines = {line.name: line for line in table.lines}
    given = [{"seed": 0, **_given(lines[row["cell"]], row), **_changed(row)} for row in rows.to_dict("records")]
    seeds = sorted({int(each["seed"]) for each in given}) or [0]
    if len(seeds) == 1:
        return f"seed {seeds[0]} throughout"
    return f"seeds {', '.join(map(str, seeds))}, of each row what the table says"


def _drawn(table: Table) -> list[str]:
    """Return the figure of a table that has one."""
    return [f"![{untagged(table.title)}]({table.name}.png)", ""] if table.pictures or table.rounds else []


def _verdicts(claims: Sequence[Compared]) -> list[str]:
    """Return the table of claims and verdicts; nothing where nothing is claimed."""
    rows = [
        (
            in_table(c.row),
            CLAIMS[c.what].heading,
            "> 0" if c.what == ORDER else f"{c.claimed:g}",
            text_of(c.value, 3),
            _interval(c),
            f"**{c.verdict}**",
            in_table(c.reason or _unexplained(c)),
        )
        for c in claims
    ]
    rule = "A claim holds where its number, as printed, lies in the interval of what was measured."
    rule = ORDERS if claims and all(c.what == ORDER for c in claims) else rule
    return ["## Claims", "", rule, "", markdown_table(HEADS, rows), ""] if rows else []


def _reached(rows: pd.DataFrame) -> list[str]:
    """Return which cell of each sweep is the first to reach its aim; nothing where nothing is aimed at."""
    found = [
        (in_table(r.sweep), f"{r.aim:.3f}", in_table(r.cell), r.accuracy, r.claimed, r.valid) for r in reached(rows)
    ]
    heads = ("sweep", "aim", "first that reaches it", "accuracy [95 % CI]", "epsilon claimed", "epsilon valid")
    rule = "Of each sweep the first cell, in its order, whose accuracy is what is aimed at, or more."
    return ["## What reaches the accuracy", "", rule, "", markdown_table(heads, found), ""] if found else []


def _unexplained(c: Compared) -> str:
    """Return what is said of a claim that fails without a known reason: an attack that does better than printed needs none."""
    if c.verdict != FAILS:
        return ""
    stronger = (c.what == "asr" and c.low > c.claimed) or (c.what in ("rmse", "iterations") and c.high < c.claimed)
    return "the attack does better than is printed" if stronger else "no reason was found"


def _interval(c: Compared) -> str:
    nothing = (pd.isna(c.low) and pd.isna(c.high)) or (c.low == -math.inf and c.high == math.inf)
    return "-" if nothing else f"[{text_of(c.low, 3)}, {text_of(c.high, 3)}]"


def _gathered(names: list[str]) -> list[str]:
    """Return names of cells; of many, those that are alike up to the last comma together, with their number."""
    if len(names) <= MANY:
        return names
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.rpartition(", ")[0] or name, []).append(name)
    return [found[0] if len(found) == 1 else f"{start} ({len(found)} cells)" for start, found in alike.items()]


def _at_quick(table: Table, rows: pd.DataFrame) -> list[str]:
    """Return what was cut of the rows of the scale `quick`."""
    quick = set(rows.loc[rows["scale"] == "quick", "cell"]) if "scale" in rows else set()
    cut: dict[str, list[str]] = {}
    for line in table.lines:
        if line.name in quick and line.quick:
            said = ", ".join(
                f"{name} {value} for {line.given.get(name, 'its own')}" for name, value in line.quick.items()
            )
            cut.setdefault(said, []).append(line.name)
    left = [line.name for line in table.lines if line.quick is None] if quick else []
    lines = [f"- {untagged(said)}: {untagged('; '.join(_gathered(names)))}." for said, names in cut.items()]
    lines += [f"- left out: {untagged('; '.join(_gathered(left)))}."] if left else []
    return ["At the scale `quick`, with less of each than the paper has:", "", *lines, ""] if lines else []
