"""Mods for a ClientApp that is written already."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leakbench.defense import Defense
from leakbench.defense.adaclip import AdaClip, AdaClipReleased
from leakbench.defense.priority import PriorityNoise
from leakbench.defense.quantile import ClipQuantile
from leakbench.defense.transform import apply
from leakbench.errors import InputError
from leakbench.external.observation import Observed, listening, listens, once_graded, rates, unusual
from leakbench.flower.leaks import Leak, write_leak
from leakbench.flower.messages import (
    Arrays,
    arrays_of,
    check_same_names,
    client_of,
    is_parameter,
    is_train,
    partition_of,
    replaced,
    round_of,
)
from leakbench.recipe import resolve
from leakbench.rng import generator
from leakbench.types import Clock, Local, Network, Parameters, Signal

__all__ = [
    "DefenseMod",
    "StepProbeMod",
    "UpdateTapMod",
    "WrappedClientApp",
    "attach",
    "check_client_station",
    "check_stations",
    "resolved",
]


class WrappedClientApp(ClientApp):
    """A ClientApp with mods around all that it does; Flower itself binds an app's mods when its functions are registered."""

    def __init__(self, app: ClientApp, mods: tuple[Mod, ...]) -> None:
        super().__init__()
        self.app, self.around = app, mods

    def __call__(self, message: Message, context: Context) -> Message:
        """Pass a message through the mods, the first outermost, to the app and its own mods."""
        call: ClientAppCallable = self.app
        for mod in reversed(self.around):
            call = _bound(mod, call)
        return call(message, context)


def _bound(mod: Mod, call: ClientAppCallable) -> ClientAppCallable:
    def through(message: Message, context: Context) -> Message:
        return mod(message, context, call)

    return through


def attach(app: ClientApp, *mods: Mod) -> ClientApp:
    """Return the app with mods around its own, the first outermost."""
    return WrappedClientApp(app, mods)


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


