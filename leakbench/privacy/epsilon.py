"""The epsilon of a defense: the claimed one, the valid one of the mechanism as executed, and that of each observer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leakbench.core.errors import InputError
from leakbench.core.progress import Progress, unreported
from leakbench.core.words import epsilon_text
from leakbench.privacy.accountants import best
from leakbench.privacy.caveats import caveats
from leakbench.privacy.claimed import Claim
from leakbench.privacy.ledger import Phase, Schedule, Unit, unit_name
from leakbench.privacy.observers import Observation, observations

__all__ = ["Epsilon", "PointEpsilon", "epsilon"]


@dataclass(frozen=True)
class PointEpsilon:
    """The valid epsilon against an attacker at one leakage point, and two numbers to compare it with.

    If the noise or the draw varies over the training, `q` is the largest one, `steps` counts all, and `sigma_effective` is the
    least.

    Args:
        valid: Epsilon before the training, for the worst unit: a client, or the example that the most clients hold. It is a
            bound over the random draw of clients, against an observer that sees which clients take part. If the draw is
            hidden and amplifies, `reason` says so. None if no guarantee follows.
        reason: The assumptions behind the number and the randomness that it uses. Without a guarantee it starts with `none: ` (or
            is `no round was trained`).
        q: Probability that one release uses the unit.
        steps: Number of releases; the average if it is random.
        sigma_effective: Noise divided by one unit's bound.
        participations: Participations of the unit: `expected` is the average; `largest` is the run's count, None before it.
        without_draw: Epsilon if the unit takes part in every round as often as it can.
        realised: The value of `valid` if the worst unit had taken part exactly `realised_count` times. It is not an epsilon. None
            before a run.
        realised_count: The run's count, in updates or rounds, or in batches for an example at `type-2`.
    """

    valid: float | None
    reason: str
    q: float | None
    steps: int | None
    sigma_effective: float | None
    participations: dict[str, float | int | None]
    without_draw: float | None = None
    realised: float | None = None
    realised_count: int | None = None


@dataclass(frozen=True)
class Epsilon:
    """The epsilons of one defense in one federation.

    `reason`, `steps`, `q`, `sigma_effective`, `without_draw`, `realised` and `realised_count` have the meaning of `PointEpsilon`.

    Args:
        claimed: Epsilon of the paper; None without a claim, for the reason in `claimed_formula`.
        accountant: Accountant of `valid`.
        valid: Epsilon at `delta` against the observer of released models (`observer` is `global`); None if no guarantee follows.
        unit: What the valid epsilons protect: `example`, `client` or `person with at most K examples`. A claim is for one example
            or one client.
        by_tap: {`type-2` | `type-1` | `type-0`: Tap}.
        caveats: One sentence with a number for each difference between the training and the claim's assumptions.
        not_covered: One sentence for each preparation of the data that no valid epsilon covers; none without a valid epsilon.
    """

    claimed: float | None
    claimed_formula: str
    accountant: str | None
    valid: float | None
    reason: str
    unit: str
    delta: float
    observer: str
    steps: int | None
    q: float | None
    sigma_effective: float | None
    by_tap: dict[str, PointEpsilon]
    caveats: tuple[str, ...]
    without_draw: float | None = None
    realised: float | None = None
    realised_count: int | None = None
    not_covered: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, without infinity and NaN."""
        return {**dataclasses.asdict(self), "caveats": list(self.caveats), "not_covered": list(self.not_covered)}


