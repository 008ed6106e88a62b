"""Epsilons as the terminal and the pages print them: claimed, valid against each observer, and what to compare it with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from leakbench.core.leakage_points import point_name
from leakbench.core.words import epsilon_text
from leakbench.storage.summary import EpsilonSummary, ObserverEpsilon, Summary

__all__ = [
    "REALISED",
    "WITHOUT_DRAW",
    "Observed",
    "audit_details",
    "audited_training",
    "caveats",
    "compared",
    "epsilon_lines",
    "epsilons",
    "for_one_example",
    "not_covered",
]

WITHOUT_DRAW = "without the draw"
"""Name of the epsilon that uses no randomness of the draw of clients, on every page."""

REALISED = "ex post, realised participations"
"""Name of the figure for the participations that a run counted, which is not an epsilon, on every page."""


RELEASED = "released models"
"""Name of the observer that sees every released model, and nothing else."""


WIDTH = 34
"""Columns of the longest name of an observer, with the word valid."""

LEAST_DIGITS = 6
"""Least width of the column of numbers."""

LARGE = 1e6
"""Least epsilon that is printed with an exponent."""


@dataclass(frozen=True)
class Observed:
    """Epsilon against one observer, numbers as text: valid, without the draw, the realised figure with its count, and why."""

    observer: str
    valid: str
    without_draw: str
    realised: str
    reason: str
    q: str
    steps: str
    participations: str

    @property
    def text(self) -> str:
        """The number and its reason; a reason that already begins with the number is returned alone."""
        if self.reason.startswith(f"{self.valid}:") or not self.reason:
            return self.reason or self.valid
        return f"{self.valid}: {self.reason}"


def epsilons(summary: Summary) -> tuple[str, list[Observed]]:
    """Return (what is claimed, [the valid epsilon of the released models, then of each leakage point])."""
    epsilon = summary.epsilon
    if not summary.has_epsilon:
        return "n/a", []
    released = _observed(RELEASED, epsilon)
    taps = [_observed(name, tap) for name, tap in (epsilon.by_tap or {}).items()]
    claimed = epsilon_text(epsilon.claimed)
    return summary.notes.get("epsilon.claimed", claimed) if claimed == "none" else claimed, [released, *taps]


def audited_training(summary: Summary) -> str:
    """Return the lower bound that canaries gave, and whether it contradicts the valid epsilon; empty without canaries."""
    audit, valid = summary.audited, summary.epsilon.valid
    if audit is None:
        return summary.notes.get("audited", "")
    # A canary is one example, so its bound says nothing about the larger epsilon of a person.
    single, one = for_one_example(summary), "the valid one"
    if single:
        valid = audit.valid
        one = "the valid one" if valid is None else f"the valid {epsilon_text(valid)} of one example"
    over = valid is not None and audit.at_least > valid
    compared_with = f"more than {one}: it is violated" if over else f"not more than {one}"
    if single and valid is None:
        compared_with = "no valid epsilon of one example to compare it with"
    return f"audited at least {audit.at_least:.3g}{single} in this training ({compared_with})"


def for_one_example(summary: Summary) -> str:
    """Return ` for one example` where the epsilons of a summary are for a person with several, as audits are for one example."""
    return " for one example" if (summary.epsilon.unit or "").startswith("person") else ""


def audit_details(summary: Summary) -> list[str]:
    """Return the two lower bounds that canaries gave and what they do not show; nothing without canaries."""
    audit = summary.audited
    if audit is None:
        return []
    family = audit.lower_bound_family
    within = "" if family is None else f", {family:.3g} in the Gaussian family"
    return [
        f"audited in this training{for_one_example(summary)}: at least {audit.lower_bound:.3g} without assumptions{within}, "
        f"at {audit.confidence:.0%} confidence, {audit.correct} of {audit.guesses} guesses about {audit.canaries} canary "
        f"{audit.unit}s right",
        audit.limits,
    ]


def caveats(summary: Summary) -> list[str]:
    """Return in what the training is not the one that the claim accounts for, a sentence each; nothing where none claims."""
    return list(summary.epsilon.caveats or [])


def not_covered(summary: Summary) -> list[str]:
    """Return what no valid epsilon of a summary covers, a sentence each."""
    return list(summary.epsilon.not_covered or [])


def _observed(observer: str, found: EpsilonSummary | ObserverEpsilon) -> Observed:
    q, steps, times = found.q, found.steps, found.participations
    if isinstance(times, Mapping):
        times = ", ".join(f"{_count(value)} {name}" for name, value in times.items() if value is not None)
    participations = times if isinstance(times, str) else _count(times)
    share = "n/a" if q is None else f"{q:.3g}"
    realised, count = found.realised, found.realised_count
    return Observed(
        observer=observer,
        valid=epsilon_text(found.valid),
        without_draw="n/a" if found.without_draw is None else epsilon_text(found.without_draw),
        realised="n/a" if realised is None else f"{epsilon_text(realised)} ({_count(count)})",
        reason=found.reason or "",
        q=share,
        steps=_count(steps),
        participations=participations,
    )


def compared(found: Observed) -> list[str]:
    """Return a line for each number that a valid epsilon is compared with."""
    lines = []
    if found.without_draw != "n/a":
        lines.append(f"  {WITHOUT_DRAW}: {found.without_draw} (participation as often as possible in every round)")
    if found.realised != "n/a":
        lines.append(f"  {REALISED}: {found.realised} of the worst unit in this run; this is not an epsilon")
    return lines


def epsilon_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the epsilons of a defense before any training, a line each with its reason; a long reason is given once."""
    observers = {RELEASED: found, **{point_name(tap): at for tap, at in found["by_tap"].items()}}
    values = [found["claimed"], *(at[name] for at in observers.values() for name in ("valid", "without_draw"))]
    width = max(LEAST_DIGITS, *(len(_number(value)) for value in values))
    yield f"  {'claimed':<{WIDTH}}  {_number(found['claimed']):>{width}}  {_why(found['claimed'], found['claimed_formula'])}"
    for caveat in found["caveats"]:
        yield f"{'':<{WIDTH + 6 + width}}but {caveat}"
    given: dict[str, str] = {}
    for name, at in observers.items():
        first = given.setdefault(at["reason"], name)
        reason = at["reason"] if first == name or at["valid"] is None else f"as for the {first}"
        yield f"  {f'valid, {name}':<{WIDTH}}  {_number(at['valid']):>{width}}  {_why(at['valid'], reason)}"
        if at["without_draw"] is not None:
            most = "participation as often as possible in every round"
            yield f"    {WITHOUT_DRAW:<{WIDTH - 2}}  {_number(at['without_draw']):>{width}}  {most}"
    for sentence in found.get("not_covered", ()):
        yield f"  {sentence}"


def _why(value: float | None, reason: str) -> str:
    """Return the reason of an epsilon after its number, which already says none."""
    return reason.removeprefix("none: ") if value is None else reason


def _number(value: float | None) -> str:
    return epsilon_text(value, ".4g" if value is not None and value >= LARGE else ".3f")


def _count(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.6g}"
