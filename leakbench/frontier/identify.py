"""Identify many victims in a separate cell: it is cheap, and many victims separate a leak from chance better than few."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scipy.stats import binom

from leakbench.cell import Cell, Request
from leakbench.cell.budget import prepare
from leakbench.cell.network import probe_of
from leakbench.data.find import Load, load_dataset
from leakbench.defense import facts_at
from leakbench.measure.rates import IDENTIFIED
from leakbench.study.rows import Row
from leakbench.summary.verdict import above_chance, by_chance, whole_victims
from leakbench.summary.verdict_words import IDENTIFIES, RECONSTRUCTS

__all__ = ["UNLIMITED", "identified_by", "identify_cell", "null_interval", "told_from_chance"]

UNLIMITED: dict[str, Any] = dict.fromkeys(("iterations", "evaluations", "budget"))
"""Limits of searches; identification does not search."""

SHARES = (*IDENTIFIED.ends, IDENTIFIED.bound, "candidates")
"""Columns copied from the summary of the cell with many victims."""


def identify_cell(first: Cell, request: Request, many: int, data_dir: Path | None, load: Load = load_dataset) -> Cell:
    """Return the cell that identifies up to `many` victims behind the defense of the cell that is attacked.

    Nothing is trained, except where the defense's noise in round 0 depends on the number of rounds.

    Args:
        first: The point's attacked cell.
        request: The request of that cell.
        many: Largest number of victims; fewer where the data set or the candidates are fewer.
        data_dir: Folder of the data sets; None for the default.
        load: Reads a data set.
    """
    victims = min(many, len(first.data.victims), request.candidates)
    asked = dataclasses.replace(request, attack="identification", victims=victims, **UNLIMITED)
    cell = prepare(dataclasses.replace(asked, train_rounds=0), data_dir, load=load)
    return cell if _facts(cell) == _facts(first) else prepare(asked, data_dir, load=load)


def identified_by(tap: Mapping[str, Any], verdict: str) -> Row:
    """Return the columns of a row that the identification of many victims gives.

    Args:
        tap: Summary of the leakage point.
        verdict: Verdict of the attack on few victims. It becomes `identifies` where the attack does not reconstruct, but many
            victims are identified significantly more often than by chance.
    """
    row = {key: tap[key] for key in SHARES} | {"identify_victims": tap["victims"], "identify_p": told_from_chance(tap)}
    if verdict != RECONSTRUCTS and tap[IDENTIFIED.name] is not None and above_chance(*_trials(tap)):
        verdict = IDENTIFIES
    return (
        row
        | dict(zip(("null_identified_low", "null_identified_high"), null_interval(tap), strict=True))
        | {"verdict": verdict}
    )


def told_from_chance(tap: Mapping[str, Any]) -> float:
    """Return the p-value of a one-sided exact binomial test against chance: V trials at 1 / k; NaN without a ranking.

    Args:
        tap: Summary with the share `identified` of `victims` V, each among `candidates` k.
    """
    if tap[IDENTIFIED.name] is None or math.isnan(tap[IDENTIFIED.name]):
        return math.nan
    return by_chance(*_trials(tap))


def _trials(tap: Mapping[str, Any]) -> tuple[int, int, float]:
    victims = int(tap["victims"])
    return whole_victims(tap[IDENTIFIED.name] * victims), victims, 1.0 / tap["candidates"]


def _facts(cell: Cell) -> Any:
    probe = probe_of(cell.defense, cell.data, cell.settings)
    return facts_at(cell.defense, probe, cell.defense.clock(probe.federation, 0))


def null_interval(tap: Mapping[str, Any], confidence: float = 0.95) -> tuple[float, float]:
    """Return the shares (low, high) of the victims between which chance stays with at least this probability.

    Args:
        tap: `victims` V, each among `candidates` k. Quantiles of the binomial distribution of V trials at 1 / k, over V.
    """
    victims, chance = int(tap["victims"]), 1.0 / tap["candidates"]
    tail = (1 - confidence) / 2
    low, high = (float(binom.ppf(q, victims, chance)) for q in (tail, 1 - tail))
    return max(0.0, low) / victims, high / victims
