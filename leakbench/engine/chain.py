"""Networks that are a chain of known layers, and the gradient of their loss for many examples at once.

All networks of the papers are such chains. What is not (residual connections, normalisation, layers of one's own, networks that
sample) has no chain, and its gradients come from `torch.func`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakbench.engine.activations import ACTIVATIONS
from leakbench.engine.factored import Factored
from leakbench.engine.patches import Kernel
from leakbench.engine.steps import Affine, Crop, Flatten, MaxPool, Passed, Pointwise, Step
from leakbench.types import Parameters

__all__ = ["Chain", "ThereAndBack", "chain_of"]


@dataclass(frozen=True)
class Chain:
    """The layers of a network, first to last."""

    steps: tuple[Step, ...]

    def laid_out(self, parameters: Parameters) -> Parameters:
        """Return the same parameters, {p: (*p)} or {p: (K, *p)}, with weights of convolutions in memory as `gradient` reads them.

        Steps along its gradients, which lie alike, keep them so; else each local iteration would turn them once more.
        """
        kernels = [step for step in self.steps if isinstance(step, Affine) and step.kernel is not None]
        turned = {k.weight: parameters[k.weight].movedim(-3, -1).contiguous().movedim(-1, -3) for k in kernels}
        return {**parameters, **turned}

    def gradient(
        self, parameters: Parameters, shared: bool, inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Factored, ...]:
        """Return the gradient of every example's soft cross-entropy times its weight, layer by layer from the first.

        inputs (K, B, *s), targets (K, B, classes), weights (K, B); parameters {p: (*p)} if `shared`, else {p: (K, *p)}.
        """
        return self.there_and_back(parameters, shared, inputs, targets, weights).layers(parameters)

    def there_and_back(
        self, parameters: Parameters, shared: bool, inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> ThereAndBack:
        """Return what `gradient` is made of."""
        passed = self._passed(parameters, shared, inputs)
        chances = passed[-1].answer.softmax(-1)
        # The derivative of minus the sum of y log softmax(z), by z.
        delta = (chances * targets.sum(-1, keepdim=True) - targets) * weights[..., None]
        return self._back(passed, chances, delta)

    def pulled_back(
        self, parameters: Parameters, shared: bool, inputs: Tensor, cotangents: Tensor
    ) -> tuple[Tensor, tuple[Factored, ...]]:
        """Return the output (K, B, d) for inputs (K, B, *s), and the gradients of <cotangents, output> of every example.

        Args:
            cotangents: (K, B, d). The gradients come layer by layer from the first, as from `gradient`.
        """
        passed = self._passed(parameters, shared, inputs)
        answer = passed[-1].answer
        return answer, self._back(passed, answer, cotangents).layers(parameters)

    def _passed(self, parameters: Parameters, shared: bool, inputs: Tensor) -> list[Passed]:
        entering = inputs.movedim(2, -1) if inputs.dim() == 5 else inputs
        passed: list[Passed] = []
        for step in self.steps:
            passed.append(step(parameters, shared, entering))
            entering = passed[-1].answer
        return passed

    def _back(self, passed: list[Passed], chances: Tensor, delta: Tensor) -> ThereAndBack:
        deltas = [delta]
        for done in reversed(passed[self.first + 1 :]):
            deltas.append(done.back(deltas[-1]))
        return ThereAndBack(self, tuple(passed), chances, tuple(reversed(deltas)))

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether examples of that shape fit: convolutions and pools see pictures, linear layers rows.

        PyTorch's linear layers also act on the last side of more; such a network is no chain here.
        """
        sides = len(shape)
        for step in self.steps:
            if isinstance(step, Flatten):
                sides = 1
            elif isinstance(step, Affine | MaxPool) and sides != (1 if step.kernel is None else 3):
                return False
        return sides == 1

    @property
    def first(self) -> int:
        """The place of the first step that has weights."""
        return next(i for i, step in enumerate(self.steps) if isinstance(step, Affine))


@dataclass(frozen=True)
class ThereAndBack:
    """One passage through a chain.

    Args:
        passed: What each step did.
        chances: The softmax of the logits (K, B, classes).
        deltas: On the way back the derivatives of the loss by what left each step, from the first one with weights on.
    """

    chain: Chain
    passed: tuple[Passed, ...]
    chances: Tensor
    deltas: tuple[Tensor, ...]

    def layers(self, parameters: Parameters) -> tuple[Factored, ...]:
        """Return the gradients, layer by layer from the first."""
        found = []
        for step, done, delta in zip(
            self.chain.steps[-len(self.deltas) :], self.passed[-len(self.deltas) :], self.deltas, strict=True
        ):
            if isinstance(step, Affine) and done.columns is not None:
                found.append(
                    Factored(step, done.columns, delta.reshape(*done.columns.shape[:3], -1), parameters[step.weight])
                )
        return tuple(found)


