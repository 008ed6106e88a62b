"""The command `conformance`: leakbench's own scorer, or a user's, and a line for every case."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from leakbench.conformance.contract import MEASURES
from leakbench.conformance.judge import Result, all_cases, conform
from leakbench.conformance.own import OwnScorer
from leakbench.errors import InputError
from leakbench.imported import import_function
from leakbench.measure.metrics import load_lpips

__all__ = ["as_dict", "conformance", "lines"]

OUTCOMES = ("passed", "failed", "not measured")
COLUMN = 36

UNTOUCHED = "truth: untouched"
"""The one case that asks for no measure."""


def conformance(path: str | None, lpips_weights: Path | None) -> tuple[Result, ...]:
    """Return what became of every case; raises InputError in one line for whatever does not fit.

    path: `package.module:name` of a scorer, importable from the working folder too; leakbench's own without one.
    lpips_weights: a folder with a backbone of LPIPS, without which that case is not measured.
    """
    lpips = load_lpips(lpips_weights)
    if lpips_weights is not None and isinstance(lpips, str):
        raise InputError(f"lpips-weights: {str(lpips_weights)!r}: {lpips.removeprefix('n/a: ')}")
    scorer = OwnScorer(lpips=lpips) if path is None else import_function("scorer", path, os.getcwd())
    results = conform(scorer, all_cases(lpips_weights))
    asked = [result for result in results if result.case != UNTOUCHED]
    if all(result.outcome == "not measured" for result in asked):
        raise InputError(f"scorer: {path!r} measured nothing, expected at least one of {', '.join(MEASURES)}")
    return results


def as_dict(path: str | None, results: Sequence[Result]) -> dict[str, Any]:
    """Return what `--json` prints."""
    cases = [asdict(result) for result in results]
    return {"scorer": path or "leakbench", **_counts(results), "never_ran": _never_ran(path, results), "cases": cases}


def lines(path: str | None, results: Sequence[Result]) -> list[str]:
    """Return the table: of a failed case what came back and what had to, of one not measured the reason."""
    table = [f"{'case':<{COLUMN}}{path or 'leakbench'}"]
    for result in results:
        table.append(f"{result.case:<{COLUMN}}{result.outcome}")
        if result.outcome == "failed":
            table[-1] += f": got {result.got}, expected {result.expected}"
            table.append(f"{'':<{COLUMN}}{result.why}")
        elif result.reason:
            table[-1] += f": {result.reason}"
    counts = _counts(results)
    table.append(", ".join(f"{counts[o.replace(' ', '_')]} {o}" for o in OUTCOMES))
    never = _never_ran(path, results)
    return [*table, never] if never else table


def _never_ran(path: str | None, results: Sequence[Result]) -> str | None:
    """Return one line about a scorer that raised whenever it was asked, so that no score of it was held; None of another."""
    raised = [result for result in results if result.call == "raised"]
    if not raised or any(result.call == "returned" for result in results):
        return None
    first = raised[0].got.removeprefix("raised ")
    return (
        f"{path or 'leakbench'} never ran: it raised in all {len(raised)} cases that it was asked, in the first {first}"
    )


def _counts(results: Sequence[Result]) -> dict[str, int]:
    found = Counter(result.outcome for result in results)
    return {outcome.replace(" ", "_"): found[outcome] for outcome in OUTCOMES}  # type: ignore[index]
