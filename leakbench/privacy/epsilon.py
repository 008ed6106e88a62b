"""The epsilon of a defense: what is claimed, what is valid for the mechanism as executed, and for whom."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leakbench.errors import InputError
from leakbench.privacy.accountants import best
from leakbench.privacy.caveats import caveats
from leakbench.privacy.claimed import Claim
from leakbench.privacy.ledger import Phase, Schedule, Unit
from leakbench.privacy.observers import Observation, observations

__all__ = ["Epsilon", "Tap", "epsilon"]


@dataclass(frozen=True)
class Tap:
    """The valid epsilon against who reads one leakage point.

    valid: None where there is none; `reason` then starts with `none: ` (or is `no round was trained`), else it says
        what the number rests on.
    q: probability that one release uses the unit.  steps: number of releases.  sigma_effective: noise over one unit's
        bound. Where the noise or the draw varies over the training: the largest q, all steps, the least noise.
    participations: of the unit, `expected` on average and `largest` as the run counted them, or None.
    """

    valid: float | None
    reason: str
    q: float | None
    steps: int | None
    sigma_effective: float | None
    participations: dict[str, float | int | None]


@dataclass(frozen=True)
class Epsilon:
    """The two computed epsilons of one defense in one federation; `unit` is what they protect.

    claimed: the paper's, None where it claims none (claimed_formula then says why).
    valid: against the observer of released models (`observer` is `global`), at `delta`, by `accountant`; None where
        there is none, with the reason as in `Tap`, as are steps, q and sigma_effective.
    by_tap: {`type-2` | `type-1` | `type-0`: Tap}.
    caveats: one sentence with its number for each thing in which the training is not what the claim assumes.
    """

    claimed: float | None
    claimed_formula: str
    accountant: str | None
    valid: float | None
    reason: str
    unit: Unit
    delta: float
    observer: str
    steps: int | None
    q: float | None
    sigma_effective: float | None
    by_tap: dict[str, Tap]
    caveats: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: no infinity, no NaN."""
        return {**dataclasses.asdict(self), "caveats": list(self.caveats)}


def epsilon(phases: Sequence[Phase], unit: Unit, claim: Claim, schedule: Schedule, delta: float = 1e-5) -> Epsilon:
    """Return the claimed and the valid epsilon of a defense.

    phases: the whole training, in order; the releases of all of them are composed, each with its own noise and draw.
    unit: what the epsilon holds for: an `example`, whose copies count as `Schedule.participations` says, or all data of a
        `client`.
    delta: of the valid epsilon; the claim has its own. Raises InputError for a delta out of (0, 1) and where the phases
    are not exactly the schedule's rounds and local iterations.
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
    answers = {name: _answer(what, delta, taken) for name, what in seen.items()}
    (headline, accountant) = answers.pop("global")
    return Epsilon(
        claimed=None if infinite else claimed.epsilon,
        claimed_formula=claimed.formula + (" gives no finite epsilon" if infinite else ""),
        accountant=accountant,
        valid=headline.valid,
        reason=headline.reason,
        unit=unit,
        delta=delta,
        observer="global",
        steps=headline.steps,
        q=headline.q,
        sigma_effective=headline.sigma_effective,
        by_tap={name: tap for name, (tap, _) in answers.items()},
        caveats=caveats(phases, unit, claimed, seen["global"], schedule),
    )


def _answer(seen: Observation, delta: float, taken: dict[str, float | int | None]) -> tuple[Tap, str | None]:
    """Return (the tap, the accountant's name)."""
    if isinstance(seen, str):
        return Tap(None, seen, None, None, None, taken), None
    mechanisms = seen.mechanisms
    value, accountant = best(mechanisms, delta)
    finite = math.isfinite(value)
    tap = Tap(
        valid=value if finite else None,
        reason=seen.sentence if finite else f"none: no finite epsilon: {seen.sentence}",
        q=max(m.sampling_rate for m in mechanisms),
        steps=sum(m.steps for m in mechanisms),
        sigma_effective=min(m.noise_multiplier for m in mechanisms),
        participations=taken,
    )
    return tap, accountant if finite else None