def chain_of(model: nn.Module) -> Chain | None:
    """Return the chain that a model is; None where it is none."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward or _hooked(model):
        return None
    steps: list[Step] = []
    for name, layer in _layers(model, ""):
        step = _step(name, layer)
        if step is None:
            return None
        steps.append(step)
    steps = _cropped(_pooled_first(steps))
    # A parameter that stands for two layers has the gradient of both.
    alone = len({id(p) for p in model.parameters()}) == sum(1 for _ in model.named_parameters(remove_duplicate=False))
    return Chain(tuple(steps)) if alone and any(isinstance(s, Affine) for s in steps) else None


def _pooled_first(steps: list[Step]) -> list[Step]:
    """Return the same chain with pools before ReLUs: the largest of what is left is what is left of the largest.

    The ReLU and the way back through it then pass over a quarter of the numbers. Where all of a window are below zero, so is
    the largest, and nothing comes back either way.
    """
    steps = list(steps)
    for i in range(len(steps) - 1):
        one, other = steps[i], steps[i + 1]
        if isinstance(one, Pointwise) and type(one.function) is nn.ReLU and isinstance(other, MaxPool):
            steps[i], steps[i + 1] = other, one
    return steps


def _cropped(steps: list[Step]) -> list[Step]:
    """Return the same chain without the places that a stride leaves over, before the first kernel of each row that pads nothing."""
    found: list[Step] = []
    behind: tuple[Kernel, ...] = ()
    for step in reversed(steps):
        kernel = step.kernel if isinstance(step, Affine | MaxPool) else None
        ends = kernel is None or kernel.padding != (0, 0)
        if ends and not isinstance(step, Pointwise):
            found, behind = _with_crop(found, behind), ()
        elif kernel is not None:
            behind = (kernel, *behind)
        found.insert(0, step)
    return _with_crop(found, behind)


def _with_crop(steps: list[Step], behind: tuple[Kernel, ...]) -> list[Step]:
    return [Crop(behind), *steps] if any(kernel.stride != (1, 1) for kernel in behind) else steps


def _layers(model: nn.Sequential, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, layer in model._modules.items():  # `named_children` leaves out a layer that it has met before.
        assert layer is not None  # noqa: S101 - said to mypy; it holds by construction
        if type(layer) is nn.Sequential and not _hooked(layer):
            yield from _layers(layer, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}.", layer


def _hooked(layer: nn.Module) -> bool:
    """Say whether code of somebody's own runs when the layer does, or its derivative is taken."""
    own = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(own) or "forward" in vars(layer) or torch.nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]


def _step(name: str, layer: Any) -> Step | None:
    kind = type(layer)
    step: Step | None = None
    if kind is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        step = Flatten()
    elif kind is nn.Linear:
        step = Affine(f"{name}weight", None if layer.bias is None else f"{name}bias", None)
    elif kind is nn.Conv2d:
        step = _convolution(name, layer)
    elif kind is nn.MaxPool2d and _pair(layer.dilation) == (1, 1) and not layer.ceil_mode and not layer.return_indices:
        step = MaxPool(Kernel(_pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding)))
    elif kind in ACTIVATIONS and _alike(_pure(layer), layer):
        step = Pointwise(_pure(layer), ACTIVATIONS[kind])
    return None if _hooked(layer) else step


def _convolution(name: str, layer: Any) -> Affine | None:
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and _pair(layer.dilation) == (1, 1)
    if not plain or isinstance(layer.padding, str):
        return None
    kernel = Kernel(_pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding))
    return Affine(f"{name}weight", None if layer.bias is None else f"{name}bias", kernel)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _pure(layer: nn.Module) -> nn.Module:
    """Return an activation as PyTorch makes it, which overwrites nothing."""
    return type(layer)()


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Say whether two activations of a kind are the same, but for where they write: their ways back know of no setting."""
    settings = ({n: v for n, v in vars(layer).items() if n not in ("inplace", "training")} for layer in (one, other))
    return next(settings) == next(settings)
