"""A defense's client station as a Flower Mod: what a client sends is clipped, noised, pruned or signed before it leaves."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn

from leakbench.defense import Defense
from leakbench.defense.adaclip import AdaClip, AdaClipReleased
from leakbench.defense.priority import PriorityNoise
from leakbench.defense.quantile import ClipQuantile
from leakbench.defense.transform import apply
from leakbench.errors import InputError
from leakbench.flower.arrays import Arrays, arrays_of, check_same_names, is_parameter, replaced
from leakbench.flower.whereabouts import client_of, is_train, round_of
from leakbench.recipe import resolve
from leakbench.rng import generator
from leakbench.types import Clock, Local, Network, Signal

__all__ = ["DefenseMod", "check_client_station", "check_stations", "resolved"]

INSTEAD = {
    "example": "inside local steps; train with Opacus in the app, or simulate it with leakbench.flower.VectorisedGrid",
    "batch": "inside local steps; put it into the app's training loop, or simulate it with leakbench.flower.VectorisedGrid",
    "server": "where the updates meet; wrap the strategy, as with Flower's DifferentialPrivacy wrappers, and give a Mod a recipe of"
    " the client station alone",
}
"""{station that no Mod reaches: where it is, and what to use in its stead}."""

REMEMBERS = (AdaClip, AdaClipReleased, ClipQuantile)
"""What adapts over rounds by what the server tells, for which a Flower message has no place."""


@dataclass(frozen=True)
class DefenseMod:
    """Apply a recipe's client station to the update, reply minus received, of every train message.

    The same transforms as in the simulator (`leakbench.federated.client.client_update`). Only parameters are changed: integers
    and the running statistics of batch normalisation, told by their names in the state dict, pass as they are, and so does
    everything that is not an array. Nothing is done to metrics.

    Args:
        recipe: a name of the catalog, a .yaml of one's own, or a `Defense`.
        seed: Noise is drawn by (seed, round, client), so that a simulation can be repeated. Whoever knows the seed can take the
            noise off again, and a server that names one round twice gets the same noise twice: real data need None, which draws a
            new one from the system each time.
        cohort: K_t, which a share of a noise is divided by.
        rounds: How many there are, which a schedule of noise needs; None: the run config's `num-server-rounds`, else 1.
        buffers: Names of further floating-point arrays that are no parameters. Raises InputError for a recipe that acts where no
            Mod reaches, and says what to use in its stead.
    """

    recipe: str | Defense
    seed: int | None = 0
    cohort: int = 1
    rounds: int | None = None
    buffers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_client_station(self.defense, self.name)

    @property
    def name(self) -> str:
        """What the recipe is called in an error."""
        return self.recipe if isinstance(self.recipe, str) else self.recipe.title

    @property
    def defense(self) -> Defense:
        """The recipe, resolved."""
        return resolved(self.recipe) if isinstance(self.recipe, str) else self.recipe

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train, and return its answer with the defended update; raises InputError where the arrays do not fit."""
        if not is_train(message):
            return call_next(message, context)
        received, number = arrays_of(message, "message"), round_of(message, context)
        reply = call_next(message, context)
        if reply.has_error() or not self.defense.client:
            return reply
        trained = arrays_of(reply, "reply")
        check_same_names(received, trained)
        rounds: int | str | float = self.rounds or context.run_config.get("num-server-rounds", 1)
        clock = Clock(number - 1, 0, max(number, int(rounds)), 1, cohort=self.cohort)
        rng = torch.Generator().manual_seed(secrets.randbits(63))
        if self.seed is not None:
            rng = generator(self.seed, "noise", number - 1, client_of(context))
        return replaced(reply, self.defended(received, trained, clock, rng))

    def defended(self, received: Arrays, trained: Arrays, clock: Clock, rng: torch.Generator) -> Arrays:
        """Return what the client sends in the stead of `trained`."""
        names = [n for n, array in trained.items() if is_parameter(n, array, self.buffers)]
        before = {n: torch.from_numpy(received[n]) for n in names}
        moved = {n: torch.from_numpy(trained[n]) - before[n] for n in names}
        sent = self._through_the_station(before, moved, clock, rng)
        return {**trained, **{n: (before[n] + sent[n]).numpy() for n in names}}

    def _through_the_station(
        self, before: Mapping[str, Tensor], moved: Mapping[str, Tensor], clock: Clock, rng: torch.Generator
    ) -> dict[str, Tensor]:
        nothing = torch.zeros(1, 0)  # A station of whole updates sees no examples; of the network its parameters alone.
        local = Local(Network(nn.Module(), dict(before)), nothing, nothing)
        update = Signal({n: u[None, None] for n, u in moved.items()}, local=local)
        after = apply(self.defense.client, update, clock, (rng,))
        return {n: u[0, 0] for n, u in after.grads.items()}


def check_client_station(defense: Defense, name: str) -> None:
    """Raise InputError for a recipe that does not act at the client station alone, or acts there by what no Mod has."""
    check_stations(defense, name, tuple(INSTEAD))
    for transform in defense.client:
        if isinstance(transform, PriorityNoise):
            raise InputError(
                f"recipe: {name!r} reads the network itself at the client station ({type(transform).__name__}), which a Mod does"
                " not have; simulate it with leakbench run"
            )


def check_stations(defense: Defense, name: str, without: tuple[str, ...]) -> None:
    """Raise InputError for a recipe that acts at one of the stations `without`, or by what no message of Flower carries."""
    for station in without:
        acting = getattr(defense, station)
        if acting:
            parts = ", ".join(type(t).__name__ for t in acting)
            raise InputError(f"recipe: {name!r} acts at the {station} station ({parts}), {INSTEAD[station]}")
    if defense.network:
        raise InputError(f"recipe: {name!r} changes the network, which is the app's own; build it into the app's model")
    if defense.aggregation == "secure":
        raise InputError(
            f"recipe: {name!r} aggregates securely, which no client does alone; use Flower's secaggplus_mod"
        )
    for station in ("example", "batch", "client"):
        for transform in getattr(defense, station):
            if isinstance(transform, REMEMBERS):
                raise InputError(
                    f"recipe: {name!r} adapts at the {station} station over rounds ({type(transform).__name__}), by what no message"
                    " of Flower carries; use Flower's adaptiveclipping_mod, or simulate it with leakbench run"
                )


@cache
def resolved(name: str) -> Defense:
    """Return the recipe of a name, read once."""
    return resolve("defenses", Defense, name)[1]
