"""Outpost: prune each tensor and add noise to its columns with the largest gradients, less often with each local iteration.

F. Wang, E. Hugh, B. Li, "More than Enough is Too Much: Adaptive Defenses against Gradient Leakage in Production Federated
Learning", INFOCOM 2023. The formulas are those of the authors' code (github.com/TL-System/plato).
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import Fraction, NonNegative, part
from leakbench.core.rng import normal, uniform
from leakbench.core.types import Clock, Fact, Generators, Network, Parameters, Signal
from leakbench.defense.transform import Transform, together

__all__ = ["Outpost", "OutpostGuess", "at_quantile", "noisy_columns", "weight_risks"]

CHOICE = "which coordinates are pruned and which get noise is read off the private gradient"
UNCLIPPED = "noise without a clip, on some coordinates and in some iterations only"
DISCARDED = "the perturbed gradient is computed and discarded: the private gradient is sent as it is"

FLOOR = 1e-3
"""Deviation of a coordinate without noise in the attacker's likelihood, as in `leakbench.attack.slots.distance`."""


@part("transform.outpost")
class Outpost:
    """Prune each tensor of a member, and add Gaussian noise to the columns with the most Fisher information.

    In local iteration i = 1, 2, ... the part acts with probability 1 / (1 + decay * i). It then sets all coordinates below the
    `pruned` quantile of their tensor's magnitudes to zero. A column has one coordinate for each output of the layer, and a bias
    is one column. Its information is the mean square of its coordinates before the pruning. The `share` of columns with the
    largest information, over all tensors together, get noise of standard deviation `noise` * min(1, v) on every coordinate,
    pruned or not. v is the variance of the weights of the tensor, which a server knows.
    """

    # It needs the weights, and the paper perturbs gradients, not updates.
    stations: ClassVar[tuple[str, ...]] = ("example", "batch")

    noise: Annotated[
        NonNegative, Field(description="Standard deviation of the noise for weights of variance 1 or more.")
    ] = 0.8
    share: Annotated[Fraction, Field(description="Share of the columns that get noise.")] = 0.4
    pruned: Annotated[Fraction, Field(description="Share of each tensor's coordinates to prune.")] = 0.8
    decay: Annotated[
        NonNegative, Field(description="How fast the probability of a perturbation falls with the local iterations.")
    ] = 0.125
    discarded: Annotated[
        bool, Field(description="Whether the perturbed gradient is discarded, as by the code since September 2024.")
    ] = False

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Perturb; `sensitivity` stays. Without `rngs`, every member is pruned and nothing is drawn.

        Raises:
            InputError: If the station has no weights.
        """
        if signal.local is None:
            raise InputError("outpost: this station has no weights; put it at the example or the batch station")
        if self.discarded:
            return signal.replace(signal.grads, signal.sensitivity, Fact("other", reason=DISCARDED, raw=True))
        risks, noisy = weight_risks(signal.local.network), self._noisy(signal.grads)
        acts = self._acts(signal, clock, rngs)
        grads = {}
        for name, g in signal.grads.items():
            drawn = normal(g, rngs, signal.members) * (self.noise * _beside(risks[name], g))
            perturbed = g * kept(g, self.pruned) + drawn * noisy[name]
            grads[name] = torch.where(_beside(acts, g), perturbed, g)
        after = signal.replace(grads, signal.sensitivity, Fact("other", reason=CHOICE, raw=True))
        # No weights give more than this deviation.
        fact = Fact("uncalibrated_noise", std=self.noise, each=True, reason=UNCLIPPED)
        return dataclasses.replace(after, facts=(*after.facts, fact))

    def _noisy(self, grads: Parameters) -> Parameters:
        """Return {p: (lanes, members, 1, *rest of p)}, 1 for the columns that get noise, else 0."""
        information = {n: g.detach().square().mean(2, keepdim=True) for n, g in grads.items()}
        whole = together(information)
        least = at_quantile(whole, 1 - self.share)
        return {n: (i >= _beside(least, i)).to(i) for n, i in information.items()}

    def _acts(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Tensor:
        """Return (lanes, members), whether a member is perturbed."""
        like = next(iter(signal.grads.values())).detach().flatten(2)[:, :, 0]
        probability = 1 / (1 + self.decay * (clock.local_iteration + 1))
        if rngs is None:
            return torch.ones_like(like, dtype=torch.bool)
        return uniform(like, rngs, signal.members) < probability

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess."""
        return self if self.discarded else OutpostGuess(self.pruned, seen)

    def unlikelihood(self, guess: Parameters, seen: Parameters) -> Tensor | None:
        """Return (lanes,), minus the logarithm of a Gaussian likelihood: exact where no noise was added.

        The deviation of a tensor's noise is estimated from the observed coordinates of its noisy columns, most of which were
        pruned and are nothing but noise. Returns None if the gradient was not perturbed in any lane.
        """
        if self.discarded or not bool(_perturbed(seen).any()):
            return None
        each = []
        for name, noisy in noisy_columns(seen).items():
            g, u = guess[name], seen[name]
            typical = u.abs().masked_fill(~noisy.expand_as(u), torch.nan).flatten(1).nanmedian(1).values
            # The median of the absolute value of a normal variable is .6745 of its standard deviation.
            std = (typical / 0.6745).nan_to_num(0.0).clamp_min(FLOOR)
            deviation = torch.where(noisy, std.reshape(-1, *[1] * (u.dim() - 1)), FLOOR)
            each.append(((g - u) / deviation).square().flatten(1).sum(1) / 2)
        return torch.stack(each).sum(0)


