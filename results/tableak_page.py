"""The page of TabLeak on Adult, from the rows that `tableak.py` measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias, cast

import pandas as pd
from scipy import stats

from leakbench.scripts import markdown_table
from leakbench.summary.tables import table_fields

__all__ = ["KEYS", "page"]

Key: TypeAlias = tuple[str, str, int, int]
"""The values of KEYS of one cell."""

KEYS = ["network", "attack", "searches", "batch"]
MEASURES = ("feature_accuracy", "record_match")

PAIR = ("network", "batch", "first", "searches", "second", "searches", "points, batch by batch", "mean", "p")
HEADS = {
    "table": (
        *("network", "batch", "searches", "batches", "attack", "features", "random", "baseline", "above random, p"),
        *("records", "random", "baseline", "seconds"),
    ),
    "compared": PAIR,
    "beside": ("attack", "searches", "printed, 50 batches", "here", "batches here"),
    "unequal": PAIR,
}
"""{table of the page: its heads}"""

PAGE = """# {title}

{cite}. `{command}` writes this page from `tableak.yaml`; `tableak.csv` has a row a record.

{DATASET}, one gradient of a batch at type-1, no defense, `{model}` untrained (two hidden ReLU layers of 100), seed {seed}. The
attacks are the catalog's but for the number of searches, with 1,500 iterations a search and labels given by an oracle; several
searches for a batch are matched and pooled by their {pooling}, whatever the attack. TabLeak's paper has 30 searches in its main
tables and 15 in its experiment during training; the Inverting Gradients beside it has 1. *standardized*: the network is fed
columns less their means in their deviations, as TabLeak's; *scaled*: columns in [0, 1], as everywhere else in leakbench. *plain
logits*: TabLeak's softmax over free logits instead of over mean + deviation x z, which is what its released code searches and
what hardly moves a rare category.

Records with an unknown category are left out, as in TabLeak's data, of the victims and of the public records (the test split)
alike, so that attack, random and baseline are of the same people; all numbers of one batch size are of the same batches. Means and
deviations are those of the public records. Features: the share right, categories by their largest column, numbers within 0.319
deviations, records of a batch matched by this measure, a record without a finite answer 0; the mean over batches and, after +-,
the standard deviation over them (of one batch to the next, not of the mean). Records: the share with all 14 features right, with
Wilson's 95 % interval, by batch. Random: TabLeak's baseline, each feature drawn from the public marginals. Null: the best guess
from public records and the label, a constant a class, which matching a batch does not help as it does the draws. Above random:
points of features right, and two-sided p of the paired t test over batches. Seconds: wall time of the whole row, that is of
reading the data, of all searches for all its batches, and of their scoring, on one core of a shared machine, so an upper limit;
{minutes} minutes for all rows together. A row is measured again by `{command} --only "ATTACK, NETWORK, batch B, S searches"`, in
the words of the table.

{table}

## Attack against attack, at the same number of searches

Points of features right by which the first attack is above the second on the same batches, both with that number of searches and
the same pooling, and two-sided p of the paired t test over batches, not corrected for the number of rows.

{compared}

## Beside what TabLeak prints

The stored output of its notebook `attack_during_training` (Adult, batch 32, 50 batches, a network in its first round of training,
that is untrained): TabLeak with 15 searches pooled by the median, and Inverting Gradients with 1 search, without relaxation and
pooling. There is no random baseline in that notebook. Here, on the standardized network at batch 32:

{beside}

What is printed is not at an equal budget. The difference between these two rows here; with the same number of searches it is
{equal}:

{unequal}

