"""The verdicts of a run, each with its reason, what it excludes, what is guaranteed, and the command that would decide it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leakbench.summary.limits import CANDIDATES, LIMIT
from leakbench.summary.verdict_words import INCONCLUSIVE

__all__ = ["Said", "verdicts"]

RATES = {
    "excluded_asr": "reconstructed",
    "excluded_identified": "identified",
    "excluded_recognised": "recognisable",
}
"""{field of a leakage point: what the share of victims is that the field limits}."""


@dataclass(frozen=True)
class Said:
    """A verdict that several leakage points share: where, the word, why, and sentences about what follows from it.

    Args:
        command: The run that would decide; empty where there is none.
    """

    places: tuple[str, ...]
    word: str
    reason: str
    sentences: tuple[str, ...]
    command: str


def verdicts(summary: Mapping[str, Any]) -> list[Said]:
    """Return the verdicts of a summary; leakage points that share everything are together."""
    grouped: dict[tuple[str, str, tuple[str, ...], str], list[str]] = {}
    for name, tap in summary["taps"].items():
        sentences = tuple(filter(None, (_excluded(tap), _guaranteed(tap))))
        word, reason, command = (tap.get(f"verdict{end}") or "" for end in ("", "_reason", "_command"))
        grouped.setdefault((word or INCONCLUSIVE, reason, sentences, command), []).append(name)
    return [
        Said(tuple(places), word, reason, sentences, command)
        for (word, reason, sentences, command), places in grouped.items()
    ]


def _excluded(tap: Mapping[str, Any]) -> str:
    """Return up to which rates the evidence excludes nothing, in whole percents, rounded up.

    The limits are of the measurement alone: a bound by a valid epsilon may be lower, and has a sentence of its own.
    """
    rates = [
        f"{min(100, math.ceil(100 * tap[field]))} % {what}"
        for field, what in RATES.items()
        if tap.get(field) is not None
    ]
    if not rates:
        return ""
    *others, last = rates
    listed = f"{', '.join(others)} and {last}" if others else last
    victims, networks = tap["victims"], tap.get("networks", 1)
    evidence = f"{victims} victim{'' if victims == 1 else 's'}"
    # Where all networks show the same, no variance between them enters the limit.
    alike = f", if other networks leak as these {networks} do" if networks > 1 else ""
    return f"Evidence from {evidence} alone does not exclude rates of up to {listed} (one-sided limits, 95 % confidence{alike})."


def _guaranteed(tap: Mapping[str, Any]) -> str:
    bound = tap.get("guaranteed")
    if bound is None:
        return ""
    return (
        f"Guaranteed by the valid epsilon of the leak: no attacker identifies more than {bound:.3g} of victims among "
        f"{CANDIDATES:,} candidates (called a guarantee up to {LIMIT:g})."
    )
