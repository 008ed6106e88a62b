"""One cell of the benchmark: a request, resolved to recipes and numbers, checked, and identified by its content."""

from leakbench.cell.cell import (
    LATER_OF_FEDERATION,
    SINCE,
    USUAL,
    Cell,
    changed_federation,
    hand_out,
    identified,
    identity,
    leak_clock,
    leak_federation,
)
from leakbench.cell.knowledge import knowledge
from leakbench.cell.looks import looks_at, random_at
from leakbench.cell.network import probe_of
from leakbench.cell.resolve import resolve_cell
from leakbench.cell.settings import Settings
from leakbench.core.request import KNOWS, PROTOCOLS, READS, Request, leak_rounds

__all__ = [
    "KNOWS",
    "LATER_OF_FEDERATION",
    "PROTOCOLS",
    "READS",
    "SINCE",
    "USUAL",
    "Cell",
    "Request",
    "Settings",
    "changed_federation",
    "hand_out",
    "identified",
    "identity",
    "knowledge",
    "leak_clock",
    "leak_federation",
    "leak_rounds",
    "looks_at",
    "probe_of",
    "random_at",
    "resolve_cell",
]
