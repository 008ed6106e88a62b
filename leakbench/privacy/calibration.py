"""Calibration: which noise protects one unit's data against an observer, or why no noise does."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from leakbench.core.types import Fact, IntegerNoise
from leakbench.privacy.ledger import OWN_NOISE, UNREAD, Unit

__all__ = ["CHANGES", "Noise", "calibrated", "remarks"]

STATIONS: dict[str, tuple[str, ...]] = {"example": ("example", "batch"), "client": ("client", "server")}
"""Stations that can bound one unit's contribution: a clip of examples does not bound a whole client, nor the reverse."""

CHANGES = ("clip", "scale", "other")
"""Kinds of facts after which a merged value is not a function of only the sum of noisy members. A `scale` is one of them: the
noise that it scales depends on single members, and only the noise of that one member protects them."""

MIXED = "something acts on the mean of a batch before its noise, so that one example decides for the others"


@dataclass(frozen=True)
class Noise:
    """One Gaussian or integer noise that is calibrated to the unit.

    Args:
        station: Station that adds it.
        std: As in `Fact`.
        each: As in `Fact`.
        bound: Largest L2 norm of one unit's contribution to the sum there.
        part: Noises with the same number share a bound and add up; a clip after a noise starts the next number.
        alone: Whether the noise of other members does not add to it, because a transform changes the members after this noise and
            before they are merged, or takes the scale of a later noise from them.
        only: As in `Fact`.
        training: As in `Fact`.
        participation: As in `Fact`.
        separation: As in `Fact`.
        integer: As in `Fact`; None for Gaussian noise.
        together: Whether the bound holds for any number of a batch's examples together, as that of a clip of their mean does.
        replaced: Whether the bound holds if the unit's data are replaced, but not if its contribution becomes zero, see `Fact`.
    """

    station: str
    std: float
    each: bool
    bound: float
    part: int
    alone: bool
    only: bool = False
    training: float = 0.0
    participation: float = 0.0
    separation: int = 1
    integer: IntegerNoise | None = None
    together: bool = False
    replaced: bool = False


def calibrated(facts: Mapping[str, tuple[Fact, ...]], unit: Unit, batch: int) -> tuple[tuple[Noise, ...], str]:
    """Return the noises that protect one unit, or the reason why no noise does.

    Args:
        facts: {station: facts, oldest first}, at the moment with the least noise.
        batch: B. Without a clip of examples, a clip of the batch's mean still bounds the change by one example: to twice its norm,
            times B on the sum.

    Returns:
        (noises, "") or ((), reason).
    """
    found = _Found(batch)
    for station, index, fact in _steps(facts, unit):
        if fact.kind == "other" and fact.raw:
            return (), fact.reason
        # The server's transforms of each update and the rest of this station run before the updates are merged.
        later = facts[station][index + 1 :]
        found = found.after(fact, station, later, (*later, *(facts.get("server", ()) if station == "client" else ())))
    if found.bare:
        return (), found.bare
    return _counted(found.noises), "" if found.noises else _nothing(facts, unit, found.failure)


