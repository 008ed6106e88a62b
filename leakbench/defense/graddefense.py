"""GradDefense: cut a gradient into slices of equal sensitivity to the input, and add noise to a random half of them.

J. Wang, S. Guo, X. Xie, H. Qi, "Protect Privacy from Gradient Leakage Attack in Federated Learning", INFOCOM 2022. The formulas
are those of the authors' code (github.com/wangjunxiao/GradDefense).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic_core import PydanticCustomError
from torch import Tensor
from torch.func import functional_call, grad, jacrev, vmap

from leakbench.core.errors import InputError
from leakbench.core.part import Count, Positive, part
from leakbench.core.rng import normal
from leakbench.core.task import task_of
from leakbench.core.types import Clock, Fact, Generators, Local, Parameters, Signal
from leakbench.defense.by_norm import clip_factor
from leakbench.defense.transform import apart, together
from leakbench.engine.rows import length
from leakbench.models.batch_norm import mixes_examples

__all__ = ["GradDefense", "noise_alone", "sensitivities", "slice_numbers"]

PARTIAL = "noise on some slices of the gradient only: the other slices are sent as they are"

FLOOR = 1e-3
"""Deviation of a coordinate without noise in the attacker's likelihood, as in `leakbench.attack.slots.distance`."""


RUN = 50
"""Number of consecutive coordinates that an attacker tests together for being noise alone."""

DEVIANCE = 6.0
"""Largest deviance of noise; half of a chi-square of one degree of freedom is above it in 5 of 10,000 runs."""


