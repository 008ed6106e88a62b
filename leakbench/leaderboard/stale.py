"""Whether a card was measured with a recipe or a behaviour that has changed since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from leakbench.cell import Request
from leakbench.cell.budget import plan, prepare
from leakbench.cell.resolve import with_examples
from leakbench.data.find import Load
from leakbench.data.kept import KeptData
from leakbench.errors import InputError
from leakbench.leaderboard.asked import request_of
from leakbench.leaderboard.card import Card, Measured
from leakbench.leaderboard.read import read_cards
from leakbench.leaderboard.sources import sources_of
from leakbench.recipe import names
from leakbench.study.stale import Published, Today, stale_reason, together, versions_in

__all__ = ["published_cards", "stale"]


KINDS = {"defense": "defenses", "dataset": "datasets", "attack": "attacks"}
"""{what a card is of: the part of the catalog that it is in}."""


def stale(card: Card) -> list[str]:
    """Return in what a card was not measured with the catalog and the behaviour of today, a sentence each.

    Only data that come with leakbench are read. Another release alone is no reason: what it changed has another behaviour version.
    """
    for what, kind in KINDS.items():
        if getattr(card, what).name not in names(kind):
            return [f"its {what} is not in the catalog"]
    load = KeptData(offline=True)
    changed = [
        f"its {what} has changed since the card was measured"
        for what, content in _contents(card, load).items()
        if content != getattr(card, what).content
    ]
    reasons = dict.fromkeys(stale_reason(_published(card, cell, None), load) for cell in card.cells)
    return [*changed, *filter(None, reasons)]


def _contents(card: Card, load: Load) -> dict[str, str]:
    """Return {`defense`, `dataset`, `attack`: the hash of its content today}, as far as every machine knows it."""
    request = _request(card, card.cells[-1])
    try:
        cell = plan(request, load=load)
        if cell.recipe.origin is None:
            cell = with_examples(cell, request.dataset, None, load=load)
    except InputError:  # What is asked for is refused today, which `stale_reason` states.
        return {}
    # Data that were not read have no content.
    return {what: source.content for what, source in sources_of(cell).items() if source.content}


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
        requests=lambda: [_request(card, cell)],
        recorded=versions_in(card.settings),
        again=card.repeat,
    )


def _request(card: Card, cell: Measured) -> Request:
    of = (card.defense.name, card.dataset.name, card.attack.name)
    return request_of(card.asked, *of, cell.attacker, cell.protocol)
