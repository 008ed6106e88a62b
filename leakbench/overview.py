"""A table of all defenses in one reference federation: their stations, units, claims and valid epsilons.

The federation is that of the data set `mnist` (the Fed-alphaCDP paper's: 1,000 clients, 100 per round, 100 rounds of 100 local
iterations), which needs no data. results/defenses/defenses.csv stores the rows, whose computation takes minutes, each with the
hash of its recipe.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass

from leakbench.core.behaviour import SHARED
from leakbench.core.hashes import content_hash
from leakbench.core.recipe import acting, catalog_folder, describe, names, resolve
from leakbench.defense import Defense

__all__ = ["Row", "hash_of", "overview", "recorded"]


@dataclass(frozen=True)
class Row:
    """One defense, with epsilons at delta 1e-5 or `none`.

    Args:
        acts_at: Its stations.
        claimed: Claimed epsilon.
        valid: Valid epsilon of released models.
        without_draw: Valid epsilon of released models if the draw of clients is known.
        type_0: Valid epsilon at the leakage point; `type_1` and `type_2` likewise.
        reason: Why no epsilon is valid, else empty.
        recipe: Hash of the measured recipe.
    """

    name: str
    acts_at: str
    unit: str
    claimed: str
    valid: str
    without_draw: str
    type_0: str
    type_1: str
    type_2: str
    reason: str
    source: str
    recipe: str


def hash_of(defense: Defense) -> str:
    """Return the hash of everything that an epsilon depends on, without texts and a paper's printed numbers."""
    return content_hash(
        {
            "defense": acting(describe(defense)),
            "accounting": SHARED["accounting"],
        }
    )[:12]


def overview() -> Iterator[tuple[str, Defense, Row | None]]:
    """Yield (name, recipe, its recorded row, None where the recipe has changed since) for the whole catalog."""
    known = {row.name: row for row in recorded()}
    for name in names("defenses"):
        defense = resolve("defenses", Defense, name)[1]
        row = known.get(name)
        yield name, defense, row if row is not None and row.recipe == hash_of(defense) else None


def recorded() -> list[Row]:
    """Return the rows of results/defenses/defenses.csv, or of its copy in the catalog of a wheel."""
    folder = catalog_folder("defenses").parent
    for path in (folder / "results" / "defenses" / "defenses.csv", folder / "defenses.csv"):
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as file:
                return [Row(**row) for row in csv.DictReader(file)]
    return []
