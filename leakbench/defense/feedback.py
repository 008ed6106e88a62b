"""Top-k with error feedback: what a local iteration does not send is added to the next one."""

from __future__ import annotations

import dataclasses
from typing import Annotated, ClassVar

from pydantic import Field

from leakbench.core.part import part
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.guess import surviving
from leakbench.defense.prune import PruneThreshold
from leakbench.defense.transform import Transform

__all__ = ["TopKFeedback"]

HELD = "held_back."
"""Start of the names of what is remembered."""

SENT_LATER = (
    "a later local iteration sends what an earlier one held back of an example, so that the bound of one does not hold"
)


@part("transform.top_k_feedback")
class TopKFeedback:
    """Send the `share` of coordinates with the largest magnitude, and add all others to the gradient of the next local iteration.

    Mem-SGD (Stich et al., NeurIPS 2018, Algorithm 1), with a constant learning rate, which then has no effect on the selection. It
    keeps everything within a round: the memory starts at zero in every round, and what it holds after the last local iteration
    is lost. A client's memory over several rounds does not exist in leakbench.
    """

    stations: ClassVar[tuple[str, ...]] = ("batch",)
    stateful: ClassVar[bool] = True

    share: Annotated[float, Field(gt=0, le=1, description="Share of the coordinates to send, in (0, 1].")]

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Send and remember; `sensitivity` stays and nothing is random."""
        held = {} if clock.local_iteration == 0 else signal.memory
        whole = {n: g + held[HELD + n] if HELD + n in held else g for n, g in signal.grads.items()}
        pruned = PruneThreshold(share=1 - self.share)(dataclasses.replace(signal, grads=whole), clock, rngs).grads
        after = signal.replace(pruned, signal.sensitivity, Fact("other", reason=SENT_LATER))
        others = {n: m for n, m in signal.memory.items() if not n.startswith(HELD)}
        last = clock.local_iteration + 1 >= clock.local_iterations
        rest = {} if last else {HELD + n: g - pruned[n] for n, g in whole.items()}
        return dataclasses.replace(after, memory={**others, **rest})

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess: the mask of the leaked gradient."""
        return surviving(self, seen)
