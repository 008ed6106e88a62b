"""Mods of a Flower client: the client station of a defense, the taps at type-1 and type-2, and canary clients."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leakbench.canaries import GradientCanaries
from leakbench.core.errors import InputError
from leakbench.core.imported import reason_of
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator
from leakbench.core.typed import typed_arguments
from leakbench.core.types import Clock, Local, Network, Parameters, Signal, plain_tensor
from leakbench.defense import Defense
from leakbench.defense.transform import apply
from leakbench.external.observation import (
    ObservedBatches,
    PrivateGradients,
    learning_rates,
    observed_here,
    observing,
    on_gradient,
    private_gradients,
    unusual_settings,
)
from leakbench.flower.leaks import FIRST, Leak, write_leak
from leakbench.flower.messages import (
    Arrays,
    arrays_of,
    check_same_names,
    client_of,
    is_parameter,
    is_train,
    partition_of,
    round_of,
    warn_of_zeros,
    with_arrays,
)

__all__ = ["CanaryMod", "DefenseMod", "StepProbeMod", "UpdateTapMod", "attach", "check_stations", "resolve_defense"]

ALTERNATIVES = {
    "example": "inside local steps; train with Opacus in the app, or simulate it with leakbench.flower.VectorisedGrid",
    "batch": "inside local steps; put it into the app's training loop, or simulate it with leakbench.flower.VectorisedGrid",
    "server": "where the updates meet; wrap the strategy, as with Flower's DifferentialPrivacy wrappers, and give a Mod a recipe of"
    " the client station alone",
}
"""{station that no Mod reaches: where it is, and what to use instead}."""

LEFT_OUT = 1e-5
"""Share of a canary's update that one that is left out sends: after a clip, the two differ by less than the bound. Not 0, since
Flower's mods divide by the norm of an update."""

SETTINGS = {"lr": "learning-rate", "momentum": "momentum", "weight_decay": "weight-decay"}
"""{setting in an optimizer's group of parameters: its name in a leak}."""


class WrappedClientApp(ClientApp):
    """A ClientApp inside mods; Flower itself binds an app's mods only when the app's functions are registered."""

    def __init__(self, app: ClientApp, mods: tuple[Mod, ...]) -> None:
        super().__init__()
        self.app, self.mods_around = app, mods

    def __call__(self, message: Message, context: Context) -> Message:
        """Pass a message through the mods, the first outermost, to the app and its own mods."""
        call: ClientAppCallable = self.app
        for mod in reversed(self.mods_around):
            call = _bound(mod, call)
        return call(message, context)


def _bound(mod: Mod, call: ClientAppCallable) -> ClientAppCallable:
    def through(message: Message, context: Context) -> Message:
        return mod(message, context, call)

    return through


@typed_arguments
def attach(app: ClientApp, *mods: Mod) -> ClientApp:
    """Return an app with mods around its own, the first outermost."""
    return WrappedClientApp(app, mods)


