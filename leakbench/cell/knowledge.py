"""The knowledge of a cell's attacker."""

from __future__ import annotations

from leakbench.cell.cell import Cell, leak_federation
from leakbench.core.request import BATCH
from leakbench.federated.view import Knowledge

__all__ = ["knowledge"]


def knowledge(cell: Cell, tap: str = "type-1") -> Knowledge:
    """Return the knowledge that the threat model grants the attacker of a cell at a leakage point."""
    whose = "" if cell.data.public is None else ", of others than may be victims"
    public = f"test split of {cell.names['dataset']} ({len(cell.data.public_targets)} examples{whose})"
    labels, logits = (
        "given" if granted else "not given" for granted in (cell.attack.needs.labels, cell.attack.needs.logits)
    )
    s = cell.settings
    f = leak_federation(cell)
    of_client = f.batch * (f.local_iterations // (f.epochs or 1) if s.protocol == "live" else 1)
    examples = 1 if tap == "type-2" else of_client
    clients = cell.defense.clock(s.federation, 0).cohort if cell.defense.shows_sum(tap) else 1
    return Knowledge(
        labels=labels,
        logits=logits,
        defense=cell.attack.knows == "defense",
        public=public,
        examples=examples * clients,
        clients=clients,
        reads=s.reads,
        statistics="" if s.statistics == BATCH else s.statistics,
    )
