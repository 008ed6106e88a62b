"""The baseline of a run: which victims were reconstructed, small enough to commit."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.core.errors import InputError
from leakbench.core.leakage_points import TAPS
from leakbench.core.recipe import content_of
from leakbench.core.untrusted import bounded_text, said, strict_json
from leakbench.measure.measures import EDIT_DISTANCE, deciding
from leakbench.measure.rates import ASR, EXACT, IDENTIFIED, ROUGE_1
from leakbench.storage.manifest import check_of_run, needed
from leakbench.storage.store import content_hash, read_manifest
from leakbench.storage.summary import Summary
from leakbench.summary.compare import ERRORS, RULERS, SAME, rows_of

__all__ = ["OF_ATTACK", "baseline_of", "changed", "kept_of"]

LARGEST = 2**53
"""Whole numbers below it are numbers of every kind, as the rows of a baseline have them."""


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value < LARGEST


def _amount(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= 1e300)


def _hit(value: Any) -> bool:
    return type(value) in (bool, int, float) and value in (0, 1)


def _is_share(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value <= 1)


COLUMNS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tap": (lambda value: value in TAPS, f"one of {', '.join(TAPS)}"),
    "round": (_whole(0), "a whole number >= 0"),
    "victim": (_whole(0), "a whole number >= 0"),
    "member": (_whole(0), "a whole number >= 0"),
    "example": (_whole(0), "a whole number >= 0"),
    "label": (_whole(0), "a whole number >= 0"),
    "network": (_whole(0), "a whole number >= 0"),
    "eta": (lambda value: value is not None and _amount(value), "a number >= 0"),
    "candidates": (_whole(1), "a whole number >= 1"),
    ASR.column: (_hit, "true or false"),
    IDENTIFIED.column: (lambda value: value is None or _hit(value), "0, 1, or null for a victim that was not ranked"),
    "failure_reason": (lambda value: value is None or type(value) is str, "text"),
    "label_guess": (lambda value: value is None or _whole(-LARGEST)(value), "a whole number, or null"),
    **{name: (_amount, "a number >= 0, or null") for m in ERRORS.values() for name in (m.name, m.baseline)},
    **{name: (_is_share, "a share from 0 to 1, or null") for r in (EXACT, ROUGE_1) for name in (r.name, r.baseline)},
}
"""{column: (what a value of it is, in words)}."""


def _column_of(name: str, values: Any, count: int) -> list[Any]:
    """Return a column of `count` examples, for which one value may be given; raises InputError, with the field, if it is wrong."""
    listed = values if isinstance(values, list) else [values] * count
    if len(listed) != count:
        raise InputError(f"rows.{name}: got {len(listed)} values, expected {count}, one of each of the examples")
    fits, expected = COLUMNS[name]
    for value in listed:
        if not fits(value):
            raise InputError(f"rows.{name}: got {str(value)[:40]}, expected {expected}")
    return listed


def _check_rows(rows: pd.DataFrame) -> None:
    """Raise InputError for an example that appears twice, and where of the first of each batch some were ranked and some not."""
    twice = rows[rows.duplicated(["tap", "round", "victim", "member"])]
    if len(twice):
        row = twice.iloc[0]
        raise InputError(f"rows: {row['tap']}, round {row['round']}, victim {row['victim']} appears twice")
    for (tap, number), some in rows[rows["member"] == 0].groupby(["tap", "round"]):
        if some[IDENTIFIED.column].isna().any() and some[IDENTIFIED.column].notna().any():
            raise InputError(f"rows.identified: at {tap}, round {number}, some victims have null, expected all or none")


OF_ATTACK = ("protocol", "join_rounds", "reads", "observations", "networks", "budget", "statistics")
"""What the attacker sees of a gradient, at which networks, and for how long; with other values it is another attack."""

OF_NO_MATTER = (
    "part",
    *("taps", "leak_rounds", "victims", "candidates", "success"),  # Which the rows say.
    *("seed", "device", "engine", "lpips", "pictures"),
)


def _settings_of(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a cell's manifest as {name: text, number, bool or None}, those of its federation with a dot."""
    settings = manifest["settings"]
    federation = settings.get("federation")
    every = {
        **{name: value for name, value in settings.items() if name not in ("federation", *OF_NO_MATTER)},
        **{f"federation.{name}": v for name, v in (federation if isinstance(federation, dict) else {}).items()},
    }
    every.pop("federation.part", None)
    return {n: json.dumps(v, sort_keys=True) if isinstance(v, (dict, list)) else v for n, v in every.items()}


def _are_settings(value: Any) -> bool:
    """Say whether a field of a baseline is what `settings_of` returns."""
    return isinstance(value, dict) and all(type(v) in (str, int, float, bool, type(None)) for v in value.values())


