"""An attack on an update of one's own, from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.slots.stop import MOST_ITERATIONS, limited
from leakbench.cell import KNOWS
from leakbench.data.find import load_dataset
from leakbench.defense import Defense
from leakbench.errors import InputError, nearest
from leakbench.own.attacked import Attacker, Outcome, attack_seen
from leakbench.own.leak import Named, Trained, leaked, truth_of
from leakbench.own.normalised import Numbers, normal_of
from leakbench.own.suited import suited
from leakbench.recipe import resolve

__all__ = ["attack_update", "attacker_of"]


def attack_update(
    model: nn.Module,
    update: Named | Sequence[Named],
    *,
    shape: tuple[int, ...],
    classes: int,
    batch: int = 1,
    before: Named | Sequence[Named] | None = None,
    learning_rate: float | None = None,
    local_iterations: int = 1,
    client_optimizer: str = "sgd",
    victim_mode: str = "eval",
    tap: str = "type-1",
    truth: tuple[Tensor, Tensor] | None = None,
    normalise: tuple[Numbers, Numbers] | None = None,
    attack: str = "autoleak",
    knows: str | None = None,
    iterations: int | None = None,
    defense: str | None = None,
    dataset: str | None = None,
    data_dir: Path | None = None,
    success: float | None = None,
    seed: int = 0,
) -> Outcome:
    """Attack one update of a model, or several, and score the answers where the truth is given.

    model: of inputs (n, *shape) in [0, 1] to logits (n, classes), trained with cross-entropy.  update: {p: (*p)}, the gradient of
    the mean loss as `.grad` holds it, or, with a learning rate, what training added to the weights.  batch: examples in a step.
    before: weights and buffers that were sent, of all or one for each update; None: the model's own.
    client_optimizer: `sgd`, or `adam` with torch's defaults.  victim_mode: `eval` or `train`, by which statistics batch
    normalisation computed.  tap: the leakage point that it is called.
    truth: inputs (V, M, *shape) in [0, 1] and labels (V, M).  normalise: mean and deviation, a number or one a channel, by which
    inputs in [0, 1] become what the model is fed.  attack, defense, dataset: names of the catalog or paths of recipes; the
    defense is what the attacker is told was done to the update; the dataset is whose public examples it has; None: made-up ones.
    knows: `oblivious` or `defense`, what the attacker is told; None: what its recipe says.  iterations: the most that a search
    may take; None: the recipe's.  success: the RMSE up to which an answer counts.

    Raises InputError for what does not fit together.
    """
    several = [update] if isinstance(update, Mapping) else list(update)
    if not several:
        raise InputError("update: got none, expected at least one")
    how = Trained(batch, local_iterations, learning_rate, client_optimizer, victim_mode)
    normal = None if normalise is None else normal_of(*normalise, shape)
    if truth is not None:
        arrays = {"inputs": torch.as_tensor(truth[0]).float(), "labels": torch.as_tensor(truth[1])}
        examples = 1 if tap == "type-2" else batch * local_iterations
        truth = truth_of(arrays, len(several), examples, shape, classes)
    attacker = attacker_of(attack, defense, dataset, data_dir, success, seed, knows, iterations)
    seen = leaked(model, several, shape, classes, how, before, tap, truth, normal)
    return attack_seen(seen, suited(attacker, seen)[0])


def attacker_of(
    attack: str,
    defense: str | None = None,
    dataset: str | None = None,
    data_dir: Path | None = None,
    success: float | None = None,
    seed: int = 0,
    knows: str | None = None,
    iterations: int | None = None,
) -> Attacker:
    """Return the attacker of these names; raises InputError for a name that there is not, and numbers out of their range."""
    recipe = resolve("attacks", Attack, attack)[1]
    if knows is not None:
        if knows not in KNOWS:
            raise InputError(f"knows: got {knows!r}, expected {' or '.join(KNOWS)}{nearest(knows, KNOWS)}")
        recipe = dataclasses.replace(recipe, knows=knows)  # type: ignore[arg-type]
    if iterations is not None:
        if not 1 <= iterations <= MOST_ITERATIONS:
            raise InputError(f"iterations: got {iterations}, expected 1 to {MOST_ITERATIONS}")
        method = limited(recipe.method, iterations)
        if method is None:
            raise InputError(f"iterations: the attack's method {type(recipe.method).__name__} takes no iterations")
        recipe = dataclasses.replace(recipe, method=method)
    if success is not None and not 0 < success <= 1:
        raise InputError(f"success: got rmse<={success:g}, expected 0 < RMSE <= 1")
    if seed < 0:
        raise InputError(f"seed: got {seed}, expected at least 0")
    return Attacker(
        recipe,
        None if defense is None else resolve("defenses", Defense, defense)[1],
        None if dataset is None else load_dataset(dataset, data_dir)[2],
        success,
        seed,
    )
