"""A truth that lies among the public examples: no attacker of private data has these, so that they are left out."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.errors import InputError
from leakbench.federated.view import Public

__all__ = ["without_truth"]

SAME = 1e-4
"""How far apart two inputs in [0, 1] may be, by rounding as of a normalisation that was undone, and be the same example."""


def without_truth(public: Public, inputs: Tensor | None) -> tuple[Public, int]:
    """Return the public examples that are none of the inputs (V, M, *s), and how many were left out.

    Raises InputError where none is left.
    """
    if inputs is None:
        return public, 0
    held, truth = public.inputs.flatten(1), inputs.flatten(0, 1).flatten(1)
    means, kept = held.mean(1), torch.ones(len(held), dtype=torch.bool)
    for one in truth.to(held):
        # Examples are no farther apart in the mean than anywhere.
        near = ((means - one.mean()).abs() <= 2 * SAME).nonzero()[:, 0]
        kept[near[(held[near] - one).abs().amax(1) <= SAME]] = False
    if not bool(kept.any()):
        raise InputError(f"dataset: all of its {len(kept)} public examples are the truth's own; expected another one")
    left_out = len(kept) - int(kept.sum())
    return (Public(public.inputs[kept], public.labels[kept]) if left_out else public), left_out
