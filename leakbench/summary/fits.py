"""The fields of a leakage point's summary that only attackers that learn have."""

from __future__ import annotations

from typing import Any

import pandas as pd

__all__ = ["LEARNS_NOTHING", "fit_fields", "fit_notes"]

LEARNS_NOTHING = "the attack learns nothing before it answers"

FIELDS = ("fit_seconds", "fit_public")


def fit_fields(group: pd.DataFrame) -> dict[str, float | int | None]:
    """Return what was learned for a leakage point: the seconds when it was learned, and from how many public examples.

    Where some victims needed less of it (a worst case of several attacks), the most that any of them needed; None where nothing was
    learned.
    """
    if FIELDS[0] not in group or group["fit_public"].isna().all():
        return dict.fromkeys(FIELDS)
    return {"fit_seconds": round(float(group["fit_seconds"].max()), 2), "fit_public": int(group["fit_public"].max())}


def fit_notes(key: str, tap: dict[str, Any]) -> dict[str, str]:
    """Return why they are None."""
    return {f"taps.{key}.{name}": LEARNS_NOTHING for name in FIELDS if tap[name] is None}
