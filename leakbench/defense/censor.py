"""CENSOR: send a random direction orthogonal to the gradient, the best of several by the loss after a small step.

K. Zhang, S. Cheng, G. Shen, B. Ribeiro, S. An, P.-Y. Chen, X. Zhang, N. Li, "CENSOR: Defense Against Gradient Inversion via
Orthogonal Subspace Bayesian Sampling", NDSS 2025; code at github.com/KaiyuanZh/censor. Letters, for one tensor of d coordinates:
g the gradient, u = g / |g|, r a random unit vector, v the direction that is sent, |v| = |g|.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call, vmap

from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.rng import normal
from leakbench.core.task import task_of
from leakbench.core.types import Clock, Fact, Generators, Local, Parameters, Signal
from leakbench.engine.rows import length
from leakbench.models.batch_norm import mixes_examples

__all__ = ["Censor", "losses_after", "orthogonal", "released_angle", "released_projection"]

LENGTHS = "the length of every tensor of the private gradient is sent exactly, and its loss selects the direction"
DIRECTION = "a random direction in place of the gradient, not noise added to it"
OVER = "after its first rounds the defense ends, and the private gradient is sent as it is"

FLOOR = 1e-3
"""Deviation of a projection of a guess's gradient in the attacker's likelihood, as in `leakbench.attack.slots.distance`."""

PARALLEL = 1e-5
"""Length of the orthogonal part of a unit vector that is only rounding errors, as for a tensor of one number."""


@part("transform.censor")
class Censor:
    """Replace each tensor's gradient by a random direction of the same length, orthogonal to it.

    Each trial draws r for every tensor, subtracts its projection r - (r u) u, and scales the result to |g|. The direction with the
    lowest loss of the batch after a step of `step` along it is sent. As no direction is a descent to first order, the losses
    differ by rounding errors and by curvature only.

    With `projection: released`, it follows the released code, which divides r g by |g| and not by |g|^2. It subtracts (r u) g, so
    that the component of v along u has the factor 1 - |g| and not 0. The trials with the component on the side of a descent are
    then selected. If no trial has a lower loss than the batch before the step, the code sends the private gradient, and so does
    this part.
    """

    # It needs the weights and the examples, and its losses are those of whole batches.
    stations: ClassVar[tuple[str, ...]] = ("batch",)

    trials: Annotated[Count, Field(description="Number of random directions among which the loss selects.")] = 20
    step: Annotated[Positive, Field(description="Length of the step after which the loss is computed.")] = 1e-4
    projection: Annotated[
        Literal["exact", "released"], Field(description="Projection: `exact`, or with the factor of the code.")
    ] = "exact"
    rounds: Annotated[
        Count | None, Field(description="Number of first rounds in which the part acts; None for all.")
    ] = None

    @property
    def runs_network(self) -> Literal[True]:
        """See `leakbench.defense.transform.RunsNetwork`."""
        return True

    @property
    def ranks(self) -> Literal[True]:
        """See `leakbench.defense.guess.Ranks`."""
        return True

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Replace the gradient; `sensitivity` becomes None. Without `rngs` there is no direction, and the gradient stays.

        Raises:
            InputError: If the station has no examples, or for a network that normalises by the batch.
        """
        local = signal.local
        if local is None or signal.members != 1:
            raise InputError("censor: it replaces the gradient of a batch; put it at the batch station")
        if mixes_examples(local.network.model):
            raise InputError(
                "censor: its trials do not run batch normalisation in train mode; choose --victim-mode eval"
            )
        if self.rounds is not None and clock.round >= self.rounds:
            return signal.replace(signal.grads, signal.sensitivity, Fact("other", reason=OVER, raw=True))
        grads = signal.grads if rngs is None else self._best(signal, local, rngs)
        after = signal.replace(grads, None, Fact("other", reason=LENGTHS, raw=True))
        return dataclasses.replace(after, facts=(*after.facts, Fact("uncalibrated_noise", reason=DIRECTION)))

    @torch.no_grad()
    def _best(self, signal: Signal, local: Local, rngs: Generators) -> Parameters:
        """Return the direction of the trial with the lowest loss, {p: (lanes, 1, *p)}."""
        project = orthogonal if self.projection == "exact" else released_projection
        best = signal.grads
        lowest = losses_after(local, signal.grads, 0.0)
        for trial in range(self.trials):
            sent = {n: project(g, normal(g, rngs, 1)) for n, g in signal.grads.items()}
            losses = losses_after(local, sent, self.step)
            better = losses < lowest
            if trial == 0 and self.projection == "exact":
                better = torch.ones_like(better)
            lowest = torch.where(better, losses, lowest)
            best = {n: torch.where(better.reshape(-1, *[1] * (b.dim() - 1)), sent[n], b) for n, b in best.items()}
        return best

    def unlikelihood(self, guess: Parameters, seen: Parameters) -> Tensor | None:
        """Return (lanes,), minus the logarithm of the likelihood of what one client sent in one local iteration.

        Every tensor has the length |g|. The component of v along u is 0, or, with the released projection, random
        (`released_angle`). An unchanged gradient is possible too; the likelier of both counts.
        """
        bare, hidden = [], []
        for name, u in seen.items():
            g, v = guess[name].flatten(1), u.flatten(1)
            long, sent = (x.square().sum(1).clamp_min(1e-30).sqrt() for x in (g, v))
            along = (g * v).sum(1) / sent
            lengths = ((long - sent) / FLOOR).square() / 2
            exact = self.projection == "exact"
            angles = (along / FLOOR).square() / 2 if exact else released_angle(along / long, sent, g.shape[1])
            hidden.append(lengths + angles)
            bare.append((g - v).square().sum(1) / (2 * FLOOR**2))
        return torch.minimum(torch.stack(bare).sum(0), torch.stack(hidden).sum(0))


