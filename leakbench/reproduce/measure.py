"""A cell of a table, run or read where it is whole, and its rows: one for each leakage point, of several rounds one each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakbench.attack.methods.rows import Rows
from leakbench.attack.servers.imprint import Bins
from leakbench.attack.servers.peftleak import PatchBins, PeftLeak, patches_of
from leakbench.cell import Cell
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import plan, prepare
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.progress import Reporter
from leakbench.core.types import Network
from leakbench.core.verdict_words import resilient
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import draw_victims, sent_to_clients, truth, view_of
from leakbench.federated.view import View
from leakbench.limits.reference import alone_patches
from leakbench.measure import rates
from leakbench.measure.closeness import eta_of
from leakbench.measure.measures import EDIT_DISTANCE, PSNR, RMSE, SSIM, deciding
from leakbench.measure.rates import ASR, IDENTIFIED, LABEL_RANKED, LABELS, PRECISION, RECOGNISED, VERBATIM
from leakbench.measure.statistics import accuracy_interval, mean_interval, median_interval, proportion
from leakbench.models.layers import first_layer
from leakbench.reproduce.table import Line, Table
from leakbench.reproduce.verdict import settled
from leakbench.storage.rows_file import rows_at
from leakbench.storage.store import Run
from leakbench.storage.summary import Summary, Tap
from leakbench.study.rows import Row
from leakbench.study.stale import hash_of, recorded_in
from leakbench.study.study import Execution, executed, limit_of, minutes_of, versions_of

__all__ = [
    "accuracies_in",
    "accuracy_of",
    "cells_of",
    "certain",
    "changed_in",
    "check_line",
    "command_of",
    "in_any_row",
    "measured",
    "patches_read",
    "point_of",
    "trainings_of",
    "within",
]

MEASURES = (
    *(*ASR.ends, ASR.baseline, RMSE.name, RMSE.baseline, PSNR.name, SSIM.name, LABELS.name),
    *(IDENTIFIED.name, "iterations", ASR.bound, "rmse_floor", IDENTIFIED.low, IDENTIFIED.high, IDENTIFIED.bound),
    *(LABEL_RANKED.name, LABEL_RANKED.bound, "observations", "candidates"),
    *(*RECOGNISED.ends, RECOGNISED.baseline),
)
"""Copied from the summary of a leakage point."""

OF_SERVERS = (
    *(PRECISION.name, *VERBATIM.ends, "alone_expected"),
    *("asr_ideal", "rmse_ideal", "verdict"),
)
"""Copied on pages about servers, which add `within_tenth` and `in_any_row`."""

TEXT_FIELDS = (
    *(field for rate in rates.OF_TEXTS for field in (*rate.ends, rate.baseline)),
    *(EDIT_DISTANCE.name, EDIT_DISTANCE.baseline),
)
"""Copied for texts."""

TARGET_FIELDS = (*rates.TARGET_ERROR.ends, rates.TARGET_ERROR.baseline)
"""Copied for networks that answer with something else than classes."""

TENTH = 0.1
"""An RMSE at which a picture is still recognisable."""

READ = 0.01
"""The RMSE up to which a patch of a vision transformer counts as read."""

OTHERS = 500
"""Among how many examples an answer picks its own, on pages about servers."""


def cells_of(
    line: Line,
    scale: str,
    changed: Mapping[str, Any],
    data_dir: Path | None,
    reporter: Reporter | None = None,
    seeds: int = 0,
) -> list[Cell]:
    """Return the cells of a line, one for each seed, by default the least number of seeds.

    Raises:
        InputError: A cell is invalid; it names the row.
    """
    with _named(line):
        return [prepare(request, data_dir, reporter) for request in line.requests(scale, changed, seeds)]


def check_line(line: Line, scale: str, changed: Mapping[str, Any], data_dir: Path | None) -> None:
    """Raise InputError that names the row where an option of one of its cells does not fit; no data are looked for."""
    with _named(line):
        for request in line.requests(scale, changed):
            plan(request, data_dir)


@contextmanager
def _named(line: Line) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(f"row {line.name!r}: {error}") from None


def command_of(table: Table, line: Line, scale: str) -> str:
    """Return the command that measures a line of a table."""
    return f'leakbench reproduce {table.called} --scale {scale} --only "{line.name}"'


def measured(
    table: Table,
    line: Line,
    scale: str,
    changed: Mapping[str, Any],
    execution: Execution,
    begun: Sequence[Row] = (),
) -> list[Row]:
    """Run a line's cells at a scale, each in its own folder, where an interrupted cell resumes; return its rows.

    A row is measured at the first seed; only its accuracy and its time cover all seeds. It ends after the first number of seeds
    that makes its verdict certain.

    Args:
        table: The table.
        line: The line.
        scale: One of `SCALES`.
        changed: {field of a cell: number} of a trial.
        execution: Where and how cells are run.
        begun: Rows of the line's first trainings, which are not repeated: their runs may be on another machine.
    """
    counts = line.counts(scale)
    every = cells_of(line, scale, changed, execution.data_dir, execution.reporter, counts[-1])
    command = command_of(table, line, scale)
    found, first_row = list(begun), next(iter(begun), {})
    accuracies = accuracies_in(table, first_row)
    seconds, diverged = 60 * float(first_row.get("wall_minutes", 0.0)), int(first_row.get("diverged", 0))
    manifests: list[Mapping[str, Any]] = (
        [{"versions": {"device": "cpu"} | json.loads(first_row["versions"])}] if begun else []
    )
    for done, cell in enumerate(every[len(accuracies) :], len(accuracies) + 1):
        with executed(cell, execution.runs, command, execution.reporter) as (summary, run):
            accuracies += _accuracies_of(summary, run, bool(table.rounds))
            diverged += diverges(run)
            manifests += [run.manifest]
            seconds += sum(run.manifest["phases"].values())
            found = found or _points(table, line, cell, summary, run)
        cells, accuracy = every[:done], accuracy_of(_ended(accuracies).tolist(), len(cell.data.test_targets))
        if done in counts and certain(
            table, line, [row | {**accuracy, "scale": scale, "seeds": done} for row in found]
        ):
            break
    first = cells[0]
    same = {
        "dataset": first.names["dataset"],
        "attack": first.names["attack"],
        "defense": first.names["defense"],
        "limit": limit_of(first),
        **({} if line.aim is None else {"aim": line.aim}),
        **changed_in(changed),
        "hash": hash_of(cells),
        **recorded_in(cells),
        "scale": line.scale(scale),
        "seeds": len(cells),
        **({"accuracies": json.dumps(accuracies)} if accuracies else {}),
        **accuracy,
        "diverged": diverged,
        "wall_minutes": round(seconds / 60, 1),
        "versions": versions_of(manifests),
    }
    own = _of_training(line, scale, changed, execution) if table.columns in ("leaks", "texts") else {}
    found = [{name: value for name, value in row.items() if name not in {*same, "changed"}} for row in found]
    return [same | row | own.get(LeakagePoint.of(row["point"]).tap, {}) for row in found]


def _of_training(line: Line, scale: str, changed: Mapping[str, Any], execution: Execution) -> dict[str, Row]:
    """Return {leakage point: the valid epsilons of the data set's whole training}, for cells that train nothing themselves."""
    request = replace(line.requests(scale, changed)[0], train_rounds=None)
    cell = prepare(request, execution.data_dir, execution.reporter)
    found = cell_epsilon(cell.defense, cell.data, cell.settings, hand_out(cell), None)
    same = {"epsilon_claimed": found.claimed, "epsilon_valid": found.valid}
    valid = {"global": found.valid, **{tap: at.valid for tap, at in found.by_tap.items()}}
    return {tap: same | {"epsilon_tap": epsilon} for tap, epsilon in valid.items()}


def trainings_of(table: Table, rows: Sequence[Row]) -> int:
    """Return how many trainings a line's rows keep, so that a measurement can go on after them; 0 where they lack a part."""
    if not rows:
        return 0
    row, kept = rows[0], accuracies_in(table, rows[0])
    whole = all(
        type(row.get(name)) in (int, float) and math.isfinite(row[name]) for name in ("diverged", "wall_minutes")
    )
    if not kept or len(kept) != row.get("seeds") or not whole or not isinstance(row.get("versions"), str):
        return 0
    return len(kept) if math.isclose(_ended(kept).mean(), row["trained_accuracy"], abs_tol=1e-9) else 0


def accuracies_in(table: Table, row: Row) -> list[list[float]]:
    """Return the accuracies of each training that a row keeps, after every round if the table has curves, else after the last.

    Empty where the row keeps none, or others than the table needs.
    """
    kept = row.get("accuracies")
    found: list[list[float]] = json.loads(kept) if isinstance(kept, str) else []
    length = row.get("rounds") if table.rounds else 1
    return found if all(len(each) == length for each in found) else []


def _ended(accuracies: list[list[float]]) -> NDArray[np.float64]:
    return np.array([each[-1] for each in accuracies], dtype=np.float64)


def _accuracies_of(summary: Summary, run: Run, every: bool) -> list[list[float]]:
    """Return the accuracies of a run after every round, or after the last one only; empty for a run that trains nothing."""
    if every:
        return [run.read_rows("rounds.parquet")["accuracy"].tolist()]
    return [] if summary.accuracy is None else [[float(summary.accuracy)]]


def diverges(run: Run) -> bool:
    """Return whether a run trained a network whose answers are not finite at the end."""
    losses = run.read_rows("rounds.parquet")["loss"]
    return bool(len(losses)) and not math.isfinite(losses.iloc[-1])


def certain(table: Table, line: Line, rows: list[Row]) -> bool:
    """Return whether further seeds cannot change the verdicts of a cell's rows."""
    return all(settled(table.compared(line, row), table.tests) for row in rows)


def changed_in(changed: Mapping[str, Any]) -> Row:
    """Return the column of a trial's row: the numbers that differ from the table's; empty for a row that is not a trial's."""
    return {"changed": json.dumps(changed, sort_keys=True)} if changed else {}


def accuracy_of(ended: list[float], examples: int) -> Row:
    """Return the mean accuracy of trained networks with its 95 % interval; for one network the interval over test examples."""
    values = accuracy_interval(ended, examples) if ended else (None, None, None)
    return dict(zip(("trained_accuracy", "trained_accuracy_low", "trained_accuracy_high"), values, strict=True))


def _points(table: Table, line: Line, cell: Cell, summary: Summary, run: Run) -> list[Row]:
    """Return what each leakage point of a run gives a row."""
    rows, tensors = run.read_rows("rows.parquet"), run.read_tensors("reconstructions.safetensors")
    live = cell.settings.protocol == "live"
    trained = run.read_rows("rounds.parquet")["accuracy"] if live else pd.Series(dtype=float)
    several = len(summary.taps) > 1
    return [
        {f"claimed_{key}": value for key, value in line.claimed(point).items()}
        | point_of(tap, rows_at(rows, LeakagePoint.of(point)))
        | (_of_servers(cell, tap, LeakagePoint.of(point), rows, tensors) if table.columns == "servers" else {})
        | {"above": sum(broken.tap == point for broken in summary.violations)}
        | {"accuracy": trained.get(tap.round - 1), "rounds": summary.rounds}
        | {"verdict": tap.verdict, "resilient": resilient(tap.verdict)}
        | {"epsilon_claimed": summary.epsilon.claimed, "epsilon_valid": summary.epsilon.valid}
        | {"row": f"{line.name}, {point}" if several else line.name, "cell": line.name, "point": point}
        for point, tap in summary.taps.items()
    ]


def point_of(tap: Tap, rows: pd.DataFrame) -> Row:
    """Return what a row takes from one leakage point, with intervals of its medians over victims.

    `rmse_mean` is the mean RMSE, which papers print; it has no number where an answer is missing, and thus an RMSE.
    """
    # A member without an answer, or never within eta, is the farthest and the latest of its batch; it is not left out.
    ruler = deciding(rows).name
    scores = rows[[ruler, "iterations_to_success"]].fillna(math.inf)
    if ruler == EDIT_DISTANCE.name:
        scores[ruler] = scores[ruler].clip(upper=1.0)  # The largest distance of two sentences.
    by_victim = scores.groupby(rows["victim"]).median()
    network = rows.groupby("victim")["network"].first()
    ends: dict[str, float | None] = {}
    for name, column in ((ruler, ruler), ("iterations", "iterations_to_success")):
        _, low, high = median_interval(by_victim[column], network=network)
        ends |= {f"{name}_low": low, f"{name}_high": high}
    found = mean_interval(rows[RMSE.name].groupby(rows["victim"]).mean(), network=network)
    means = found if rows[RMSE.name].notna().all() else (None,) * 3
    ends |= dict(zip(("rmse_mean", "rmse_mean_low", "rmse_mean_high"), means, strict=True))
    return {
        "batch": tap.batch,
        "victims": tap.victims,
        "networks": tap.networks,
        **{key: tap.value(key) for key in MEASURES},
        **({} if tap.null_target_error is None else {key: tap.value(key) for key in TARGET_FIELDS}),
        **{key: tap.value(key) for key in (TEXT_FIELDS if ruler == EDIT_DISTANCE.name else ())},
        **ends,
        "minutes": minutes_of(tap),
    }


def _of_servers(cell: Cell, tap: Tap, point: LeakagePoint, rows: pd.DataFrame, tensors: dict[str, Tensor]) -> Row:
    """Return the further columns of a row on a page about servers, from all rows and tensors of its run."""
    rows = rows_at(rows, point)
    answers, truth = (tensors[f"{point.file}.{what}"] for what in ("reconstruction", "truth"))
    free = cell.data.victims[~torch.isin(cell.data.victims, torch.tensor(rows["example"].to_numpy()))]
    others = cell.data.train_inputs[free[: OTHERS - 1]]
    flat = (each.flatten(end_dim=-len(cell.data.shape) - 1).flatten(1) for each in (answers, truth, others))
    reconstructs = tap.value(ASR.name) is not None  # An attack that only ranks reconstructs nothing.
    return {
        **{key: tap.value(key) for key in OF_SERVERS},
        "within_tenth": float((rows[RMSE.name] <= TENTH).mean()) if reconstructs else None,
        **in_any_row(cell, point.tap),
        **_patches(cell, tap, point, answers, truth),
        "picked": _picked(*flat) if reconstructs else None,
    }


def _patches(cell: Cell, tap: Tap, point: LeakagePoint, answers: Tensor, truth: Tensor) -> Row:
    """Return the share of patches that an attack on patches reads, with its interval over batches and networks, and its law."""
    columns = ("patches_read", "patches_read_low", "patches_read_high", "patches_alone")
    if not isinstance(cell.attack.server, PeftLeak):
        return dict.fromkeys(columns)
    sent = sent_to_clients(cell, Network(*fresh_network(cell, False, 0)), point.tap)
    bins: PatchBins = sent.secret
    read = patches_read(answers, truth, bins.patch)
    lanes = np.arange(len(read)).repeat(read.shape[1])
    share = proportion(read.flatten().numpy(), lanes, network=lanes % cell.settings.networks)
    return dict(zip(columns, (*share, alone_patches(bins, truth.shape[1])), strict=True))


def patches_read(answers: Tensor, truth: Tensor, patch: int) -> Tensor:
    """Return (V, B P): whether each patch of the pictures (V, B, C, H, W) is reconstructed to an RMSE of at most `READ`."""
    apart = (answers - truth).flatten(0, 1)
    read: Tensor = patches_of(apart, patch).square().mean(2).sqrt() <= READ  # NaN is not read.
    return read.reshape(len(answers), -1)


def _picked(answers: Tensor, truth: Tensor, others: Tensor) -> float:
    """Return how often an answer (n, d) is nearer to its truth (n, d) than to any of the others (k, d); a missing one never is."""
    own = (answers - truth).square().sum(1)
    nearest = torch.cdist(answers.nan_to_num(nan=0.0), others).square().amin(1)
    return float((own < nearest).double().mean())


def in_any_row(cell: Cell, tap: str) -> Row:
    """Return the share of the attacked examples that some row of a fully connected first layer contains to an RMSE of eta.

    It is computed from the truth at the first weights, as Boenisch et al. count it (table 5).

    Returns:
        `in_any_row` with its 95 % interval over batches and networks, `_low` and `_high`; None where the attack does not read
        rows of such a layer, and in the live protocol, whose model is trained.
    """
    columns = ("in_any_row", "in_any_row_low", "in_any_row_high")
    if cell.settings.protocol == "live" or not isinstance(cell.attack.method, Rows):
        return dict.fromkeys(columns)
    honest = (Network(*fresh_network(cell, False, network)) for network in range(cell.settings.networks))
    sent = [sent_to_clients(cell, network, tap) for network in honest]
    name = first_layer(sent[0].network.model, cell.data.shape)
    if name is None or isinstance(sent[0].secret, Bins):
        return dict.fromkeys(columns)
    victims = draw_victims(cell, tap, 0, hand_out(cell))
    inputs, _, _ = truth(cell, tap, victims)
    eta = eta_of(cell.data, cell.settings.seed, cell.settings.success)
    found = [
        within(view_of(cell, tap, 0, victims, lane, sent[int(lane) % len(sent)]), name, inputs[lane].flatten(2), eta)
        for lane in torch.split(torch.arange(len(inputs)), 1)
    ]
    held = torch.cat(found)
    lanes = np.arange(len(held)).repeat(held.shape[1])
    shares = proportion(held.flatten().numpy(), lanes, network=lanes % len(sent))
    return dict(zip(columns, shares, strict=True))


def within(view: View, layer: str, inputs: Tensor, eta: float) -> Tensor:
    """Return (V, M): whether a row of the layer, of that prefix, holds each of the inputs (V, M, d) to an RMSE of eta."""
    weight, bias = (view.update[f"{layer}{kind}"] for kind in ("weight", "bias"))
    rows = (weight / bias[..., None]).clamp(0, 1)
    apart = torch.cdist(inputs, rows.nan_to_num(nan=torch.inf), compute_mode="donot_use_mm_for_euclid_dist")
    held: Tensor = apart.nan_to_num(nan=torch.inf).amin(2) <= eta * inputs.shape[2] ** 0.5
    return held
