"""The Fisher-information floor of a leakage point, where its noise is Gaussian, additive and independent of the data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from leakbench.cell import Cell
from leakbench.federated.partition import Partition
from leakbench.models import one_hot
from leakbench.privacy.fisher import fisher_information, rmse_floor
from leakbench.rng import generator
from leakbench.run.victims import Sent, aware, draw_victims, truth, view_of
from leakbench.summary.leak_bounds import leak_facts
from leakbench.types import Fact

__all__ = ["Floor", "floor", "noise_std"]

VICTIMS, PROBES = 4, 32

STATIONS = {
    "type-2": ("example",),
    "type-1": ("example", "batch", "client"),
    "type-0": ("example", "batch", "client", "server"),
    "global": ("example", "batch", "client", "server"),
}


@dataclass(frozen=True)
class Floor:
    """The least RMSE on average, medians over some victims' first examples; None with a note that says why.

    rmse: for an attacker who knows the public examples' variance and no more.  unbiased: for one who is right on average.
    """

    rmse: float | None
    unbiased: float | None
    note: str


def floor(cell: Cell, sent: Sent, tap: str, round_number: int, partition: Partition) -> Floor:
    """Return the floor of one leakage point, at most 4 victims and 32 probes each; draws from a generator of its own."""
    victims = draw_victims(cell, tap, round_number, partition)
    cohort, steps, batch = victims.indices.shape[1:]
    done = leak_facts(cell, sent.network, round_number)
    std = noise_std(done, tap, batch, cohort, steps, cell.settings.federation.learning_rate)
    if isinstance(std, str):
        return Floor(None, None, std)
    lanes = torch.arange(min(VICTIMS, len(victims.indices)))
    view = aware(view_of(cell, tap, round_number, victims, lanes, sent), cell)
    inputs, labels, _ = (t[lanes].to(cell.settings.device) for t in truth(cell, tap, victims))
    rng = generator(cell.settings.seed, "fisher probes", round_number)
    found = fisher_information(view, inputs, one_hot(labels, cell.data.classes), std, PROBES, rng)
    information = float(found.quantile(0.5))
    if not math.isfinite(information):
        return Floor(None, None, "none: the model gives no finite gradient")
    variance = float(cell.data.public_inputs.var(0).mean())
    unbiased = rmse_floor(information)
    return Floor(
        rmse_floor(information, variance),
        unbiased if math.isfinite(unbiased) else None,
        f"the prior is a Gaussian of the public examples' standard deviation, {variance**0.5:.3f}; who knows what such "
        "examples look like may come closer (rmse_floor_unbiased: for an attacker who is right on average)",
    )


def noise_std(
    done: Mapping[str, tuple[Fact, ...]], tap: str, batch: int, cohort: int, steps: int, rate: float
) -> float | str:
    """Return the standard deviation of the noise on each coordinate of what leaks, in units of a gradient, or why not.

    done: {station: facts} of a leak of `batch` examples, `steps` local iterations and `cohort` clients at learning `rate`.
    """
    variance = 0.0
    for station in STATIONS[tap]:
        for fact in done[station]:
            if fact.kind in ("noise", "uncalibrated_noise"):
                if fact.std == 0:
                    continue
                if steps > 1 and tap != "type-2" and station in ("example", "batch"):
                    return (
                        "none: the noise of one local iteration moves the model of the next, so it does not just add up"
                    )
                variance += (fact.std * _share(station, fact.each, tap, batch, cohort, steps * rate)) ** 2
            elif variance:
                return f"none: something acts at the {station} station on what is noisy already"
            elif fact.kind == "scale" or (fact.kind == "other" and fact.reason):
                return f"none: {fact.reason or 'the noise depends on the data'}"
    return math.sqrt(variance) if variance else "none: no noise"


def _share(station: str, each: bool, tap: str, batch: int, cohort: int, length: float) -> float:
    """Return what one noise of a station, as `Fact.std` counts it, comes to in what leaks."""
    clients = 1 / math.sqrt(cohort)
    if station == "example":
        alone = 1.0 if tap == "type-2" else 1 / math.sqrt(batch)
        return (alone if each else 1 / batch) * clients
    if station == "batch":
        return (1.0 if each else 1 / batch) * clients
    return (clients if station == "client" or each else 1 / cohort) / length
