"""How an optimizer steps: by what rates and settings, as an attacker unrolls it or not, and when its gradient is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim import Optimizer

from leakbench.external.network import keeps, mixes, trains
from leakbench.imported import said
from leakbench.models.batch_norm import mixes_examples
from leakbench.types import Parameters

__all__ = [
    "UNROLLED",
    "Begins",
    "Observed",
    "listening",
    "listens",
    "observe",
    "odd",
    "once_graded",
    "rates",
    "show",
    "unusual",
]


UNROLLED = {"SGD": "sgd", "Adam": "adam"}
"""{optimizer of PyTorch: how leakbench's clients step}."""

PLAIN: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False},
    "Adam": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False, "maximize": False},
}
"""{optimizer of PyTorch: the settings with which an attacker unrolls its steps}."""

Begins: TypeAlias = Callable[[Optimizer, Any, Any], "tuple[Any, Any] | None"]
"""A pre-hook of an optimizer's step: (optimizer, args, kwargs) -> others in their stead, or None."""


def rates(optimizer: Optimizer) -> set[float]:
    """Return the learning rates of all groups."""
    return {float(group["lr"]) for group in optimizer.param_groups if "lr" in group}


def unusual(optimizer: Optimizer) -> dict[str, Any]:
    """Return {setting: value} by which an optimizer steps otherwise than it is unrolled, of any group; {} for one that is not."""
    found: dict[str, Any] = {}
    for group in optimizer.param_groups:
        for setting, plain in PLAIN.get(type(optimizer).__name__, {}).items():
            got = group.get(setting, plain)
            got = float(got) if isinstance(got, Tensor) else tuple(got) if isinstance(got, list) else got
            if got != plain:
                found.setdefault(setting, got)
    return found


def odd(optimizer: Optimizer) -> str:
    """Return how an optimizer does not step by plain gradients or torch's Adam, in words; empty where it does."""
    name = type(optimizer).__name__
    if name not in PLAIN:
        return f"of {name}"
    return next((f"of {name} with {what.replace('_', ' ')} {got}" for what, got in unusual(optimizer).items()), "")


def once_graded(hear: Callable[[Optimizer], None]) -> Begins:
    """Return a pre-hook that calls `hear` once a step when the gradient is there.

    Of a step that gets a closure, as Lightning and LBFGS do it, that is what the closure's first call leaves.
    """

    def begins(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            hear(optimizer)
            return None
        called = [False]

        def told() -> Any:
            loss = closure()
            if not called[0]:
                called[0] = True
                hear(optimizer)
            return loss

        return ((args[0], told, *args[2:]), kwargs) if "closure" not in kwargs else (args, {**kwargs, "closure": told})

    return begins


Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(logits (B, classes), labels (B,)) -> the loss, as `torch.nn.functional.cross_entropy`."""

MIXED = "batch normalisation in train mode takes its statistics from the whole batch, so that no single example has a gradient"


SAID = 200
"""How much of somebody's error is repeated."""


@dataclass
class Observed:
    """What was observed while one client trained.

    Args:
        inputs: Of each local step, (B, *s) and (B,).
        labels: Of each local step, (B, *s) and (B,).
        examples: {p: (B, *p)}, each example's gradient in the first step.
        names: {id of a parameter: its name in the model}.
        mode: `train` or `eval`, as its normalisations were; empty where nothing was shown.
        note: Why there are no gradients of single examples; empty where there are.
        fault: Why a batch could not be shown; empty where each could.
    """

    inputs: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    examples: Parameters = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    mode: str = ""
    note: str = ""
    fault: str = ""


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

    Call it before the step.

    Args:
        x: (B, *s).
        y: (B,), labels as `loss_fn` takes them, or (B, classes) of ones and zeros.
        model: With the parameters of the step.
        loss_fn: Of logits (B, classes) and y; it is called with batches of one. Neither the model nor its gradients are changed.
    """
    observed = ACTIVE.get()
    if observed is not None:
        show(observed, x, y, model, loss_fn)


def show(observed: Observed, x: Tensor, y: Tensor, model: nn.Module, loss_fn: Loss | None) -> None:
    """Tell one that listens, whoever it is; as `observe`.

    What cannot be shown is noted in the stead of ending the training.

    Args:
        loss_fn: None where nobody asks for single examples' gradients.
    """
    try:
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.dim() and y.dim() and len(x) == len(y)):
            raise TypeError(f"got {_shape(x)} and {_shape(y)}, expected tensors (B, *s) and (B,)")
        if not observed.inputs:
            observed.names = {id(p): name for name, p in model.named_parameters()}
            observed.mode = "train" if trains(model) else "eval"
            observed.note = MIXED if mixes_examples(model) or mixes(model) else ""
            if loss_fn is not None and not observed.note:
                _show_each(observed, x, y, model, loss_fn)
        inputs, labels = x.detach().cpu().clone(), _classes(y.detach().cpu().clone())
    except Exception as error:  # Whatever the user's tensors are not like.
        observed.fault = " ".join(said(error).split())
        return
    observed.inputs.append(inputs)
    observed.labels.append(labels)


def _shape(given: object) -> str:
    return f"({', '.join(map(str, given.shape))})" if isinstance(given, Tensor) else type(given).__name__


def _classes(y: Tensor) -> Tensor:
    """Return the classes of labels (B, classes) of which each is one alone; others as they are."""
    alone = y.dim() == 2 and y.shape[1] > 1 and bool(((y == 1).sum(1) == 1).all()) and bool(((y == 0) | (y == 1)).all())
    return y.argmax(1) if alone else y


def _show_each(observed: Observed, x: Tensor, y: Tensor, model: nn.Module, loss_fn: Loss) -> None:
    try:
        observed.examples = _each(x, y, model, loss_fn)
    except Exception as error:  # A loss or a network that cannot be mapped over examples.
        why = " ".join(said(error).split())
        observed.note = f"single examples' gradients cannot be computed: {why[:SAID]}{'...' * (len(why) > SAID)}"


def _each(x: Tensor, y: Tensor, model: nn.Module, loss_fn: Loss) -> Parameters:
    """Return {p: (B, *p)} of the parameters that are trained; neither buffers nor the random numbers of the training move."""
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
    keeping = [name for name, module in model.named_modules() if keeps(module) and module.training]
    own = {name: b for name, b in buffers.items() if name.rpartition(".")[0] in keeping}
    # Running statistics are written from one example, and so are of each.
    each = {name: b.expand(len(x), *b.shape).clone() for name, b in own.items()}

    def loss(parameters: Parameters, one: Tensor, label: Tensor, shared: Parameters, alone: Parameters) -> Tensor:
        return loss_fn(functional_call(model, {**shared, **alone, **parameters}, (one[None],)), label[None])

    devices = sorted({p.device.index for p in trained.values() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices), torch.enable_grad():
        found: Parameters = vmap(grad(loss), in_dims=(None, 0, 0, None, 0), randomness="different")(
            trained, x.detach(), y.detach(), buffers, each
        )
    return {name: g.detach().cpu() for name, g in found.items()}
