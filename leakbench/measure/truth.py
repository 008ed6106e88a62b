"""What answers are scored by: what really stood behind what leaked."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Truth"]


@dataclass(frozen=True)
class Truth:
    """What really stood behind what leaked, of the victims `lanes` (V,): inputs (V, M, *s), labels and examples (V, M).

    `lanes` are the victims' positions among all victims of the cell; own (V,) those of their first examples among the candidates.
    """

    lanes: Tensor
    inputs: Tensor
    labels: Tensor
    examples: Tensor
    own: Tensor
