"""Writes a run to a tracker, and checks before a measurement that the tracker is installed."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakbench.core.errors import InputError, nearest
from leakbench.core.leakage_points import LeakagePoint
from leakbench.measure.rates import ASR, IDENTIFIED, LABELS
from leakbench.storage.summary import Summary

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TRACKERS", "check_tracker", "figures_of", "log_run"]


def check_tracker(name: str) -> None:
    """Raise InputError for an unknown tracker, or, with the command to install it, for one that is not installed."""
    if name not in TRACKERS:
        raise InputError(f"log: got {name!r}{nearest(name, tuple(TRACKERS))}")
    if find_spec(name) is None:
        raise InputError(f"log: {name} is not installed; pip install {name}")


def log_run(name: str, folder: Path, manifest: Mapping[str, Any], rounds: pd.DataFrame) -> str:
    """Write the figures of a finished run to a tracker.

    Args:
        name: A key of `TRACKERS`.
        folder: Run folder.
        manifest: Manifest of the run.
        rounds: One row for each round, with its accuracy.

    Returns:
        A text for the user that says where the figures are.
    """
    return TRACKERS[name](folder, manifest, list(figures_of(Summary.of(manifest["summary"]), rounds)))


def figures_of(summary: Summary, rounds: pd.DataFrame) -> Iterator[tuple[str, float, int]]:
    """Yield (name, number, number of rounds before it): accuracies of all rounds, each leakage point's figures, epsilons.

    Figures without a number are skipped.
    """
    from leakbench.measure.measures import EDIT_DISTANCE, RMSE  # noqa: PLC0415 - imports PyTorch, unlike `check_tracker`

    errors = (RMSE.name, RMSE.baseline, EDIT_DISTANCE.name, EDIT_DISTANCE.baseline)
    of_point = (ASR.name, ASR.baseline, *errors, IDENTIFIED.name, LABELS.name)
    for row in rounds.to_dict("records"):
        if math.isfinite(row.get("accuracy", math.nan)):
            yield "accuracy", float(row["accuracy"]), int(row["round"]) + 1
    for point, tap in summary.taps.items():
        for figure in of_point:
            if (value := tap.value(figure)) is not None:
                yield f"{LeakagePoint.of(point).tag}/{figure}", float(value), tap.round
    for which, value in (("claimed", summary.epsilon.claimed), ("valid", summary.epsilon.valid)):
        if value is not None:
            yield f"epsilon/{which}", float(value), summary.rounds or 0


def _to_tensorboard(folder: Path, manifest: Mapping[str, Any], figures: list[tuple[str, float, int]]) -> str:
    tensorboard: Any = importlib.import_module("torch.utils.tensorboard")
    place = folder / "tensorboard"
    with tensorboard.SummaryWriter(str(place)) as writer:
        writer.add_text("command", manifest["command"])
        for what, number, step in figures:
            writer.add_scalar(what, number, step)
    return f"tensorboard --logdir {place}"


def _to_mlflow(folder: Path, manifest: Mapping[str, Any], figures: list[tuple[str, float, int]]) -> str:
    import mlflow  # noqa: PLC0415

    mlflow.set_experiment("leakbench")
    with mlflow.start_run(run_name=folder.name) as run:
        mlflow.log_params({**manifest["cell"], "hash": manifest["hash"], "command": manifest["command"]})
        for what, number, step in figures:
            mlflow.log_metric(what, number, step=step)
    return f"mlflow run {run.info.run_id} of the experiment leakbench"


def _to_wandb(folder: Path, manifest: Mapping[str, Any], figures: list[tuple[str, float, int]]) -> str:
    wandb: Any = importlib.import_module("wandb")
    config = {**manifest["cell"], "hash": manifest["hash"], "command": manifest["command"]}
    # Steps of W&B must increase, and leakage points have earlier rounds than the last accuracy.
    by_round: dict[int, dict[str, float]] = {}
    for what, number, step in figures:
        by_round.setdefault(step, {})[what] = number
    # A run of W&B that the user has started in this process stays open.
    run = wandb.init(
        project="leakbench", name=folder.name, dir=str(folder.resolve()), config=config, reinit="create_new"
    )
    for step in sorted(by_round):
        run.log(by_round[step], step=step)
    for point, tap in Summary.of(manifest["summary"]).taps.items():
        run.summary[f"{LeakagePoint.of(point).tag}/verdict"] = tap.verdict
    run.finish()
    return f"wandb {run.url}" if run.url else f"wandb sync {folder / 'wandb'}"


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any], list[tuple[str, float, int]]], str]] = {
    "tensorboard": _to_tensorboard,
    "mlflow": _to_mlflow,
    "wandb": _to_wandb,
}
