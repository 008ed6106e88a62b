"""Who sees what: the mechanisms that each observer of a federation is up against, for one unit of a defense.

An epsilon belongs to an observer, because sampling amplifies only against those who cannot see it. `global` sees
released models; `type-2` one example's gradient after the example station; `type-1` a client's update after the client
station; `type-0` the same after the server station, or with secure aggregation the sum of a round's updates. Nobody
drops out and all clients are honest, else their noise is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from leakbench.privacy.calibration import calibrated
from leakbench.privacy.ledger import Phase, Schedule, Unit, stretches
from leakbench.privacy.of_clients import of_a_client
from leakbench.privacy.of_examples import of_an_example
from leakbench.privacy.release import Guarded, Observation, Released

__all__ = ["OBSERVERS", "Observation", "Released", "observations"]

OBSERVERS = ("global", "type-2", "type-1", "type-0")


def observations(phases: Sequence[Phase], unit: Unit, schedule: Schedule) -> dict[str, Observation]:
    """Return {observer: what it sees of one unit}; `none: <reason>` where one phase guarantees nothing.

    Raises InputError where the phases are not exactly the schedule's rounds and local iterations.
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
