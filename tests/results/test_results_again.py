"""Published rows can be repeated: a random sample is measured again, and the intervals overlap."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import pandas as pd
import pytest

from leakbench.core.progress import Reporter
from leakbench.reproduce.file import table_names
from leakbench.reproduce.measure import cells_of, measured
from leakbench.reproduce.table import read_table
from leakbench.study.stale import hash_of
from leakbench.study.study import Execution
from tests.published_files import published_file

DRAWN = 5

MINUTES = 0.3
"""Largest duration of the attack of a sampled row; its whole cell may take ten times as long."""

HELD = ("asr", "rmse", "identified", "trained_accuracy")


@pytest.mark.long
@pytest.mark.data
def test_a_random_sample_of_rows_repeats_within_its_intervals(
    data_dir: Path, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """Both intervals overlap; five rows, none of them stale. LEAKBENCH_DRAW=NUMBER repeats a draw."""
    number = int(os.environ.get("LEAKBENCH_DRAW", random.SystemRandom().randrange(10**6)))
    record_property("draw", number)
    cheap = sorted(_cheap(), key=lambda row: (row[0], row[1]))
    drawn = 0
    for name, cell, scale in random.Random(number).sample(cheap, len(cheap)):
        told = f"LEAKBENCH_DRAW={number}: {name}, {cell}, {scale}"
        rows = pd.read_csv(published_file(f"{name}.csv"))
        table, here = read_table(name), Execution(tmp_path, data_dir, Reporter(quiet=True))
        [line] = [line for line in table.lines if line.name == cell]
        kept = rows[rows["cell"] == cell]
        seeds = kept["seeds"].iloc[0]  # Rows of an earlier version do not say it.
        if pd.isna(seeds) or set(kept["hash"]) != {hash_of(cells_of(line, scale, {}, data_dir, seeds=int(seeds)))}:
            continue  # Stale: its page says so.
        again = {row["row"]: row for row in measured(table, line, scale, {}, here)}
        compared = 0
        for row in kept.to_dict("records"):
            for what in HELD:
                low, high = (row.get(f"{what}_{end}", math.nan) for end in ("low", "high"))
                if not (pd.isna(low) or pd.isna(high) or pd.isna(row[what])):
                    compared += 1
                    now = again[row["row"]]
                    assert low <= now[f"{what}_high"] + 1e-6 and now[f"{what}_low"] <= high + 1e-6, (
                        f"{told}: {row['row']}, {what}"
                    )
        assert compared, told
        drawn += 1
        if drawn == DRAWN:
            return
    raise AssertionError(f"only {drawn} rows of those that are cheap are current")


def test_there_are_enough_rows_to_sample() -> None:
    assert len(_cheap()) >= 10 * DRAWN


def _cheap() -> set[tuple[str, str, str]]:
    """Return (table, cell, scale) of every published cell that can be measured quickly."""
    found = set()
    for name in table_names():
        path = published_file(f"{name}.csv")
        if not path.exists():
            continue
        rows = pd.read_csv(path)
        if not {"hash", "minutes", "cell", "seeds"} <= set(rows):
            continue
        longest = rows.groupby("cell")["minutes"].sum()
        whole = rows.groupby("cell")["wall_minutes"].max() if "wall_minutes" in rows else longest
        scale = (
            rows.groupby("cell")["scale"].first().fillna("full") if "scale" in rows else longest.map(lambda _: "full")
        )
        cheap = longest.index[(longest <= MINUTES) & (whole.fillna(longest) <= 10 * MINUTES)]
        found |= {(name, str(cell), str(scale[cell])) for cell in cheap}
    return found
