"""The share of a batch's examples that any row of a fully connected first layer holds, by the truth: what the papers count."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.methods.rows import Rows
from leakbench.attack.public import FEW
from leakbench.attack.servers.imprint import Bins
from leakbench.cell import Cell, knowledge
from leakbench.experiment.execute import hand_out
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, draw_victims, public_examples, truth, view_of
from leakbench.federated.view import View
from leakbench.measure.metrics import success_threshold
from leakbench.models.layers import first_layer
from leakbench.rng import generator
from leakbench.types import Network

__all__ = ["in_any_row", "within"]


def in_any_row(cell: Cell, tap: str) -> float | None:
    """Return how many of the attacked examples some row holds to eta (Boenisch et al., table 5), at a model at first weights.

    None where the attack reads no rows of such a layer, and in the live protocol, whose model is trained.
    """
    if cell.settings.protocol == "live" or not isinstance(cell.attack.method, Rows):
        return None
    public = public_examples(cell, max(FEW, cell.attack.needs.public))

    def sent_at(network: int) -> Sent:
        plain = Network(*fresh_network(cell, False, network))
        rng = generator(cell.settings.seed, "server")
        return Sent(*cell.attack.server(plain, public, knowledge(cell, tap), rng))

    sent = [sent_at(network) for network in range(cell.settings.networks)]
    name = first_layer(sent[0].network.model)
    if name is None or isinstance(sent[0].secret, Bins):
        return None
    victims = draw_victims(cell, tap, 0, hand_out(cell))
    inputs, _, _ = truth(cell, tap, victims)
    eta = cell.settings.success
    if eta is None:
        eta = success_threshold(cell.data.train_inputs[cell.data.victims], generator(cell.settings.seed, "eta"))
    found = [
        within(view_of(cell, tap, 0, victims, lane, sent[int(lane) % len(sent)]), name, inputs[lane].flatten(2), eta)
        for lane in torch.split(torch.arange(len(inputs)), 1)
    ]
    return float(torch.cat(found).double().mean())


def within(view: View, layer: str, inputs: Tensor, eta: float) -> Tensor:
    """Return (V, M): whether a row of the layer, of that prefix, holds each of the inputs (V, M, d) to an RMSE of eta."""
    weight, bias = (view.update[f"{layer}{kind}"] for kind in ("weight", "bias"))
    rows = (weight / bias[..., None]).clamp(0, 1)
    apart = torch.cdist(inputs, rows.nan_to_num(nan=torch.inf), compute_mode="donot_use_mm_for_euclid_dist")
    held: Tensor = apart.nan_to_num(nan=torch.inf).amin(2) <= eta * inputs.shape[2] ** 0.5
    return held
