"""What an attacker takes from public examples: the examples themselves, their mean and their spread."""

from __future__ import annotations

from torch import Tensor

from leakbench.errors import InputError
from leakbench.federated.view import Public, View

__all__ = ["FEW", "channel_moments", "public_of"]

FEW = 256
"""How many public examples a part reads that does not say how many it needs."""


def public_of(view: View, part: str, most: int = FEW) -> Public:
    """Return the view's first public examples, at most so many; raises InputError where `part`, which needs them, got none."""
    if view.public is None or not len(view.public.labels):
        raise InputError(f"public: got no public example, which {part!r} needs; choose a part that needs none")
    return view.public.first(most)


def channel_moments(public: Public) -> tuple[Tensor, Tensor]:
    """Return (mean, standard deviation) of each channel of public pictures, (C, 1, 1), or of each feature of a table, (F,).

    These are the constants with which training code standardises its inputs. 1 stands for a deviation of zero.
    """
    x = public.inputs
    over = (0, 2, 3) if x.dim() == 4 else (0,)
    mean, deviation = x.mean(over, keepdim=True)[0], x.std(over, correction=0, keepdim=True)[0]
    return mean, deviation.masked_fill(deviation == 0, 1.0)
