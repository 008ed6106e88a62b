"""Networks that are a chain of known layers, and the gradient of their loss for many examples at once.

Most networks of the papers are such chains. A network with residual connections, normalisation, custom layers or sampling is not,
and `torch.func` computes its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakbench.core.types import Parameters
from leakbench.engine.activations import plain, ways_of
from leakbench.engine.factored import Factored
from leakbench.engine.patches import Kernel
from leakbench.engine.steps import Affine, Crop, Flatten, MaxPool, Passed, Pointwise, Step

__all__ = ["Chain", "ThereAndBack", "chain_of"]


@dataclass(frozen=True)
class Chain:
    """The layers of a network, first to last."""

    steps: tuple[Step, ...]

    def laid_out(self, parameters: Parameters) -> Parameters:
        """Return the parameters, {p: (*p)} or {p: (K, *p)}, with convolution weights in the memory layout that `gradient` reads.

        The gradients have the same layout, so steps along them keep it; otherwise each local iteration would convert the weights.
        """
        kernels = [step for step in self.steps if isinstance(step, Affine) and step.kernel is not None]
        turned = {k.weight: parameters[k.weight].movedim(-3, -1).contiguous().movedim(-1, -3) for k in kernels}
        return {**parameters, **turned}

    def gradient(
        self, parameters: Parameters, shared: bool, inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> tuple[Factored, ...]:
        """Return the gradient of every example's soft cross-entropy times its weight, for each layer from the first one.

        Args:
            parameters: {p: (*p)} if `shared`, else {p: (K, *p)}.
            inputs: (K, B, *s).
            targets: (K, B, classes).
            weights: (K, B).
        """
        return self.there_and_back(parameters, shared, inputs, targets, weights).layers(parameters)

    def there_and_back(
        self, parameters: Parameters, shared: bool, inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> ThereAndBack:
        """Return the forward and backward pass from which `gradient` follows; arguments as in `gradient`."""
        passed = self._passed(parameters, shared, inputs)
        chances = passed[-1].answer.softmax(-1)
        # The derivative of minus the sum of y log softmax(z), by z.
        delta = (chances * targets.sum(-1, keepdim=True) - targets) * weights[..., None]
        return self._back(passed, chances, delta)

    def there_and_back_along(
        self, parameters: Parameters, shared: bool, inputs: Tensor, cotangents: Tensor
    ) -> ThereAndBack:
        """Return the passes from which the gradients of <cotangents, output> of every example follow.

        Args:
            parameters: {p: (*p)} if `shared`, else {p: (K, *p)}.
            inputs: (K, B, *s).
            cotangents: (K, B, d).
        """
        return self._back(self._passed(parameters, shared, inputs), None, cotangents)

    def _passed(self, parameters: Parameters, shared: bool, inputs: Tensor) -> list[Passed]:
        entering = inputs.movedim(2, -1) if inputs.dim() == 5 else inputs
        passed: list[Passed] = []
        for step in self.steps:
            passed.append(step(parameters, shared, entering))
            entering = passed[-1].answer
        return passed

    def _back(self, passed: list[Passed], chances: Tensor | None, delta: Tensor) -> ThereAndBack:
        deltas = [delta]
        for done in reversed(passed[self.first + 1 :]):
            deltas.append(done.back(deltas[-1]))
        return ThereAndBack(self, tuple(passed), chances, tuple(reversed(deltas)))

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Return whether the chain can process examples of that shape: pictures for convolutions and pools, rows for linear layers.

        PyTorch's linear layers also process inputs with more dimensions, but such a network is not a chain here.
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
        """The index of the first step with weights."""
        return next(i for i, step in enumerate(self.steps) if isinstance(step, Affine))


@dataclass(frozen=True)
class ThereAndBack:
    """One forward and backward pass through a chain.

    Args:
        passed: The result of each step.
        chances: The softmax of the logits (K, B, classes); None for a linear function of the output.
        deltas: The derivatives of the loss by each step's output, from the first step with weights.
    """

    chain: Chain
    passed: tuple[Passed, ...]
    chances: Tensor | None
    deltas: tuple[Tensor, ...]

    @property
    def answer(self) -> Tensor:
        """The output (K, B, d)."""
        return self.passed[-1].answer

    def layers(self, parameters: Parameters) -> tuple[Factored, ...]:
        """Return the gradient of each layer, from the first one."""
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
    """Return the model as a chain; None if it has other parts."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward or _hooked(model):
        return None
    if not all(p.requires_grad for p in model.parameters()):  # A chain computes the gradients of all parameters.
        return None
    steps: list[Step] = []
    for name, layer in _layers(model, ""):
        step = _step(name, layer)
        if step is None:
            return None
        steps.append(step)
    steps = _cropped(_pooled_first(steps))
    # A parameter of two layers has the sum of two gradients, which a chain does not compute.
    alone = len({id(p) for p in model.parameters()}) == sum(1 for _ in model.named_parameters(remove_duplicate=False))
    return Chain(tuple(steps)) if alone and any(isinstance(s, Affine) for s in steps) else None


