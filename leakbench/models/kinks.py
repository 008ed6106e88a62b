"""Where a network's derivatives jump, second derivatives say nothing of what lies behind the jump."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn

from leakbench.models.shapes import Shape

__all__ = ["kinked"]

KINKS = (
    "Relu",
    "LeakyRelu",
    "Prelu",
    "Rrelu",
    "Threshold",
    "Hardtanh",
    "Hardswish",
    "Hardsigmoid",
    "MaxPool",
    "AdaptiveMaxPool",
    "Max",
    "Amax",
    "Min",
    "Abs",
    "Clamp",
)
"""How the names of autograd's nodes begin whose derivative jumps."""


def kinked(model: nn.Module, shape: Shape) -> bool:
    """Say whether an answer of the network to inputs of a shape goes through a ReLU, a maximum or the like.

    Read off the graph that autograd records, so that functions count as modules do. The network itself is not touched; it
    answers in evaluation mode.
    """
    alone = copy.deepcopy(model).eval()
    first = next(iter(alone.parameters()))
    with torch.enable_grad():
        answer = alone(torch.zeros(1, *shape, dtype=first.dtype, device=first.device, requires_grad=True))
    return any(name.startswith(KINKS) for name in _nodes(answer))


def _nodes(answer: torch.Tensor) -> Iterator[str]:
    """Yield the names of the steps behind an answer, each once."""
    left, seen = [answer.grad_fn], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node.name()
        left += [before for before, _ in node.next_functions]
