"""The null attacker: what a guess from public data alone gets, without any gradient; the floor beneath every attack."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.measure.metrics import pairwise_rmse

__all__ = ["NullAttack", "null_attack"]

CANDIDATES = 1000
JUDGES = 3000

PUBLIC_MEAN, CLASS_MEAN, SINGLE = "public mean", "class mean", "single example"


@dataclass(frozen=True)
class NullAttack:
    """Guesses that hold no information of the victims but, where the threat model grants them, their labels.

    Args:
        guesses: {guesser: (V, *s)}.
        success_rate: {guesser: what it got on public data, leave-one-out}.
        mean_rmse: {guesser: what it got on public data, leave-one-out}.
        best_for_success: The guesser that public data say is the best; its guesses are the null columns.
        best_for_rmse: The guesser that public data say is the best; its guesses are the null columns.
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
    """Guess V victims from public examples (P, *s) in [0, 1] of classes (P,): three constant guessers.

    `public mean`; `class mean` where the attacker knows the labels (V,) (the public mean for a class that public data
    lack); `single example`: the one of at most 1,000 public examples within RMSE `eta` of most others. All choices are
    made on public data alone, on at most 3,000 examples, each beside guesses that did not see it; ties go to the lower
    mean RMSE. For batches V counts examples. Raises ValueError where there is no public example.
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
        alone = counts[public_targets] == 1  # left out, such an example leaves no class mean: the public mean steps in
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
    """Return the RMSE (P,) of each example beside the mean of the others of its group.

    That mean is x + (mean - x) n / (n - 1), so no mean is taken twice. An example alone in its group gets NaN.
    """
    distance = (inputs - means[groups]).square().flatten(1).mean(1).sqrt()
    n = torch.bincount(groups).to(distance)[groups]
    return distance * n / (n - 1)


def _best_single(sample: Tensor, eta: float) -> tuple[int, Tensor]:
    """Return which of the first 1,000 examples comes within eta of most others, and its RMSE to each of them."""
    rmse = pairwise_rmse(sample, sample[:CANDIDATES])
    rmse.fill_diagonal_(torch.nan)
    hits, mean = (rmse <= eta).sum(0), rmse.nanmean(0)
    tied = hits == hits.max()
    chosen = int(mean.masked_fill(~tied, torch.inf).argmin())
    return chosen, torch.cat([rmse[:chosen, chosen], rmse[chosen + 1 :, chosen]])
