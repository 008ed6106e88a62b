"""The page of a table in Markdown: what was measured, the verdicts on printed numbers, and how a row is measured again."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.reproduce.agreement import LEVEL
from leakbench.reproduce.claimed import with_claims
from leakbench.reproduce.columns import COLUMNS, Row, text_of
from leakbench.reproduce.curves import ordered
from leakbench.reproduce.reached import reached
from leakbench.reproduce.stale import rows_of, stale_lines
from leakbench.reproduce.table import Line, Table
from leakbench.reproduce.verdict import CLAIMS, ORDER, VERDICTS, Compared, compared, decided, digits_of, unmeasured
from leakbench.scripts import in_table, markdown_table, untagged

__all__ = ["claims_of", "counted", "on_one_network", "page_of"]

AGAIN = (
    'A row is measured again by `leakbench reproduce {name} --only "ROW" --again` (`--scale full` where the row is of that;'
    " `--out FOLDER` leaves these pages as they are), ROW being its name without a leakage point (`type-2`, `type-1`, `type-0` or"
    " `global`) at the end; {seeds}."
)

RULE = (
    "A printed number is compared with the same quantity over at least {networks} networks or {seeds} trainings. Reproduced: the"
    " 95 % interval of the difference is within {tolerances}. Contradicted: a two-sided test at {level:.0%}, after Holm's"
    " correction over this page, tells it from the measurement. [What the verdicts mean](../docs/papers.md#verdicts)."
)

ORDERS = (
    "A claim is reproduced where the difference over the seeds is above 0, and contradicted where it is below, by a two-sided"
    " t test at {level:.0%} after Holm's correction over this page. [What the verdicts mean](../docs/papers.md#verdicts)."
)

MANY = 12
"""Names of cells that are listed singly at most."""

HEADS = ("row", "what", "claimed", "measured", "95 % interval", "verdict", "reason")


PUBLISHED = "Of the published rows, not of these: "


def claims_of(table: Table, rows: pd.DataFrame) -> list[Compared]:
    """Return every claim of the table with its verdict, measured or not."""
    digits = digits_of(claim for line in table.lines for claim in line.claims.values())
    measured = {name: group.to_dict("records") for name, group in rows.groupby("cell", sort=False)}
    found = list[Compared]()
    for line in table.lines:
        if line.name not in measured:
            found += [claim for row, claims in line.unmeasured().items() for claim in unmeasured(row, claims)]
        for row in measured.get(line.name, []):
            claim = line.claimed(str(row["point"]))
            quick = line.less() if row.get("scale") == "quick" else ""
            apart = {what: "; ".join(filter(None, (line.apart.get(what, ""), quick))) for what in claim}
            found += compared(row, claim, apart, line.because, digits, line.samples)
    return decided(found + (ordered(table.rounds, rows) if table.rounds else []))


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
            *on_one_network(table, rows),
            *_drawn(table),
            measured,
            "",
            *missing,
            *legend,
            "",
        ),
        *_verdicts(table, claims_of(table, rows)),
        *_reached(rows),
        *_at_quick(table, rows),
        AGAIN.format(name=table.called, seeds=_seeds(table, rows)),
        "",
        untagged(f"{PUBLISHED}{table.found}" if elsewhere and table.found else table.found),
    ]
    return "\n".join(lines).rstrip() + "\n"


def on_one_network(table: Table, rows: pd.DataFrame) -> list[str]:
    """Return which rows of several victims were measured on one network, or in one training; nothing where none was."""
    protocols = {line.name: line.requests("full", {})[0].protocol for line in table.lines}
    several = rows[rows["victims"] > 1] if "victims" in rows else rows[:0]
    alone = several[several["networks"].fillna(1) <= 1] if "networks" in several else several
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(alone["cell"]):
        found.setdefault("one training" if protocols.get(name) == "live" else "one network", []).append(str(name))
    every = set(several["cell"])
    lines = (
        f"Measured on {what}, so that the intervals say nothing of another: "
        f"{'all rows' if set(names) == every else untagged('; '.join(_gathered(names)))}."
        for what, names in found.items()
    )
    return [text for line in lines for text in (line, "")]


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


def counted(verdicts: Iterable[str]) -> str:
    """Return in words how many numbers have which verdict."""
    found = Counter(verdicts)
    each = ", ".join(f"{verdict} {found[verdict]}" for verdict in VERDICTS if found[verdict])
    return f"{found.total()} printed number{'s' * (found.total() != 1)}: {each}."


def _verdicts(table: Table, claims: Sequence[Compared]) -> list[str]:
    """Return the table of claims and verdicts; nothing where nothing is claimed."""
    rows = [
        (
            in_table(c.row),
            CLAIMS[c.what].heading,
            "> 0" if c.what == ORDER else f"{c.claimed:g}",
            text_of(c.value, 3),
            _interval(c),
            f"**{c.verdict}**",
            in_table(c.reason),
        )
        for c in claims
    ]
    if not rows:
        return []
    rules = [_rule({c.what for c in claims}), _samples(table)]
    return [
        *("## Claims", "", counted(c.verdict for c in claims), ""),
        *(part for rule in rules if rule for part in (rule, "")),
        *(markdown_table(HEADS, rows), ""),
    ]


def _rule(whats: set[str]) -> str:
    """Return by which rule these claims get their verdicts."""
    if whats == {ORDER}:
        return ORDERS.format(level=LEVEL)
    tolerances = [f"{CLAIMS[what].tolerance:g} ({CLAIMS[what].heading})" for what in CLAIMS if what in whats]
    tolerances = [each for each in tolerances if not each.startswith("0 ")]
    if not tolerances:
        return "[What the verdicts mean](../docs/papers.md#verdicts)."
    least = {f"{unit}": max(m.least for m in CLAIMS.values() if m.unit == unit) for unit in ("networks", "seeds")}
    return RULE.format(**least, tolerances=", ".join(tolerances), level=LEVEL)


def _samples(table: Table) -> str:
    """Return on how many examples the printed numbers were measured, and where the paper says it."""
    sizes: dict[str, dict[str, None]] = {}
    for line in table.lines:
        printed = {what for claim in line.claims.values() for what in claim}
        for number in {number for what, number in line.samples.items() if what in printed}:
            whats = [CLAIMS[what].heading for what in CLAIMS if what in printed and line.samples.get(what) == number]
            sizes.setdefault(f"{Path(line.given['dataset']).stem} {number:,}", {}).update(dict.fromkeys(whats))
    each = "; ".join(f"{size} ({', '.join(whats)})" for size, whats in sizes.items())
    return untagged(f"Examples behind the printed numbers, from {table.samples_from}: {each}.") if each else ""


def _reached(rows: pd.DataFrame) -> list[str]:
    """Return which cell of each sweep is the first to reach its aim; nothing where nothing is aimed at."""
    found = [
        (in_table(r.sweep), f"{r.aim:.3f}", in_table(r.cell), r.accuracy, r.claimed, r.valid) for r in reached(rows)
    ]
    heads = ("sweep", "aim", "first that reaches it", "accuracy [95 % CI]", "epsilon claimed", "epsilon valid")
    rule = "Of each sweep the first cell, in its order, whose accuracy is what is aimed at, or more."
    return ["## What reaches the accuracy", "", rule, "", markdown_table(heads, found), ""] if found else []


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
