"""A degenerate case has a defined answer (finite, of the right shape, mathematically correct) or is refused in one line.

The grid: mechanisms of defenses, slots and methods of attacks, measures, accountants, `leakbench.attack_update`, `leakbench run`.
"""

from __future__ import annotations

from pathlib import Path

from tests.reliability.edges_accounting import try_accounting
from tests.reliability.edges_attacks import try_attacks
from tests.reliability.edges_measures import try_measures
from tests.reliability.edges_mechanisms import try_mechanisms
from tests.reliability.edges_runs import try_runs
from tests.reliability.edges_updates import try_updates
from tests.reliability.tally import Tally

__all__ = ["check"]


def check(full: bool, scratch: Path) -> Tally:
    """Try the whole grid; if not `full`, a few cases of each kind."""
    tally = Tally()
    before = 0
    for said, attempt in {
        "mechanisms": try_mechanisms,
        "attacks": try_attacks,
        "measures": try_measures,
        "accounting": try_accounting,
        "updates": try_updates,
        "runs": lambda tally, full: try_runs(tally, full, scratch),
    }.items():
        attempt(tally, full)
        tally.figures.append(f"{tally.tried - before} of {said}")
        before = tally.tried
    return tally
