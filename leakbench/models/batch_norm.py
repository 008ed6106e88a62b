"""Batch normalisation whose running statistics travel with the model instead of being changed in place.

An example's gradient through the statistics of its batch depends on the whole batch, so that it matters in which mode a
client computes: `train` (the batch's own statistics) or `eval` (the running ones that the server sent).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakbench.errors import InputError

__all__ = ["BatchNorm", "depends_on_mode", "mixes_examples"]


class BatchNorm(nn.Module):
    """Normalise each of C channels of (n, C, *s) (Ioffe and Szegedy, ICML 2015, Algorithm 1), with torch's numbers.

    In train mode with the mean and the biased variance over n and s; the running statistics then move by `momentum` towards the
    mean and the unbiased variance. They are replaced, never written into: `torch.func.functional_call` leaves the new ones in
    the dict that it was given, and so they survive `torch.func.vmap`, where each lane is a batch of its own.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised (n, C, *s); raises InputError in train mode where a channel has one value, so no variance."""
        shape = (-1, *[1] * (x.dim() - 2))
        mean, variance = self._of_batch(x) if self.training else (self.running_mean, self.running_var)
        scale = (variance + self.eps).rsqrt() * self.weight
        return (x - mean.reshape(shape)) * scale.reshape(shape) + self.bias.reshape(shape)

    def _of_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        axes, count = [0, *range(2, x.dim())], x.numel() // x.shape[1]
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


def depends_on_mode(model: nn.Module) -> bool:
    """Say whether a network computes otherwise in train than in eval mode."""
    return any(isinstance(module, BatchNorm) for module in model.modules())


def mixes_examples(model: nn.Module) -> bool:
    """Say whether a network, in the mode in which it is, lets an example's gradient depend on the others of its batch."""
    return any(isinstance(module, BatchNorm) and module.training for module in model.modules())
