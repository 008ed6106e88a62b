"""The note of how many observations an attack had of what a defense draws at random."""

from __future__ import annotations

from leakbench.cell import Cell, random_at
from leakbench.leakage_points import listed, point_name

__all__ = ["look_notes"]


def look_notes(cell: Cell) -> dict[str, str]:
    """Return that a randomised defense was observed once, or where several observations would have been identical."""
    wanted = cell.settings.observations
    drawn = [tap for tap in cell.settings.taps if random_at(cell, tap)]
    if wanted == 1:
        once = "one observation of the random draws at the {}; an attacker with several (--observations) averages noise out"
        return {"observations": once.format(_named(drawn))} if drawn else {}
    same = [tap for tap in cell.settings.taps if tap not in drawn]
    of_them = f"; one at the {_named(same)}, where nothing is random and all would be identical" if same else ""
    return {"observations": f"{wanted} observations of each gradient, each a release of its own{of_them}"}


def _named(taps: list[str]) -> str:
    return listed([point_name(tap) for tap in taps])
