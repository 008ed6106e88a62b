"""The filters of NVIDIA FLARE: a cut-off at a percentile, the sparse vector technique, and noise in units of a percentile.

A client applies them to its update, the difference of its weights. FLARE divides the update by the number of local iterations
that the client reports, and multiplies the result by it again. It sends a parameter that is a single number as it is; no network
here has one.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.part import Fraction, NonNegative, Positive, part
from leakbench.core.rng import normal, uniform
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.guess import surviving
from leakbench.defense.noise import laplace
from leakbench.defense.transform import InOrder, Transform, apart, together

__all__ = ["PercentileFilter", "PercentileNoise", "Saturated", "SparseVector", "percentile"]

SPENT_BY_EACH = (
    "Laplace noise on each coordinate: the epsilon of an update grows in proportion to the coordinates it sends"
)
SCALE_FROM_UPDATE = "the scale of the noise is a percentile of the private update"
UNCOUNTED = "a clamp at the server is bounded by how many coordinates an update has, which is not looked at there"

PerStep = Annotated[
    bool,
    Field(description="Whether the client reports its number of local iterations; otherwise FLARE divides by 1."),
]


def percentile(sizes: Tensor, share: float, above_zero: bool = False) -> Tensor:
    """Return the `share` quantile of each row by linear interpolation, as numpy's `percentile`.

    Args:
        sizes: (..., n), not negative.
        above_zero: Whether to leave out zeros; a row of zeros then gives 0.

    Returns:
        (..., 1), without a derivative.
    """
    ordered = sizes.detach().sort(-1).values
    zeros = (ordered == 0).sum(-1, keepdim=True) if above_zero else torch.zeros_like(ordered[..., :1])
    last = ordered.shape[-1] - 1
    place = (zeros + share * (last - zeros).double()).clamp(0, last)
    low = place.floor().long()
    below, above = ordered.gather(-1, low), ordered.gather(-1, (low + 1).clamp_max(last))
    # Without the comparison, the difference of two infinite values would be NaN.
    return torch.where(below == above, below, below + (above - below) * (place - low).to(below))


def _without_guarantee(signal: Signal, grads: Parameters, std: float, reason: str) -> Signal:
    """Return the signal with noise of standard deviation `std` (0 if unknown) that gives no epsilon for this reason."""
    after = signal.replace(grads, signal.sensitivity, Fact("other", reason=reason))
    noise = Fact("uncalibrated_noise", std=std, each=True, reason=reason)
    return dataclasses.replace(after, facts=(*after.facts, noise))


@part("transform.percentile_filter")
class PercentileFilter:
    """Set the `share` smallest coordinates of each update to zero, and clamp the others to [-gamma, gamma], per local iteration.

    `PercentilePrivacy` of NVIDIA FLARE 2.9.0, with its defaults. The cut-off is a percentile of the magnitudes over all tensors
    together; coordinates equal to it are sent. With p coordinates, the L2 norm of what is sent is at most
    gamma * L * sqrt(p), to which later noise is calibrated.
    """

    stations: ClassVar[tuple[str, ...]] = ("client",)

    share: Annotated[
        Fraction, Field(description="Share of the coordinates below the cut-off, FLARE's percentile / 100.")
    ] = 0.1
    gamma: Annotated[Positive, Field(description="Largest magnitude of a coordinate, for one local iteration.")] = 0.01
    per_step: PerStep = True

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Filter; `sensitivity` becomes the bound in every lane."""
        signal = signal.finite()
        cutoff = percentile(together(signal.grads).abs(), self.share)
        largest = self.gamma * (clock.local_iterations if self.per_step else 1)
        grads = {}
        for name, g in signal.grads.items():
            small = g.abs() < cutoff.reshape(*cutoff.shape[:2], *[1] * (g.dim() - 2))
            grads[name] = g.masked_fill(small, 0).clamp(-largest, largest)
        first = next(iter(grads.values()))
        bound = largest * math.sqrt(sum(g[0, 0].numel() for g in grads.values()))
        # The ledger shows a server only one coordinate of each tensor, so their number gives no bound there.
        norm, reason = (math.inf, UNCOUNTED) if signal.local is None else (bound, "")
        fact = Fact("clip", norm=norm, reason=reason)
        return signal.replace(grads, first.new_full((signal.lanes,), bound), fact)

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess."""
        return Saturated(seen, self.gamma, self.per_step)


@dataclass(frozen=True)
class Saturated:
    """Repeat on a guess what the leaked update {p: (lanes, *p)} shows: its zeros, and the coordinates that were clamped.

    A clamped coordinate of the guess may have any value beyond the bound, on the side where the leaked one is. All others stay as
    they are, so that a guess that is too large has a derivative. Clamped are the coordinates with the largest magnitude, if at
    least two have it. The leaked update has the opposite sign of a difference of weights, because it is a gradient.
    """

    seen: Parameters
    gamma: float
    per_step: bool

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Mask and clamp every member alike; nothing is drawn."""
        bound = self.gamma * (clock.local_iterations if self.per_step else 1)
        sizes = together(self.seen, 1).abs()
        # The leaked update was multiplied and divided by the learning rate.
        most = (1 - 1e-5) * sizes.amax(1, keepdim=True)
        limit = torch.where((sizes >= most).sum(1) > 1, most[:, 0], torch.inf)
        grads = {}
        for name, g in signal.grads.items():
            seen = self.seen[name].unsqueeze(1)
            side = -seen.sign()
            clamped = seen.abs() >= limit.reshape(-1, *[1] * (g.dim() - 1))
            beyond = side * (side * g).clamp_max(bound)
            grads[name] = torch.where(clamped, beyond, g) * (seen != 0).to(g)
        return signal.replace(grads, signal.sensitivity, Fact("other"))