@dataclass(frozen=True)
class UpdateTapMod:
    """Write what a client answers to every train message into a folder, which `leakbench.flower.leaks` reads.

    The first Mod in a list is the outermost: before `DefenseMod` it sees what leaves the client (type-1), behind it what the
    client had trained.

    Args:
        sink: The folder.
        tap: What the view is called, and the folder within it.
    """

    sink: str | Path
    tap: str = "type-1"

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train and write what it answers, which goes on as it is; an error is not written."""
        if not is_train(message):
            return call_next(message, context)
        sent, number = arrays_of(message, "message"), round_of(message, context)
        reply = call_next(message, context)
        if not reply.has_error():
            leak = Leak(self.tap, number, int(context.node_id), partition_of(context), arrays_of(reply, "reply"), sent)
            write_leak(Path(self.sink), leak)
        return reply


TOLD = {"lr": "learning-rate", "momentum": "momentum", "weight_decay": "weight-decay"}
"""{what an optimizer's group of parameters says: how the leak calls it}."""


@dataclass(frozen=True)
class StepProbeMod:
    """Write what a reader inside the client sees (type-2) into a folder, which `leakbench.flower.leaks` reads.

    Every optimizer of PyTorch is heard just before its steps, without a change of the app; who calls `leakbench.flower.observe`
    in the training loop also shows each example's gradient in the first step and the examples themselves, by which attacks are
    scored. The folder then holds private data.

    In a leak are, each where it is known: `example/P` (B, *p) of the first step, `sample/P` likewise as Opacus left them,
    `stepN/P` (*p) the gradient of step N, `inputs/N` (B, *s) and `labels/N` (B,); in its words the optimizer, its learning rate,
    momentum and weight decay, how many local steps there were, and the observed model's mode, `train` or `eval`; as JSON, where
    there are any, settings that are not those of plain SGD or of Adam by default (`unusual`) and the learning rates of groups or
    steps that have several (`learning-rates`).

    Args:
        sink: The folder.
        steps: Of how many first steps the gradients are kept.
        tap: What the view is called, and the folder within.
    """

    sink: str | Path
    steps: int = 1
    tap: str = "type-2"

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train and write what was heard; the reply goes on as it is."""
        if not is_train(message):
            return call_next(message, context)
        sent, number = arrays_of(message, "message"), round_of(message, context)
        with listening() as observed, _heard(self.steps, observed) as heard:
            reply = call_next(message, context)
        if not reply.has_error():
            where = (self.tap, number, int(context.node_id), partition_of(context))
            write_leak(Path(self.sink), Leak(*where, _arrays(observed, heard, sent), sent, _words(observed, heard)))
        return reply


@dataclass
class Heard:
    """What an optimizer showed.

    Args:
        gradients: Of each first step, in the order of its parameters, with their ids.
        samples: Of each first step, in the order of its parameters, with their ids.
        taken: How many steps.
        said: What the optimizer is called and was told.
        rates: Of all groups and steps.
    """

    gradients: list[list[tuple[int, Tensor]]] = field(default_factory=list)
    samples: list[tuple[int, Tensor]] = field(default_factory=list)
    taken: int = 0
    said: dict[str, str] = field(default_factory=dict)
    rates: set[float] = field(default_factory=set)


@contextmanager
def _heard(steps: int, observed: Observed) -> Iterator[Heard]:
    """Hear all steps of optimizers within this block, in the thread that is observed."""
    heard = Heard()

    def hear(optimizer: Optimizer) -> None:
        held = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if heard.taken == 0:
            heard.said = _said(optimizer)
            heard.samples = [(id(p), s.detach().cpu().clone()) for p in held if (s := _sample(p)) is not None]
        if heard.taken < steps:
            heard.gradients.append([(id(p), p.grad.detach().cpu().clone()) for p in held if p.grad is not None])
        heard.rates |= rates(optimizer)
        heard.taken += 1

    graded = once_graded(hear)

    def begins(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        return graded(optimizer, args, kwargs) if listens(observed) else None

    handle = register_optimizer_step_pre_hook(begins)
    try:
        yield heard
    finally:
        handle.remove()


def _said(optimizer: Optimizer) -> dict[str, str]:
    """Return what an optimizer is called and was told, in words."""
    group: Mapping[str, Any] = optimizer.param_groups[0]
    told = {called: f"{float(group[key]):.9g}" for key, called in TOLD.items() if key in group}
    settings = unusual(optimizer)
    return {"optimizer": type(optimizer).__name__, **told, **({"unusual": json.dumps(settings)} if settings else {})}


def _sample(parameter: Tensor) -> Tensor | None:
    """Return the gradients of single examples (B, *p) that Opacus leaves at a parameter."""
    found = getattr(parameter, "grad_sample", None)
    return found if isinstance(found, Tensor) else None


def _arrays(observed: Observed, heard: Heard, sent: Arrays) -> Arrays:
    found: Parameters = {f"example/{name}": g for name, g in observed.examples.items()}
    if heard.gradients:
        names = _names(heard.gradients[0], observed, sent)
        found |= {f"sample/{names[i]}": s for i, s in heard.samples}
        for step, gradients in enumerate(heard.gradients):
            found |= {f"step{step}/{names[i]}": g for i, g in gradients if i in names}
    for what, several in (("inputs", observed.inputs), ("labels", observed.labels)):
        found |= {f"{what}/{step}": one for step, one in enumerate(several)}
    return {name: tensor.numpy() for name, tensor in found.items()}


def _names(gradients: list[tuple[int, Tensor]], observed: Observed, sent: Arrays) -> dict[int, str]:
    """Return {id of a parameter: its name}: by the model; else as sent, where shapes agree in order; else its place."""
    ids = [i for i, _ in gradients]
    if all(i in observed.names for i in ids):
        return {i: observed.names[i] for i in ids}
    parameters = [(name, a.shape) for name, a in sent.items() if is_parameter(name, a)]
    if [shape for _, shape in parameters] == [tuple(g.shape) for _, g in gradients]:
        return {i: name for i, (name, _) in zip(ids, parameters, strict=True)}
    return {i: str(place) for place, i in enumerate(ids)}


def _words(observed: Observed, heard: Heard) -> dict[str, str]:
    told = {"note": observed.note, "fault": observed.fault, "victim-mode": observed.mode}
    steps = heard.taken or len(observed.inputs)
    several = {"learning-rates": json.dumps(sorted(heard.rates))} if len(heard.rates) > 1 else {}
    return {
        **heard.said,
        **several,
        "local-steps": str(steps),
        **{what: words for what, words in told.items() if words},
    }
