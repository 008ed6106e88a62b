"""Where to cut a feature of the last layer, so that about one example of a class lies on the one side of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["Cut", "likeliest_cut", "once"]

Share = TypeVar("Share", float, Tensor)

FLAT = 0.01
"""A feature whose deviation is a smaller share of the largest one's is left out: its values are no more than rounding apart."""


def once(mine: Share, others: Share, many: int) -> Share:
    """Return the chance that of `many` examples one is of a kind with this share, and none of another with the share `others`."""
    return many * mine * (1 - mine - others) ** (many - 1)


@dataclass(frozen=True)
class Cut:
    """Below z = side h_f / deviation - at = 0 an example of the class is caught, above it one of the others.

    Args:
        feature: f.
        side: 1 or -1.
        deviation: Of the feature.
        chance: See `once`.
    """

    feature: int
    side: float
    deviation: float
    at: float
    chance: float


def likeliest_cut(known: Tensor, mine: Tensor, share: float, many: int) -> Cut:
    """Return the cut of features (P, d) by which exactly one catch among `many` examples, of the class, is likeliest.

    mine (P,): which of the P are of the class, some and not all.

    Args:
        share: Of the class in a batch. A cut lies in the middle between two neighbouring values that differ.
    """
    ordered, order = known.sort(0)
    below = mine[order].float().cumsum(0)[:-1]  # Counts up to 2^24 are exact.
    before = torch.arange(1, len(known), device=known.device)[:, None]
    own, other = below / mine.sum(), (before - below) / (~mine).sum()
    deviation = known.std(0)
    possible = (ordered[1:] > ordered[:-1]) & (deviation > FLAT * deviation.max())
    low = once(share * own, (1 - share) * (1 - other), many)
    high = once(share * (1 - own), (1 - share) * other, many)
    chances = torch.stack([low, high]).masked_fill(~possible, -1.0)
    best = int(chances.argmax())
    (which, cut), f = divmod(best // known.shape[1], len(before)), best % known.shape[1]
    side, middle = (1.0, -1.0)[which], float(ordered[cut : cut + 2, f].double().mean())
    spread = float(deviation[f]) or 1.0
    return Cut(f, side, spread, side * middle / spread, float(chances.flatten()[best]))
