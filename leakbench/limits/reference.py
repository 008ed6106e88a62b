"""What a server that lies may expect at best, in closed form: two rows that stand beside what its attack measured.

Without noise an example comes back verbatim from an imprint where it is alone in its bin. With a clip and Gaussian noise the best
server has one example's whole clipped gradient in one row, g = C (x, 1) / |(x, 1)|, and reads x with an error of deviation
sigma |(x, 1)| / sqrt(releases) (Riess et al., arXiv:2402.12861, is the same model of the best reader).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.search.shrinkage import Shrinkage, shrinkage_of
from leakbench.attack.servers.imprint import Bins
from leakbench.attack.servers.server import HONEST, Honest
from leakbench.cell import Cell
from leakbench.federated.partition import Partition
from leakbench.limits.guards import Guard
from leakbench.measure.metrics import success_threshold
from leakbench.rng import generator
from leakbench.run.victims import Sent, draw_victims, public_examples, truth

__all__ = ["Reference", "alone_in_a_bin", "ideal", "reference"]

PUBLIC = 2000
"""How many public examples the ideal server's prior is of, at most."""


@dataclass(frozen=True)
class Reference:
    """The two references of one leakage point, None where there is none, with the reason.

    verbatim: the share of examples expected to be alone in their bin.  asr, rmse: of the ideal server, the expected share of
    examples within eta and the median expected root mean squared error.
    """

    verbatim: float | None
    no_verbatim: str
    asr: float | None
    rmse: float | None
    no_ideal: str


def reference(cell: Cell, sent: Sent, tap: str, round_number: int, partition: Partition, guard: Guard) -> Reference:
    """Return the references of one leakage point, from the cell and the victims' examples; nothing is drawn."""
    if isinstance(cell.attack.server, Honest):
        return Reference(None, HONEST, None, None, HONEST)
    victims = draw_victims(cell, tap, round_number, partition)
    inputs, _, indices = truth(cell, tap, victims)
    verbatim, no_verbatim = None, "none: no bins that each hold what is alone in them"
    if isinstance(sent.secret, Bins):
        # The same example in two local iterations is one; of clients with blocks of their own each is by itself.
        several = indices.reshape(len(indices), min(sent.secret.clients, indices.shape[1]), -1)
        distinct = min(len(set(own.tolist())) for own in several.flatten(0, 1))
        verbatim, no_verbatim = alone_in_a_bin(len(sent.secret.lower) // sent.secret.clients, distinct), ""
    if guard.sigma is None:
        return Reference(verbatim, no_verbatim, None, None, guard.reason)
    eta = cell.settings.success
    if eta is None:
        eta = success_threshold(cell.data.train_inputs[cell.data.victims], generator(cell.settings.seed, "eta"))
    prior = shrinkage_of(public_examples(cell, PUBLIC).inputs.flatten(1).cpu())
    rmse, reached = ideal(prior, inputs.flatten(2).flatten(0, 1), guard.sigma / guard.views**0.5, eta)
    return Reference(verbatim, no_verbatim, float(reached.mean()), float(rmse.median()), "")


def alone_in_a_bin(bins: int, examples: int) -> float:
    """Return (1 - 1 / k)^(n - 1), how likely one of n examples is alone in one of k bins that are alike likely."""
    return float((1 - 1 / bins) ** (examples - 1))


def ideal(prior: Shrinkage, inputs: Tensor, sigma: float, eta: float) -> tuple[Tensor, Tensor]:
    """Return what the ideal server has of inputs (n, d): (expected RMSE (n,), the probability of an RMSE of at most eta (n,)).

    sigma: the noise over one example's bound, divided by the square root of the releases.  The squared error of a posterior mean
    is a weighted sum of non-central chi-squares, which is taken for the gamma distribution of the same mean and variance.
    """
    variance = sigma**2 * (inputs.square().sum(1) + 1)
    mean, spread = prior.error(inputs, variance)
    mean, spread = mean.double(), spread.double().clamp_min(torch.finfo(torch.float64).tiny)
    reached = torch.special.gammainc(mean.square() / spread, inputs.shape[1] * eta**2 * mean / spread)
    return (mean / inputs.shape[1]).sqrt(), reached