def changed(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, str]:
    """Return {name: what it was and is} of the settings that both have and that differ."""
    return {
        name: f"{said(then[name])} before, {said(now[name])} now"
        for name in now
        if name in then and now[name] != then[name]
    }


FORMAT = 1

LONGEST = 100_000_000
"""Bytes of a file; of ten victims they take about 3,000."""

SCORES = (ASR.column, IDENTIFIED.column, "failure_reason", "label_guess")
"""Columns of each example, after those that identify it and before the numbers of `_numbers`."""

DIGITS = 4
"""To which errors and shares of texts are rounded; the thresholds of success are kept exactly."""


def _columns(names: Container[str]) -> tuple[str, ...]:
    """Return the columns that are kept of rows with these columns."""
    return (*SAME, "network", *RULERS, *SCORES, *_numbers(names))


def _numbers(names: Container[str]) -> tuple[str, ...]:
    """Return the kept columns of errors and shares, each with that of the baseline guess: texts have others than other data."""
    error = deciding(names)
    rates = (EXACT, ROUGE_1) if error is EDIT_DISTANCE else ()
    return (error.name, error.baseline, *(name for rate in rates for name in (rate.name, rate.baseline)))


Kept = tuple[pd.DataFrame, str, dict[str, Any]]
"""(rows, data set, {accuracy, epsilon, attack, hash, name, settings})."""


def baseline_of(folder: Path) -> dict[str, Any]:
    """Return a finished run as plain data: columns of its rows, without pictures; raises InputError for another."""
    rows, data, told = _of_run(folder)
    columns: dict[str, Any] = {}
    for name in _columns(rows.columns):
        values = rows[name]
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
            raise InputError(f"{name} is missing")
        if not fits(read[name]):
            raise InputError(f"{name}: got {str(read[name])[:40]!r}, expected {expected}")
    columns, count = read["rows"], read["examples"]
    kept = _columns(columns)
    for name in kept:
        if name not in columns:
            raise InputError(f"rows.{name} is missing")
    rows = pd.DataFrame({name: _column_of(name, columns[name], count) for name in kept})
    rows = rows.astype(dict.fromkeys(_numbers(columns), float))  # A column of null alone has no numbers.
    _check_rows(rows)
    # Last, so that what can be named is.
    if read.get("checksum") != content_hash({name: value for name, value in read.items() if name != "checksum"}):
        raise InputError("checksum: does not fit the rest, so that something in it was changed")
    told = {name: read[name] for name in ("accuracy", "epsilon", "attack", "hash", "name", "settings")}
    return rows, read["dataset"], told


def _is_text(value: Any) -> bool:
    return type(value) is str


TOLD: dict[str, tuple[Callable[[Any], bool], str]] = {
    "dataset": (_is_text, "text"),
    "attack": (_is_text, "text"),
    "hash": (_is_text, "text"),
    "name": (_is_text, "text"),
    "accuracy": (_is_share, "a share from 0 to 1, or null"),
    "epsilon": (lambda value: value is None or (type(value) in (int, float) and value >= 0), "a number >= 0, or null"),
    "examples": (lambda value: type(value) is int and 1 <= value <= MOST, "a whole number >= 1"),
    "rows": (lambda value: isinstance(value, dict), "a mapping of columns"),
    "settings": (_are_settings, "a mapping of texts, numbers, true, false and null"),
}
"""{field of a baseline: (what it is, in words)}."""

MOST = 10**8
"""Examples of a baseline; a larger number is a damaged one."""


def _of_run(folder: Path) -> Kept:
    manifest = read_manifest(folder)
    check_of_run(folder / "manifest.json", manifest)
    rows, data = rows_of(folder)
    # Also in a comparison of two folders: an equal run would differ from its own baseline by the rounding.
    rows = rows.round(dict.fromkeys(_numbers(rows.columns), DIGITS))
    of_cell = (f"summary.cell.{name}" for name in ("attack", "dataset", "defense", "hash"))
    path, fields = folder / "manifest.json", ("summary.accuracy", "summary.epsilon.valid", "recipes.attack", "settings")
    needed(path, manifest, *fields, *of_cell)
    summary = Summary.of(manifest["summary"])
    names = summary.cell
    told = {
        "accuracy": summary.accuracy,
        "epsilon": summary.epsilon.valid,
        "attack": f"{names.attack} {content_of(manifest['recipes']['attack'])[:8]}",
        "hash": names.hash,
        "name": f"{names.dataset}-{names.defense}-{names.attack}",
        "settings": _settings_of(manifest),
    }
    return rows, data, told


def _plain(value: Any) -> Any:
    if value is None or pd.isna(value):
        return None
    return value.item() if hasattr(value, "item") else value
