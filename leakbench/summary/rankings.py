"""Rankings at a leakage point: members of the batch, counts of each label, and the attributes of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from leakbench.measure.rates import COUNTED, MEMBER_AUC, MEMBER_FOUND
from leakbench.measure.statistics import mean_interval, shared
from leakbench.privacy.bounds import Seen
from leakbench.scoring.rankings import ONE_EACH, RANKINGS
from leakbench.scoring.scores_rankings import IDENTIFIED_BY, LEAST_NON_MEMBERS
from leakbench.storage.summary import Number, Tap

__all__ = [
    "COLUMN",
    "attribute_bounds",
    "attribute_fields",
    "attribute_notes",
    "ranking_fields",
    "ranking_notes",
    "told_fields",
    "told_notes",
]

FEW = f"fewer than {LEAST_NON_MEMBERS} candidates that are not members cannot show a false positive rate of 1 % (--candidates)"
EVERYBODY = "every candidate is in the update, so that all are members (--candidates)"

ONE_LABEL = "the update is of one example, whose label is ranked (label_ranked)"


def told_fields(group: pd.DataFrame) -> dict[str, float | None]:
    """Return the share of victims for which each question is answered correctly, with Wilson's interval; None without a value."""
    fields: dict[str, float | None] = {}
    for name in ONE_EACH:
        fields |= _interval(name, _share, group, name)
    return fields


def told_notes(key: str, tap: Tap) -> dict[str, str]:
    """Return why a question has no value."""
    return {f"taps.{key}.{name}": RANKINGS[name].absent for name in ONE_EACH if tap.value(name) is None}


def ranking_fields(group: pd.DataFrame) -> dict[str, Any]:
    """Return the means over a leakage point's victims; None for a measure without a value.

    identified_by_likelihood, identified_by_reconstruction: the share named by each way alone, with Wilson's interval.
    member_auc: how often a member is ranked above a non-member within one update, with the interval of its mean.
    member_tpr: the share of victims found at a false positive rate of 1 %, with Wilson's.
    label_counts: the mean share of a batch's labels that are counted right; null_label_counts: by the public shares alone.
    attributes: the attributes of a table, see `attribute_fields`.
    """
    null = _first(group, COUNTED.baseline)
    return {
        **{field: value for way in IDENTIFIED_BY for field, value in _interval(way, _share, group, way).items()},
        **_interval(MEMBER_AUC.name, _mean, group, MEMBER_AUC.column),
        **_interval(MEMBER_FOUND.name, _share, group, MEMBER_FOUND.column),
        **_interval(COUNTED.name, _mean, group, COUNTED.column),
        COUNTED.baseline: float(null.mean()) if len(null) else None,
        "attributes": attribute_fields(group),
    }


def ranking_notes(key: str, tap: Tap) -> dict[str, str]:
    """Return the reasons for the missing fields of a leakage point."""
    reasons = {
        MEMBER_AUC.name: EVERYBODY,
        MEMBER_FOUND.name: FEW,
        COUNTED.name: ONE_LABEL,
        COUNTED.baseline: ONE_LABEL,
    }
    absent = {f"taps.{key}.{name}": reason for name, reason in reasons.items() if tap.value(name) is None}
    return absent | attribute_notes(key, tap.attributes)


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
    network = group.loc[values.index, "network"]
    return dict(zip(fields, interval(values, network), strict=True))


COLUMN = "attribute_"
"""Beginning of the columns of attributes in the rows: whether each was told right."""

SEVERAL = "the update is of several records; attributes are ranked for one"

Attributes: TypeAlias = dict[str, dict[str, Number | None]]
"""{category: {`right`, `low`, `high`, `null`, `bound`}}."""


def attribute_fields(group: pd.DataFrame) -> Attributes | None:
    """Return the share of victims whose value comes first among those who have one, with Wilson's interval.

    `null` is the share of the best constant guess. None for a batch, {} for a data set without categories.
    """
    names = [str(name).removeprefix(COLUMN) for name in group if str(name).startswith(COLUMN)]
    if names and int(group["member"].max()):
        return None
    return {name: _told(group, name) for name in names}


def _told(group: pd.DataFrame, name: str) -> dict[str, float | None]:
    right, null = group[f"{COLUMN}{name}"].dropna(), group[f"null_{COLUMN}{name}"].dropna()
    guessed = float(null.iloc[0]) if len(null) else None
    if not len(right):
        return {"right": None, "low": None, "high": None, "null": guessed, "bound": None}
    network = group.loc[right.index, "network"]
    share, low, high = shared(right.to_numpy(), np.arange(len(right)), network=network)
    return {"right": share, "low": low, "high": high, "null": guessed, "bound": None}


def attribute_notes(key: str, attributes: Attributes | None) -> dict[str, str]:
    """Return why attributes have no value."""
    if attributes is None:
        return {f"taps.{key}.attributes": SEVERAL}
    told = ("right", "low", "high", "null")
    absent = [f"{name}.{field}" for name, found in attributes.items() for field in told if found[field] is None]
    return {f"taps.{key}.attributes.{field}": RANKINGS["attribute"].absent for field in absent}


def attribute_bounds(attributes: Attributes | None, seen: Seen | None) -> Attributes | None:
    """Return the attributes with what any attack can get of each at most: gamma(kappa), kappa the best constant guess.

    Args:
        seen: What was shown of one record; None where nothing bounds it.
    """
    if not attributes or seen is None:
        return attributes
    bounds = dict.fromkeys(attributes, None) | {
        name: float(seen.robustness([RANKINGS["attribute"].kappa(found)])[0])
        for name, found in attributes.items()
        if found["null"] is not None
    }
    return {name: {**found, "bound": bounds[name]} for name, found in attributes.items()}
