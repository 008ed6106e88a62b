"""The verdicts of a run, each with its reason, what it excludes, what is guaranteed, and the command that would decide it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leakbench.summary.guaranteed import CANDIDATES, LIMIT
from leakbench.summary.verdict_words import FAILED, IDENTIFIES, INCONCLUSIVE, NO_LEAK, RECONSTRUCTS

__all__ = ["STYLES", "Said", "verdicts"]

STYLES = {
    RECONSTRUCTS: "bold red",
    IDENTIFIES: "bold dark_orange",
    NO_LEAK: "bold green",
    INCONCLUSIVE: "bold yellow",
    FAILED: "bold bright_black",
}
"""{verdict: its style on a terminal}. The word is always printed too."""

RATES = {
    "excluded_asr": "reconstruct",
    "excluded_identified": "identify",
    "excluded_recognised": "give a recognisable reconstruction of",
}
"""{field of a leakage point: what its attacker may still do to its victims}."""


@dataclass(frozen=True)
class Said:
    """A verdict that several leakage points share: where, the word, why, and sentences about what follows from it.

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
    """Return which rates are not excluded, rounded up to whole percents."""
    rates = [
        f"{what} up to {min(100, math.ceil(100 * tap[field]))} %"
        for field, what in RATES.items()
        if tap.get(field) is not None
    ]
    return f"This attacker could still {' and '.join(rates)} of victims (95 % confidence)." if rates else ""


def _guaranteed(tap: Mapping[str, Any]) -> str:
    bound = tap.get("guaranteed")
    if bound is None:
        return ""
    return (
        f"Guaranteed by the valid epsilon of what leaked: no attacker identifies more than {bound:.3g} of victims among "
        f"{CANDIDATES:,} candidates (called a guarantee up to {LIMIT:g})."
    )
