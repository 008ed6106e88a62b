"""What a training loop lets hear: the steps of its optimizers, by which gradients, on which batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from leakbench.imported import said
from leakbench.own.modes import mixes, trains
from leakbench.own.observed import Observed
from leakbench.own.stepped import Begins, odd, once_graded, rates
from leakbench.types import Parameters

__all__ = ["Heard", "Step", "listener", "unwrapped_model"]


@dataclass
class Step:
    """One step: the names of the parameters that moved, the batches observed since the step before, and by what it was made.

    Args:
        odd: How its optimizer is none that is unrolled, in words; empty where it is.
    """

    names: set[str]
    inputs: list[Tensor]
    labels: list[Tensor]
    optimizer: str
    rates: set[float]
    odd: str

    @property
    def batch(self) -> int:
        """How many examples were observed, of all microbatches; 0 where none was."""
        return sum(map(len, self.labels))


@dataclass
class Heard:
    """The steps, and of the first of them the gradient {p: (*p)}, single examples' {p: (B, *p)}, and the mode of the model.

    Args:
        before: {name: array} of parameters and buffers, at first as they were when hearing began, then as the first step found
            them.
        after: {p: (*p)} once the last step so far was made.
        mixes: Whether no single example had a gradient, see `modes.mixes`.
        ended: Whether as many steps were made as count.
        late: Whether a batch was observed after them.
        fault: Why a step could not be heard; empty where each could.
    """

    before: Parameters = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    gradient: Parameters = field(default_factory=dict)
    samples: Parameters = field(default_factory=dict)
    after: Parameters = field(default_factory=dict)
    mode: str = "eval"
    mixes: bool = False
    ended: bool = False
    late: bool = False
    fault: str = ""


Ends = Callable[[Optimizer, Any, Any], None]


def listener(model: nn.Module, heard: Heard, observed: Observed, most: int | None) -> tuple[Begins, Ends]:
    """Return a pre-hook and a post-hook of optimizers that hear the steps on a model's parameters, `most` of them.

    Of an optimizer that gets a closure, as Lightning and LBFGS do it, the gradient is what its first call leaves. A step that
    cannot be heard is made all the same.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    batches = [0]
    heard.before = _state(model)

    def held_by(optimizer: Optimizer) -> dict[str, Any]:
        return {names[id(p)]: p for group in optimizer.param_groups for p in group["params"] if id(p) in names}

    def hear(optimizer: Optimizer, held: Mapping[str, Any]) -> None:
        inputs, labels = observed.inputs[batches[0] :], observed.labels[batches[0] :]
        if heard.steps and not inputs and heard.steps[-1].names.isdisjoint(held):
            _joins(heard, optimizer, held)  # Another optimizer of the same step.
            return
        batches[0] = len(observed.inputs)
        step = Step(set(held), inputs, labels, type(optimizer).__name__, rates(optimizer), odd(optimizer))
        if not heard.steps:
            heard.gradient, heard.samples = _gradients(held), _samples(held)
            heard.mode, heard.mixes = "train" if trains(model) else "eval", mixes(model)
            heard.before = _found(model, heard)
        heard.steps.append(step)

    def unless_it_fails(act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # Whatever an optimizer or a tensor is not like: the training goes on.
            heard.fault, heard.ended = said(error), True

    graded = once_graded(lambda optimizer: unless_it_fails(lambda: hear(optimizer, held_by(optimizer))))

    def begins(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        held = held_by(optimizer)
        if not held or heard.ended:
            return None
        other = bool(heard.steps) and heard.steps[-1].names.isdisjoint(held)
        if most is not None and len(heard.steps) == most and not other:
            heard.ended = True
            return None
        return graded(optimizer, args, kwargs)

    def ends(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if heard.steps and not heard.ended and held_by(optimizer):
            unless_it_fails(lambda: heard.after.update(_copied(dict(model.named_parameters()))))

    return begins, ends


def _state(model: nn.Module) -> Parameters:
    """Return a copy of a model's parameters and buffers, but those of lazy modules that have no shape yet."""
    return _copied({n: t for n, t in model.state_dict().items() if isinstance(t, Tensor) and not is_lazy(t)})


def _copied(tensors: Mapping[str, Tensor]) -> Parameters:
    return {name: t.detach().cpu().clone() for name, t in tensors.items()}


def _found(model: nn.Module, heard: Heard) -> Parameters:
    """Return what the first step finds; buffers that its own forward pass has moved as they were, where no weights were loaded."""
    now = _state(model)
    moved = any(
        n not in heard.before or not torch.equal(p.detach().cpu(), heard.before[n]) for n, p in model.named_parameters()
    )
    return now if moved or heard.mode == "eval" else heard.before


def _joins(heard: Heard, optimizer: Optimizer, held: Mapping[str, Any]) -> None:
    step = heard.steps[-1]
    if len(heard.steps) == 1:
        heard.gradient |= _gradients(held)
        heard.samples = {}
    step.names |= set(held)
    step.rates |= rates(optimizer)
    step.odd = step.odd or odd(optimizer)
    if step.optimizer != type(optimizer).__name__:
        step.odd = f"of {step.optimizer} and {type(optimizer).__name__} together"


def _gradients(held: Mapping[str, Any]) -> Parameters:
    """Return {p: (*p)}; zeros of a parameter that the loss did not reach."""
    return {
        name: (p.detach() * 0 if p.grad is None else p.grad.detach()).cpu().clone()
        for name, p in held.items()
        if p.requires_grad
    }


def _samples(held: Mapping[str, Any]) -> Parameters:
    """Return {p: (B, *p)} that Opacus left at every parameter; {} where it did not."""
    trained = {name: p for name, p in held.items() if p.requires_grad}
    left = {name: getattr(p, "grad_sample", None) for name, p in trained.items()}
    if not all(isinstance(sample, Tensor) for sample in left.values()):
        return {}
    return {name: sample.detach().cpu().clone() for name, sample in left.items() if isinstance(sample, Tensor)}


def unwrapped_model(model: nn.Module) -> nn.Module:
    """Return the module that Opacus, a parallel wrapper or torch.compile holds; else the model."""
    for name in ("_module", "module", "_orig_mod"):
        held = getattr(model, name, None)
        if (
            isinstance(held, nn.Module)
            and not list(model.named_parameters(recurse=False))
            and len([*model.children()]) == 1
        ):
            return unwrapped_model(held)
    return model