def _unit(rows: Tensor) -> Tensor:
    """Return rows (lanes, 1, d) of length 1; zero for a row of zeros."""
    return rows / length(rows, 2)[..., None].clamp_min(torch.finfo(rows.dtype).tiny)


def _scaled(direction: Tensor, grad: Tensor) -> Tensor:
    """Return a direction (lanes, 1, d) of the length and the shape of grad (lanes, 1, *p)."""
    return (_unit(direction) * length(grad.flatten(2), 2)[..., None]).reshape(grad.shape)


def orthogonal(grad: Tensor, drawn: Tensor) -> Tensor:
    """Return the part of `drawn` orthogonal to grad (lanes, 1, *p), with the length of grad; zero for a tensor of one number."""
    u, r = _unit(grad.flatten(2)), _unit(drawn.flatten(2))
    rest = r - (r * u).sum(2, keepdim=True) * u
    return _scaled(rest * (length(rest, 2)[..., None] > PARALLEL), grad)


def released_projection(grad: Tensor, drawn: Tensor) -> Tensor:
    """Return `drawn` minus (r u) g as in the released code, with the length of grad (lanes, 1, *p).

    A gradient of zeros gives NaN, as there.
    """
    g, r = grad.flatten(2), _unit(drawn.flatten(2))
    along = (r * (g / length(g, 2)[..., None])).sum(2, keepdim=True)
    return _scaled(r - along * g, grad)


def released_angle(cosine: Tensor, long: Tensor, size: int) -> Tensor:
    """Return minus the log-likelihood of a direction of the released projection, relative to a uniform one.

    v has the direction of a normal vector of unit variance whose component along u is multiplied by 1 - |g|: an angular central
    Gaussian law. The selection by the loss is left out.

    Args:
        cosine: (lanes,), the cosine between v and g.
        long: (lanes,), |g|.
        size: d.
    """
    factor = (1 - long).square().clamp_min(FLOOR**2)
    return size / 2 * torch.log1p(cosine.square() * (1 / factor - 1)) + factor.log() / 2


def losses_after(local: Local, direction: Parameters, step: float) -> Tensor:
    """Return the mean loss (lanes,) of each lane's examples at its weights minus `step` times {p: (lanes, 1, *p)}."""
    network = local.network.moved({n: d[:, 0] for n, d in direction.items()}, step)
    model = network.model

    def mean(p: Parameters, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        outputs = functional_call(model, {**p, **network.statistics}, (x,))
        each = task_of(model).losses(outputs, x, y)
        return (each * w).sum() / w.sum().clamp_min(1)

    weights = local.inputs.new_ones(local.inputs.shape[:2]) if local.weights is None else local.weights
    losses: Tensor = vmap(mean)(network.parameters, local.inputs, local.targets, weights)
    return losses
