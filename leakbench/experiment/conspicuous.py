"""Statistics that may reveal the model of a malicious server to clients, compared with those of honest models.

The honest models have the same round and batch size. The statistics are computed from the cell after the run, so a resumed run
computes the same ones.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import functional_call

from leakbench.attack.servers.server import HONEST, lies
from leakbench.cell import Cell
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.data.partition import Partition
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, draw_victims
from leakbench.federated.client import Examples, example_signal
from leakbench.measure.conspicuous import (
    STATISTICS,
    architecture_changed,
    d_snr,
    lit,
    lit_alone,
    percentile,
    rows_alike,
    weight_names,
    weight_norms,
)
from leakbench.models import one_hot
from leakbench.models.batch_norm import mixes_examples
from leakbench.models.gates import gated_biases

__all__ = ["Conspicuous", "conspicuous_of", "seen_of"]

MOST, FEWEST = 20, 4
"""Largest and least number of batches, and of honest models at random weights; large models have fewer."""

WORK = 500_000_000
"""Approximate number of gradient coordinates for the batches, and for the honest models."""

AT_ONCE = 64_000_000
"""Largest number of gradient coordinates in memory at once."""

ABSENT = {
    "rows_alike": "no layer has two rows of two numbers",
    "d_snr": "with fewer than two examples, or without gradients of single examples, none can outweigh the others",
    "lit_alone": "no linear layer with a bias stands before a ReLU or hardtanh, or fewer than two examples could light it",
    "loss": "the model gives no finite loss",
}


@dataclass(frozen=True)
class Conspicuous:
    """The statistics of a malicious server's model.

    Args:
        found: {statistic: {`value`, `percentile` among honest models, their `honest_median`}}; None for an honest server.
        notes: {key of the summary: its explanation}.
    """

    found: dict[str, dict[str, float | None]] | None = None
    notes: dict[str, str] = field(default_factory=lambda: {"conspicuous": HONEST})


MANY = 10_000
"""Largest number of clients that are searched for clients without a victim."""


def conspicuous_of(
    cell: Cell, sent: Callable[[int, int], Sent], honest: Callable[[int], Network], partition: Partition
) -> Conspicuous:
    """Return the statistics at the last round that leaks, as medians over the victims' batches, at most 20.

    Before any training, the honest models are new initialisations with one batch each. Afterwards there is one honest model, with
    batches of clients that are not victims.

    Args:
        sent: Maps (round, draw of the first weights) to what the server sent; each victim has its own draw.
        honest: Maps a round to the network of an honest server.
    """
    if not lies(cell.attack.server):
        return Conspicuous()
    number = cell.settings.leaks[-1][-1]
    lying = [sent(number, network).network.of_client(0) for network in range(cell.settings.networks)]
    plain = honest(number)
    many = _affordable(cell, lying[0])
    victims = draw_victims(cell, "type-1", number, partition).indices[:many, 0, 0]
    others = _other_batches(cell, victims, many, partition)
    fair = [_seen(cell, _fresh(cell, n) if number == 0 else plain, batch) for n, batch in enumerate(others)]
    lied = [_seen(cell, lying[n % len(lying)], batch) for n, batch in enumerate(victims)]
    changed = float(architecture_changed(plain.parameters, lying[0].parameters))
    fair, lied = [{"architecture": 0.0, **each} for each in fair], [{"architecture": changed, **each} for each in lied]
    found = {name: _placed([each[name] for each in lied], [each[name] for each in fair]) for name in STATISTICS}
    return Conspicuous(found, _notes(cell, found, number, len(victims), many))


def seen_of(
    network: Network, inputs: Tensor, targets: Tensor, gates: tuple[str, ...] | None = None
) -> dict[str, float]:
    """Return {statistic: value} of one batch, without `architecture`; NaN for a statistic that does not exist.

    Args:
        inputs: (B, *s).
        targets: (B,).
        gates: The result of `gated_biases`; None to compute it.
    """
    size = sum(p.numel() for p in network.parameters.values())
    gates = gated_biases(network.model, tuple(inputs.shape[1:])) if gates is None else gates
    # An update shows trained parameters only.
    names, gates = (
        tuple(n for n in found if n in network.parameters) for found in (weight_names(network.model), gates)
    )
    found = {"rows_alike": float(rows_alike({n: network.parameters[n][None] for n in names}))}
    with torch.no_grad():
        state = {**network.parameters, **network.statistics}
        logits = functional_call(network.model, state, (inputs,))
        classes = logits.shape[1]
        found["loss"] = float(torch.nn.functional.cross_entropy(logits, targets))
        if mixes_examples(network.model):
            return {**found, "d_snr": math.nan, "lit_alone": math.nan}
        norms, rows = [], []
        for some in torch.split(torch.arange(len(inputs)), max(1, AT_ONCE // size)):
            one = inputs.new_ones(1, 1, len(some))
            x, y = inputs[some][None, None], one_hot(targets[some], classes).to(inputs)[None, None]
            grads = example_signal(network, Examples(x, y, one, len(some)), 0).grads
            norms.append(weight_norms(grads, names))
            rows.append(lit(grads, gates))
    real = torch.ones(1, len(inputs), dtype=torch.bool, device=inputs.device)
    whole = {n: torch.cat([each[n] for each in norms], 1) for n in names}
    found["d_snr"] = float(d_snr(whole, real))
    found["lit_alone"] = float(lit_alone({n: torch.cat([each[n] for each in rows], 1) for n in gates}, real))
    return found


def _seen(cell: Cell, network: Network, indices: Tensor) -> dict[str, float]:
    device = cell.settings.device
    x, y = cell.data.train_inputs[indices].to(device), cell.data.train_targets[indices].to(device)
    return seen_of(network, x, y)


def _affordable(cell: Cell, network: Network) -> int:
    size = cell.settings.leak_batch * sum(p.numel() for p in network.parameters.values())
    return max(FEWEST, min(MOST, WORK // size))


def _fresh(cell: Cell, number: int) -> Network:
    """Return the network that leaks with other first weights, as of an honest server."""
    seed = generator(cell.settings.seed, "honest models", number).initial_seed()
    other = dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, seed=seed))
    return Network(*fresh_network(other, trained=cell.settings.protocol == "live"), engine=cell.settings.engine)


def _other_batches(cell: Cell, victims: Tensor, many: int, partition: Partition) -> Tensor:
    """Return batches (n, B) without victims; in the live protocol, each of one client, if possible without a victim."""
    s, rng = cell.settings, generator(cell.settings.seed, "honest batches")
    if s.protocol == "paper":
        pool = cell.data.victims[~torch.isin(cell.data.victims, victims.contiguous())]
        pool = pool if len(pool) >= s.leak_batch else cell.data.victims
        return torch.stack([pool[torch.randperm(len(pool), generator=rng)[: s.leak_batch]] for _ in range(many)])
    held = partition.of(torch.arange(min(partition.clients, MANY)))
    free = held[~torch.isin(held, victims.contiguous()).any(1)]
    held = free if len(free) else held
    drawn = []
    for _ in range(many):
        own = held[int(torch.randint(len(held), (), generator=rng))]
        drawn.append(own[torch.randperm(len(own), generator=rng)[: s.leak_batch]])
    return torch.stack(drawn)


def _placed(lied: list[float], fair: list[float]) -> dict[str, float | None]:
    value, median = _median(lied), _median(fair)
    return {
        "value": value,
        "percentile": None if value is None else percentile(value, fair),
        "honest_median": median,
    }


def _median(values: list[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return statistics.median(known) if known else None


def _notes(
    cell: Cell, found: dict[str, dict[str, float | None]], number: int, batches: int, many: int
) -> dict[str, str]:
    """Return the explanation of the honest models, and the reasons for missing numbers."""
    models = f"{many} networks at random weights" if number == 0 else "the network as it was trained"
    size = cell.settings.leak_batch
    notes = {
        "conspicuous": f"medians over {batches} victims' batches of {size} before round {number + 1}; honest is {models}, with"
        f" {many} batches of others"
    }
    for name, placed in found.items():
        for what, number_found in placed.items():
            if number_found is None:
                whose = "" if placed["value"] is None else "of honest models "
                notes[f"conspicuous.{name}.{what}"] = f"none: {whose}{ABSENT[name]}"
    return notes
