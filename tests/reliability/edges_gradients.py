"""Degenerate gradients that replace a plain one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["FINITE", "KINDS", "NOT_FINITE", "made"]

FINITE = ("plain", "zero", "constant", "huge", "tiny")
NOT_FINITE = ("nan", "infinite", "one coordinate nan")
KINDS = (*FINITE, *NOT_FINITE)


def made(kind: str, shapes: Mapping[str, tuple[int, ...]], lead: tuple[int, ...], seed: int = 0) -> dict[str, Tensor]:
    """Return {p: (*lead, *p)} of one kind; squares of coordinates of `huge` and `tiny` leave single precision's range."""
    rng = torch.Generator().manual_seed(seed)
    plain = {n: torch.randn(*lead, *shape, generator=rng) for n, shape in shapes.items()}
    times = {"zero": 0.0, "huge": 1e25, "tiny": 1e-25, "nan": math.nan, "infinite": math.inf}
    if kind in times:
        return {n: g * times[kind] for n, g in plain.items()}
    if kind == "constant":
        return {n: torch.full_like(g, 0.5) for n, g in plain.items()}
    if kind == "one coordinate nan":
        first = next(iter(plain))
        plain[first].reshape(*lead, -1)[..., 0] = math.nan
    return plain
