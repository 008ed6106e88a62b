"""What an attacker answers: the victims' examples, or a ranking of hypotheses.

Letters: V lanes of victims, M examples behind one update, `*s` the shape of one input.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["Fit", "Ranking", "Reconstruction"]


@dataclass(frozen=True)
class Fit:
    """What an attacker that learns did before it answered.

    Args:
        seconds: Of wall clock.
        public: How many examples it learned from.
    """

    seconds: float
    public: int


@dataclass(frozen=True)
class Reconstruction:
    """What an attacker says the victims' examples were; the attacker never held the truth.

    Args:
        inputs: (V, M, *s) in [0, 1]; NaN where there is no answer.
        labels: (V, M) int64.
        certainty: (V, M), higher is surer.
        trajectory: (iterations, V) distance after each iteration, NaN after a victim has ended.
        steps: (V,) iterations taken.
        evaluations: (V,) gradient evaluations.
        iterates: (snapshots, V, M, *s), the best input so far by the attacker's own distance, at the iterations in `snapshots`;
            scored outside the attacker.
        spent: (snapshots, V), those until each of `snapshots`.
        fit: What was learned for all V of them; None of an attacker that learns nothing.
        stage: (V,) int64, which of `stages` the answer comes from; None of a method without stages, -1 where there is no answer.
        not_begun: Names of the stages for which a budget left no time.
        doubts: {a key for why the attack may be weak, as in `leakbench.attack.doubts`: (V,) bool, for which victims}.
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


@dataclass(frozen=True)
class Ranking:
    """An attacker's log-scores over k hypotheses: scores (V, k), highest is the attacker's answer.

    Args:
        parts: {name: how many hypotheses it has}, of several questions whose scores stand side by side; {} of one question.
    """

    scores: Tensor
    parts: dict[str, int] = field(default_factory=dict)

    def of(self, name: str) -> Ranking:
        """Return the ranking of one of its questions; the whole where there is one."""
        if not self.parts:
            return self
        before = sum(list(self.parts.values())[: list(self.parts).index(name)])
        return Ranking(self.scores[:, before : before + self.parts[name]])