@part("transform.sparse_vector")
class SparseVector:
    """Send noisy values of randomly selected coordinates of each update, by the sparse vector technique, per local iteration.

    `SVTPrivacy` of NVIDIA FLARE 2.9.0, with its defaults. Of d coordinates, c = ceil(fraction * d) are selected:

    1. The threshold is tau plus Laplace noise of scale gamma / e1.
    2. A pass over the coordinates accepts each one whose magnitude, clamped to gamma, is above the threshold with Laplace noise of
       scale 2 c gamma / e2. Further passes ask those that were not accepted, until at least c are accepted.
    3. Of the accepted coordinates, c are drawn with equal probability. A selected value is clamped to [-gamma, gamma] and gets
       Laplace noise of scale 2 gamma / noise_var. All others become zero.

    Here e1 + e2 = epsilon and e2 / e1 = (2 c)^(2/3).
    """

    stations: ClassVar[tuple[str, ...]] = ("client",)

    fraction: Annotated[float, Field(gt=0, le=1, description="Share of the coordinates to select.")] = 0.1
    epsilon: Annotated[Positive, Field(description="Epsilon that FLARE counts for the selection.")] = 0.1
    noise_var: Annotated[
        Positive, Field(description="Epsilon of the noise on one selected value; despite its name not a variance.")
    ] = 0.1
    gamma: Annotated[Positive, Field(description="Largest magnitude of a coordinate, for one local iteration.")] = 1e-5
    tau: Annotated[NonNegative, Field(description="Threshold before its noise.")] = 1e-6
    replace: Annotated[
        bool, Field(description="Whether coordinates are drawn with replacement, so that fewer than c are sent.")
    ] = True
    per_step: PerStep = True

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Select and add noise. Without `rngs` all coordinates are sent, since each could be selected."""
        length = clock.local_iterations if self.per_step else 1
        values = (together(signal.grads).double() / length).clamp(-self.gamma, self.gamma)
        if rngs is not None:
            noise = 2 * self.gamma / self.noise_var * laplace(values, rngs, signal.members)
            values = torch.where(self._selected(values, rngs), values + noise, 0.0)
        std = 2**1.5 * self.gamma / self.noise_var * length
        sent = {n: v.to(signal.grads[n]) for n, v in apart(length * values, signal.grads).items()}
        return _without_guarantee(signal, sent, std, SPENT_BY_EACH)

    def selected(self, coordinates: int) -> int:
        """Return c, the number of coordinates to select of `coordinates`."""
        return min(math.ceil(coordinates * self.fraction), coordinates)

    def spent(self, coordinates: int) -> tuple[float, float]:
        """Return bounds of the pure epsilon (delta 0) of one update of a client that may be replaced by any other.

        The lower bound is c * noise_var. The updates with gamma and with -gamma everywhere have it: their magnitudes are equal, so
        that the selection shows nothing, and each of c selected values differs by 2 gamma. The upper bound adds the selection.
        Every accepted coordinate costs e2 / c, as in the sparse vector technique. FLARE counts c of them, but does not stop
        there, so that up to all d may be accepted: e1 + e2 d / c.
        """
        count = self.selected(coordinates)
        threshold, query = self._split(count)
        return count * self.noise_var, threshold + query * coordinates / count + count * self.noise_var

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess: the clamp, and the mask of the leaked update."""
        masked = surviving(self, seen)
        return self if masked is self else InOrder((self, masked))

    def unlikelihood(self, guess: Parameters, seen: Parameters) -> Tensor | None:
        """Return (lanes,), minus the log-likelihood of the Laplace noise on the coordinates that are not zero.

        Its scale is the mean magnitude of these coordinates, since the values before the noise are far smaller.
        """
        sizes = together(seen, 1).abs()
        scale = (sizes.sum(1) / (sizes > 0).sum(1).clamp_min(1)).clamp_min(torch.finfo(sizes.dtype).tiny)
        each = [((seen[n] - g).abs() * (seen[n] != 0)).flatten(1).sum(1) for n, g in guess.items()]
        return torch.stack(each).sum(0) / scale

    def _split(self, count: int) -> tuple[float, float]:
        """Return (e1, e2)."""
        ratio = (2.0 * count) ** (2 / 3)
        return self.epsilon / (1 + ratio), self.epsilon * ratio / (1 + ratio)

    def _selected(self, values: Tensor, rngs: Generators) -> Tensor:
        """Return which coordinates of `values` (lanes, members, d) are sent."""
        members, count = values.shape[1], self.selected(values.shape[2])
        passes = self._accepted_in(values, rngs)
        accepted = passes <= passes.kthvalue(count, dim=2, keepdim=True).values
        if not self.replace:
            lots = normal(values, rngs, members).masked_fill(~accepted, -torch.inf)
            return lots >= lots.kthvalue(values.shape[2] - count + 1, dim=2, keepdim=True).values
        # The accepted coordinates first, then one draw of a place among them for each of the c.
        order = accepted.to(torch.int8).argsort(dim=2, descending=True, stable=True)
        places = uniform(values[:, :, :count], rngs, members) * accepted.sum(2, keepdim=True)
        return torch.zeros_like(accepted).scatter(
            2, order.gather(2, places.long().clamp_max(values.shape[2] - 1)), True
        )

    def _accepted_in(self, values: Tensor, rngs: Generators) -> Tensor:
        """Return in which pass each coordinate is accepted, from 1.

        Each pass draws new noise against the same threshold, so that the number of passes is geometric; it is drawn at once.
        """
        count, members = self.selected(values.shape[2]), values.shape[1]
        threshold, query = self._split(count)
        at = self.tau + self.gamma / threshold * laplace(values[:, :, :1], rngs, members)
        missing = (at - values.abs()) / (2 * count * self.gamma / query)
        # The probability of Laplace noise above what is missing.
        chance = torch.where(missing > 0, 0.5 * (-missing.abs()).exp(), 1 - 0.5 * (-missing.abs()).exp())
        passes = (torch.log1p(-uniform(values, rngs, members)) / torch.log1p(-chance)).ceil()
        # NaN has to be visible in what is sent.
        return passes.nan_to_num(1.0, torch.inf).clamp_min(1)


