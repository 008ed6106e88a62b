"""The Fisher-information floor of a leakage point whose noise is Gaussian, additive and independent of the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from leakbench.cell import Cell, leak_clock, looks_at
from leakbench.core.rng import generator
from leakbench.data.partition import Partition
from leakbench.defense.augmentation import copies_of, is_random
from leakbench.experiment.leak_noise import leak_facts, noise_std
from leakbench.experiment.victims import Sent, aware, draw_victims, truth, view_of
from leakbench.federated.optimizer import linear_steps
from leakbench.limits.fisher import fisher_information, rmse_floor

__all__ = ["Floor", "floor"]

VICTIMS, PROBES = 4, 32


@dataclass(frozen=True)
class Floor:
    """The least average RMSE, from the median information of some victims' first examples.

    Args:
        rmse: For an attacker that knows only the public examples' variance; `leakbench.limits.fisher_prior` has the floor of a
            Gaussian with a covariance. None for the reason in `note`.
        unbiased: For an unbiased attacker.
        note: The assumptions, or the reason for no floor.
    """

    rmse: float | None
    unbiased: float | None
    note: str


def floor(cell: Cell, sent: Callable[[int], Sent], tap: str, round_number: int, partition: Partition) -> Floor:
    """Return the floor of one leakage point, from at most 4 victims with 32 probes each.

    Args:
        sent: Maps a draw of the first weights to what the server sent; each victim has its own draw.
        tap: Leakage point.
    """
    if cell.data.tokens:
        return Floor(
            None, None, "none: tokens have no distances, so that a gradient has no information about a small change"
        )
    if any(map(is_random, cell.defense.inputs)):
        return Floor(None, None, "none: examples are changed at random before their gradient is computed")
    victims = draw_victims(cell, tap, round_number, partition)
    cohort, steps, batch = victims.indices.shape[1:]
    done = leak_facts(cell, sent(0).network, round_number)
    f = cell.settings.federation
    members = batch * copies_of(cell.defense.inputs)
    length = linear_steps(leak_clock(cell, round_number), f.learning_rate, steps).length
    std = noise_std(done, tap, members, cohort, steps, f.learning_rate, f.client_optimizer, length)
    if isinstance(std, str):
        return Floor(None, None, std)
    std /= math.sqrt(looks_at(cell, tap))  # Several observations have the information of their mean.
    few = torch.arange(min(VICTIMS, len(victims.indices)))
    inputs, _, examples = (t.to(cell.settings.device) for t in truth(cell, tap, victims))
    answers = cell.data.answers_of(examples.cpu()).to(cell.settings.device)
    rng = generator(cell.settings.seed, "fisher probes", round_number)
    each = []
    for network in range(min(cell.settings.networks, len(few))):
        lanes = few[network :: cell.settings.networks]
        view = aware(view_of(cell, tap, round_number, victims, lanes, sent(network)), cell)
        targets = answers[lanes]
        each.append(fisher_information(view, inputs[lanes], targets, std, PROBES, rng))
    information = float(torch.cat(each).quantile(0.5))
    if not math.isfinite(information):
        return Floor(None, None, "none: the model gives no finite gradient")
    variance = float(cell.data.public_inputs.var(0, correction=0).mean())
    if not variance > 0:
        return Floor(None, None, "none: the public examples are all alike, so that their deviation cannot be a prior")
    unbiased = rmse_floor(information)
    return Floor(
        rmse_floor(information, variance),
        unbiased if math.isfinite(unbiased) else None,
        f"the prior is white, a Gaussian of the public examples' standard deviation, {variance**0.5:.3f}, and nothing else is "
        f"known of such examples; its information is the median of {len(few)} victims'; an attacker that knows more, such as the "
        "correlation of neighbouring pixels, may have a smaller error (rmse_floor_unbiased: for an unbiased attacker)",
    )
