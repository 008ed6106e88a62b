"""Measure one point of a frontier: run its cells, or read complete ones, and return a row for each leakage point."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from scipy.stats import binom
from torch import Tensor

from leakbench.cell import Cell, Request
from leakbench.cell.budget import prepare
from leakbench.cell.network import probe_of
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.recipe import names
from leakbench.core.request import options_of
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.core.verdict_words import IDENTIFIES, RECONSTRUCTS
from leakbench.data.find import Load, load_dataset
from leakbench.defense import Defense, facts_at
from leakbench.experiment.stage_train import fresh_network
from leakbench.federated.simulate import accuracy, from_sent
from leakbench.frontier.choose import CHOICE
from leakbench.frontier.grid import DEFAULT, DEFENSES, FACTORS, IDENTIFY, OUT, SEEDS, Point
from leakbench.measure.rates import IDENTIFIED, LABEL_RANKED
from leakbench.privacy.decay import Scaled
from leakbench.reproduce.measure import accuracy_of, point_of
from leakbench.storage.rows_file import rows_at
from leakbench.storage.store import Run
from leakbench.storage.summary import Summary, Tap
from leakbench.study.rows import Row
from leakbench.study.stale import hash_of, recorded_in
from leakbench.study.study import Execution, executed, limit_of, versions_of
from leakbench.summary.verdict import above_chance, by_chance, whole_victims

__all__ = [
    "SAME",
    "SIZES",
    "asked_of",
    "cells_at",
    "command_of",
    "half_accuracies",
    "halved",
    "identified_by",
    "left_out",
    "measured",
    "null_interval",
    "sigma_of",
    "told_from_chance",
]

SAME = (
    *("dataset", "model", "leak_model", "clients", "clients_per_round", "train_rounds", "local_iterations", "batch"),
    *("learning_rate", "leak_batch", "victims", "iterations", "candidates", "protocol", "attack", "seed"),
)
"""Fields that all points of one frontier share: the sizes on its page."""


LIMITS = ("evaluations", "budget")
"""Limits of the attack that all points share."""


def asked_of(request: Request, seeds: int, identify: int) -> str:
    """Return the shared fields of all points of a frontier, as JSON."""
    shared = {name: getattr(request, name) for name in SAME}
    # Rows from before limits existed do not have these fields.
    limits = {name: getattr(request, name) for name in LIMITS if getattr(request, name) is not None}
    return json.dumps(
        {**shared, **limits, "taps": list(request.taps), "seeds": seeds, "identify": identify}, sort_keys=True
    )


SIZES = {
    "clients": "{} clients",
    "clients_per_round": "{} of them a round",
    "train_rounds": "{} rounds",
    "local_iterations": "{} local iterations",
    "batch": "batches of {}",
    "learning_rate": "learning rate {}",
    "model": "trained network `{}`",
    "leak_model": "leaking network `{}`",
    "victims": "{} victims of `autoleak`",
    "identify": "up to {} victims of identification",
    "iterations": "at most {} iterations of the attack",
    "evaluations": "at most {} gradient evaluations for each victim",
    "budget": "at most {} seconds for each point's attack (numbers depend on the machine)",
    "candidates": "up to {} candidates",
    "seeds": "{} seeds",
}


def command_of(rows: pd.DataFrame, out: Path) -> str:
    """Return the command that measures all rows again, with the options that are not the defaults.

    Args:
        rows: All rows of a frontier, at least one.
        out: Folder of the rows.
    """
    asked, noisy = json.loads(rows["asked"].iloc[0]), rows["noise"].astype(bool)
    request = Request(**{name: asked[name] for name in (*SAME, *LIMITS) if name in asked}, taps=tuple(asked["taps"]))
    defenses = tuple(dict.fromkeys(rows["defense"]))
    factors = tuple(sorted(set(rows.loc[noisy, "factor"]), reverse=True))
    words = ["--dataset", request.dataset]
    if set(defenses) != set(DEFENSES):
        # Named defenses that do not fit are errors; those of `all` are left out.
        words += ["--defenses", "all" if set(defenses) == set(names("defenses")) else ",".join(defenses)]
    words += [] if factors in ((), FACTORS) else ["--noise-factors", ",".join(f"{factor:g}" for factor in factors)]
    words += options_of(request, DEFAULT, ("dataset",))
    words += [] if asked["identify"] == IDENTIFY else ["--identify", str(asked["identify"])]
    words += [] if asked["seeds"] == SEEDS else ["--seeds", str(asked["seeds"])]
    words += [] if out == OUT else ["--out", str(out)]
    return shlex.join(["leakbench", "frontier", *words])


def cells_at(
    point: Point, request: Request, seeds: int, identify: int, data_dir: Path | None, load: Load = load_dataset
) -> list[Cell]:
    """Return a point's cells: the first is attacked, those with other seeds only measure accuracy, the last identifies victims.

    Args:
        point: The point.
        request: The cell that all points share.
        seeds: Number of trainings.
        identify: Largest number of victims to identify.
        data_dir: Folder of the data sets; None for the default.
        load: Reads a data set.

    Raises:
        InputError: The point cannot be measured.
    """
    factor = None if point.factor == 1.0 else point.factor
    first = dataclasses.replace(request, defense=point.defense, noise_factor=factor)
    alone = dataclasses.replace(first, attack="identification", victims=1, candidates=2, **UNLIMITED)
    others = [dataclasses.replace(alone, seed=request.seed + i) for i in range(1, seeds)]
    cells = [prepare(each, data_dir, load=load) for each in (first, *others)]
    return [*cells, identify_cell(cells[0], first, identify, data_dir, load)]


def measured(point: Point, cells: list[Cell], asked: str, command: str, execution: Execution) -> list[Row]:
    """Run a point's cells, each in its own folder, where an interrupted one is resumed; return the rows."""
    halves, seconds, found, manifests = list[tuple[float, float]](), 0.0, list[Row](), list[Mapping[str, Any]]()
    *trained, many = cells
    with executed(many, execution.runs, command, execution.reporter) as (summary, run):
        identified = summary.taps
        seconds += sum(run.manifest["phases"].values())
        manifests += [run.manifest]
    for cell in trained:
        with executed(cell, execution.runs, command, execution.reporter) as (summary, run):
            halves += [] if summary.accuracy is None else [half_accuracies(cell, run)]
            seconds += sum(run.manifest["phases"].values())
            manifests += [run.manifest]
            found = found or _taps(summary, run, identified)
    first = cells[0]
    same = {
        **_named(point, asked),
        "sigma": sigma_of(first.defense),
        "unit": first.defense.unit,
        "limit": limit_of(first),
        "hash": hash_of(cells),
        **recorded_in(cells),
        "seeds": len(trained),
        CHOICE: fmean(choosing for choosing, _ in halves) if halves else None,
        **accuracy_of([reported for _, reported in halves], len(halved(first)[1])),
        "wall_minutes": round(seconds / 60, 1),
        "versions": versions_of(manifests),
    }
    return [same | row for row in found]


