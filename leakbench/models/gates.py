"""Which linear layers feed a function that is flat over a half-line, so that a row may be dark for an example."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from leakbench.models.shapes import Shape

__all__ = ["gated_biases"]

GATES = ("Relu", "Hardtanh")
"""How the names of autograd's nodes begin that pass no gradient over a half-line."""

RESHAPES = ("View", "UnsafeView", "Reshape")


def gated_biases(model: nn.Module, shape: Shape) -> tuple[str, ...]:
    """Return the names of the biases of linear layers whose answer goes into a ReLU or a hardtanh, for inputs of a shape.

    Read off the graph that autograd records, so that functions count as modules do. The network itself is not touched; it
    answers in evaluation mode.
    """
    alone = copy.deepcopy(model).eval().requires_grad_()
    names = {parameter: name for name, parameter in alone.named_parameters()}
    first = next(iter(alone.parameters()))
    with torch.enable_grad():
        answer = alone(torch.zeros(1, *shape, dtype=first.dtype, device=first.device))
    found, left, seen = set[str](), [answer.grad_fn], set[Any]()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        before = [entering for entering, _ in node.next_functions]
        if node.name().startswith(GATES) and (bias := _bias(before[0])) in names:
            found.add(names[bias])
        left += before
    return tuple(name for name in names.values() if name in found)


def _bias(node: Any) -> Any:
    """Return the bias that a linear layer's node adds; None where the node is of no such layer."""
    while node is not None and node.name().startswith(RESHAPES):
        node = node.next_functions[0][0]
    if node is None or not node.name().startswith("Addmm"):
        return None
    return getattr(node.next_functions[0][0], "variable", None)
