"""Write the page of a table in Markdown: box, rows, verdicts on printed numbers, and the command that measures a row again."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.box import (
    beyond_the_asr,
    box_of,
    caveats_of,
    evidence_of,
    few_seeds,
    few_victims,
    leaks_counted,
    part_of,
    without_leak,
)
from leakbench.cell import Request
from leakbench.core.scripts import in_table, markdown_table, untagged
from leakbench.reproduce.agreement import LEVEL
from leakbench.reproduce.columns import COLUMNS, WITHOUT_LEAKS, legend_of, text_of, without_an_answer
from leakbench.reproduce.curves import ordered
from leakbench.reproduce.price import leaks_of, price_lines, reached_of
from leakbench.reproduce.published import rows_of
from leakbench.reproduce.table import AUTO, Line, Table, scale_of
from leakbench.reproduce.verdict import CLAIMS, LEAST_SEEDS, ORDER, VERDICTS, Compared, decided, unmeasured
from leakbench.study.rows import Row
from leakbench.study.stale import stale_lines, stale_names

__all__ = ["claims_of", "counted", "on_one_network", "page_of"]

AGAIN = (
    '`leakbench reproduce {name} --only "ROW" --again` measures a row again (add `--scale full` for a row of that scale, and'
    " `--out FOLDER` to keep this page). ROW is the row's name without a leakage point (`type-2`, `type-1`, `type-0`, `global`) at"
    " its end. {seeds}.{trainings}"
)

RULE = (
    "A printed number is compared with the same quantity over at least {networks} networks or {seeds} trainings. Reproduced: the"
    " 95 % interval of the difference is within {tolerances}. Contradicted: the difference is significant in a two-sided test at"
    " {level:.0%}, after Holm's correction over this page. [What the verdicts mean](../../docs/papers.md#verdicts)."
)

ORDERS = (
    "A claim is reproduced if the difference over the seeds is significantly above 0, and contradicted if it is significantly"
    " below, in a two-sided t test at {level:.0%} after Holm's correction over this page."
    " [What the verdicts mean](../../docs/papers.md#verdicts)."
)

MANY = 12
"""Largest number of cells that are listed one by one."""

LONG = 90.0
"""Minutes from which a time is given in hours."""

HEADS = ("row", "what", "claimed", "measured", "95 % interval", "verdict", "reason")

EARLY = (
    "A row at full size may have {seeds} trainings, one more at a time until its verdict is certain. It is tested after each: "
    "p-values are multiplied by the number of these tests, and intervals are widened for it. A row ends early only if no result of "
    "the page's other tests can change its verdict ({tests} tests in all). Undecided rows with fewer trainings have not been "
    "continued yet."
)
TRAININGS = " A row at full size is trained {seeds} times, until its verdict is certain, which may be more often than on this page."
REACHED = (
    *("sweep", "aim", "mean at the aim", "epsilon claimed, at the aim", "epsilon valid, at the aim"),
    *(
        "not excluded",
        "accuracy [95 % CI]",
        "one more training [95 %]",
        "epsilon claimed, not excluded",
        "epsilon valid, not excluded",
        "few seeds",
    ),
)
REACHES = (
    "Mean at the aim: the first cell of the sweep, in the table's order, whose mean accuracy is the aim or above. Not excluded: "
    "the first cell where one more training may reach the aim: its 95 % interval, for as many test examples as the paper's, does "
    "not end below the aim. Such a cell need not reach the aim: where trainings differ widely, little is excluded. "
    f"Few seeds: cells left out because they have fewer than {LEAST_SEEDS} trainings or no interval."
)
"""The columns and the rule of the table of sweeps that aim at an accuracy."""

OF_LEAKS = ["verdict", "victims", "networks"]
"""The columns about leaks."""

LINK = re.compile(r"\[([^]]*)\]\((?:\.\./)+([\w/-]+\.md)[^)]*\)")
"""A link from a published page to a page of the documentation or of another group."""

PUBLISHED = "About the published rows, not these: "


def claims_of(table: Table, rows: pd.DataFrame) -> list[Compared]:
    """Return every claim of the table with its verdict, measured or not."""
    measured: dict[str, list[Row]] = {}
    for row in rows.to_dict("records"):
        measured.setdefault(row["cell"], []).append(row)
    found = list[Compared]()
    for line in table.lines:
        if line.name not in measured:
            found += [claim for row, claims in line.unmeasured().items() for claim in unmeasured(row, claims)]
        for row in measured.get(line.name, []):
            found += table.compared(line, row)
    every = rows.to_dict("records")
    unfit = table.smaller(every), table.collapsed(every)
    return decided(found + (ordered(table.rounds, rows, *unfit) if table.rounds else []))


def page_of(
    table: Table,
    rows: pd.DataFrame,
    elsewhere: bool = False,
    out: Path | None = None,
    minutes: Mapping[str, float] | None = None,
) -> str:
    """Return the page, with today's claims and aims of the table.

    Args:
        table: The table.
        rows: Its rows.
        elsewhere: Whether these are not the published rows, which the table's findings are about.
        out: The folder of the page; None for a published page, which lies next to the documentation.
        minutes: {cell without a row: its estimated minutes at full size on a CPU}.
    """
    rows = table.current(rows)
    claims = claims_of(table, rows)
    published = list(rows_of(table, rows))
    stale = stale_names(published)
    shown = [(column, [column.show(row) for row in rows.to_dict("records")]) for column in COLUMNS[table.columns]]
    shown = [(column, cells) for column, cells in shown if set(cells) != {"-"}]
    measured = markdown_table((c.heading for c, _ in shown), zip(*(cells for _, cells in shown), strict=True))
    lacking = [line.name for line in table.lines if line.name not in set(rows["cell"])]
    missing = [_missing(lacking, minutes or {}), ""] if lacking else []
    thresholds = {request.success for line in table.lines for request in line.requests("full", {})}
    legend = legend_of((column for column, _ in shown), thresholds)
    cite = [untagged(table.cite), ""] if table.cite else []
    lines = [
        *(
            f"# {untagged(table.title)}",
            "",
            *cite,
            *_box(table, rows, claims, stale, elsewhere, out),
            untagged(table.text),
            "",
            *_trial(table, rows),
            *stale_lines(published, stale),
            *on_one_network(table, rows),
            *_drawn(table),
            measured,
            "",
            *missing,
            *legend,
            "",
            *without_an_answer(rows),
        ),
        *_verdicts(table, claims),
        *_reached(table, rows),
        *(price_lines(table, rows, leaks_of(table, out)) if table.leaks else []),
        *_at_quick(table, rows),
        AGAIN.format(name=table.called, seeds=_seeds(table, rows), trainings=_trainings(table)),
        "",
        untagged(f"{PUBLISHED}{table.found}" if elsewhere and table.found else table.found),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    return text if out is None else unlinked(text)


def unlinked(text: str) -> str:
    """Return the text of a page outside leakbench: links to pages of leakbench become names."""
    return LINK.sub(r"\1 (\2 of leakbench)", text)


def _box(
    table: Table,
    rows: pd.DataFrame,
    claims: Sequence[Compared],
    stale: Mapping[str, Sequence[str]],
    elsewhere: bool,
    out: Path | None,
) -> list[str]:
    """Return the box at the top of the page; the table's answer is about the published rows only."""
    # The attack of a table of accuracies is as small as can be: the page is not about its leaks.
    leaks = rows.drop(columns=OF_LEAKS, errors="ignore") if table.columns in WITHOUT_LEAKS else rows
    counts = counted(claim.verdict for claim in claims) if claims else leaks_counted(leaks.get("verdict", ()))
    answer = "" if elsewhere else untagged(table.answer)
    caveats = caveats_of(stale, leaks, _alone(leaks)["cell"].nunique())
    caveats += (
        [few_seeds(rows, LEAST_SEEDS)] if table.columns == "accuracy" else [without_leak(leaks), beyond_the_asr(leaks)]
    )
    if not claims or out is not None:  # A published page without claims gives a verdict about leaks.
        caveats.append(few_victims(leaks, every=out is not None))
    lacking = len({line.name for line in table.lines} - set(rows["cell"]))
    if lacking and out is not None:
        are = "is" if lacking == 1 else "are"
        caveats.append(f"{part_of(lacking, len(table.lines), 'cell')} {are} not measured yet.")
    return box_of(
        untagged(table.question or table.title),
        " ".join(filter(None, (answer, counts))) or "No claim is tested; see the table.",
        evidence_of(leaks),
        untagged(" ".join(filter(None, caveats))),
        f"leakbench reproduce {table.called}{_options(table, rows, out)}",
    )


