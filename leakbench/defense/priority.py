"""Priority-based noise: more of NbAFL's noise on the first-layer weights of some input features, chosen by their importance.

M. Talaei and I. Izadi, "Adaptive Differential Privacy in Federated Learning: A Priority-Based Approach", arXiv 2401.02453, 2024.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic_core import PydanticCustomError
from torch import Tensor

from leakbench.defense.importance import IMPORTANCE, Importance, first_weight
from leakbench.defense.nbafl import Calibrated, clip_weights
from leakbench.part import Fraction, Positive, part
from leakbench.rng import normal
from leakbench.types import Clock, Fact, Generators, Signal

__all__ = ["PriorityNoise", "chosen"]


def chosen(importance: Tensor, share: float, which: str, rngs: Generators | None) -> Tensor:
    """Return the mask (lanes, features) of the floor(share * features) least or most important features of each lane.

    Features of equal importance stand in a random order, by the lane's own generator, or in the model's where there is none. Least
    and most are the two ends of one order, so that they are disjoint for a share of at most a half.
    """
    features = importance.shape[1]
    many = math.floor(share * features + 1e-9)  # .29 * 100 is 28.999999999999996.
    shuffled = normal(importance[:, None], rngs, 1)[:, 0].argsort(dim=1, stable=True)
    order = shuffled.gather(1, importance.gather(1, shuffled).argsort(dim=1, stable=True))
    picked = order[:, :many] if which == "least" else order[:, features - many :]
    return torch.zeros_like(importance, dtype=torch.bool).scatter(1, picked, True)


@part("transform.priority_noise")
class PriorityNoise:
    """Add NbAFL's uplink noise with a lower epsilon for some first-layer weights. Client station.

    The client ranks the input features of its local model, clips its weights, and adds noise of sigma_U (eq. 4) at
    `calibration.epsilon`. First-layer weights that leave a selected feature get it at `epsilon_selected`.
    """

    reads_network: ClassVar[bool] = True

    importance: Annotated[Importance, IMPORTANCE]
    share: Annotated[Fraction, Field(description="p, of all features, rounded down.")]
    which: Annotated[
        Literal["least", "most"], Field(description="The `least` or the `most` important ones get more noise.")
    ]
    calibration: Calibrated
    epsilon_selected: Annotated[
        Positive, Field(description="At most `calibration.epsilon`; equal to it, this is NbAFL.")
    ]

    def __post_init__(self) -> None:
        if self.epsilon_selected > self.calibration.epsilon:
            text = (
                f"epsilon_selected: got {self.epsilon_selected}, expected at most epsilon, {self.calibration.epsilon}"
            )
            raise PydanticCustomError("slot", "{text}", {"text": text})

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Rank, clip and add noise; raises InputError where the first layer is not fully connected."""
        first = first_weight(signal)
        clipped = clip_weights(signal, self.calibration.norm)
        std, more = (self.calibration.uplink(clock, e) for e in (self.calibration.epsilon, self.epsilon_selected))
        grads = clipped.grads
        if rngs is not None:  # Who runs the deterministic part needs no ranking: it decides about noise alone.
            mask = chosen(self.importance(signal, std), self.share, self.which, rngs)
            scale = {n: g.new_full((), std) for n, g in grads.items()}
            scale[first] = torch.where(mask, more, std)[:, None, None].to(grads[first])
            grads = {n: g + normal(g, rngs, g.shape[1]) * scale[n] for n, g in grads.items()}
        secret = (Fact("other", reason=self.importance.secret, raw=True),) if self.importance.secret else ()
        weakest = f"the larger noise on some weights does not count: the smallest stands for all, std {std:.4g}"
        facts = (*clipped.facts, *secret, Fact("noise", std=std, each=True, reason=weakest if self.share else ""))
        return dataclasses.replace(clipped, grads=grads, facts=facts)
