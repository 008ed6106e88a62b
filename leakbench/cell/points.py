"""The names of a cell's leakage points in its summary and among its wall times."""

from __future__ import annotations

from leakbench.cell.cell import Cell

__all__ = ["leak_key", "phase_name"]


def leak_key(cell: Cell, tap: str, round_number: int) -> str:
    """Return the name of a leakage point in the summary, with its round or rounds in the live protocol."""
    s = cell.settings
    if s.join_rounds:
        return f"{tap}@{'+'.join(map(str, s.leak_rounds))}"
    return f"{tap}@{round_number}" if s.protocol == "live" else tap


def phase_name(cell: Cell, tap: str, round_number: int) -> str:
    """Return the name of the wall time of one leakage point."""
    return f"attack {tap}" + (f" at round {round_number}" if cell.settings.protocol == "live" else "")
