"""Chooses a threshold of a last-layer feature such that about one example of a class is on one side of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

__all__ = ["Cut", "likeliest_cut", "once"]

Share = TypeVar("Share", float, Tensor)

FLAT = 0.01
"""A feature whose deviation is below this share of the largest one is left out, since its values may differ only by rounding."""


def once(mine: Share, others: Share, many: int) -> Share:
    """Return the probability that one of `many` examples is of a kind with share `mine`, and none of a kind with share `others`."""
    return many * mine * (1 - mine - others) ** (many - 1)


@dataclass(frozen=True)
class Cut:
    """A threshold of a feature h_f. With z = side h_f / deviation - at, z < 0 catches the class, and z > 0 catches other classes.

    Args:
        feature: f.
        side: 1 or -1.
        deviation: Standard deviation of the feature.
        at: The threshold in deviations.
        chance: Probability of exactly one catch, of the class (see `once`).
    """

    feature: int
    side: float
    deviation: float
    at: float
    chance: float


def likeliest_cut(known: Tensor, mine: Tensor, share: float, many: int) -> Cut:
    """Return the cut with the largest probability of exactly one catch, of the class, among `many` examples.

    A cut is in the middle between two neighbouring values that differ.

    Args:
        known: Features (P, d) of public examples.
        mine: (P,) bool, which of them are of the class; some, but not all.
        share: Share of the class in a batch.
        many: Number of examples in a batch.
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