@dataclass(frozen=True)
class _Found:
    """What the facts up to one of them say about the noises of one unit.

    Args:
        batch: B.
        noises: Noises that protect the unit.
        bound: Largest L2 norm of one unit's contribution to the next noise.
        part: Number of the bound, see `Noise`.
        together: As in `Noise`.
        replaced: As in `Noise`.
        scaled: Why the scale of a later noise does not follow from the bound; empty if it does.
        failure: Why the first noise protects nothing; empty if it protects something, or before the first noise.
        bare: Why the data show without any noise; empty if they do not.
        mixed: Why one example decides for others; empty if it does not.
        closed: Whether a transform has mixed several members after a noise, so that no later noise counts.
    """

    batch: int
    noises: tuple[Noise, ...] = ()
    bound: float = math.inf
    part: int = 0
    together: bool = False
    replaced: bool = False
    scaled: str = ""
    failure: str = ""
    bare: str = ""
    mixed: str = ""
    closed: bool = False

    def after(self, fact: Fact, station: str, later: tuple[Fact, ...], before_merging: tuple[Fact, ...]) -> _Found:
        """Return what the facts say up to the next one.

        Args:
            later: Facts of the same station after it.
            before_merging: All facts after it and before the members are merged.
        """
        if fact.kind == "clip":
            return self._after_clip(fact, station)
        if fact.kind == "scale":
            scaled = _data_dependent(fact.reason)
            return replace(self, scaled=scaled, bare=scaled if fact.raw else self.bare)
        if fact.kind == "other":
            return self._after_other(fact, station)
        if fact.kind == "uncalibrated_noise" or fact.std > 0:
            return self._after_noise(fact, station, later, before_merging)
        return self

    def _with_new_bound(self) -> _Found:
        """Return the same without a bound: a noise starts the next part after the noises of this one."""
        if self.noises and self.noises[-1].part == self.part:
            return replace(self, bound=math.inf, part=self.part + 1)
        return self

    def _after_clip(self, fact: Fact, station: str) -> _Found:
        begun = self._with_new_bound()
        # Several clips in a row give the smallest bound; one without a bound (it scales up) removes the earlier bound.
        norm = fact.norm * (2 * self.batch if station == "batch" else 1)
        if norm == math.inf:
            return replace(begun, bound=math.inf, scaled=fact.reason)
        # A clip of a result keeps its distance from another result only if it is a projection, which the facts do not say.
        if norm <= begun.bound or fact.rescales or begun.replaced:
            together = station == "batch"
            return replace(begun, bound=norm, together=together, replaced=fact.replaced, scaled="")
        return replace(begun, scaled="")

    def _after_other(self, fact: Fact, station: str) -> _Found:
        # Nothing bounds one unit's share of its result, so a later noise does not protect the unit by itself. A sum modulo m may
        # wrap around, and one unit then moves it by any distance.
        begun = self._with_new_bound()
        return replace(
            replace(begun, bound=math.inf) if fact.keeps_noise or begun.replaced else begun,
            failure=self.failure or ("" if self.noises else fact.reason),
            # A transform that mixes several members may follow a noise, as post-processing, but no later noise counts after it.
            closed=self.closed or bool(fact.reason and self.noises),
            mixed=MIXED if station == "batch" and self.batch > 1 else self.mixed,
        )

    def _after_noise(
        self, fact: Fact, station: str, later: tuple[Fact, ...], before_merging: tuple[Fact, ...]
    ) -> _Found:
        found = self if not fact.only else replace(self, bare="")
        alone = any(each.kind in CHANGES and not each.keeps_noise for each in before_merging)
        why = self.failure or self.scaled or self.mixed or _unbounded(fact, self.bound, later)
        if alone and not fact.each and station in ("example", "server"):
            why = why or "one noise for the sum, changed for each member by what follows it"
        if fact.integer and station in STATIONS["example"]:
            why = why or "integer noise is accounted for the update of a whole client only"
        if self.replaced and station in STATIONS["example"]:
            why = why or "a bound for replaced data is accounted for the update of a whole client only"
        if why:
            return found if self.noises else replace(found, failure=why)
        where = (station, fact.std, fact.each, self.bound, self.part, alone)
        over_rounds = (fact.training, fact.participation, fact.separation)
        noise = Noise(*where, fact.only, *over_rounds, fact.integer, self.together, self.replaced)
        return found if self.closed else replace(found, noises=(*self.noises, noise))


def _counted(noises: tuple[Noise, ...]) -> tuple[Noise, ...]:
    """Return the noises that count: all of them, or only the weakest one of those that protect another release too.

    An epsilon has one adjacency. So noises for replaced data do not count next to others.
    """
    noises = tuple(noise for noise in noises if not noise.replaced) or noises
    bound_to = [noise for noise in noises if noise.only]
    return (min(bound_to, key=lambda noise: noise.std / noise.bound),) if bound_to else noises


def _steps(facts: Mapping[str, tuple[Fact, ...]], unit: Unit) -> Iterator[tuple[str, int, Fact]]:
    for station in STATIONS[unit]:
        for index, fact in enumerate(facts.get(station, ())):
            yield station, index, fact


def _data_dependent(reason: str) -> str:
    name = "data-dependent sensitivity"
    return reason if reason.startswith(name) else f"{name}: {reason}" if reason else name


def _unbounded(fact: Fact, bound: float, later: tuple[Fact, ...]) -> str:
    """Return why a noise has no bound, or an empty text if it has one."""
    if fact.kind == "noise" and bound < math.inf:
        return ""
    if fact.reason.startswith(UNREAD):
        return fact.reason
    clips = [f.norm for f in later if f.kind == "clip" and f.norm < math.inf]
    if clips:
        return f"noise of {fact.std:.4g} before the clip at {clips[0]:.4g}, which bounds nothing that the noise covers"
    return f"noise without a clip: {fact.std:.4g} against no bound"


def _nothing(facts: Mapping[str, tuple[Fact, ...]], unit: Unit, failure: str) -> str:
    """Return why no noise protects a unit, in the words after `none: `."""
    noisy = [s for s, done in facts.items() if any(f.kind == "uncalibrated_noise" or f.std > 0 for f in done)]
    if failure and (set(noisy) & set(STATIONS[unit]) or not noisy):
        return failure if noisy or failure.startswith((OWN_NOISE, UNREAD)) else f"no noise; {failure}"
    if not noisy:
        zero = [s for s, done in facts.items() if any(f.kind == "noise" for f in done)]
        return f"no noise: at the {' and '.join(zero)} station it is multiplied by zero" if zero else "no noise"
    other = "an example's gradient" if unit == "client" else "a client's whole update"
    return f"the only noise is at the {' and '.join(noisy)} station, calibrated to {other}, not to one {unit}"


def remarks(facts: Mapping[str, tuple[Fact, ...]], unit: Unit) -> tuple[str, ...]:
    """Return the reasons in the facts of the unit's clips: they change the number of a guarantee but do not end it."""
    reasons = (fact.reason for _, _, fact in _steps(facts, unit) if fact.kind == "clip" and fact.norm < math.inf)
    return tuple(dict.fromkeys(reason for reason in reasons if reason))
