"""What a card keeps of one leakage point of a finished run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from leakbench.leaderboard.card import CardPoint
from leakbench.measure.measures import EDIT_DISTANCE, RMSE, Measure
from leakbench.measure.rates import ASR, EXACT, EXCLUDABLE, FEATURES, IDENTIFIED, LABEL_RANKED, RECORDS
from leakbench.measure.statistics import median_interval
from leakbench.storage.summary import Summary, Tap

__all__ = ["point_of", "rounded", "share_of"]

DIGITS = 4


def point_of(name: str, summary: Summary, rows: pd.DataFrame) -> CardPoint:
    """Return a leakage point of a summary, whose rows are these."""
    tap = summary.taps[name]
    excluded = [limit for rate in EXCLUDABLE if (limit := tap.value(rate.excluded)) is not None]
    texts = tap.null_edit_distance is not None
    same = str(summary.notes.get(f"taps.{name}", "")).partition("the same bits as ")[2].partition(":")[0]
    return CardPoint(
        name=name,
        victims=tap.victims,
        batch=tap.batch,
        failures=tap.failures,
        asr=share_of(tap, ASR.name),
        null_asr=_needed(share_of(tap, ASR.baseline)),
        rmse=None if texts or tap.rmse is None else _median(rows, RMSE),
        null_rmse=rounded(tap.null_rmse),
        identified=share_of(tap, IDENTIFIED.name),
        candidates=tap.candidates or 1,
        chance=_needed(rounded(tap.chance)),
        label=rounded(tap.label_accuracy),
        label_ranked=share_of(tap, LABEL_RANKED.name),
        features=share_of(tap, FEATURES.name),
        null_features=rounded(tap.null_feature_accuracy),
        records=share_of(tap, RECORDS.name),
        verdict=_needed(tap.verdict),
        same_as=same,
        networks=tap.networks,
        by_network=_by_network(tap, rows) if tap.networks > 1 else {},
        excluded=rounded(max(excluded, default=None)),
        edit_distance=_median(rows, EDIT_DISTANCE) if texts else None,
        null_edit_distance=rounded(tap.null_edit_distance),
        exact=share_of(tap, EXACT.name),
    )


def _by_network(tap: Tap, rows: pd.DataFrame) -> dict[Any, tuple[float, ...]]:
    """Return how many victims of each network every share counts; the ASR of a batch has no such counts."""
    first, found = rows[rows["member"] == 0], {}
    for rate in (ASR, IDENTIFIED, LABEL_RANKED):
        if tap.value(rate.name) is not None and (rate is not ASR or tap.batch == 1):
            right = first.groupby("network")[rate.column].sum()
            found[rate.name] = tuple(_needed(rounded(value)) for value in right)
    return found


def share_of(tap: Tap, field: str) -> tuple[float, float, float] | None:
    """Return [a share, low, high] of a summary, rounded; None where it has no value."""
    found = tap.interval(field)
    if found is None:
        return None
    # Student's interval of a mean may reach out of what a share can be.
    share, low, high = (_needed(rounded(end)) for end in (found[0], *(min(1.0, max(0.0, end)) for end in found[1:])))
    return share, low, high


def rounded(value: float | None) -> float | None:
    """Return a number to four digits after the point; None for none."""
    return None if value is None else round(float(value), DIGITS)


def _median(rows: pd.DataFrame, measure: Measure) -> tuple[float, float | None, float | None] | None:
    """Return the median over all examples, failures counting as the worst, with its interval over victims; None for a failure."""
    worst = rows[measure.name].fillna(math.inf)
    value = round(float(worst.median()), DIGITS)
    if not math.isfinite(value):
        return None
    by_victim = worst.groupby(rows["victim"]).median()
    network = rows.groupby("victim")["network"].first()
    _, low, high = median_interval(by_victim, network=network)
    # Of batches the median over all examples is not that of the victims' medians.
    return value, _around(value, low, min), _around(value, high, max)


def _around(value: float, end: float, pick: Callable[[float, float], float]) -> float | None:
    return pick(value, round(end, DIGITS)) if math.isfinite(end) else None


def _needed(value: Any) -> Any:
    assert value is not None  # noqa: S101 - said to mypy; it holds by construction
    return value
