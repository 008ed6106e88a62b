"""Linear layers before a ReLU or a hardtanh, whose rows may be inactive for an example."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from leakbench.core.working_copy import copied
from leakbench.models.shapes import Shape

__all__ = ["gated_biases"]

GATES = ("Relu", "Hardtanh")
"""Start of the names of autograd's nodes whose derivative is zero on a half-line."""

RESHAPES = ("View", "UnsafeView", "Reshape")


def gated_biases(model: nn.Module, shape: Shape) -> tuple[str, ...]:
    """Return the names of the biases of linear layers whose output is the input of a ReLU or a hardtanh.

    The names come from the graph that autograd records, so functions count as well as modules. The network does not change, and
    runs in evaluation mode.

    Args:
        shape: (*s) of one input.
    """
    alone = copied(model).eval().requires_grad_()
    names = {parameter: name for name, parameter in alone.named_parameters()}
    first = next(iter(alone.parameters()))
    with torch.enable_grad():
        output = alone(torch.zeros(1, *shape, dtype=first.dtype, device=first.device))
    gated, left, seen = set[str](), [output.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        before = [entering for entering, _ in node.next_functions]
        if node.name().startswith(GATES) and (bias := _bias(before[0])) in names:
            gated.add(names[bias])
        left += before
    return tuple(name for name in names.values() if name in gated)


def _bias(node: Any) -> Any:
    """Return the bias that a linear layer's node adds; None for another node."""
    while node is not None and node.name().startswith(RESHAPES):
        node = node.next_functions[0][0]
    if node is None or not node.name().startswith("Addmm"):
        return None
    return getattr(node.next_functions[0][0], "variable", None)
