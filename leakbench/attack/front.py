"""The front of a network: the layers before the first fully connected layer whose inputs can be read from its gradients."""

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
from leakbench.core.types import Network, Parameters
from leakbench.engine.chain import Chain, chain_of
from leakbench.engine.once import answers_and_gradients
from leakbench.federated.view import View
from leakbench.models.layers import answers_with, uses_of

__all__ = ["Front", "FullyConnected", "answering_layer", "fully_connected", "outputs_of", "quotient"]


@dataclass(frozen=True)
class FullyConnected:
    """A linear layer whose input is one vector per example.

    Args:
        name: Prefix of its parameters' names.
        biased: Whether it has a trained bias.
        last: Whether its output is the network's output.
        drawn: Whether its input depends on the random numbers of a stochastic network.
        names: Names of the trained parameters of the layers before it, in the order of the model.
        first: Whether its input is the network's input: no parameter, trained or frozen, is before it.
    """

    name: str
    biased: bool
    last: bool
    drawn: bool
    names: tuple[str, ...]
    first: bool


@dataclass(frozen=True)
class _Key:
    """A cache key for the layers of a network. The layers depend on `key` alone, not on the values of the parameters.

    Args:
        key: The model, its modules and its trained parameters, by identity.
        network: A weak reference, so that the cache does not keep the parameters of finished runs.
        shape: Shape (*s) of one input.
    """

    key: tuple[Any, ...]
    network: weakref.ref[Network] = field(compare=False)
    shape: tuple[int, ...]


def fully_connected(network: Network, shape: tuple[int, ...]) -> tuple[FullyConnected, ...]:
    """Return the linear layers of a network whose input is one vector per example, in the order in which they run.

    A layer is left out if it runs several times or does not reach the output, if its weight is not trained, or if its weight or
    bias is also used elsewhere: its gradient is then a sum over several inputs.

    Args:
        network: The network.
        shape: Shape (*s) of one input.
    """
    modules = tuple((name, id(module), module.training) for name, module in network.model.named_modules())
    trained = tuple((name, id(p), p.requires_grad) for name, p in network.model.named_parameters())
    return _layers(_Key((network.model, modules, trained, tuple(network.parameters)), weakref.ref(network), shape))


def answering_layer(network: Network, shape: tuple[int, ...]) -> FullyConnected | None:
    """Return the layer of `fully_connected` whose output is the network's; None if there is none."""
    return next((layer for layer in fully_connected(network, shape) if layer.last), None)


