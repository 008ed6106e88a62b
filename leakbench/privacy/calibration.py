"""Calibration: which noise stands between one unit's data and an observer, and why there may be none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from leakbench.privacy.ledger import OWN_NOISE, Unit
from leakbench.types import Fact

__all__ = ["CHANGES", "Noise", "calibrated", "remarks"]

STATIONS: dict[str, tuple[str, ...]] = {"example": ("example", "batch"), "client": ("client", "server")}
"""Where one unit's contribution can be bounded: a clip of examples says nothing of a whole client, nor the reverse."""

CHANGES = ("clip", "scale", "other")
"""Kinds of facts after which a merged value is no longer a function of the sum of noisy members alone. A `scale` is one of
them: the noise that it scales depends on single members, and only the noise of that one member protects them."""

MIXED = "something acts on the mean of a batch before its noise, so that one example decides for the others"


@dataclass(frozen=True)
class Noise:
    """One Gaussian noise that is calibrated to the unit.

    Args:
        station: Where it is added.
        std: As in `Fact`.
        each: As in `Fact`.
        bound: Largest L2 norm that one unit adds to the sum there.
        part: Noises of one part share a bound and add up; a clip after a noise begins the next part.
        alone: Something acts on the members after this noise and before they are merged, or takes the scale of a later noise from
            them, so that the noise of others does not add to it.
        only: As in `Fact`.
    """

    station: str
    std: float
    each: bool
    bound: float
    part: int
    alone: bool
    only: bool = False


def calibrated(facts: Mapping[str, tuple[Fact, ...]], unit: Unit, batch: int) -> tuple[tuple[Noise, ...], str]:
    """Return (the noises that guard one unit, "") or ((), why there is none).

    Args:
        facts: Of each station, oldest first, at the moment with the least noise.
        batch: B. Where no clip bounds an example, a clip of the batch's mean still bounds what one example changes there: by
            twice its norm, B-fold on the sum.
    """
    noises: list[Noise] = []
    bound, part, scaled, failure, bare, mixed, closed = math.inf, 0, "", "", "", "", False
    for station, index, fact in _steps(facts, unit):
        if fact.kind == "clip":
            if noises and noises[-1].part == part:
                bound, part = math.inf, part + 1
            # Clips in a row: the smallest bound holds; one without a bound (it scales up) takes the earlier one away.
            norm = fact.norm * (2 * batch if station == "batch" else 1)
            narrowed = norm if fact.rescales else min(bound, norm)
            bound, scaled = (narrowed, "") if norm < math.inf else (math.inf, fact.reason)
        elif fact.kind == "scale":
            scaled = _data_dependent(fact.reason)
            bare = scaled if fact.raw else bare
        elif fact.kind == "other" and fact.raw:
            return (), fact.reason
        elif fact.kind == "other":
            failure = failure or ("" if noises else fact.reason)
            # What tells of several members at once may follow noise, as anything may, but ends what later noise can guard.
            closed = closed or bool(fact.reason and noises)
            # Of what it makes out of noise nothing bounds one unit's part, so that a later noise guards nothing by itself.
            if noises and noises[-1].part == part:
                bound, part = math.inf, part + 1
            mixed = MIXED if station == "batch" and batch > 1 else mixed
        elif fact.kind == "uncalibrated_noise" or (fact.kind == "noise" and fact.std > 0):
            bare = "" if fact.only else bare
            # What a server does to each update comes before they are merged, as what is still to come at this station.
            before_merging = (*facts[station][index + 1 :], *(facts.get("server", ()) if station == "client" else ()))
            alone = any(later.kind in CHANGES for later in before_merging)
            why = failure or scaled or mixed or _unbounded(fact, bound, facts[station][index + 1 :])
            if alone and not fact.each and station in ("example", "server"):
                why = why or "one noise for the sum, changed for each member by what follows it"
            if why and not noises:
                failure = why
            elif not why and not closed:
                noises.append(Noise(station, fact.std, fact.each, bound, part, alone, fact.only))
    if bare:
        return (), bare
    return _counted(noises), "" if noises else _nothing(facts, unit, failure)


def _counted(noises: list[Noise]) -> tuple[Noise, ...]:
    """Return the noises that count: of those that guard something else besides the weakest, which nothing adds to."""
    bound_to = [noise for noise in noises if noise.only]
    return (min(bound_to, key=lambda noise: noise.std / noise.bound),) if bound_to else tuple(noises)


def _steps(facts: Mapping[str, tuple[Fact, ...]], unit: Unit) -> Iterator[tuple[str, int, Fact]]:
    for station in STATIONS[unit]:
        for index, fact in enumerate(facts.get(station, ())):
            yield station, index, fact


def _data_dependent(reason: str) -> str:
    name = "data-dependent sensitivity"
    return reason if reason.startswith(name) else f"{name}: {reason}" if reason else name


def _unbounded(fact: Fact, bound: float, later: tuple[Fact, ...]) -> str:
    """Return why noise stands against no bound, or nothing where there is one."""
    if fact.kind == "noise" and bound < math.inf:
        return ""
    clips = [f.norm for f in later if f.kind == "clip" and f.norm < math.inf]
    if clips:
        return f"noise of {fact.std:.4g} before the clip at {clips[0]:.4g}, which bounds nothing that the noise covers"
    return f"noise without a clip: {fact.std:.4g} against no bound"


def _nothing(facts: Mapping[str, tuple[Fact, ...]], unit: Unit, failure: str) -> str:
    """Return why no noise guards a unit, in the words after `none: `."""
    noisy = [s for s, done in facts.items() if any(f.kind == "uncalibrated_noise" or f.std > 0 for f in done)]
    if failure and (set(noisy) & set(STATIONS[unit]) or not noisy):
        return failure if noisy or failure.startswith(OWN_NOISE) else f"no noise; {failure}"
    if not noisy:
        zero = [s for s, done in facts.items() if any(f.kind == "noise" for f in done)]
        return f"no noise: at the {' and '.join(zero)} station it is multiplied by zero" if zero else "no noise"
    other = "an example's gradient" if unit == "client" else "a client's whole update"
    return f"the only noise is at the {' and '.join(noisy)} station, calibrated to {other}, not to one {unit}"


def remarks(facts: Mapping[str, tuple[Fact, ...]], unit: Unit) -> tuple[str, ...]:
    """Return what the unit's clips say of themselves that weakens no guarantee but changes its number."""
    said = (fact.reason for _, _, fact in _steps(facts, unit) if fact.kind == "clip" and fact.norm < math.inf)
    return tuple(dict.fromkeys(reason for reason in said if reason))
