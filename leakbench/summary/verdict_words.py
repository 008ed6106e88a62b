"""The words of a verdict, and what the words of earlier versions mean on this scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = [
    "FAILED",
    "FORMER",
    "IDENTIFIES",
    "INCONCLUSIVE",
    "LEAKING",
    "NO_LEAK",
    "RANKED_ONLY",
    "RECONSTRUCTS",
    "VERDICTS",
    "current_summary",
    "current_word",
    "resilient",
    "verdicts_of",
]

RECONSTRUCTS = "reconstructs"
IDENTIFIES = "identifies"
NO_LEAK = "no leak found"
INCONCLUSIVE = "inconclusive"
FAILED = "attack failed"

VERDICTS = (RECONSTRUCTS, IDENTIFIES, INCONCLUSIVE, FAILED, NO_LEAK)
"""All of them, from the strongest evidence of a leak to the strongest evidence against one."""

LEAKING = (RECONSTRUCTS, IDENTIFIES)
"""Verdicts that state a significant leak."""

RANKED_ONLY = "no reconstruction"
"""The word of earlier versions for an attack that only ranks, whether it identified or not."""

FORMER = {
    "leaks": RECONSTRUCTS,
    "protected": INCONCLUSIVE,
    "unclear": INCONCLUSIVE,
    RANKED_ONLY: INCONCLUSIVE,
}
"""{word of an earlier version: word of this scale}. Earlier versions measured one network and few victims, so that none of their
words is `no leak found`."""

FORMER_REASON = "measured by an earlier version, which asked for less evidence"


def current_word(word: str) -> str:
    """Return a verdict of this or an earlier version as a word of this scale."""
    return FORMER.get(word, word)


def current_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a run with verdicts of this scale; the same object where nothing changes."""
    taps: Mapping[str, Mapping[str, Any]] = summary.get("taps", {})
    if not any(tap.get("verdict") in FORMER for tap in taps.values()):
        return summary
    return {**summary, "taps": {name: _current_tap(tap) for name, tap in taps.items()}}


def _current_tap(tap: Mapping[str, Any]) -> dict[str, Any]:
    if tap.get("verdict") not in FORMER:
        return dict(tap)
    return {**tap, "verdict": FORMER[tap["verdict"]], "verdict_reason": FORMER_REASON}


def verdicts_of(summary: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    """Return {(leakage point, round): its verdict} of a summary, in words of this scale; a point without one is left out."""
    points = ((name.partition("@")[0], tap) for name, tap in summary.get("taps", {}).items())
    return {(name, int(tap["round"])): current_word(tap["verdict"]) for name, tap in points if "verdict" in tap}


def resilient(word: str) -> float:
    """Return 1 where no leak was found, 0 where there is one, NaN where the evidence decides neither."""
    return {NO_LEAK: 1.0, RECONSTRUCTS: 0.0, IDENTIFIES: 0.0}.get(word, math.nan)
