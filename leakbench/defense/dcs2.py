"""DCS-2: hide the gradient of each example behind that of a concealed example, made to have a similar gradient.

J. Wu, M. Hayat, M. Zhou, M. Harandi, "Concealing Sensitive Samples against Gradient Leakage in Federated Learning", AAAI 2024. The
formulas and numbers are those of the authors' code (github.com/JingWu321/DCS-2, dlg/defenses/dcs.py). Letters: x, y a private
example and its label, c and k its concealed example and that one's label, g the gradient of the private batch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call, grad, vmap

from leakbench.core.errors import InputError
from leakbench.core.part import Count, Fraction, NonNegative, Positive, part
from leakbench.core.rng import normal, uniform
from leakbench.core.types import Clock, Fact, Generators, Local, Parameters, Signal
from leakbench.defense.transform import Transform
from leakbench.models.batch_norm import mixes_examples

__all__ = ["Conceal", "Revealed", "concealed", "joined_to_concealed"]

ADDED = "the gradient of concealed examples is added to the private one, and nothing is clipped or noised"

CERTAIN = 10.0
"""Factor of the numbers whose softmax is the attacker's guess of a concealed example's label."""

TINY = 1e-30
"""Least square of a length: the root of zero has no derivative."""


@part("transform.conceal")
class Conceal:
    """Send the mean gradient of the batch and of one concealed example for each private one.

    A concealed example starts as `weight` times noise plus 1 - `weight` times x, with a random label k. Adam then minimises

        1 - cos(g, gradient of the concealed batch) + exp(-far |c - x|) + near |f(c) - f(x)| / |f(x)|

    with the logits f and the length of c - x in units of the pixels' deviation, until |c - x| exceeds `enough` or after
    `iterations`. The gradient that is sent is (g + the gradient for c with the label weight k + (1 - weight) y) / 3, or / 2 for a
    weight of 0 or 1. If its inner product with g is negative, `projected` adds a multiple of g that makes it positive.
    """

    # It needs the examples and the network, and concealed examples join a batch.
    stations: ClassVar[tuple[str, ...]] = ("batch",)

    iterations: Annotated[Count, Field(description="Largest number of steps of Adam.")] = 1000
    rate: Annotated[
        Positive, Field(description="Adam's learning rate; 3/8, 5/8 and 7/8 of the steps divide it by 10.")
    ] = 0.1
    far: Annotated[NonNegative, Field(description="Factor of |c - x| in the exponent.")] = 0.01
    near: Annotated[NonNegative, Field(description="Factor of the difference of the logits.")] = 0.01
    enough: Annotated[Positive, Field(description="Length of c - x at which the steps end.")] = 300.0
    weight: Annotated[Fraction, Field(description="Share of the noise in the start, and of k in the label.")] = 0.7
    projected: Annotated[bool, Field(description="Whether a gradient that points away from g is changed.")] = True
    mean: Annotated[NonNegative, Field(description="Mean of the pixels of the data set.")] = 0.1307
    deviation: Annotated[Positive, Field(description="Standard deviation of the pixels of the data set.")] = 0.3081

    @property
    def runs_network(self) -> Literal[True]:
        """See `leakbench.defense.transform.RunsNetwork`."""
        return True

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Conceal; `sensitivity` becomes None. Without `rngs` nothing is concealed, and the gradient stays.

        Raises:
            InputError: If the station has no examples, for texts, and for a network that normalises by the batch.
        """
        local = _checked(signal)
        fact = Fact("other", reason=ADDED, raw=True)
        if rngs is None:
            return signal.replace(signal.grads, None, fact)
        x = local.inputs.detach()
        noise = self.mean + self.deviation * normal(x, rngs, x.shape[1])
        places = (uniform(local.targets[..., :1], rngs, x.shape[1]) * local.targets.shape[-1]).long()
        labels = torch.zeros_like(local.targets).scatter(2, places.clamp_max(local.targets.shape[-1] - 1), 1.0)
        c = concealed(self, local, signal.grads, self.weight * noise + (1 - self.weight) * x, labels)
        return signal.replace(joined_to_concealed(self, signal, c, labels), None, fact)

    def hidden(self, seen: Parameters, examples: int, shape: tuple[int, ...], classes: int) -> Tensor:
        """Return where a search of the concealed examples and their labels starts, see `leakbench.defense.guess.Hides`.

        Examples start at the mean of the pixels. For one example, both labels show in the last layer's gradient: only their rows
        have negative sums if features are never negative (Zhao et al., 2020, eq. 4 to 6). The private label has the larger weight
        and the lowest sum. Without a second negative row, both are the same.
        """
        like = next(iter(seen.values()))
        start = like.new_zeros(len(like), examples, math.prod(shape) + classes)
        last = [u for u in seen.values() if u.dim() > 2][-1]
        if examples == 1 and last.shape[1] == classes > 1:
            sums, places = last.flatten(2).sum(2).topk(2, 1, largest=False)
            found = torch.where(sums[:, 1] < 0, places[:, 1], places[:, 0])
            start[:, 0, -classes:].scatter_(1, found[:, None], 1.0)
        return start.flatten(1)

    def revealed(self, numbers: Tensor) -> Transform:
        """Return the transform with the concealed examples of these numbers (lanes, h)."""
        return Revealed(self, numbers)


