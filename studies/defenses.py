"""Compute the epsilons of all defenses, and write results/defenses/defenses.csv and results/defenses/defenses.md.

python studies/defenses.py
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import time
from pathlib import Path

import torch

from leakbench.box import box_of
from leakbench.cell.accounting import schedule_of
from leakbench.core.leakage_points import point_name
from leakbench.core.recipe import resolve
from leakbench.core.scripts import markdown_table
from leakbench.core.types import Network
from leakbench.core.words import epsilon_text
from leakbench.data.recipe import DatasetRecipe
from leakbench.defense import Defense, FactProbe, phases
from leakbench.defense.network import extended
from leakbench.defense.transform import STATIONS
from leakbench.models import build, default_model, parameters
from leakbench.overview import Row, hash_of, overview, recorded
from leakbench.privacy.epsilon import epsilon
from leakbench.storage.store import write_atomically

RESULTS = Path(__file__).parents[1] / "results" / "defenses"

HEAD = """# Every defense and its epsilon

{box}
`python studies/defenses.py`. In the federation of the Fed-alphaCDP paper on MNIST: 1,000 clients, 100 a round, 100 rounds of
100 local iterations, batch 5, the CNN of three tensors; delta = 1e-5; 9 clients hold the worst example.

- *claimed*: by the paper's own formula.
- *valid*: for the mechanism as executed here and its worst unit, over the random draw of clients, against an observer of the
  released models. For the unit `example` this observer sees which clients take part. For the unit `client` the draw is hidden
  from it and amplifies, except where each client's own noise shows it.
- *without the draw*: the same, but the unit takes part as often as it can in every round.
- *type-0, type-1, type-2*: valid against an attacker that sees one client there, and so sees when this client takes part.

Where a client adds noise and one client is the unit (`fed_sdp_client_valid` and its like), *valid* counts the noise of all
100 clients of a round: it trusts the other clients. *type-1* and *type-0* count the client's own noise only, and trust no
other client. A layer-wise clip has a flat sibling (`..._flat`) with the same noise: the first bounds an update by sqrt(M) times the
norm only, and leaks more.

"""

SMALL = 10.0

SHAPE, CLASSES, EXAMPLES = (1, 28, 28), 10, 60_000
"""Epsilons up to this are counted as small in the box."""

UNDEFENDED = "none"
"""The row that is not a defense: the box counts the others."""

HEADS = (
    *("defense", "acts at", "unit", "claimed", "valid", "without the draw", "type-0", "type-1", "type-2"),
    "no guarantee, because",
)


def _box(rows: list[Row]) -> list[str]:
    rows = [row for row in rows if row.name != UNDEFENDED]
    valid = [row for row in rows if row.valid != "none"]
    low = [row for row in valid if float(row.valid) <= SMALL]
    by_point = ", ".join(
        f"{point_name(point)} {sum(getattr(row, point.replace('-', '_')) != 'none' for row in rows)}"
        for point in ("type-0", "type-1", "type-2")
    )
    claimed = [row for row in rows if row.claimed != "none"]
    more = [row for row in claimed if row.valid == "none" or float(row.valid) > float(row.claimed)]
    return box_of(
        "A defense that claims an epsilon has it.",
        f"{len(more)} of {len(claimed)} defenses with a claimed epsilon have a larger valid epsilon or none."
        f" {len(valid)} of {len(rows)} defenses have a valid epsilon for the released models, {len(low)} one of at most"
        f" {SMALL:g}. Valid at a leakage point: {by_point}.",
        f"{len(rows)} defenses and `{UNDEFENDED}`, computed by the accountants without training.",
        "One federation, MNIST's. Other rounds, clients or batches give other epsilons."
        " A claim may be for another unit or observer.",
        "python studies/defenses.py",
    )


def measured(name: str, defense: Defense) -> Row:
    """Compute a defense's epsilons in the reference federation, which takes up to about ten seconds if its noise changes."""
    federation = resolve("datasets", DatasetRecipe, "mnist")[1].federation
    rng = torch.Generator().manual_seed(0)
    plain = build(defense.model or default_model(SHAPE), SHAPE, CLASSES, rng)
    network = extended(defense.network, plain, SHAPE, CLASSES, rng)
    probe = FactProbe(Network(network, parameters(network)), SHAPE, CLASSES, federation)
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
        hash_of(defense),
    )


def _stations(defense: Defense) -> str:
    acts = [*["inputs"] * bool(defense.inputs), *(name for name in STATIONS if getattr(defense, name))]
    acts += ["model"] * bool(defense.network) + ["aggregation"] * (defense.aggregation == "secure")
    return ", ".join(acts) or "nowhere"


def _number(value: float | None) -> str:
    return epsilon_text(value)


def write(path: Path, rows: list[Row]) -> None:
    """Write rows to a CSV file, which is the old one or the new one after a crash."""
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, [field.name for field in dataclasses.fields(Row)])
    table.writeheader()
    table.writerows(dataclasses.asdict(row) for row in rows)
    write_atomically(path, lambda file: file.write_text(text.getvalue(), encoding="utf-8", newline=""))


def page_of(rows: list[Row]) -> str:
    """Return the page of the rows."""
    lines = [
        (
            *(f"`{r.name}`", r.acts_at, r.unit, r.claimed, r.valid, r.without_draw),
            *(r.type_0, r.type_1, r.type_2, r.reason),
        )
        for r in rows
    ]
    return HEAD.format(box="\n".join(_box(rows))) + markdown_table(HEADS, lines) + "\n"


def main() -> None:
    """Compute the rows that changed and write both files."""
    rows: list[Row] = []
    for name, defense, known in overview():
        began = time.perf_counter()
        rows.append(known or measured(name, defense))
        if known is None:
            print(f"{name}: {time.perf_counter() - began:.1f} s, valid {rows[-1].valid}", flush=True)
            done = {row.name for row in rows}
            write(RESULTS / "defenses.csv", [*rows, *(row for row in recorded() if row.name not in done)])
    (RESULTS / "defenses.md").write_text(page_of(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
