"""What of a run is kept to hold later runs against: who came back, small enough to commit; and how it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.errors import InputError
from leakbench.store import content_hash, read_manifest
from leakbench.summary.compare import RULERS, SAME, rows_of

__all__ = ["FORMAT", "Kept", "baseline_of", "kept_of"]

FORMAT = 1

SCORES = ("success", "identified", "failure_reason", "label_guess", "rmse", "null_rmse")
"""Of each example, beside by what examples are the same."""

ROUNDED, DIGITS = ("rmse", "null_rmse"), 4
"""Scores of which so many digits are kept; the thresholds that examples are judged by are kept whole."""

Kept = tuple[pd.DataFrame, str, dict[str, Any]]
"""(rows, data set, {accuracy, epsilon, attack, hash, name})."""


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
    return {"leakbench baseline": FORMAT, "dataset": data, **told, "examples": len(rows), "rows": columns}


def kept_of(path: Path) -> Kept:
    """Return what is kept of a run's folder, or of a file that `baseline_of` filled; raises InputError for other files."""
    if path.is_dir():
        return _of_run(path)
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"no file or folder {str(path)!r}; expected a run's folder or a baseline") from None
    except (OSError, ValueError) as error:
        raise InputError(f"baseline: {path} cannot be read ({error})") from None
    if not isinstance(read, dict) or read.get("leakbench baseline") != FORMAT:
        raise InputError(f"baseline: {path} is none (write one by `leakbench baseline RUN > {path.name}`)")
    try:
        count, columns = int(read["examples"]), dict(read["rows"])
        rows = pd.DataFrame({name: _column(columns[name], count) for name in (*SAME, *RULERS, *SCORES)})
        told = {name: read[name] for name in ("accuracy", "epsilon", "attack", "hash", "name")}
        return rows, str(read["dataset"]), told
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"baseline: {path} is damaged ({type(error).__name__}: {error})") from None


def _of_run(folder: Path) -> Kept:
    rows, data = rows_of(folder)
    manifest = read_manifest(folder)
    summary = manifest["summary"]
    names = summary["cell"]
    told = {
        "accuracy": summary["accuracy"],
        "epsilon": summary["epsilon"]["valid"],
        "attack": f"{names['attack']} {content_hash(manifest['recipes']['attack'])[:8]}",
        "hash": names["hash"],
        "name": f"{names['dataset']}-{names['defense']}-{names['attack']}",
    }
    return rows, data, told


def _column(values: Any, count: int) -> list[Any]:
    if not isinstance(values, list):
        return [values] * count
    if len(values) != count:
        raise ValueError(f"{len(values)} values of {count} examples")
    return values


def _plain(value: Any) -> Any:
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
