"""The attributes of a table in a leakage point's summary: how many are told right, beside what any attack can get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from leakbench.measure.rankings import RANKINGS
from leakbench.measure.statistics import exact_low, shared
from leakbench.privacy.bounds import Seen

__all__ = ["Attributes", "attribute_bounds", "attribute_fields", "attribute_notes", "attribute_violations"]

COLUMN = "attribute_"
"""How the rows name an attribute's column."""

SEVERAL = "the update is of several records; attributes are ranked for one"

Attributes: TypeAlias = dict[str, dict[str, float | None]]
"""{category: {`right`, `low`, `high`, `null`, `bound`}}."""


def attribute_fields(group: pd.DataFrame) -> Attributes | None:
    """Return the share of victims whose value comes first among those who have one, with Wilson's interval.

    Beside it that of the best constant guess. None behind a batch, {} for a set without categories.
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
    network = group.loc[right.index].get("network")
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

    seen: what was shown of one record; None where nothing bounds it.
    """
    if not attributes or seen is None:
        return attributes
    bounds = dict.fromkeys(attributes, None) | {
        name: float(seen.robustness([RANKINGS["attribute"].kappa(found)])[0])
        for name, found in attributes.items()
        if found["null"] is not None
    }
    return {name: {**found, "bound": bounds[name]} for name, found in attributes.items()}


def attribute_violations(
    name: str, tap: Mapping[str, Any], group: pd.DataFrame, confidence: float = 0.95
) -> list[dict[str, Any]]:
    """Return the attributes told right significantly more often than their bounds allow, as `leak_bounds.violations` does."""
    broken = []
    for attribute, found in (tap["attributes"] or {}).items():
        told = group.dropna(subset=[f"{COLUMN}{attribute}"])
        low = exact_low(told[f"{COLUMN}{attribute}"].to_numpy(dtype=float), told["victim"].to_numpy(), confidence)
        if found["bound"] is not None and low > found["bound"]:
            measured = {"measure": f"attribute {attribute}", "value": found["right"], "low": low}
            broken.append({"tap": name, **measured, "bound": found["bound"]})
    return broken
