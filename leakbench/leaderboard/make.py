"""A card, measured: its cells are run, or read where they are whole, the defense is audited, and nothing else is on it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leakbench.auditing.cell import audit, check_trials
from leakbench.cell import Request
from leakbench.leaderboard.asked import (
    Asked,
    Asking,
    asking,
    audit_command,
    audit_request,
    card_command,
    hash_of,
    settings_of,
)
from leakbench.leaderboard.card import FORMAT, Accuracy, Audited, Card, Claim, Epsilon, Measured, TapEpsilon
from leakbench.leaderboard.point import point_of, rounded
from leakbench.leaderboard.sources import sources_of
from leakbench.leaderboard.warnings import warnings_of
from leakbench.measure.statistics import wilson
from leakbench.progress import Reporter, cells_line
from leakbench.provenance import versions
from leakbench.reproduce.rows import executed
from leakbench.study.engines import Placed
from leakbench.study.measure import Wanted, measured_first
from leakbench.summary.threat import threat

__all__ = ["make_card"]


def _made_with() -> dict[str, str]:
    """Return the packages' versions, the machine's kind, what PyTorch uses of its processor, and the threads."""
    found = {name: text for name, text in versions().items() if name != "machine"}
    return {
        **found,
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "cores": str(os.cpu_count()),
    }


DELTA = 1e-5
"""Of every epsilon on a card, as in a run's summary."""

Summary = dict[str, Any]


def make_card(
    asked: Asked,
    defense: str,
    dataset: str,
    attack: str,
    runs: Path,
    data_dir: Path | None,
    reporter: Reporter,
    engine: Placed | None = None,
) -> Card:
    """Measure the card of a defense on a data set; each cell has its folder in `runs`, where it goes on if it was cut short.

    Args:
        defense: a name of the catalog, or the path of a recipe.
        engine: Measures cells in parallel; None for this process. Raises InputError for what cannot be run.
    """
    check_trials(asked.trials)
    cells = asking(asked, defense, dataset, attack, data_dir)
    if engine is not None:
        wanted = [
            Wanted(f"{each.attacker} attacker, protocol {each.protocol}", (each.cell.request,), each.command)
            for each in cells
            if each.cell.request is not None
        ]
        with closing(measured_first(wanted, engine, runs, data_dir, reporter)) as ready:
            for name in ready:
                reporter.say(f"measured: {name}")
    summaries, measured = list[Summary](), list[Measured]()
    took = list[float]()
    for place, each in enumerate(cells, 1):
        reporter.heading = f"cell {place} of {len(cells)}"
        reporter.note(cells_line(len(cells) - place + 1, took) + ", then the audit")
        began = time.monotonic()
        reporter.say(f"{each.attacker} attacker, protocol {each.protocol}: {each.command}")
        with executed(each.cell, runs, each.command, reporter) as (summary, run):
            measured.append(_measured(each, summary, run.read_rows("rows.parquet")))
            summaries.append(summary)
        took.append(time.monotonic() - began)
    reporter.heading = ""
    audited = _audited(asked, defense, cells[0], data_dir, reporter)
    reporter.close()
    return _card(asked, cells, summaries, measured, audited)


def _card(
    asked: Asked, cells: Sequence[Asking], summaries: Sequence[Summary], measured: Sequence[Measured], audited: Audited
) -> Card:
    cell, summary = cells[-1].cell, summaries[-1]
    sources = sources_of(cell)
    names = [sources[what].name for what in ("defense", "dataset", "attack")]
    epsilon = _epsilon(summary["epsilon"], audited)
    return Card(
        format=FORMAT,
        hash=hash_of(cells, asked),
        repeat=card_command(asked, *names),
        **sources,
        threat=threat(cell.attack),
        asked=asked,
        settings=settings_of(cells),
        reported=tuple(_claim(claim) for claim in summary["claims"]),
        accuracy=_accuracy(summary, cell.data.test_targets),
        epsilon=epsilon,
        cells=tuple(measured),
        warnings=warnings_of(measured, summaries, epsilon),
        made_with=_made_with(),
    )


def _measured(each: Asking, summary: Summary, rows: Any) -> Measured:
    points = []
    for name, tap in summary["taps"].items():
        mine = rows[(rows["round"] == tap["round"]) & (rows["tap"] == name.partition("@")[0])]
        points.append(point_of(name, summary, mine))
    above = [f"{broken['tap']}: {broken['measure']} is above its bound" for broken in summary["violations"]]
    return Measured(
        attacker=each.attacker,  # type: ignore[arg-type]
        protocol=each.protocol,  # type: ignore[arg-type]
        command=each.command,
        hash=each.cell.hash,
        network=each.cell.settings.leaking,
        points=tuple(points),
        warnings=(*summary["warnings"], *above),
    )


def _accuracy(summary: Summary, targets: Tensor) -> Accuracy:
    value, examples, share = summary["accuracy"], len(targets), None
    if value is not None:
        low, high = wilson(value * examples, examples)
        share = (round(value, 4), round(low, 4), round(high, 4))
    majority = round(float(targets.bincount().max()) / examples, 4)
    return Accuracy(value=share, majority=majority, examples=examples, rounds=summary["rounds"])


def _epsilon(found: dict[str, Any], audited: Audited) -> Epsilon:
    return Epsilon(
        unit=found["unit"],
        delta=found["delta"],
        claimed=rounded(found["claimed"]),
        claimed_by=found["claimed_formula"],
        caveats=tuple(found["caveats"]),
        valid=rounded(found["valid"]),
        reason=found["reason"],
        by_tap={
            tap: TapEpsilon(valid=rounded(at["valid"]), reason=at["reason"]) for tap, at in found["by_tap"].items()
        },
        audited=audited,
    )


def _audited(asked: Asked, defense: str, each: Asking, data_dir: Path | None, reporter: Reporter) -> Audited:
    names = each.cell.names
    request = audit_request(asked, defense, names["dataset"])
    found = audit(Request(**request), data_dir, DELTA, asked.trials, None, None, None, reporter)
    return Audited(
        command=audit_command(asked, names["defense"], names["dataset"]),
        lower_bound=rounded(found.lower_bound) or 0.0,
        lower_bound_family=rounded(found.lower_bound_family),
        confidence=found.confidence,
        trials=found.trials,
        verdict=found.verdict,
        reason=found.reason,
    )


def _claim(claim: dict[str, Any]) -> Claim:
    return Claim(
        what=claim["what"],
        printed=float(claim["claimed"]),
        measured=rounded(claim["measured"]),
        source=" ".join(claim["source"].split()),
        comment=claim["comment"],
    )
