"""The rows of tables and frontiers: CSV files with a checksum for each row, read and written by `RowStore`."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from leakbench.core.errors import InputError, nearest
from leakbench.core.leakage_points import TAPS, LeakagePoint
from leakbench.core.request import Request
from leakbench.core.typed import check_fields
from leakbench.core.verdict_words import VERDICTS
from leakbench.measure.measures import EDIT_DISTANCE, PSNR, RMSE
from leakbench.measure.rates import ASR, IDENTIFIED, RATES, ROUGE_1, TARGET_ERROR, fields_of
from leakbench.storage.store import alone, write_atomically
from leakbench.study.stale import parsed_versions

__all__ = [
    "ACCOUNTING",
    "CURE",
    "FRONTIER",
    "TRAINING",
    "Row",
    "RowFormat",
    "RowStore",
    "heads_of",
    "in_order",
    "of_table",
    "on_cpu",
]

Row: TypeAlias = dict[Any, Any]

CHECKED = "checksum"
"""Name of the last column. A CSV without it was written before checksums existed, and is read without this check."""

NAMES = ("row", "cell", "point", "reading", "dataset", "attack", "defense", "hash")
"""Text, even if it looks like another type: a row may be called `NA`, `1` or `true`."""

WORDS = (
    *("scale", "changed", "behaviours", "versions", "verdict", "reason", "accuracies", "asked", "left_out", "sigma"),
    *("unit", "claimed_by", "epsilon_reason", "epsilon_tap_reason"),
)
"""Text, or nothing."""

SHARES = (*fields_of(), *(rate.bound for rate in RATES if rate.bound), "trained_accuracy", "accuracy", "rmse_mean")
"""Numbers from 0 to 1, as are the ends of their intervals."""

COUNTS = ("victims", "identify_victims", "candidates", "networks", "seeds", "observations", "batch")
"""Whole numbers of at least 1 and at most `MOST`."""

MOST = 1e15

AMOUNTS = (
    *(
        RMSE.name,
        RMSE.baseline,
        EDIT_DISTANCE.name,
        EDIT_DISTANCE.baseline,
        "rmse_floor",
        PSNR.name,
        "iterations",
        "rounds",
        "sigma",
        "delta",
    ),
    *("epsilon_claimed", "epsilon_valid", "epsilon_tap", "cost_ratio", "milliseconds", "minutes", "wall_minutes"),
)
"""Numbers of at least 0, as are the finite ends of their intervals; infinite where failures reach the median."""

TIMES = ("milliseconds", "minutes", "wall_minutes")
"""Amounts that are finite."""

HALF_DIGIT = 1e-6
"""How far a share may be outside its interval: both are rounded."""

TRAINING = "training"
"""The point of a row about training, which no attacker reads."""

FLAGS = {"True": True, "False": False}

CURE = "take the file as it was written, or move it away to measure again"


@dataclass(frozen=True)
class RowFormat:
    """What a kind of CSV must hold.

    Args:
        first: Columns of a CSV without rows.
        columns: Columns that must exist.
        filled: Columns that must have a value in every row.
        key: Columns that together identify a row.
    """

    first: tuple[str, ...]
    columns: tuple[str, ...] = ()
    filled: tuple[str, ...] = ()
    key: tuple[str, ...] = ()


ACCOUNTING = RowFormat(
    ("cell", "hash"),
    ("cell", "claimed", "reading", "stated", "formula", "renyi", "losses", "gives", "reason", "hash"),
    ("cell", "claimed", "reading", "stated", "gives", "hash"),
    ("cell", "reading"),
)

FRONTIER = RowFormat(
    ("row", "cell", "hash", "asked", "left_out"),
    ("row", "cell", "defense", "factor", "noise", "asked", "left_out"),
    ("row", "cell", "defense", "factor", "noise", "asked"),
    ("row", "point"),
)

SIZES = ("victims", "batch")

OF_PAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "accuracy": ((), ()),
    "cost": ((), ()),
    "points": (("limit", IDENTIFIED.name, "candidates", ASR.name, ASR.baseline), SIZES),
    "claims": (("limit", IDENTIFIED.name, "candidates", ASR.name, ASR.baseline), SIZES),
    "strongest": (("limit", IDENTIFIED.name, "candidates", ASR.name), SIZES),
    "targets": (("limit", IDENTIFIED.name, "candidates", ASR.name, ASR.baseline, TARGET_ERROR.baseline), SIZES),
    "leaks": (("limit", IDENTIFIED.name, "candidates", ASR.name, ASR.baseline, "epsilon_valid", "epsilon_tap"), SIZES),
    "texts": (("limit", IDENTIFIED.name, "candidates", ASR.name, ASR.baseline, ROUGE_1.name), SIZES),
    "servers": ((IDENTIFIED.name, "candidates", "minutes", ASR.name), SIZES),
}
"""{a page's set of columns: the columns that must exist, and further ones that must have a value in every row}."""


def of_table(columns: str, curves: bool = False) -> RowFormat:
    """Return what the CSV of a table of cells must hold.

    Args:
        columns: The table's set of `leakbench.reproduce.columns`.
        curves: Whether the rows have accuracies of every round.
    """
    have, filled = OF_PAGES[columns]
    first = ("row", "cell", "point")
    more = ("accuracies",) if curves else ()
    return RowFormat(first, (*first, *have, *filled, *more), (*first, *filled, *more), ("row",))


def _unchanged(rows: pd.DataFrame) -> pd.DataFrame:
    return rows


@dataclass(frozen=True)
class RowStore:
    """The CSV of one page.

    Args:
        path: The file; it need not exist.
        format: What it must hold.
        current: Returns the rows that are read as today's definitions state them; may raise InputError.
        order: Returns the rows in the order in which they are written.
        by: Column with the names of cells.
        typed: Whether the types of columns are those of tables; else, in the CSV of a script, pandas finds them.
    """

    path: Path
    format: RowFormat
    current: Callable[[pd.DataFrame], pd.DataFrame] = _unchanged
    order: Callable[[pd.DataFrame], pd.DataFrame] = _unchanged
    by: str = "cell"
    typed: bool = True

    @property
    def existing(self) -> RowStore:
        """This store if its file exists; else raises InputError."""
        if not self.path.exists():
            raise InputError(f"--page: {self.path} does not exist; measure first")
        return self

    def read(self) -> pd.DataFrame:
        """Return the rows; an empty table with the first columns if the file does not exist.

        Raises:
            InputError: With the file, the row and the column, for damage: a column that is missing or appears twice, a line
                that is cut off, a row that does not fit its checksum, text in place of a number, a share outside [0, 1], a
                duplicate row.
        """
        if not self.path.exists():
            return self.current(pd.DataFrame({column: [] for column in self.format.first}))
        heads, cells = _cells(self.path, self.format)
        if self.typed:
            rows = _typed_rows(self.path, self.format, heads, cells)
        else:
            rows = pd.read_csv(self.path).drop(columns=CHECKED, errors="ignore")
        return self.current(rows)

    def write(self, rows: pd.DataFrame) -> None:
        """Write rows, each with its checksum; after a crash the file is the old one or the new one."""
        text = io.StringIO(newline="")
        rows.to_csv(text, index=False, lineterminator="\n")
        text.seek(0)
        heads, *lines = [line for line in csv.reader(text, strict=True) if line]
        rows = rows.assign(**{CHECKED: [_checksum(heads, line) for line in lines]})
        write_atomically(self.path, lambda file: rows.to_csv(file, index=False))

    def replace(
        self, name: str, found: Sequence[Row], then: Callable[[pd.DataFrame], object] | None = None
    ) -> pd.DataFrame:
        """Write the rows of a cell in place of those that it had, and return all rows.

        The rows are read again under the lock, so that of two commands with one folder none loses a row of the other.

        Args:
            name: Name of the cell.
            found: Its new rows.
            then: Called with all rows before another command can write; writes their page.
        """
        with alone(self.path.parent):
            rows = self.order(self.replaced(self.read(), name, found))
            self.write(rows)
            if then is not None:
                then(rows)
        return rows

    def replaced(self, rows: pd.DataFrame, name: str, found: Sequence[Row]) -> pd.DataFrame:
        """Return rows without those of a cell, and its new rows at the end.

        The types of columns are those that all values together have, also where every value of one part is missing.
        """
        others: list[Row] = rows[rows[self.by] != name].to_dict("records") if len(rows) else []
        columns = dict.fromkeys([*rows.columns, *(column for row in found for column in row)])
        return pd.DataFrame([*others, *found], columns=list(columns))

    def has(self, rows: pd.DataFrame, name: str, hash_: str) -> bool:
        """Return whether rows of a cell were measured with this hash."""
        return "hash" in rows and hash_ in set(rows.loc[rows[self.by] == name, "hash"].astype(str))


def on_cpu(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows whose minutes are those of a CPU: `versions` names a device only where a cell was computed on a GPU."""
    if "versions" not in rows:
        return rows
    elsewhere = [isinstance(text, str) and '"device"' in text for text in rows["versions"]]
    return rows.loc[~pd.Series(elsewhere, index=rows.index, dtype=bool)]


def heads_of(path: Path) -> list[str]:
    """Return the names of the columns of any CSV; empty for an empty file."""
    with path.open(encoding="utf-8", newline="") as file:
        return next(csv.reader(file), [])


def in_order(rows: pd.DataFrame, by: str, names: Iterable[str]) -> pd.DataFrame:
    """Return the rows in the order in which `names` lists the values of column `by`."""
    order = {name: place for place, name in enumerate(names)}
    return rows.sort_values(by, key=lambda listed: listed.map(order), kind="stable").reset_index(drop=True)


def _checksum(heads: Sequence[str], row: Sequence[str]) -> str:
    """Return the checksum of a row; its prefix keeps the column from being read as numbers."""
    return "sha256:" + hashlib.sha256(json.dumps([list(heads), list(row)]).encode()).hexdigest()[:16]


def _cells(path: Path, kind: RowFormat) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the texts of each row, without the checksums, which were checked."""
    heads, *cells = _lines(path)
    for head in heads:
        if heads.count(head) > 1 or not head:
            raise InputError(f"{path}: column {head!r} {'appears twice' if head else 'has no name'}; {CURE}")
    for name in kind.columns:
        if name not in heads:
            raise InputError(f"{path}: column {name!r} is missing; {CURE}")
    for place, cell in enumerate(cells, start=1):
        if len(cell) != len(heads):
            raise InputError(f"{path}: row {place} has {len(cell)} fields, the head {len(heads)}; {CURE}")
    if heads[-1] == CHECKED:
        for place, cell in enumerate(cells, start=1):
            if cell.pop() != _checksum(heads[:-1], cell):
                raise InputError(
                    f"{path}: row {place}: {CHECKED}: does not fit the rest, so that something was changed; {CURE}"
                )
        heads = heads[:-1]
    return heads, cells


def _typed_rows(path: Path, kind: RowFormat, heads: list[str], cells: list[list[str]]) -> pd.DataFrame:
    rows = pd.DataFrame({head: _typed(path, head, [cell[i] for cell in cells]) for i, head in enumerate(heads)})
    _check(path, rows, kind)
    return rows


def _lines(path: Path) -> list[list[str]]:
    """Return the fields of all lines, the head first; empty lines are left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise InputError(f"{path}: cannot be read: {error}; {CURE}") from None
    if not text.strip():
        raise InputError(f"{path}: is empty, expected a head and rows; {CURE}")
    if not text.endswith("\n"):
        raise InputError(f"{path}: its last line is cut off; {CURE}")
    before = csv.field_size_limit(sys.maxsize)  # Accuracies of many seeds and rounds are long.
    try:
        return [line for line in csv.reader(io.StringIO(text, newline=""), strict=True) if line]
    except csv.Error as error:
        raise InputError(f"{path}: cannot be read: {error}; {CURE}") from None
    finally:
        csv.field_size_limit(before)


def _typed(path: Path, head: str, texts: list[str]) -> list[Any]:
    if head in NAMES and head != "point":
        return texts
    if head in NAMES or head in WORDS:
        return [text or math.nan for text in texts]
    if head == "noise":
        return [_flag(path, place, text) for place, text in enumerate(texts, start=1)]
    found = [_number(path, head, place, text) for place, text in enumerate(texts, start=1)]
    whole = all(re.fullmatch(r"-?[0-9]{1,15}", text) for text in texts)
    return [int(number) for number in found] if whole else found


def _flag(path: Path, place: int, text: str) -> bool:
    if text not in FLAGS:
        raise InputError(f"{path}: row {place}: noise: got {text!r}, expected True or False; {CURE}")
    return FLAGS[text]


def _number(path: Path, head: str, place: int, text: str) -> float:
    try:
        found = float(text) if text else math.nan
    except ValueError:
        found = math.nan
    if text and math.isnan(found):
        raise InputError(f"{path}: row {place}: {head}: got {text!r}, expected a number, or nothing; {CURE}")
    of = head.removesuffix("_low").removesuffix("_high")
    if of in SHARES and not (math.isnan(found) or 0 <= found <= 1):
        raise InputError(f"{path}: row {place}: {head}: got {text}, expected a share from 0 to 1; {CURE}")
    endless = of != head and math.isinf(found)  # The interval of a median of few numbers has no end.
    if of in AMOUNTS and not endless and (found < 0 or (head in TIMES and math.isinf(found))):
        finite = ", finite" if head in TIMES else ""
        raise InputError(f"{path}: row {place}: {head}: got {text}, expected a number of at least 0{finite}; {CURE}")
    if head in COUNTS and not (math.isnan(found) or (1 <= found <= MOST and found.is_integer())):
        raise InputError(
            f"{path}: row {place}: {head}: got {text}, expected a whole number from 1 to {MOST:.0e}; {CURE}"
        )
    if head == "resilient" and not (math.isnan(found) or found in (0, 1)):
        raise InputError(f"{path}: row {place}: {head}: got {text}, expected 0, 1 or nothing; {CURE}")
    return found


def _check(path: Path, rows: pd.DataFrame, kind: RowFormat) -> None:
    for name in kind.filled:
        for place, value in enumerate(rows[name], start=1):
            if pd.isna(value) or value == "":
                raise InputError(f"{path}: row {place}: {name}: got nothing, expected a value; {CURE}")
    key = [name for name in kind.key if name in rows]
    for twice in rows[rows.duplicated(key)].to_dict("records"):
        raise InputError(f"{path}: row {', '.join(str(twice[name]) for name in key)!r} appears twice; {CURE}")
    for name, fits in JSON.items():
        for place, text in enumerate(rows.get(name, ()), start=1):
            if not (isinstance(text, float) or fits(text)):
                raise InputError(f"{path}: row {place}: {name}: got {text[:40]!r}, no JSON that was written; {CURE}")
    _check_words(path, rows)
    _check_intervals(path, rows)
    for place, (diverged, seeds) in enumerate(
        rows.reindex(columns=["diverged", "seeds"]).itertuples(index=False), start=1
    ):
        most = MOST if math.isnan(seeds) else seeds
        if not (math.isnan(diverged) or (0 <= diverged <= most and diverged == int(diverged))):
            raise InputError(
                f"{path}: row {place}: diverged: got {diverged:g}, expected 0 to the number of seeds; {CURE}"
            )


def _check_words(path: Path, rows: pd.DataFrame) -> None:
    for place, word in enumerate(rows.get("verdict", ()), start=1):
        if isinstance(word, str) and word not in VERDICTS:
            raise InputError(f"{path}: row {place}: verdict: got {word[:40]!r}{nearest(word, VERDICTS)}; {CURE}")
    for place, point in enumerate(rows.get("point", ()), start=1):
        found = LeakagePoint.of(str(point))
        if not pd.isna(point) and (found.key != point or found.tap not in (*TAPS, TRAINING)):
            raise InputError(f"{path}: row {place}: point: got {point!r}{nearest(found.tap, TAPS)}; {CURE}")
    for place, scale in enumerate(rows.get("scale", ()), start=1):
        if scale not in ("quick", "full") and not pd.isna(scale):
            raise InputError(f"{path}: row {place}: scale: got {scale!r}, expected quick or full; {CURE}")


def _check_intervals(path: Path, rows: pd.DataFrame) -> None:
    for name in SHARES:
        columns = [name, f"{name}_low", f"{name}_high"]
        if not {*columns} <= set(rows):
            continue
        for place, (value, low, high) in enumerate(rows[columns].itertuples(index=False), start=1):
            if value < low - HALF_DIGIT or value > high + HALF_DIGIT:
                raise InputError(
                    f"{path}: row {place}: {name}: got {value:g}, expected {name}_low to {name}_high; {CURE}"
                )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_mapping(text: str) -> bool:
    return isinstance(_parsed(text), dict)


def _is_trial(text: str) -> bool:
    """Say whether a text is numbers of a request, which a trial changes."""
    found = _parsed(text)
    if not isinstance(found, dict) or not all(type(number) in (int, float) for number in found.values()):
        return False
    try:
        check_fields(Request, found, "a trial")
    except InputError:
        return False
    return True


def _is_grid(text: str) -> bool:
    """Say whether a text is seeds of rounds of accuracies, all of one length."""
    found = _parsed(text)
    if not isinstance(found, list) or not found or not all(isinstance(seed, list) and seed for seed in found):
        return False
    return len({len(seed) for seed in found}) == 1 and all(
        type(share) in (int, float) and 0 <= share <= 1 for seed in found for share in seed
    )


JSON: dict[str, Callable[[str], bool]] = {
    "accuracies": _is_grid,
    "asked": _is_mapping,
    "changed": _is_trial,
    "versions": _is_mapping,
    "behaviours": lambda text: parsed_versions(text) is not None,
}
"""{column of JSON: whether a text is one that was written}."""
