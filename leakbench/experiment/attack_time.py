"""The time limit for the attacks of a run, divided among its leakage points and chunks by their number of victims."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leakbench.attack.clock import Now, WithinSeconds
from leakbench.attack.slots.stop import searches_of
from leakbench.core.progress import minutes
from leakbench.storage.store import Run

__all__ = ["AttackTime", "estimate_line", "within_seconds"]

ATTACK = "attack "
"""Start of the names of a run's phases with attacks."""

Say = Callable[[str], None]


@dataclass
class AttackTime:
    """The rest of a limit on the wall time of all attacks of a run.

    The manifest's phases have the time that earlier processes spent on finished chunks, so a resumed run has only the rest.

    Args:
        limit: Seconds for all attacks of the run, with their rankings; None for no limit.
        run: The run, whose phases have the spent time.
        pending: Number of victims still to be attacked, over all leakage points.
        now: The clock.
    """

    limit: float | None
    run: Run
    pending: int
    now: Now = time.perf_counter

    @property
    def left(self) -> float:
        """Remaining seconds; infinite without a limit."""
        if self.limit is None:
            return float("inf")
        spent = sum(seconds for phase, seconds in self.run.manifest["phases"].items() if phase.startswith(ATTACK))
        return float(max(0.0, self.limit - spent))

    def share(self, victims: int) -> float:
        """Return the seconds for the next `victims` of the pending victims."""
        return self.left * victims / max(victims, self.pending)

    def passed(self, victims: int, since: float) -> float:
        """Return the share of the seconds for the next `victims` victims that has passed; 0 without a limit.

        It stays below 1, since a late search still finishes an iteration.

        Args:
            since: Start of the work, by `now`.
        """
        if self.limit is None:
            return 0.0
        return min(0.99, (self.now() - since) / max(self.share(victims), 1e-9))

    def done(self, victims: int) -> None:
        """Subtract finished victims from the pending ones."""
        self.pending -= victims

    def within(self, method: Any, victims: int, of_point: int, since: float, say: Say, ranked: float = 0.0) -> Any:
        """Return the method limited to the share of the next `victims`; the method itself without a limit.

        Args:
            of_point: Number of pending victims of the same leakage point, for which `say` gets an estimate.
            since: Start of the work on these victims, by `now`.
            say: Called with an estimate.
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
    """Return a method with a time limit, which first calls `say` with an estimate.

    Args:
        seconds: Limit of this call.
        victims: Number of victims of the estimate.
        share: Seconds for these victims.
        limit: Seconds of the whole limit, for the message.
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
    """Return the message before an attack with a time limit.

    Args:
        most: Largest predicted seconds of one victim.
        least: Predicted seconds of one iteration of every search for one victim, which runs in any case.
        victims: Number of victims.
        more: Number of public examples that the attack also reconstructs, for its doubts.
        share: Seconds of the limit for these victims.
        limit: Seconds of the limit, as the user gave it.
        rankings: Predicted seconds of their rankings, which run in any case and count in the limit.
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
