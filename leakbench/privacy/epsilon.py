"""The epsilon of a defense: what is claimed, what is valid for the mechanism as executed, and for whom."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leakbench.errors import InputError
from leakbench.privacy.accountants import best
from leakbench.privacy.claim import Claim
from leakbench.privacy.ledger import Schedule, Unit
from leakbench.privacy.observers import Observation, observations
from leakbench.types import Fact

__all__ = ["Epsilon", "Tap", "epsilon"]


@dataclass(frozen=True)
class Tap:
    """The valid epsilon against who reads one leakage point.

    valid: None where there is none; `reason` then starts with `none: ` (or is `no round was trained`), else it says
        what the number rests on.
    q: probability that one release uses the unit.  steps: number of releases.  sigma_effective: noise over one unit's
        bound.  participations: of the unit, `expected` on average and `largest` as the run counted them, or None.
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

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: no infinity, no NaN."""
        return dataclasses.asdict(self)


def epsilon(
    facts: Mapping[str, tuple[Fact, ...]], unit: Unit, claim: Claim, schedule: Schedule, delta: float = 1e-5
) -> Epsilon:
    """Return the claimed and the valid epsilon of a defense.

    facts: {station: what its transforms did}; of noise that decays, at the moment with the least: then it holds for all
        of the training.
    unit: what is protected: an `example`, whose copies count as `Schedule.participations` says, or all data of a
        `client`.
    delta: of the valid epsilon; the claim has its own. Raises InputError for a delta out of (0, 1).
    """
    if not 0 < delta < 1:
        raise InputError(f"delta: got {delta}, expected a number in (0, 1)")
    if unit not in ("example", "client"):
        raise InputError(f"unit: got {unit!r}, expected 'example' or 'client'")
    claimed = claim(schedule)
    infinite = claimed.epsilon is not None and not math.isfinite(claimed.epsilon)
    taken = {"expected": schedule.expected_participations(unit), "largest": schedule.counted(unit)}
    answers = {name: _answer(seen, delta, taken) for name, seen in observations(facts, unit, schedule).items()}
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
    )


def _answer(seen: Observation, delta: float, taken: dict[str, float | int | None]) -> tuple[Tap, str | None]:
    """Return (the tap, the accountant's name)."""
    if isinstance(seen, str):
        return Tap(None, seen, None, None, None, taken), None
    mechanism = seen.mechanism
    value, accountant = best(mechanism, delta)
    finite = math.isfinite(value)
    reason = seen.sentence if finite else f"none: no finite epsilon: {seen.sentence}"
    tap = Tap(
        value if finite else None, reason, mechanism.sampling_rate, mechanism.steps, mechanism.noise_multiplier, taken
    )
    return tap, accountant if finite else None
