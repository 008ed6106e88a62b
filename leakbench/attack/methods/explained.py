"""How well what a row of a first layer holds explains, were it one example, the gradient of the row's own bias."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from leakbench.federated.view import View
from leakbench.models.batch_norm import mixes_examples

__all__ = ["unexplained"]

AT_ONCE = 250
"""How many rows are walked through the network side by side."""


def unexplained(view: View, layer: str, found: Tensor) -> Tensor:
    """Return (V, k): by which share of db_j an example found_j (V, k, d) of the likeliest label misses it; infinite if unknown.

    An example x of label y moves the bias b_j of the first layer, of that prefix, by (p - e_y) . dz / db_j, with the logits z(x)
    and p = softmax(z) of the network as it was sent. A row that x alone lights has just this, over M, as its db_j, to the last
    digits; a mixture has the sum over its members, which the mixture's own (p - e_y) . dz / db_j meets by chance only. So the
    attacker verifies a row without the truth. It needs one gradient of M examples as it was computed: a clip, a noise or further
    steps leave nothing explained. It is unknown of a network that samples, or normalises over its batch.
    """
    if view.network.draws or mixes_examples(view.network.model):
        return found.new_full(found.shape[:2], torch.inf)
    biases = view.update[f"{layer}bias"] * view.examples
    return torch.stack([_missed(view, layer, lane, found[lane], biases[lane]) for lane in range(view.victims)])


def _missed(view: View, layer: str, lane: int, found: Tensor, biases: Tensor) -> Tensor:
    network = view.network
    sent = {n: p if network.shared else p[lane] for n, p in network.parameters.items()} | network.statistics
    name = f"{layer}bias"

    def logits_and_slope(x: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        def logits(bias: Tensor) -> tuple[Tensor, Tensor]:
            answered: Tensor = functional_call(network.model, {**sent, name: bias}, (x.reshape(1, *view.shape),))
            return answered[0], answered[0]

        slopes, z = jacrev(logits, has_aux=True)(sent[name])
        return z, slopes @ row

    with torch.no_grad():
        rows = torch.eye(len(biases), dtype=found.dtype, device=found.device)
        z, slope = vmap(logits_and_slope, chunk_size=AT_ONCE)(found.nan_to_num(0.0, 0.0, 0.0), rows)
        expected = (z.softmax(1) * slope).sum(1, keepdim=True) - slope
        missed: Tensor = ((expected - biases[:, None]).abs() / biases.abs()[:, None]).amin(1)
        return missed.nan_to_num(nan=torch.inf)
