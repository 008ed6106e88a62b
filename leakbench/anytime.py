"""The anytime curve: how much of its success an attack had after so many iterations, gradient evaluations and seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

__all__ = ["POINTS", "anytime"]

POINTS = 40
"""How many points a curve has at most."""


def anytime(group: pd.DataFrame, seconds: float) -> dict[str, Any]:
    """Return {`iterations`, `evaluations`: {`at`, `asr`: [...]}} of one leakage point and, of a search, `seconds_per_evaluation`.

    group: its rows.  seconds: what attacking its victims took altogether. An answer counts from the first kept iteration on at
    which the attacker's best guess by its own distance was within eta: each of the first 40, then 10 % apart. Seconds are those of
    all victims together over all their evaluations: what one costs where so many stand side by side.
    """
    each = group.drop_duplicates("victim")
    found: dict[str, Any] = {
        name: _curve(group[f"{name}_to_success"], float(each[name].max())) for name in ("iterations", "evaluations")
    }
    if total := float(each["evaluations"].sum()):
        found["seconds_per_evaluation"] = seconds / total
    return found


def _curve(reached: pd.Series, most: float) -> dict[str, list[float]]:
    found = np.sort(reached.dropna().to_numpy(dtype=float))
    at = np.unique(np.append(found, most))
    if len(at) > POINTS:
        at = at[np.linspace(0, len(at) - 1, POINTS).round().astype(int)]
    share = np.searchsorted(found, at, side="right") / len(reached)
    return {"at": at.tolist(), "asr": share.tolist()}
