"""The tap inside a client's training: the gradients by which its optimizer steps, and what `observe` shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leakbench.flower.arrays import Arrays, arrays_of, is_parameter
from leakbench.flower.leaks import Leak, write_leak
from leakbench.flower.whereabouts import is_train, partition_of, round_of
from leakbench.own.observed import Observed, listening, listens
from leakbench.own.stepped import once_graded, rates, unusual
from leakbench.types import Parameters

__all__ = ["StepProbeMod"]

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
