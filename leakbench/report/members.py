"""Of how many clients, local iterations and examples the batch behind a leakage point is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["factors", "made_of"]


def factors(tap: Mapping[str, Any]) -> str:
    """Return the examples behind what leaked as `B`, `L x B` or `K x L x B`: K clients of L local iterations of B examples."""
    clients, steps, batch = (int(tap.get(name) or 1) for name in ("clients", "local_iterations", "local_batch"))
    if clients > 1:
        return f"{clients} x {steps} x {batch}"
    return f"{steps} x {batch}" if steps > 1 else str(tap.get("batch"))


def made_of(tap: Mapping[str, Any]) -> str:
    """Return the same in words, in brackets; empty where the examples are one batch of one client."""
    clients, steps, batch = (int(tap.get(name) or 1) for name in ("clients", "local_iterations", "local_batch"))
    each = f"L = {steps} local iterations of B = {batch}" if steps > 1 else f"B = {batch}"
    if clients > 1:
        return f" (K = {clients} clients, each {each})"
    return f" ({each})" if steps > 1 else ""