def _pooled_first(steps: list[Step]) -> list[Step]:
    """Return an equal chain with max pools before ReLUs: the maximum of ReLUs is the ReLU of the maximum.

    The ReLU and its derivative then process a quarter of the numbers. If all numbers of a window are below zero, so is the largest,
    and the derivative is zero in both orders.
    """
    steps = list(steps)
    for i in range(len(steps) - 1):
        one, other = steps[i], steps[i + 1]
        if isinstance(one, Pointwise) and type(one.function) is nn.ReLU and isinstance(other, MaxPool):
            steps[i], steps[i + 1] = other, one
    return steps


def _cropped(steps: list[Step]) -> list[Step]:
    """Return an equal chain that crops unread rows and columns before each run of kernels with strides and without padding."""
    cropped: list[Step] = []
    behind: tuple[Kernel, ...] = ()
    for step in reversed(steps):
        kernel = step.kernel if isinstance(step, Affine | MaxPool) else None
        ends = kernel is None or kernel.padding != (0, 0)
        if ends and not isinstance(step, Pointwise):
            cropped, behind = _with_crop(cropped, behind), ()
        elif kernel is not None:
            behind = (kernel, *behind)
        cropped.insert(0, step)
    return _with_crop(cropped, behind)


def _with_crop(steps: list[Step], behind: tuple[Kernel, ...]) -> list[Step]:
    return [Crop(behind), *steps] if any(kernel.stride != (1, 1) for kernel in behind) else steps


def _layers(model: nn.Sequential, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    for name, layer in model._modules.items():  # `named_children` skips a layer that appears a second time.
        assert layer is not None  # noqa: S101 - for mypy: nn.Sequential has no empty entries
        if type(layer) is nn.Sequential and not _hooked(layer):
            yield from _layers(layer, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}.", layer


def _hooked(layer: nn.Module) -> bool:
    """Return whether hooks or a replaced `forward` run custom code with the layer or its derivative."""
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
    elif (ways := ways_of(layer)) is not None and _alike(plain(layer), layer):
        step = Pointwise(plain(layer), ways)
    return None if _hooked(layer) else step


def _convolution(name: str, layer: Any) -> Affine | None:
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and _pair(layer.dilation) == (1, 1)
    if not plain or isinstance(layer.padding, str):
        return None
    kernel = Kernel(_pair(layer.kernel_size), _pair(layer.stride), _pair(layer.padding))
    return Affine(f"{name}weight", None if layer.bias is None else f"{name}bias", kernel)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _alike(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two activations have the same settings other than `inplace`: a chain knows those of `plain`."""
    settings = ({n: v for n, v in vars(layer).items() if n not in ("inplace", "training")} for layer in (one, other))
    return next(settings) == next(settings)
