"""Compute the epsilons of all defenses, and write results/defenses/defenses.csv and results/defenses/defenses.md.

python studies/defenses.py
"""

from __future__ import annotations

import time
from pathlib import Path

from leakbench.box import box_of
from leakbench.core.leakage_points import point_name
from leakbench.core.scripts import markdown_table
from leakbench.overview import Row, measured, overview, recorded, write

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
"""Epsilons up to this are counted as small in the box."""

HEADS = (
    *("defense", "acts at", "unit", "claimed", "valid", "without the draw", "type-0", "type-1", "type-2"),
    "no guarantee, because",
)


def _box(rows: list[Row]) -> list[str]:
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
        f"{len(rows)} defenses, computed by the accountants without training.",
        "One federation, MNIST's. Other rounds, clients or batches give other epsilons."
        " A claim may be for another unit or observer.",
        "python studies/defenses.py",
    )


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
            write(RESULTS / "defenses.csv", [*rows, *recorded()[len(rows) :]])
    (RESULTS / "defenses.md").write_text(page_of(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
