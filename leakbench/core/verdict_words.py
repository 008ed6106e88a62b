"""The words of a verdict, and what the words of earlier versions mean on this scale."""

from __future__ import annotations

import math

__all__ = [
    "FAILED",
    "FORMER",
    "FORMER_REASON",
    "IDENTIFIES",
    "INCONCLUSIVE",
    "LEAKING",
    "NO_LEAK",
    "RANKED_ONLY",
    "RECONSTRUCTS",
    "VERDICTS",
    "current_word",
    "resilient",
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
"""Reason of a verdict of an earlier version."""


def current_word(word: str) -> str:
    """Return a verdict of this or an earlier version as a word of this scale."""
    return FORMER.get(word, word)


def resilient(word: str) -> float:
    """Return 1 where no leak was found, 0 where there is one, NaN where the evidence decides neither."""
    return {NO_LEAK: 1.0, RECONSTRUCTS: 0.0, IDENTIFIES: 0.0}.get(word, math.nan)
