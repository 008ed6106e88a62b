"""Identification of many victims, a cell of its own: so cheap that chance is told apart better than by an attack's few victims."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leakbench.cell import Cell, Request
from leakbench.cell.budget import prepare
from leakbench.cell.network import probe_of
from leakbench.data.find import Load, load_dataset
from leakbench.defense import facts_at
from leakbench.frontier.null import null_interval
from leakbench.reproduce.rows import Row
from leakbench.summary.verdict import above_chance, by_chance, whole_victims
from leakbench.summary.verdict_words import IDENTIFIES, RECONSTRUCTS

__all__ = ["UNLIMITED", "identified_by", "identify_cell", "told_from_chance"]

UNLIMITED: dict[str, Any] = dict.fromkeys(("iterations", "evaluations", "budget"))
"""Limits of searches, of which identification has none."""

SHARES = ("identified", "identified_low", "identified_high", "identified_bound", "candidates")
"""Copied from the summary of a leakage point of the cell with many victims."""


def identify_cell(first: Cell, request: Request, many: int, data_dir: Path | None, load: Load = load_dataset) -> Cell:
    """Return the cell that identifies up to `many` victims behind the defense of the cell that is attacked.

    first: the point's attacked cell.  request: what it was made of.  many: fewer where the data set or the candidates are fewer.
    load: as of `prepare`.
    Nothing is trained, but where what the defense does in round 0 follows from how many rounds there are.
    """
    victims = min(many, len(first.data.victims), request.candidates)
    asked = dataclasses.replace(request, attack="identification", victims=victims, **UNLIMITED)
    cell = prepare(dataclasses.replace(asked, train_rounds=0), data_dir, load=load)
    return cell if _facts(cell) == _facts(first) else prepare(asked, data_dir, load=load)


def identified_by(tap: Mapping[str, Any], verdict: str) -> Row:
    """Return what a row has from the identification of many victims at its leakage point.

    tap: that point's summary.  verdict: of the attack on few victims. Where the attack does not reconstruct, but many victims
    are identified significantly more often than by chance, the setting `identifies`.
    """
    row = {key: tap[key] for key in SHARES} | {"identify_victims": tap["victims"], "identify_p": told_from_chance(tap)}
    if verdict != RECONSTRUCTS and tap["identified"] is not None and above_chance(*_trials(tap)):
        verdict = IDENTIFIES
    return (
        row
        | dict(zip(("null_identified_low", "null_identified_high"), null_interval(tap), strict=True))
        | {"verdict": verdict}
    )


def told_from_chance(tap: Mapping[str, Any]) -> float:
    """Return with which probability chance identifies at least as many: one-sided exact binomial test, V trials at 1 / k.

    tap: the share `identified` of `victims` V, each among `candidates` k.  NaN where no ranking could be made.
    """
    if tap["identified"] is None or math.isnan(tap["identified"]):
        return math.nan
    return by_chance(*_trials(tap))


def _trials(tap: Mapping[str, Any]) -> tuple[int, int, float]:
    victims = int(tap["victims"])
    return whole_victims(tap["identified"] * victims), victims, 1.0 / tap["candidates"]


def _facts(cell: Cell) -> Any:
    probe = probe_of(cell.defense, cell.data, cell.settings)
    return facts_at(cell.defense, probe, cell.defense.clock(probe.federation, 0))
