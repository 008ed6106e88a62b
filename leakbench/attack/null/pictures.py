"""The baseline guess of images and records from public data alone, with which every attack is compared."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.measure.metrics import pairwise_rmse

__all__ = ["NullAttack", "null_attack"]

CANDIDATES = 1000
"""Largest number of public examples among which the single example is chosen."""

JUDGES = 3000
"""Largest number of public examples on which guesses are compared."""

PUBLIC_MEAN, CLASS_MEAN, SINGLE = "public mean", "class mean", "single example"


@dataclass(frozen=True)
class NullAttack:
    """Guesses without any information about the victims, apart from their labels if the threat model grants them.

    Args:
        guesses: {guesser: (V, *s)}.
        success_rate: {guesser: its success rate on public data, leave-one-out}.
        mean_rmse: {guesser: its mean RMSE on public data, leave-one-out}.
        best_for_success: The guesser with the highest success rate on public data.
        best_for_rmse: The guesser with the lowest mean RMSE on public data.
    """

    guesses: dict[str, Tensor]
    success_rate: dict[str, float]
    mean_rmse: dict[str, float]
    best_for_success: str
    best_for_rmse: str


def null_attack(
    public_inputs: Tensor,
    public_targets: Tensor,
    victims: int,
    known_labels: Tensor | None,
    eta: float,
    rng: torch.Generator,
) -> NullAttack:
    """Guess V victims from public examples, with three constant guessers.

    The guessers are the `public mean`; the `class mean`, if the attacker knows the labels (the public mean for a class without
    public examples); and the `single example` within RMSE `eta` of the most others. All choices use public data alone. Each
    public example is compared with guesses made without it. The lower mean RMSE breaks ties.

    Args:
        public_inputs: (P, *s) in [0, 1].
        public_targets: Their classes (P,).
        victims: V; for batches, the number of examples.
        known_labels: Labels (V,) that the attacker knows; None if it does not.
        eta: Largest RMSE of a success.
        rng: Chooses the public examples on which guesses are compared.

    Raises:
        ValueError: If there is not a single public example.
    """
    if not len(public_inputs):
        raise ValueError("public_inputs: got no example, expected at least one to guess from")
    sample = torch.randperm(len(public_inputs), generator=rng)[:JUDGES].to(public_inputs.device)
    guesses, left_out = {}, {}

    mean = public_inputs.mean(0)
    guesses[PUBLIC_MEAN] = _repeat(mean, victims)
    left_out[PUBLIC_MEAN] = _left_out(public_inputs, mean[None], public_targets.new_zeros(len(public_inputs)))[sample]

    if known_labels is not None:
        means, counts = _class_means(public_inputs, public_targets, known_labels)
        guesses[CLASS_MEAN] = torch.where(_like(counts[known_labels] > 0, public_inputs), means[known_labels], mean)
        # Without its only example, a class has no mean, and the guess is the public mean.
        alone = counts[public_targets] == 1
        of_class = _left_out(public_inputs, means, public_targets)[sample]
        left_out[CLASS_MEAN] = torch.where(alone[sample], left_out[PUBLIC_MEAN], of_class)

    chosen, left_out[SINGLE] = _best_single(public_inputs[sample], eta)
    guesses[SINGLE] = _repeat(public_inputs[sample[chosen]], victims)

    success_rate = {name: _success_rate(rmse, eta) for name, rmse in left_out.items()}
    mean_rmse = {name: float(rmse.mean()) for name, rmse in left_out.items()}
    best_for_success = min(guesses, key=lambda name: (-success_rate[name], mean_rmse[name]))
    best_for_rmse = min(guesses, key=lambda name: mean_rmse[name])
    return NullAttack(guesses, success_rate, mean_rmse, best_for_success, best_for_rmse)


def _repeat(example: Tensor, victims: int) -> Tensor:
    return example.expand(victims, *example.shape)


def _like(per_example: Tensor, examples: Tensor) -> Tensor:
    return per_example.reshape(-1, *[1] * (examples.dim() - 1))


def _success_rate(rmse: Tensor, eta: float) -> float:
    return float((rmse <= eta).double().mean())


def _class_means(inputs: Tensor, targets: Tensor, known_labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the means (classes, *s) and the counts (classes,); the mean of a class without examples is 0."""
    classes = 1 + int(max(targets.max(), known_labels.max() if len(known_labels) else 0))
    counts = torch.bincount(targets, minlength=classes)
    sums = inputs.new_zeros(classes, *inputs.shape[1:]).index_add(0, targets, inputs)
    return sums / _like(counts.clamp_min(1), inputs), counts


def _left_out(inputs: Tensor, means: Tensor, groups: Tensor) -> Tensor:
    """Return the RMSE (P,) of each example from the mean of the others of its group.

    That mean is x + (mean - x) n / (n - 1), so it need not be computed again. An example alone in its group gets NaN.
    """
    distance = (inputs - means[groups]).square().flatten(1).mean(1).sqrt()
    n = torch.bincount(groups).to(distance)[groups]
    return distance * n / (n - 1)


def _best_single(sample: Tensor, eta: float) -> tuple[int, Tensor]:
    """Return which of the first `CANDIDATES` examples is within RMSE `eta` of the most others, and its RMSE from each of them."""
    rmse = pairwise_rmse(sample, sample[:CANDIDATES])
    rmse.fill_diagonal_(torch.nan)
    hits, mean = (rmse <= eta).sum(0), rmse.nanmean(0)
    tied = hits == hits.max()
    chosen = int(mean.masked_fill(~tied, torch.inf).argmin())
    return chosen, torch.cat([rmse[:chosen, chosen], rmse[chosen + 1 :, chosen]])
