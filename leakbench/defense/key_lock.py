"""FedKL: a normalisation whose scales and shifts follow from a client's private key, behind the first convolution.

H. Ren, J. Deng, X. Xie, X. Ma, J. Ma, "Gradient Leakage Defense with Key-Lock Module for Federated Learning", 2023,
arXiv:2305.04095; code at github.com/Rand2AI/FedKL. Letters: C channels, a key of n numbers.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.core.part import Count, part
from leakbench.core.types import Parameters

__all__ = ["KeyLock", "LockedNetwork", "normalised"]

LIVE = math.sqrt(2 / math.pi)
"""Mean of a standard normal number that is positive."""


class LockedNetwork(nn.Module):
    """A network that normalises each channel of its first convolution, and scales and shifts it by numbers from a key.

    `forward(inputs, draws)` computes the C scales and then the C shifts as activation(deviation * draws), with draws (n, 2 C), and
    a penalty of 0. `forward(inputs)` has the scales and shifts of `usual`. The class follows `leakbench.core.types.HidesDraws`.
    """

    usual: Tensor

    def __init__(
        self, model: nn.Sequential, activation: Literal["relu", "sigmoid"], deviation: float, normalises: bool = True
    ) -> None:
        super().__init__()
        first = model[0]
        if not isinstance(first, nn.Conv2d):
            raise TypeError(f"model: got {type(first).__name__} first, expected nn.Conv2d")
        self.draws = 2 * first.out_channels
        self.deviation = deviation
        self.activation = activation
        self.normalises = normalises
        self.first = first
        self.rest = model[1:]
        # The mean of a ReLU of a normal number is its deviation / sqrt(2 pi), and that of a sigmoid is its value at 0.
        size = 1 / math.sqrt(2 * math.pi) if activation == "relu" else 0.0
        self.register_buffer("usual", torch.full((self.draws,), size), persistent=False)

    def forward(self, inputs: Tensor, draws: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits (n, classes); with draws (n, 2 C) also zeros (n,)."""
        key = self.deviation * (self.usual.expand(len(inputs), -1) if draws is None else draws)
        scale, shift = (key.relu() if self.activation == "relu" else key.sigmoid())[..., None, None].chunk(2, 1)
        features = self.first(inputs)
        logits: Tensor = self.rest(scale * (normalised(features) if self.normalises else features) + shift)
        return logits if draws is None else (logits, logits.new_zeros(len(logits)))

    def searched_from(self, gradient: Parameters) -> Tensor:
        """Return where a search of the draws starts, (2 C,): `usual`, or for ReLUs the mean of a positive scale or shift.

        A scale of 0 shows: the channel's weights have no gradient. Its draw starts below 0.
        """
        start = self.usual.to(gradient["first.weight"]) + 0.0
        if self.activation != "relu":
            return start
        dead = gradient["first.weight"].flatten(1).abs().amax(1) == 0
        return torch.cat([torch.where(dead, -LIVE, LIVE), torch.full_like(start[len(dead) :], LIVE)]).to(start)


def normalised(features: Tensor) -> Tensor:
    """Return each channel of each example (n, C, H, W) with mean 0 and variance 1 over its positions.

    For one example, this is batch normalisation in train mode (epsilon 1e-5).
    """
    variance, mean = torch.var_mean(features, (2, 3), correction=0, keepdim=True)
    return (features - mean) * (variance + 1e-5).rsqrt()


@part("network.key_lock")
class KeyLock:
    """Put a key-lock module behind the first convolution: each channel is normalised, scaled and shifted.

    With `statistics: example`, each example is normalised by its own statistics, so that its gradient does not depend on the
    others. For a batch of one this is the module's batch normalisation in train mode. With `initial`, the mean is 0 and the
    variance 1, as in evaluation mode before any training.

    The scales are activation(W k + b) of a key k of n numbers uniform in [0, 1], and the shifts activation(W' k + b'). The private
    layers W, b, W', b' start uniform in +-1 / sqrt(n), as PyTorch initialises them. Over keys and layers, W k + b then has variance
    1 / 9 + 1 / (3 n) and is nearly normal; these numbers are drawn here. They are not parameters: no gradient of the private layers
    is sent, and one draw is the key of a client in a round. In the released code, each client starts from a copy of the
    server's network, so that in the first round the server knows the layers and only k is private. Drawing both in each round
    gives the attacker less.
    """

    length: Annotated[Count, Field(description="Length n of the key, 1024 in the code.")] = 1024
    activation: Annotated[Literal["relu", "sigmoid"], Field(description="Activation after the private layers.")] = (
        "relu"
    )
    statistics: Annotated[Literal["example", "initial"], Field(description="Statistics of the normalisation.")] = (
        "example"
    )

    def __call__(self, model: nn.Module, shape: tuple[int, ...], classes: int, rng: torch.Generator) -> nn.Module:
        """Return the network with its lock; raises InputError unless it is a Sequential that starts with nn.Conv2d."""
        first = model[0] if isinstance(model, nn.Sequential) and len(model) else model
        if not isinstance(model, nn.Sequential) or not isinstance(first, nn.Conv2d):
            raise InputError(
                f"key_lock: got a network that starts with {type(first).__name__}, expected a sequence that starts with a"
                " convolution (nn.Conv2d), behind which the lock goes; choose another --model"
            )
        deviation = math.sqrt(1 / 9 + 1 / (3 * self.length))
        return LockedNetwork(model, self.activation, deviation, self.statistics == "example")