@typed_arguments
@dataclass(frozen=True)
class DefenseMod:
    """Apply a recipe's client station to the update, reply minus received, of every train message.

    The transforms are those of the simulator (`leakbench.federated.client.client_update`). Only parameters change: integers
    and the running statistics of batch normalisation, recognised by their names in the state dict, pass unchanged, and so
    do metrics and everything else that is not an array.

    Args:
        recipe: Name in the catalog, path of a .yaml recipe, or a `Defense`.
        seed: Noise is drawn by (seed, round, client), so that a simulation can be repeated. Anyone with the seed can
            subtract the noise, and a server that repeats a round gets the same noise: real data need None, which draws new
            noise from the system each time.
        cohort: Number of clients in a round, K_t, which share the noise.
        rounds: Number of rounds, for a schedule of noise; None for the run config's `num-server-rounds`, else 1.
        buffers: Names of further floating-point arrays that are not parameters.

    Raises:
        InputError: For a recipe that acts where no Mod reaches, with what to use instead.
    """

    recipe: str | Defense
    seed: int | None = 0
    cohort: int = 1
    rounds: int | None = None
    buffers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        name = self.recipe if isinstance(self.recipe, str) else self.recipe.title
        check_stations(self.defense, name, tuple(ALTERNATIVES))
        for transform in self.defense.client:
            if getattr(transform, "reads_network", False):
                raise InputError(
                    f"recipe: {name!r} reads the network itself at the client station ({type(transform).__name__}), which a Mod"
                    " does not have; simulate it with leakbench run"
                )

    @property
    def defense(self) -> Defense:
        """The resolved recipe."""
        return resolve_defense(self.recipe) if isinstance(self.recipe, str) else self.recipe

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train, and return its reply with the defended update.

        Raises:
            InputError: For arrays other than those sent.
        """
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
        return with_arrays(reply, self.defended(received, trained, clock, rng))

    def defended(self, received: Arrays, trained: Arrays, clock: Clock, rng: torch.Generator) -> Arrays:
        """Return what the client sends instead of `trained`.

        Warns:
            UserWarning: If the update is not finite and counts as zero.
        """
        names = [n for n, array in trained.items() if is_parameter(n, array, self.buffers)]
        # A parameter without an axis gets one: transforms flatten every parameter.
        before = {n: torch.from_numpy(np.atleast_1d(received[n])) for n in names}
        empty = torch.zeros(
            1, 0
        )  # A station of whole updates gets no examples, and only the parameters of the network.
        local = Local(Network(nn.Module(), dict(before)), empty, empty)
        moved = {n: (torch.from_numpy(np.atleast_1d(trained[n])) - before[n])[None, None] for n in names}
        signal = apply(self.defense.client, Signal(moved, local=local), clock, (rng,))
        warn_of_zeros([signal], clock.round + 1)
        sent = signal.grads
        return {**trained, **{n: (before[n] + sent[n][0, 0]).numpy().reshape(trained[n].shape) for n in names}}


def check_stations(defense: Defense, name: str, without: tuple[str, ...]) -> None:
    """Check that a defense can act in a Flower app.

    Args:
        defense: The defense.
        name: Its name in an error.
        without: Stations at which it may not act.

    Raises:
        InputError: For a defense at one of these stations, of the network, with secure aggregation, or with a part that
            adapts over rounds, for which a Flower message has no place.
    """
    for station in without:
        acting = getattr(defense, station)
        if acting:
            parts = ", ".join(type(t).__name__ for t in acting)
            raise InputError(f"recipe: {name!r} acts at the {station} station ({parts}), {ALTERNATIVES[station]}")
    if defense.network:
        raise InputError(f"recipe: {name!r} changes the network, which is the app's own; build it into the app's model")
    if defense.inputs:
        raise InputError(
            f"recipe: {name!r} changes inputs, which a Flower app reads itself; build it into the app's data loader"
        )
    if defense.aggregation == "secure":
        raise InputError(
            f"recipe: {name!r} aggregates securely, which no client does alone; use Flower's secaggplus_mod"
        )
    if defense.aggregation == "shuffled":
        raise InputError(f"recipe: {name!r} shuffles the updates, which no client does alone; expected plain")
    for station in ("example", "batch", "client"):
        for transform in getattr(defense, station):
            if getattr(transform, "stateful", False):
                raise InputError(
                    f"recipe: {name!r} adapts at the {station} station over rounds ({type(transform).__name__}), with a state"
                    " that no message of Flower carries; use Flower's adaptiveclipping_mod, or simulate it with leakbench run"
                )


@cache
def resolve_defense(name: str) -> Defense:
    """Return the recipe of a name, read once."""
    return resolve("defenses", Defense, name)[1]


@typed_arguments
@dataclass(frozen=True)
class CanaryMod:
    """Replace the updates of canary clients, for an audit of the whole training.

    The canaries are the clients from partition `first` on, one for each canary. In each round that samples it, an included one
    sends a far update in its own direction, and a canary that is left out nearly zero. Put this mod last in the list of mods, so
    that those that clip or add noise act on what a canary sends.

    Args:
        canaries: Of `leakbench.canaries.gradients`, drawn with a fixed seed for the names of the arrays that the app sends, so that
            every process of the app has the same ones.
        first: Partition-id of the first canary.
        buffers: Names of further floating-point arrays that are not parameters.
    """

    canaries: GradientCanaries
    first: int
    buffers: tuple[str, ...] = ()

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train, and return its reply, or the one of a canary.

        Raises:
            InputError: For a client without a partition-id, or other arrays than those of the canaries.
        """
        if not is_train(message):
            return call_next(message, context)
        partition = partition_of(context)
        if partition is None:
            raise InputError("canaries: a client has no partition-id, expected one in the config of each node")
        reply, number = call_next(message, context), partition - self.first
        if reply.has_error() or not 0 <= number < len(self.canaries.included):
            return reply
        received = arrays_of(message, "message")
        check_same_names(received, arrays_of(reply, "reply"))
        return with_arrays(reply, self.sent(received, number))

    def sent(self, received: Arrays, number: int) -> Arrays:
        """Return what one canary sends."""
        names = [n for n, array in received.items() if is_parameter(n, array, self.buffers)]
        like = {n: torch.from_numpy(received[n]) for n in names}
        far = self.canaries.updates(torch.tensor([number]), like)
        share = 1.0 if self.canaries.included[number] else LEFT_OUT
        return {**received, **{n: (like[n] + share * far[n][0]).numpy() for n in names}}

    def score(self, initial: ArrayRecord, released: ArrayRecord) -> None:
        """Add to the canaries' scores what the server released, over one round or the whole training.

        Args:
            initial: The arrays before.
            released: The arrays after; the sum over rounds of the updates is their difference.
        """
        before, after = initial.to_torch_state_dict(), released.to_torch_state_dict()
        self.canaries.score({n: after[n].double() - before[n].double() for n in self.canaries.directions.places})


