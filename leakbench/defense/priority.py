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

from leakbench.core.part import Fraction, Positive, part
from leakbench.core.rng import normal
from leakbench.core.types import Clock, Fact, Generators, Signal
from leakbench.defense.importance import IMPORTANCE, Importance, first_weight
from leakbench.defense.nbafl import Calibrated, clip_weights

__all__ = ["PriorityNoise", "chosen"]


def chosen(importance: Tensor, share: float, which: str, rngs: Generators | None) -> Tensor:
    """Return the mask (lanes, features) of the floor(share * features) least or most important features of each lane.

    The lane's generator orders features of equal importance at random; without generators they keep the model's order. The least
    and the most important features are the two ends of one order, so they are disjoint for a share of at most 1/2.

    Args:
        importance: (lanes, features), higher is more important.
        share: In [0, 1].
        which: `least` or `most`.
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

    stations: ClassVar[tuple[str, ...]] = ("client",)

    reads_network: ClassVar[bool] = True

    importance: Annotated[Importance, IMPORTANCE]
    share: Annotated[
        Fraction, Field(description="Share p of the features that get more noise; their number is rounded down.")
    ]
    which: Annotated[
        Literal["least", "most"],
        Field(description="Whether the `least` or the `most` important features get more noise."),
    ]
    calibration: Calibrated
    epsilon_selected: Annotated[
        Positive,
        Field(description="Epsilon of the selected features, at most `calibration.epsilon`; if equal, this is NbAFL."),
    ]

    def __post_init__(self) -> None:
        if self.epsilon_selected > self.calibration.epsilon:
            text = (
                f"epsilon_selected: got {self.epsilon_selected}, expected at most epsilon, {self.calibration.epsilon}"
            )
            raise PydanticCustomError("slot", "{text}", {"text": text})

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Rank, clip and add noise; raises InputError if the first layer is not fully connected."""
        first = first_weight(signal)
        clipped = clip_weights(signal, self.calibration.norm)
        std, more = (self.calibration.uplink(clock, e) for e in (self.calibration.epsilon, self.epsilon_selected))
        grads = clipped.grads
        if rngs is not None:  # The deterministic part needs no ranking, which affects only the noise.
            mask = chosen(self.importance(signal, std), self.share, self.which, rngs)
            scale = {n: g.new_full((), std) for n, g in grads.items()}
            scale[first] = torch.where(mask, more, std)[:, None, None].to(grads[first])
            grads = {n: g + normal(g, rngs, g.shape[1]) * scale[n] for n, g in grads.items()}
        secret = (Fact("other", reason=self.importance.secret, raw=True),) if self.importance.secret else ()
        weakest = f"the larger noise on some weights does not count: the smallest, std {std:.4g}, is used for all"
        facts = (*clipped.facts, *secret, Fact("noise", std=std, each=True, reason=weakest if self.share else ""))
        return dataclasses.replace(clipped, grads=grads, facts=facts)
