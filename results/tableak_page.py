"""The page of TabLeak on Adult, from the rows that `tableak.py` measured."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pandas as pd
from scipy import stats

from leakbench.summary.tables import table_fields

__all__ = ["KEYS", "page"]

KEYS = ["network", "attack", "batch"]
MEASURES = ("feature_accuracy", "record_match")

PAGE = """# {title}

{cite}. `{command}` writes this page from `tableak.yaml`; `tableak.csv` has a row a record.

{DATASET}, one gradient of a batch at type-1, no defense, `{model}` untrained (two hidden ReLU layers of 100), seed {seed}. The
attacks are the catalog's, all with 1,500 iterations; TabLeak with {restarts} searches a batch, as in its experiment during
training, where its paper's main tables have 30. *standardized*: the network is fed columns less their means in their deviations,
as TabLeak's; *scaled*: columns in [0, 1], as everywhere else in leakbench. *plain logits*: TabLeak's softmax over free logits
instead of over mean + deviation x z, which is what its released code searches and what hardly moves a rare category. Labels are
given, by an oracle.

Only records without an unknown category are attacked, as in TabLeak's data; all numbers are of the same victims. Features right:
categories by their largest column, numbers within 0.319 deviations, records of a batch matched by this measure; the mean over
batches and, after +-, the standard deviation over them (of one batch to the next, not of the mean). Records: the share with all
14 features right, with Wilson's 95 % interval, by batch. Random: TabLeak's baseline, each feature drawn from the public
marginals. Null: the best guess from public records and the label, a constant a class, which matching a batch does not help as it
does the draws.
Seconds: of one core of a shared machine, an upper limit.

| network | batch | batches | attack | features right | random | null | records right | random | null | seconds |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
{table}

## Attack against attack

Points of features right by which the first attack is above the second on the same batches, and two-sided p of the paired t test
over batches, not corrected for the number of rows.

| network | batch | first | second | points, batch by batch | mean | p |
| --- | --- | --- | --- | --- | --- | --- |
{compared}

## Beside what TabLeak prints

The stored output of its notebook `attack_during_training` (Adult, batch 32, 50 batches, 15 searches pooled by the median, a
network in its first round of training, that is untrained): TabLeak 79.1 +- 4.0, Inverting Gradients 67.9 +- 2.5. There is no
random baseline in that notebook; 67.9 is the attack without relaxation and pooling. Here, on the standardized network at batch
32:

| attack | printed | here | batches here |
| --- | --- | --- | --- |
{beside}

Differences: all records are pooled and split anew, and means and deviations are those of all 48,842 (TabLeak keeps its sources'
split and drops records with an unknown category first); a search keeps its best iterate instead of its last; numbers are
compared as they are, where TabLeak's code rounds them to integers first, which moves the bounds of age, education and hours by
up to half a unit; its random baseline gives all records of a batch one and the same number, ours draws one for each.
"""


def share(rows: pd.DataFrame, column: str) -> str:
    """Return the mean over all records and the standard deviation over batches, in percent."""
    batches = rows.fillna({column: 0.0}).groupby("victim")[column].mean()
    return f"{100 * batches.mean():.1f} +- {100 * batches.std():.1f}"


def line(key: tuple[str, str, int], rows: pd.DataFrame) -> str:
    """Return one line of the table."""
    found = table_fields(rows.assign(batch=rows["victim"], failure_reason=""))
    low, high = (f"{100 * float(found[f'record_match_{end}'] or 0):.0f}" for end in ("low", "high"))
    records = f"{100 * float(found['record_match'] or 0):.1f} [{low}, {high}]"
    others = [f"{100 * rows[f'{who}_{what}'].mean():.1f}" for what in MEASURES for who in ("random", "null")]
    network, attack, batch = key
    cells = [network, batch, rows["victim"].nunique(), attack, f"**{share(rows, MEASURES[0])}**", *others[:2], records]
    return f"| {' | '.join(map(str, [*cells, *others[2:], round(rows['seconds'].iloc[0])]))} |"


def compared(key: tuple[str, int], first: tuple[str, pd.DataFrame], second: tuple[str, pd.DataFrame]) -> str:
    """Return one line of the comparison of two attacks on the same batches."""
    means = [rows.fillna(0.0).groupby("victim")[MEASURES[0]].mean() for _, rows in (first, second)]
    points = 100 * (means[0] - means[1])
    p = f"{stats.ttest_1samp(points, 0.0).pvalue:.3f}" if points.std() > 0 else "n/a: all alike"
    each = ", ".join(f"{value:+.1f}" for value in points)
    return f"| {key[0]} | {key[1]} | {first[0]} | {second[0]} | {each} | {points.mean():+.1f} | {p} |"


def page(grid: dict[str, Any], rows: pd.DataFrame) -> str:
    """Return the page of what was measured."""
    groups = {key: found for key, found in rows.groupby(KEYS, sort=False)}
    order = [(n, a, b) for n in grid["networks"] for b in sorted(grid["victims"]) for a in grid["attacks"]]
    table = [line(key, groups[key]) for key in order if key in groups]
    attacks = list(grid["attacks"])
    versus = [
        compared((n, b), (one, groups[n, one, b]), (other, groups[n, other, b]))
        for n in grid["networks"]
        for b in sorted(grid["victims"])
        for other, one in pairwise(attacks)
        if {(n, one, b), (n, other, b)} <= groups.keys()
    ]
    anchors = [
        f"| {attack} | {said} | {share(groups[key], MEASURES[0])} | {groups[key]['victim'].nunique()} |"
        for attack, said in grid["printed"].items()
        if (key := ("standardized", attack, 32)) in groups
    ]
    return PAGE.format(
        **grid,
        DATASET=grid["dataset"].capitalize(),
        table="\n".join(table),
        compared="\n".join(versus),
        beside="\n".join(anchors),
    )
