"""What somebody's update shows an attacker: from named arrays, a model and how it was trained to the view of one leakage point."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leakbench.errors import InputError
from leakbench.federated.view import Knowledge, View
from leakbench.own.named import as_buffers, as_parameters
from leakbench.own.seen import Seen, Training
from leakbench.types import Clock, Network, Parameters

__all__ = ["Trained", "leaked", "truth_of"]

TAPS = ("type-2", "type-1", "type-0")


@dataclass(frozen=True)
class Trained:
    """How an update came about: L local steps by SGD of B examples each, at a learning rate.

    learning_rate: None where the update is a gradient, the mean over its batch, as `.grad` holds it; else it is what training
    added to the weights.  batch: B.  steps: L.
    """

    batch: int = 1
    steps: int = 1
    learning_rate: float | None = None

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


def leaked(
    model: nn.Module,
    updates: Sequence[Mapping[str, Tensor]],
    shape: tuple[int, ...],
    classes: int,
    how: Trained,
    before: Mapping[str, Tensor] | None = None,
    tap: str = "type-1",
    truth: tuple[Tensor, Tensor] | None = None,
) -> Seen:
    """Return what V updates of one model show at a leakage point.

    model: any module of (n, *shape) to (n, classes).  updates: V times {p: (*p)}, gradients or what training added to the weights.
    before: {p: (*p)} and buffers that the clients got; None: as the model is.  truth: inputs (V, M, *shape), labels (V, M).
    Batch normalisation is taken in evaluation mode, by the running statistics.

    Raises InputError for what does not fit the model, and for a model that does not answer (n, classes).
    """
    if tap not in TAPS:
        raise InputError(f"tap: got {tap!r}, expected one of {', '.join(TAPS)}")
    if tap == "type-2" and (how.batch, how.steps) != (1, 1):
        raise InputError("tap: type-2 is one example's gradient; got more than one, which is type-1")
    start = dict(model.state_dict()) if before is None else before
    sent = as_parameters("before", model, start)
    network = copy.deepcopy(model).cpu().float()
    network.train(False)
    memory = as_buffers("before", network, start)
    _answers(network, sent, memory, shape, classes)
    length = -1.0 if how.learning_rate is None else how.learning_rate * how.steps
    each = [as_parameters("update", model, update) for update in updates]
    update: Parameters = {name: torch.stack([one[name].cpu().float() for one in each]) / -length for name in sent}
    examples = how.batch * how.steps
    view = View(
        tap=tap,
        network=Network(network, {name: p.detach().cpu().float().clone() for name, p in sent.items()}, memory=memory),
        update=update,
        batch=how.batch,
        shape=shape,
        classes=classes,
        learning_rate=how.learning_rate or 1.0,
        local_steps=how.steps,
        knowledge=Knowledge(examples=examples, reads="gradient" if how.learning_rate is None else "weights"),
        clock=Clock(0, 0, 1, how.steps),
    )
    inputs, labels = (None, None) if truth is None else truth
    return Seen(view, inputs, labels, Training(how.steps, how.batch, how.learning_rate or 1.0, "sgd", ""), 0)


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
    if labels.numel() != victims * examples or labels.is_floating_point():
        got = f"{tuple(labels.shape)} of {labels.dtype}"
        raise InputError(f"truth: labels are {got}, expected whole numbers of the shape {(victims, examples)}")
    if not inputs.is_floating_point() or float(inputs.min()) < 0 or float(inputs.max()) > 1:
        raise InputError("truth: inputs reach out of [0, 1], in which the attacks search; divide 8-bit pixels by 255")
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise InputError(
            f"truth: labels go from {int(labels.min())} to {int(labels.max())}, expected 0 to {classes - 1}"
        )
    return inputs.reshape(whole), labels.long().reshape(victims, examples)


def _answers(model: nn.Module, sent: Parameters, memory: Parameters, shape: tuple[int, ...], classes: int) -> None:
    """Raise InputError for a model that does not answer one input of zeros with (1, classes)."""
    try:
        with torch.no_grad():
            found = torch.func.functional_call(model, {**sent, **memory}, (torch.zeros(1, *shape),))
    except Exception as error:
        raise InputError(
            f"shape: the model fails on an input of {(1, *shape)}: {type(error).__name__}: {error}"
        ) from None
    if not isinstance(found, Tensor):
        raise InputError(f"model: it answers with a {type(found).__name__}, expected a tensor (n, {classes})")
    if tuple(found.shape) != (1, classes):
        raise InputError(f"classes: the model answers one input with {tuple(found.shape)}, expected (1, {classes})")
