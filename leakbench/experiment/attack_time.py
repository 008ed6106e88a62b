"""The seconds that a run may attack: shared out over its leakage points and chunks by their number of victims."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leakbench.attack.clock import Now, WithinSeconds
from leakbench.attack.slots.stop import searches_of
from leakbench.progress import minutes
from leakbench.store import Run

__all__ = ["AttackTime", "estimate_line", "within_seconds"]

ATTACK = "attack "
"""How the names of the phases begin in which a run attacks."""

Say = Callable[[str], None]


@dataclass
class AttackTime:
    """What is left of a limit on the wall time of all attacks of a run.

    Time that earlier processes spent on chunks that they finished is in the manifest's phases, so that a resumed run has what is
    left.

    Args:
        limit: Seconds for all attacks of the run, their rankings among them; None for no limit.
        run: The run, whose phases say what was spent.
        pending: Victims that are still to be attacked, over all leakage points.
        now: The clock.
    """

    limit: float | None
    run: Run
    pending: int
    now: Now = time.perf_counter

    @property
    def left(self) -> float:
        """Seconds that are left; infinite without a limit."""
        if self.limit is None:
            return float("inf")
        spent = sum(seconds for phase, seconds in self.run.manifest["phases"].items() if phase.startswith(ATTACK))
        return float(max(0.0, self.limit - spent))

    def share(self, victims: int) -> float:
        """Return the seconds for the next so many of the pending victims."""
        return self.left * victims / max(victims, self.pending)

    def passed(self, victims: int, since: float) -> float:
        """Return which share of the seconds for the next so many victims has passed since then; 0 without a limit.

        It stays below 1, since a search that is late still has an iteration to end.
        """
        if self.limit is None:
            return 0.0
        return min(0.99, (self.now() - since) / max(self.share(victims), 1e-9))

    def done(self, victims: int) -> None:
        """Take so many victims off the pending ones."""
        self.pending -= victims

    def within(self, method: Any, victims: int, of_point: int, since: float, say: Say, ranked: float = 0.0) -> Any:
        """Return the method limited to the share of the next `victims`; the method itself without a limit.

        Args:
            of_point: Victims of the same leakage point that are still to be attacked, for which `say` gets an estimate.
            since: When the work on these victims began, by `now`.
            ranked: Seconds that their rankings took.
        """
        if self.limit is None:
            return method
        seconds = max(0.0, self.share(victims) - (self.now() - since))
        share, rankings = self.share(of_point), ranked * of_point / max(victims, 1)
        return within_seconds(method, seconds, of_point, share, self.limit, say, self.now, rankings)


def within_seconds(
    method: Any,
    seconds: float,
    victims: int,
    share: float,
    limit: float,
    say: Say,
    now: Now = time.perf_counter,
    rankings: float = 0.0,
) -> Any:
    """Return a method limited to some seconds, which tells `say` an estimate for `victims` victims that have `share` seconds.

    Args:
        rankings: Seconds of the share that the rankings of these victims take.
    """
    if not any(hasattr(search, "stop") for search in searches_of(method)):
        say(f"the attack does not search, so that --budget {limit:g} cannot stop it")
        return method
    return WithinSeconds(
        method,
        seconds,
        lambda most, least, more: say(estimate_line(most, least, victims, more, share, limit, rankings)),
        now,
    )


def estimate_line(
    most: float, least: float, victims: int, more: int, share: float, limit: float, rankings: float = 0.0
) -> str:
    """Return what a user is told before an attack with a limit starts.

    Args:
        most: Predicted seconds of one victim, at most.
        least: Predicted seconds of one iteration of every search for one victim, which no limit prevents.
        victims: Number of victims.
        more: Number of public examples that the attack also tries, for its doubts.
        share: Seconds of the limit that these victims have.
        limit: Seconds of the limit, as the user gave it.
        rankings: Predicted seconds of their rankings, which no limit prevents. They count in the limit.
    """
    longest, shortest = most * (victims + more) + rankings, least * victims
    many = "1 victim" if victims == 1 else f"{victims} victims"
    if share <= 0:
        return f"estimated at most {minutes(longest)} for {many}; of --budget {limit:g} no time is left after the preparation"
    stops = "stops it at" if longest > share else "leaves it"
    floor = f", but one iteration of every search takes {minutes(shortest)}" if shortest > share else ""
    line = f"estimated at most {minutes(longest)} for {many}; --budget {limit:g} {stops} {minutes(share)}{floor}"
    if rankings < 1:
        return line
    more_than = ", which is more" if rankings > share else ""
    return f"{line}; the rankings, which it does not stop, take about {minutes(rankings)}{more_than}"
