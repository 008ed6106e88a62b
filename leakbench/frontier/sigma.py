"""How much noise a defense adds, as its recipe says it: the multipliers of its transforms."""

from __future__ import annotations

from typing import Any

from leakbench.decay import Scaled
from leakbench.defense import Defense

__all__ = ["sigma_of"]


def sigma_of(defense: Defense) -> str:
    """Return the noise multipliers, as `0.6`; of a schedule its name and ends, as `exponential 1.5 to 0.485`; empty for none."""
    multipliers = [getattr(transform, "multiplier", None) for transform in defense.stations.transforms]
    found = [_said(multiplier) for multiplier in multipliers if multiplier is not None]
    return " and ".join(dict.fromkeys(found))


def _said(multiplier: Any) -> str:
    if not callable(multiplier):
        return f"{multiplier:g}"
    scaled = isinstance(multiplier, Scaled)
    curve, factor = (multiplier.decay, multiplier.factor) if scaled else (multiplier, 1.0)
    ends = [getattr(curve, end) * factor for end in ("start", "end") if hasattr(curve, end)]
    name = type(curve).__name__.lower()
    if ends:
        return f"{name} {' to '.join(f'{end:g}' for end in ends)}"
    return f"{name} x {factor:g}" if factor != 1 else name
