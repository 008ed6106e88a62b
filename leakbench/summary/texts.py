"""The fields of a leakage point's summary that only texts have."""

from __future__ import annotations

import pandas as pd

from leakbench.measure.measures import EDIT_DISTANCE, RMSE, Measure
from leakbench.measure.metrics import NO_PIXELS
from leakbench.measure.rates import OF_TEXTS, VERBATIM
from leakbench.measure.statistics import mean_interval, proportion
from leakbench.scoring.scores import RANKS_ONLY
from leakbench.scoring.scores_texts import NEAREST
from leakbench.storage.summary import Tap

__all__ = ["distance_of", "text_fields", "text_notes"]

GUESSES = (EDIT_DISTANCE.baseline, *(rate.baseline for rate in OF_TEXTS), *NEAREST)
MEASURED = (EDIT_DISTANCE.name, *(field for rate in OF_TEXTS for field in rate.ends))


def distance_of(tap: Tap) -> Measure:
    """Return the distance that decides about success at a leakage point: of texts the edit distance, else the RMSE."""
    return RMSE if tap.null_edit_distance is None else EDIT_DISTANCE


def text_fields(group: pd.DataFrame) -> dict[str, float | None]:
    """Return the measurements of a leakage point's rows; no field without texts.

    Rates are means over the rows, with an interval; a failed example counts as 0. The edit distance is a median, in which a failed
    example counts as the worst. For an attack that only ranks, only the guesses have a value.
    """
    if EDIT_DISTANCE.name not in group:
        return {}
    found: dict[str, float | None] = dict.fromkeys((*MEASURED, *GUESSES))
    medians = (EDIT_DISTANCE.baseline, NEAREST[0])
    found |= {name: float(group[name].median() if name in medians else group[name].mean()) for name in GUESSES}
    if (group["failure_reason"] == RANKS_ONLY).all():
        return found
    batch, network = group["batch"], group["network"]
    of_batch = group.groupby("batch")["network"].first()
    for rate in OF_TEXTS:
        values = group[rate.column].fillna(0.0)
        if rate.counted:
            ends = proportion(values.to_numpy(), batch.to_numpy(), network=network)
        else:
            ends = mean_interval(values.groupby(batch).mean(), network=of_batch)
        found |= dict(zip(rate.ends, ends, strict=True))
    return {**found, EDIT_DISTANCE.name: float(group[EDIT_DISTANCE.name].fillna(1.0).median())}


def text_notes(key: str, tap: Tap) -> dict[str, str]:
    """Return the reasons for the missing fields of texts: tokens have no pixels, and a ranking gives no sentence."""
    if tap.null_edit_distance is None:
        return {}
    pixels = {f"taps.{key}.{name}": NO_PIXELS for name in (RMSE.baseline, VERBATIM.name)}
    named = (EDIT_DISTANCE.name, *(rate.name for rate in OF_TEXTS), *GUESSES)
    return pixels | {f"taps.{key}.{name}": RANKS_ONLY for name in named if tap.value(name) is None}
