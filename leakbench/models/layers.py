"""The layers that read a network's input and that answer, as one forward pass shows them; and the inputs of a layer.

The order in which a network registers its layers says nothing: a list can be registered late, and a head may never run. So the
network runs once on random inputs, and the graph that autograd records says which parameters reach the output, and in which order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from leakbench.core.task import is_classification
from leakbench.core.types import Network, Parameters
from leakbench.core.working_copy import copied
from leakbench.models.batch_norm import MEAN, VARIANCE
from leakbench.models.language import LanguageModel

__all__ = [
    "Classifier",
    "answers_with",
    "classifier_of",
    "entering",
    "first_layer",
    "last_layer",
    "order_of_use",
    "uses_of",
]

PROBES = 2
"""Number of random inputs on which a network runs."""

MOVED = 0.1
"""Largest relative change of a parameter in that run: first weights of 0 and 1 hide what depends on them."""

SAME = 1e-3
"""How far two gradients may differ by rounding, as a share of their length."""

NEGATIVE = -1e-6
"""Feature below which the features of a classifier count as negative."""


@dataclass(frozen=True)
class Classifier:
    """Trained parameters W and b of which the logits are W h + f b, up to a shift of all logits.

    The factor f is 1 unless the output of the layer is multiplied by a number, such as a temperature; h contains this number too. A
    gradient is then (p - y) h^T for W and f (p - y) for b, with probabilities p and labels y. A layer behind which the logits are
    normalised, masked or reduced to maxima is not a classifier.

    Args:
        weight: Name of W (classes, ...); None if the weight has another gradient, as a normalised one has.
        bias: Name of b (classes,); None without a bias, and for a factor f that is not positive.
        signed: Whether features h can be negative, as they are for a negative f; true without a weight.
    """

    weight: str | None
    bias: str | None
    signed: bool


@dataclass(frozen=True)
class _Key:
    """A cache key: the layers depend on the model, its modules and which parameters are trained, by identity."""

    model: nn.Module
    parts: tuple[Any, ...]
    shape: tuple[int, ...]
    trained: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module, shape: tuple[int, ...], names: Collection[str] | None = None) -> _Key:
        modules = tuple((name, id(module)) for name, module in model.named_modules())
        parts = (*modules, *((name, id(p)) for name, p in model.named_parameters()))
        trained = (name for name, p in model.named_parameters() if p.requires_grad)
        return cls(model, parts, tuple(shape), frozenset(n for n in trained if names is None or n in names))


def classifier_of(model: nn.Module, shape: tuple[int, ...], names: Collection[str] | None = None) -> Classifier | None:
    """Return the trained classifier of a network; None if none of its layers answers with the class.

    Args:
        model: The network; it does not change.
        shape: Shape (*s) of one input.
        names: Names of the parameters with a known gradient; None for all trained ones.
    """
    return _classifier(_Key.of(model, shape, names)) if is_classification(model) else None


@lru_cache(maxsize=4)
def _classifier(key: _Key) -> Classifier | None:
    run = _Run.of(key.model, key.shape)
    logits = run.outputs
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != PROBES or not logits.requires_grad:
        return None
    classes = logits.shape[1]
    trained = {n: run.tensors[n] for n in run.used if n in key.trained and run.tensors[n].shape[:1] == (classes,)}
    if classes < 2 or not trained:
        return None
    rng = torch.Generator().manual_seed(1)
    by_example = []
    for example in logits:
        slopes = []
        for _ in range(2):
            # A gradient of the cross-entropy has the sum zero over the classes.
            v = torch.randn(classes, generator=rng, dtype=logits.dtype).to(logits.device)
            v = v - v.mean()
            found = torch.autograd.grad(example @ v, list(trained.values()), retain_graph=True, allow_unused=True)
            slopes.append({n: _features(g, v) for n, g in zip(trained, found, strict=True)})
        by_example.append({n: _agreeing(slopes[0][n], slopes[1][n]) for n in trained})
    shown = {n: [h for one in by_example if (h := one[n]) is not None] for n in trained}
    features = {n: several for n, several in shown.items() if len(several) == PROBES}
    last = sorted(features, key=lambda n: max(run.uses[n]))
    weights = [n for n in last if trained[n].dim() > 1 and any(bool(h.any()) for h in features[n])]
    biases = [n for n in last if trained[n].dim() == 1 and all(bool(h > 0) for h in features[n])]
    if not weights:
        return Classifier(None, biases[-1], signed=True) if biases else None
    weight = weights[-1]
    own = [n for n in biases if n == f"{weight.removesuffix('weight')}bias"] or biases
    signed = any(bool(h.min() < NEGATIVE) for h in features[weight])
    return Classifier(weight, own[-1] if own else None, signed)


def _features(gradient: Tensor | None, v: Tensor) -> Tensor | None:
    """Return h if a gradient (classes, ...) is v h^T; None if it is not."""
    if gradient is None or not bool(gradient.isfinite().all()):
        return None
    rows = gradient.reshape(len(v), -1)
    h = v @ rows / (v @ v)
    return h if bool((rows - v[:, None] * h).norm() <= SAME * rows.norm()) else None


def _agreeing(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the features if two gradients show the same."""
    if one is None or other is None:
        return None
    return one if bool((one - other).norm() <= SAME * one.norm()) else None


