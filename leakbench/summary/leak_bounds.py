"""Bounds for each measurement of a leakage point: the most that the observed noise allows any attack."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pandas as pd

from leakbench.limits.guards import Guard
from leakbench.measure.statistics import exact_low
from leakbench.privacy.bounds import Seen
from leakbench.summary.bound import BOUNDS

__all__ = ["bounded", "violations"]


def bounded(tap: Mapping[str, Any], group: pd.DataFrame, guard: Guard) -> tuple[dict[str, Any], dict[str, str]]:
    """Return (the bounds on a leakage point's measurements and what they rest on, {field: why it is None}).

    tap: its measurements; group: its rows.  An answer of M guesses is matched to M examples, so that each has M chances
    to be hit; of identification there is one answer, and of the ranked classes one, which no granted label helps (`BOUNDS`).
    member_tpr starts from the false positive rate. It is held against the release without the unit (zero-out), as identification
    is: what was released tells nothing then of the victim, who ranks among the non-members as any of them does, so that at most
    1 % are found. A test of two full batches that differ by substitution has twice the shift and so a looser bound.
    """
    fields = [bound.field for bound in BOUNDS]
    absent = {**dict.fromkeys(fields), "null_label": guard.commonest, "seen": None}
    if guard.sigma is None:
        return absent, dict.fromkeys(fields, guard.reason)
    releases = 1 if guard.unit == "client" else int(group.groupby(["victim", "example"]).size().max())
    seen = Seen(guard.sigma, guard.views * releases, guard.before)
    measured = {**tap, "null_label": guard.commonest}
    try:
        gammas = seen.robustness([bound.kappa(measured) for bound in BOUNDS]).tolist()
    except (ArithmeticError, MemoryError, ValueError):
        return absent, dict.fromkeys(fields, "none: the privacy losses span more than can be held")
    found = {**absent, **dict(zip(fields, gammas, strict=True)), "seen": dataclasses.asdict(seen)}
    reasons = dict.fromkeys((field for field in fields if field != "asr_bound"), guard.related) if guard.related else {}
    if guard.labels_given:
        reasons["label_bound"] = "none: the labels were granted to the attacker, not inferred"
    return {**found, **dict.fromkeys(reasons)}, reasons


def violations(
    name: str, tap: Mapping[str, Any], group: pd.DataFrame, confidence: float = 0.95
) -> list[dict[str, Any]]:
    """Return the measurements of a leakage point that are significantly above their bounds: a wrong guarantee, or a bug.

    Each with its value and the exact lower limit (`exact_low`, of so much confidence) that lies above the bound.
    """
    found = []
    for held in BOUNDS:
        value, bound = tap[held.measure], tap[held.field]
        if value is None or bound is None:
            continue
        outcome, cluster = held.outcomes(group)
        low = exact_low(outcome.to_numpy(dtype=float), cluster.to_numpy(), confidence)
        if low > bound:
            found.append({"tap": name, "measure": held.measure, "value": value, "low": low, "bound": bound})
    return found
