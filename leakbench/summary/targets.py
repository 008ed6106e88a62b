"""The fields of a leakage point's summary whose network does not name classes."""

from __future__ import annotations

import pandas as pd

from leakbench.core.request import CLASS
from leakbench.measure.rates import COUNTED, LABEL_RANKED, LABELS, TARGET_ERROR
from leakbench.measure.statistics import mean_interval
from leakbench.storage.summary import Tap

__all__ = ["target_fields", "target_notes"]

NO_LABELS = "the loss is not that of classes, so that no label leaks"
NOT_INFERRED = "the attack infers no targets"


def target_fields(group: pd.DataFrame) -> dict[str, float | None]:
    """Return the mean error of the inferred targets with its interval, and that of the baseline; no field for classes."""
    if TARGET_ERROR.baseline not in group:
        return {}
    null = {TARGET_ERROR.baseline: float(group[TARGET_ERROR.baseline].mean())}
    if group[TARGET_ERROR.name].isna().all():
        return dict.fromkeys(TARGET_ERROR.ends) | null
    values = group[TARGET_ERROR.name].fillna(group[TARGET_ERROR.baseline])
    of_batch = group.groupby("batch")["network"].first() if "network" in group else None
    ends = mean_interval(values.groupby(group["batch"]).mean(), network=of_batch)
    return {**dict(zip(TARGET_ERROR.ends, ends, strict=True)), **null}


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
