"""The fields of a leakage point's summary that only tables have."""

from __future__ import annotations

import pandas as pd

from leakbench.measure.metrics_tables import NO_FEATURES
from leakbench.measure.rates import FEATURES, RECORDS
from leakbench.measure.statistics import difference_interval, mean_interval, proportion
from leakbench.scoring.scores import RANKS_ONLY
from leakbench.scoring.scores_tables import TABLE_COLUMNS
from leakbench.storage.summary import Tap

__all__ = ["comes_back", "table_fields", "table_notes"]

MEASURED = (FEATURES.name, RECORDS.name)
GUESSES = ("random", "null")


def table_fields(group: pd.DataFrame) -> dict[str, float | None]:
    """Return the means over a leakage point's rows, a failed example counting as 0; all None for pictures.

    feature_accuracy: with the interval of its mean over batches. record_match: with Wilson's interval, by batch. random_...,
    null_...: the same means for a draw from the public marginals and for the baseline guess. For an attack that only ranks, the
    first two have no value.
    """
    names = [n for n in TABLE_COLUMNS if n not in MEASURED]
    bounds = [f"{name}_{end}" for name in MEASURED for end in ("low", "high")]
    if TABLE_COLUMNS[0] not in group:
        return dict.fromkeys([*MEASURED, *bounds, *names])
    found: dict[str, float | None] = dict.fromkeys([*MEASURED, *bounds])
    if not (group["failure_reason"] == RANKS_ONLY).all():
        accuracy = group[FEATURES.column].fillna(0.0)
        by_batch = accuracy.groupby(group["batch"]).mean()
        mean = mean_interval(by_batch, network=_network_of(group))
        found |= dict(zip(FEATURES.ends, mean, strict=True))
        share = proportion(
            group[RECORDS.column].fillna(0.0).to_numpy(), group["batch"].to_numpy(), network=group["network"]
        )
        found |= dict(zip(RECORDS.ends, share, strict=True))
    return found | {name: float(group[name].mean()) for name in names}


def comes_back(group: pd.DataFrame) -> bool:
    """Return whether features or whole records are reconstructed above both the random and the baseline guess; False for images.

    features: For each of the two guesses, Student's 95 % interval, over batches, of the accuracy minus the guess's is above 0.
    records: By the rule of the ASR, the interval of record_match is above the share of each guess, and the interval of the
    baseline guess's share is below record_match. A failed example counts as 0.
    """
    if TABLE_COLUMNS[0] not in group or (group["failure_reason"] == RANKS_ONLY).all():
        return False
    batch = group["batch"].to_numpy()
    accuracy, match = (group[name].fillna(0.0) for name in MEASURED)
    above = [(accuracy - group[f"{who}_{FEATURES.name}"]).groupby(batch).mean() for who in GUESSES]
    network = _network_of(group)
    if len(above[0]) > 1 and all(difference_interval(gain, network=network)[1] > 0 for gain in above):
        return True
    share, low, _ = proportion(match.to_numpy(), batch, network=group["network"])
    guessed = max(float(group[f"{who}_{RECORDS.name}"].mean()) for who in GUESSES)
    return low > guessed and share > proportion(group[RECORDS.baseline].to_numpy(), batch)[2]


def table_notes(key: str, tap: Tap) -> dict[str, str]:
    """Return the reasons for the missing fields of a leakage point: images have no features, and a ranking gives no record."""
    reason = NO_FEATURES if tap.random_feature_accuracy is None else RANKS_ONLY
    return {f"taps.{key}.{name}": reason for name in TABLE_COLUMNS if tap.value(name) is None}


def _network_of(group: pd.DataFrame) -> pd.Series:
    """Return the network of each batch, in the order of the batches."""
    return group.groupby("batch")["network"].first()
