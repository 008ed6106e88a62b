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
    """The valid epsilon against an attacker at one leakage point, and two numbers to compare it with.

    Args:
        valid: Ex ante, for the worst unit: a client, or the example that the most clients hold. It is the exact bound over the
            random draw of clients, against an observer that sees which clients take part (where the draw is hidden and amplifies,
            the reason says so). None where there is none; `reason` then starts with `none: ` (or is `no round was trained`), else
            it says what the number rests on and which randomness it uses.
        q: Probability that one release uses the unit.
        steps: Number of releases, on average where it is random.
        sigma_effective: Noise over one unit's bound. Where the noise or the draw varies over the training: the largest q, all
            steps, the least noise.
        participations: Of the unit, `expected` on average and `largest` as the run counted them, or None.
        without_draw: The same where the draw of clients is given: the unit takes part as often as it can in every round.
        realised: Not an epsilon. What `valid` would be if the worst unit of this run had taken part exactly as often as the run
            counted, `realised_count` times (in updates, in rounds, or for type-2 of an example in batches); None before a run.
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
    """The epsilons of one defense in one federation; `unit` is what they protect.

    Args:
        claimed: The paper's, None where it claims none (claimed_formula then says why).
        valid: Against the observer of released models (`observer` is `global`), at `delta`, by `accountant`; None where there is
            none, with the reason as in `Tap`, as are without_draw, realised, realised_count, steps, q and sigma_effective.
        by_tap: {`type-2` | `type-1` | `type-0`: Tap}.
        caveats: One sentence with its number for each thing in which the training is not what the claim assumes.
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
    without_draw: float | None = None
    realised: float | None = None
    realised_count: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: no infinity, no NaN."""
        return {**dataclasses.asdict(self), "caveats": list(self.caveats)}


def epsilon(phases: Sequence[Phase], unit: Unit, claim: Claim, schedule: Schedule, delta: float = 1e-5) -> Epsilon:
    """Return the claimed and the valid epsilon of a defense.

    Args:
        phases: The whole training, in order; the releases of all of them are composed, each with its own noise and draw.
        unit: What the epsilon holds for: an `example` with all its copies, or all data of a `client`.
        delta: Of the valid epsilon; the claim has its own. Raises InputError for a delta out of (0, 1) and where the phases are
            not exactly the schedule's rounds and local iterations.
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
    answers = {name: _answer(what, delta, taken, schedule) for name, what in seen.items()}
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
        without_draw=headline.without_draw,
        realised=headline.realised,
        realised_count=headline.realised_count,
    )


def _answer(
    seen: Observation, delta: float, taken: dict[str, float | int | None], schedule: Schedule
) -> tuple[Tap, str | None]:
    """Return (the tap, the accountant's name)."""
    if isinstance(seen, str):
        return Tap(None, seen, None, None, None, taken), None
    mechanisms, count = seen.mechanisms, schedule.counted(seen.counted)
    value, accountant = best(mechanisms, delta)
    finite = math.isfinite(value)
    tap = Tap(
        valid=value if finite else None,
        reason=seen.sentence if finite else f"none: no finite epsilon: {seen.sentence}",
        q=max(m.sampling_rate for m in mechanisms),
        steps=sum(m.releases for m in mechanisms),
        sigma_effective=min(m.noise_multiplier for m in mechanisms),
        participations=taken,
        without_draw=_finite(best(seen.without_draw, delta)[0]),
        realised=None if count is None else _finite(best(seen.realised(count), delta)[0]),
        realised_count=count,
    )
    return tap, accountant if finite else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
