"""References for a malicious server: the best results that its attack may expect, next to the measured ones.

Without noise, an imprint reconstructs an example exactly if the example is alone in its bin, and PEFTLeak reads a patch exactly if
the patch is alone in its bin. With a clip and Gaussian noise,
the best server has one example's whole clipped gradient in one row, g = C (x, 1) / |(x, 1)|, and reads x with an error of
deviation sigma |(x, 1)| / sqrt(releases) (Riess et al., arXiv:2402.12861, has the same model of the best attacker). It denoises
x with a Gaussian of public examples. An attacker that knows more may have a smaller error, so this is not a bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.attack.search.shrinkage import Shrinkage, shrinkage_of
from leakbench.attack.servers.imprint import Bins
from leakbench.attack.servers.peftleak import PatchBins
from leakbench.attack.servers.scale_mia import LatentBins
from leakbench.attack.servers.server import HONEST, lies
from leakbench.cell import Cell
from leakbench.core.rng import generator
from leakbench.data.partition import Partition
from leakbench.experiment.victims import Sent, draw_victims, public_examples, truth
from leakbench.limits.guards import Guard
from leakbench.measure.closeness import eta_of

__all__ = ["Reference", "ReferenceData", "alone_in_a_bin", "alone_patches", "ideal", "prior_of", "reference"]

EXAMPLES = 200
"""Largest number of examples for the ideal server."""
DRAWS = 8
"""Number of noise draws per example."""

PUBLIC = 2000
"""Largest number of public examples for the ideal server's prior."""


@dataclass(frozen=True)
class Reference:
    """The two references of one leakage point.

    Args:
        alone: Expected share of examples that are alone in their bin; None for the reason in `no_alone`.
        asr: Expected share of examples with an RMSE of at most eta for the ideal server; None for the reason in `no_ideal`.
        rmse: Median root mean squared error of the ideal server; None likewise.
    """

    alone: float | None
    no_alone: str
    asr: float | None
    rmse: float | None
    no_ideal: str


@dataclass(frozen=True)
class ReferenceData:
    """The common data of the references of all leakage points: a Gaussian of public examples, and the threshold of success."""

    inputs: Shrinkage
    eta: float


def prior_of(cell: Cell) -> ReferenceData | None:
    """Return the common data of a cell's references; None for a server that follows the protocol."""
    if not lies(cell.attack.server):
        return None
    eta = eta_of(cell.data, cell.settings.seed, cell.settings.success)
    return ReferenceData(shrinkage_of(public_examples(cell, PUBLIC).inputs.flatten(1).cpu()), eta)


def reference(
    cell: Cell, sent: Sent, tap: str, round_number: int, partition: Partition, guard: Guard, prior: ReferenceData | None
) -> Reference:
    """Return the references of one leakage point, from the cell and the victims' examples."""
    if prior is None:
        return Reference(None, HONEST, None, None, HONEST)
    victims = draw_victims(cell, tap, round_number, partition)
    inputs, _, indices = truth(cell, tap, victims)
    alone, no_alone = None, "none: no bins that each hold what is alone in them"
    secret = sent.secret.bins if isinstance(sent.secret, LatentBins) else sent.secret
    if isinstance(secret, PatchBins):
        share = alone_patches(secret, indices.shape[1])
        no_alone = f"none: bins of patches; {share:.3f} of the patches are expected to be alone in their bin"
    if isinstance(secret, Bins):
        # An example in two local iterations counts once. Clients with separate blocks of bins count separately.
        several = indices.reshape(len(indices), min(secret.clients, indices.shape[1]), -1)
        distinct = min(len(set(own.tolist())) for own in several.flatten(0, 1))
        bins = len(secret.lower) // secret.clients
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
    """Return (1 - 1 / k)^(n - 1), the probability that one of n examples is alone in its bin, for k equally likely bins."""
    return float((1 - 1 / bins) ** (examples - 1))


def alone_patches(bins: PatchBins, pictures: int) -> float:
    """Return the expected share of the patches of n pictures that are alone in their bin.

    The mean of (1 - 1 / k_p)^(n - 1) over the positions p. The a (r - 1) bins of a adapters of r rows are shared out among the
    positions as evenly as whole numbers allow. Patches at different positions are never in one bin.

    Args:
        bins: The server's bins.
        pictures: n.
    """
    adapters, rows = bins.cutoffs.shape
    positions = bins.layout.positions
    each, more = divmod(adapters * (rows - 1), positions)
    shares = (alone_in_a_bin(each, pictures), alone_in_a_bin(each + 1, pictures))
    return ((positions - more) * shares[0] + more * shares[1]) / positions


def ideal(prior: Shrinkage, inputs: Tensor, sigma: float, eta: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the errors of the ideal server, which reconstructs the posterior mean, clamped to [0, 1], for `DRAWS` noises each.

    Without the clamp, the errors have a closed form (`Shrinkage.error`). The clamp matters: in images with much black it removes
    half of the error.

    Args:
        prior: Prior of the inputs.
        inputs: (n, d), the true inputs.
        sigma: Noise divided by one example's bound and by the square root of the number of releases.
        eta: Threshold of success.

    Returns:
        (median RMSE (n,), share of draws with an RMSE of at most eta (n,)).
    """
    deviation = sigma * (inputs.square().sum(1, keepdim=True) + 1).sqrt()
    errors = []
    for _ in range(DRAWS):
        noise = torch.randn(inputs.shape, generator=rng, dtype=inputs.dtype)
        answer = prior(inputs + deviation * noise, deviation[:, 0].square()).clamp(0, 1)
        errors.append((answer - inputs).square().mean(1).sqrt())
    every = torch.stack(errors)
    return every.median(0).values, (every <= eta).double().mean(0)
