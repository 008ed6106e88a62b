"""The cells of a card: which there are, their numbers, resolved, and the hash of all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leakbench.cell import Cell
from leakbench.cell.budget import plan, prepare
from leakbench.errors import InputError
from leakbench.leaderboard.asked import ATTACKERS, Asked, audit_command, command_of, request_of
from leakbench.recipe import describe
from leakbench.reproduce.recorded import recorded_in
from leakbench.store import content_hash

__all__ = ["Asking", "asking", "hash_of", "settings_of"]

OF_CELLS = ("part", "protocol", "leak_rounds", "leak_model", "partition")
"""Settings in which the cells of one card differ, and such as are no single value."""


@dataclasses.dataclass(frozen=True)
class Asking:
    """One cell of a card before it is run: for which attacker, by which protocol, the command, the cell."""

    attacker: str
    protocol: str
    command: str
    cell: Cell


def asking(asked: Asked, defense: str, dataset: str, attack: str, data_dir: Path | None) -> list[Asking]:
    """Return the cells of a card, those of the oblivious attacker first; raises InputError for what cannot be run.

    defense: a name of the catalog, or the path of a recipe; commands then have the name that it will have there.
    """
    if not asked.protocols or not asked.taps:
        raise InputError(f"{'taps' if asked.protocols else 'protocols'}: got none, expected one or more")
    found, both = [], [(attacker, protocol) for attacker in ATTACKERS for protocol in dict.fromkeys(asked.protocols)]
    for attacker, protocol in both:  # Every cell is checked before any data are looked for.
        plan(request_of(asked, defense, dataset, attack, attacker, protocol), data_dir)
    for attacker, protocol in both:
        cell = prepare(request_of(asked, defense, dataset, attack, attacker, protocol), data_dir)
        named = request_of(asked, cell.names["defense"], dataset, attack, attacker, protocol)
        found.append(Asking(attacker, protocol, command_of(named), cell))
    return found


def settings_of(cells: Sequence[Asking]) -> dict[str, Any]:
    """Return the numbers and words that are the same for all cells of a card, and the behaviour versions above 1 of any.

    Those of the federation are among them; the versions are JSON.
    """
    flat = describe(cells[-1].cell.settings)
    both = {**flat.pop("federation"), **flat}
    same = {name: ",".join(value) if name == "taps" else value for name, value in both.items() if name not in OF_CELLS}
    return same | recorded_in(each.cell for each in cells)


def hash_of(cells: Sequence[Asking], asked: Asked) -> str:
    """Return the hash of what a card asks: of its cells' hashes, and of its audit's command."""
    of = cells[0].cell.names
    return content_hash([*(each.cell.hash for each in cells), audit_command(asked, of["defense"], of["dataset"])])
