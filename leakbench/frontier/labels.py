"""Places for labels beside what they name, so that none lies on another."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["spread"]


def spread(wanted: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Return a height for each label, near the wanted one, at least `apart` from its neighbours, between `low` and `high`.

    The labels keep their order. Where they do not all fit, they share the room evenly.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    apart = min(apart, (high - low) / max(1, len(wanted) - 1)) if len(wanted) > 1 else apart
    placed: list[float] = []
    for i in order:
        least = placed[-1] + apart if placed else low
        placed.append(max(wanted[i], least))
    # What was pushed over the upper end goes back, and pushes those below it.
    most = high
    for place in reversed(range(len(placed))):
        placed[place] = min(placed[place], most)
        most = placed[place] - apart
    found = [0.0] * len(wanted)
    for place, i in enumerate(order):
        found[i] = placed[place]
    return found
