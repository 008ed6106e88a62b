"""Integer updates for secure aggregation: rotation, rounding to a grid, and sums modulo m.

Kairouz, Liu and Steinke, ICML 2021 (arXiv 2102.06387), Algorithms 1 and 2. `leakbench.defense.integer_noise` draws the
noise, and `leakbench.privacy.discrete` computes its privacy.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import NonNegative, part
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.by_norm import clip_factor
from leakbench.defense.integer_noise import discrete_gaussian, skellam
from leakbench.defense.transform import apart, together
from leakbench.engine.rows import length
from leakbench.privacy.discrete import Rounding

__all__ = [
    "IntegerShares",
    "ModularSum",
    "decode",
    "encode",
    "finest_step",
    "hadamard",
    "least_bits",
    "mean_squared_error",
    "padded",
    "random_signs",
    "rotate",
    "rotate_back",
    "round_to_grid",
    "wrap",
]


def padded(size: int) -> int:
    """Return the least power of two >= size."""
    return 1 << (size - 1).bit_length()


def random_signs(size: int, rng: torch.Generator) -> Tensor:
    """Return random signs (size,) in {-1, 1}, float64, which the clients of a round and the server share."""
    return torch.randint(0, 2, (size,), generator=rng, device=rng.device).double() * 2 - 1


def hadamard(vectors: Tensor) -> Tensor:
    """Return the orthonormal Walsh-Hadamard transform of the last axis, which is its own inverse.

    Args:
        vectors: (..., D), D a power of two.

    Raises:
        InputError: If D is not a power of two.
    """
    size = vectors.shape[-1]
    if size < 1 or size & (size - 1):
        raise InputError(f"vectors: got {size} coordinates, expected a power of two")
    found, half = vectors, 1
    while half < size:
        pairs = found.reshape(*vectors.shape[:-1], -1, 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        found, half = torch.stack([first + second, first - second], dim=-2).reshape(vectors.shape), 2 * half
    return found / math.sqrt(size)


def rotate(vectors: Tensor, signs: Tensor) -> Tensor:
    """Return the vectors (..., d) padded with zeros to (..., D), with these signs (D,), and transformed: H diag(signs) x."""
    filled = torch.nn.functional.pad(vectors, (0, signs.shape[-1] - vectors.shape[-1]))
    return hadamard(filled * signs.to(vectors))


def rotate_back(vectors: Tensor, signs: Tensor, size: int) -> Tensor:
    """Return the inverse of `rotate`, (..., size), of vectors (..., D)."""
    return (hadamard(vectors) * signs.to(vectors))[..., :size]


def round_to_grid(vectors: Tensor, rounding: Rounding, rng: torch.Generator) -> Tensor:
    """Round each coordinate up or down at random, without bias, again until the vector is at most `rounding.l2` long.

    Kairouz, Liu and Steinke 2021, Algorithm 1. One rounding is too long with probability at most beta, so the accepted one has a
    bias of that order.

    Args:
        vectors: (..., D), in units of the vector, at most `rounding.clip` long.

    Returns:
        (..., D), int64, in steps of the grid.

    Raises:
        InputError: If a vector is longer than the clip or not finite.
    """
    exact = vectors.double().reshape(-1, vectors.shape[-1])
    longest = float(length(exact, -1).max()) if len(exact) else 0.0
    if not longest <= rounding.clip * (1 + 1e-6):
        raise InputError(f"vectors: got an L2 norm of {longest:.6g}, expected at most the clip {rounding.clip:.6g}")
    low = (exact / rounding.step).floor()
    rest = exact / rounding.step - low
    found = torch.empty_like(low)
    left = torch.arange(len(exact), device=exact.device)
    while len(left):
        drawn = torch.rand(len(left), exact.shape[1], dtype=torch.float64, generator=rng, device=rng.device)
        found[left] = low[left] + (drawn.to(exact.device) < rest[left])
        left = left[found[left].square().sum(-1) > rounding.l2**2]
    return found.reshape(vectors.shape).long()


def encode(vectors: Tensor, rounding: Rounding, signs: Tensor, rng: torch.Generator) -> Tensor:
    """Clip, rotate and round the updates of clients.

    Args:
        vectors: (..., d), d <= D.
        rounding: Its dimension is D.
        signs: (D,).

    Returns:
        (..., D), int64, in steps of the grid, each at most `rounding.l2` long; without noise.

    Raises:
        InputError: If the signs do not match the dimension, or for a vector that is not finite.
    """
    if signs.shape[-1] != rounding.dimension:
        raise InputError(f"signs: got {signs.shape[-1]}, expected the dimension {rounding.dimension} of the rounding")
    exact = vectors.double()
    factor = clip_factor(length(exact, -1), rounding.clip)
    return round_to_grid(rotate(exact * factor[..., None], signs), rounding, rng)


def wrap(values: Tensor, modulus: int) -> Tensor:
    """Return int64 values modulo m, in [-m/2, m/2)."""
    return torch.remainder(values + modulus // 2, modulus) - modulus // 2


def decode(total: Tensor, rounding: Rounding, signs: Tensor, clients: int, size: int) -> Tensor:
    """Return the mean update (..., size), float64, that the server reads from a sum modulo m.

    Args:
        total: (..., D), int64, in [-m/2, m/2), as from `wrap`.
        clients: Number of clients in the sum.
        size: d, the number of coordinates without padding.
    """
    return rotate_back(total.double() * (rounding.step / clients), signs, size)


def least_bits(rounding: Rounding, variance: float, clients: int, deviations: float = 4.0) -> int:
    """Return the least number of bits b for which a sum modulo 2^b is unlikely to wrap around.

    Kairouz, Liu and Steinke 2021, section 4 and equation 61, with a flat rotation (their rho = 1) and updates that may all be
    equal: half the modulus is `deviations` times sqrt(c^2 n^2 / d + (gamma^2 / 4 + sigma^2) n) / gamma. One coordinate then wraps
    around with probability at most 2 exp(-deviations^2 / 2) before a vector is rounded again, over random signs. Skellam noise
    has slightly larger tails.

    Args:
        variance: Variance of the noise of one client, in squared steps.
        clients: Number of clients in the sum (n).
        deviations: Their k, 3 or 4 in the paper.
    """
    return max(1, math.ceil(math.log2(2 * deviations * _deviation(rounding, variance, clients))))


def _deviation(rounding: Rounding, variance: float, clients: int) -> float:
    signal = (rounding.clip / rounding.step * clients) ** 2 / rounding.dimension
    return math.sqrt(signal + (0.25 + variance) * clients)


def finest_step(clip: float, std: float, dimension: int, bits: int, clients: int, deviations: float = 4.0) -> float:
    """Return the least step of the grid for which `bits` bits suffice, the inverse of `least_bits`.

    Args:
        clip: L2 bound of an update.
        std: Standard deviation of the noise of one client, in units of the update.
        dimension: Number of coordinates with padding.

    Raises:
        InputError: If the bits do not even suffice for the error of rounding.
    """
    left = 4.0**bits - clients * deviations**2
    if left <= 0:
        least = math.floor(math.log2(clients * deviations**2) / 2) + 1
        raise InputError(f"bits: got {bits}, expected at least {least} for {clients} clients")
    return 2 * deviations * math.sqrt(((clip * clients) ** 2 / dimension + clients * std**2) / left)


def mean_squared_error(rounding: Rounding, variance: float, clients: int) -> float:
    """Return the expected squared error of one coordinate of the mean update, in squared units of the update.

    An upper bound for beta = 0 without wrap-around: gamma^2 (1/4 + variance) / n. Rounding contributes gamma^2 / 6 on average over
    the grid. With beta > 0, rounding again increases its part by a factor of at most 1 / (1 - beta) and adds a bias. The error of
    clipping is not included.

    Args:
        variance: Variance of the noise of one client, in squared steps.
        clients: Number of clients in the mean (n).
    """
    return rounding.step**2 * (0.25 + variance) / clients


LONGER = 1.1
"""Factor on the norm of an update by rounding, above which the epsilon says so."""

MOST_BITS = 22
"""Largest modulus as a power of two: a message is a vector in single precision, which must show every whole number of steps."""


@part("transform.integer_shares")
class IntegerShares:
    """Round each client's update to a grid, and add its share of integer noise, modulo 2^bits.

    The distributed discrete Gaussian mechanism (Kairouz, Liu and Steinke, ICML 2021, Algorithm 2) or the Skellam mechanism
    (Agarwal, Kairouz and Liu, NeurIPS 2021): in each round all clients rotate their updates in the same random way, and round them
    at random until they are not too long. The step of the grid is the least for which the sum of K_t messages seldom wraps around.
    Secure aggregation adds the messages modulo 2^bits, and the server rotates their sum back (`ModularSum`). Here a message
    is sent as the vector that it encodes, rotated back.
    """

    stations: ClassVar[tuple[str, ...]] = ("client",)

    multiplier: Annotated[
        NonNegative,
        Field(
            description="Standard deviation of the noise of all K_t clients together, divided by the bound of one update."
        ),
    ]
    noise: Annotated[
        Literal["discrete_gaussian", "skellam"], Field(description="Distribution of the integer noise.")
    ] = "discrete_gaussian"
    bits: Annotated[
        int,
        Field(ge=2, le=MOST_BITS, description="Bits of one coordinate of a message, and of the sum."),
    ] = 18
    beta: Annotated[
        float, Field(ge=0, lt=1, description="Probability with which a client may have to round again, in [0, 1).")
    ] = math.exp(-0.5)

    @property
    def at_server(self) -> ModularSum:
        """What the server does with the sum of the messages, see `leakbench.defense.transform.Transform`."""
        return ModularSum(self)

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Round and add noise; without generators the update stays as it is.

        Raises:
            InputError: If no clip came before, if the clip differs between clients, or if there are too few bits.
        """
        signal = signal.finite()
        rounding = self.rounding(signal, clock)
        variance = (self.multiplier * rounding.clip / rounding.step) ** 2 / clock.cohort
        grads = signal.grads
        if rngs is not None:
            signs, draw = (
                _public_signs(rounding, clock),
                discrete_gaussian if self.noise == "discrete_gaussian" else skellam,
            )
            sent = []
            for lane, rng in zip(_flat(grads), rngs, strict=True):
                # The noise is drawn first, so that it is the same for two updates with the same seed.
                noise = draw((len(lane), rounding.dimension), variance, rng).to(lane.device)
                whole = encode(lane, rounding, signs, rng) + noise
                sent.append(decode(wrap(whole, 2**self.bits), rounding, signs, 1, lane.shape[-1]))
            grads = _shaped(torch.stack(sent), grads)
        std = math.sqrt(variance) * rounding.step
        # Rounding makes an update longer than the clip before it, which the integer noise states.
        longer = rounding.l2 * rounding.step / rounding.clip
        coarse = f"{self.bits} bits are few for {clock.cohort} clients and this noise: rounding makes an update"
        coarse += f" {longer:.3g} times longer"
        fact = Fact(
            "noise",
            std=std,
            each=True,
            integer=rounding.noise(self.noise, variance),
            reason=coarse if longer > LONGER else "",
        )
        # Rounding starts with a clip. It changes the noise that an update already has, to which no other noise adds then.
        latest = next((f for f in reversed(signal.facts) if f.kind in ("clip", "scale")), fact)
        private = (latest,) if latest.kind == "scale" else ()  # Then so is the bound of this clip.
        facts = (*signal.facts, Fact("clip", norm=rounding.clip), *private, fact)
        return dataclasses.replace(signal, grads=grads, facts=facts)

    def rounding(self, signal: Signal, clock: Clock) -> Rounding:
        """Return the grid for updates of this shape and a sum of the clock's cohort."""
        scale = signal.sensitivity
        if scale is None:
            raise InputError("integer_shares: no clip before it, so its grid means nothing; put a clip first")
        clip = float(scale[0])
        if not bool((scale == clip).all()):
            raise InputError("integer_shares: the clip before it differs between clients; expected one for all")
        dimension = padded(sum(g[0, 0].numel() for g in signal.grads.values()))
        std = self.multiplier * clip / math.sqrt(clock.cohort)
        try:
            step = finest_step(clip, std, dimension, self.bits, clock.cohort)
        except InputError as error:
            raise InputError(f"integer_shares: {error}") from None
        return Rounding(clip, step, dimension, self.beta)


