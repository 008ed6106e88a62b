"""Audits every recipe whose name ends in `_valid`: the audited lower bound must not exceed the valid epsilon."""

from __future__ import annotations

from typing import Any

from leakbench.auditing.cell import audit_cell
from leakbench.auditing.verdict import Audit
from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.core import recipe
from leakbench.core.errors import InputError
from tests.reliability.tally import Tally

__all__ = ["check_audited"]

DELTA = 1e-5

EPSILON = 4.0
"""Valid epsilon of a release in which all clients use all examples: large enough that an audit can find something."""


def check_audited(tally: Tally, trials: int, names: tuple[str, ...] = ()) -> None:
    """Audit each recipe in its data set's own federation, and in one release in which all clients use all their examples."""
    rows = []
    for name in names or tuple(name for name in recipe.names("defenses") if name.endswith("_valid")):
        own = _audited(tally, name, Request(dataset="digits", defense=name, train_rounds=3), trials)
        alone: dict[str, Any] = {
            "clients": 4,
            "clients_per_round": 4,
            "train_rounds": 1,
            "local_iterations": 1,
            "batch": 100,
        }
        try:
            once = _audited(tally, name, Request(dataset="digits", defense=name, epsilon=EPSILON, **alone), trials)
        except InputError:  # Noise without a multiplier keeps its value.
            once = _audited(tally, name, Request(dataset="digits", defense=name, **alone), trials)
        rows.append(f"{name} {own}, {once}")
    tally.figures.append(
        f"audited / valid epsilon, three rounds and one release to which all bring all: {'; '.join(rows)}"
    )


def _audited(tally: Tally, name: str, request: Request, trials: int) -> str:
    found = audit_cell(prepare(request, None), DELTA, trials)
    tally.expect(_sound(found), f"{name}: {found.verdict}: {found.reason}")
    return f"{_bound(found):.2f} / {found.valid:.2f}"


def _sound(found: Audit) -> bool:
    return found.verdict == "holds" and found.valid is not None and _bound(found) <= found.valid


def _bound(found: Audit) -> float:
    return max(found.lower_bound, found.lower_bound_family or 0.0)
