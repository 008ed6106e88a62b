"""The measurements of a leakage point that the noise bounds, each with its bound, what that starts from and its outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pandas as pd

from leakbench.measure.rankings import RANKINGS
from leakbench.measure.scores_rankings import FALSE_ALARMS

__all__ = ["BOUNDS", "Bound"]

Kappa: TypeAlias = Callable[[Mapping[str, Any]], float]
Outcomes: TypeAlias = Callable[[pd.DataFrame], tuple[pd.Series, pd.Series]]


@dataclass(frozen=True)
class Bound:
    """A bound on one measurement.

    measure, field: how the summary of a leakage point calls the measurement and its bound.  said: how a line calls both.
    kappa: the measurements, with `null_label`, the largest share of one label -> how often who sees no release is right, in [0, 1].
    outcomes: the rows -> (whether each was right (n,), which rows stand or fall together (n,)).
    whole: the measurement's name in a line about it alone, where `said` would be too short.
    """

    measure: str
    field: str
    said: str
    kappa: Kappa
    outcomes: Outcomes
    whole: str = ""

    @property
    def name(self) -> str:
        """How a line about the measurement alone calls it."""
        return self.whole or self.said


def _once(column: str) -> Outcomes:
    """Return the outcomes of what is scored once for each victim, on its first example."""

    def outcomes(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
        first = rows.dropna(subset=[column])
        return first[column], first["victim"]

    return outcomes


def _ranked(name: str) -> Bound:
    """Return the bound on what a ranking of `leakbench.measure.rankings` tells right."""
    question = RANKINGS[name]
    return Bound(name, f"{name}_bound", question.said, question.kappa, _once(name))


BOUNDS = (
    # An answer of M guesses is matched to M examples, so that each has M chances to be hit.
    Bound(
        measure="asr",
        field="asr_bound",
        said="ASR",
        kappa=lambda tap: min(1.0, float(tap["batch"] * tap["null_asr_high"])),
        outcomes=lambda rows: (rows["success"], rows["batch"]),
    ),
    _ranked("identified"),
    Bound(
        measure="label_accuracy",
        field="label_bound",
        said="label",
        kappa=lambda tap: min(1.0, float(tap["batch"] * tap["null_label"])),
        outcomes=lambda rows: (rows["label"] == rows["label_guess"], rows["batch"]),
        whole="label accuracy",
    ),
    _ranked("label_ranked"),
    Bound(
        measure="member_tpr",
        field="member_tpr_bound",
        said="member found",
        kappa=lambda _: FALSE_ALARMS,
        outcomes=_once("member_found"),
    ),
)
"""All of them, in the order in which they are printed."""
