"""Randomness: one generator for each purpose, derived from the seed, so that noise does not change the drawn data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from leakbench.core.types import Generators

__all__ = ["generator", "generators", "normal"]


def generator(seed: int, purpose: str, *indices: int) -> torch.Generator:
    """Return the generator of one purpose (`"noise"`, `"batches"`, ...) and indices, such as a round and a client.

    Generators are on the CPU for every device of the computation, so that all devices use the same numbers.
    """
    text = "/".join([str(seed), purpose, *map(str, indices)])
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def generators(seed: int, purpose: str, indices: Iterable[tuple[int, ...]]) -> Generators:
    """Return one generator per lane.

    Args:
        indices: The indices of each lane.
    """
    return tuple(generator(seed, purpose, *index) for index in indices)


def normal(like: Tensor, rngs: Generators | None, members: int) -> Tensor:
    """Return standard normal noise (lanes, members, *p), each lane from its own generator.

    Args:
        like: (lanes, *, *p), a tensor with the shape, type and device of the noise.
        rngs: One generator per lane; None for zeros, as in the deterministic part of a defense on an attacker's guess.
        members: Number of members of each lane.
    """
    if rngs is None:
        return like.new_zeros(like.shape[0], members, *like.shape[2:])
    if len(rngs) != like.shape[0]:
        raise ValueError(f"rngs: got {len(rngs)} generators, expected one for each of {like.shape[0]} lanes")
    drawn = torch.empty(len(rngs), members, *like.shape[2:], dtype=like.dtype)
    for lane, rng in zip(drawn, rngs, strict=True):
        lane.normal_(generator=rng)
    return drawn.to(like.device)
