"""An attack on an update of one's own, from Python."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from leakbench.errors import InputError
from leakbench.own.assumed import contradicted
from leakbench.own.attacked import Attacker, Outcome, attack_seen
from leakbench.own.leak import Named, Trained, leaked, truth_of
from leakbench.own.normalised import Numbers, normal_of
from leakbench.own.seen import Seen
from leakbench.own.suited import suited
from leakbench.own.who import Who
from leakbench.words import seconds

__all__ = ["attack_update", "warn_of_contradiction"]


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
    budget: str | float | None = None,
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
    and instance normalisation computed.  tap: the leakage point that it is called.
    truth: inputs (V, M, *shape) in [0, 1] and labels (V, M).  normalise: mean and deviation, a number or one a channel, by which
    inputs in [0, 1] become what the model is fed.  attack, defense, dataset: names of the catalog or paths of recipes; the
    defense is what the attacker is told was done to the update; the dataset is whose public examples it has; None: made-up ones.
    knows: `oblivious` or `defense`, what the attacker is told; None: what its recipe says.  iterations: the most that a search
    may take; None: the recipe's.  budget: the most seconds of the attack, also as `60s` or `2m`; None: no limit.
    success: the RMSE up to which an answer counts.

    Warns, as `warn_of_contradiction`, where the truth is not what the update came of. Raises InputError for what does not fit
    together.
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
    who = Who(attack, defense, dataset, data_dir, success, seed, knows, iterations, None, seconds("budget", budget))
    attacker = who()
    seen = leaked(model, several, shape, classes, how, before, tap, truth, normal)
    attacker = who.with_public(attacker)
    warn_of_contradiction(seen, attacker, stacklevel=3)
    return attack_seen(seen, suited(attacker, seen)[0])


def warn_of_contradiction(seen: Seen, attacker: Attacker, stacklevel: int) -> None:
    """Warn where the truth's own gradient is not the update, by a UserWarning with the sentence that `leakbench attack` prints."""
    line = contradicted(seen, attacker)
    if line:
        warnings.warn(f"{seen.view.tap}: {line}", stacklevel=stacklevel)