def _options(table: Table, rows: pd.DataFrame, out: Path | None) -> str:
    """Return the options that measured the rows of a page; without `out`, of the published page.

    Rows of both scales have `auto`; a table whose rows are the same at every scale needs no option.
    """
    measured = [scale_of(row) for row in rows.to_dict("records")]
    scales = {scale for scale, _ in measured}
    smaller = any(line.quick is None or line.scale("quick") == "quick" for line in table.lines)
    options = [f"--scale {AUTO if 'quick' in scales else 'full'}"] if smaller and "full" in scales else []
    # Rows of several trials have no common command.
    if len({json.dumps(changed) for _, changed in measured}) == 1:
        options += [f"--set {shlex.quote(f'{name}={value}')}" for name, value in measured[0][1].items()]
    options += [f"--out {shlex.quote(str(out))}"] if out not in (None, Path("results")) else []
    return "".join(f" {option}" for option in options)


def _alone(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of several victims that were measured on one network, or in one training."""
    several = rows[rows["victims"] > 1] if "victims" in rows else rows[:0]
    return several[several["networks"].fillna(1) <= 1] if "networks" in several else several


def on_one_network(table: Table, rows: pd.DataFrame) -> list[str]:
    """Return which rows of several victims were measured on one network, or in one training; empty without such rows."""
    protocols = {line.name: line.requests("full", {})[0].protocol for line in table.lines}
    several = rows[rows["victims"] > 1] if "victims" in rows else rows[:0]
    alone = _alone(rows)
    found: dict[str, list[str]] = {}
    for name in dict.fromkeys(alone["cell"]):
        found.setdefault("one training" if protocols.get(name) == "live" else "one network", []).append(str(name))
    every = set(several["cell"])
    lines = (
        f"Measured on {what}, so that the intervals do not cover others: "
        f"{'all rows' if set(names) == every else untagged('; '.join(_gathered(names)))}."
        for what, names in found.items()
    )
    return [text for line in lines for text in (line, "")]


def _trial(table: Table, rows: pd.DataFrame) -> list[str]:
    """Return which numbers of the rows differ from the table's, and how to measure them again; empty where none differ."""
    lines = {line.name: line for line in table.lines}
    found: dict[str, list[str]] = {}
    for row in rows.drop_duplicates("cell").to_dict("records"):
        _, changed = scale_of(row)
        if changed:
            said = _compared(changed, _given(lines[row["cell"]], row))
            again = " ".join(f"--set {name}={value}" for name, value in changed.items())
            found.setdefault(untagged(f"- {said} (`{again}`)"), []).append(row["cell"])
    rule = "A trial: these rows were measured with other numbers than the table's and are not published:"
    shown = [f"{said}: {untagged('; '.join(_gathered(names)))}." for said, names in found.items()]
    return [rule, "", *shown, ""] if shown else []


def _given(line: Line, row: Row) -> dict[str, Any]:
    """Return the table's fields of a row at its scale."""
    return {**line.given, **((line.quick or {}) if row.get("scale") == "quick" else {})}


def _compared(changed: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return changed fields with the values that they replace: `1 seed instead of 3`.

    Args:
        changed: {field: value}.
        given: {field: value} of the table; other fields have the default of a cell, or of its data set.
    """
    parts = []
    for name, value in changed.items():
        noun = name.removeprefix("train_").replace("_", " ")
        usual = given.get(name, getattr(Request, name, None))
        replaced = "the data set's" if usual is None else usual
        parts.append(f"{value} {noun.removesuffix('s') if value == 1 else noun} instead of {replaced}")
    return ", ".join(parts)


def _seeds(table: Table, rows: pd.DataFrame) -> str:
    """Return the first seeds of the rows' cells."""
    lines = {line.name: line for line in table.lines}
    given = [{"seed": 0, **_given(lines[row["cell"]], row), **scale_of(row)[1]} for row in rows.to_dict("records")]
    seeds = sorted({int(each["seed"]) for each in given}) or [0]
    if len(seeds) == 1:
        several = "seeds" in rows and (rows["seeds"] > 1).any()
        return f"The first seed of every row is {seeds[0]}" if several else f"All rows use seed {seeds[0]}"
    return f"Seeds: {', '.join(map(str, seeds))}, as the table states for each row"


def _drawn(table: Table) -> list[str]:
    """Return the figure of a table, empty without one."""
    return [f"![{untagged(table.title)}]({table.name}.png)", ""] if table.pictures or table.rounds else []


def counted(verdicts: Iterable[str]) -> str:
    """Return the number of claims with each verdict, in words."""
    found = Counter(verdicts)
    each = ", ".join(f"{verdict} {found[verdict]}" for verdict in VERDICTS if found[verdict])
    return f"{found.total()} printed number{'s' * (found.total() != 1)}: {each}."


def _verdicts(table: Table, claims: Sequence[Compared]) -> list[str]:
    """Return the table of claims and verdicts; empty without a claim."""
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
    rules = [_rule({c.what for c in claims}), _early(table), _samples(table)]
    return [
        *("## Claims", "", counted(c.verdict for c in claims), ""),
        *(part for rule in rules if rule for part in (rule, "")),
        *(markdown_table(HEADS, rows), ""),
    ]


def _rule(whats: set[str]) -> str:
    """Return the rule of these claims' verdicts."""
    if whats == {ORDER}:
        return ORDERS.format(level=LEVEL)
    tolerances = [f"{CLAIMS[what].tolerance:g} ({CLAIMS[what].heading})" for what in CLAIMS if what in whats]
    tolerances = [each for each in tolerances if not each.startswith("0 ")]
    if not tolerances:
        return "[What the verdicts mean](../../docs/papers.md#verdicts)."
    least = {f"{unit}": max(m.least for m in CLAIMS.values() if m.unit == unit) for unit in ("networks", "seeds")}
    return RULE.format(**least, tolerances=", ".join(tolerances), level=LEVEL)


def _early(table: Table) -> str:
    """Return how rows end early; empty for a table whose rows do not."""
    said = _planned(table)
    return EARLY.format(seeds=said, tests=table.tests) if said else ""


def _trainings(table: Table) -> str:
    """Return how often a row is trained again; empty for a table whose rows do not end early."""
    said = _planned(table)
    return TRAININGS.format(seeds=said) if said else ""


def _planned(table: Table) -> str:
    """Return the least and most numbers of trainings of rows that may end early; empty without such rows."""
    plans = sorted({(line.seeds, line.most) for line in table.lines if line.most > line.seeds})
    return " or ".join(f"{least} to {most}" for least, most in plans)


def _samples(table: Table) -> str:
    """Return the number of examples behind the printed numbers, and where the paper states it."""
    sizes: dict[str, dict[str, None]] = {}
    for line in table.lines:
        printed = {what for claim in line.claims.values() for what in claim}
        for number in {number for what, number in line.samples.items() if what in printed}:
            whats = [CLAIMS[what].heading for what in CLAIMS if what in printed and line.samples.get(what) == number]
            sizes.setdefault(f"{Path(line.given['dataset']).stem} {number:,}", {}).update(dict.fromkeys(whats))
    each = "; ".join(f"{size} ({', '.join(whats)})" for size, whats in sizes.items())
    return untagged(f"Examples behind the printed numbers, from {table.samples_from}: {each}.") if each else ""


def _reached(table: Table, rows: pd.DataFrame) -> list[str]:
    """Return the first cells of each sweep that reach its aim, by mean and by interval; empty without an aim."""
    found = [
        (
            *map(in_table, (r.sweep, f"{r.aim:.3f}", r.mean.cell, r.mean.claimed, r.mean.valid)),
            *map(
                in_table,
                (r.possible.cell, r.possible.accuracy, r.possible.further, r.possible.claimed, r.possible.valid),
            ),
            str(r.few),
        )
        for r in reached_of(table, rows)
    ]
    return ["## Cells that reach the accuracy", "", REACHES, "", markdown_table(REACHED, found), ""] if found else []


def _interval(c: Compared) -> str:
    known = math.isfinite(c.low) or math.isfinite(c.high)
    return "-" if not known else f"[{text_of(c.low, 3)}, {text_of(c.high, 3)}]"


def _alike(names: list[str]) -> dict[str, list[str]]:
    """Return {entry: its names}; if there are many, those with the same text before the last comma are one entry."""
    if len(names) <= MANY:
        return {name: [name] for name in names}
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.rpartition(", ")[0] or name, []).append(name)
    return {found[0] if len(found) == 1 else f"{start} ({len(found)} cells)": found for start, found in alike.items()}


def _gathered(names: list[str]) -> list[str]:
    return list(_alike(names))


def _missing(names: list[str], minutes: Mapping[str, float]) -> str:
    """Return the sentence on cells without rows, with their estimated cost where it is known."""

    def costing(entry: str, found: list[str]) -> str:
        known = [minutes[name] for name in found if name in minutes]
        return f"{entry}, {_lasting(sum(known))}" if len(known) == len(found) else entry

    entries = [costing(entry, found) for entry, found in _alike(names).items()]
    estimated = (
        " Times at full size on one CPU core, estimated by those of this table's cells."
        if set(names) & {*minutes}
        else ""
    )
    return f"Not measured yet: {untagged('; '.join(entries))}.{estimated}"


def _lasting(minutes: float) -> str:
    return f"about {minutes / 60:.0f} hours" if minutes >= LONG else f"about {max(1.0, minutes):.0f} minutes"


def _at_quick(table: Table, rows: pd.DataFrame) -> list[str]:
    """Return how the rows of scale `quick` are smaller."""
    quick = set(rows.loc[rows["scale"] == "quick", "cell"]) if "scale" in rows else set()
    cut: dict[str, list[str]] = {}
    for line in table.lines:
        if line.name in quick and line.quick:
            cut.setdefault(_compared(line.quick, {"seeds": line.seeds, **line.given}), []).append(line.name)
    left = [line.name for line in table.lines if line.quick is None] if quick else []
    lines = [f"- {untagged(said)}: {untagged('; '.join(_gathered(names)))}." for said, names in cut.items()]
    lines += [f"- left out: {untagged('; '.join(_gathered(left)))}."] if left else []
    return ["Scale `quick`, smaller than the paper:", "", *lines, ""] if lines else []
