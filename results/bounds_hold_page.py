"""The page of bounds_hold.py: a line for each leakage point, as said beside a tenth of the noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from leakbench.report.bounds import NOTHING
from leakbench.scripts import markdown_table

__all__ = ["page_of"]

MEASURES = {"identified": "identified_bound", "label_ranked": "label_ranked_bound", "member_tpr": "member_tpr_bound"}
NAMES = {"identified": "identified", "label_ranked": "label ranked", "member_tpr": "member found"}

TEXT = """# Bounds hold, and catch a tenth of the noise

Each defense's leakage points that have a bound, read by rankings of the candidates, the classes and members (`identification`,
{victims} victims, first weights), twice: with the noise as its recipe says, and with a tenth of it, of which nobody is told.
"above" names the measurements that lie significantly above their bound, all bounds of a run sharing one chance in twenty of luck.

Of {cells} leakage points with a bound {said} lie significantly above one as said, and {tenth} with a tenth of the noise;
{can} have a bound below 1.00.

"""

AGAIN = """
Measured by `python results/bounds_hold.py`; a bound of 1.00 forbids nothing, and `-` is none: the attacker has nothing to rank.
"""


def page_of(rows: pd.DataFrame, lacking: Sequence[str] = ()) -> str:
    """Return the page in Markdown. lacking: the cells that are not measured, which it names."""
    bounded = rows[rows[list(MEASURES.values())].notna().any(axis=1)]
    keys = ["dataset", "defense", "point"]
    said, tenth = (bounded[bounded["tenth"] == which] for which in (False, True))
    both = said.merge(tenth, on=keys, suffixes=("", "_tenth")).to_dict("records")
    heads = [", ".join(keys), *(f"{name}: as said / a tenth, bound" for name in NAMES.values())]
    lines = [
        [
            ", ".join(row[key] for key in keys),
            *(compared(row, measure) for measure in MEASURES),
            above(row["above"]),
            above(row["above_tenth"]),
        ]
        for row in both
    ]
    counts = {
        "cells": len(both),
        "said": sum(line[-2] != "none" for line in lines),
        "tenth": sum(line[-1] != "none" for line in lines),
        "can": sum(any(row[bound] < NOTHING for bound in MEASURES.values()) for row in both),
    }
    text = TEXT.format(victims=f"{rows['victims'].max():.0f}", **counts)
    missing = f"\nNot measured yet: {'; '.join(lacking)}.\n" if lacking else ""
    return text + markdown_table([*heads, "above: as said", "above: a tenth"], lines) + "\n" + missing + AGAIN


def above(measures: Any) -> str:
    """Return how the measurements above their bounds are called."""
    listed = [] if pd.isna(measures) else str(measures).split()
    return ", ".join(NAMES.get(measure, measure) for measure in listed) or "none"


def compared(row: dict[Any, Any], measure: str) -> str:
    """Return a measurement as said and with a tenth of the noise, and its bound."""
    if pd.isna(row[measure]):
        return "-"
    return f"{row[measure]:.3f} / {row[measure + '_tenth']:.3f}, {row[MEASURES[measure]]:.3f}"
