"""A card, measured: its cells are run, or read where they are whole, the defense is audited, and nothing else is on it."""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from leakbench.auditing.cell import audit
from leakbench.cell import Request
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.progress import Reporter, cells_line
from leakbench.core.verdict_words import FAILED, IDENTIFIES, RECONSTRUCTS
from leakbench.core.words import check_trials, epsilon_text
from leakbench.leaderboard.asked import (
    ATTACKER_NAMES,
    Asking,
    CardSizes,
    asking,
    audit_command,
    audit_request,
    card_command,
    hash_of,
    settings_of,
    trainings,
)
from leakbench.leaderboard.card import (
    FORMAT,
    Accuracy,
    Audited,
    Card,
    CardClaim,
    CardEpsilon,
    CardPoint,
    Measured,
    TapEpsilon,
    sources_of,
)
from leakbench.leaderboard.point import point_of, rounded
from leakbench.measure.statistics import accuracy_interval
from leakbench.storage.rows_file import rows_at
from leakbench.storage.summary import EpsilonSummary, PrintedNumber, Summary
from leakbench.study.study import Execution, Job, executed, versions_of
from leakbench.summary.threat import threat

__all__ = [
    "claim_of",
    "make_card",
    "warnings_of",
]


def _made_with(runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the packages' versions of the runs, the machine's kind, what PyTorch uses of its processor, and the threads.

    Args:
        runs: The manifests of the cells; `device` names a GPU that computed one.
    """
    found = {name: text for name, text in json.loads(versions_of(runs)).items() if name != "machine"}
    return {
        **found,
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "cores": str(os.cpu_count()),
    }


Finished: TypeAlias = tuple[Summary, Measured | None, Mapping[str, Any]]
"""The summary of a cell, what the card keeps of it (None of one that is run for its training), and its manifest."""

DELTA = 1e-5
"""Of every epsilon on a card, as in a run's summary."""


def make_card(asked: CardSizes, defense: str, dataset: str, attack: str, execution: Execution) -> Card:
    """Measure the card of a defense on a data set; an interrupted cell is resumed.

    Args:
        defense: A name of the catalog, or the path of a recipe.
        execution: Where and how its cells are run.

    Raises:
        InputError: A cell cannot be run.
    """
    check_trials(asked.trials)
    cells, reporter = asking(asked, defense, dataset, attack, execution.data_dir), execution.reporter
    every = [*cells, *trainings(asked, cells[0].cell, defense, execution.data_dir)]
    took, measured = list[float](), dict[str, Finished]()

    def measure(each: Asking) -> Finished:
        reporter.note(cells_line(len(every) - len(took), took) + ", then the audit")
        reporter.say(f"{each.name}: {each.given}")
        began = time.monotonic()
        found = _measured(each, execution)
        took.append(time.monotonic() - began)
        return found

    jobs = [
        Job(
            each.name,
            partial(measure, each),
            () if each.cell.request is None else (each.cell.request,),
            each.given,
            f"cell {place} of {len(every)}",
        )
        for place, each in enumerate(every, 1)
    ]
    with closing(execution(jobs)) as results:
        for job, found in results:
            measured[job.name] = found
            if execution.engine is not None:
                reporter.say(f"measured: {job.name}")
    reporter.heading = ""
    audited = _audited(asked, defense, cells[0], execution.data_dir, reporter)
    reporter.close()
    ordered = [measured[each.name] for each in every]
    summaries, manifests = [summary for summary, _, _ in ordered], [manifest for _, _, manifest in ordered]
    of_cells = [found for _, found, _ in ordered if found is not None]
    return _card(asked, cells, summaries, of_cells, audited, _made_with(manifests))


def _card(
    asked: CardSizes,
    cells: Sequence[Asking],
    summaries: Sequence[Summary],
    measured: Sequence[Measured],
    audited: Audited,
    made_with: dict[str, str],
) -> Card:
    """Return the card of the results.

    Args:
        asked: The sizes of the card.
        cells: Its cells.
        summaries: Those of the cells, then those of the trainings with further seeds.
        measured: What the card keeps of each cell.
        audited: The result of the audit.
        made_with: Versions and the machine.
    """
    last = len(cells) - 1
    cell, summary = cells[last].cell, summaries[last]
    sources = sources_of(cell)
    names = [sources[what].name for what in ("defense", "dataset", "attack")]
    epsilon = _epsilon(summary.epsilon, audited)
    accuracy = _accuracy(summaries[last:], cell.data.test_targets)
    return Card(
        format=FORMAT,
        hash=hash_of(cells, asked),
        repeat=card_command(asked, *names),
        **sources,
        threat=threat(cell.attack),
        asked=asked,
        settings=settings_of(cells),
        reported=tuple(claim_of(claim, accuracy) for claim in summary.claims or ()),
        accuracy=accuracy,
        epsilon=epsilon,
        cells=tuple(measured),
        warnings=warnings_of(measured, summaries[: len(cells)], epsilon),
        made_with=made_with,
    )


def _measured(each: Asking, execution: Execution) -> Finished:
    """Run a cell of a card, or read it where it is finished."""
    with executed(each.cell, execution.runs, each.given, execution.reporter) as (summary, run):
        rows = run.read_rows("rows.parquet")
    if not each.attacker:
        return summary, None, run.manifest
    points = [point_of(name, summary, rows_at(rows, LeakagePoint.of(name))) for name in summary.taps]
    above = [f"{broken.tap}: {broken.measure} is above its bound" for broken in summary.violations]
    cell = Measured(
        attacker=each.attacker,  # type: ignore[arg-type]
        protocol=each.protocol,  # type: ignore[arg-type]
        command=each.command,
        hash=each.cell.hash,
        network=each.cell.settings.leaking,
        points=tuple(points),
        warnings=(*summary.warnings, *above),
    )
    return summary, cell, run.manifest


def _accuracy(trained: Sequence[Summary], targets: Tensor) -> Accuracy:
    """Return the accuracy of the trainings of a card, one for each seed."""
    found = [summary.accuracy for summary in trained if summary.accuracy is not None]
    examples, share = len(targets), None
    if found:
        value, low, high = accuracy_interval(found, examples)
        share = (round(value, 4), round(low, 4), round(high, 4))
    return Accuracy(
        value=share,
        majority=round(float(targets.bincount().max()) / examples, 4),
        examples=examples,
        rounds=trained[0].rounds or 0,
        by_seed=tuple(round(value * examples, 4) for value in found) if len(found) > 1 else (),
    )


def _epsilon(found: EpsilonSummary, audited: Audited) -> CardEpsilon:
    return CardEpsilon(
        unit="client" if found.unit == "client" else "example",
        delta=found.delta or DELTA,
        claimed=rounded(found.claimed),
        claimed_by=found.claimed_formula or "",
        caveats=tuple(found.caveats or ()),
        valid=rounded(found.valid),
        reason=found.reason or "",
        by_tap={
            tap: TapEpsilon(valid=rounded(at.valid), reason=at.reason or "") for tap, at in (found.by_tap or {}).items()
        },
        audited=audited,
    )


def _audited(asked: CardSizes, defense: str, each: Asking, data_dir: Path | None, reporter: Reporter) -> Audited:
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


def claim_of(claim: PrintedNumber, accuracy: Accuracy) -> CardClaim:
    """Return a printed number with the measured one; an accuracy is the mean of all trainings of the card."""
    mean = accuracy.value[0] if claim.what == "accuracy" and accuracy.value is not None else claim.measured
    return CardClaim(
        what=claim.what,
        printed=float(claim.claimed or 0.0),
        measured=rounded(mean),
        source=" ".join((claim.source or "").split()),
        comment=claim.comment or "",
    )


SHOWN = (RECONSTRUCTS, IDENTIFIES, FAILED)
"""Verdicts on a leakage point that are warnings of its card."""


def warnings_of(cells: Sequence[Measured], summaries: Sequence[Summary], epsilon: CardEpsilon) -> tuple[str, ...]:
    """Return the warnings of a card; those of single cells stand with them."""
    return (
        *(f"not as claimed: {caveat}" for caveat in epsilon.caveats),
        *_of_audit(epsilon),
        *(
            f"{ATTACKER_NAMES[cell.attacker]} attacker, protocol {cell.protocol}: {said} at {', '.join(points)}"
            for cell in cells
            for said, points in _shown(cell).items()
        ),
        *(
            f"{ATTACKER_NAMES[cell.attacker]} attacker, protocol {cell.protocol}: {said} ({', '.join(points)})"
            for cell in cells
            if cell.attacker == "aware"
            for said, points in _doubted(cell).items()
        ),
        *_weaker(cells),
        *_trained_otherwise(summaries),
    )


def _of_audit(epsilon: CardEpsilon) -> Iterator[str]:
    if epsilon.audited.verdict == "violated":
        yield f"audit: violated: {epsilon.audited.reason}"
    elif epsilon.audited.verdict == "no guarantee" and epsilon.claimed is not None:
        yield f"no guarantee: an epsilon of {epsilon_text(epsilon.claimed, '.4g')} is claimed, none is valid"


def _shown(cell: Measured) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for point in cell.points:
        if point.verdict in SHOWN:
            found.setdefault(point.verdict, []).append(point.name)
    return found


def _doubted(cell: Measured) -> dict[str, list[str]]:
    """Return {what weakens the evidence of a cell: at which leakage points}; of how many victims stands with the cell."""
    found: dict[str, list[str]] = {}
    for warning in cell.warnings:
        point, _, said = warning.partition(": ")
        found.setdefault(re.sub(r"^for \d+ of \d+ victims, ", "", said), []).append(point)
    return found


def _weaker(cells: Sequence[Measured]) -> Iterator[str]:
    """Yield where the adaptive attacker got less than the oblivious one, so that its result is not the strongest possible."""
    aware = {(cell.protocol, p.name): p for cell in cells if cell.attacker == "aware" for p in cell.points}
    for cell in cells:
        if cell.attacker == "oblivious":
            for point in cell.points:
                other = aware.get((cell.protocol, point.name))
                if other is not None and _less(other, point):
                    yield f"protocol {cell.protocol}, {point.name}: the adaptive attacker reconstructs fewer than the oblivious one"


def _less(one: CardPoint, other: CardPoint) -> bool:
    return one.asr is not None and other.asr is not None and one.asr[0] < other.asr[0]


def _trained_otherwise(summaries: Sequence[Summary]) -> Iterator[str]:
    found = sorted({summary.accuracy for summary in summaries if summary.accuracy is not None})
    if len(found) > 1:
        yield f"accuracy differs between the cells, from {found[0]:.4f} to {found[-1]:.4f}; the last one's is shown"
