"""Public examples that a part of an attack reads, and their moments."""

from __future__ import annotations

from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.federated.view import Public, View

__all__ = ["FEW", "channel_moments", "has_public", "public_of"]

FEW = 256
"""Number of public examples that a part reads by default."""


def has_public(view: View) -> bool:
    """Return whether a view has public examples."""
    return view.public is not None and len(view.public.labels) > 0


def public_of(view: View, part: str, most: int = FEW) -> Public:
    """Return the view's first public examples.

    Args:
        view: The view of the victims.
        part: Name of the part that needs them, for the message.
        most: Largest number of examples.

    Raises:
        InputError: If the view has no public examples.
    """
    if view.public is None or not len(view.public.labels):
        raise InputError(f"public: got no public example, which {part!r} needs; choose a part that needs none")
    return view.public.first(most)


def channel_moments(public: Public) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each channel of public images, or of each feature of a table.

    Training code standardises its inputs with these constants. A deviation of zero is replaced by 1.

    Returns:
        Two tensors (C, 1, 1) for images, (F,) for tables.
    """
    return public.once("channel moments", _moments)


def _moments(public: Public) -> tuple[Tensor, Tensor]:
    x = public.inputs
    over = (0, 2, 3) if x.dim() == 4 else (0,)
    mean, deviation = x.mean(over, keepdim=True)[0], x.std(over, correction=0, keepdim=True)[0]
    return mean, deviation.masked_fill(deviation == 0, 1.0)