@part("transform.graddefense")
class GradDefense:
    """Add Gaussian noise of standard deviation `noise` to `perturbed` of `slices` consecutive slices of each gradient.

    All tensors together are cut into atoms of as many coordinates as the greatest common divisor of their sizes. A tensor's
    sensitivity is divided evenly among its atoms. Slices are filled in order until the next atom would bring them to a
    `slices`-th of the whole; the last slice takes the rest. The slices with noise are drawn for each lane.

    With `clip`, the slices with noise are first scaled to a norm of at most `noise`, member by member.
    """

    # It needs the weights, and slices follow from the examples of a local iteration.
    stations: ClassVar[tuple[str, ...]] = ("example", "batch")

    noise: Annotated[Positive, Field(description="Standard deviation of the noise, and bound of the clip.")]
    slices: Annotated[Count, Field(description="Number of slices.")] = 10
    perturbed: Annotated[Count, Field(description="Number of slices with noise, at most `slices`.")] = 5
    clip: Annotated[bool, Field(description="Whether the slices with noise are clipped first.")] = False

    def __post_init__(self) -> None:
        if self.perturbed > self.slices:
            text = f"perturbed: got {self.perturbed}, expected at most the number of slices ({self.slices})"
            raise PydanticCustomError("slot", "{text}", {"text": text})

    @property
    def runs_network(self) -> Literal[True]:
        """See `leakbench.defense.transform.RunsNetwork`."""
        return True

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Perturb; `sensitivity` becomes None. Without `rngs`, no slice is chosen and the gradient stays.

        Raises:
            InputError: If the station has no examples, or for a network that normalises by the batch.
        """
        local = signal.local
        if local is None:
            raise InputError("graddefense: this station has no examples; put it at the example or the batch station")
        if mixes_examples(local.network.model):
            raise InputError("graddefense: its sensitivities are those of single examples; choose --victim-mode eval")
        grads = signal.grads if rngs is None else self._perturbed(signal, local, rngs)
        after = signal.replace(grads, None, Fact("other", reason=PARTIAL, raw=True))
        fact = Fact("uncalibrated_noise", std=self.noise, each=True, reason=PARTIAL)
        return dataclasses.replace(after, facts=(*after.facts, fact))

    def _perturbed(self, signal: Signal, local: Local, rngs: Generators) -> Parameters:
        sizes = [g[0, 0].numel() for g in signal.grads.values()]
        flat = together(signal.grads)
        numbers = slice_numbers(sensitivities(local), sizes, self.slices)
        lots = normal(flat.new_empty(signal.lanes, 1, self.slices), rngs, 1)[:, 0]
        chosen = torch.zeros_like(lots, dtype=torch.bool).scatter_(1, lots.topk(self.perturbed, 1).indices, True)
        if self.clip:
            for number in range(self.slices):
                inside = ((numbers == number) & chosen[:, number : number + 1])[:, None]
                factor = clip_factor(length(flat.where(inside, torch.zeros_like(flat)), 2), self.noise)
                flat = torch.where(inside, flat * factor[..., None], flat)
        noisy = chosen.gather(1, numbers)[:, None]
        flat = flat + self.noise * normal(flat, rngs, signal.members) * noisy
        return apart(flat, signal.grads)

    @property
    def ranks(self) -> Literal[True]:
        """See `leakbench.defense.guess.Ranks`."""
        return True

    def unlikelihood(self, guess: Parameters, seen: Parameters) -> Tensor | None:
        """Return (lanes,), minus the log-likelihood of the leaked gradient.

        Without the clip, each coordinate has noise with the probability perturbed / slices. With it, next to nothing is left of
        the slices with noise: they do not count (`noise_alone`), and all other coordinates are exact.
        """
        share = self.perturbed / self.slices
        wide = math.hypot(FLOOR, self.noise)
        ignored = noise_alone(seen, self.noise) if self.clip else None
        each = []
        for name, u in seen.items():
            exact = ((guess[name] - u) / FLOOR).square() / 2
            if ignored is not None:
                each.append(exact.masked_fill(ignored[name], 0).flatten(1).sum(1))
                continue
            plain = math.log(1 - share) - exact if share < 1 else torch.full_like(u, -torch.inf)
            noisy = math.log(share) - exact * (FLOOR / wide) ** 2 - math.log(wide / FLOOR)
            each.append(-torch.logaddexp(plain, noisy).flatten(1).sum(1))
        return torch.stack(each).sum(0)


def noise_alone(seen: Parameters, noise: float) -> dict[str, Tensor]:
    """Return {p: (lanes, *p)} bool, which coordinates of a leaked gradient look like noise and nothing else.

    Slices are runs of consecutive coordinates. A run of `RUN` of them has the deviance n / 2 (q - 1 - log q) from N(0, noise^2),
    where q is its mean square over the variance. Below `DEVIANCE` it counts as noise, and so do its neighbours, which may contain
    an end of a slice.
    """
    flat = together(seen, 1)
    padded = torch.nn.functional.pad(flat, (0, -flat.shape[1] % RUN))
    quotient = padded.reshape(len(flat), -1, RUN).square().mean(2) / noise**2
    deviance = RUN / 2 * (quotient - 1 - quotient.clamp_min(torch.finfo(flat.dtype).tiny).log())
    near = torch.nn.functional.max_pool1d((deviance < DEVIANCE).to(flat)[:, None], 3, 1, 1)[:, 0] > 0
    return apart(near.repeat_interleave(RUN, 1)[:, : flat.shape[1]], seen)


def sensitivities(local: Local) -> Tensor:
    """Return (lanes, tensors), the mean over the examples of |d s / d x|, where s is the sum of a tensor's gradient."""
    network = local.network
    weights = {n: p.detach() for n, p in network.parameters.items()}
    model = network.model

    def loss(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(model, {**p, **network.statistics}, (x[None],))
        return task_of(model).losses(outputs, x[None], y[None]).sum()

    def norms(p: Parameters, x: Tensor, y: Tensor) -> Tensor:
        def sums(at: Tensor) -> Tensor:
            return torch.stack([g.sum() for g in grad(loss)(p, at, y).values()])

        rows: Tensor = jacrev(sums)(x)
        long: Tensor = torch.linalg.vector_norm(rows.flatten(1), dim=1)
        return long

    every = vmap(vmap(norms, in_dims=(None, 0, 0)), in_dims=(network.axis, 0, 0))
    found: Tensor = every(weights, local.inputs.detach(), local.targets.detach())
    return found.mean(1)


def slice_numbers(sensitivity: Tensor, sizes: list[int], slices: int) -> Tensor:
    """Return (lanes, coordinates), the number of the slice of each coordinate, over all tensors together.

    Args:
        sensitivity: (lanes, tensors).
        sizes: Number of coordinates of each tensor.
        slices: Number of slices; some are empty if one atom has more than its share.
    """
    atom = math.gcd(*sizes)
    counts = torch.tensor(sizes, device=sensitivity.device) // atom
    sums = (sensitivity.double() / counts).repeat_interleave(counts, 1).cumsum(1)
    share = sums[:, -1:] / slices
    first = torch.zeros(len(sums), 1, dtype=torch.int64, device=sums.device)
    numbers = torch.zeros(sums.shape, dtype=torch.int64, device=sums.device)
    places = torch.arange(sums.shape[1], device=sums.device)
    for _ in range(slices - 1):
        before = torch.where(first > 0, sums.gather(1, (first - 1).clamp_min(0)), 0.0)
        first = torch.searchsorted(sums, before + share).clamp_max(sums.shape[1] - 1)
        numbers += places >= first
    return numbers.repeat_interleave(atom, 1)
