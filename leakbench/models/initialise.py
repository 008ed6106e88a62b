"""Initialisation of a network's weights from a generator.

A rule initialises one convolution or linear layer. With every rule, normalisation starts with scale one and shift zero, and
parameters outside such layers (the positions and embeddings of a transformer, the layers of GPT-2) start with N(0, 0.02^2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from leakbench.core.words import DEFAULT, init_of
from leakbench.models.batch_norm import BatchNorm

__all__ = [
    "DEFAULT",
    "Rule",
    "fan_out",
    "initialise",
    "kaiming",
    "narrow_normal",
    "rule_of",
    "torch_default",
    "truncated_normal",
    "uniform",
    "xavier",
]

Layer: TypeAlias = nn.Conv2d | nn.Linear
Rule: TypeAlias = Callable[[Layer, torch.Generator], object]


@torch.no_grad()
def initialise(model: nn.Module, rule: Rule, rng: torch.Generator) -> nn.Module:
    """Draw all parameters, in the model's order, and return the model.

    Raises:
        TypeError: For a layer of torch without a rule.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            rule(module, rng)
        elif isinstance(module, BatchNorm | nn.GroupNorm | nn.LayerNorm):
            # Other libraries leave out the scale or the shift.
            for parameter, value in ((module.weight, 1.0), (module.bias, 0.0)):
                if parameter is not None:
                    parameter.fill_(value)
        elif type(module).__name__.endswith("RMSNorm"):
            cast(Tensor, module.weight).fill_(1.0)
        elif any(True for _ in module.parameters(recurse=False)):
            _own(module, rng)
    return model


def _own(module: nn.Module, rng: torch.Generator) -> None:
    """Draw the direct parameters of another module, such as positions or embeddings; biases start at zero.

    Raises:
        TypeError: For a module of torch without a rule.
    """
    if type(module).__module__.startswith("torch.") and not isinstance(module, nn.Embedding):
        raise TypeError(f"initialise: {type(module).__name__} has no rule here; write one, or use the layers that have")
    for name, parameter in module.named_parameters(recurse=False):
        if name == "bias":
            parameter.zero_()
        else:
            parameter.normal_(0.0, 0.02, generator=rng)


def torch_default(layer: Layer, rng: torch.Generator) -> None:
    """PyTorch's own: weights and biases uniform within 1 / sqrt(fan-in) of zero."""
    bound = 1 / math.sqrt(layer.weight[0].numel())
    uniform(bound)(layer, rng)


def uniform(bound: float) -> Rule:
    """Weights and biases uniform in (-bound, bound): DLG's at 0.5 (Zhu et al., NeurIPS 2019, released code)."""

    def rule(layer: Layer, rng: torch.Generator) -> None:
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=rng)

    return rule


def xavier(layer: Layer, rng: torch.Generator) -> None:
    """Glorot uniform (Glorot and Bengio, AISTATS 2010, eq. 16), biases zero."""
    nn.init.xavier_uniform_(layer.weight, generator=rng)
    _without_bias(layer)


def kaiming(layer: Layer, rng: torch.Generator) -> None:
    """N(0, 2 / fan-in) (He et al., ICCV 2015, eq. 10), biases zero."""
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=rng)
    _without_bias(layer)


def fan_out(layer: Layer, rng: torch.Generator) -> None:
    """torchvision's of a ResNet: convolutions N(0, 2 / fan-out), the linear layer as PyTorch's own."""
    if isinstance(layer, nn.Linear):
        torch_default(layer, rng)
    else:
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu", generator=rng)


def narrow_normal(layer: Layer, rng: torch.Generator) -> None:
    """A vision transformer's: linear layers N(0, 0.02^2) with zero biases, the patches' layer as PyTorch's own.

    This follows DeiT's code. Its truncation of the normal distribution has no effect, since it is a hundred deviations away.
    """
    if isinstance(layer, nn.Conv2d):
        torch_default(layer, rng)
    else:
        layer.weight.normal_(0.0, 0.02, generator=rng)
        _without_bias(layer)


def truncated_normal(layer: Layer, rng: torch.Generator) -> None:
    """N(0, 1 / fan-in), drawn again beyond two deviations, biases zero: as Geyer et al. (2017) released their network."""
    deviation = 1 / math.sqrt(layer.weight[0].numel())
    nn.init.trunc_normal_(layer.weight, 0.0, deviation, -2 * deviation, 2 * deviation, generator=rng)
    _without_bias(layer)


def _without_bias(layer: Layer) -> None:
    if layer.bias is not None:
        layer.bias.zero_()


RULES: dict[str, Rule] = {"torch": torch_default, "kaiming": kaiming, "xavier": xavier}


def rule_of(text: str) -> tuple[str, Rule | None]:
    """Return (the name in its standard form, the rule; None for `default`) of an initialisation.

    Args:
        text: `default`, `torch`, `kaiming`, `xavier` or `uniform:<a>` with 0 < a <= 100.

    Raises:
        InputError: For any other text.
    """
    name, bound = init_of(text)
    return name, uniform(bound) if bound is not None else RULES.get(name)
