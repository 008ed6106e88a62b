"""A defense: transforms at four stations, what it claims, and the sampling that its epsilon rests on."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Literal

import torch
from pydantic import Field

from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.sensitivity import L2Max, L2MaxReleased
from leakbench.defense.transform import Transform, apply
from leakbench.privacy.claim import CLAIMS, Claim, NoClaim
from leakbench.recipe import slot
from leakbench.types import Clock, Fact, Parameters, Signal, part

__all__ = ["STATIONS", "TRANSFORMS", "Defense", "facts", "without_noise"]

TRANSFORMS: dict[str, type[Transform]] = {
    "clip_whole": ClipWhole,
    "clip_layers": ClipLayers,
    "l2_max": L2Max,
    "l2_max_released": L2MaxReleased,
    "gaussian_noise": GaussianNoise,
}

STATIONS = ("example", "batch", "client", "server")

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

    title: str
    cite: str
    unit: Literal["example", "client"]
    note: str = ""
    example: tuple[Step, ...] = ()
    batch: tuple[Step, ...] = ()
    client: tuple[Step, ...] = ()
    server: tuple[Step, ...] = ()
    batches: Literal["fixed", "split", "poisson"] = "fixed"
    cohorts: Literal["fixed", "poisson"] = "fixed"
    claim: Annotated[Claim, *slot("claim", CLAIMS)] = NoClaim(reason="no epsilon is claimed")
    printed: dict[str, dict[str, float]] = Field(default_factory=dict)


def without_noise(defense: Defense) -> Defense:
    """Return the deterministic part of a defense: what an attacker who knows it can run on a guess."""

    def keep(station: tuple[Transform, ...]) -> tuple[Transform, ...]:
        return tuple(t for t in station if not isinstance(t, GaussianNoise))

    return dataclasses.replace(
        defense,
        example=keep(defense.example),
        batch=keep(defense.batch),
        client=keep(defense.client),
        server=keep(defense.server),
    )


def facts(defense: Defense, like: Parameters, batch: int, cohort: int) -> dict[str, tuple[Fact, ...]]:
    """Return what each station does, found by running its real transforms on a signal of the real shapes.

    like: {parameter: (*p)}. batch: B, the examples merged at the example station. cohort: K_t, the updates merged at the server.
    """
    clock = Clock(round=0, local_iteration=0, rounds=1, local_iterations=1)
    members = {"example": (batch, 1), "batch": (1, batch), "client": (1, 1), "server": (cohort, 1)}
    found = {}
    sensitivity = None
    for name, (count, averaged) in members.items():
        # So large that every clip binds, and a scale that is taken from the data is not by accident zero.
        large = {key: torch.full((1, count, *p.shape), 1e6) for key, p in like.items()}
        # What the example station bounds, the batch station may still be scaled by; an update starts without a bound.
        signal = Signal(large, averaged, sensitivity if name == "batch" else None)
        after = apply(getattr(defense, name), signal, clock, (torch.Generator().manual_seed(0),))
        found[name], sensitivity = after.facts, after.sensitivity
    return found
