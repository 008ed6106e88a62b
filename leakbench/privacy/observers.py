"""Observers: the releases of one unit that each observer of a federation sees.

An epsilon belongs to an observer, because sampling amplifies only against an observer that does not see it. `global` sees released
models; `type-2` one example's gradient after the example station; `type-1` a client's update after the client station; `type-0` the
update after the server station, or with secure aggregation the sum of a round's updates. All clients are assumed to be honest and
not to drop out, since otherwise their noise is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from leakbench.privacy.calibration import calibrated
from leakbench.privacy.ledger import Phase, Schedule, Unit, stretches
from leakbench.privacy.of_clients import of_a_client
from leakbench.privacy.of_examples import of_an_example
from leakbench.privacy.release import OBSERVERS, Guarded, Observation, Released

__all__ = ["OBSERVERS", "Observation", "Released", "observations"]


def observations(phases: Sequence[Phase], unit: Unit, schedule: Schedule) -> dict[str, Observation]:
    """Return {observer: the releases of one unit}, or `none: <reason>` if a phase has no guarantee.

    Raises:
        InputError: If the phases do not match the schedule's rounds and local iterations.
    """
    if schedule.rounds == 0:
        return dict.fromkeys(OBSERVERS, "no round was trained")
    guarded = list[Guarded]()
    bare = list[tuple[int, str]]()
    for stretch in stretches(phases, schedule):
        seen = stretch.phases if unit == "example" else stretch.phases[-1:]
        found = [calibrated(phase.facts, unit, schedule.batch) for phase in seen]
        guarded.append(Guarded(stretch, tuple(noises for noises, _ in found)))
        bare += [(stretch.first + 1, why) for _, why in found if why]
    if bare:
        (first, why), everywhere = bare[0], sum(len(g.noises) for g in guarded)
        same = len(bare) == everywhere and {reason for _, reason in bare} == {why}
        return dict.fromkeys(
            OBSERVERS, f"none: {why}" if same else f"none: {why}, in round {first} of {schedule.rounds}"
        )
    return of_an_example(tuple(guarded), schedule) if unit == "example" else of_a_client(tuple(guarded), schedule)
