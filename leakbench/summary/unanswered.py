"""Why examples of a leakage point have no answer, counted."""

from __future__ import annotations

import pandas as pd

__all__ = ["unanswered"]


def unanswered(group: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Return {key of `leakbench.measure.unanswered`: of how many `examples` of how many `victims`}, most examples first."""
    failed = group[group["failure"].astype(bool) & (group["failure_reason"] != "")]
    each = failed.groupby("failure_reason", sort=True)
    found = [(str(why), {"examples": len(of), "victims": int(of["victim"].nunique())}) for why, of in each]
    return dict(sorted(found, key=lambda item: -item[1]["examples"]))
