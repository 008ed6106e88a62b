"""What an attacker saw of updates that are no run's of leakbench: one leakage point, and the truth where it is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from leakbench.errors import InputError, nearest
from leakbench.external.arrays import as_parameters, as_state
from leakbench.external.network import Normal, flatten_scalars, in_mode, in_order, mixes, ran
from leakbench.federated.client import NO_EXAMPLE
from leakbench.federated.optimizer import OPTIMIZERS
from leakbench.federated.view import Knowledge, View
from leakbench.imported import said
from leakbench.types import Clock, Network, Parameters

__all__ = ["Named", "Seen", "Trained", "Training", "leaked", "truth_of"]


@dataclass(frozen=True)
class Training:
    """L local steps of B examples each at a learning rate, by `optimizer`, `sgd` or `adam`.

    Args:
        note: What an attacker who takes it so leaves out, a sentence a line; empty where nothing.
        mode: `eval` or `train`.
    """

    steps: int
    batch: int
    learning_rate: float
    optimizer: str = "sgd"
    note: str = ""
    mode: str = "eval"


@dataclass(frozen=True)
class Seen:
    """What leaked of V clients at one tap in one round.

    Args:
        view: Of them all. inputs (V, M, *s), labels (V, M): the truth; None where it is not known.
        training: How they trained.
        left_out: How many clients trained otherwise and are not attacked.
    """

    view: View
    inputs: Tensor | None
    labels: Tensor | None
    training: Training
    left_out: int


TAPS = ("type-2", "type-1", "type-0")

Named: TypeAlias = Mapping[str, Tensor]
"""{name of a parameter or buffer: array}."""


@dataclass(frozen=True)
class Trained:
    """How an update came about: L local steps of B examples each, at a learning rate.

    Args:
        batch: B.
        steps: L.
        learning_rate: None where the update is a gradient, the mean over its batch, as `.grad` holds it; else it is what training
            added to the weights.
        optimizer: `sgd`, or `adam` with torch's defaults, whose state was fresh.
        mode: `eval` or `train`, by which statistics batch and instance normalisation computed.
    """

    batch: int = 1
    steps: int = 1
    learning_rate: float | None = None
    optimizer: str = "sgd"
    mode: str = "eval"

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"batch: got {self.batch}, expected 1 or more")
        if self.steps < 1:
            raise InputError(f"local-iterations: got {self.steps}, expected 1 or more")
        if self.steps > 1 and self.learning_rate is None:
            raise InputError(
                "local-iterations: a gradient is of one step; pass --learning-rate with an update of several"
            )
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise InputError(f"learning-rate: got {self.learning_rate:g}, expected a finite number > 0")
        if self.learning_rate is not None and not 1e-30 <= self.learning_rate <= 1e30:
            raise InputError(
                f"learning-rate: got {self.learning_rate:g}, expected 1e-30 to 1e30, as single precision holds"
            )
        if self.optimizer not in OPTIMIZERS:
            raise InputError(
                f"client-optimizer: got {self.optimizer!r}, expected {' or '.join(OPTIMIZERS)}"
                f"{nearest(self.optimizer, list(OPTIMIZERS))}"
            )
        if self.optimizer != "sgd" and self.learning_rate is None:
            raise InputError("client-optimizer: a gradient is of no optimizer; pass --learning-rate with an update")


def leaked(
    model: nn.Module,
    updates: Sequence[Named],
    shape: tuple[int, ...],
    classes: int,
    how: Trained,
    before: Named | Sequence[Named] | None = None,
    tap: str = "type-1",
    truth: tuple[Tensor, Tensor] | None = None,
    normal: Normal | None = None,
) -> Seen:
    """Return what V updates of one model show at a leakage point.

    Raises InputError for what does not fit the model, for a model that does not answer (n, classes), and for one whose gradient
    cannot be differentiated.

    Args:
        model: Any module of (n, *shape) to (n, classes); parameters whose `requires_grad` is false are not trained and not
            leaked.
        updates: V times {p: (*p)}, gradients or what training added to the weights.
        before: {p: (*p)} and buffers that the clients got, or V of them; None: as the model is.
        truth: Inputs (V, M, *shape), labels (V, M).
        normal: What is done to inputs in [0, 1] before they are fed to the model.
    """
    if tap not in TAPS:
        raise InputError(f"tap: got {tap!r}, expected one of {', '.join(TAPS)}")
    if tap == "type-2" and (how.batch, how.steps) != (1, 1):
        raise InputError("tap: type-2 is one example's gradient; got more than one, which is type-1")
    starts = [dict(model.state_dict())] if before is None else [before] if isinstance(before, Mapping) else [*before]
    if len(starts) not in (1, len(updates)):
        raise InputError(f"before: got {len(starts)} of {len(updates)} updates, expected one, or one for each")
    length = -1.0 if how.learning_rate is None else how.learning_rate * how.steps
    each = [as_parameters("update", model, update) for update in updates]
    network = _network(model, starts, shape, classes, how.mode, normal)
    if tap == "type-2" and mixes(network.model):
        raise InputError(f"victim-mode: {NO_EXAMPLE}; expected eval, or another tap")
    view = View(
        tap=tap,
        network=network,
        update=_stacked(network, each, -length),
        batch=how.batch,
        shape=shape,
        classes=classes,
        learning_rate=how.learning_rate or 1.0,
        local_steps=how.steps,
        knowledge=Knowledge(
            examples=how.batch * how.steps, reads="gradient" if how.learning_rate is None else "weights"
        ),
        clock=Clock(0, 0, 1, how.steps, client_optimizer=how.optimizer),
    )
    _differentiates(view)
    inputs, labels = (None, None) if truth is None else truth
    return Seen(view, inputs, labels, Training(how.steps, how.batch, how.learning_rate or 1.0, how.optimizer, ""), 0)


def _stacked(network: Network, each: Sequence[Parameters], length: float) -> Parameters:
    """Return the updates {p: (V, *p)}, by their length in the units of a gradient."""
    shapes = {name: p.shape for name, p in network.model.named_parameters()}
    found = {n: torch.stack([one[n].reshape(shapes[n]) for one in each]) / length for n in network.parameters}
    for name, update in found.items():
        if not bool(update.isfinite().all()):
            raise InputError(f"update: {name!r} over the learning rate is not finite in single precision")
    return found


def _network(
    model: nn.Module, starts: Sequence[Named], shape: tuple[int, ...], classes: int, mode: str, normal: Normal | None
) -> Network:
    """Return the network as it was sent, with one set of parameters for all victims, or one for each where they differ."""
    sent = [as_parameters("before", model, start) for start in starts]
    held = [as_state("before", model, start) for start in starts]
    for name, tensor in held[0].items():
        if any(not torch.equal(tensor, other[name]) for other in held[1:]):
            raise InputError(f"before: {name!r}, which is not trained, differs between victims; attack them one by one")
    names = [name for name, p in model.named_parameters() if not p.requires_grad]
    network = in_mode(model, "eval")
    network.load_state_dict({**held[0], **sent[0]}, strict=False)
    flatten_scalars(network)
    network = network if normal is None else normal.before(network)
    _answers(network, shape, classes)
    order = in_order(network, ran(network, torch.rand(1, *shape, generator=torch.Generator().manual_seed(0))))
    network = network if mode == "eval" else in_mode(network, mode)
    shapes = {name: p.shape for name, p in network.named_parameters()}
    sent = [{name: one[name].reshape(shapes[name]) for name in order if name in one} for one in sent]
    # The fast engine asks for the parameters of every layer.
    engine = "reference" if names else "fast"
    memory = {name: held[0][name] for name, _ in network.named_buffers()}
    if all(torch.equal(p, other[name]) for other in sent[1:] for name, p in sent[0].items()):
        return Network(network, sent[0], memory=memory, engine=engine)
    stacked = {name: torch.stack([one[name] for one in sent]) for name in sent[0]}
    return Network(network, stacked, shared=False, memory=memory, engine=engine)


def truth_of(
    arrays: Mapping[str, Tensor], victims: int, examples: int, shape: tuple[int, ...], classes: int
) -> tuple[Tensor, Tensor]:
    """Return inputs (V, M, *s) and labels (V, M) of the arrays `inputs` and `labels`, whose first axis of one may be left out.

    Raises InputError, with what was got, for other names, shapes, inputs outside of [0, 1] and labels that are no class.
    """
    if set(arrays) != {"inputs", "labels"}:
        raise InputError(f"truth: got the arrays {', '.join(sorted(arrays))}, expected inputs and labels")
    inputs, labels = arrays["inputs"], arrays["labels"]
    whole = (victims, examples, *shape)
    if inputs.numel() != math.prod(whole) or tuple(inputs.shape[-len(shape) :]) != shape:
        raise InputError(f"truth: inputs have the shape {tuple(inputs.shape)}, expected {whole}")
    if labels.numel() != victims * examples or labels.is_floating_point() or labels.dtype == torch.bool:
        got = f"{tuple(labels.shape)} of {labels.dtype}"
        raise InputError(f"truth: labels are {got}, expected whole numbers of the shape {(victims, examples)}")
    if not inputs.is_floating_point() or not (float(inputs.min()) >= 0 and float(inputs.max()) <= 1):
        raise InputError("truth: inputs reach out of [0, 1], in which the attacks search; divide 8-bit pixels by 255")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(
            f"truth: labels go from {int(labels.min())} to {int(labels.max())}, expected 0 to {classes - 1}"
        )
    return inputs.reshape(whole), labels.long().reshape(victims, examples)


def _answers(model: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    """Raise InputError for a model that does not answer one input of zeros with (1, classes)."""
    try:
        with torch.no_grad():
            found = model(torch.zeros(1, *shape))
    except Exception as error:
        raise InputError(f"shape: the model fails on an input of {(1, *shape)}: {said(error)}") from None
    if not isinstance(found, Tensor):
        raise InputError(f"model: it answers with a {type(found).__name__}, expected a tensor (n, {classes})")
    if tuple(found.shape) != (1, classes):
        raise InputError(f"classes: the model answers one input with {tuple(found.shape)}, expected (1, {classes})")
    if not bool(found.isfinite().all()):
        raise InputError("model: it answers an input of zeros with numbers that are not finite")


def _differentiates(view: View) -> None:
    """Raise InputError for a network whose gradient cannot be differentiated by its inputs, as every search does."""
    inputs = torch.full((1, view.examples, *view.shape), 0.5, requires_grad=True)
    targets = torch.full((1, view.examples, view.classes), 1 / view.classes)
    try:
        found = view.respond(inputs, targets, torch.zeros(1, dtype=torch.int64))
        torch.autograd.grad(torch.stack([g.square().sum() for g in found.values()]).sum(), inputs, allow_unused=True)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"model: its gradient cannot be computed and differentiated: {said(error)}") from None
