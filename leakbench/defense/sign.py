"""signSGD: of every coordinate only its sign is sent. Nothing is drawn, so no epsilon follows from it alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from leakbench.defense.transform import Transform
from leakbench.part import Positive, part
from leakbench.types import Clock, Fact, Generators, Parameters, Signal

__all__ = ["Sign", "SoftSign", "margins"]

SHARPNESS = 0.01
"""Of a tensor's root mean square, from where on a coordinate of a guess counts as clearly on one side."""

UNCOUNTED = "a sign at the server is bounded by how many coordinates an update has, which is not looked at there"


@part("transform.sign")
class Sign:
    """Replace every coordinate of each member by `size` times its sign; that of zero is zero, that of NaN is NaN.

    Bernstein et al., ICML 2018, Algorithm 1: x - delta sign(g) steps by delta in every coordinate, so with the clients' learning
    rate eta, `size` is delta / eta. 1 is the bare sign, which Wu et al. (UAI 2023) use as a defense. With p coordinates, the L2
    norm of a member is at most size * sqrt(p), to which later noise is calibrated.
    """

    size: Positive = 1.0

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Take the signs; `sensitivity` becomes size * sqrt(p) in every lane. Its derivative is zero."""
        # The sign of NaN is zero to PyTorch, which would let a gradient that has diverged pass for one that is zero.
        grads = {name: self.size * g.sign().masked_fill(g.isnan(), torch.nan) for name, g in signal.grads.items()}
        first = next(iter(grads.values()))
        bound = self.size * math.sqrt(sum(g[0, 0].numel() for g in grads.values()))
        # The ledger shows a server one coordinate of each tensor: no bound follows from how many it sees there.
        fact = Fact(
            "clip", norm=bound if signal.local else math.inf, reason="" if signal.local else UNCOUNTED, rescales=True
        )
        return signal.replace(grads, first.new_full((signal.lanes,), bound), fact)

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return what an attacker runs on a guess, to have a gradient to follow."""
        return SoftSign(self.size)

    def unlikelihood(self, guess: Parameters, seen: Parameters) -> Tensor | None:
        """Return (lanes,) minus the logarithm of a logistic likelihood, the sum of softplus(-m) over `margins` m.

        None where what leaked, {p: (lanes, *p)}, is not one member's signs.
        """
        if not _signs(seen):
            return None
        each = [softplus(-margins(g, seen[name])).flatten(1).sum(1) for name, g in guess.items()]
        return torch.stack(each).sum(0)


@dataclass(frozen=True)
class SoftSign:
    """size * m / (1 + |m|), m a coordinate over `SHARPNESS` times the root mean square of its tensor, a constant.

    The mean over members of such signs is compared by its squared distance; one member's, by the likelihood of `Sign`.
    """

    size: float

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Nearly the signs, with a gradient everywhere; nothing is drawn."""
        grads = {}
        for name, g in signal.grads.items():
            typical = g.detach().flatten(2).square().mean(2).sqrt().reshape(*g.shape[:2], *[1] * (g.dim() - 2))
            unit = SHARPNESS * typical.clamp_min(torch.finfo(g.dtype).tiny / SHARPNESS)
            grads[name] = self.size * g / (unit + g.abs())
        return signal.replace(grads, signal.sensitivity, Fact("other"))


def _signs(seen: Parameters) -> bool:
    """Say whether no coordinate of {p: (lanes, *p)} is of another size than zero or its lane's largest."""
    flat = torch.cat([u.flatten(1).abs() for u in seen.values()], 1)
    return bool(((flat == 0) | (flat == flat.amax(1, keepdim=True))).all())


def margins(soft: Tensor, signs: Tensor) -> Tensor:
    """Return how far beyond zero, on the side of its sign, each coordinate is whose `SoftSign` is `soft`; zero for no sign.

    Args:
        soft: (lanes, *p), of one size.
        signs: (lanes, *p), of one size.
    """
    size = signs.abs().flatten(1).amax(1).clamp_min(torch.finfo(signs.dtype).tiny)
    raised = soft / size.reshape(-1, *[1] * (soft.dim() - 1))
    return signs.sign() * raised / (1 - raised.abs()).clamp_min(torch.finfo(signs.dtype).eps)
