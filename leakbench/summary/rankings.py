"""What the rankings beside an attack tell at a leakage point: who was in the batch, how many of each label, attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from leakbench.measure.rankings import ONE_EACH, RANKINGS
from leakbench.measure.scores_rankings import IDENTIFIED_BY, LEAST_NON_MEMBERS
from leakbench.measure.statistics import mean_interval, shared
from leakbench.summary.attributes import attribute_fields, attribute_notes

__all__ = ["ranking_fields", "ranking_notes", "told_fields", "told_notes"]

FEW = f"fewer than {LEAST_NON_MEMBERS} candidates that are not members cannot show a false positive rate of 1 % (--candidates)"
EVERYBODY = "every candidate is in the update, so that all are members (--candidates)"

ONE_LABEL = "the update is of one example, whose label is ranked (label_ranked)"


def told_fields(group: pd.DataFrame) -> dict[str, float | None]:
    """Return which share of the victims each question is told right of, with Wilson's interval; None for what has no value."""
    fields: dict[str, float | None] = {}
    for name in ONE_EACH:
        fields |= _interval(name, _share, group, name)
    return fields


def told_notes(key: str, tap: dict[str, Any]) -> dict[str, str]:
    """Return why a question has no value."""
    return {f"taps.{key}.{name}": RANKINGS[name].absent for name in ONE_EACH if tap[name] is None}


def ranking_fields(group: pd.DataFrame) -> dict[str, Any]:
    """Return the means over a leakage point's victims; None for what has no value.

    identified_by_likelihood, identified_by_reconstruction: the share named by each way alone, with Wilson's interval.
    member_auc: how often a member is ranked above a non-member within one update, with the interval of its mean.
    member_tpr: the share of victims found at a false positive rate of 1 %, with Wilson's.
    label_counts: the mean share of a batch's labels that are counted right; null_label_counts: by the public shares alone.
    attributes: of a table, see `attribute_fields`.
    """
    null = _first(group, "null_label_counts")
    return {
        **{field: value for way in IDENTIFIED_BY for field, value in _interval(way, _share, group, way).items()},
        **_interval("member_auc", _mean, group, "member_above"),
        **_interval("member_tpr", _share, group, "member_found"),
        **_interval("label_counts", _mean, group, "label_counts"),
        "null_label_counts": float(null.mean()) if len(null) else None,
        "attributes": attribute_fields(group),
    }


def ranking_notes(key: str, tap: dict[str, Any]) -> dict[str, str]:
    """Return why fields of a leakage point are None."""
    reasons = {
        "member_auc": EVERYBODY,
        "member_tpr": FEW,
        "label_counts": ONE_LABEL,
        "null_label_counts": ONE_LABEL,
    }
    absent = {f"taps.{key}.{name}": reason for name, reason in reasons.items() if tap[name] is None}
    return absent | attribute_notes(key, tap["attributes"])


def _first(group: pd.DataFrame, column: str) -> pd.Series:
    """Return the victims' values, one each."""
    return group[column].dropna() if column in group else pd.Series(dtype=float)


def _share(values: pd.Series, network: pd.Series | None) -> tuple[float, float, float]:
    return shared(values.to_numpy(), np.arange(len(values)), network=network)


def _mean(values: pd.Series, network: pd.Series | None) -> tuple[float, float, float]:
    return mean_interval(values, network=network)


def _interval(
    name: str,
    interval: Callable[[pd.Series, pd.Series | None], tuple[float, float, float]],
    group: pd.DataFrame,
    column: str,
) -> dict[str, float | None]:
    values, fields = _first(group, column), (name, f"{name}_low", f"{name}_high")
    if not len(values):
        return dict.fromkeys(fields)
    network = group.loc[values.index].get("network")
    return dict(zip(fields, interval(values, network), strict=True))
