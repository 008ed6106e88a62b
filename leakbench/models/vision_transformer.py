"""A small vision transformer for small pictures."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn

from leakbench.models.shapes import Shape, picture

__all__ = ["Patches", "PlainBlock", "vision_transformer"]


class Patches(nn.Module):
    """(n, C, H, W) -> (n, 1 + patches, width): a class token, then each patch, each with its learned position."""

    def __init__(self, shape: tuple[int, int, int], patch: int, width: int) -> None:
        super().__init__()
        channels, height, across = shape
        self.embed = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + (height // patch) * (across // patch), width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens of pictures."""
        patches = self.embed(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(patches), -1, -1), patches], 1) + self.positions


class Attention(nn.Module):
    """Self-attention of several heads, without fused kernels: attacks differentiate twice, which these do not support."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, tokens, width) for the same."""
        n, tokens, width = x.shape
        parts = self.qkv(x).reshape(n, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind()
        weights = (query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)).softmax(-1)
        out: Tensor = self.project((weights @ value).transpose(1, 2).reshape(n, tokens, width))
        return out


class Block(nn.Module):
    """Attention, then two linear layers with GELU between them, each with a layer norm before it and a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, tokens, width) for the same."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class PlainBlock(nn.Module):
    """The same layers without the first norm and without shortcuts, so that the tokens themselves enter the attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, tokens, width) for the same."""
        out: Tensor = self.mlp(self.norm2(self.attention(x)))
        return out


class ClassToken(nn.Module):
    """(n, tokens, width) -> (n, width): the class token."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the first token."""
        return x[:, 0]


def vision_transformer(
    name: str,
    shape: Shape,
    classes: int,
    patch: int,
    width: int = 192,
    depth: int = 12,
    heads: int = 3,
    plain: bool = False,
) -> nn.Module:
    """ViT-Ti (Touvron et al., ICML 2021: width 192, 12 blocks, 3 heads) with patches for pictures of 8 to 64 pixels.

    Dosovitskiy et al., ICLR 2021, without dropout; 5,362,762 parameters on CIFAR-10 with patches of 4. Its own initialisation
    is N(0, 0.02^2). With `plain`, the first block is a `PlainBlock`, as in the network that APRIL attacks (Lu et al., CVPR
    2022, section 4).
    """
    whole = picture(name, shape, patch, patch)
    layers: OrderedDict[str, nn.Module] = OrderedDict(patches=Patches(whole, patch, width))
    for index in range(depth):
        layers[f"block{index}"] = (PlainBlock if plain and index == 0 else Block)(width, heads)
    layers.update(norm=nn.LayerNorm(width, eps=1e-6), token=ClassToken(), head=nn.Linear(width, classes))
    return nn.Sequential(layers)
