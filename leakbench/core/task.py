"""What a network is trained to answer: the parts of its targets, and the loss of an example.

A target is one vector of numbers for each example. Its parts are the targets of the network's heads, one after the other. A head
names classes, decides labels that do not exclude each other, or estimates numbers, for the whole example or for each place of a
grid, such as the pixels of a mask.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn
from torch.func import vmap

from leakbench.core.errors import InputError
from leakbench.core.imported import failing_as, import_function

__all__ = [
    "CLASSIFICATION",
    "Head",
    "Heads",
    "LossFunction",
    "Task",
    "heads_from",
    "heads_of",
    "is_classification",
    "loss_function",
    "pinned_loss",
    "squared_error",
    "task_content",
    "task_of",
    "with_task",
]

Kind: TypeAlias = Literal["classes", "labels", "numbers"]

KINDS: tuple[Kind, ...] = ("classes", "labels", "numbers")

MOST = 10_000_000
"""Largest size of a head."""

LossFunction: TypeAlias = Callable[[Any, Any], Tensor]
"""(outputs of a batch, targets of a batch) -> the loss of each example (n,), or their mean."""


@runtime_checkable
class Task(Protocol):
    """The loss of examples, and what counts as a right answer."""

    def losses(self, outputs: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses (n,) of examples from the network's outputs, the inputs (n, *s) and the targets (n, k)."""

    def answered(self, outputs: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return (n,) twice, whose sums over all examples have the quotient that is reported as the accuracy."""


@dataclass(frozen=True)
class Head:
    """One of a network's answers.

    Args:
        name: Name for messages and reports.
        kind: `classes`: one of `width` classes, by softmax and cross-entropy. `labels`: `width` labels, each 0 or 1, by sigmoid and
            binary cross-entropy. `numbers`: `width` numbers, by squared error.
        width: Number of outputs at each place.
        places: Grid (H, W) of places with an answer each; empty for one answer for the whole example.
        center: Mean of the test targets of `numbers`, from which explained variance is measured; empty for other kinds.
    """

    name: str
    kind: Kind
    width: int
    places: tuple[int, ...] = ()
    center: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Number of numbers of its target."""
        return self.width * math.prod(self.places)

    @property
    def output(self) -> tuple[int, ...]:
        """Shape of its output for one example, channels first."""
        return (self.width, *self.places)

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the losses (n,), means over places, labels and numbers.

        Args:
            output: (n, width, *places), logits or numbers.
            target: (n, *places, width).
        """
        z = output.movedim(1, -1)
        if self.kind == "classes":
            each = -(target * torch.log_softmax(z, dim=-1)).sum(-1)
        elif self.kind == "labels":
            each = (torch.nn.functional.softplus(z) - target * z).mean(-1)
        else:
            each = (z - target).square().mean(-1)
        return each.flatten(1).mean(1) if self.places else each

    def answered(self, output: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return (n,) twice: right answers and answers; for numbers, explained and whole squares around `center`.

        The argmax of NaN would count as an answer, so that an output that is not finite is wrong.
        """
        z = output.movedim(1, -1)
        finite = z.isfinite().flatten(1).all(1)
        if self.kind == "numbers":
            whole = (target - target.new_tensor(self.center)).square().flatten(1).sum(1)
            rest = (z - target).square().flatten(1).sum(1)
            return torch.where(finite, whole - rest, -whole), whole
        right = z.argmax(-1) == target.argmax(-1) if self.kind == "classes" else (z > 0) == (target > 0.5)
        right = right.reshape(len(z), -1)
        return right.sum(1) * finite, torch.full_like(finite, right.shape[1], dtype=torch.int64)

    def possible(self, free: Tensor) -> Tensor:
        """Return targets (..., *places, width) that are possible or between possible ones, from free numbers; differentiable."""
        if self.kind == "classes":
            return free.softmax(-1)
        return free.sigmoid() if self.kind == "labels" else free

    def decided(self, target: Tensor) -> Tensor:
        """Return the nearest possible target (..., *places, width)."""
        if self.kind == "numbers":
            return target
        if self.kind == "labels":
            return (target > 0.5).to(target)
        return torch.nn.functional.one_hot(target.argmax(-1), self.width).to(target)

    def error(self, guess: Tensor, target: Tensor) -> Tensor:
        """Return (...): the share of wrong answers, for numbers the mean absolute difference.

        Args:
            guess: (..., *places, width), decided; NaN without a guess.
            target: The truth, likewise.
        """
        if self.kind == "classes":
            wrong = (guess.argmax(-1) != target.argmax(-1)).to(target)
            each = torch.where(guess.isfinite().all(-1), wrong, torch.nan)
            return each.flatten(-len(self.places)).mean(-1) if self.places else each
        apart = (guess - target).abs()
        return apart.flatten(-1 - len(self.places)).mean(-1)


@dataclass(frozen=True)
class Heads:
    """A task of one or several heads, whose losses are added.

    Args:
        heads: The heads, in the order of their targets and of the network's outputs; one with the width 0 for classification, whose
            number of classes the targets give.
        function: A user's own loss in place of the sum; None for the sum. With one head it gets the output and the target of
            the head, with several heads the network's output as it is and a tuple of targets. Targets are (n, width), or
            (n, width, *places).
        name: Name of the loss for messages and reports.
    """

    heads: tuple[Head, ...]
    function: LossFunction | None = None
    name: str = "class"

    @property
    def size(self) -> int:
        """Number k of numbers of a target."""
        return sum(head.size for head in self.heads)

    def split(self, targets: Tensor) -> tuple[Tensor, ...]:
        """Return the targets (..., *places, width) of the heads from whole targets (..., k)."""
        parts = torch.split(targets, [head.size for head in self.heads], -1)
        return tuple(
            part.reshape(*targets.shape[:-1], *head.places, head.width)
            for head, part in zip(self.heads, parts, strict=True)
        )

    def joined(self, parts: tuple[Tensor, ...]) -> Tensor:
        """Return whole targets (..., k) from the targets (..., *places, width) of the heads."""
        return torch.cat(
            [part.flatten(part.dim() - 1 - len(head.places)) for head, part in zip(self.heads, parts, strict=True)], -1
        )

    def start(self, normal: Tensor) -> Tensor:
        """Return the start (..., k) of a search of free numbers from N(0, 1) draws.

        It is near targets without a preference, and for numbers near their center. From draws of deviation 1, searches with
        second derivatives do not leave the gradient of a wrong class.
        """
        parts = (
            part / 10 + part.new_tensor(head.center) if head.kind == "numbers" else part / 10
            for head, part in zip(self.heads, self.split(normal), strict=True)
        )
        return self.joined(tuple(parts))

    def possible(self, free: Tensor) -> Tensor:
        """Return targets (..., k) from free numbers (..., k), see `Head.possible`."""
        return self.joined(tuple(h.possible(part) for h, part in zip(self.heads, self.split(free), strict=True)))

    def decided(self, targets: Tensor) -> Tensor:
        """Return the nearest possible targets (..., k)."""
        return self.joined(tuple(h.decided(part) for h, part in zip(self.heads, self.split(targets), strict=True)))

    def blind(self) -> Tensor:
        """Return the constant guess (1, k) without any data: the first class, no label, and the center of numbers."""
        return self.decided(self.possible(self.start(torch.zeros(1, self.size))))

    def usual(self, targets: Tensor) -> Tensor:
        """Return the best constant guess (k,) from known targets (P, k): the most frequent class or label, the median number."""
        parts = (
            part.median(0).values if head.kind == "numbers" else head.decided(part.mean(0))
            for head, part in zip(self.heads, self.split(targets), strict=True)
        )
        return self.joined(tuple(parts))

    def error(self, guess: Tensor, targets: Tensor) -> Tensor:
        """Return (...): the mean over the heads of `Head.error`, for whole targets (..., k)."""
        pairs = zip(self.heads, self.split(guess), self.split(targets), strict=True)
        return torch.stack([head.error(g, t) for head, g, t in pairs]).mean(0)

    def losses(self, outputs: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the losses (n,) of examples; see `Task`."""
        if self.function is not None:
            return self._own(outputs, targets)
        first, *others = [head.losses(z, t) for head, z, t in self._of_heads(outputs, targets)]
        return sum(others, first)

    def answered(self, outputs: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums over the heads; see `Task`. Heads of numbers count only without other heads."""
        several = any(head.kind != "numbers" for head in self.heads)
        each = [
            head.answered(z, t)
            for head, z, t in self._of_heads(outputs, targets)
            if not (several and head.kind == "numbers")
        ]
        # Every head has the same weight, although a mask has many more answers than a class.
        if len(each) == 1:
            return each[0]
        shares = torch.stack([right / asked.clamp_min(1) for right, asked in each]).mean(0)
        return shares, torch.ones_like(shares)

    def _of_heads(self, outputs: Any, targets: Tensor) -> Iterator[tuple[Head, Tensor, Tensor]]:
        """Return the heads, each with its outputs (n, width, *places) and its targets (n, *places, width)."""
        if not self.size:  # Plain classification.
            return iter([(self.heads[0], outputs, targets)])
        return zip(self.heads, self._outputs(outputs), self.split(targets), strict=True)

    def _outputs(self, outputs: Any) -> tuple[Tensor, ...]:
        """Return the heads' outputs (n, width, *places) from a tensor, a tuple, a list or a dictionary of tensors.

        A network with a single flat output (n, k) has the numbers of all heads in the order of a target.

        Raises:
            InputError: For another number of outputs, or other shapes.
        """
        if isinstance(outputs, Tensor) and outputs.shape[1:] == (self.size,):
            return tuple(z.movedim(-1, 1) for z in self.split(outputs))
        several = tuple(outputs.values()) if isinstance(outputs, dict) else outputs
        several = (several,) if isinstance(several, Tensor) else tuple(several)
        got = [tuple(z.shape[1:]) for z in several]
        wanted = [head.output for head in self.heads]
        if got != wanted:
            # A head of one channel or one number may leave its axis out.
            squeezed = [o[1:] if o[0] == 1 else o for o in wanted]
            if len(got) != len(wanted) or any(g not in (w, s) for g, w, s in zip(got, wanted, squeezed, strict=True)):
                names = ", ".join(f"{head.name} {head.output}" for head in self.heads)
                raise InputError(
                    f"model: its outputs for one example have the shapes {got}, expected {names}; correct the network's heads"
                )
            several = tuple(z.reshape(len(z), *o) for z, o in zip(several, wanted, strict=True))
        return several

    def _own(self, outputs: Any, targets: Tensor) -> Tensor:
        """Return the losses (n,) of a user's function, which is called for one example at a time."""
        assert self.function is not None  # noqa: S101 - for mypy: only called with a function
        function = self.function
        parts = tuple(t.movedim(-1, 1) for t in self.split(targets))

        def one(z: Any, t: Any) -> Tensor:
            def first(x: Any) -> Any:
                if isinstance(x, Tensor):
                    return x[None]
                return {n: v[None] for n, v in x.items()} if isinstance(x, dict) else tuple(v[None] for v in x)

            with failing_as(f"loss: {self.name} fails on one example"):
                loss = function(first(z), first(t))
            if not isinstance(loss, Tensor) or loss.shape not in ((), (1,)):
                got = f"the shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
                raise InputError(
                    f"loss: {self.name} returns {got} for one example, expected a tensor with its loss, as (n,) of n examples or"
                    " as their mean; average over labels, numbers and places"
                )
            return loss.reshape(())

        losses: Tensor = vmap(one)(outputs, parts[0] if len(parts) == 1 else parts)
        return losses


def heads_from(text: str, loss: LossFunction | None = None) -> Heads:
    """Return the heads of words such as `labels:1x64x64,classes:10`: kinds, each with its width and places.

    Args:
        text: The words.
        loss: A user's function; None for the losses of the heads.

    Raises:
        InputError: For other words.
    """
    heads: list[Head] = []
    for word in text.split(","):
        kind, _, sizes = word.strip().partition(":")
        numbers = sizes.split("x")
        if kind not in KINDS or not all(n.isascii() and n.isdecimal() and 1 <= int(n) <= MOST for n in numbers):
            raise InputError(
                f"targets: got {word!r}, expected KIND:WIDTH or KIND:WIDTHxHEIGHTxWIDTH with one of {', '.join(KINDS)}, as"
                " labels:1x64x64,classes:10"
            )
        width, *places = map(int, numbers)
        heads.append(
            Head(f"{kind} {len(heads) + 1}", kind, width, tuple(places), (0.5,) * width if kind == "numbers" else ())
        )
    return Heads(tuple(heads), loss, "targets" if loss is None else getattr(loss, "__qualname__", "own"))


CLASSIFICATION = Heads((Head("class", "classes", 0),))
"""The task of a network without another one: classes by cross-entropy. Their number is that of the targets."""

TASK = "leakbench_task"
"""Attribute of a network that has its task."""


def task_of(model: nn.Module) -> Task:
    """Return the task of a network."""
    task: Task = getattr(model, TASK, CLASSIFICATION)
    return task


def with_task(model: nn.Module, task: Task) -> nn.Module:
    """Set the task of a network, and return the network."""
    setattr(model, TASK, task)
    return model


def is_classification(model: nn.Module) -> bool:
    """Return whether a network is trained to name the class of an example by cross-entropy."""
    return task_of(model) == CLASSIFICATION


def heads_of(model: nn.Module) -> Heads | None:
    """Return the heads of a network with another task than naming classes; None for classes and for next tokens."""
    task = task_of(model)
    return task if isinstance(task, Heads) and task != CLASSIFICATION else None


def squared_error(output: Tensor, target: Any) -> Tensor:
    """Return the mean squared error (n,) of an output from its target, both (n, width, *places).

    Raises:
        InputError: For several heads.
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        raise InputError("loss: squared takes a network with one head, got several; expected targets, or a function")
    return (output.reshape(target.shape) - target).square().flatten(1).mean(1)


def task_content(model: nn.Module) -> str:
    """Return what decides the losses of a network with heads, for the identity of what is learned from its gradients.

    The result is empty for classes, and for next tokens, whose network says so itself.
    """
    heads = heads_of(model)
    if heads is None:
        return ""
    return f"{replace(heads, function=None)}{'' if heads.function is None else _digest(heads.function)}"


def _digest(function: LossFunction) -> str:
    """Return the sha256 of the source of a function's module; raises OSError or TypeError if it cannot be read."""
    return hashlib.sha256(inspect.getsource(inspect.getmodule(function) or function).encode()).hexdigest()


def pinned_loss(text: str) -> str:
    """Return `package.module:function` with the sha256 of the module's source, which is part of a run's identity.

    Raises:
        InputError: If the function cannot be imported.
    """
    function = import_function("loss", text, str(Path.cwd()))
    try:
        digest = _digest(function)
    except (OSError, TypeError):
        raise InputError(f"loss: the source of {text!r} cannot be read; expected a function in a file") from None
    return f"{text}@{digest}"


def loss_function(pinned: str) -> LossFunction:
    """Return the function of `pinned_loss`; raises InputError if its module has changed."""
    text, _, digest = pinned.partition("@")
    if pinned_loss(text) != pinned:
        raise InputError(f"loss: the module of {text!r} has changed (sha256 {digest[:8]} before); start a new run")
    return import_function("loss", text, str(Path.cwd()))
