"""What a running training shows: the batches that `observe` gets, and the moment and the settings of optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.optim import Optimizer

from leakbench.core.imported import reason_of
from leakbench.core.types import Parameters, plain_tensor
from leakbench.core.working_copy import differentiated, working_copies
from leakbench.external.network import keeps_statistics, mixes_batch, mode_of
from leakbench.models.conversion import unwrapped_model

__all__ = [
    "PLAIN",
    "UNROLLED",
    "Loss",
    "ObservedBatches",
    "PrivateGradients",
    "StepHook",
    "learning_rates",
    "observe",
    "observed_here",
    "observing",
    "on_gradient",
    "private_gradients",
    "record_batch",
    "unrolled_settings",
    "unusual_settings",
]

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(logits (B, classes), labels (B,)) -> the loss, as `torch.nn.functional.cross_entropy`."""

StepHook: TypeAlias = Callable[[Optimizer, Any, Any], "tuple[Any, Any] | None"]
"""A pre-hook of an optimizer's step: (optimizer, args, kwargs) -> the args and kwargs to use instead, or None."""

UNROLLED = {"SGD": "sgd", "Adam": "adam"}
"""{optimizer of PyTorch: leakbench's optimizer whose steps an attacker unrolls}."""

PLAIN: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False},
    "Adam": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False, "maximize": False},
}
"""{optimizer of PyTorch: the settings of the steps that an attacker unrolls, without those of `unrolled_settings`}."""

MIXED = "batch normalisation in train mode takes its statistics from the whole batch, so that no single example has a gradient"

UNLEFT = "Opacus left no gradients of single examples, as with ghost clipping"

LONGEST = 200
"""Characters of a user's error that are repeated."""


@dataclass
class ObservedBatches:
    """The batches of one client's training, as `observe` got them.

    Args:
        inputs: Inputs (B, *s) of each local step.
        labels: Labels (B,) of each local step.
        examples: {p: (B, *p)}, each example's gradient in the first step.
        names: {id of a parameter: its name in the model}.
        mode: `train` or `eval`, the mode of the normalisations; empty before the first batch.
        note: Reason why gradients of single examples are missing; empty if they exist.
        fault: Reason why a batch could not be recorded; empty if all were.
    """

    inputs: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)
    examples: Parameters = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    mode: str = ""
    note: str = ""
    fault: str = ""


ACTIVE: ContextVar[ObservedBatches | None] = ContextVar("leakbench.observe", default=None)
"""Where `observe` records in this thread."""


@contextmanager
def observing() -> Iterator[ObservedBatches]:
    """Let `observe` record into the yielded object, within this block and thread."""
    batches = ObservedBatches()
    token = ACTIVE.set(batches)
    try:
        yield batches
    finally:
        ACTIVE.reset(token)


def observed_here(batches: ObservedBatches) -> bool:
    """Return whether `observe` records into this object in this thread; clients may train in several threads."""
    return ACTIVE.get() is batches


def observe(x: Tensor, y: Tensor, model: nn.Module, loss_fn: Loss) -> None:
    """Record the batch of a local step, and each example's gradient in the first step, if a tap is active.

    Call it before the step. Neither the model nor its gradients change. Without a tap, it does nothing.

    Args:
        x: Inputs (B, *s).
        y: Labels (B,) as `loss_fn` takes them, or (B, classes) of ones and zeros.
        model: The model with the parameters of the step.
        loss_fn: Loss of logits (B, classes) and y; it is called with batches of one.
    """
    batches = ACTIVE.get()
    if batches is not None:
        record_batch(batches, x, y, model, loss_fn)


def record_batch(batches: ObservedBatches, x: Tensor, y: Tensor, model: nn.Module, loss_fn: Loss | None) -> None:
    """Record a batch, as `observe`; an error is noted in `batches.fault` and does not end the training.

    Args:
        batches: Where to record.
        x: Inputs (B, *s).
        y: Labels (B,) or (B, classes).
        model: The model.
        loss_fn: The loss; None to compute no gradients of single examples.
    """
    try:
        if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.dim() and y.dim() and len(x) == len(y)):
            raise TypeError(f"got {_shape(x)} and {_shape(y)}, expected tensors (B, *s) and (B,)")
        # Opacus computes these gradients itself, and its hooks would take a second pass for one of the training's.
        loss_fn = None if hasattr(model, "disable_hooks") else loss_fn
        model = unwrapped_model(model)
        with differentiated():
            inputs, labels = (plain_tensor("probe", n, t).cpu().clone() for n, t in (("x", x), ("y", y)))
            labels = _classes(labels)
            if not batches.inputs:
                batches.names = {id(p): name for name, p in model.named_parameters()}
                batches.mode = mode_of(model)
                batches.note = MIXED if mixes_batch(model) else ""
                if loss_fn is not None and not batches.note:
                    _record_examples(batches, x, y, model, loss_fn)
    except Exception as error:  # A user's tensors and model may fail in any way.
        batches.fault = " ".join(reason_of(error).split())
        return
    batches.inputs.append(inputs)
    batches.labels.append(labels)


def _shape(given: object) -> str:
    return f"({', '.join(map(str, given.shape))})" if isinstance(given, Tensor) else type(given).__name__


def _classes(y: Tensor) -> Tensor:
    """Return the classes of one-hot labels (B, classes); other labels as they are."""
    one_hot = (
        y.dim() == 2 and y.shape[1] > 1 and bool(((y == 1).sum(1) == 1).all()) and bool(((y == 0) | (y == 1)).all())
    )
    return y.argmax(1) if one_hot else y


