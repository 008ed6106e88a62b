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

    feature_accuracy: with the interval of its mean over batches.  record_match: with Wilson's, by batch.  random_..., null_...:
    the same for a draw from the public marginals and for the null attacker. An attack that ranks has none of its own.
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
            group[RECORDS.column].fillna(0.0).to_numpy(), group["batch"].to_numpy(), network=group.get("network")
        )
        found |= dict(zip(RECORDS.ends, share, strict=True))
    return found | {name: float(group[name].mean()) for name in names}


def comes_back(group: pd.DataFrame) -> bool:
    """Return whether features or whole records come back above both the random and the null guess; False for pictures.

    features: Student's 95 % interval, over batches, of the accuracy less either guess's lies above 0.
    records: by the rule of the ASR, that the interval of record_match lies above either guess's share, and the interval of
    the null attacker's share below record_match. A failed example counts as 0.
    """
    if TABLE_COLUMNS[0] not in group or (group["failure_reason"] == RANKS_ONLY).all():
        return False
    batch = group["batch"].to_numpy()
    accuracy, match = (group[name].fillna(0.0) for name in MEASURED)
    above = [(accuracy - group[f"{who}_{FEATURES.name}"]).groupby(batch).mean() for who in GUESSES]
    network = _network_of(group)
    if len(above[0]) > 1 and all(difference_interval(gain, network=network)[1] > 0 for gain in above):
        return True
    share, low, _ = proportion(match.to_numpy(), batch, network=group.get("network"))
    guessed = max(float(group[f"{who}_{RECORDS.name}"].mean()) for who in GUESSES)
    return low > guessed and share > proportion(group[RECORDS.baseline].to_numpy(), batch)[2]


def table_notes(key: str, tap: Tap) -> dict[str, str]:
    """Return why fields of a leakage point are None: pictures have no features, and a ranking answers no record."""
    reason = NO_FEATURES if tap.random_feature_accuracy is None else RANKS_ONLY
    return {f"taps.{key}.{name}": reason for name in TABLE_COLUMNS if tap.value(name) is None}


def _network_of(group: pd.DataFrame) -> pd.Series | None:
    """Return the network of each batch, in the order of the batches; None for one network."""
    return group.groupby("batch")["network"].first() if "network" in group else None
