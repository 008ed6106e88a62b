"""An autoencoder whose encoder has the layers of a network before its first fully connected one (Scale-MIA, arXiv:2311.05808)."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.core.progress import Tick, unticked
from leakbench.core.types import Parameters

__all__ = ["AutoencoderTraining", "mirror_of", "trained_autoencoder"]


@dataclass(frozen=True)
class AutoencoderTraining:
    """Training by Adam on the mean squared error, with a learning rate that falls to zero along a cosine.

    Args:
        steps: Number of steps.
        batch: Number of examples in a step.
        learning_rate: The first learning rate.
    """

    steps: int
    batch: int
    learning_rate: float


def mirror_of(encoder: nn.Module, shape: tuple[int, ...]) -> nn.Sequential:
    """Return the decoder: a transposed convolution for each convolution of the encoder, in reverse order, with ReLUs between.

    The maps are latents (n, d) to inputs (n, *s); the output is not bounded.

    Args:
        encoder: Convolutions and layers without parameters.
        shape: (*s) of one input.
    """
    sizes, hooks = [], []
    convolutions = [module for module in encoder.modules() if isinstance(module, nn.Conv2d)]
    for module in convolutions:
        hooks.append(
            module.register_forward_hook(lambda _, entered, left: sizes.append((entered[0].shape, left.shape)))
        )
    like = convolutions[0].weight
    with torch.no_grad():
        encoder(like.new_zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    layers: list[nn.Module] = [nn.Unflatten(1, tuple(sizes[-1][1][1:]))]
    for convolution, (entered, left) in zip(reversed(convolutions), reversed(sizes), strict=True):
        stride, padding, kernel = (
            _pair(value) for value in (convolution.stride, convolution.padding, convolution.kernel_size)
        )
        missing = tuple(entered[2 + i] - ((left[2 + i] - 1) * stride[i] - 2 * padding[i] + kernel[i]) for i in range(2))
        layers.append(
            nn.ConvTranspose2d(
                convolution.out_channels, convolution.in_channels, kernel, stride, padding, missing, device=like.device
            )
        )
        layers.append(nn.ReLU())
    return nn.Sequential(*layers[:-1]).to(like.dtype).requires_grad_(False)


def trained_autoencoder(
    encoder: nn.Module, inputs: Tensor, training: AutoencoderTraining, rng: torch.Generator, tick: Tick = unticked
) -> tuple[Parameters, Parameters]:
    """Train the encoder and its mirror on inputs (n, *s) from new first weights.

    Args:
        encoder: The layers; their weights are not read.
        inputs: (n, *s) in [0, 1].
        training: Settings.
        rng: The generator of all draws.
        tick: Called after each step.

    Returns:
        The parameters {name: tensor} of the encoder and of its mirror.
    """
    coder, decoder = copy.deepcopy(encoder).to(inputs), mirror_of(encoder, tuple(inputs.shape[1:])).to(inputs)
    both = nn.ModuleList([coder, decoder]).requires_grad_()
    for module in both.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
            _draw(module, rng)
    optimiser = torch.optim.Adam(both.parameters(), lr=training.learning_rate)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, training.steps)
    for _ in range(training.steps):
        some = inputs[torch.randint(len(inputs), (training.batch,), generator=rng).to(inputs.device)]
        with torch.enable_grad():
            missed = (decoder(coder(some)) - some).square().mean()
            optimiser.zero_grad()
            torch.autograd.backward(missed)
        optimiser.step()
        falling.step()
        tick()
    return _detached(coder), _detached(decoder)


@torch.no_grad()
def _draw(module: nn.Conv2d | nn.ConvTranspose2d, rng: torch.Generator) -> None:
    """Draw weights with which a signal keeps its size (He et al., ICCV 2015, eq. 10); with PyTorch's own, training takes longer."""
    entering = module.weight[0].numel()
    if isinstance(module, nn.ConvTranspose2d):
        entering = module.in_channels * math.prod(module.kernel_size) // math.prod(module.stride)
    module.weight.copy_((2 / entering) ** 0.5 * torch.randn(module.weight.shape, generator=rng))
    if module.bias is not None:
        module.bias.zero_()


def _detached(module: nn.Module) -> Parameters:
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def _pair(value: int | str | tuple[int, ...]) -> tuple[int, int]:
    """Return the two numbers of a convolution's setting."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"convolution: got {value!r}, expected two numbers")
    return value[0], value[1]
