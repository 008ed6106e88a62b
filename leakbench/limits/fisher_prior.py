"""The Fisher-information floor for an attacker whose prior of the inputs is a Gaussian with a full covariance.

For x = mean + W z with z ~ N(0, I), a release f(x) + N(0, std^2 I) has the information G = W^T J^T J W / std^2 on z, J = df/dx.
By van Trees' inequality in its matrix form, no reconstruction has an average squared error per feature below
tr(W (I + G)^{-1} W^T) / d (Gill and Levit, "Applications of the van Trees inequality", Bernoulli 1(1/2), 1995; van Trees,
"Detection, Estimation, and Modulation Theory", part I, 1968, section 2.4). The inequality uses the mean of J^T J under the
prior. Here the mean over some inputs replaces it; too few inputs raise the floor, since the trace of an inverse is convex. A
linear release attains the floor: it is the error of the linear least-squares estimate, for any inputs with that covariance.

`leakbench.limits.fisher` computes a floor for W = deviation * I from only the trace of J^T J, which is at most the floor here for
the same W. An attacker with a prior that is not Gaussian may have a smaller error.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import jvp

from leakbench.core.errors import InputError
from leakbench.engine.rows import gram_of
from leakbench.federated.view import View

__all__ = ["information_matrix", "prior_floors"]

BUDGET = 50_000_000
"""Bytes of the gradients that are differentiated side by side; the computation takes several times as many."""


def information_matrix(view: View, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return (d, d) float64, the mean over V victims of J^T J with regard to the first example; the attacker knows the others.

    Divided by the noise's variance, it is the Fisher information of the d features. It is exact, from d derivatives along single
    features (forward mode). Memory holds one victim's J at a time.

    Args:
        view: A view with the stations whose deterministic part runs before the noise (`View.stations`).
        inputs: (V, M, *s), the true inputs.
        targets: (V, M, classes), the true labels.

    Raises:
        InputError: Without victims.
    """
    if not len(inputs):
        raise InputError("inputs: got no victims, expected at least 1")
    each = (gram_of(_jacobian(view, inputs, targets, lane), exact=True) for lane in range(len(inputs)))
    return sum(each, torch.zeros((), dtype=torch.float64, device=inputs.device)) / len(inputs)


def _jacobian(view: View, inputs: Tensor, targets: Tensor, lane: int) -> Tensor:
    """Return J^T, (d, coordinates), of one victim in the inputs' type."""
    features = inputs[0, 0].numel()
    size = inputs.element_size() * sum(u[0].numel() for u in view.update.values())
    every = torch.eye(features, dtype=inputs.dtype, device=inputs.device)
    with warnings.catch_warnings():  # PyTorch's first derivative in forward mode warns about PyTorch's own code.
        warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)
        chunks = torch.split(every, max(1, BUDGET // size))
        return torch.cat([_along(view, inputs[lane], targets[lane], lane, some) for some in chunks])


def _along(view: View, inputs: Tensor, targets: Tensor, lane: int, directions: Tensor) -> Tensor:
    """Return (n, coordinates), the derivatives along n directions (n, d) of the first of a victim's inputs (M, *s)."""
    count = len(directions)
    first, others = (part.repeat(count, *[1] * inputs.dim()) for part in (inputs[None, :1], inputs[None, 1:]))
    lanes = torch.full((count,), lane, device=inputs.device)

    def released(guess: Tensor) -> Tensor:
        guesses = torch.cat([guess, others], 1)
        leaked = view.respond(guesses, targets.expand(count, *targets.shape), lanes)
        return torch.cat([g.flatten(1) for g in leaked.values()], 1)

    derivatives: Tensor = jvp(released, (first,), (directions.reshape(first.shape),))[1]
    return derivatives.detach()


def prior_floors(information: Tensor, root: Tensor, stds: Sequence[float]) -> list[float]:
    """Return the least root mean squared error per feature for each std.

    Args:
        information: (d, d), J^T J.
        root: (d, k), W of the prior x = mean + W z; its covariance is W W^T.
        stds: Standard deviations of the noise on every coordinate of the update, in its units, each > 0.

    Raises:
        InputError: For shapes that do not fit, values that are not finite, or a std outside its range.
    """
    features = len(information)
    if information.shape != (features, features) or root.dim() != 2 or len(root) != features or not features:
        shapes = f"{tuple(information.shape)} and {tuple(root.shape)}"
        raise InputError(f"information and root: got shapes {shapes}, expected (d, d) and (d, k)")
    if not (information.isfinite().all() and root.isfinite().all()):
        raise InputError("information and root: got values that are not finite; a network without finite gradients?")
    if not all(std > 0 for std in stds):
        raise InputError(f"stds: got {list(stds)}, expected standard deviations > 0")
    wide, along = information.double(), root.double()
    eigenvalues, directions = torch.linalg.eigh(along.T @ wide @ along)
    variances, eigenvalues = (along @ directions).square().sum(0), eigenvalues.clamp_min(0)
    return [float((variances / (1 + eigenvalues / std**2)).sum() / features) ** 0.5 for std in stds]
