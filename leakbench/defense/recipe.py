"""A defense: transforms at four stations, what it claims, and the sampling that its epsilon rests on."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import torch
from pydantic import Field
from pydantic_core import PydanticCustomError

from leakbench.data.recipe import Federation
from leakbench.defense.clip import ClipLayers, ClipLayersShared, ClipWhole
from leakbench.defense.median import ClipInverted, ClipMedian
from leakbench.defense.noise import GaussianNoise, LaplaceNoise
from leakbench.defense.prune import PruneRandom, PruneThreshold, PruneThresholdReleased
from leakbench.defense.sensitivity import L2Max, L2MaxReleased
from leakbench.defense.transform import STATIONS, Stations, Transform, apply
from leakbench.errors import InputError
from leakbench.privacy.claim import CLAIMS, Claim, MomentsClaim, NoClaim
from leakbench.recipe import slot
from leakbench.types import Clock, Fact, Signal, Text, part

__all__ = ["TRANSFORMS", "Defense", "facts"]

TRANSFORMS: dict[str, type[Transform]] = {
    "clip_whole": ClipWhole,
    "clip_layers": ClipLayers,
    "clip_layers_shared": ClipLayersShared,
    "clip_median": ClipMedian,
    "clip_inverted": ClipInverted,
    "l2_max": L2Max,
    "l2_max_released": L2MaxReleased,
    "gaussian_noise": GaussianNoise,
    "laplace_noise": LaplaceNoise,
    "prune_threshold": PruneThreshold,
    "prune_threshold_released": PruneThresholdReleased,
    "prune_random": PruneRandom,
}

Step = Annotated[Transform, *slot("transform", TRANSFORMS)]


@part
class Defense:
    """The recipe of a defense.

    example, batch, client, server: the transforms at each station, in order (see `leakbench.federated`).
    unit: what one epsilon protects, an `example` or a whole `client`.
    batches: how a client draws its batches: `fixed` (B of its examples without replacement, anew in each local iteration),
        `split` (one pass over a shuffled, fixed split), `poisson` (each example with probability B / |D_i|).
    cohorts: how the server draws its clients: `fixed` (K_t of N) or `poisson` (each with probability K_t / N).
    printed: what the paper prints, {`accuracy` | `epsilon` | `rmse TAP`: {dataset: value}}, to stand beside the measurement.
    """

    title: Text
    cite: Text
    unit: Literal["example", "client"]
    note: str = ""
    example: tuple[Step, ...] = ()
    batch: tuple[Step, ...] = ()
    client: tuple[Step, ...] = ()
    server: tuple[Step, ...] = ()
    batches: Literal["fixed", "split", "poisson"] = "fixed"
    cohorts: Literal["fixed", "poisson"] = "fixed"
    claim: Annotated[Claim, *slot("claim", CLAIMS)] = NoClaim(reason="no epsilon is claimed")
    printed: dict[str, dict[str, Annotated[float, Field(allow_inf_nan=False)]]] = Field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.claim, MomentsClaim) and self.claim.unit != self.unit:
            text = f"claim: its unit is {self.claim.unit!r}, the defense's is {self.unit!r}; expected the same"
            raise PydanticCustomError("slot", "{text}", {"text": text})
        if any(isinstance(t, GaussianNoise) and t.to == "mean" for t in self.server):
            text = "server: noise `to: mean` depends on how many updates arrive; expected `to: sum` (K_t times the multiplier)"
            raise PydanticCustomError("slot", "{text}", {"text": text})

    @property
    def stations(self) -> Stations:
        """What acts where, without the rest of the recipe."""
        return Stations(self.example, self.batch, self.client, self.server)


def facts(defense: Defense, tensors: int, federation: Federation) -> dict[str, tuple[Fact, ...]]:
    """Return what each station does, found by running its real transforms in every round of a federation.

    tensors: number of parameter tensors, of one element each here. Where a fact changes over the rounds or local iterations (a
    scale that decays), its weakest form stands: the least noise, the widest clip.
    """
    f = federation
    when = [
        Clock(t, step, f.rounds, f.local_iterations)
        for t in _rounds(f.rounds)
        for step in sorted({0, f.local_iterations - 1})
    ]
    found: dict[str, tuple[Fact, ...]] = {}
    for clock in when:
        now = _facts_at(defense.stations, tensors, f.batch, clock)
        found = {name: _weakest(found.get(name, now[name]), now[name]) for name in STATIONS}
    return found


def _rounds(rounds: int, most: int = 1000) -> list[int]:
    """Return every round, or of more than `most` so many at equal steps, with the first and the last among them."""
    step = max(1, rounds // most)
    return sorted({*range(0, max(1, rounds), step), max(0, rounds - 1)})


def _facts_at(stations: Stations, tensors: int, batch: int, clock: Clock) -> dict[str, tuple[Fact, ...]]:
    def through(name: str, signal: Signal) -> Signal:
        station = getattr(stations, name)
        rngs = tuple(torch.Generator().manual_seed(0) for _ in range(signal.lanes))
        try:
            after = apply(station, signal, clock, rngs)
        except InputError as error:
            raise InputError(f"defense: at the {name} station, {error}") from None
        found[name] = after.facts[len(signal.facts) :]
        return after

    def large(lanes: int, members: int) -> Signal:
        # So large that every clip binds, and a scale that is taken from the data is not by accident zero.
        return Signal({str(i): torch.full((lanes, members, 1), 1e6) for i in range(tensors)})

    found: dict[str, tuple[Fact, ...]] = {}
    through("batch", through("example", large(1, batch)).mean())
    # No transform may depend on how many updates arrive, so two stand for all of them.
    through("server", through("client", large(2, 1)).gathered(2))
    return found


def _weakest(before: tuple[Fact, ...], now: tuple[Fact, ...]) -> tuple[Fact, ...]:
    if [f.kind for f in before] != [f.kind for f in now]:
        return (*before, Fact("other", reason="what the station does changes in kind over the rounds"))
    return tuple(
        dataclasses.replace(a, norm=max(a.norm, b.norm), std=min(a.std, b.std))
        for a, b in zip(before, now, strict=True)
    )
