"""The first facts of a page as cards: accuracy, epsilon, evidence and threat model, a value and a short note each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from leakbench.auditing.verdict import Audit
from leakbench.report.epsilons import epsilons, for_one_example
from leakbench.report.words import number
from leakbench.storage.summary import Summary, Tap
from leakbench.summary.threat import MEANS, printed_threat

__all__ = ["FactCard", "cards", "evidence"]


@dataclass(frozen=True)
class FactCard:
    """One fact: its label, its value, a note below it, and the class of its colour."""

    label: str
    value: str
    note: str = ""
    tone: str = ""


def cards(summary: Summary, audit: Audit | None) -> list[FactCard]:
    """Return the cards of one run."""
    return [_accuracy(summary), *_epsilons(summary, audit), *evidence(summary.taps.values()), *_threat(summary)]


def _accuracy(summary: Summary) -> FactCard:
    rounds, chance, why = summary.rounds, summary.chance, summary.undertrained
    if not rounds:
        return FactCard("Accuracy", number(summary.accuracy, 3), "not measured: no round was trained")
    parts = [
        f"after {rounds} round{'' if rounds == 1 else 's'}",
        "" if chance is None else f"chance {number(chance, 3)}",
    ]
    note = ", ".join(filter(None, parts))
    if why:
        return FactCard("Accuracy", number(summary.accuracy, 3), f"{note}; undertrained: {why}", "inconclusive")
    return FactCard("Accuracy", number(summary.accuracy, 3), note)


def _epsilons(summary: Summary, audit: Audit | None) -> list[FactCard]:
    claimed, observed = epsilons(summary)
    if not observed:
        return [FactCard("Valid epsilon", "n/a", "none was computed")]
    epsilon, released = summary.epsilon, observed[0]
    delta = f" at delta {epsilon.delta:g}" if epsilon.delta else ""
    if released.valid == "none":
        valid = FactCard("Valid epsilon", "none", _reason(released.reason))
    else:
        valid = FactCard(
            "Valid epsilon", released.valid, f"for one {epsilon.unit}{delta}, observer: {released.observer}"
        )
    value, _, why = claimed.partition(": ")
    found = [valid, FactCard("Claimed epsilon", value, why or _reason(epsilon.claimed_formula or ""))]
    if audit is not None:
        bound = max(audit.lower_bound, audit.lower_bound_family or 0.0)
        note = (
            f"lower bound{for_one_example(summary)}, {100 * audit.confidence:g} % confidence, {audit.trials:,} trials"
        )
        found.append(FactCard("Audited epsilon", f"≥ {bound:.3g}", note))
    return found


def evidence(taps: Iterable[Tap]) -> list[FactCard]:
    """Return the card of how many victims were attacked, over how many networks; nothing without leakage points."""
    counts = [(tap.victims, tap.networks) for tap in taps]
    if not counts:
        return []
    victims, networks = max(counts, key=lambda count: count[0])
    return [FactCard("Victims", f"{victims:,}", f"over {networks} network{'' if networks == 1 else 's'}")]


def _threat(summary: Summary) -> list[FactCard]:
    honest = summary.threat == "honest"
    note = MEANS.get(summary.threat_letter or "", "" if honest else str(summary.threat))
    server = FactCard("Server", printed_threat("honest") if honest else "malicious", note)
    told: Mapping[str, Any] | None = summary.knowledge
    if not told:
        return [server]
    granted = ["model", *(name.replace("_", " ") for name in ("batch_size", "learning_rate") if told.get(name))]
    knows = f"knows {', '.join(granted)}; labels {told['labels']}"
    return [server, FactCard("Attacker", "adaptive" if told["defense"] else "oblivious", knows)]


def _reason(text: str) -> str:
    return text.removeprefix("none: ")
