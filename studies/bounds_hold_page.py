"""The page of bounds_hold.py: a line for each leakage point, with the full noise and with a tenth of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from leakbench.box import box_of
from leakbench.core.scripts import markdown_table
from leakbench.report.bounds import NOTHING

__all__ = ["page_of"]

MEASURES = {"identified": "identified_bound", "label_ranked": "label_ranked_bound", "member_tpr": "member_tpr_bound"}
NAMES = {"identified": "identified", "label_ranked": "label ranked", "member_tpr": "member found"}

TEXT = """# Do the bounds hold, and do they detect a tenth of the noise?

{box}
Each leakage point that has a bound is attacked by the rankings of `identification` ({victims} victims,
network at random weights), twice: with the noise that the recipe states, and with a tenth of it. The
recipe, the accounting and the attacker still assume the full noise in the second measurement.

- *identified*, *label ranked*, *member found*: the rate with the full noise / with a tenth, and the
  bound for the full noise. A bound of 1.00 excludes nothing. `-`: the attacker has nothing to rank.
- *above*: the measurements that are significantly above their bound. All bounds of a run share a
  chance of 5 % that one of them is called so by luck.

{can} of {cells} leakage points have a bound below 1.00. {said} of {cells} leakage points are
significantly above a bound with the full noise, and {tenth} with a tenth of it.

"""


def page_of(rows: pd.DataFrame, lacking: Sequence[str] = ()) -> str:
    """Return the page in Markdown.

    Args:
        rows: The rows of bounds_hold.csv.
        lacking: Names of the cells that are not measured; the page lists them.
    """
    bounded = rows[rows[list(MEASURES.values())].notna().any(axis=1)]
    keys = ["dataset", "defense", "point"]
    said, tenth = (bounded[bounded["tenth"] == which] for which in (False, True))
    both = said.merge(tenth, on=keys, suffixes=("", "_tenth")).to_dict("records")
    heads = [", ".join(keys), *(f"{name}: full / a tenth, bound" for name in NAMES.values())]
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
    victims = f"{rows['victims'].max():.0f}"
    text = TEXT.format(victims=victims, box=_box(bounded, counts, victims), **counts)
    missing = f"\nNot measured yet: {'; '.join(lacking)}.\n" if lacking else ""
    return text + markdown_table([*heads, "above: full noise", "above: a tenth"], lines) + "\n" + missing


def _box(bounded: pd.DataFrame, counts: dict[str, int], victims: str) -> str:
    full = bounded[~bounded["tenth"]]
    detected = f"With a tenth of the noise, {counts['tenth']} of {counts['cells']} are."
    held = "The bounds hold" if counts["said"] == 0 else "A bound is broken"
    missed = counts["cells"] - counts["tenth"]
    finds = "every" if not missed else f"not every noise that is too small ({missed} of {counts['cells']} are missed)"
    return "\n".join(
        box_of(
            "No measurement is significantly above its bound, and a bound detects noise that is ten times too small.",
            f"{held}, but they detect {finds}."
            f" {counts['said']} of {counts['cells']} leakage points are significantly above a bound. {detected}",
            f"{full['defense'].nunique()} defenses on {full['dataset'].nunique()} data sets, {victims} victims each.",
            f"{counts['cells'] - counts['can']} points have bounds of 1.00, which exclude nothing. A tenth of the noise"
            f" stays undetected at {counts['cells'] - counts['tenth']} points. One network and one seed for each row.",
            "python studies/bounds_hold.py",
        )
    )


def above(measures: Any) -> str:
    """Return the names of the measurements above their bounds."""
    listed = [] if pd.isna(measures) else str(measures).split()
    return ", ".join(NAMES.get(measure, measure) for measure in listed) or "none"


def compared(row: dict[Any, Any], measure: str) -> str:
    """Return a measurement with the full noise and with a tenth of it, and its bound."""
    if pd.isna(row[measure]):
        return "-"
    return f"{row[measure]:.3f} / {row[measure + '_tenth']:.3f}, {row[MEASURES[measure]]:.3f}"
