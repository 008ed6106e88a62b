"""The anytime curve: how much of its success an attack had after so many iterations and gradient evaluations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

__all__ = ["POINTS", "anytime"]

POINTS = 40
"""How many points a curve has at most."""


def anytime(group: pd.DataFrame) -> dict[str, Any]:
    """Return {`iterations`, `evaluations`: {`at`: [...], `asr`: [...]}} of one leakage point's rows.

    An answer counts from the first kept iteration (each of the first 40, then 10 % apart) on from which the attacker's best guess
    by its own distance was within eta and stayed there, so that the curve ends at the ASR.
    """
    each = group.drop_duplicates("victim")
    ends = {name: float(each[name].max()) for name in ("iterations", "evaluations")}
    return {name: _curve(group[f"{name}_to_success"], end) for name, end in ends.items()}


def _curve(reached: pd.Series, most: float) -> dict[str, list[float]]:
    found = np.sort(reached.dropna().to_numpy(dtype=float))
    at = np.unique(np.append(found, most))
    if len(at) > POINTS:
        at = at[np.linspace(0, len(at) - 1, POINTS).round().astype(int)]
    share = np.searchsorted(found, at, side="right") / len(reached)
    return {"at": at.tolist(), "asr": share.tolist()}