def _record_examples(batches: ObservedBatches, x: Tensor, y: Tensor, model: nn.Module, loss_fn: Loss) -> None:
    try:
        batches.examples = _example_gradients(x, y, model, loss_fn)
    except Exception as error:  # The loss or the network cannot be mapped over examples.
        why = " ".join(reason_of(error).split())
        batches.note = f"single examples' gradients cannot be computed: {why[:LONGEST]}{'...' * (len(why) > LONGEST)}"


def _example_gradients(x: Tensor, y: Tensor, model: nn.Module, loss_fn: Loss) -> Parameters:
    """Return {p: (B, *p)} of the trained parameters, from copies of everything, so that nothing of the training changes."""
    with working_copies(model, loss_fn) as (own, own_loss), torch.enable_grad():
        trained = {name: p.detach() for name, p in own.named_parameters() if p.requires_grad}
        buffers = dict(own.named_buffers())
        keeping = [name for name, module in own.named_modules() if keeps_statistics(module) and module.training]
        # Running statistics are written from one example, so each example needs its own.
        each = {n: b.expand(len(x), *b.shape).clone() for n, b in buffers.items() if n.rpartition(".")[0] in keeping}

        def loss(parameters: Parameters, one: Tensor, label: Tensor, shared: Parameters, alone: Parameters) -> Tensor:
            found: Tensor = own_loss(functional_call(own, {**shared, **alone, **parameters}, (one[None],)), label[None])
            return found

        found: Parameters = vmap(grad(loss), in_dims=(None, 0, 0, None, 0), randomness="different")(
            trained, x.detach().clone(), y.detach().clone(), buffers, each
        )
    return {name: g.detach().cpu() for name, g in found.items()}


@dataclass(frozen=True)
class PrivateGradients:
    """The gradients of single examples that Opacus left at the parameters.

    Args:
        examples: {key of a parameter: (B, *p)}; {} for none.
        first: Number of observed examples of the step before the first of these, which are in an earlier physical batch; None if
            not all of these were observed.
        note: Reason why they are left out; empty if they exist, or if Opacus is not used.
    """

    examples: dict[Any, Tensor] = field(default_factory=dict)
    first: int | None = 0
    note: str = ""


def private_gradients(parameters: Mapping[Any, Tensor], labels: Sequence[Tensor]) -> PrivateGradients:
    """Return the gradients of single examples that Opacus left in a step.

    After virtual steps, as of its `BatchMemoryManager`, they are those of the last physical batch. Several backward passes
    without a step leave a list of them.

    Args:
        parameters: {key: parameter} of the trained parameters of an optimizer.
        labels: The observed labels of each physical batch of the step; () if none were observed.
    """
    left = {key: getattr(p, "grad_sample", None) for key, p in parameters.items()}
    if not any(hasattr(p, "grad_sample") for p in parameters.values()):
        return PrivateGradients()
    found: dict[Any, Tensor] = {}
    for key, sample in left.items():
        several = sample if isinstance(sample, list) else [sample]
        if not several or not all(isinstance(one, Tensor) for one in several):
            return PrivateGradients(note=UNLEFT)
        found[key] = torch.cat([plain_tensor("grad_sample", str(key), one).cpu() for one in several])
    rows, *others = {len(sample) for sample in found.values()}
    sizes = [0]
    for one in reversed(labels):
        sizes.append(sizes[-1] + len(one))
    if labels and not others and rows > sizes[-1]:
        return PrivateGradients(found, None)
    if others or (labels and rows not in sizes):
        counts = " and ".join(map(str, sorted({rows, *others})))
        return PrivateGradients(note=f"Opacus left gradients of {counts} examples, not those of whole observed batches")
    return PrivateGradients(found, sizes[-1] - rows if labels else 0)


def learning_rates(optimizer: Optimizer) -> set[float]:
    """Return the learning rates of all groups."""
    return {float(group["lr"]) for group in optimizer.param_groups if "lr" in group}


def unrolled_settings(optimizer: Optimizer) -> dict[str, float]:
    """Return momentum and weight decay as an attacker unrolls them, {setting: value}; without those it cannot unroll.

    It unrolls settings that all groups share, and momentum without dampening or Nesterov's change.
    """
    names = {"SGD": ("momentum", "weight_decay"), "Adam": ("weight_decay",)}.get(type(optimizer).__name__, ())
    odd = any(group.get("dampening") or group.get("nesterov") for group in optimizer.param_groups)
    found = {}
    for name in names:
        values = {float(group[name]) for group in optimizer.param_groups}
        if len(values) == 1 and not (name == "momentum" and odd):
            found[name] = values.pop()
    return found


def unusual_settings(optimizer: Optimizer) -> dict[str, Any]:
    """Return {setting: value} of any group that differs from how SGD or Adam is unrolled; {} for other optimizers.

    Momentum and weight decay of `unrolled_settings` are left out.
    """
    found: dict[str, Any] = {}
    unrolled = unrolled_settings(optimizer)
    for group in optimizer.param_groups:
        for setting, plain in PLAIN.get(type(optimizer).__name__, {}).items():
            got = group.get(setting, plain)
            got = float(got) if isinstance(got, Tensor) else tuple(got) if isinstance(got, list) else got
            if got != plain and setting not in unrolled:
                found.setdefault(setting, got)
    return found


def on_gradient(record: Callable[[Optimizer], object]) -> StepHook:
    """Return a pre-hook that calls `record` once in each step, when the gradient is available.

    If a step gets a closure, as from Lightning and for LBFGS, that is after the closure's first call.
    """

    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            record(optimizer)
            return None
        called = False

        def recorded() -> Any:
            nonlocal called
            loss = closure()
            if not called:
                called = True
                record(optimizer)
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": recorded}
        return (args[0], recorded, *args[2:]), kwargs

    return hook
