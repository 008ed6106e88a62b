"""Batch normalisation that does not change its running statistics in place.

In mode `train`, a client uses the statistics of its batch, and an example's gradient depends on the whole batch. In mode `eval`, it
uses the running statistics that the server sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leakbench.core.errors import InputError
from leakbench.core.types import Parameters

__all__ = [
    "MEAN",
    "NO_MOMENTUM",
    "VARIANCE",
    "BatchNorm",
    "BatchNormThen",
    "batch_moments",
    "depends_on_mode",
    "entering_norms",
    "in_client_mode",
    "mixes_examples",
]

MEAN, VARIANCE = "running_mean", "running_var"
"""Last words of the names of the running statistics."""


NO_MOMENTUM = "victim-mode: got train for a batch normalisation without momentum; expected eval, or a momentum"


class BatchNorm(nn.Module):
    """Normalise each of C channels of (n, C, *s) (Ioffe and Szegedy, ICML 2015, Algorithm 1), with torch's numbers.

    Train mode uses the mean and the biased variance over n and s, and moves the running statistics by `momentum` towards the
    mean and the unbiased variance. The running statistics are replaced, not changed in place. `torch.func.functional_call`
    stores the new ones in its dictionary of parameters, which also works under `torch.func.vmap`, where each lane is a separate
    batch. Without a weight and a bias, channels are only normalised. Without a momentum, a mean over all batches would need their
    number, which no client sends, so that such a network computes in eval mode only.
    """

    running_mean: Tensor
    running_var: Tensor
    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(self, channels: int, momentum: float | None = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised (n, C, *s); raises InputError in train mode if a channel has only one value, so no variance."""
        shape = (-1, *[1] * (x.dim() - 2))
        mean, variance = self._of_batch(x) if self.training else (self.running_mean, self.running_var)
        scale = (variance + self.eps).rsqrt()
        if self.weight is not None:
            scale = scale * self.weight
        z = (x - mean.reshape(shape)) * scale.reshape(shape)
        return z if self.bias is None else z + self.bias.reshape(shape)

    def _of_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes, count = [0, *range(2, x.dim())], x.numel() // x.shape[1]
        if self.momentum is None:
            raise InputError(NO_MOMENTUM)
        if count < 2:
            raise InputError(
                "victim-mode: in train mode batch normalisation got one value a channel, expected several; attack or train"
                " on larger batches or pictures"
            )
        mean = x.mean(axes, keepdim=True)
        variance = (x - mean).square().mean(axes)
        mean = mean.flatten()
        self.running_mean = self.running_mean.lerp(mean.detach(), self.momentum)
        self.running_var = self.running_var.lerp(variance.detach() * (count / (count - 1)), self.momentum)
        return mean, variance


class BatchNormThen(BatchNorm):
    """Batch normalisation with a dropout and an activation after it, as one module of timm; parameters keep their names."""

    def __init__(self, channels: int, momentum: float | None, eps: float, drop: nn.Module, act: nn.Module) -> None:
        super().__init__(channels, momentum, eps)
        self.drop, self.act = drop, act

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, C, *s), normalised and activated."""
        answer: Tensor = self.act(self.drop(super().forward(x)))
        return answer


def depends_on_mode(model: nn.Module) -> bool:
    """Return whether a network's outputs differ between train and eval mode."""
    return any(isinstance(module, BatchNorm) for module in model.modules())


def mixes_examples(model: nn.Module) -> bool:
    """Return whether an example's gradient depends on the others of its batch, in the network's current mode."""
    return any(isinstance(module, BatchNorm) and module.training for module in model.modules())


def in_client_mode(model: nn.Module, mode: str | None) -> nn.Module:
    """Return a network, changed in place, with batch normalisation in a client's mode and every other layer in eval mode.

    Dropout is off in both modes.

    Args:
        mode: `train`, `eval`, or None for eval.

    Raises:
        InputError: In train mode, for a batch normalisation without momentum.
    """
    model.eval()
    for module in model.modules():
        if isinstance(module, BatchNorm):
            if mode == "train" and module.momentum is None:
                raise InputError(NO_MOMENTUM)
            module.training = mode == "train"
    return model


def entering_norms(model: nn.Module, layers: Sequence[str], tensors: Parameters, x: Tensor) -> dict[str, Tensor]:
    """Return the input {layer: (M, C, *)} of each layer (prefix of its tensors' names) when the model reads x (M, *s)."""
    inputs: dict[str, Tensor] = {}

    def keep(layer: str) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, arguments: Any) -> None:
            inputs[layer] = arguments[0]

        return hook

    handles = [model.get_submodule(n.removesuffix(".")).register_forward_pre_hook(keep(n)) for n in layers]
    try:
        functional_call(model, tensors, (x,))
    finally:
        for handle in handles:
            handle.remove()
    return inputs


def batch_moments(model: nn.Module, tensors: Parameters, x: Tensor) -> tuple[Parameters, dict[str, int]]:
    """Return the statistics of a batch x (M, *s) in each batch normalisation, when a model in train mode reads it.

    Args:
        tensors: The parameters and buffers of the model.

    Returns:
        {name of a running statistic: the mean or the biased variance (C,) of the batch}, and {name: number of values of a channel}.
    """
    layers = [name.removesuffix(MEAN) for name, _ in model.named_buffers() if name.endswith(MEAN)]
    moments: Parameters = {}
    counts: dict[str, int] = {}
    for layer, entering in entering_norms(model, layers, tensors, x).items():
        axes = [0, *range(2, entering.dim())]
        moments[layer + MEAN] = entering.mean(axes)
        moments[layer + VARIANCE] = entering.var(axes, correction=0)
        counts |= dict.fromkeys((layer + MEAN, layer + VARIANCE), entering.numel() // entering.shape[1])
    return moments, counts
