"""An attack on an update of one's own, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.data.find import load_dataset
from leakbench.defense import Defense
from leakbench.errors import InputError
from leakbench.own.attacked import Attacker, Outcome, attack_seen
from leakbench.own.leak import Trained, leaked, truth_of
from leakbench.recipe import resolve

__all__ = ["Update", "attack_update", "attacker_of"]

Update: TypeAlias = Mapping[str, Tensor]


def attack_update(
    model: nn.Module,
    update: Update | Sequence[Update],
    *,
    shape: tuple[int, ...],
    classes: int,
    batch: int = 1,
    before: Update | None = None,
    learning_rate: float | None = None,
    local_iterations: int = 1,
    tap: str = "type-1",
    truth: tuple[Tensor, Tensor] | None = None,
    attack: str = "autoleak",
    defense: str | None = None,
    dataset: str | None = None,
    data_dir: Path | None = None,
    success: float | None = None,
    seed: int = 0,
) -> Outcome:
    """Attack one update of a model, or several, and score the answers where the truth is given.

    model: of inputs (n, *shape) in [0, 1] to logits (n, classes), trained with cross-entropy.  update: {p: (*p)}, the gradient of
    the mean loss as `.grad` holds it, or, with a learning rate, what training added to the weights.  batch: examples in a step.
    before: weights and buffers that were sent; None: the model's own.  tap: the leakage point that it is called.
    truth: inputs (V, M, *shape) and labels (V, M).  attack, defense, dataset: names of the catalog or paths of recipes; the
    defense is what the attacker is told was done to the update; the dataset is whose public examples it has; None: made-up ones.
    success: the RMSE up to which an answer counts.

    Raises InputError for what does not fit together.
    """
    several = [update] if isinstance(update, Mapping) else list(update)
    if not several:
        raise InputError("update: got none, expected at least one")
    how = Trained(batch, local_iterations, learning_rate)
    if truth is not None:
        arrays = {"inputs": torch.as_tensor(truth[0]).float(), "labels": torch.as_tensor(truth[1])}
        examples = 1 if tap == "type-2" else batch * local_iterations
        truth = truth_of(arrays, len(several), examples, shape, classes)
    seen = leaked(model, several, shape, classes, how, before, tap, truth)
    return attack_seen(seen, attacker_of(attack, defense, dataset, data_dir, success, seed))


def attacker_of(
    attack: str,
    defense: str | None = None,
    dataset: str | None = None,
    data_dir: Path | None = None,
    success: float | None = None,
    seed: int = 0,
) -> Attacker:
    """Return the attacker of these names; raises InputError for a name that there is not."""
    return Attacker(
        resolve("attacks", Attack, attack)[1],
        None if defense is None else resolve("defenses", Defense, defense)[1],
        None if dataset is None else load_dataset(dataset, data_dir)[2],
        success,
        seed,
    )
