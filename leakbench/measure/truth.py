"""The examples behind the leaked updates, which reconstructions and rankings are compared with."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["VictimTruth"]


@dataclass(frozen=True)
class VictimTruth:
    """The examples behind the updates of the victims `lanes` (V,): inputs (V, M, *s), labels and examples (V, M).

    `lanes` are the victims' positions among all victims of the cell; own (V,) those of their first examples among the candidates.

    Args:
        shown: (k,) which training examples the candidates are; None where none of them can be another example of a victim's
            batch.
        answers: (V, M, k), the targets of a network that does not name classes (`leakbench.core.task.Heads`); None for classes.
    """

    lanes: Tensor
    inputs: Tensor
    labels: Tensor
    examples: Tensor
    own: Tensor
    shown: Tensor | None = None
    answers: Tensor | None = None

    @property
    def others(self) -> Tensor | None:
        """Which candidates (V, k) are other examples of the victim's batch, so that naming them would be right too."""
        if self.shown is None:
            return None
        members = (self.examples[:, :, None] == self.shown.to(self.examples)).any(1)
        return members.scatter(1, self.own[:, None].to(members.device), False)
