"""A table of all defenses in one reference federation: their stations, units, claims and valid epsilons.

The federation is that of the data set `mnist` (the Fed-alphaCDP paper's: 1,000 clients, 100 per round, 100 rounds of 100 local
iterations), which needs no data. results/defenses/defenses.csv stores the rows, whose computation takes minutes, each with the
hash of its recipe.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from leakbench.cell.accounting import schedule_of
from leakbench.core.behaviour import SHARED
from leakbench.core.recipe import acting, catalog_folder, describe, names, resolve
from leakbench.core.types import Network
from leakbench.data.recipe import DatasetRecipe
from leakbench.defense import Defense, Probe, phases
from leakbench.defense.network import extended
from leakbench.defense.transform import STATIONS
from leakbench.models import build, default_model, parameters
from leakbench.privacy.epsilon import epsilon
from leakbench.storage.store import content_hash

__all__ = ["Row", "measured", "overview", "recorded", "write"]

SHAPE, CLASSES, EXAMPLES = (1, 28, 28), 10, 60_000


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


def measured(name: str, defense: Defense) -> Row:
    """Compute a defense's epsilons in the reference federation, which takes up to about ten seconds if its noise changes."""
    federation = resolve("datasets", DatasetRecipe, "mnist")[1].federation
    rng = torch.Generator().manual_seed(0)
    plain = build(defense.model or default_model(SHAPE), SHAPE, CLASSES, rng)
    network = extended(defense.network, plain, SHAPE, CLASSES, rng)
    probe = Probe(Network(network, parameters(network)), SHAPE, CLASSES, federation)
    copies = federation.clients * federation.examples_per_client / EXAMPLES
    schedule = schedule_of(defense, probe, copies, math.ceil(copies))
    found = epsilon(phases(defense, probe), defense.unit, defense.claim, schedule)
    taps = {tap: _number(at.valid) for tap, at in found.by_tap.items()}
    return Row(
        name,
        _stations(defense),
        defense.unit,
        _number(found.claimed),
        _number(found.valid),
        _number(found.without_draw),
        taps["type-0"],
        taps["type-1"],
        taps["type-2"],
        "" if found.valid is not None else found.reason.removeprefix("none: "),
        defense.cite,
        _hash(defense),
    )


def _stations(defense: Defense) -> str:
    acts = [name for name in STATIONS if getattr(defense, name)]
    acts += ["model"] * bool(defense.network) + ["aggregation"] * (defense.aggregation == "secure")
    return ", ".join(acts) or "nowhere"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _hash(defense: Defense) -> str:
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
        yield name, defense, row if row is not None and row.recipe == _hash(defense) else None


def recorded() -> list[Row]:
    """Return the rows of results/defenses/defenses.csv, or of its copy in the catalog of a wheel."""
    folder = catalog_folder("defenses").parent
    for path in (folder / "results" / "defenses" / "defenses.csv", folder / "defenses.csv"):
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as file:
                return [Row(**row) for row in csv.DictReader(file)]
    return []


def write(path: Path, rows: list[Row]) -> None:
    """Write rows to a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [f.name for f in dataclasses.fields(Row)])
        table.writeheader()
        table.writerows(dataclasses.asdict(row) for row in rows)
