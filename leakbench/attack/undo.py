"""The last step of an attacker that knows an augmentation with random draws: from augmented examples back to the originals.

Searches and learned maps reconstruct the examples whose gradients leaked, which are augmented. Public examples, augmented by the
attacker itself, show how an original follows from its augmented form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from leakbench.core.answers import Reconstruction
from leakbench.core.types import Clock
from leakbench.defense.augmentation import Augmentation, Batch, Copies, ShowsLess, applied
from leakbench.federated.view import Public
from leakbench.models import one_hot

__all__ = ["PUBLIC", "augmented_public", "one_of_each", "undo", "undone"]

PUBLIC = 3000
"""Number of public examples from which the attacker learns to undo an augmentation."""

ERROR = 1e-3
"""Variance of the error of a reconstructed augmented example, which also represents what a sample of examples leaves open."""


SAME = 0.05
"""Largest root mean squared difference of two reconstructions of one original."""


@dataclass(frozen=True)
class _Outcome:
    """What a Gaussian of pairs says of an original x whose augmented form shows z.

    Args:
        mean: (d,), the mean of z.
        root: (d, d), the lower Cholesky factor of the covariance of z.
        slope: (d, d), the regression of x on z.
        original: (d,), the mean of x.
    """

    mean: Tensor
    root: Tensor
    slope: Tensor
    original: Tensor

    def likelihood(self, shown: Tensor) -> Tensor:
        """Return the log-density (n,) of what augmented examples (n, d) show, up to a constant."""
        apart: Tensor = torch.linalg.solve_triangular(self.root, (shown - self.mean).T, upper=False)
        return -apart.square().sum(0) / 2 - self.root.diagonal().log().sum()

    def originals(self, shown: Tensor) -> Tensor:
        """Return the expected originals (n, d)."""
        return self.original + (shown - self.mean) @ self.slope


def augmented_public(
    augmentations: tuple[Augmentation, ...], public: Public, classes: int, clock: Clock, rng: torch.Generator
) -> Public:
    """Return public examples as the augmentations change them, each with its commonest label."""
    after = _augmented(augmentations, public, classes, clock, rng)
    return Public(after.inputs[0, : len(public.labels)], after.targets[0, : len(public.labels)].argmax(1))


def undone(answer: Reconstruction, back: Callable[[Tensor], Tensor]) -> Reconstruction:
    """Return a reconstruction of augmented examples as one of the originals, also after each recorded iteration.

    Args:
        answer: The reconstruction.
        back: Maps augmented inputs (n, *s) to originals, see `undo`.
    """

    def each(inputs: Tensor) -> Tensor:
        shape = answer.inputs.shape[2:]
        return back(inputs.reshape(-1, *shape)).reshape(inputs.shape)

    return replace(answer, inputs=each(answer.inputs), iterates=each(answer.iterates))


def undo(
    augmentations: tuple[Augmentation, ...], public: Public, classes: int, clock: Clock, rng: torch.Generator
) -> Callable[[Tensor], Tensor]:
    """Return the map from augmented inputs (n, *s) to the expected originals, learned from public examples.

    For each possible outcome of the draws, originals and what their augmented forms show are taken as jointly Gaussian. The result
    is the mean over the outcomes, each with its probability given the augmented input. If there are too many outcomes to list, one
    Gaussian represents them all.
    """
    several = [a for a in augmentations if hasattr(a, "outcomes")]
    outcomes: tuple[tuple[Augmentation, ...], ...] = (augmentations,)
    if len(several) == 1:
        place = augmentations.index(several[0])
        outcomes = tuple(
            (*augmentations[:place], chosen, *augmentations[place + 1 :]) for chosen in several[0].outcomes()
        )
    fits = [_fitted(outcome, public, classes, clock, rng, augmentations) for outcome in outcomes]

    def back(inputs: Tensor) -> Tensor:
        shown = _shown(augmentations, inputs).flatten(1).double()
        chances = torch.stack([fit.likelihood(shown) for fit in fits], 1).softmax(1)
        expected = torch.stack([fit.originals(shown) for fit in fits], 1)
        originals = (chances[..., None] * expected).sum(1)
        return originals.to(inputs).reshape(inputs.shape).clamp(0, 1)

    return back


def _fitted(
    outcome: tuple[Augmentation, ...],
    public: Public,
    classes: int,
    clock: Clock,
    rng: torch.Generator,
    augmentations: tuple[Augmentation, ...],
) -> _Outcome:
    inputs = public.inputs.flatten(1).double()
    after = _augmented(outcome, public, classes, clock, rng).inputs[0, : len(inputs)]
    return _fit(_shown(augmentations, after).flatten(1).double(), inputs)


def _fit(shown: Tensor, inputs: Tensor) -> _Outcome:
    """Return the Gaussian of pairs of what augmented examples show (n, d) and their originals (n, d)."""
    mean, original = shown.mean(0), inputs.mean(0)
    apart = shown - mean
    covariance = apart.T @ apart / len(apart)
    covariance.diagonal().add_(ERROR)
    root = torch.linalg.cholesky(covariance)
    slope = torch.cholesky_solve(apart.T @ (inputs - original) / len(apart), root)
    return _Outcome(mean, root, slope, original)


def one_of_each(
    augmentations: tuple[Augmentation, ...], inputs: Tensor, certainty: Tensor, count: int, public: Public
) -> tuple[Tensor, Tensor]:
    """Return one original for the copies of each example among reconstructed members of a batch, the most certain ones first.

    A member shows its example up to the transformation that made it. The most likely of the possible originals counts, by a
    Gaussian of public examples, so that the copies of an example have the same original.

    Args:
        augmentations: Augmentations, of which those with `originals` are undone.
        inputs: (V, n, d), NaN without a reconstruction.
        certainty: (V, n), minus infinity without a reconstruction.
        count: M, the largest number of originals.
        public: Public examples (P, *s).

    Returns:
        The same for M originals.
    """
    known = public.inputs.flatten(1).double()
    prior = _fit(known, known)
    found = inputs.new_full((len(inputs), count, inputs.shape[2]), torch.nan)
    sure = certainty.new_full((len(inputs), count), -torch.inf)
    for victim in range(len(inputs)):
        kept = list[Tensor]()
        for place in certainty[victim].argsort(descending=True).tolist():
            if len(kept) == count or not bool(inputs[victim, place].isfinite().all()):
                break
            options = inputs[victim, place].reshape(1, *public.inputs.shape[1:])
            for augmentation in augmentations:
                if isinstance(augmentation, Copies):
                    options = augmentation.originals(options)
            flat = options.flatten(1)
            best = flat[int(prior.likelihood(flat.double()).argmax())]
            if all(float((best - other).square().mean()) > SAME**2 for other in kept):
                found[victim, len(kept)], sure[victim, len(kept)] = best, certainty[victim, place]
                kept.append(best)
    return found, sure


def _augmented(
    augmentations: tuple[Augmentation, ...], public: Public, classes: int, clock: Clock, rng: torch.Generator
) -> Batch:
    targets = one_hot(public.labels, classes).to(public.inputs)
    batch = Batch(public.inputs[None], targets[None], public.inputs.new_ones(1, len(public.labels)))
    return applied(augmentations, batch, clock, (rng,))


def _shown(augmentations: tuple[Augmentation, ...], inputs: Tensor) -> Tensor:
    for augmentation in augmentations:
        if isinstance(augmentation, ShowsLess):
            inputs = augmentation.shown(inputs)
    return inputs
