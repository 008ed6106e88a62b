"""The recipes and the data set that a card is of, with the hash of what each contains."""

from __future__ import annotations

import re
from typing import Any

from leakbench.cell import Cell
from leakbench.leaderboard.card import Source
from leakbench.recipe import content_of, describe

__all__ = ["link_of", "sources_of"]


def sources_of(cell: Cell) -> dict[str, Source]:
    """Return {`defense`, `dataset`, `attack`: what it is} of a cell."""
    contents = {
        "defense": content_of(describe(cell.defense)),
        "dataset": cell.data.content,
        "attack": content_of(describe(cell.attack)),
    }
    recipes: dict[str, Any] = {"defense": cell.defense, "dataset": cell.recipe, "attack": cell.attack}
    return {
        what: Source(
            name=cell.names[what].partition(" (")[0],
            title=" ".join(str(recipe.title).split()),
            cite=" ".join(str(recipe.cite).split()),
            link=link_of(str(recipe.cite)),
            content=contents[what],
        )
        for what, recipe in recipes.items()
    }


def link_of(cite: str) -> str:
    """Return the address of the paper by the arXiv number or the DOI in a citation; nothing where it has neither."""
    if found := re.search(r"arXiv:\s?(\d{4}\.\d{4,5})", cite):
        return f"https://arxiv.org/abs/{found[1]}"
    if found := re.search(r"\b(10\.\d{4,9}/[\w./:()-]*\w)", cite):
        return f"https://doi.org/{found[1]}"
    return ""
