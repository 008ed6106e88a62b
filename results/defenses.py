"""Work the epsilons of all defenses out, and write results/defenses.csv and results/defenses.md.

python results/defenses.py
"""

from __future__ import annotations

import time
from pathlib import Path

from leakbench.overview import Row, measured, overview, write
from leakbench.scripts import markdown_table

HERE = Path(__file__).parent

HEAD = """# Every defense and its epsilon

`python results/defenses.py`. In the federation of the Fed-alphaCDP paper on MNIST: 1,000 clients, 100 a round, 100 rounds of
100 local iterations, batch 5, the CNN of three tensors; delta = 1e-5. *Claimed*: by the paper's own formula. *Valid*: what
follows for the mechanism as executed here, for who sees released models, and for who reads one client at type-0, type-1,
type-2. A layer-wise clip has a flat sibling (`..._flat`) under the same noise: the first lets sqrt(M) times the norm through,
and leaks more.

"""

HEADS = (
    *("defense", "acts at", "unit", "claimed", "valid", "type-0", "type-1", "type-2"),
    "no guarantee, because",
)


def main() -> None:
    """Measure what has changed and write both files."""
    rows: list[Row] = []
    for name, defense, known in overview():
        began = time.perf_counter()
        rows.append(known or measured(name, defense))
        if known is None:
            print(f"{name}: {time.perf_counter() - began:.1f} s, valid {rows[-1].valid}", flush=True)
    write(HERE / "defenses.csv", rows)
    lines = [
        (f"`{r.name}`", r.acts_at, r.unit, r.claimed, r.valid, r.type_0, r.type_1, r.type_2, r.reason) for r in rows
    ]
    (HERE / "defenses.md").write_text(HEAD + markdown_table(HEADS, lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
