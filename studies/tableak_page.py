"""The page of TabLeak on Adult, from the rows that `tableak.py` measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias, cast

import pandas as pd
from scipy import stats

from leakbench.box import box_of
from leakbench.core.scripts import markdown_table
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
    "beside": ("attack", "searches", "printed, 50 batches", "measured", "batches measured"),
    "unequal": PAIR,
}
"""{table of the page: its heads}"""

PAGE = """# {title}

{box}
{cite}. `{command}` writes this page from `tableak_grid.yaml`; `tableak.csv` has a row for each record.

{DATASET}, one gradient of a batch at the client update (type-1), no defense, `{model}` untrained (two hidden
ReLU layers of 100), seed {seed}. The attacks are the catalog's with another number of searches, 1,500
iterations a search, and labels from an oracle. Several searches for a batch are matched and pooled by
their {pooling}, for every attack. TabLeak's paper uses 30 searches in its main tables and 15 in its
experiment during training; its Inverting Gradients uses 1.

- *standardized*: the network's inputs are columns minus their means, in their standard deviations, as
  in TabLeak.
- *scaled*: columns in [0, 1], as everywhere else in leakbench.
- *plain logits*: TabLeak's softmax over free logits instead of mean + deviation x z. The released code
  searches free logits. They rarely change a rare category.

Records with an unknown category are removed, as in TabLeak's data, from the victims and from the public
records (the test split). The attack, the random baseline and the baseline guess therefore have the same
records, and all numbers of one batch size have the same batches. Means and deviations are those of the
public records.

- *features*: the share of correct features. A category is the largest of its columns; a number is
  correct within 0.319 deviations. Records of a batch are matched by this measure, and a record without
  a finite reconstruction counts 0. Mean over batches +- standard deviation over batches.
- *records*: the share with all 14 features correct, with Wilson's 95 % interval, by batch.
- *random*: TabLeak's baseline, with each feature drawn from the public marginals.
- *baseline*: the best guess from public records and the label, a constant for each class. Matching
  within a batch does not help it as it helps random draws.
- *above random*: percentage points of features, and the two-sided p of the paired t test over batches.
- *seconds*: wall time of the whole row (reading data, all searches and scoring) on one core of a shared
  machine, so an upper limit. All rows together took {minutes} minutes.

`{command} --only "ATTACK, NETWORK, batch B, S searches"` measures a row again, in the words of
the table.

{table}

## Attack against attack, at the same number of searches

The difference in percentage points of features between the first and the second attack, on the same
batches, with the same number of searches and the same pooling. p is two-sided, of the paired t test
over batches, and not corrected for the number of rows.

{compared}

## Compared with TabLeak's printed numbers

The stored output of TabLeak's notebook `attack_during_training` (Adult, batch 32, 50 batches, a network
in its first round of training, so untrained) has TabLeak with 15 searches pooled by the median, and
Inverting Gradients with 1 search, without relaxation and pooling. The notebook has no random baseline.
The measured column is of the standardized network at batch 32:

{beside}

The printed numbers have unequal budgets. The table shows the difference between these two rows here.
With the same number of searches, it is {equal}:

{unequal}

Differences from TabLeak:

- All records are pooled and split again; TabLeak keeps the split of its sources.
- Means and deviations are those of the public records; TabLeak uses both of its splits, with the
  victims.
- A search returns its best iterate; TabLeak's returns its last.
- Numbers are compared without rounding; TabLeak's code first rounds them to integers, which moves the
  bounds of age, education and hours by up to half a unit.
- The random baseline draws each record separately; TabLeak's gives all records of a batch one number.
"""


def batches(rows: pd.DataFrame, column: str) -> pd.Series:
    """Return the mean of each batch in percent; a record without a reconstruction counts 0."""
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
    """Return the difference between means of batches, rounded to a thousandth, since the CSV has six digits; never -0."""
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


def _box(
    rows: pd.DataFrame,
    anchors: Sequence[tuple[object, ...]],
    equal: str,
    pairs: Sequence[tuple[object, ...]],
    command: str,
) -> str:
    """Return the box; pairs: lines of `compared`, of TabLeak and Inverting Gradients with equal searches."""
    significant = [float(str(line[-2])) for line in pairs if str(line[-1]) == "< 0.001" or _below(str(line[-1]))]
    better, worse = sum(mean > 0 for mean in significant), sum(mean < 0 for mean in significant)
    printed = "; ".join(f"{attack}, {s} searches: {here} (printed {says})" for attack, s, says, here, _ in anchors)
    return "\n".join(
        box_of(
            "TabLeak reconstructs more features of a batch of records than Inverting Gradients.",
            f"Features at batch 32 on the standardized network: {printed or 'not measured'}."
            f" At an equal number of searches, TabLeak minus Inverting Gradients there: {equal or 'not measured'}. Over all"
            f" networks and batch sizes, TabLeak is significantly better in {better} of {len(pairs)} comparisons at equal searches"
            f" and significantly worse in {worse} (p < 0.05, not corrected).",
            f"{len(rows)} records in {len(rows.groupby(KEYS))} rows, {rows.groupby(KEYS)['victim'].nunique().min()} to"
            f" {rows.groupby(KEYS)['victim'].nunique().max()} batches a row.",
            "One data set, one untrained network, labels from an oracle, few batches.",
            command,
        )
    )


def _below(p: str) -> bool:
    """Return whether a p is a number below .05."""
    return p[:1].isdigit() and float(p) < 0.05


RIVALS = ("tableak", "inverting_gradients_table")
"""The attacks that the claim compares."""


def page(grid: dict[str, Any], rows: pd.DataFrame) -> str:
    """Return the page of the measured rows."""
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
    return PAGE.format(
        **grid,
        box=_box(rows, anchors, equal_text, [p for p in lines["compared"] if p[2:5:2] == RIVALS], grid["command"]),
        DATASET=grid["dataset"].capitalize(),
        minutes=minutes,
        equal=equal_text,
        **texts,
    )
