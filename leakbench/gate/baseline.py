"""The baseline of a run: which victims were reconstructed, small enough to commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.bounded import bounded_text
from leakbench.errors import InputError
from leakbench.gate.columns import check_rows, column_of
from leakbench.gate.settings import are_settings, settings_of
from leakbench.manifest import needed
from leakbench.recipe import content_of
from leakbench.store import content_hash, read_manifest
from leakbench.strict_json import strict_json
from leakbench.summary.compare import RULERS, SAME, rows_of

__all__ = ["FORMAT", "Kept", "baseline_of", "kept_of"]

FORMAT = 1

LONGEST = 100_000_000
"""Bytes of a file; of ten victims they take about 3,000."""

SCORES = ("success", "identified", "failure_reason", "label_guess", "rmse", "null_rmse")
"""Of each example, beside by what examples are the same."""

ROUNDED, DIGITS = ("rmse", "null_rmse"), 4
"""Scores of which so many digits are kept; the thresholds that examples are judged by are kept whole."""

Kept = tuple[pd.DataFrame, str, dict[str, Any]]
"""(rows, data set, {accuracy, epsilon, attack, hash, name, settings})."""


def baseline_of(folder: Path) -> dict[str, Any]:
    """Return a finished run as plain data: columns of its rows, without pictures; raises InputError for another."""
    rows, data, told = _of_run(folder)
    columns: dict[str, Any] = {}
    for name in (*SAME, *RULERS, *SCORES):
        values = rows[name].round(DIGITS) if name in ROUNDED else rows[name]
        # One value for all is written once.
        if values.nunique(dropna=False) == 1:
            columns[name] = _plain(values.iloc[0])
        else:
            columns[name] = [_plain(value) for value in values]
    kept = {"leakbench baseline": FORMAT, "dataset": data, **told, "examples": len(rows), "rows": columns}
    return {**kept, "checksum": content_hash(kept)}


def kept_of(path: Path) -> Kept:
    """Return what is kept of a run's folder, or of a file that `baseline_of` filled; raises InputError for other files."""
    if path.is_dir():
        return _of_run(path)
    try:
        read = strict_json(bounded_text(path, LONGEST))
    except FileNotFoundError:
        raise InputError(f"no file or folder {str(path)!r}; expected a run's folder or a baseline") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"baseline: {path} cannot be read ({error})") from None
    if not isinstance(read, dict) or read.get("leakbench baseline") != FORMAT:
        raise InputError(f"baseline: {path} is not a baseline (write one by `leakbench baseline RUN > {path.name}`)")
    try:
        return _read(read)
    except InputError as error:
        raise InputError(f"baseline: {path}: {error}; write it again by `leakbench baseline RUN`") from None


def _read(read: dict[str, Any]) -> Kept:
    for name in read:
        if name not in (*TOLD, "leakbench baseline", "checksum"):
            raise InputError(f"unknown field {name!r} of a baseline")
    for name, (fits, expected) in TOLD.items():
        if name not in read:
            if name == "settings":  # A baseline of before they were kept.
                continue
            raise InputError(f"{name} is missing")
        if not fits(read[name]):
            raise InputError(f"{name}: got {str(read[name])[:40]!r}, expected {expected}")
    columns, count = read["rows"], read["examples"]
    for name in (*SAME, *RULERS, *SCORES):
        if name not in columns:
            raise InputError(f"rows.{name} is missing")
    rows = pd.DataFrame({name: column_of(name, columns[name], count) for name in (*SAME, *RULERS, *SCORES)})
    check_rows(rows)
    # Last, so that what can be named is.
    said = read.get("checksum")  # None in a baseline of before there were checksums.
    if said not in (None, content_hash({name: value for name, value in read.items() if name != "checksum"})):
        raise InputError("checksum: does not fit the rest, so that something in it was changed")
    told = {name: read[name] for name in ("accuracy", "epsilon", "attack", "hash", "name")}
    return rows, read["dataset"], {**told, "settings": read.get("settings")}


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_share(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= 1)


TOLD: dict[str, tuple[Callable[[Any], bool], str]] = {
    "dataset": (_is_text, "text"),
    "attack": (_is_text, "text"),
    "hash": (_is_text, "text"),
    "name": (_is_text, "text"),
    "accuracy": (_is_share, "a share from 0 to 1, or null"),
    "epsilon": (lambda value: value is None or (type(value) in (int, float) and value >= 0), "a number >= 0, or null"),
    "examples": (lambda value: type(value) is int and 1 <= value <= MOST, "a whole number >= 1"),
    "rows": (lambda value: isinstance(value, dict), "a mapping of columns"),
    "settings": (are_settings, "a mapping of texts, numbers, true, false and null"),
}
"""{field of a baseline: (what it is, in words)}."""

MOST = 10**8
"""Examples of a baseline; a larger number is a damaged one."""


def _of_run(folder: Path) -> Kept:
    rows, data = rows_of(folder)
    manifest = read_manifest(folder)
    of_cell = (f"summary.cell.{name}" for name in ("attack", "dataset", "defense", "hash"))
    path, fields = folder / "manifest.json", ("summary.accuracy", "summary.epsilon.valid", "recipes.attack", "settings")
    needed(path, manifest, *fields, *of_cell)
    summary = manifest["summary"]
    names = summary["cell"]
    told = {
        "accuracy": summary["accuracy"],
        "epsilon": summary["epsilon"]["valid"],
        "attack": f"{names['attack']} {content_of(manifest['recipes']['attack'])[:8]}",
        "hash": names["hash"],
        "name": f"{names['dataset']}-{names['defense']}-{names['attack']}",
        "settings": settings_of(manifest),
    }
    return rows, data, told


def _plain(value: Any) -> Any:
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
