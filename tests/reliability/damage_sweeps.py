"""Damage to cells, journal and tables of a sweep: the same sweep measures what is missing again, and gives the same tables."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from leakbench.study.grid import read_grid
from leakbench.study.sweep import Swept
from tests.reliability.harm import harms
from tests.reliability.same import differences, results
from tests.reliability.swept import GRID, swept
from tests.reliability.tally import Tally

__all__ = ["check_sweeps"]


def check_sweeps(tally: Tally, place: Path, flips: int, cuts: int) -> None:
    """Damage every file of a sweep in every way."""
    place.mkdir(parents=True)
    (place / "grid.yaml").write_text(GRID, encoding="utf-8")
    grid, whole, rng, found = read_grid(place / "grid.yaml"), place / "whole", random.Random(0), list[Swept]()
    swept(grid, whole)
    expected = results(whole)
    cell = min((whole / "runs").iterdir())
    files = [whole / "out" / name for name in ("cells.jsonl", "rows.parquet", "cells.parquet")]
    for path in (cell / "manifest.json", cell / "rows.parquet", *files) if cuts else (cell / "manifest.json",):
        often = flips if path.parent == whole / "out" else flips // 4 or 1
        for number, harm in enumerate(harms(rng, path.stat().st_size, often, cuts)):
            folder = place / f"{path.name}{number}"
            shutil.copytree(whole, folder)
            harm.do(folder / path.relative_to(whole))
            case = f"{path.relative_to(whole)}, {harm.name}"
            with tally.case(case):
                found.append(swept(grid, folder))
                if found[-1].failed or found[-1].run + found[-1].there + found[-1].found != found[-1].cells:
                    raise AssertionError(f"{found[-1]}")
                if said := differences(results(folder), expected):
                    raise AssertionError(said)
            shutil.rmtree(folder)
    if cuts:
        measured = sum(each.run for each in found)
        tally.figures.append(
            f"sweeps with a harmed file: {len(found)}, of whose {2 * len(found)} cells {measured} were measured again"
        )