@typed_arguments
@dataclass(frozen=True)
class UpdateTapMod:
    """Write a client's reply to every train message into a folder, which `leakbench.flower.leaks` reads.

    The first Mod in a list is the outermost: before `DefenseMod` it records what leaves the client (type-1), after it the
    update before the defense.

    Args:
        sink: The folder.
        tap: Name of the leakage point, and of the folder within `sink`.
    """

    sink: str | Path
    tap: str = "type-1"

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train, write its reply and return it unchanged; an error is not written."""
        if not is_train(message):
            return call_next(message, context)
        sent, number = arrays_of(message, "message"), round_of(message, context)
        reply = call_next(message, context)
        if not reply.has_error():
            leak = Leak(self.tap, number, int(context.node_id), partition_of(context), arrays_of(reply, "reply"), sent)
            write_leak(Path(self.sink), leak)
        return reply


@typed_arguments
@dataclass(frozen=True)
class StepProbeMod:
    """Write what an attacker inside the client sees (type-2) into a folder, which `leakbench.flower.leaks` reads.

    Every PyTorch optimizer is recorded just before its steps, without a change of the app. If the training loop calls
    `leakbench.flower.observe`, each example's gradient in the first step and the examples themselves are recorded too, so
    that attacks can be scored. The folder then contains private data.

    A leak has these arrays, if they are known: `example/P` (B, *p) for the first step, `sample/P` the same from Opacus,
    `stepN/P` (*p) the gradient of step N, `inputs/N` (B, *s) and `labels/N` (B,). Its header has the optimizer, learning
    rate, momentum, weight decay, number of local steps and the observed model's mode, `train` or `eval`; as JSON, settings
    that are not those of plain SGD or of Adam by default (`unusual`), and several learning rates of groups or steps
    (`learning-rates`).

    Args:
        sink: The folder.
        steps: Number of first steps whose gradients are kept.
        tap: Name of the leakage point, and of the folder within `sink`.
    """

    sink: str | Path
    steps: int = 1
    tap: str = "type-2"

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train, write the record and return the reply unchanged."""
        if not is_train(message):
            return call_next(message, context)
        sent, number = arrays_of(message, "message"), round_of(message, context)
        with observing() as observed, _recording(self.steps, observed) as steps:
            reply = call_next(message, context)
        if not reply.has_error():
            where = (self.tap, number, int(context.node_id), partition_of(context))
            arrays: Arrays = {}
            try:
                arrays = _arrays(observed, steps, sent)
            except Exception as error:  # The client's reply goes out whatever a record contains.
                observed.fault = observed.fault or reason_of(error)
            leak = Leak(*where, arrays, sent, _header(observed, steps))
            write_leak(Path(self.sink), leak)
        return reply


