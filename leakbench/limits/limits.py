"""The limits of every leakage point of a cell, computed from the cell after its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from leakbench.cell import Cell, looks_at
from leakbench.core.progress import unticked
from leakbench.data.partition import Partition
from leakbench.experiment.victims import Sent
from leakbench.limits.floor import Floor, floor
from leakbench.limits.guards import Guard, guards, together
from leakbench.limits.reference import Reference, prior_of, reference

__all__ = ["Limits", "limits_of"]


@dataclass(frozen=True)
class Limits:
    """The limits of one leakage point.

    Args:
        guard: The noise that bounds its success rates.
        floor: The floor of its RMSE.
        reference: The results that a malicious server may expect.
    """

    guard: Guard
    floor: Floor
    reference: Reference


def limits_of(
    cell: Cell,
    sent: Callable[[int, str, int], Sent],
    partition: Partition,
    tick: Callable[[], None] = unticked,
) -> dict[str, Limits]:
    """Return {name of a leakage point: its limits}.

    The limits depend only on the cell, so a resumed run computes the same ones.

    Args:
        sent: Maps (round, leakage point, draw of the first weights) to what the server sent.
        tick: Called between the steps of the work.
    """
    by_leak, prior = {}, prior_of(cell)
    for rounds in cell.settings.leaks:
        for tap in cell.settings.taps:
            tick()
            networks = {number: sent(number, tap, 0) for number in rounds}
            each = [guards(cell, networks[number].network, number, partition) for number in rounds]
            tick()
            if len(rounds) == 1:
                lowest = floor(cell, partial(sent, rounds[0], tap), tap, rounds[0], partition)
            else:
                lowest = Floor(None, None, "none: it is worked out for one view, not for several together")
            tick()
            guard = together([several[tap] for several in each], looks_at(cell, tap))
            expected = reference(cell, networks[rounds[0]], tap, rounds[0], partition, guard, prior)
            by_leak[cell.settings.point(tap, rounds[-1]).key] = Limits(guard, lowest, expected)
    return by_leak
