"""Randomness: one generator for each purpose, derived from the seed, so that noise does not change the drawn data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor

from leakbench.core.types import Generators

__all__ = ["drawn_on", "generator", "generators", "keyed", "normal", "uniform"]


def generator(seed: int, purpose: str, *indices: int) -> torch.Generator:
    """Return the generator of one purpose (`"noise"`, `"batches"`, ...) and indices, such as a round and a client.

    Generators are on the CPU for every device of the computation, so that all devices use the same numbers (but see `drawn_on`).
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


class _Keyed(tuple[torch.Generator, ...]):
    """The lanes' generators; their normal numbers come from a counter-based generator on a device, see `drawn_on`."""

    keys: Tensor
    draws: int

    def normal(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the lanes' next standard normal numbers."""
        from torch.func import _random as counted  # noqa: PLC0415 - absent from older versions of PyTorch

        keys = counted.fold_in(self.keys, self.draws)
        self.draws += 1
        found: Tensor = counted.normal(keys.reshape(len(self), *[1] * (len(shape) - 1), 2), shape, dtype=dtype)
        return found


def drawn_on(rngs: Generators, device: torch.device) -> Generators:
    """Return the same generators, from which `normal` draws on the device if it is a GPU; else on the CPU, as before.

    Drawing each lane's noise on the CPU takes several times as long as the rest of a training step on a GPU. There, a
    counter-based generator (Philox, Salmon et al., SC 2011) draws it, with a key for each lane and a count of the draws. So a
    lane's numbers do not depend on the lanes that are computed together. The distribution is that of the CPU, the numbers are not.
    PyTorch 2.14 has this generator; with a version that lacks it, the noise is drawn on the CPU.

    Args:
        rngs: One generator per lane. Each draws its key, so that it gives other keys later.
    """
    return keyed(rngs, device) if device.type == "cuda" and hasattr(torch.ops.aten, "_philox_normal_") else rngs


def keyed(rngs: Generators, device: torch.device) -> Generators:
    """Return the same generators, from which `normal` draws on the device by a counter-based generator."""
    found = _Keyed(rngs)
    seeds = [[int(torch.randint(2**62, (), generator=rng)), 0] for rng in rngs]
    found.keys, found.draws = torch.tensor(seeds, dtype=torch.uint64, device=device), 0
    return found


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
    shape = (like.shape[0], members, *like.shape[2:])
    if rngs is None:
        return like.new_zeros(shape)
    if len(rngs) != like.shape[0]:
        raise ValueError(f"rngs: got {len(rngs)} generators, expected one for each of {like.shape[0]} lanes")
    if isinstance(rngs, _Keyed):
        return rngs.normal(shape, like.dtype)
    drawn = torch.empty(shape, dtype=like.dtype)
    if all(rng is rngs[0] for rng in rngs):
        return drawn.normal_(generator=rngs[0]).to(like.device)
    for lane, rng in zip(drawn, rngs, strict=True):
        lane.normal_(generator=rng)
    return drawn.to(like.device)