@dataclass(frozen=True)
class Revealed:
    """Add guessed concealed examples to a guess.

    A pixel is the mean of the pixels plus a standard normal number, times the deviation at which |c - x| is `enough`. Labels are
    softmaxes.
    """

    of: Conceal
    numbers: Tensor

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add them; nothing is drawn."""
        local = _checked(signal)
        pixels = local.inputs[0, 0].numel()
        each = self.numbers.reshape(*local.inputs.shape[:2], -1)
        spread = self.of.enough * self.of.deviation / math.sqrt(pixels)
        c = (self.of.mean + spread * each[..., :pixels]).reshape(local.inputs.shape)
        labels = (CERTAIN * each[..., pixels:]).softmax(-1)
        return signal.replace(joined_to_concealed(self.of, signal, c, labels), None, Fact("other"))


def concealed(how: Conceal, local: Local, private: Parameters, start: Tensor, labels: Tensor) -> Tensor:
    """Return the concealed examples (lanes, B, *s), without a derivative.

    Args:
        how: The numbers of the search.
        local: The private examples.
        private: {p: (lanes, 1, *p)}, g.
        start: (lanes, B, *s).
        labels: (lanes, B, classes), one-hot.
    """
    inputs, weights = local.inputs.detach() / how.deviation, _weights(local)
    share = weights / weights.sum(1, keepdim=True).clamp_min(1)
    wanted = {n: g.detach()[:, 0] for n, g in private.items()}
    logits = _outputs(local, local.inputs.detach())
    u = start.detach() / how.deviation
    first, second = torch.zeros_like(u), torch.zeros_like(u)
    going = torch.ones(len(u), dtype=torch.bool, device=u.device)
    turns = [int(how.iterations // part) for part in (2.667, 1.6, 1.142)]
    for step in range(how.iterations):
        with torch.enable_grad():
            leaf = u.clone().requires_grad_()
            there = leaf * how.deviation
            similar = _cosines(_gradients(local, there, labels, share), wanted)
            away = (_lengths(leaf - inputs, 2) * share).sum(1)
            apart = _lengths(_outputs(local, there) - logits, 2) / _lengths(logits, 2)
            value = 1 - similar + torch.exp(-how.far * away) + how.near * (apart * share).sum(1)
            (slope,) = torch.autograd.grad(value.sum(), leaf)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope.square()
        rate = how.rate * 0.1 ** sum(step >= turn for turn in turns)
        mean, square = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        moved = u - rate * mean / (square.sqrt() + 1e-8)
        u = torch.where(going.reshape(-1, *[1] * (u.dim() - 1)), moved, u)
        going &= away.detach() <= how.enough
        if not bool(going.any()):
            break
    return u * how.deviation


def joined_to_concealed(how: Conceal, signal: Signal, examples: Tensor, labels: Tensor) -> Parameters:
    """Return {p: (lanes, 1, *p)}, the gradient that is sent with concealed examples (lanes, B, *s); differentiable."""
    local = _checked(signal)
    mixed = how.weight * labels + (1 - how.weight) * local.targets
    added = _gradients(local, examples, mixed, _weights(local) / signal.averaged)
    divisor = 2 if how.weight in (0, 1) else 3
    sent = {n: (g + added[n][:, None]) / divisor for n, g in signal.grads.items()}
    if not how.projected:
        return sent
    product, square = (
        torch.stack([(g * other[n]).flatten(1).sum(1) for n, g in signal.grads.items()]).sum(0)
        for other in (sent, signal.grads)
    )
    # The minimum of v^2 (|g|^2 + 0.001) / 2 + v <g, sent> with v >= 0.5: the quadratic program of gradient episodic memory.
    factor = torch.where(product < 0, (-product / (square + 1e-3)).clamp_min(0.5), 0.0)
    return {n: s + factor.reshape(-1, *[1] * (s.dim() - 1)) * signal.grads[n] for n, s in sent.items()}


def _checked(signal: Signal) -> Local:
    """Return the signal's examples; raises InputError as `Conceal` does."""
    local = signal.local
    if local is None or signal.members != 1:
        raise InputError("conceal: it adds examples to a batch; put it at the batch station")
    if not local.inputs.is_floating_point():
        raise InputError("conceal: got the tokens of texts, expected pictures or tables")
    if mixes_examples(local.network.model):
        raise InputError("conceal: it does not run batch normalisation in train mode; choose --victim-mode eval")
    return dataclasses.replace(local, weights=_weights(local))


