"""Made-up rows of attacked examples: every column that a run of pictures or records writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from leakbench.measure.measures import MEASURES
from leakbench.measure.rates import RECOGNISED
from leakbench.measure.recognised import RECOGNISED_COLUMNS
from leakbench.scoring.rankings import ONE_EACH
from leakbench.scoring.scores import COLUMNS

__all__ = ["make_rows"]

NOTHING: dict[str, Any] = {
    **{"tap": "type-1", "round": 0, "label": 0, "label_guess": 1, "failure": False, "failure_reason": "", "doubts": ""},
    **{"rmse": 0.5, "psnr": 10.0, "ssim": 0.1, "success": False, "eta": 0.1, "null_rmse": 0.4, "null_success": False},
    **{"candidates": 1000, "iterations": 9, "evaluations": 9},
}
"""{column: its value} of an attack that finds nothing: farther from the truth than the baseline guess, with a wrong label."""


def make_rows(victims: int = 100, members: int = 1, networks: int = 1, **columns: Any) -> pd.DataFrame:
    """Return the rows of an attack that finds nothing, one for each example.

    Args:
        victims: Number of victims, each in a batch of its own.
        members: Number of examples of each batch.
        networks: Number of networks, which victims are spread over in turn.
        **columns: Columns with other values: one for all rows, or one for each.
    """
    victim, member = np.repeat(np.arange(victims), members), np.tile(np.arange(members), victims)
    places = {"victim": victim, "batch": victim, "member": member, "network": victim % networks}
    ranked = dict.fromkeys(ONE_EACH, np.where(member == 0, 0.0, np.nan))
    known = {**NOTHING, **places, "example": np.arange(victims * members), **ranked}
    # A measure that is not computed, and a search that did not succeed, have no number.
    plain = {name: known.get(name, np.nan) for name in (*COLUMNS, *(measure.name for measure in MEASURES))}
    if RECOGNISED.column in columns:
        plain |= {**dict.fromkeys(RECOGNISED_COLUMNS, 0.0), "gallery": 1000}
    return pd.DataFrame({**plain, **columns})
