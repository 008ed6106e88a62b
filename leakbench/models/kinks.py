"""Networks whose derivatives jump, where second derivatives do not describe the function beyond the jump."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from leakbench.core.working_copy import copied
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
"""Start of the names of autograd's nodes whose derivative jumps."""


def kinked(model: nn.Module, shape: Shape) -> bool:
    """Return whether the network's output depends on a ReLU, a maximum or another function whose derivative jumps.

    The answer comes from the graph that autograd records, so functions count as well as modules. The network does not change, and
    runs in evaluation mode.

    Args:
        shape: (*s) of one input.
    """
    alone = copied(model).eval()
    first = next(iter(alone.parameters()))
    with torch.enable_grad():
        output = alone(torch.zeros(1, *shape, dtype=first.dtype, device=first.device, requires_grad=True))
    return any(name.startswith(KINKS) for name in _nodes(output))


def _nodes(output: Any) -> Iterator[str]:
    """Yield the names of the autograd nodes of an output, or of several in a container, each once."""
    left, seen = [result.grad_fn for result in tree_leaves(output)], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node.name()
        left += [before for before, _ in node.next_functions]
