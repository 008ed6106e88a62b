"""Bounds on every attack, and measurements above them: lines that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakbench.core.leakage_points import listed, point_name
from leakbench.measure.rates import VERBATIM as VERBATIM_RATE
from leakbench.privacy.bounds import Seen
from leakbench.privacy.mechanism import Mechanism, Mixture
from leakbench.report.words import interval
from leakbench.storage.summary import Summary, Tap
from leakbench.summary.limits import BOUNDS, VERBATIM

__all__ = ["bounds", "seen_at", "violations"]

NOTHING = 0.995
"""A bound from which on it is printed as 1.00, and says nothing."""

WHO_KNOWS_LITTLE = "for an attacker that knows only the deviation of such examples' values"
"""The floor is for an attacker that does not know, for example, how neighbouring pixels correlate."""

BROKEN = "the guarantee does not hold, or a bug is here"

SURPASSED = (
    "above the limit of a malicious server: leakbench has a bug, or the attacker knows more of the examples than the"
    " reference"
)


def bounds(summary: Summary) -> list[str]:
    """Return a line for each set of leakage points with the same bounds; reasons given with the epsilon are not repeated."""
    epsilon = summary.epsilon
    said = {epsilon.reason, *(tap.reason for tap in (epsilon.by_tap or {}).values())}
    lines: dict[str, list[str]] = {}
    for name, tap in summary.taps.items():
        for text in (*_by_construction(summary, tap), *_texts(name, tap, summary.notes, said)):
            lines.setdefault(text, []).append(point_name(name))
    return [f"{listed(names)}: {text}" for text, names in lines.items()]


def _texts(name: str, tap: Tap, notes: Mapping[str, str], said: set[str | None]) -> list[str]:
    limits = {bound.said: limit for bound in BOUNDS if (limit := tap.value(bound.field)) is not None}
    found = [f"{what} {_share(limit)}" for what, limit in limits.items() if limit < NOTHING]
    open_to_all = [what for what, limit in limits.items() if limit >= NOTHING]
    texts = [f"at most {', '.join(found)} by the valid epsilon of what was seen"] if found else []
    if open_to_all:
        texts.append(f"{', '.join(open_to_all)} not limited by the valid epsilon of what was seen (bound 1.00)")
    missing: dict[str, list[str]] = {}
    for bound in BOUNDS:
        reason = notes.get(f"taps.{name}.{bound.field}")
        if tap.value(bound.field) is None and reason and reason not in said:
            missing.setdefault(reason, []).append(bound.said)
    texts += [f"no bound on {', '.join(whats)}: {reason.removeprefix('none: ')}" for reason, whats in missing.items()]
    null = tap.null_rmse
    if tap.rmse_floor is not None and null is not None and null < tap.rmse_floor:
        texts.append(f"no floor of RMSE that says anything: a guess without any gradient has {null:.4f}")
    elif tap.rmse_floor is not None:
        texts.append(
            f"RMSE at least {tap.rmse_floor:.4f} on average (the table has the median) by Fisher information, {WHO_KNOWS_LITTLE}"
        )
    return texts + _references(tap)


def _by_construction(summary: Summary, tap: Tap) -> list[str]:
    """Return the limit of the ASR under a fishing server, which isolates one example of a batch."""
    if summary.fished is None or not tap.batch > 1:
        return []
    return [f"ASR at most 1 / {tap.batch} by construction: one example of a batch is isolated"]


def _references(tap: Tap) -> list[str]:
    """Return the expected values of a malicious server, and its results."""
    texts = []
    if tap.alone_expected is not None:
        texts.append(
            f"{_share(tap.alone_expected)} of the examples are expected to be alone in their bin; verbatim (RMSE <="
            f" {VERBATIM:g}) {interval(tap, VERBATIM_RATE.name)}"
        )
    if tap.asr_ideal is not None and tap.rmse_ideal is not None:
        texts.append(
            "the ideal server, which has a whole clipped gradient in one row, expects, by a Gaussian of public examples, ASR"
            f" {_share(tap.asr_ideal)}, RMSE {tap.rmse_ideal:.4f}"
        )
    return texts


def _share(value: float | None) -> str:
    value = value or 0.0
    return f"{value:.2f}" if value >= 0.0995 or value == 0 else f"{value:.2g}"


def violations(summary: Summary) -> list[str]:
    """Return a line for each measurement that is significantly above its bound."""
    names = {bound.measure: bound.name for bound in BOUNDS}
    return [
        f"error: {point_name(found.tap)}: {names.get(found.measure, found.measure)} {_share(found.value)} "
        f"(at least {_share(found.low)}, with 95 % confidence in all bounds of the run) is above its "
        f"{'reference' if found.reference else 'bound'} {_share(found.bound)}: "
        f"{SURPASSED if found.reference else BROKEN}"
        for found in summary.violations
    ]


def seen_at(summary: Summary) -> dict[str, Seen]:
    """Return {leakage point: what was seen there of one unit} for the points that have a bound."""
    found = {}
    for name, tap in summary.taps.items():
        if seen := tap.seen:
            before = tuple(_mechanism(fields) for fields in seen["before"])
            found[name] = Seen(seen["sigma"], seen["releases"], before)
    return found


def _mechanism(fields: Mapping[str, Any]) -> Mechanism | Mixture:
    if "mechanisms" not in fields:
        return Mechanism(**fields)
    return Mixture(**{**fields, "mechanisms": tuple(Mechanism(**inner) for inner in fields["mechanisms"])})
