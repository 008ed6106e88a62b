"""Identification: which of k candidate examples stands behind a leaked gradient? A Ranking, by likelihood.

For equal priors and Gaussian noise the likelihood is the best rule there is (Hayes, Mahloujifar, Balle, NeurIPS 2023): no attack
identifies more among the same k. With isotropic noise of any standard deviation it ranks by squared distance, so that one rule
serves every defense, and without noise it is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.federated.leakage import View
from leakbench.models import one_hot
from leakbench.types import Parameters, Ranking, part

__all__ = ["Candidates"]


@part
class Candidates:
    """Rank candidates by -|y - g(c)|^2, where g runs the deterministic part of the defense, as an attacker who knows it can.

    Behind an update of M > 1 examples the other M - 1 are unknown: they are taken as public examples, so that
    y is about g(c) / M + (M - 1) / M * (public mean gradient), with all gradients taken at the model that was sent.
    chunk: how many candidates' gradients are held at once.
    """

    chunk: int = 64

    def __call__(self, view: View, inputs: Tensor, labels: Tensor, public: tuple[Tensor, Tensor]) -> Ranking:
        """Return scores (V, k) for candidates (k, *s) with labels (k,); `public` is (inputs, labels) that hold no victim."""
        share = 1.0 / view.examples
        observed = _flat(view.update)
        if view.examples > 1:
            others = torch.stack([g.mean(0) for g in self._gradients(view, *public)]).mean(0)
            observed = observed - (1 - share) * others
        scores = []
        for gradients in self._gradients(view, inputs, labels):
            guess = gradients * share
            scores.append(2 * observed @ guess.T - guess.square().sum(1))
        return Ranking(torch.cat(scores, 1))

    def _gradients(self, view: View, inputs: Tensor, labels: Tensor) -> list[Tensor]:
        alone = View(
            tap="type-2" if view.tap == "type-2" else "type-1" if view.tap == "type-1" else "type-0",
            model=view.model,
            parameters=view.parameters,
            update={},
            batch=1,
            shape=view.shape,
            classes=view.classes,
            learning_rate=view.learning_rate,
            shared=view.shared,
            defense=view.defense,
        )
        targets = one_hot(labels, view.classes).to(inputs)
        found = []
        with torch.no_grad():
            for x, y in zip(inputs.split(self.chunk), targets.split(self.chunk), strict=True):
                found.append(_flat(alone.respond(x[:, None], y[:, None])))
        return found


def _flat(gradients: Parameters) -> Tensor:
    return torch.cat([g.flatten(1) for g in gradients.values()], 1)
