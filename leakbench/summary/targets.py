"""The fields of a leakage point's summary whose network does not name classes."""

from __future__ import annotations

import math

import pandas as pd

from leakbench.core.request import CLASS
from leakbench.measure.rates import COUNTED, LABEL_RANKED, LABELS, TARGET_ERROR
from leakbench.measure.statistics import Interval, difference_interval, mean_interval
from leakbench.storage.summary import Tap

__all__ = ["target_fields", "target_notes"]

ALONE = 9.68
"""Half the width of the 95 % interval of a normal value's mean, from that value alone, as a multiple of it."""

NO_LABELS = "the loss is not that of classes, so that no label leaks"
NOT_INFERRED = "the attack infers no targets"


def target_fields(group: pd.DataFrame) -> dict[str, float | None]:
    """Return the mean error of the inferred targets with its interval, and that of the baseline; no field for classes."""
    if TARGET_ERROR.baseline not in group:
        return {}
    null = {TARGET_ERROR.baseline: float(group[TARGET_ERROR.baseline].mean())}
    if group[TARGET_ERROR.name].isna().all():
        return dict.fromkeys(TARGET_ERROR.ends) | null
    inferred = group[TARGET_ERROR.name].replace(math.inf, math.nan)
    values = inferred.fillna(group[TARGET_ERROR.baseline])
    of_batch = group.groupby("batch")["network"].first()
    of_batches = values.groupby(group["batch"]).mean()
    if max(values.max(), group[TARGET_ERROR.baseline].max()) <= 1:
        ends = mean_interval(of_batches, network=of_batch)
    else:
        ends = _unbounded_interval(of_batches, of_batch)
    return {**dict(zip(TARGET_ERROR.ends, ends, strict=True)), **null}


def _unbounded_interval(errors: pd.Series[float], network: pd.Series[str] | None) -> Interval:
    """Return (mean, low, high) of the errors of batches of numbers on any scale: Student's interval, from 0.

    One error, or equal ones, show no spread. The interval is then that of a single normal value x, x +- 9.68 x.

    References:
        Wall, Boen and Tweedie, The American Statistician 55 (2001).
    """
    if errors.nunique() == 1:
        return float(errors.iloc[0]), 0.0, (1 + ALONE) * float(errors.iloc[0])
    mean, low, high = difference_interval(errors, network=network)
    return mean, max(0.0, low), high


def target_notes(key: str, tap: Tap, loss: str) -> dict[str, str]:
    """Return why a network that does not name classes has no labels, and its attack perhaps no targets."""
    if loss == CLASS:
        return {}
    notes = {
        f"taps.{key}.{name}": NO_LABELS for name in (LABELS.name, LABEL_RANKED.name, COUNTED.name, COUNTED.baseline)
    }
    if tap.null_target_error is not None and tap.target_error is None:
        notes[f"taps.{key}.{TARGET_ERROR.name}"] = NOT_INFERRED
    return notes