@dataclass(frozen=True)
class ModularSum:
    """Read the sum of integer messages modulo 2^bits.

    Args:
        shares: What the clients did.
    """

    shares: IntegerShares
    acts_on: ClassVar[str] = "sum"

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Replace every member by an equal part of the sum; without generators the signal stays as it is."""
        grads = signal.grads
        if rngs is not None:
            rounding = self.shares.rounding(signal, clock)
            signs = _public_signs(rounding, clock)
            total = rotate(_flat(grads).sum(1) * (signal.averaged / rounding.step), signs).round()
            finite = total.isfinite().all(-1, keepdim=True)
            whole = wrap(total.where(finite, 0.0).long(), 2**self.shares.bits)
            size = sum(g[0, 0].numel() for g in grads.values())
            read = decode(whole, rounding, signs, signal.averaged * signal.members, size).where(finite, torch.nan)
            grads = _shaped(read[:, None].expand(-1, signal.members, -1), grads)
        return signal.replace(grads, signal.sensitivity, Fact("other", keeps_noise=True))


def _public_signs(rounding: Rounding, clock: Clock) -> Tensor:
    """Return the signs of a round's rotation, which everybody knows."""
    return random_signs(rounding.dimension, generator(0, "rotation", clock.round))


def _flat(grads: Parameters) -> Tensor:
    """Return (lanes, members, d), float64, all parameters of each member."""
    return together(grads).double()


def _shaped(flat: Tensor, like: Parameters) -> Parameters:
    """Return the inverse of `_flat`, in the shapes and types of `like`."""
    return {n: piece.to(like[n]) for n, piece in apart(flat, like).items()}