def halved(cell: Cell) -> tuple[Tensor, Tensor]:
    """Return the indices of two halves of the test examples, the same for all settings: one chooses a setting, one is reported."""
    count = len(cell.data.test_targets)
    order = torch.randperm(count, generator=generator(0, "test halves"))
    chooses = max(1, count // 2)
    return order[:chooses], order[chooses:] if count > 1 else order


def half_accuracies(cell: Cell, run: Run) -> tuple[float, float]:
    """Return the accuracies of a run's trained network on the two halves of the test examples."""
    model, _ = fresh_network(cell, trained=True)
    weights, memory = (
        {name: tensor.to(cell.settings.device) for name, tensor in tensors.items()}
        for tensors in from_sent(run.read_tensors("model.safetensors"))
    )
    state = {**weights, **Network(model, weights, memory=memory).statistics}
    tests = ((cell.data.test_inputs[half], cell.data.test_targets[half]) for half in halved(cell))
    choosing, reported = (accuracy(model.eval(), state, *test)[0] for test in tests)
    return choosing, reported


def left_out(point: Point, asked: str, why: str) -> Row:
    """Return the row of a point that cannot be measured, with the reason."""
    return {**_named(point, asked), "left_out": why}


def _named(point: Point, asked: str) -> Row:
    return {
        "row": point.name,
        "cell": point.name,
        "defense": point.defense,
        "factor": point.factor,
        "noise": point.noise,
        "asked": asked,
    }


def _taps(summary: Summary, run: Run, identified: dict[str, Tap]) -> list[Row]:
    rows = run.read_rows("rows.parquet")
    epsilon, against = summary.epsilon, summary.epsilon.by_tap or {}
    return [
        point_of(tap, rows_at(rows, LeakagePoint.of(name)))
        | {"null_asr_low": tap.null_asr_low, "null_asr_high": tap.null_asr_high}
        | {LABEL_RANKED.low: tap.label_ranked_low, LABEL_RANKED.high: tap.label_ranked_high}
        | {"null_label": tap.null_label, "failures": tap.failures}
        | identified_by(identified[name], tap.verdict)
        | {"epsilon_claimed": epsilon.claimed, "claimed_by": epsilon.claimed_formula}
        | {"epsilon_valid": epsilon.valid, "epsilon_reason": epsilon.reason, "delta": epsilon.delta}
        | {"epsilon_tap": against[name].valid, "epsilon_tap_reason": against[name].reason}
        | {"above": sum(broken.tap == name for broken in summary.violations), "point": name}
        for name, tap in summary.taps.items()
    ]


def sigma_of(defense: Defense) -> str:
    """Return the noise multipliers, as `0.6`; a schedule as its name and ends, `exponential 1.5 to 0.485`; empty without noise."""
    multipliers = [getattr(transform, "multiplier", None) for transform in defense.stations.transforms]
    found = [_said(multiplier) for multiplier in multipliers if multiplier is not None]
    return " and ".join(dict.fromkeys(found))


def _said(multiplier: Any) -> str:
    if not callable(multiplier):
        return f"{multiplier:g}"
    scaled = isinstance(multiplier, Scaled)
    curve, factor = (multiplier.decay, multiplier.factor) if scaled else (multiplier, 1.0)
    ends = [getattr(curve, end) * factor for end in ("start", "end") if hasattr(curve, end)]
    name = type(curve).__name__.lower()
    if ends:
        return f"{name} {' to '.join(f'{end:g}' for end in ends)}"
    return f"{name} x {factor:g}" if factor != 1 else name


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
    victims = min(many, len(first.data.victims), first.settings.candidates)
    asked = dataclasses.replace(request, attack="identification", victims=victims, **UNLIMITED)
    cell = prepare(dataclasses.replace(asked, train_rounds=0), data_dir, load=load)
    return cell if _facts_of(cell) == _facts_of(first) else prepare(asked, data_dir, load=load)


def identified_by(tap: Tap, verdict: str) -> Row:
    """Return the columns of a row that the identification of many victims gives.

    Args:
        tap: Summary of the leakage point.
        verdict: Verdict of the attack on few victims. It becomes `identifies` where the attack does not reconstruct, but many
            victims are identified significantly more often than by chance.
    """
    row = {key: tap.value(key) for key in SHARES} | {
        "identify_victims": tap.victims,
        "identify_p": told_from_chance(tap),
    }
    if verdict != RECONSTRUCTS and tap.identified is not None and above_chance(*_trials(tap)):
        verdict = IDENTIFIES
    return (
        row
        | dict(zip(("null_identified_low", "null_identified_high"), null_interval(tap), strict=True))
        | {"verdict": verdict}
    )


def told_from_chance(tap: Tap) -> float:
    """Return the p-value of a one-sided exact binomial test against chance: V trials at 1 / k; NaN without a ranking.

    Args:
        tap: Summary with the share `identified` of `victims` V, each among `candidates` k.
    """
    return math.nan if tap.identified is None else by_chance(*_trials(tap))


def _trials(tap: Tap) -> tuple[int, int, float]:
    return whole_victims((tap.identified or 0.0) * tap.victims), tap.victims, tap.chance


def _facts_of(cell: Cell) -> Any:
    probe = probe_of(cell.defense, cell.data, cell.settings)
    return facts_at(cell.defense, probe, cell.defense.clock(probe.federation, 0))


def null_interval(tap: Tap) -> tuple[float, float]:
    """Return the shares (low, high) of the victims between which chance stays with a probability of at least 95 %.

    Args:
        tap: `victims` V, each among `candidates` k. Quantiles of the binomial distribution of V trials at 1 / k, over V.
    """
    victims, chance = tap.victims, tap.chance
    tail = (1 - 0.95) / 2
    low, high = (float(binom.ppf(q, victims, chance)) for q in (tail, 1 - tail))
    return max(0.0, low) / victims, high / victims
