"""The page of bounds_hold.py: a line for each leakage point, as said beside a tenth of the noise."""

from __future__ import annotations

from typing import Any

import pandas as pd

__all__ = ["page_of"]

NOTHING = 0.995
"""A bound from which on it forbids nothing."""

MEASURES = {"identified": "identified_bound", "label_ranked": "label_ranked_bound", "member_tpr": "member_tpr_bound"}
NAMES = {"identified": "identified", "label_ranked": "label ranked", "member_tpr": "member found"}

TEXT = """# Bounds hold, and catch a tenth of the noise

Each defense's leakage points that have a bound, read by rankings of the candidates, the classes and members (`identification`,
{victims} victims, first weights), twice: with the noise as its recipe says, and with a tenth of it, of which nobody is told. "above"
names the measurements that lie significantly above their bound, all bounds of a run sharing one chance in twenty of luck.

Of {cells} leakage points with a bound {said} lie significantly above one as said, and {tenth} with a tenth of the noise; {can} have a
bound below 1.00.

"""

AGAIN = """
Measured by `python results/bounds_hold.py`; a bound of 1.00 forbids nothing, and `-` is none: the attacker has nothing to rank.
"""


def page_of(rows: pd.DataFrame) -> str:
    """Return the page in Markdown."""
    bounded = rows[rows[list(MEASURES.values())].notna().any(axis=1)]
    heads = ["data, defense, point"]
    heads += [f"{name}: as said / a tenth, bound" for name in NAMES.values()]
    heads += ["above: as said", "above: a tenth"]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    found = {True: 0, False: 0, "can": 0, "cells": 0}
    for (dataset, defense, point), pair in bounded.groupby(["dataset", "defense", "point"], sort=False):
        by = {bool(row["tenth"]): row for row in pair.to_dict("records")}
        if set(by) != {True, False}:
            continue
        said, tenth = by[False], by[True]
        above = {which: named(by[which]) for which in by}
        lines.append(
            f"| {dataset}, {defense}, {point} | "
            + " | ".join(compared(said, tenth, measure, bound) for measure, bound in MEASURES.items())
            + f" | {above[False]} | {above[True]} |"
        )
        found["cells"] += 1
        found["can"] += any(said[bound] < NOTHING for bound in MEASURES.values())
        for which in by:
            found[which] += above[which] != "none"
    counts = {"cells": found["cells"], "said": found[False], "tenth": found[True], "can": found["can"]}
    return TEXT.format(victims=int(rows["victims"].max()), **counts) + "\n".join(lines) + "\n" + AGAIN


def named(row: dict[str, Any]) -> str:
    """Return which measurements of a row are above their bounds."""
    listed = [] if pd.isna(row["above"]) else str(row["above"]).split()
    return ", ".join(NAMES.get(measure, measure) for measure in listed) or "none"


def compared(said: dict[str, Any], tenth: dict[str, Any], measure: str, bound: str) -> str:
    """Return both measurements and their bound."""
    return "-" if pd.isna(said[measure]) else f"{said[measure]:.3f} / {tenth[measure]:.3f}, {said[bound]:.3f}"
