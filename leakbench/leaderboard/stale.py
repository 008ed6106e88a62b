"""Whether a card was measured with a recipe or a behaviour that has changed since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.data.find import Load
from leakbench.data.kept import KeptData
from leakbench.defense import Defense
from leakbench.errors import InputError
from leakbench.leaderboard.asked import request_of
from leakbench.leaderboard.card import Card, Measured
from leakbench.leaderboard.read import read_cards
from leakbench.recipe import describe, resolve
from leakbench.reproduce.recorded import together, versions_asked, versions_in
from leakbench.reproduce.stale import Published, Today, stale_reason
from leakbench.store import content_hash

__all__ = ["published_cards", "stale"]


def stale(card: Card) -> list[str]:
    """Return in what a card was not measured with the catalog and the behaviour of today, a sentence each; reads no data.

    Another release alone is no reason: what it changed has another behaviour version.
    """
    try:
        recipe = resolve("defenses", Defense, card.defense.name)[1]
    except InputError:
        return ["its recipe is not in the catalog"]
    found = []
    if content_hash(describe(recipe)) != card.defense.content:
        found.append("its recipe has changed since the card was measured")
    load = KeptData(offline=True)
    reasons = dict.fromkeys(stale_reason(_published(card, cell, None), load) for cell in card.cells)
    return [*found, *filter(None, reasons)]


def published_cards(folder: Path, data_dir: Path | None) -> Iterator[Published]:
    """Yield the cells of every card below a folder, one row for each attacker and protocol."""
    for card in read_cards(folder):
        for cell in card.cells:
            yield _published(card, cell, data_dir)


def _published(card: Card, cell: Measured, data_dir: Path | None) -> Published:
    def today(load: Load) -> Today:
        prepared = prepare(_request(card, cell), data_dir, load=load)
        return Today(prepared.hash, together([prepared]))

    return Published(
        page="leaderboard",
        row=f"{card.dataset.name}/{card.defense.name}, {cell.attacker} attacker, protocol {cell.protocol}",
        hash=cell.hash,
        dataset=card.dataset.name,
        today=today,
        without_data=lambda: versions_asked([_request(card, cell)]),
        recorded=versions_in(card.settings),
        again=card.repeat,
    )


def _request(card: Card, cell: Measured) -> Request:
    names = (card.defense.name, card.dataset.name, card.attack.name)
    return request_of(card.asked, *names, cell.attacker, cell.protocol)