@part("transform.percentile_noise")
class PercentileNoise:
    """Add Gaussian noise of sigma0 times a percentile of the magnitudes that are not zero, over all tensors of a member together.

    `GaussianPrivacy` of NVIDIA FLARE's research/quantifying-data-leakage (Hatamizadeh et al., IEEE TMI 2023). An update of zeros
    stays as it is.
    """

    sigma0: Annotated[
        NonNegative, Field(description="Standard deviation of the noise as a multiple of the percentile.")
    ]
    share: Annotated[Fraction, Field(description="The percentile / 100.")] = 0.95

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Add the noise; `sensitivity` stays."""
        deviation = self.sigma0 * percentile(together(signal.grads).abs(), self.share, above_zero=True)
        grads = {}
        for name, g in signal.grads.items():
            scale = deviation.reshape(*deviation.shape[:2], *[1] * (g.dim() - 2))
            grads[name] = g + scale * normal(g, rngs, signal.members)
        # Its scale is not known before the update is.
        return _without_guarantee(signal, grads, 0.0, SCALE_FROM_UPDATE)

    def unlikelihood(self, guess: Parameters, seen: Parameters) -> Tensor | None:
        """Return (lanes,), |guess - seen|^2 / (2 s^2), with the standard deviation s of the noise as `seen` shows it.

        If q is the percentile before the noise and the values near it are few, the percentile of the sum is about
        sqrt(q^2 + (z s)^2), z that of |x| for standard normal x; and s = sigma0 q.
        """
        if not self.sigma0:
            return None
        sizes = together(seen, 1).abs()
        tail = math.sqrt(2) * float(torch.erfinv(torch.tensor(min(self.share, 1 - 1e-6), dtype=torch.float64)))
        sum_of_both = percentile(sizes, self.share, above_zero=True)[:, 0].clamp_min(torch.finfo(sizes.dtype).tiny)
        deviation = self.sigma0 * sum_of_both / math.sqrt(1 + (tail * self.sigma0) ** 2)
        squares = torch.stack([(g - seen[n]).flatten(1).square().sum(1) for n, g in guess.items()]).sum(0)
        return squares / (2 * deviation.square())