@dataclass
class RecordedSteps:
    """The recorded steps of an optimizer.

    Args:
        gradients: (id of a parameter, gradient) of each first step, in the order of the optimizer's parameters.
        samples: The gradients of single examples that Opacus left in the first step, by id.
        count: Number of steps.
        header: Name and settings of the optimizer.
        rates: Learning rates of all groups and steps.
    """

    gradients: list[list[tuple[int, Tensor]]] = field(default_factory=list)
    samples: PrivateGradients = field(default_factory=PrivateGradients)
    count: int = 0
    header: dict[str, str] = field(default_factory=dict)
    rates: set[float] = field(default_factory=set)


@contextmanager
def _recording(most: int, observed: ObservedBatches) -> Iterator[RecordedSteps]:
    """Record the steps of optimizers within this block, in the observed thread, and the gradients of the first `most`."""
    steps = RecordedSteps()

    def record(optimizer: Optimizer) -> None:
        try:
            add(optimizer)
        except Exception as error:  # A user's optimizer may fail in any way; the training continues.
            observed.fault = observed.fault or reason_of(error)

    def add(optimizer: Optimizer) -> None:
        moved = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if steps.count == 0:
            steps.header = _settings(optimizer)
            steps.samples = private_gradients({id(p): p for p in moved}, observed.labels)
        if steps.count < most:
            steps.gradients.append([(id(p), _kept(p.grad)) for p in moved])
        steps.rates |= learning_rates(optimizer)
        steps.count += 1

    on_step = on_gradient(record)

    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        return on_step(optimizer, args, kwargs) if observed_here(observed) else None

    handle = register_optimizer_step_pre_hook(hook)
    try:
        yield steps
    finally:
        handle.remove()


def _kept(tensor: Tensor) -> Tensor:
    """Return a dense copy of a type that NumPy has."""
    dense = plain_tensor("step", "gradient", tensor).cpu()
    return dense.float() if dense.dtype == torch.bfloat16 else dense.clone()


def _settings(optimizer: Optimizer) -> dict[str, str]:
    """Return the name and the settings of an optimizer."""
    group: Mapping[str, Any] = optimizer.param_groups[0]
    settings = {name: f"{float(group[key]):.9g}" for key, name in SETTINGS.items() if key in group}
    unusual = unusual_settings(optimizer)
    return {"optimizer": type(optimizer).__name__, **settings, **({"unusual": json.dumps(unusual)} if unusual else {})}


def _arrays(observed: ObservedBatches, steps: RecordedSteps, sent: Arrays) -> Arrays:
    found: Parameters = {f"example/{name}": g for name, g in observed.examples.items()}
    if steps.gradients:
        names = _names(steps.gradients[0], observed, sent)
        found |= {f"sample/{names[i]}": s for i, s in steps.samples.examples.items() if i in names}
        for step, gradients in enumerate(steps.gradients):
            found |= {f"step{step}/{names[i]}": g for i, g in gradients if i in names}
    for kind, several in (("inputs", observed.inputs), ("labels", observed.labels)):
        found |= {f"{kind}/{step}": one for step, one in enumerate(several)}
    return {name: _kept(tensor).numpy() for name, tensor in found.items()}


def _names(gradients: list[tuple[int, Tensor]], observed: ObservedBatches, sent: Arrays) -> dict[int, str]:
    """Return {id of a parameter: its name}: by the model; else as sent, if the shapes agree in order; else its place."""
    ids = [i for i, _ in gradients]
    if all(i in observed.names for i in ids):
        return {i: observed.names[i] for i in ids}
    parameters = [(name, a.shape) for name, a in sent.items() if is_parameter(name, a)]
    if [shape for _, shape in parameters] == [tuple(g.shape) for _, g in gradients]:
        return {i: name for i, (name, _) in zip(ids, parameters, strict=True)}
    return {i: str(place) for place, i in enumerate(ids)}


def _header(observed: ObservedBatches, steps: RecordedSteps) -> dict[str, str]:
    words = {
        "note": steps.samples.note or observed.note,
        "fault": observed.fault,
        "victim-mode": observed.mode,
        FIRST: "unknown" if steps.samples.first is None else str(steps.samples.first or ""),
    }
    several = {"learning-rates": json.dumps(sorted(steps.rates))} if len(steps.rates) > 1 else {}
    return {
        **steps.header,
        **several,
        "local-steps": str(steps.count or len(observed.inputs)),
        **{key: text for key, text in words.items() if text},
    }
