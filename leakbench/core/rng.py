"""Randomness: one generator for each purpose, derived from the seed, so that noise does not change the drawn data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from leakbench.core.types import Generators

__all__ = ["generator", "generators", "normal", "together", "uniform"]


def generator(seed: int, purpose: str, *indices: int) -> torch.Generator:
    """Return the generator of one purpose (`"noise"`, `"batches"`, ...) and indices, such as a round and a client.

    Generators are on the CPU for every device of the computation, so that all devices use the same numbers (but see `together`).
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


def together(rngs: Generators, device: torch.device) -> Generators:
    """Return generators for noise that is drawn on the device: on a GPU one for all lanes, else the lanes' own.

    The distribution is the same, but the numbers differ from those of a CPU, and depend on which lanes draw together. Drawing each
    lane's noise on the CPU takes several times as long as the rest of a training step on a GPU.

    Args:
        rngs: One generator per lane, at least one. On a GPU the first one gives the seed, and none of them advances.
    """
    if device.type != "cuda":
        return rngs
    return (torch.Generator(device).manual_seed(rngs[0].initial_seed()),) * len(rngs)


def uniform(like: Tensor, rngs: Generators | None, members: int) -> Tensor:
    """Return uniform numbers in [0, 1], (lanes, members, *p), from the draws of `normal`; 1/2 without generators."""
    # The normal distribution function makes a uniform number of a normal one.
    found: Tensor = torch.special.ndtr(normal(like, rngs, members))
    return found


def normal(like: Tensor, rngs: Generators | None, members: int) -> Tensor:
    """Return standard normal noise (lanes, members, *p), each lane from its own generator; lanes that share one draw together.

    Args:
        like: (lanes, *, *p), a tensor with the shape, type and device of the noise.
        rngs: One generator per lane; None for zeros, as in the deterministic part of a defense on an attacker's guess.
        members: Number of members of each lane.
    """
    if rngs is None:
        return like.new_zeros(like.shape[0], members, *like.shape[2:])
    if len(rngs) != like.shape[0]:
        raise ValueError(f"rngs: got {len(rngs)} generators, expected one for each of {like.shape[0]} lanes")
    drawn = torch.empty(len(rngs), members, *like.shape[2:], dtype=like.dtype, device=rngs[0].device)
    if all(rng is rngs[0] for rng in rngs):
        return drawn.normal_(generator=rngs[0]).to(like.device)
    for lane, rng in zip(drawn, rngs, strict=True):
        lane.normal_(generator=rng)
    return drawn.to(like.device)
