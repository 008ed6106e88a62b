"""Behaviour versions: golden cells whose numbers may not change without one, and the rows that one makes stale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_cells import CELLS, COMMAND, KEPT, cell_of, numbers, unraised

from leakbench.behaviour import raised
from leakbench.cell.behaviours import behaviours_of

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
EMBEDDED = ("faces", "digits", "cancer")

GOLDEN: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))

HASHES = {
    "none": "",
}


@pytest.mark.parametrize("name", CELLS)
def test_numbers_change_only_with_a_behaviour_version(name: str, tmp_path: Path) -> None:
    assert name in GOLDEN, f"{name!r} is not in {KEPT.name}; write it by `{COMMAND}`"
    kept, cell = GOLDEN[name], cell_of(name)
    if cell.hash != kept["hash"]:
        now = raised(behaviours_of(cell))
        versions = f"behaviour versions {kept['behaviours'] or 'all 1'} then, {now or 'all 1'} now"
        pytest.fail(f"{name!r} has another identity ({versions}); write its numbers again by `{COMMAND}`")
    changed = unraised(kept, cell, numbers(cell, tmp_path))
    assert not changed, (
        f"{name!r}: numbers changed without a new behaviour version:\n  " + "\n  ".join(changed) + "\n"
        f"In play: {', '.join(sorted(behaviours_of(cell)))}.\n"
        "If the change is meant, raise the version of the piece that changed (`behaviour = 2` in a part's class, BEHAVIOUR in a "
        f"module, `behaviour=2` in MODELS; see leakbench/behaviour.py), then run `{COMMAND}`; `leakbench reproduce --stale` "
        "lists the published rows to measure again. Otherwise mend the change."
    )