Differences: all records are pooled and split anew, where TabLeak keeps its sources' split; means and deviations are those of the
public records, where TabLeak takes both of its splits, victims included; a search keeps its best iterate instead of its last;
numbers are compared as they are, where TabLeak's code rounds them to integers first, which moves the bounds of age, education and
hours by up to half a unit; its random baseline gives all records of a batch one and the same number, ours draws one for each.
"""


def batches(rows: pd.DataFrame, column: str) -> pd.Series:
    """Return the mean of each batch, a record without an answer as 0, in percent."""
    return 100 * rows[column].fillna(0.0).groupby(rows["victim"]).mean()


def share(rows: pd.DataFrame, column: str) -> str:
    """Return the mean over batches and their standard deviation, in percent."""
    found = batches(rows, column)
    return f"{found.mean():.1f} +- {found.std():.1f}"


def p_of(points: pd.Series) -> str:
    """Return the two-sided p of the t test that differences, one a batch, are 0 on average."""
    if not points.std() > 0:  # NaN where there is one batch alone.
        return "n/a: all alike" if len(points) > 1 else "n/a: one batch"
    p = float(stats.ttest_1samp(points, 0.0).pvalue)
    return f"{p:.3f}" if p >= 0.0005 else "< 0.001"


def above(one: pd.Series, other: pd.Series) -> pd.Series:
    """Return by how many points the means of batches are above others, to a thousandth, since the CSV has six digits; never -0."""
    return (one - other).round(3) + 0.0


def line(key: Key, rows: pd.DataFrame) -> tuple[object, ...]:
    """Return the cells of one line of the table."""
    found = table_fields(rows.assign(batch=rows["victim"], failure_reason=""))
    low, high = (f"{100 * float(found[f'record_match_{end}'] or 0):.0f}" for end in ("low", "high"))
    records = f"{100 * float(found['record_match'] or 0):.1f} [{low}, {high}]"
    others = [f"{100 * rows[f'{who}_{what}'].mean():.1f}" for what in MEASURES for who in ("random", "null")]
    network, attack, searches, batch = key
    asked = (network, batch, searches, rows["victim"].nunique(), attack)
    seconds = round(rows["seconds"].iloc[0])
    points = above(batches(rows, MEASURES[0]), batches(rows, f"random_{MEASURES[0]}"))
    features = (f"**{share(rows, MEASURES[0])}**", *others[:2], f"{points.mean():+.1f}, {p_of(points)}")
    return (*asked, *features, records, *others[2:], seconds)


def compared(groups: dict[Key, pd.DataFrame], one: Key, other: Key) -> tuple[object, ...]:
    """Return the cells of one line of the comparison of two attacks on the same batches of one network."""
    points = above(*(batches(groups[key], MEASURES[0]) for key in (one, other)))
    each = ", ".join(f"{value:+.1f}" for value in points)
    return (one[0], one[3], one[1], one[2], other[1], other[2], each, f"{points.mean():+.1f}", p_of(points))


def page(grid: dict[str, Any], rows: pd.DataFrame) -> str:
    """Return the page of what was measured."""
    groups = {cast("Key", key): found for key, found in rows.groupby(KEYS, sort=False)}
    cases = [(n, s, b) for n in grid["networks"] for b in sorted(grid["victims"]) for s in sorted(grid["searches"])]
    order = [(n, a, s, b) for n, s, b in cases for a in grid["attacks"]]
    equal = [((n, one, s, b), (n, other, s, b)) for n, s, b in cases for other, one in pairwise(grid["attacks"])]
    printed = {("standardized", p["attack"], p["searches"], 32): p["says"] for p in grid["printed"]}
    anchors = [
        (key[1], key[2], says, share(groups[key], MEASURES[0]), groups[key]["victim"].nunique())
        for key, says in printed.items()
        if key in groups
    ]
    between = [
        (s, above(*(batches(groups[n, a, s, b], MEASURES[0]) for n, a, _, b in printed)).mean())
        for s in sorted(grid["searches"])
        if {(n, a, s, b) for n, a, _, b in printed} <= groups.keys()
    ]
    equal_text = ", ".join(f"{points:+.1f} ({s} each)" for s, points in between)
    lines: dict[str, Sequence[tuple[object, ...]]] = {
        "table": [line(key, groups[key]) for key in order if key in groups],
        "compared": [compared(groups, *pair) for pair in equal if set(pair) <= groups.keys()],
        "beside": anchors,
        "unequal": [compared(groups, *pair) for pair in pairwise(printed) if set(pair) <= groups.keys()],
    }
    minutes = round(sum(found["seconds"].iloc[0] for found in groups.values()) / 60)
    texts = {name: markdown_table(HEADS[name], found) for name, found in lines.items()}
    return PAGE.format(**grid, DATASET=grid["dataset"].capitalize(), minutes=minutes, equal=equal_text, **texts)
