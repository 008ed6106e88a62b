"""Whether a card is of a recipe that has changed since, or is not in the catalog."""

from __future__ import annotations

from leakbench import __version__
from leakbench.defense import Defense
from leakbench.errors import InputError
from leakbench.leaderboard.card import Card
from leakbench.recipe import describe, resolve
from leakbench.store import content_hash

__all__ = ["stale"]


def stale(card: Card) -> list[str]:
    """Return in what a card is not of the catalog of today, a sentence each."""
    found = []
    if (made := card.made_with.get("leakbench")) != __version__:
        found.append(f"measured by leakbench {made}, not by {__version__}")
    try:
        recipe = resolve("defenses", Defense, card.defense.name)[1]
    except InputError:
        return [*found, "its recipe is not in the catalog"]
    if content_hash(describe(recipe)) != card.defense.content:
        found.append("its recipe has changed since the card was measured")
    return found
