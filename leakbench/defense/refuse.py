"""Refusal: a client sends zeros instead of its gradient if the received model is conspicuous."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import Count, Fraction, Positive, part
from leakbench.core.types import Clock, Fact, Generators, Local, Parameters, Signal
from leakbench.defense.transform import Transform
from leakbench.measure.conspicuous import d_snr, lit, lit_alone, rows_alike, weight_names, weight_norms
from leakbench.models.gates import gated_biases

__all__ = ["RefuseConspicuous", "Refused"]

NAME = "refuse_conspicuous"

OF_THE_BATCH = "a refusal depends on the whole private batch: one example can decide whether all others are sent"


@part("transform.refuse_conspicuous")
class RefuseConspicuous:
    """Set all members of a lane to zero if its network or batch differs from those of an honest server.

    The part refuses if any of three measures of `leakbench.measure.conspicuous` exceeds its threshold. The default thresholds are
    above the 99th percentiles of honest models at B = 8 (results/servers/conspicuous.md).

    It judges each local iteration separately, by its network and its batch. A refused iteration does not change the model, so a
    model with similar rows is refused in every iteration. Nothing is random.
    """

    stations: ClassVar[tuple[str, ...]] = ("example",)

    rows_alike: Annotated[
        Fraction | None, Field(description="Threshold of the measure `rows_alike`; None does not check it.")
    ] = 0.5
    d_snr: Annotated[
        Positive | None, Field(description="Threshold of the measure `d_snr`; None does not check it.")
    ] = 5.0
    lit_alone: Annotated[
        Fraction | None, Field(description="Threshold of the measure `lit_alone`; None does not check it.")
    ] = 0.36
    least: Annotated[
        Count,
        Field(
            description=(
                "Smallest batch whose `d_snr` and `lit_alone` are checked: in a smaller one, a single example outweighs the others "
                "and activates rows alone in any network."
            )
        ),
    ] = 8

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Refuse or not, lane by lane; `sensitivity` stays.

        Raises:
            InputError: If the part is not the first one at the `example` station, where it sees unchanged single gradients.
        """
        local = signal.local
        if local is None or local.inputs.shape[1] != signal.members:
            raise InputError(f"{NAME}: it judges the gradients of single examples; put it at the example station")
        if signal.facts:
            raise InputError(f"{NAME}: it judges gradients that nothing has changed yet; put it first at its station")
        reason = OF_THE_BATCH if self.d_snr is not None or self.lit_alone is not None else ""
        real = local.inputs.new_ones(signal.lanes, signal.members) if local.weights is None else local.weights
        real = real > 0
        refused = self.refuses(self._statistics(signal.grads, local, real), real.sum(1))
        return signal.replace(_without(signal.grads, refused), signal.sensitivity, Fact("other", reason=reason))

    def refuses(self, statistics: Mapping[str, Tensor], many: Tensor) -> Tensor:
        """Return (lanes,), whether any statistic exceeds its threshold; NaN does not.

        Args:
            statistics: {name of a threshold: (lanes,)}.
            many: (lanes,), the number of examples in each lane's batch.
        """
        refused = torch.zeros_like(many, dtype=torch.bool)
        for name, values in statistics.items():
            threshold = getattr(self, name)
            if threshold is not None:
                refused = refused | ((values > threshold) & ((many >= self.least) | (name == "rows_alike")))
        return refused

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return the transform that the attacker runs on a guess: lanes whose leaked gradient is not zero were not refused."""
        nothing = torch.stack([(u.flatten(1) == 0).all(1) for u in seen.values()]).all(0)
        return Refused(nothing)

    @torch.no_grad()
    def _statistics(self, grads: Parameters, local: Local, real: Tensor) -> dict[str, Tensor]:
        """Return {name: (lanes,)} for the measures that have a threshold.

        Args:
            real: (lanes, members), false for padding.
        """
        network, values = local.network, dict[str, Tensor]()
        names = tuple(n for n in weight_names(network.model) if n in grads)  # Frozen weights have no gradient.
        if self.rows_alike is not None:
            sent = {n: network.parameters[n] for n in names}
            values["rows_alike"] = rows_alike({n: w[None] for n, w in sent.items()} if network.shared else sent)
        if not (real.sum(1) >= self.least).any():
            return values
        if self.d_snr is not None:
            values["d_snr"] = d_snr(weight_norms(grads, names), real)
        if self.lit_alone is not None:
            gates = tuple(n for n in gated_biases(network.model, tuple(local.inputs.shape[2:])) if n in grads)
            values["lit_alone"] = lit_alone(lit(grads, gates), real)
        return values


@dataclass(frozen=True)
class Refused:
    """Set every member to zero in the lanes whose leaked gradient is zero.

    In a mean over several clients or local iterations some of them may have been refused, and after later noise nothing is zero.
    The attacker then assumes that all were sent.

    Args:
        nothing: (lanes,) bool, whether the leaked gradient is zero.
    """

    nothing: Tensor

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Set those lanes to zero; nothing is random."""
        return signal.replace(_without(signal.grads, self.nothing), signal.sensitivity, Fact("other"))


def _without(grads: Parameters, refused: Tensor) -> Parameters:
    """Return the gradients {p: (lanes, members, *p)} with zeros, also for NaN, in the lanes where `refused` (lanes,) is true."""
    return {n: g.masked_fill(refused.reshape(-1, *[1] * (g.dim() - 1)), 0.0) for n, g in grads.items()}
