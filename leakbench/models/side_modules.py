"""Small trained modules next to frozen layers: LoRA, which reads a layer's input, and adapters, which read its output.

A forward hook of the layer adds the module's output, so that the layer keeps its names and its weights.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from leakbench.core.errors import InputError

__all__ = ["Adapter", "LowRank", "add_adapters", "add_lora"]

PROJECTIONS = ("qkv", "query", "value", "q_proj", "v_proj")
"""Names of the projections of an attention: fused, or its query and value alone."""

ENDS = (
    ("attention.project", "mlp.2"),  # leakbench
    ("attn.proj", "mlp.fc2"),  # timm
    ("attn.c_proj", "mlp.c_proj"),  # GPT-2
    ("attention.dense", "mlp.dense_4h_to_h"),  # GPT-NeoX
    ("self_attn.o_proj", "mlp.down_proj"),  # LLaMA, Mistral, Qwen2
    ("attention.output.dense", "output.dense"),  # BERT, RoBERTa, ELECTRA
)
"""(last layer of the attention, last layer of the MLP) in a block of a transformer."""

DEVIATION = 0.01
"""Standard deviation of an adapter's first weights (Houlsby et al., section 2.1)."""


class LowRank(nn.Sequential):
    """x -> B A x without biases. For a convolution, A has its kernel and B is 1 x 1 (Hu et al., ICLR 2022, eq. 3)."""

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int) -> None:
        down: nn.Module
        up: nn.Module
        if isinstance(layer, nn.Conv2d):
            how: dict[str, Any] = {
                name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "dilation", "padding_mode")
            }
            down = nn.Conv2d(layer.in_channels, rank, bias=False, **how)
            up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        else:
            down, up = (
                nn.Linear(layer.in_features, rank, bias=False),
                nn.Linear(rank, layer.out_features, bias=False),
            )
        super().__init__(OrderedDict(down=down, up=up))


class Adapter(nn.Module):
    """x -> U relu(D x + b) + c, a bottleneck of r numbers (Houlsby et al., ICML 2019, section 2.1)."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank)
        self.act = nn.ReLU()
        self.up = nn.Linear(rank, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., width) for the same."""
        out: Tensor = self.up(self.act(self.down(x)))
        return out


@torch.no_grad()
def add_lora(model: nn.Module, rank: int, rng: torch.Generator, head: str) -> int:
    """Add B A x to the projections of every attention, in other networks to all linear layers and convolutions.

    A is drawn as PyTorch draws a linear layer, B is zero, so that the network's outputs do not change. The head, convolutions in
    groups, and networks with `nn.MultiheadAttention`, whose projections are not layers, get none.

    Args:
        model: The network.
        rank: r, the number of rows of A.
        rng: Source of A.
        head: Name of the last layer.

    Returns:
        The number of changed layers.

    Raises:
        InputError: For a rank above that of the largest layer.
    """
    modules = list(model.named_modules())
    if any(isinstance(module, nn.MultiheadAttention) for _, module in modules):
        return 0
    layers = {
        name: module
        for name, module in modules
        if name != head and (isinstance(module, nn.Linear) or (isinstance(module, nn.Conv2d) and module.groups == 1))
    }
    projections = {name: module for name, module in layers.items() if name.rpartition(".")[2] in PROJECTIONS}
    chosen = projections or layers
    widest = max((min(layer.weight.shape[0], layer.weight[0].numel()) for layer in chosen.values()), default=rank)
    if rank > widest:
        raise InputError(
            f"trainable: got 'lora:r={rank}', expected r of at most {widest}, the rank of the largest layer"
        )
    for layer in chosen.values():
        side = LowRank(layer, rank).to(layer.weight)
        weight: Any = side[0].weight
        bound = 1 / math.sqrt(weight[0].numel())
        weight.uniform_(-bound, bound, generator=rng)
        torch.nn.init.zeros_(side[1].weight)  # type: ignore[arg-type]
        layer.add_module("lora", side)
        layer.register_forward_hook(_plus_lora)
    return len(chosen)


@torch.no_grad()
def add_adapters(model: nn.Module, rank: int, rng: torch.Generator) -> int:
    """Add an adapter after the attention and after the MLP of each block, before the residual is added.

    Weights are normal with deviation 0.01, drawn again beyond two deviations, and biases are zero, so that an adapter is nearly
    the identity at first.

    Args:
        model: A transformer.
        rank: r, the width of the bottleneck.
        rng: Source of the weights.

    Returns:
        The number of adapters; 0 for a network that is not a transformer of a known kind.
    """
    named = dict(model.named_modules())
    starts = ((f"{block}." if block else "", ends) for block in named for ends in ENDS)
    layers = [
        named[start + end] for start, ends in starts if all(start + each in named for each in ends) for end in ends
    ]
    for layer in layers:
        weight: Any = layer.weight
        # GPT-2's layers have their weights transposed, and no `out_features`.
        side = Adapter(int(getattr(layer, "out_features", weight.shape[-1])), rank).to(weight)
        for part in (side.down, side.up):
            nn.init.trunc_normal_(part.weight, 0.0, DEVIATION, -2 * DEVIATION, 2 * DEVIATION, generator=rng)
            nn.init.zeros_(part.bias)
        layer.add_module("adapter", side)
        layer.register_forward_hook(_plus_adapter)
    return len(layers)


def _plus_lora(layer: Any, entered: Any, left: Tensor) -> Tensor:
    """Add a layer's LoRA of its input to its output."""
    added: Tensor = layer.lora(entered[0])
    return left + added


def _plus_adapter(layer: Any, entered: Any, left: Tensor) -> Tensor:
    """Add a layer's adapter of its output to its output."""
    added: Tensor = layer.adapter(left)
    return left + added