@dataclass(frozen=True)
class OutpostGuess:
    """Prune a guess as the leaked gradient {p: (lanes, *p)} was pruned.

    Columns without noise show which of their coordinates were pruned. In noisy columns, the guess is pruned by its own threshold.
    Lanes whose leaked gradient was not perturbed stay as they are.
    """

    pruned: float
    seen: Parameters

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Mask every member; nothing is drawn."""
        noisy, perturbed = noisy_columns(self.seen), _perturbed(self.seen)
        grads = {}
        for name, g in signal.grads.items():
            shown = (self.seen[name] != 0).unsqueeze(1).to(g)
            mask = torch.where(noisy[name].unsqueeze(1), kept(g, self.pruned), shown)
            grads[name] = torch.where(_beside(perturbed[:, None], g), g * mask, g)
        return signal.replace(grads, signal.sensitivity, Fact("other"))


def weight_risks(network: Network) -> Parameters:
    """Return {p: (1 or lanes, 1)}, min(1, the variance of the weights of each tensor); 0 for a tensor of one number."""
    risks = {}
    for name, p in network.parameters.items():
        rows = p.detach().reshape(1 if network.shared else len(p), -1)
        spread = rows.var(1, keepdim=True) if rows.shape[1] > 1 else torch.zeros_like(rows)
        risks[name] = spread.clamp_max(1)
    return risks


def at_quantile(values: Tensor, share: float) -> Tensor:
    """Return (lanes, members), the smallest value that is not below a quantile of the last axis (linear interpolation).

    A comparison with the quantile itself has the same result, and `torch.quantile` takes at most 16 million numbers.
    """
    place = math.ceil(round(share * (values.shape[2] - 1), 9))
    return values.kthvalue(place + 1, dim=2).values


def kept(grad: Tensor, share: float) -> Tensor:
    """Return 1 for the coordinates of grad (lanes, members, *p) that are not below the quantile of the magnitudes, else 0."""
    sizes = grad.detach().abs()
    # Not `>=`: a comparison with NaN is false, and NaN must not become zero.
    return (~(sizes < _beside(at_quantile(sizes.flatten(2), share), sizes))).to(grad)


def _perturbed(seen: Parameters) -> Tensor:
    """Return (lanes,), whether the leaked gradient has zeros: a perturbation prunes, and plain gradients have none."""
    return torch.stack([(u == 0).flatten(1).any(1) for u in seen.values()]).any(0)


def noisy_columns(seen: Parameters) -> dict[str, Tensor]:
    """Return {p: (lanes, 1, *rest of p)} bool, the columns without a zero in a leaked gradient {p: (lanes, *p)} with zeros.

    A column that got noise has no zero. A column without noise has none only if nothing in it was pruned, which is rare; the
    attacker then takes exact coordinates for noisy ones.
    """
    perturbed = _perturbed(seen)
    full = {n: (u != 0).all(1, keepdim=True) for n, u in seen.items()}
    return {n: f & perturbed.reshape(-1, *[1] * (f.dim() - 1)) for n, f in full.items()}


def _beside(values: Tensor, like: Tensor) -> Tensor:
    """Return values (lanes, members) with as many axes as `like`."""
    return values.reshape(*values.shape, *[1] * (like.dim() - 2))
