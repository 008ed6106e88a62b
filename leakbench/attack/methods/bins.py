"""The gradients of an imprint's bins in an observed update."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.servers.imprint import Bins
from leakbench.federated.view import View

__all__ = ["DIFFERENCE", "gradients_of"]

DIFFERENCE = 2**0.5
"""Standard deviation of the noise on the difference of two rows, as a multiple of that on one row."""


def gradients_of(view: View, bins: Bins) -> tuple[Tensor, Tensor | None]:
    """Return the contribution of each bin to the gradient of the weights (V, k, d), and to that of the biases (V, k).

    If several clients share the biases, the second is omitted (None).
    """
    # Each client has its own columns of every row.
    weight = view.update[f"{bins.layer}.weight"]
    columns = weight.reshape(*weight.shape[:2], bins.clients, -1).transpose(1, 2)
    weight = columns.flatten(1, 2) * bins.signs[:, None]
    bias = view.update[f"{bins.layer}.bias"] * bins.signs if bins.clients == 1 else None
    if bins.cumulative:
        weight = torch.cat([weight[:, :-1] - weight[:, 1:], weight[:, -1:]], 1)
        bias = None if bias is None else torch.cat([bias[:, :-1] - bias[:, 1:], bias[:, -1:]], 1)
    return weight, bias
