"""Write rows to a CSV with a checksum each, and read them back: damage is reported, never guessed around."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.errors import InputError
from leakbench.measure.rates import ASR, IDENTIFIED, LABEL_RANKED, LABELS, PRECISION, VERBATIM, fields_of
from leakbench.reproduce.recorded import parsed_versions
from leakbench.store import write_atomically
from leakbench.summary.verdict import above_chance, whole_victims
from leakbench.summary.verdict_words import IDENTIFIES, RANKED_ONLY, current_word, resilient

__all__ = ["CURE", "FRONTIER", "OF_ACCOUNTING", "Kept", "kept", "of_table", "write_csv"]

CHECKED = "checksum"
"""Name of the last column; a CSV without it was written before checksums existed, and is read as it is."""


def write_csv(path: Path, rows: pd.DataFrame) -> None:
    """Write rows, each with its checksum, whole or not at all."""
    text = io.StringIO(newline="")
    rows.to_csv(text, index=False, lineterminator="\n")
    text.seek(0)
    heads, *lines = [line for line in csv.reader(text, strict=True) if line]
    told = rows.assign(**{CHECKED: [_checksum(heads, line) for line in lines]})
    write_atomically(path, lambda file: told.to_csv(file, index=False))


def _unchecked(path: Path, lines: Sequence[list[str]], cure: str) -> list[list[str]]:
    """Return the fields of a head and its rows without the checksums; raises InputError for a row that was changed.

    Args:
        cure: What to do about it.
    """
    heads, *rows = lines
    if heads[-1] != CHECKED:
        return [heads, *rows]
    for place, row in enumerate(rows, start=1):
        if row[-1] != _checksum(heads[:-1], row[:-1]):
            raise InputError(
                f"{path}: row {place}: {CHECKED}: does not fit the rest, so that something was changed; {cure}"
            )
    return [line[:-1] for line in (heads, *rows)]


def _checksum(heads: Sequence[str], row: Sequence[str]) -> str:
    """Return the checksum of a row; its prefix keeps the column from being read as numbers."""
    return "sha256:" + hashlib.sha256(json.dumps([list(heads), list(row)]).encode()).hexdigest()[:16]


NAMES = ("row", "cell", "point", "reading", "dataset", "attack", "defense", "hash")
"""Text, even if it looks like another type: a row may be called `NA`, `1` or `true`."""

WORDS = (
    *(
        "scale",
        "changed",
        "behaviours",
        "versions",
        "verdict",
        "reason",
        "accuracies",
        "asked",
        "left_out",
        "sigma",
        "unit",
        "claimed_by",
    ),
    *("epsilon_reason", "epsilon_tap_reason"),
)
"""Text, or nothing."""

SHARES = (*fields_of((ASR, IDENTIFIED, LABELS, LABEL_RANKED, VERBATIM, PRECISION)), "trained_accuracy", "accuracy")
"""Numbers from 0 to 1, as are the ends of their intervals."""

FLAGS = {"True": True, "False": False}

CURE = "take the file as it was written, or move it away to measure again"


@dataclass(frozen=True)
class Kept:
    """What the CSV of a kind of page must hold.

    Args:
        first: The columns of one without rows.
        columns: Those that must be there.
        filled: Those of them that have something in every row.
        key: The columns that together are one row's alone.
    """

    first: tuple[str, ...]
    columns: tuple[str, ...]
    filled: tuple[str, ...]
    key: tuple[str, ...]


OF_ACCOUNTING = Kept(
    ("cell", "hash"),
    ("cell", "claimed", "reading", "stated", "formula", "renyi", "losses", "gives", "reason", "hash"),
    ("cell", "claimed", "reading", "stated", "gives", "hash"),
    ("cell", "reading"),
)

FRONTIER = Kept(
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
    "servers": ((IDENTIFIED.name, "candidates", "minutes", ASR.name), SIZES),
}
"""{a page's set of columns: the columns that must exist, and further ones that must have a value in every row}."""


def of_table(columns: str, curves: bool = False) -> Kept:
    """Return what the CSV of a table of cells must hold.

    Args:
        columns: Its set of `leakbench.reproduce.columns`.
    """
    have, filled = OF_PAGES[columns]
    first = ("row", "cell", "point")
    more = ("accuracies",) if curves else ()
    return Kept(first, (*first, *have, *filled, *more), (*first, *filled, *more), ("row",))


def kept(path: Path, kind: Kept) -> pd.DataFrame:
    """Return the rows of a CSV; an empty table with the first columns if the file does not exist yet.

    Raises:
        InputError: with the file, the row and the column, for damage: a column that is missing or appears twice, a line
            that is cut off, a row that does not fit its checksum, text in place of a number, a share outside [0, 1], a
            duplicate row.
    """
    if not path.exists():
        return pd.DataFrame({column: [] for column in kind.first})
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
    heads, *cells = _unchecked(path, [heads, *cells], CURE)
    rows = pd.DataFrame({head: _typed(path, head, [cell[i] for cell in cells]) for i, head in enumerate(heads)})
    _whole(path, rows, kind)
    return _with_current_verdicts(rows)


def _with_current_verdicts(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with verdicts of today's scale; those of an earlier version are translated.

    An attack that only ranks had one word for every identification rate. Whether the rate is above chance is tested again.
    """
    if "verdict" not in rows:
        return rows
    words = [current_word(word) if isinstance(word, str) else word for word in rows["verdict"]]
    for place, (before, row) in enumerate(zip(rows["verdict"], rows.to_dict("records"), strict=True)):
        right = row.get(IDENTIFIED.name, math.nan)
        if before == RANKED_ONLY and not math.isnan(right):
            victims, chance = int(row["victims"]), 1 / row["candidates"]
            words[place] = IDENTIFIES if above_chance(whole_victims(right * victims), victims, chance) else words[place]
    rows = rows.assign(verdict=words)
    if "resilient" in rows:
        rows["resilient"] = [resilient(word) if isinstance(word, str) else math.nan for word in words]
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
    if head.removesuffix("_low").removesuffix("_high") in SHARES and not (math.isnan(found) or 0 <= found <= 1):
        raise InputError(f"{path}: row {place}: {head}: got {text}, expected a share from 0 to 1; {CURE}")
    return found


def _whole(path: Path, rows: pd.DataFrame, kind: Kept) -> None:
    for name in kind.filled:
        for place, value in enumerate(rows[name], start=1):
            if pd.isna(value) or value == "":
                raise InputError(f"{path}: row {place}: {name}: got nothing, expected a value; {CURE}")
    for twice in rows[rows.duplicated(list(_there(kind.key, rows)))].to_dict("records"):
        said = ", ".join(str(twice[name]) for name in _there(kind.key, rows))
        raise InputError(f"{path}: row {said!r} appears twice; {CURE}")
    for name, check in (
        ("accuracies", _is_grid),
        ("asked", _is_mapping),
        ("changed", _is_mapping),
        ("behaviours", _are_versions),
    ):
        for place, text in enumerate(rows.get(name, ()), start=1):
            if not (isinstance(text, float) or check(text)):
                raise InputError(f"{path}: row {place}: {name}: got {text[:40]!r}, no JSON that was written; {CURE}")
    if "scale" in rows:
        for place, scale in enumerate(rows["scale"], start=1):
            if scale not in ("quick", "full") and not pd.isna(scale):
                raise InputError(f"{path}: row {place}: scale: got {scale!r}, expected quick or full; {CURE}")


def _there(names: Sequence[str], rows: pd.DataFrame) -> Sequence[str]:
    return [name for name in names if name in rows]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _are_versions(text: str) -> bool:
    return parsed_versions(text) is not None


def _is_mapping(text: str) -> bool:
    return isinstance(_parsed(text), dict)


def _is_grid(text: str) -> bool:
    """Say whether a text is seeds of rounds of accuracies, all of one length."""
    found = _parsed(text)
    if not isinstance(found, list) or not found or not all(isinstance(seed, list) and seed for seed in found):
        return False
    return len({len(seed) for seed in found}) == 1 and all(
        type(share) in (int, float) and 0 <= share <= 1 for seed in found for share in seed
    )
