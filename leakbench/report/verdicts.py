"""The verdicts of a run, each with its reason, what it excludes, what is guaranteed, and the command that would decide it."""

from __future__ import annotations

from dataclasses import dataclass

from leakbench.measure.rates import EXCLUDABLE, upper_limit
from leakbench.report.words import all_networks
from leakbench.storage.summary import Summary, Tap
from leakbench.summary.limits import CANDIDATES

__all__ = ["Said", "guaranteed", "verdicts"]


@dataclass(frozen=True)
class Said:
    """A verdict that several leakage points share: where, the word, why, and sentences about what follows from it.

    Args:
        command: The run that would decide; empty without one.
    """

    places: tuple[str, ...]
    word: str
    reason: str
    sentences: tuple[str, ...]
    command: str


def verdicts(summary: Summary) -> list[Said]:
    """Return the verdicts of a summary; leakage points that share everything are together."""
    grouped: dict[tuple[str, str, tuple[str, ...], str], list[str]] = {}
    for name, tap in summary.taps.items():
        sentences = tuple(filter(None, (_excluded(tap), guaranteed(tap))))
        reason, command = tap.verdict_reason or "", tap.verdict_command or ""
        grouped.setdefault((tap.verdict, reason, sentences, command), []).append(name)
    return [
        Said(tuple(places), word, reason, sentences, command)
        for (word, reason, sentences, command), places in grouped.items()
    ]


def _excluded(tap: Tap) -> str:
    """Return the rates up to which the evidence does not exclude a leak, in whole percents, rounded up.

    The limits follow from the measurement alone. A bound by a valid epsilon may be lower; a separate sentence gives it.
    """
    rates = [
        f"{upper_limit(rate)} {kind.done}" for kind in EXCLUDABLE if (rate := tap.value(kind.excluded)) is not None
    ]
    if not rates:
        return ""
    *others, last = rates
    listed = f"{', '.join(others)} and {last}" if others else last
    victims = tap.victims
    evidence = f"{victims} victim{'' if victims == 1 else 's'}"
    kinds = [kind for kind in EXCLUDABLE if tap.value(kind.excluded) is not None]
    alike = f", {text}" if (text := all_networks(tap, kinds)) else ""
    return f"Evidence from {evidence} alone does not exclude rates of up to {listed} (one-sided limits, 95 % confidence{alike})."


def guaranteed(tap: Tap) -> str:
    """Return the sentence about the guarantee at a leakage point; empty without one."""
    bound = tap.guaranteed
    if bound is None:
        return ""
    return (
        f"Guaranteed by the valid epsilon of the leak: no attacker identifies more than {bound:.3g} of the victims "
        f"among {CANDIDATES:,} candidates."
    )
