"""signSGD: a client sends only the sign of every coordinate. Nothing is random, so no epsilon follows from it alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from leakbench.core.part import Positive, part
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.transform import Transform, together

__all__ = ["Sign", "SoftSign", "margins"]

SHARPNESS = 0.01
"""Share of a tensor's root mean square; a coordinate of a guess above it clearly has a sign."""

UNCOUNTED = "a sign at the server is bounded by how many coordinates an update has, which is not looked at there"


@part("transform.sign")
class Sign:
    """Replace every coordinate of each member by `size` times its sign. The sign of zero is zero.

    Bernstein et al., ICML 2018, Algorithm 1: x - delta sign(g) steps by delta in every coordinate, so with the clients' learning
    rate eta, `size` is delta / eta. 1 is the bare sign, which Wu et al. (UAI 2023) use as a defense. With p coordinates, the L2
    norm of a member is at most size * sqrt(p), to which later noise is calibrated.
    """

    size: Annotated[Positive, Field(description="Magnitude of every coordinate that is sent.")] = 1.0

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Take the signs; `sensitivity` becomes size * sqrt(p) in every lane. The derivative is zero."""
        signal = signal.finite()
        grads = {name: self.size * g.sign() for name, g in signal.grads.items()}
        first = next(iter(grads.values()))
        bound = self.size * math.sqrt(sum(g[0, 0].numel() for g in grads.values()))
        # The ledger shows a server only one coordinate of each tensor, so their number gives no bound there.
        fact = Fact(
            "clip", norm=bound if signal.local else math.inf, reason="" if signal.local else UNCOUNTED, rescales=True
        )
        return signal.replace(grads, first.new_full((signal.lanes,), bound), fact)

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess, which has a derivative."""
        return SoftSign(self.size)

    def unlikelihood(self, guess: Parameters, seen: Parameters) -> Tensor | None:
        """Return (lanes,), minus the logarithm of a logistic likelihood: the sum of softplus(-m) over the `margins` m.

        Returns None if `seen`, {p: (lanes, *p)}, is not one member's signs.
        """
        if not _signs(seen):
            return None
        each = [softplus(-margins(g, seen[name])).flatten(1).sum(1) for name, g in guess.items()]
        return torch.stack(each).sum(0)


@dataclass(frozen=True)
class SoftSign:
    """A smooth sign: size * m / (1 + |m|), where m is a coordinate divided by `SHARPNESS` times its tensor's root mean square.

    The root mean square is a constant in the derivative. The attacker compares a mean over members by its squared distance, and one
    member's signs by the likelihood of `Sign`.
    """

    size: float

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Replace the gradients by smooth signs; nothing is random."""
        grads = {}
        for name, g in signal.grads.items():
            typical = g.detach().flatten(2).square().mean(2).sqrt().reshape(*g.shape[:2], *[1] * (g.dim() - 2))
            unit = SHARPNESS * typical.clamp_min(torch.finfo(g.dtype).tiny / SHARPNESS)
            grads[name] = self.size * g / (unit + g.abs())
        return signal.replace(grads, signal.sensitivity, Fact("other"))


def _signs(seen: Parameters) -> bool:
    """Return whether the size of every coordinate of {p: (lanes, *p)} is zero or its lane's largest one."""
    flat = together(seen, 1).abs()
    return bool(((flat == 0) | (flat == flat.amax(1, keepdim=True))).all())


def margins(soft: Tensor, signs: Tensor) -> Tensor:
    """Return the margin of each coordinate: its value before `SoftSign`, positive if it has the right sign.

    Args:
        soft: (lanes, *p), the result of `SoftSign`.
        signs: (lanes, *p), the observed signs times their size. A sign of zero gives a margin of zero.
    """
    size = signs.abs().flatten(1).amax(1).clamp_min(torch.finfo(signs.dtype).tiny)
    raised = soft / size.reshape(-1, *[1] * (soft.dim() - 1))
    return signs.sign() * raised / (1 - raised.abs()).clamp_min(torch.finfo(signs.dtype).eps)
