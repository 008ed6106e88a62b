"""What a server that lies may expect at best: two rows that stand beside what its attack measured.

Without noise an example comes back verbatim from an imprint where it is alone in its bin. With a clip and Gaussian noise the best
server has one example's whole clipped gradient in one row, g = C (x, 1) / |(x, 1)|, and reads x with an error of deviation
sigma |(x, 1)| / sqrt(releases) (Riess et al., arXiv:2402.12861, is the same model of the best reader), which it denoises by a
Gaussian of public examples; who knows more of them may come closer, so that this is no bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.search.shrinkage import Shrinkage, shrinkage_of
from leakbench.attack.servers.imprint import Bins
from leakbench.attack.servers.server import HONEST, lies
from leakbench.cell import Cell
from leakbench.data.partition import Partition
from leakbench.experiment.victims import Sent, draw_victims, public_examples, truth
from leakbench.limits.guards import Guard
from leakbench.measure.metrics import success_threshold
from leakbench.rng import generator

__all__ = ["Prior", "Reference", "alone_in_a_bin", "ideal", "prior_of", "reference"]

EXAMPLES = 200
"""Of how many examples at most the ideal server's answers are drawn, and how often each."""
DRAWS = 8

PUBLIC = 2000
"""How many public examples the ideal server's prior is of, at most."""


@dataclass(frozen=True)
class Reference:
    """The two references of one leakage point, None where there is none, with the reason.

    Args:
        alone: The share of examples expected to be alone in their bin.
        asr: Of the ideal server, the expected share of examples within eta and the median root mean squared error.
        rmse: Of the ideal server, the expected share of examples within eta and the median root mean squared error.
    """

    alone: float | None
    no_alone: str
    asr: float | None
    rmse: float | None
    no_ideal: str


@dataclass(frozen=True)
class Prior:
    """What the references of all leakage points share: the Gaussian of public examples, and the threshold of success."""

    inputs: Shrinkage
    eta: float


def prior_of(cell: Cell) -> Prior | None:
    """Return what the references of a cell share; None where its server does not lie."""
    if not lies(cell.attack.server):
        return None
    eta = cell.settings.success
    if eta is None:
        eta = success_threshold(cell.data.train_inputs[cell.data.victims], generator(cell.settings.seed, "eta"))
    return Prior(shrinkage_of(public_examples(cell, PUBLIC).inputs.flatten(1).cpu()), eta)


def reference(
    cell: Cell, sent: Sent, tap: str, round_number: int, partition: Partition, guard: Guard, prior: Prior | None
) -> Reference:
    """Return the references of one leakage point, from the cell and the victims' examples alone."""
    if prior is None:
        return Reference(None, HONEST, None, None, HONEST)
    victims = draw_victims(cell, tap, round_number, partition)
    inputs, _, indices = truth(cell, tap, victims)
    alone, no_alone = None, "none: no bins that each hold what is alone in them"
    if isinstance(sent.secret, Bins):
        # The same example in two local iterations is one; of clients with blocks of their own each is by itself.
        several = indices.reshape(len(indices), min(sent.secret.clients, indices.shape[1]), -1)
        distinct = min(len(set(own.tolist())) for own in several.flatten(0, 1))
        bins = len(sent.secret.lower) // sent.secret.clients
        alone, no_alone = None, "none: more than two examples a bin, for which unequal bins isolate more"
        if distinct <= 2 * bins:
            alone, no_alone = alone_in_a_bin(bins, distinct), ""
    if guard.sigma is None:
        return Reference(alone, no_alone, None, None, guard.reason)
    shown = inputs.flatten(2).flatten(0, 1)[:EXAMPLES]
    rng = generator(cell.settings.seed, "ideal server")
    rmse, reached = ideal(prior.inputs, shown, guard.sigma / guard.views**0.5, prior.eta, rng)
    return Reference(alone, no_alone, float(reached.mean()), float(rmse.median()), "")


def alone_in_a_bin(bins: int, examples: int) -> float:
    """Return (1 - 1 / k)^(n - 1), how likely one of n examples is alone in one of k bins that are alike likely."""
    return float((1 - 1 / bins) ** (examples - 1))


def ideal(prior: Shrinkage, inputs: Tensor, sigma: float, eta: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return what the ideal server has of inputs (n, d): (median RMSE (n,), how often one of at most eta (n,)).

    Args:
        sigma: The noise over one example's bound, divided by the square root of the releases. It answers with the posterior mean
            under `prior`, clamped to [0, 1], to `DRAWS` noises each. Without the clamp both have a closed form
            (`Shrinkage.error`), but of pictures with much black the clamp takes away half of the error.
    """
    deviation = sigma * (inputs.square().sum(1, keepdim=True) + 1).sqrt()
    errors = []
    for _ in range(DRAWS):
        noise = torch.randn(inputs.shape, generator=rng, dtype=inputs.dtype)
        answer = prior(inputs + deviation * noise, deviation[:, 0].square()).clamp(0, 1)
        errors.append((answer - inputs).square().mean(1).sqrt())
    every = torch.stack(errors)
    return every.median(0).values, (every <= eta).double().mean(0)
