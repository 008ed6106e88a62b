"""The gradient of each bin of an imprint, out of the update in which it leaked."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.servers.imprint import Bins
from leakbench.federated.view import View

__all__ = ["DIFFERENCE", "gradients_of"]

DIFFERENCE = 2**0.5
"""By which the noise on the difference of two rows is larger than that on one."""


def gradients_of(view: View, bins: Bins) -> tuple[Tensor, Tensor | None]:
    """Return what each bin adds to the weights (V, k, d), and to the biases (V, k); None of these where clients share them."""
    # Of several clients each has its own columns of every row.
    weight = view.update[f"{bins.layer}.weight"]
    columns = weight.reshape(*weight.shape[:2], bins.clients, -1).transpose(1, 2)
    weight = columns.flatten(1, 2) * bins.signs[:, None]
    bias = view.update[f"{bins.layer}.bias"] * bins.signs if bins.clients == 1 else None
    if bins.cumulative:
        weight = torch.cat([weight[:, :-1] - weight[:, 1:], weight[:, -1:]], 1)
        bias = None if bias is None else torch.cat([bias[:, :-1] - bias[:, 1:], bias[:, -1:]], 1)
    return weight, bias
