"""Limits on every attack at a leakage point, with the measurements."""

from __future__ import annotations

from typing import Any

import pandas as pd

from leakbench.limits.limits import Limits
from leakbench.privacy.bounds import Seen
from leakbench.summary.attributes import attribute_bounds, attribute_violations
from leakbench.summary.bound import BOUNDS
from leakbench.summary.leak_bounds import bounded, violations
from leakbench.summary.references import REFERENCES, references, surpassed

__all__ = ["limited"]


def limited(
    name: str, tap: dict[str, Any], group: pd.DataFrame, limits: Limits, points: int = 1
) -> tuple[dict[str, Any], dict[str, str], list[dict[str, Any]]]:
    """Return (a leakage point's measurements and limits, notes on these, the measurements above their bounds).

    tap: the measurements; group: their rows.  points: the run's leakage points. All measurements that are held against a bound
    at any of them share one chance of 5 % to be called above it by luck (Bonferroni).
    """
    bounds, absent = bounded(tap, group, limits.guard)
    found = {**tap, **bounds, "rmse_floor": limits.floor.rmse, "rmse_floor_unbiased": limits.floor.unbiased}
    expected, unexpected = references(name, tap, limits.reference)
    found |= expected
    if bounds["identified_bound"] is not None:
        seen = Seen(bounds["seen"]["sigma"], bounds["seen"]["releases"], limits.guard.before)
        found["attributes"] = attribute_bounds(tap["attributes"], seen)
    notes = {f"taps.{name}.{field}": reason for field, reason in absent.items()}
    if "identified_bound" in absent:
        why = absent["identified_bound"]
        notes |= {f"taps.{name}.attributes.{attribute}.bound": why for attribute in tap.get("attributes") or {}}
    notes |= unexpected
    notes |= {f"taps.{name}.{field}": limits.floor.note for field in ("rmse_floor", "rmse_floor_unbiased")}
    if bounds["seen"] is None:
        notes[f"taps.{name}.seen"] = limits.guard.reason
    if bounds["seen"] is not None and tap["batch"] > 1:
        whose = "client, given the other clients" if limits.guard.unit == "client" else "example, given the others"
        notes[f"taps.{name}.bounds"] = (
            f"of one {whose} behind the update; each of the {tap['batch']} guesses at a batch is a chance, so that what the "
            "bound starts from (kappa, how often an attacker is right without the leak) is that many times the rate of one"
        )
    confidence = 1 - 0.05 / (points * (len(BOUNDS) + len(REFERENCES) + len(tap.get("attributes") or {})))
    broken = violations(name, found, group, confidence) + attribute_violations(name, found, group, confidence)
    broken += surpassed(name, found, group, confidence)
    return found, notes, broken
