"""Whether reconstructed sentences prove themselves: their gradient is the observed update."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.external.assumptions import ALIKE, distance_of_guess, rounding_of
from leakbench.federated.view import View

__all__ = ["certified"]

EXACT = 1e-6
"""Share of an update's length that the rounding of single precision changes, in the sums of a gradient."""


def certified(view: View, answer: Reconstruction) -> Tensor:
    """Return whether the gradient of each victim's sentences equals its update up to rounding, (V,) bool.

    Sentences are discrete: another batch with the same gradient is not expected. This does not hold for pictures, which may differ
    although their gradients are close.

    Args:
        view: The view of V victims, with the defense if the attacker knows it.
        answer: The reconstructed sentences. A batch with a missing sentence is not certified.
    """
    there = answer.inputs.isfinite().flatten(1).all(1) & (answer.labels >= 0).all(1)
    if not there.any():
        return there
    sent = torch.stack([u.flatten(1).abs().amax(1) for u in view.update.values()]).amax(0) > 0
    try:
        apart, _, _ = distance_of_guess(view, answer.inputs.nan_to_num(), answer.labels.clamp_min(0))
    except InputError:  # The defense makes a choice that depends on more than a guess.
        return torch.zeros_like(there)
    # The weights before and after training are rounded, so that their difference is rounded by more than a gradient.
    share = 2 * rounding_of(view).share if view.knowledge.reads != "gradient" else torch.zeros_like(apart)
    # One wrong token changes the mean gradient of M sentences by a share that falls with M.
    return there & sent & (apart <= share.clamp(EXACT, max(EXACT, ALIKE / view.examples)))
