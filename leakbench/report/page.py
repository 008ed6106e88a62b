"""The page of one run: one self-contained HTML file that opens anywhere, without a network or a script."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray
from safetensors.numpy import load_file

from leakbench.errors import InputError
from leakbench.report.bounds import bounds, seen_at, violations
from leakbench.report.columns import page_columns
from leakbench.report.conspicuous import conspicuous
from leakbench.report.epsilons import caveats, epsilons
from leakbench.report.figures import anytime_figure, rounds_figure, threshold_figure, training_figure
from leakbench.report.gallery import galleries
from leakbench.report.legend import legend
from leakbench.report.members import factors
from leakbench.report.words import interval, notes, number, over_rounds, reading, training, why_unanswered
from leakbench.store import read_manifest, write_atomically, written

__all__ = ["write_report"]

T = TypeVar("T")


def write_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a finished run and return its path.

    Reads manifest.json, rows.parquet, rounds.parquet and reconstructions.safetensors; equal files give an equal page.
    Raises InputError that names the file which is missing or cannot be read.
    """
    manifest = read_manifest(folder)
    if "summary" not in manifest:
        raise InputError(f"{folder / 'manifest.json'}: has no summary; the run is not finished, run it again to go on")
    for name in ("rows.parquet", "rounds.parquet", "reconstructions.safetensors"):
        written(folder, manifest, name)
    rows = _read(folder / "rows.parquet", pd.read_parquet)
    rounds = _read(folder / "rounds.parquet", pd.read_parquet)
    arrays = _read(folder / "reconstructions.safetensors", load_file)
    html = _render(manifest, rows, rounds, arrays)
    path = folder / "report.html"
    write_atomically(path, lambda temporary: temporary.write_text(html, encoding="utf-8"))
    return path


def _read(path: Path, read: Callable[[Path], T]) -> T:
    try:
        return read(path)
    except Exception as error:  # each format has errors of its own; whichever it is, the file is the cause
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path}: cannot be read ({first}); run the cell again to measure it anew") from None


def _render(
    manifest: Mapping[str, Any], rows: pd.DataFrame, rounds: pd.DataFrame, arrays: Mapping[str, NDArray[np.floating]]
) -> str:
    summary = manifest["summary"]
    claimed, observed = epsilons(summary)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, interval=interval, figure=_figure, factors=factors, pretty=_pretty)
    # The page cannot know its own checksum.
    files = {name: checksum for name, checksum in manifest.get("files", {}).items() if name != "report.html"}
    page: str = environment.get_template("report.html.jinja").render(
        manifest=manifest,
        summary=summary,
        columns=page_columns(summary),
        reading=reading(summary),
        training=training(summary),
        conspicuous=conspicuous(summary),
        epsilon=summary.get("epsilon") or {},
        caveats=caveats(summary),
        claimed=claimed,
        observed=observed,
        notes=notes(summary),
        bounds=bounds(summary),
        violations=violations(summary),
        failures=_failures(rows, summary),
        legend=legend(summary),
        galleries=galleries(arrays, rows),
        training_figure=training_figure(_with_epsilon(rounds, summary)),
        over_rounds=over_rounds(summary),
        rounds_figure=rounds_figure(summary.get("over_rounds") or {}),
        anytime_figure=anytime_figure(summary["taps"]),
        threshold_figure=threshold_figure(_points(rows, summary), seen_at(summary)),
        files=files,
    )
    return page


def _points(rows: pd.DataFrame, summary: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return {leakage point as the summary names it: its rows}."""
    points = {}
    for name, tap in summary["taps"].items():
        points[name] = rows[(rows["tap"] == name.partition("@")[0]) & (rows["round"] == tap["round"])]
    return points


def _failures(rows: pd.DataFrame, summary: Mapping[str, Any]) -> list[tuple[str, int, str, int]]:
    """Return [(tap, round, reason, how many examples)], in the order of the rows."""
    failed = rows[rows["failure"].astype(bool)]
    kinds = zip(failed["tap"], failed["round"], failed["failure_reason"].fillna(""), strict=True)
    at = {(name.partition("@")[0], tap["round"]): tap for name, tap in summary["taps"].items()}
    return [
        (tap, leak, why_unanswered(summary, at.get((tap, leak), {}), why) or "no reason given", n)
        for (tap, leak, why), n in Counter(kinds).items()
    ]


def _figure(value: Any) -> str:
    """Return a claimed or measured value, which may be a number, a word or nothing."""
    return "n/a" if value is None else f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False)


def _with_epsilon(rounds: pd.DataFrame, summary: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rounds with the valid epsilon that is spent after each, where there is one."""
    spent = (summary.get("epsilon") or {}).get("by_round") or []
    return rounds.assign(epsilon=spent) if spent and len(spent) == len(rounds) else rounds
