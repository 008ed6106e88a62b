"""References of Opacus as its users train: `GradSampleModule` and a `DPOptimizer`, with each of its clips.

Imported only where the package is there.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleExpandedWeights, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from benchmarks.speed.plain import Step

__all__ = ["opacus_step"]


def opacus_step(
    kind: str, model: nn.Module, rate: float, batch: int, clip: float, sigma: float
) -> tuple[nn.Module, Step]:
    """Return (a copy of the model, its private local iteration), with the noise of Fed-CDP on the sum over a batch.

    Opacus scales its noise to the norm of all bounds together: sqrt(M) * clip where each of M tensors has its own.

    Args:
        kind: `layers`, `layers by expanded weights`, `flat` or `ghost`, see `benchmarks.speed.ways`.
    """
    own = copy.deepcopy(model).train()
    sgd = torch.optim.SGD(own.parameters(), lr=rate)
    tensors = len(list(own.parameters()))
    on_the_sum = sigma * batch**0.5
    common: dict[str, Any] = {"expected_batch_size": batch}
    if kind == "ghost":
        sampled: Any = GradSampleModuleFastGradientClipping(own, max_grad_norm=clip, use_ghost_clipping=True)
        fast = DPOptimizerFastGradientClipping(sgd, noise_multiplier=on_the_sum, max_grad_norm=clip, **common)
        return own, _step(sampled, fast, DPLossFastGradientClipping(sampled, fast, nn.CrossEntropyLoss(), "mean"))
    wrap = GradSampleModuleExpandedWeights if kind == "layers by expanded weights" else GradSampleModule
    sampled = wrap(own)
    if kind == "flat":
        flat = DPOptimizer(sgd, noise_multiplier=on_the_sum, max_grad_norm=clip, **common)
        return own, _step(sampled, flat, nn.CrossEntropyLoss())
    bounds = [clip] * tensors
    multiplier = on_the_sum / tensors**0.5
    layers = DPPerLayerOptimizer(sgd, noise_multiplier=multiplier, max_grad_norm=bounds, **common)
    return own, _step(sampled, layers, nn.CrossEntropyLoss())


def _step(sampled: Any, optimizer: Any, criterion: Any) -> Step:
    def step(inputs: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        criterion(sampled(inputs), labels).backward()
        optimizer.step()

    return step
