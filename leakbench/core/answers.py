"""The results of an attack: reconstructions of the victims' examples, or a ranking of hypotheses.

Letters: V lanes of victims, M examples behind one update, `*s` the shape of one input.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Fit", "Ranking", "Reconstruction"]


@dataclass(frozen=True)
class Fit:
    """The training of an attack that learns.

    Args:
        seconds: Wall time.
        public: Number of examples for the training.
    """

    seconds: float
    public: int


@dataclass(frozen=True)
class Reconstruction:
    """The attacker's reconstruction of the victims' examples, without the truth.

    Args:
        inputs: (V, M, *s) in [0, 1]; NaN without a reconstruction.
        labels: (V, M) int64.
        certainty: (V, M), higher is more certain.
        trajectory: (iterations, V), the distance after each iteration; NaN after the end of a victim's search.
        steps: (V,), the number of iterations.
        evaluations: (V,), the number of gradient evaluations.
        iterates: (snapshots, V, M, *s), the best input so far by the attacker's distance, at the iterations in `snapshots`; the
            scores of these are computed outside the attack.
        spent: (snapshots, V), the number of gradient evaluations until each of `snapshots`.
        fit: The training for all V victims; None for an attack that does not learn.
        stage: (V,) int64, the index in `stages` of the stage of each reconstruction, -1 without a reconstruction; None for a method
            without stages.
        not_begun: Names of the stages that a time limit skipped.
        targets: (V, M, k), the targets of a network that does not name classes (`leakbench.core.task.Heads`), NaN without an
            answer; None for classes, and for an attack that does not infer them. `labels` are then -1.
        doubts: {a key of `leakbench.attack.doubts`, a reason why the attack may be weak: (V,) bool}.
    """

    inputs: Tensor
    labels: Tensor
    certainty: Tensor
    trajectory: Tensor
    steps: Tensor
    evaluations: Tensor
    iterates: Tensor
    snapshots: tuple[int, ...]
    spent: Tensor
    fit: Fit | None = None
    stage: Tensor | None = None
    stages: tuple[str, ...] = ()
    not_begun: tuple[str, ...] = ()
    doubts: dict[str, Tensor] = field(default_factory=dict)
    targets: Tensor | None = None


@dataclass(frozen=True)
class Ranking:
    """An attacker's log-scores of k hypotheses.

    Args:
        scores: (V, k); the hypothesis with the highest score is the attacker's choice.
        parts: {name: number of hypotheses} of several questions with concatenated scores; {} for one question.
    """

    scores: Tensor
    parts: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> Ranking:
        """Return the ranking of one question; the whole ranking if it has only one."""
        if not self.parts:
            return self
        before = sum(list(self.parts.values())[: list(self.parts).index(name)])
        return Ranking(self.scores[:, before : before + self.parts[name]])