def first_layer(model: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Return the prefix of the parameters of the trained linear layer, with a trained bias, that reads the input unchanged.

    The input may be flattened. The result is None if other parameters are used first, or if the layer runs several times.

    Args:
        model: The network; it does not change.
        shape: Shape (*s) of one input.
    """
    return None if isinstance(model, LanguageModel) else _first(_Key.of(model, shape))


@lru_cache(maxsize=4)
def _first(key: _Key) -> str | None:
    linear = {n: m for n, m in key.model.named_modules() if isinstance(m, nn.Linear) and m.bias is not None}
    if not any(module.in_features == math.prod(key.shape) for module in linear.values()):
        return None
    run = _Run.of(key.model, key.shape)
    for name, entered in run.entered.items():
        prefix = f"{name}." if name else ""
        own = {f"{prefix}weight", f"{prefix}bias"}
        if name in linear and own <= key.trained and set(run.used[:2]) == own:
            once = len(entered) == 1 and all(len(run.uses[n]) == 1 for n in own)
            return prefix if once and torch.equal(entered[0], run.inputs.flatten(1)) else None
    return None


def last_layer(model: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Return the prefix of the parameters of the linear layer whose weight is used last; None if another one is.

    Args:
        model: The network; it does not change.
        shape: Shape (*s) of one input; the last layer of a language model follows from its order of registration.
    """
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        return None
    if isinstance(model, LanguageModel):
        return f"{linear[-1]}." if linear[-1] else ""
    return _last(_Key.of(model, shape))


@lru_cache(maxsize=4)
def _last(key: _Key) -> str | None:
    run = _Run.of(key.model, key.shape)
    matrices = [n for n in run.uses if run.tensors[n].dim() > 1]
    name = max(matrices, key=lambda n: max(run.uses[n]), default="").rpartition(".")[0]
    return (f"{name}." if name else "") if isinstance(key.model.get_submodule(name), nn.Linear) else None


@dataclass(frozen=True)
class _Run:
    """One forward pass of a copy of a network in eval mode, at slightly other weights, on random inputs.

    Args:
        inputs: (n, *s).
        outputs: The network's outputs.
        tensors: {p: (*p)}, the parameters in that pass.
        uses: {p: numbers of the operations that read it, in the order in which they ran}, of the parameters that reach the outputs.
        entered: {name of a linear layer: its inputs, one for each time that it ran}.
    """

    inputs: Tensor
    outputs: Any
    tensors: Parameters
    uses: dict[str, list[int]]
    entered: dict[str, list[Tensor]]

    @property
    def used(self) -> list[str]:
        """Names of the parameters that reach the outputs, in the order of their first use."""
        return sorted(self.uses, key=lambda name: min(self.uses[name]))

    @classmethod
    def of(cls, model: nn.Module, shape: tuple[int, ...]) -> _Run:
        """Run a network on random inputs of a shape."""
        rng = torch.Generator().manual_seed(0)
        if isinstance(model, LanguageModel):
            return cls.on(model, torch.randint(model.padding + 1, model.tokens, (PROBES, *shape), generator=rng), rng)
        return cls.on(model, torch.rand(PROBES, *shape, generator=rng), rng)

    @classmethod
    def on(cls, model: nn.Module, x: Tensor, rng: torch.Generator) -> _Run:
        """Run a network on inputs."""
        alone = copied(model).eval()
        tensors, moved = {}, {}
        for name, t in (*alone.named_parameters(), *alone.named_buffers()):
            if t.is_floating_point() and (isinstance(t, nn.Parameter) or name.endswith((MEAN, VARIANCE))):
                factor = 1 + MOVED * (2 * torch.rand(t.shape, generator=rng) - 1)
                moved[name] = (t.detach() * factor.to(t)).requires_grad_(isinstance(t, nn.Parameter))
        tensors = {name: moved[name] for name, _ in alone.named_parameters() if name in moved}
        like = next(iter(tensors.values()), x)
        x = x.to(like) if x.is_floating_point() else x.to(like.device)
        entered: dict[str, list[Tensor]] = {}
        for name, module in alone.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_pre_hook(_keeping(entered.setdefault(name, [])))
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            outputs = functional_call(alone, moved, (x,))
        return cls(x, outputs, tensors, uses_of(outputs, tensors), entered)


def _keeping(entered: list[Tensor]) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    return lambda _, arguments: entered.extend(t.detach() for t in arguments[:1])


def uses_of(results: Any, tensors: Parameters) -> dict[str, list[int]]:
    """Return {name: numbers of the operations that read a tensor}, in the computation of a tensor or of several in containers.

    Autograd numbers operations in the order in which they run. Tensors that do not reach the results are left out.
    """
    names: dict[int, str] = {id(tensor): name for name, tensor in tensors.items()}
    uses: dict[str, list[int]] = {}
    nodes = [result.grad_fn for result in tree_leaves(results) if isinstance(result, Tensor)]
    known = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        for inner, _ in node.next_functions:
            name = names.get(id(getattr(inner, "variable", None)))
            if name is not None:
                uses.setdefault(name, []).append(node._sequence_nr())
            elif inner is not None and inner not in known:
                known.add(inner)
                nodes.append(inner)
    return uses


VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Alias", "Clone", "Transpose", "Permute")
"""Start of the names of autograd's nodes that only change the shape."""


def answers_with(outputs: Any, left: Tensor) -> bool:
    """Return whether a network's outputs are a tensor (with a graph) of one of its layers, apart from their shape."""
    if not isinstance(outputs, Tensor) or outputs.numel() != left.numel():
        return False
    ends = []
    for tensor in (outputs, left):
        node = tensor.grad_fn
        while node is not None and node.name().startswith(VIEWS) and node.next_functions:
            node = node.next_functions[0][0]
        ends.append(node)
    return ends[0] is not None and ends[0] == ends[1]


def order_of_use(model: nn.Module, x: Tensor) -> list[str]:
    """Return the names of a network's parameters in the order of their first use for inputs x (n, *s), unused ones first."""
    used = _Run.on(model, x, torch.Generator().manual_seed(0)).used
    return [*(name for name, _ in model.named_parameters() if name not in used), *used]


CHUNK = 500
"""Number of inputs in a forward pass."""


def entering(network: Network, layer: str, inputs: Tensor) -> Tensor:
    """Return the inputs (n, d) of a layer for inputs (n, *s) of the network.

    Args:
        layer: Prefix of the layer's parameters.
    """
    pieces: list[Tensor] = []
    hook = network.model.get_submodule(layer.removesuffix(".")).register_forward_pre_hook(
        lambda _, entered: pieces.append(entered[0])
    )
    try:
        with torch.no_grad():
            for some in torch.split(inputs, CHUNK):
                functional_call(network.model, {**network.parameters, **network.statistics}, (some,))
    finally:
        hook.remove()
    return torch.cat(pieces)
