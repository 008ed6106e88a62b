"""A case: one question to a scorer, and what it must answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from leakbench.conformance.contract import Answer, Truth
from leakbench.conformance.known import Known

__all__ = ["Case", "case"]


@dataclass(frozen=True, eq=False)
class Case:
    """One question to a scorer.

    name: `measure: what`. why: one sentence. known: {measure: known answer}; judged by all that the scorer returns.
    skipped: why it cannot be asked on this machine; empty where it can.
    """

    name: str
    why: str
    truth: Truth
    answer: Answer
    known: Mapping[str, Known] = field(default_factory=dict)
    skipped: str = ""

    @property
    def measure(self) -> str:
        """What the case is about."""
        return self.name.partition(":")[0]


def case(
    name: str,
    why: str,
    truth: NDArray[np.float32],
    answer: NDArray[np.float32],
    known: Mapping[str, Known],
    labels: tuple[list[list[int]], list[list[int]]] | None = None,
) -> Case:
    """Return the case of pictures (V, B, C, H, W), with labels (truth, answer) (V, B); where none are given, right ones."""
    numbers = np.arange(truth.shape[0] * truth.shape[1]).reshape(truth.shape[:2])
    real, said = (np.asarray(x, dtype=np.int64) for x in labels or (numbers, numbers))
    return Case(name, why, {"inputs": truth, "labels": real}, {"inputs": answer, "labels": said}, known)
