"""Randomness: one generator for each purpose, derived from the seed, so that adding noise never moves the data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from leakbench.types import Generators

__all__ = ["generator", "generators", "normal"]


def generator(seed: int, purpose: str, *indices: int) -> torch.Generator:
    """Return the generator of one purpose (`"noise"`, `"batches"`, ...) and, say, one round and client.

    Generators live on the CPU whatever the device of the computation, so that every device sees the same numbers.
    """
    text = "/".join([str(seed), purpose, *map(str, indices)])
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def generators(seed: int, purpose: str, indices: Iterable[tuple[int, ...]]) -> Generators:
    """Return one generator a lane."""
    return tuple(generator(seed, purpose, *index) for index in indices)


def normal(like: Tensor, rngs: Generators | None, members: int) -> Tensor:
    """Return standard normal noise (lanes, members, *p) for `like` (lanes, *, *p): each lane draws from its own generator.

    Zero where `rngs` is None: the deterministic part of a defense, as an attacker runs it on a guess.
    """
    if rngs is None:
        return like.new_zeros(like.shape[0], members, *like.shape[2:])
    if len(rngs) != like.shape[0]:
        raise ValueError(f"rngs: got {len(rngs)} generators, expected one for each of {like.shape[0]} lanes")
    drawn = torch.empty(len(rngs), members, *like.shape[2:], dtype=like.dtype)
    for lane, rng in zip(drawn, rngs, strict=True):
        lane.normal_(generator=rng)
    return drawn.to(like.device)
