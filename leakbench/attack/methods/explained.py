"""Tests whether a row of a first layer contains a single example, by the gradient of the row's bias."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap

from leakbench.federated.view import View
from leakbench.models.batch_norm import mixes_examples

__all__ = ["unexplained"]

AT_ONCE = 250
"""Number of rows that pass through the network at once."""


def unexplained(view: View, layer: str, contents: Tensor) -> Tensor:
    """Return by how much the gradient of a row's bias differs from that of a single example with the most likely label.

    An example x of label y changes the bias b_j of the first layer by (p - e_y) . dz / db_j, with the logits z(x) and
    p = softmax(z) of the sent network. If x alone activates the row, db_j is exactly this over M. For a mixture, db_j is the sum
    over its members, and equals (p - e_y) . dz / db_j of the mixture itself only by chance. So the attacker verifies a row without
    knowing the truth. It needs one undefended gradient of M examples: after a clip, noise or further local steps, no row is
    explained.

    Args:
        view: The view of V victims.
        layer: Prefix of the first layer's parameters.
        contents: Contents (V, k, d) of k rows.

    Returns:
        The difference (V, k) as a share of db_j. It is infinite for a stochastic network and for one that normalises over its
        batch.
    """
    if view.network.draws or mixes_examples(view.network.model):
        return contents.new_full(contents.shape[:2], torch.inf)
    biases = view.update[f"{layer}bias"] * view.examples
    return torch.stack([_missed(view, layer, lane, contents[lane], biases[lane]) for lane in range(view.victims)])


def _missed(view: View, layer: str, lane: int, contents: Tensor, biases: Tensor) -> Tensor:
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
        rows = torch.eye(len(biases), dtype=contents.dtype, device=contents.device)
        z, slope = vmap(logits_and_slope, chunk_size=AT_ONCE)(contents.nan_to_num(0.0, 0.0, 0.0), rows)
        expected = (z.softmax(1) * slope).sum(1, keepdim=True) - slope
        missed: Tensor = ((expected - biases[:, None]).abs() / biases.abs()[:, None]).amin(1)
        return missed.nan_to_num(nan=torch.inf)