def _weights(local: Local) -> Tensor:
    """Return (lanes, B), the weights of the examples."""
    return local.inputs.new_ones(local.inputs.shape[:2]) if local.weights is None else local.weights


def _outputs(local: Local, inputs: Tensor) -> Tensor:
    """Return the logits (lanes, B, classes)."""
    network = local.network

    def outputs(p: Parameters, x: Tensor) -> Tensor:
        found: Tensor = functional_call(network.model, {**p, **network.statistics}, (x,))
        return found

    logits: Tensor = vmap(outputs, in_dims=(network.axis, 0))(network.parameters, inputs)
    return logits


def _gradients(local: Local, inputs: Tensor, targets: Tensor, weights: Tensor) -> Parameters:
    """Return {p: (lanes, *p)}, the gradient of the weighted loss of examples (lanes, B, *s); differentiable."""
    network = local.network

    def loss(p: Parameters, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        logits = functional_call(network.model, {**p, **network.statistics}, (x,))
        total: Tensor = (-(y * logits.log_softmax(-1)).sum(-1) * w).sum()
        return total

    found: Parameters = vmap(grad(loss), in_dims=(network.axis, 0, 0, 0))(network.parameters, inputs, targets, weights)
    return found


def _cosines(one: Parameters, other: Parameters) -> Tensor:
    """Return the cosines (lanes,) over all parameters."""
    product = torch.stack([(g * other[n]).flatten(1).sum(1) for n, g in one.items()]).sum(0)
    sizes = [torch.stack([g.square().flatten(1).sum(1) for g in of.values()]).sum(0) for of in (one, other)]
    return product / (sizes[0].clamp_min(TINY).sqrt() * sizes[1].clamp_min(TINY).sqrt() + 1e-12)


def _lengths(rows: Tensor, axes: int) -> Tensor:
    """Return the lengths (lanes, B) of rows (lanes, B, ...)."""
    return rows.flatten(axes).square().sum(-1).clamp_min(TINY).sqrt()
