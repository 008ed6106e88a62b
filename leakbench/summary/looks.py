"""What a reader has to know of how often an attack looked at what is drawn at random."""

from __future__ import annotations

from leakbench.cell import Cell, random_at

__all__ = ["look_notes"]


def look_notes(cell: Cell) -> dict[str, str]:
    """Return that a randomised defense was looked at once, or where several looks would have been the same bits."""
    wanted = cell.settings.observations
    drawn = [tap for tap in cell.settings.taps if random_at(cell, tap)]
    if wanted == 1:
        once = "one look at what is drawn at random at {}: who sees several (--observations) averages the noise out"
        return {"observations": once.format(", ".join(drawn))} if drawn else {}
    same = [tap for tap in cell.settings.taps if tap not in drawn]
    of_them = f"; one at {', '.join(same)}, where nothing is drawn and all are the same bits" if same else ""
    return {"observations": f"{wanted} looks at each gradient, which are {wanted} releases of it{of_them}"}
