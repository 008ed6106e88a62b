"""What no attack at a leakage point can do better than, put beside what was measured there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from leakbench.cell import Cell, looks_at
from leakbench.federated.partition import Partition
from leakbench.privacy.bounds import Seen
from leakbench.run.victims import Sent
from leakbench.summary.attributes import attribute_bounds, attribute_violations
from leakbench.summary.bound import BOUNDS
from leakbench.summary.leak_bounds import Guard, bounded, guards, together, violations
from leakbench.summary.leak_floor import Floor, floor

__all__ = ["Limits", "leak_key", "limited", "limits_of"]


@dataclass(frozen=True)
class Limits:
    """Of one leakage point at one round: the noise that bounds its success rates, and the floor of its RMSE."""

    guard: Guard
    floor: Floor


def leak_key(cell: Cell, tap: str, round_number: int) -> str:
    """Return the name of a leakage point in the summary: with its round, or rounds, where several may leak."""
    s = cell.settings
    if s.join_rounds:
        return f"{tap}@{'+'.join(map(str, s.leak_rounds))}"
    return f"{tap}@{round_number}" if s.protocol == "live" else tap


def limits_of(
    cell: Cell, sent: Callable[[int], Sent], partition: Partition, largest: dict[str, int] | None
) -> dict[str, Limits]:
    """Return {name of a leakage point: its limits}; depends on the cell alone, so that a resumed run finds the same.

    sent: {round: what the server sent then}.  largest: what the run counted (`Schedule.largest`).
    """
    found = {}
    for rounds in cell.settings.leaks:
        networks = {number: sent(number) for number in rounds}
        each = [guards(cell, networks[number].network, number, partition, largest) for number in rounds]
        for tap in cell.settings.taps:
            if len(rounds) == 1:
                lowest = floor(cell, networks[rounds[0]], tap, rounds[0], partition)
            else:
                lowest = Floor(None, None, "none: it is worked out for one view, not for several together")
            guard = together([several[tap] for several in each], looks_at(cell, tap))
            found[leak_key(cell, tap, rounds[-1])] = Limits(guard, lowest)
    return found


def limited(
    name: str, tap: dict[str, Any], group: pd.DataFrame, limits: Limits, points: int = 1
) -> tuple[dict[str, Any], dict[str, str], list[dict[str, Any]]]:
    """Return (a leakage point's measurements and limits, notes on these, the measurements above their bounds).

    tap: the measurements; group: their rows.  points: the run's leakage points. All measurements that are held against a bound
    at any of them share one chance of 5 % to be called above it by luck (Bonferroni).
    """
    bounds, absent = bounded(tap, group, limits.guard)
    found = {**tap, **bounds, "rmse_floor": limits.floor.rmse, "rmse_floor_unbiased": limits.floor.unbiased}
    if bounds["identified_bound"] is not None:
        seen = Seen(bounds["seen"]["sigma"], bounds["seen"]["releases"], limits.guard.before)
        found["attributes"] = attribute_bounds(tap["attributes"], seen)
    notes = {f"taps.{name}.{field}": reason for field, reason in absent.items()}
    if "identified_bound" in absent:
        why = absent["identified_bound"]
        notes |= {f"taps.{name}.attributes.{attribute}.bound": why for attribute in tap.get("attributes") or {}}
    notes |= {f"taps.{name}.{field}": limits.floor.note for field in ("rmse_floor", "rmse_floor_unbiased")}
    if bounds["seen"] is None:
        notes[f"taps.{name}.seen"] = limits.guard.reason
    if bounds["seen"] is not None and tap["batch"] > 1:
        whose = "client, given the other clients" if limits.guard.unit == "client" else "example, given the others"
        notes[f"taps.{name}.bounds"] = (
            f"of one {whose} behind the update; each of the {tap['batch']} guesses at a batch is a chance, so that what the "
            "bound starts from (kappa, how often an attacker is right without the leak) is that many times the rate of one"
        )
    confidence = 1 - 0.05 / (points * (len(BOUNDS) + len(tap.get("attributes") or {})))
    broken = violations(name, found, group, confidence) + attribute_violations(name, found, group, confidence)
    return found, notes, broken
