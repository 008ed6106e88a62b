"""A small user-defined network, its batches and their gradients, for the tests of external updates."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SHAPE, CLASSES = (1, 8, 8), 10


def build() -> nn.Module:
    """Return the network, always at the same weights."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, CLASSES))


def batch(size: int) -> tuple[Tensor, Tensor]:
    """Return inputs (n, 1, 8, 8) and labels (n,), always the same."""
    rng = torch.Generator().manual_seed(2)
    return torch.rand(size, *SHAPE, generator=rng), torch.randint(CLASSES, (size,), generator=rng)


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return {parameter: gradient of the mean loss}."""
    found = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    return dict(zip((n for n, _ in model.named_parameters()), found, strict=True))
