"""The one line in a client's training loop that shows single examples' gradients to a probe, if one listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from leakbench.models.batch_norm import mixes_examples
from leakbench.types import Parameters

__all__ = ["Observed", "listening", "listens", "observe", "show"]

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(logits (B, classes), labels (B,)) -> the loss, as `torch.nn.functional.cross_entropy`."""

MIXED = "batch normalisation in train mode takes its statistics from the whole batch, so that no single example has a gradient"


@dataclass
class Observed:
    """What was observed while one client trained.

    inputs, labels: of each local step, (B, *s) and (B,).  examples: {p: (B, *p)}, each example's gradient in the first step.
    names: {id of a parameter: its name in the model}.  note: why there are no gradients of single examples; empty where there are.
    """

    inputs: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    examples: Parameters = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    note: str = ""


ACTIVE: ContextVar[Observed | None] = ContextVar("leakbench.own.observe", default=None)
"""Who listens in this thread."""


@contextmanager
def listening() -> Iterator[Observed]:
    """Let `observe` tell the object that is yielded, within this block and thread."""
    observed = Observed()
    token = ACTIVE.set(observed)
    try:
        yield observed
    finally:
        ACTIVE.reset(token)


def listens(observed: Observed) -> bool:
    """Say whether it is told in this thread; clients may train in several."""
    return ACTIVE.get() is observed


def observe(x: Tensor, y: Tensor, model: nn.Module, loss_fn: Loss) -> None:
    """Show a probe the batch of a local step, and of the first step every example's gradient; does nothing where none listens.

    Call it before the step. x: (B, *s).  y: (B,), labels as `loss_fn` takes them.  model: with the parameters of the step.
    loss_fn: of logits (B, classes) and y; it is called with batches of one. Neither the model nor its gradients are changed.
    """
    observed = ACTIVE.get()
    if observed is not None:
        show(observed, x, y, model, loss_fn)


def show(observed: Observed, x: Tensor, y: Tensor, model: nn.Module, loss_fn: Loss | None) -> None:
    """Tell one that listens, whoever it is; as `observe`. loss_fn: None where nobody asks for single examples' gradients."""
    if not observed.inputs:
        observed.names = {id(p): name for name, p in model.named_parameters()}
        observed.note = MIXED if _mixes(model) else ""
        observed.examples = {} if observed.note or loss_fn is None else _each(x, y, model, loss_fn)
    observed.inputs.append(x.detach().cpu().clone())
    observed.labels.append(y.detach().cpu().clone())


def _mixes(model: nn.Module) -> bool:
    norms = (m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    return mixes_examples(model) or any(m.training or m.running_mean is None for m in norms)


def _each(x: Tensor, y: Tensor, model: nn.Module, loss_fn: Loss) -> Parameters:
    """Return {p: (B, *p)} of the parameters that are trained."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def loss(parameters: Parameters, one: Tensor, label: Tensor) -> Tensor:
        return loss_fn(functional_call(model, parameters, (one[None],)), label[None])

    with torch.enable_grad():
        found: Parameters = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")(
            trained, x.detach(), y.detach()
        )
    return {name: g.detach().cpu() for name, g in found.items()}