@lru_cache(maxsize=4)  # It runs the network forward and back; an attack calls it many times for the same few networks.
def _layers(key: _Key) -> tuple[FullyConnected, ...]:
    network, shape = key.network(), key.shape
    assert network is not None  # noqa: S101 - for mypy; the caller has a reference to it
    model, zero = network.model, _zero(network, shape)
    linear = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and m.weight.requires_grad}
    calls: dict[str, list[Tensor]] = {}

    def record(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda _, entered, left: calls.setdefault(name, []).append(entered[0])

    tensors = _of_one(network)
    with _hooked({m: record(n) for n, m in linear.items()}), torch.no_grad():
        functional_call(model, dict(tensors), (zero,))
        if network.draws:
            functional_call(model, dict(tensors), (zero, zero.new_ones(1, network.draws)))
    runs = 2 if network.draws else 1
    layers = []
    before, uses = _before(network, linear, zero)
    for name, (entered, *again) in calls.items():
        prefix = f"{name}." if name else ""
        biased = linear[name].bias is not None and linear[name].bias.requires_grad
        own = (f"{prefix}weight", f"{prefix}bias")[: 1 + biased]
        # A network lists tied parameters under their first name only.
        alone = all(n in network.parameters and len(uses.get(n, ())) == 1 for n in own)
        if alone and 1 + len(again) == runs and entered.dim() == 2 and len(entered) == 1:
            drawn = any(not torch.equal(entered, other) for other in again)
            names, first, last = before[name]
            layers.append(FullyConnected(prefix, biased, last, drawn, names, first))
    return tuple(layers)


def _before(
    network: Network, linear: dict[str, nn.Linear], zero: Tensor
) -> tuple[dict[str, tuple[tuple[str, ...], bool, bool]], dict[str, list[int]]]:
    """Return the parameters on which the inputs of linear layers depend, and the uses of each parameter.

    Returns:
        {linear layer: (names of the trained parameters, whether none exists, whether the layer answers)}; and
        {parameter: its uses}.
    """
    weights = {n: t for n, t in {**network.parameters, **network.frozen}.items() if t.is_floating_point()}
    tensors = {n: t.clone().requires_grad_(n in weights) for n, t in {**network.frozen, **_of_one(network)}.items()}
    calls: dict[str, tuple[Tensor, Tensor]] = {}

    def record(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, entered: Any, left: Any) -> None:
            calls[name] = entered[0], left

        return hook

    with _hooked({m: record(n) for n, m in linear.items()}), torch.enable_grad():
        logits = functional_call(network.model, dict(tensors), (zero,))
        names = list(weights)
        before: dict[str, tuple[tuple[str, ...], bool, bool]] = {}
        for name, (entered, left) in calls.items():
            own = [tensors[n] for n in names]
            some = entered.requires_grad
            slopes = torch.autograd.grad(entered.sum(), own, retain_graph=True, allow_unused=True) if some else ()
            reads = tuple(n for n, slope in zip(names, slopes, strict=some) if slope is not None)
            trained = tuple(n for n in reads if n in network.parameters)
            before[name] = trained, not reads, answers_with(logits, left)
        return before, uses_of(logits, tensors)


def _of_one(network: Network) -> Parameters:
    """Return the parameters of the first lane and the running statistics."""
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
    """Ends a forward pass at a layer and carries the layer's input."""

    def __init__(self, entered: Tensor) -> None:
        super().__init__()
        self.entered = entered


@dataclass(frozen=True)
class Front:
    """The function that a network computes before a layer, and the derivatives of linear functions of it by its parameters.

    Args:
        network: The network.
        layer: The layer after the front.
        chain: The front as a chain of layers; None if it is not a chain.
        parameters: {p: (*p) or (V, *p)}, those of the front, named and laid out as in the chain if it is one.
        prefix: Prefix of the names of the chain's parameters in the network.
    """

    network: Network
    layer: FullyConnected
    chain: Chain | None
    parameters: Parameters
    prefix: str = ""

    @classmethod
    def of(cls, network: Network, layer: FullyConnected, shape: tuple[int, ...]) -> Front:
        """Return the front before a layer of `fully_connected` for inputs of a shape (*s)."""
        model = network.model
        parameters = {n: network.parameters[n] for n in layer.names}
        if network.engine != "reference" and not (model._forward_hooks or model._forward_pre_hooks):
            for prefix, part in _sequences(network.model, layer):
                chain = chain_of(part)
                if chain is not None and chain.takes(shape):
                    own = {n.removeprefix(prefix): p for n, p in parameters.items()}
                    return cls(network, layer, chain, chain.laid_out(own), prefix)
        return cls(network, layer, None, parameters)

    def smoothed(self, sharpness: Tensor, features: Tensor) -> Front:
        """Return the front with smooth ReLUs and pools, for inputs with known features (v, M, d); unchanged if not a chain."""
        return self if self.chain is None else replace(self, chain=smoothed(self.chain, sharpness, features))

    def __call__(self, inputs: Tensor, cotangents: Tensor, lanes: Tensor) -> tuple[Tensor, Parameters]:
        """Compute features and gradients; differentiable by the inputs.

        Args:
            inputs: (v, M, *s).
            cotangents: (v, M, d).
            lanes: Positions (v,) of the victims whose parameters apply.

        Returns:
            The features (v, M, d), and the derivatives {p: (v, *p)} of sum <cotangents, features> / M by the parameters.
        """
        network, count = self.network, inputs.shape[1]
        parameters = self.parameters if network.shared else {n: p[lanes] for n, p in self.parameters.items()}
        weighted = cotangents / count
        if self.chain is not None:
            features, sums = answers_and_gradients(self.chain, parameters, network.shared, inputs, weighted)
            return features, {self.prefix + n: g[:, 0] for n, g in sums.items()}

        def one(own: Parameters, x: Tensor, c: Tensor) -> tuple[Tensor, Parameters]:
            if not own:  # All layers of the front are frozen.
                return self._entering(own, x), {}
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
    """Yield the parts of a model that can be its front, each as a sequence of layers with the prefix of its parameters' names."""
    if type(model) is nn.Sequential:
        names = list(model._modules)
        name = layer.name.removesuffix(".")
        if name in names:
            yield "", model[: names.index(name)]
    for name, child in model.named_children():
        own = {f"{name}.{n}" for n, _ in child.named_parameters()}
        if type(model) is not nn.Sequential and type(child) is nn.Sequential and own == set(layer.names):
            yield f"{name}.", child


def quotient(view: View, layer: FullyConnected) -> tuple[Tensor, Tensor]:
    """Return h (V, d) and dL/dz (V, k) of a layer with a bias, h by least squares over the rows of dW = db h^T."""
    weight, bias = view.update[f"{layer.name}weight"].double(), view.update[f"{layer.name}bias"].double()
    largest = bias.abs().amax(1, keepdim=True)
    share = bias / largest  # The squares of small gradients would underflow.
    entered = torch.einsum("vk,vkd->vd", share, weight) / (share.square().sum(1, keepdim=True) * largest)
    return entered.to(view.update[f"{layer.name}weight"]), bias.to(view.update[f"{layer.name}bias"])


def outputs_of(view: View, layer: FullyConnected, entered: Tensor) -> Tensor:
    """Return W h + b, (V, ..., k) for (V, ..., d), in float64."""
    own = view.network.parameters
    weight = own[f"{layer.name}weight"].double()
    weight = weight.expand(view.victims, *weight.shape[-2:])
    flat = entered.double().reshape(view.victims, -1, entered.shape[-1])
    logits = (flat @ weight.mT).reshape(*entered.shape[:-1], -1)
    if f"{layer.name}bias" in own:
        bias = own[f"{layer.name}bias"].double()
        bias = bias.expand(view.victims, bias.shape[-1])
        logits = logits + bias.reshape(view.victims, *[1] * (logits.dim() - 2), -1)
    return logits
