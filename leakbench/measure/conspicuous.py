"""What a client can see of the model that it was sent: statistics of its weights and of one batch's per-example gradients.

Each statistic is one number per lane, and NaN where it is not defined. Compare it with honest models of the same round and batch
size (`percentile`): none of the statistics reveals a malicious server by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from leakbench.core.types import Parameters

__all__ = [
    "STATISTICS",
    "architecture_changed",
    "d_snr",
    "lit",
    "lit_alone",
    "percentile",
    "rows_alike",
    "weight_names",
    "weight_norms",
]

STATISTICS = ("architecture", "rows_alike", "d_snr", "lit_alone", "loss")

MOST_ROWS = 2048
"""Of more rows of a layer evenly spaced ones are compared, since pairs grow with the square."""


def weight_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the weights of linear layers and convolutions, in the model's order."""
    kinds = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
    layers = (name for name, module in model.named_modules() if isinstance(module, kinds))
    return tuple(f"{name}.weight" if name else "weight" for name in layers)


def architecture_changed(honest: Parameters, sent: Parameters) -> bool:
    """Say whether names or shapes of the parameters sent are not those of the honest network."""
    return {n: p.shape for n, p in honest.items()} != {n: p.shape for n, p in sent.items()}


def rows_alike(weights: Mapping[str, Tensor]) -> Tensor:
    """Return (lanes,), in [0, 1]: the mean |cosine| between two rows of a layer, the largest over layers.

    Args:
        weights: {name: (lanes, rows, *p)}. A row of zeros is like no other. A layer of one row, or of rows of one number, which
            are always alike, does not count.
    """
    counted = [w.flatten(2) for w in weights.values() if w.shape[1] > 1 and w[0, 0].numel() > 1]
    like = next(iter(weights.values()), torch.zeros(1))
    evenly = (rows[:, :: -(-rows.shape[1] // MOST_ROWS)] for rows in counted)
    return _largest((_alike(rows) for rows in evenly), like.new_zeros(len(like)))


def _alike(rows: Tensor) -> Tensor:
    unit, many = normalize(rows, dim=2), rows.shape[1]
    cosines = (unit @ unit.mT).abs()
    return (cosines.sum((1, 2)) - cosines.diagonal(dim1=1, dim2=2).sum(1)) / (many * (many - 1))


def weight_norms(grads: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return {name: (lanes, members)}, the L2 norms of the named gradients (lanes, members, *p)."""
    return {name: grads[name].flatten(2).norm(dim=2) for name in names}


def d_snr(norms: Mapping[str, Tensor], real: Tensor) -> Tensor:
    """Return (lanes,): the largest over layers of max_i |g_i| / sum over the others |g_j| (Garov et al., arXiv:2306.03013, D-SNR).

    Args:
        norms: {name: (lanes, members)} of one batch's per-example gradients.
        real: (lanes, members), false for padding, whose norm is zero.

    Returns:
        (lanes,), at least 1 / (B - 1) and at most 1 / epsilon of the floating type, since smaller sums of the other gradients
        cannot be distinguished from zero. NaN for fewer than two examples, and where all gradients are zero.
    """
    found = []
    for each in norms.values():
        ordered = each.sort(dim=1).values
        largest, others = ordered[:, -1], ordered[:, :-1].sum(1)
        found.append(largest / others.maximum(torch.finfo(each.dtype).eps * largest))
    return _of_several(found, real)


def lit(grads: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return {bias: (lanes, members, rows)}, whether an example lights a row: its gradient of the row's bias is not zero."""
    return {name: grads[name] != 0 for name in names}


def lit_alone(by_whom: Mapping[str, Tensor], real: Tensor) -> Tensor:
    """Return (lanes,), in [0, 1]: among a layer's rows that some example lights, the share that exactly one lights.

    The largest share over layers counts.

    Args:
        by_whom: As `lit` returns it, of layers before a ReLU or hardtanh (`leakbench.models.gates`).
        real: As in `d_snr`.

    Returns:
        NaN for fewer than two examples, without such a layer, and where no row is lit.
    """
    counts = [rows.sum(1) for rows in by_whom.values()]
    return _of_several([(many == 1).sum(1) / (many > 0).sum(1) for many in counts], real)


def _of_several(found: Iterable[Tensor], real: Tensor) -> Tensor:
    several = real.sum(1) > 1
    largest = _largest(found, several.to(torch.get_default_dtype()))
    return torch.where(several, largest, torch.nan)


def _largest(found: Iterable[Tensor], lanes: Tensor) -> Tensor:
    """Return the largest of values (lanes,) that is a number, NaN where none is."""
    largest = torch.full_like(lanes, -torch.inf)
    for values in found:
        largest = largest.maximum(values.nan_to_num(nan=-torch.inf).to(largest))
    return torch.where(largest.isneginf(), torch.nan, largest)


def percentile(value: float, honest: Iterable[float]) -> float | None:
    """Return the share of honest values, in percent, that are below a value; equal ones count half.

    Honest values that are NaN are left out. None if the value is NaN, or if no honest value is left.
    """
    known = [each for each in honest if not math.isnan(each)]
    if math.isnan(value) or not known:
        return None
    return 100 * sum((each < value) + (each == value) / 2 for each in known) / len(known)