def epsilon(
    phases: Sequence[Phase],
    unit: Unit,
    claim: Claim,
    schedule: Schedule,
    delta: float = 1e-5,
    progress: Progress = unreported,
) -> Epsilon:
    """Return the claimed and the valid epsilon of a defense.

    Args:
        phases: The whole training, in order; the releases of all phases are composed, each with its own noise and draw.
        unit: What the epsilon protects: an `example` with all its copies, or all data of a `client`. With
            `schedule.examples_per_person` above 1, the first one is a person, see `Schedule`.
        delta: Delta of the valid epsilon; the claim has its own.
        progress: Called with the number of observers whose epsilons are computed.

    Raises:
        InputError: For a delta outside (0, 1), an unknown unit, or phases that do not match the schedule's rounds and local
            iterations.
    """
    if not 0 < delta < 1:
        raise InputError(f"delta: got {delta}, expected a number in (0, 1)")
    if unit not in ("example", "client"):
        raise InputError(f"unit: got {unit!r}, expected 'example' or 'client'")
    claimed = claim(schedule)
    infinite = claimed.epsilon is not None and not math.isfinite(claimed.epsilon)
    drawn = sum(phase.rounds * phase.clients_per_round for phase in phases if phase.ends)
    taken = {"expected": schedule.expected_participations(unit, drawn), "largest": schedule.counted(unit)}
    seen = observations(phases, unit, schedule)
    several = schedule.examples_per_person > 1
    if several and unit == "client":
        seen = {name: _with_persons(observation) for name, observation in seen.items()}
    # A claim is for one example, so its differences to the training are those of one example.
    single = observations(phases, unit, dataclasses.replace(schedule, examples_per_person=1)) if several else seen
    taps = dict[str, tuple[PointEpsilon, str | None]]()
    for name, observation in seen.items():
        progress("epsilon of each observer", len(taps), len(seen))
        taps[name] = _tap(observation, delta, taken, schedule)
    (headline, accountant) = taps.pop("global")
    return Epsilon(
        claimed=None if infinite else claimed.epsilon,
        claimed_formula=claimed.formula + (" gives no finite epsilon" if infinite else ""),
        accountant=accountant,
        valid=headline.valid,
        reason=headline.reason,
        unit=unit_name(unit, schedule.examples_per_person, schedule.most_copies),
        delta=delta,
        observer="global",
        steps=headline.steps,
        q=headline.q,
        sigma_effective=headline.sigma_effective,
        by_tap={name: tap for name, (tap, _) in taps.items()},
        caveats=caveats(phases, unit, claimed, single["global"], schedule),
        without_draw=headline.without_draw,
        realised=headline.realised,
        realised_count=headline.realised_count,
    )


def _tap(
    seen: Observation, delta: float, taken: dict[str, float | int | None], schedule: Schedule
) -> tuple[PointEpsilon, str | None]:
    """Return (the tap, the accountant's name)."""
    if isinstance(seen, str):
        return PointEpsilon(None, seen, None, None, None, taken), None
    mechanisms, count = seen.mechanisms, schedule.counted(seen.counted)
    value, accountant = best(mechanisms, delta)
    least, sentence = math.inf, seen.sentence
    if seen.shuffled is not None:
        least, reports = seen.shuffled.epsilon(delta), seen.shuffled.clients
        if least < value:
            noise = epsilon_text(seen.shuffled.noise_multiplier, ".4g")
            sentence = (
                f"noise of {noise} times the bound on one client's update, in {seen.shuffled.rounds} rounds of {reports} reports"
                " in a random order; replacement adjacency; trusts whoever shuffles them, and the other clients"
            )
        else:
            sentence += f"; {reports} reports a round arrive in a random order, which proves no smaller epsilon"
    value, accountant = min((value, accountant), (least, "shuffling"))
    finite = math.isfinite(value)
    tap = PointEpsilon(
        valid=value if finite else None,
        reason=sentence if finite else f"none: no finite epsilon: {sentence}",
        q=max(m.sampling_rate for m in mechanisms),
        steps=sum(m.releases for m in mechanisms),
        sigma_effective=min(m.noise_multiplier for m in mechanisms),
        participations=taken,
        without_draw=_finite(min(least, best(seen.without_draw, delta)[0])),
        realised=None if count is None else _finite(min(least, best(seen.realised(count), delta)[0])),
        realised_count=count,
    )
    return tap, accountant if finite else None


def _with_persons(seen: Observation) -> Observation:
    if isinstance(seen, str):
        return seen
    covered = "covers all examples of a client, and so each person with examples at one client only"
    text = f"{seen.sentence}; {covered}; a person at several clients is not covered"
    return dataclasses.replace(seen, sentence=text)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
