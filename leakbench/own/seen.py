"""What an attacker saw of updates that are no run's of leakbench: one leakage point, and the truth where it is known."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from leakbench.federated.view import View

__all__ = ["Seen", "Training"]


@dataclass(frozen=True)
class Training:
    """L local steps of B examples each at a learning rate, by `optimizer`, `sgd` or `adam`.

    Args:
        note: What an attacker who takes it so leaves out, a sentence a line; empty where nothing.
        mode: `eval` or `train`.
    """

    steps: int
    batch: int
    learning_rate: float
    optimizer: str = "sgd"
    note: str = ""
    mode: str = "eval"


@dataclass(frozen=True)
class Seen:
    """What leaked of V clients at one tap in one round.

    Args:
        view: Of them all. inputs (V, M, *s), labels (V, M): the truth; None where it is not known.
        training: How they trained.
        left_out: How many clients trained otherwise and are not attacked.
    """

    view: View
    inputs: Tensor | None
    labels: Tensor | None
    training: Training
    left_out: int
