"""The front of a network: the layers before the first fully connected layer whose input can be read from its gradients."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from leakbench.attack.smooth import smoothed
from leakbench.engine.chain import Chain, chain_of
from leakbench.types import Network, Parameters

__all__ = ["Front", "FullyConnected", "fully_connected"]


@dataclass(frozen=True)
class FullyConnected:
    """A linear layer that reads one vector per example.

    Args:
        name: Prefix of its parameters.
        biased: Whether it has a trained bias.
        last: Whether its output is the network's.
        drawn: Whether its input depends on the random numbers of a sampling network.
        names: The parameters of the layers before it, in the order of the model.
    """

    name: str
    biased: bool
    last: bool
    drawn: bool
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Asked:
    """A network and a shape whose layers are asked for. The layers depend on `key`; the network's numbers do not matter.

    Args:
        network: Weak, so that what is remembered keeps no parameters of finished runs.
    """

    key: tuple[Any, ...]
    network: weakref.ref[Network] = field(compare=False)
    shape: tuple[int, ...]


def fully_connected(network: Network, shape: tuple[int, ...]) -> tuple[FullyConnected, ...]:
    """Return the linear layers of a network that read one vector per example, in the order in which they run.

    A layer is left out if it runs several times, if its weight is not trained, or if its weight or bias is used elsewhere as
    well: its gradient is then a sum over several inputs.

    Args:
        shape: (*s) of one input.
    """
    modules = tuple((name, id(module), module.training) for name, module in network.model.named_modules())
    trained = tuple((name, id(p), p.requires_grad) for name, p in network.model.named_parameters())
    return _layers(_Asked((network.model, modules, trained, tuple(network.parameters)), weakref.ref(network), shape))


@lru_cache(maxsize=4)  # It runs the network forward and back; an attack asks many times about the same few.
def _layers(asked: _Asked) -> tuple[FullyConnected, ...]:
    network, shape = asked.network(), asked.shape
    assert network is not None  # noqa: S101 - said to mypy; the caller holds it
    model, zero = network.model, _zero(network, shape)
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and m.weight.requires_grad}
    calls: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def record(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _, entered, left: calls.setdefault(name, []).append((entered[0], left))

    tensors = _of_one(network)
    with _hooked({m: record(n) for n, m in linear.items()}), torch.no_grad():
        logits = functional_call(model, dict(tensors), (zero,))
        if network.draws:
            functional_call(model, dict(tensors), (zero, zero.new_ones(1, network.draws)))
    runs = 2 if network.draws else 1
    found = []
    before, uses = _before(network, linear, zero)
    for name, seen in calls.items():
        (entered, left), *again = seen
        prefix = f"{name}." if name else ""
        biased = linear[name].bias is not None and linear[name].bias.requires_grad
        own = (f"{prefix}weight", f"{prefix}bias")[: 1 + biased]
        # Of tied parameters a network lists only the first name.
        alone = all(n in network.parameters and uses.get(n, 0) <= 1 for n in own)
        if alone and len(seen) == runs and entered.dim() == 2 and len(entered) == 1:
            drawn = any(not torch.equal(entered, other) for other, _ in again)
            found.append(FullyConnected(prefix, biased, left is logits, drawn, before[name]))
    return tuple(found)


def _before(
    network: Network, linear: dict[str, nn.Linear], zero: Tensor
) -> tuple[dict[str, tuple[str, ...]], dict[str, int]]:
    """Return the parameters on which the input of each linear layer that runs depends, and the number of uses of each parameter."""
    tensors = {n: t.clone().requires_grad_(n in network.parameters) for n, t in _of_one(network).items()}
    seen: dict[str, Tensor] = {}

    def record(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, entered: Any, left: Any) -> None:
            seen[name] = entered[0]

        return hook

    with _hooked({m: record(n) for n, m in linear.items()}), torch.enable_grad():
        logits = functional_call(network.model, dict(tensors), (zero,))
        names = list(network.parameters)
        found: dict[str, tuple[str, ...]] = {}
        for name, entered in seen.items():
            own = [tensors[n] for n in names]
            some = entered.requires_grad
            slopes = torch.autograd.grad(entered.sum(), own, retain_graph=True, allow_unused=True) if some else ()
            found[name] = tuple(n for n, slope in zip(names, slopes, strict=some) if slope is not None)
        return found, _uses(logits, tensors)


def _uses(result: Tensor, tensors: Parameters) -> dict[str, int]:
    """Return, for each of the tensors that a result was computed from, the number of operations that read it."""
    names, counts = {id(tensor): name for name, tensor in tensors.items()}, dict.fromkeys(tensors, 0)
    nodes, known = [result.grad_fn], {result.grad_fn}
    while nodes:
        node = nodes.pop()
        for inner, _ in () if node is None else node.next_functions:
            leaf = getattr(inner, "variable", None)
            if id(leaf) in names:
                counts[names[id(leaf)]] += 1
            elif inner is not None and inner not in known:
                known.add(inner)
                nodes.append(inner)
    return counts


def _of_one(network: Network) -> Parameters:
    """Return the parameters of the first lane, and the running statistics."""
    own = {n: p if network.shared else p[0] for n, p in network.parameters.items()}
    return {**own, **network.statistics}


def _zero(network: Network, shape: tuple[int, ...]) -> Tensor:
    return next(iter(network.parameters.values())).new_zeros(1, *shape)


@contextmanager
def _hooked(hooks: dict[nn.Linear, Callable[[nn.Module, Any, Any], None]]) -> Iterator[None]:
    handles = [module.register_forward_hook(hook) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Reached(Exception):
    """Carries what enters the layer at which a forward pass ends."""

    def __init__(self, entered: Tensor) -> None:
        super().__init__()
        self.entered = entered


@dataclass(frozen=True)
class Front:
    """What a network computes before a layer, with the derivative of a linear function of it by its parameters.

    Args:
        chain: The front as a chain of layers, whose parameters in the network begin with `prefix`; None where it is not one.
    """

    network: Network
    layer: FullyConnected
    chain: Chain | None
    prefix: str = ""

    @classmethod
    def of(cls, network: Network, layer: FullyConnected, shape: tuple[int, ...]) -> Front:
        """Return the front before a layer of `fully_connected` for inputs of a shape (*s)."""
        model = network.model
        if network.engine != "reference" and not (model._forward_hooks or model._forward_pre_hooks):
            for prefix, part in _sequences(network.model, layer):
                chain = chain_of(part)
                if chain is not None and chain.takes(shape):
                    return cls(network, layer, chain, prefix)
        return cls(network, layer, None)

    def smoothed(self, sharpness: float, features: Tensor) -> Front:
        """Return a front with smooth ReLUs and pools for inputs whose features (v, M, d) are known; the same if not a chain."""
        return self if self.chain is None else replace(self, chain=smoothed(self.chain, sharpness, features))

    def __call__(self, inputs: Tensor, cotangents: Tensor, lanes: Tensor) -> tuple[Tensor, Parameters]:
        """Return the features (v, M, d) of inputs (v, M, *s), and the derivatives {p: (v, *p)} of sum <cotangents, features> / M.

        Args:
            cotangents: (v, M, d).
            lanes: (v,), the victims whose parameters apply. Differentiable by the inputs.
        """
        network, count = self.network, inputs.shape[1]
        names = self.layer.names
        parameters = {n: network.parameters[n] if network.shared else network.parameters[n][lanes] for n in names}
        weighted = cotangents / count
        if self.chain is not None:
            own = {n.removeprefix(self.prefix): p for n, p in parameters.items()}
            features, layers = self.chain.pulled_back(own, network.shared, inputs, weighted)
            grads = {self.prefix + n: g[:, 0] for layer in layers for n, g in layer.merged().items()}
            return features, grads

        def one(own: Parameters, x: Tensor, c: Tensor) -> tuple[Tensor, Parameters]:
            answer, back, *_ = vjp(lambda p: self._entering(p, x), own)
            return answer, back(c)[0]

        features, grads = vmap(one, in_dims=(network.axis, 0, 0))(parameters, inputs, weighted)
        return features, grads

    def _entering(self, parameters: Parameters, x: Tensor) -> Tensor:
        def stop(module: nn.Module, entered: Any) -> None:
            raise _Reached(entered[0])

        model, sent = self.network.model, {n: p for n, p in self.network.parameters.items() if n not in parameters}
        rest = sent if self.network.shared else {n: p[0] for n, p in sent.items()}
        handle = model.get_submodule(self.layer.name.removesuffix(".")).register_forward_pre_hook(stop)
        try:
            functional_call(model, {**rest, **parameters, **self.network.statistics}, (x,))
        except _Reached as reached:
            return reached.entered
        finally:
            handle.remove()
        raise RuntimeError(f"front: {self.layer.name!r} did not run")


def _sequences(model: nn.Module, layer: FullyConnected) -> Iterator[tuple[str, nn.Sequential]]:
    """Yield what may be the front as a plain sequence of layers, with the prefix of its parameters' names."""
    if type(model) is nn.Sequential:
        names = list(model._modules)
        name = layer.name.removesuffix(".")
        if name in names:
            yield "", model[: names.index(name)]
    for name, child in model.named_children():
        own = {f"{name}.{n}" for n, _ in child.named_parameters()}
        if type(model) is not nn.Sequential and type(child) is nn.Sequential and own == set(layer.names):
            yield f"{name}.", child
