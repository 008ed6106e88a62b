"""Modules of other libraries, prepared for attacks: batch normalisation that is not changed in place, and layers in their order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_map

from leakbench.core.errors import InputError
from leakbench.core.types import WRAPPERS
from leakbench.models.batch_norm import BatchNorm, BatchNormThen
from leakbench.models.layers import order_of_use

__all__ = [
    "adapt_layers",
    "check_unscripted",
    "convert_norm",
    "convert_norms",
    "convert_parts",
    "order_layers",
    "remove_hooks",
    "unwrapped_arrays",
    "unwrapped_model",
]

RECURRENT = (nn.RNN, nn.GRU, nn.RNNCell, nn.GRUCell, nn.LSTMCell)
"""Layers that add to their first state in place, which `torch.func` allows only for a state that depends on the input."""

EQUALS: Mapping[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.Hardsigmoid: lambda module, x: nn.functional.relu6(x + 3) / 6,
    nn.RReLU: lambda module, x: nn.functional.leaky_relu(x, (module.lower + module.upper) / 2),
}
"""{activation without a second derivative or a rule of `torch.func`: the same function, in eval mode}."""

HOLDERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules whose parts run, or are indexed, in the order in which they are listed."""


def convert_norm(name: str, module: _BatchNorm) -> BatchNorm:
    """Return leakbench's batch normalisation with the numbers of one of PyTorch's, in the same mode.

    A batch normalisation of timm that also drops and activates its output keeps these two parts.

    Args:
        name: Name of the module, for messages.

    Raises:
        InputError: For one without running statistics, and for another class with its own `forward`.
    """
    kind = type(module).__name__
    if module.running_mean is None or module.running_var is None:
        raise InputError(
            f"victim-mode: {name!r} is a {kind} without running statistics, so that no example of a batch is computed alone;"
            " expected track_running_stats=True"
        )
    parts = [part for part in (getattr(module, "drop", None), getattr(module, "act", None)) if part is not None]
    if type(module).forward not in {
        getattr(cls, "forward", None) for cls in type(module).__mro__ if cls.__module__.startswith("torch.")
    }:
        if len(parts) < 2:
            raise InputError(
                f"victim-mode: {name!r} is a {kind}, whose computation in train mode is not known; expected one of"
                " torch.nn, or eval mode"
            )
        ours: BatchNorm = BatchNormThen(module.num_features, module.momentum, module.eps, *parts)
    else:
        ours = BatchNorm(module.num_features, module.momentum, module.eps)
    ours.weight, ours.bias = module.weight, module.bias  # None without weights.
    ours.running_mean, ours.running_var = module.running_mean, module.running_var
    ours.training = module.training
    return ours


def convert_norms(model: nn.Module) -> nn.Module:
    """Return a network, changed in place, in which each of PyTorch's batch normalisations is one of leakbench's.

    Raises:
        InputError: As `convert_norm`.
    """
    if isinstance(model, _BatchNorm):
        return convert_norm("model", model)
    for name, module in list(model.named_modules()):
        if isinstance(module, _BatchNorm):
            holder, _, last = name.rpartition(".")
            setattr(model.get_submodule(holder), last, convert_norm(name, module))
    return model


def check_unscripted(model: nn.Module, field: str = "model", called: str = "the model") -> None:
    """Raise InputError for a module of TorchScript, which hides its parts and is not differentiated for several victims at once.

    Args:
        model: The network.
        field: The option that names the network, for messages.
        called: Name of the network in messages.
    """
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            what = f"{name!r} of {called}" if name else called
            raise InputError(
                f"{field}: {what} is a module of TorchScript; expected the torch.nn.Module it was made from"
            )


def convert_parts(model: nn.Module, field: str = "model") -> nn.Module:
    """Return a network, changed in place, whose parts `torch.func` differentiates; it computes the same.

    Weights that a hook computes before each pass (`weight_norm`, `spectral_norm`, pruning) are computed when they are read.
    Activations of `EQUALS` are computed by other functions.
    Parameters without an axis get one of length one, since every parameter is flattened somewhere; the network still reads them
    without it.

    Args:
        model: The network.
        field: The option that names the network, for messages.

    Raises:
        InputError: For a scripted module, and for complex parameters.
    """
    check_unscripted(model, field)
    _register_once(model)
    for name, module in model.named_modules():
        for key, hook in list(module._forward_pre_hooks.items()):
            computed = _computed_weight(hook)
            if computed is not None:
                del module._forward_pre_hooks[key]
                _change(module, computed[0], property(computed[1]))
        for own, p in list(module._parameters.items()):
            if p is None or is_lazy(p):  # A lazy parameter has no shape before the first pass.
                continue
            if p.is_complex():
                place = f"{name}.{own}" if name else own
                raise InputError(f"{field}: the parameter {place!r} has complex numbers, expected real ones")
            if p.dim() == 0:
                module._parameters[own] = nn.Parameter(p.detach().reshape(1), p.requires_grad)
                _change(module, own, property(partial(_scalar, own)))
        if type(module) in EQUALS:
            _change(module, "forward", EQUALS[type(module)])
        if isinstance(module, RECURRENT):
            module.register_forward_pre_hook(_with_first_state, with_kwargs=True)
    return model


def _register_once(model: nn.Module) -> None:
    """Let a module with several names be a plain attribute under all but the first.

    `functional_call` of PyTorch leaves other tensors in such a module.
    """
    known: set[int] = set()
    for _, module in list(model.named_modules()):
        for name, part in list(module._modules.items()):
            if part is not None and id(part) in known and not isinstance(module, HOLDERS):
                del module._modules[name]
                vars(module)[name] = part
            known.add(id(part))


def _computed_weight(hook: Any) -> tuple[str, Callable[[nn.Module], Tensor]] | None:
    """Return the name of the weight that a hook computes, and its function of the module; None for another hook."""
    if isinstance(hook, WeightNorm):
        return hook.name, hook.compute_weight
    if isinstance(hook, SpectralNorm):
        return hook.name, partial(hook.compute_weight, do_power_iteration=False)
    return (hook._tensor_name, hook.apply_mask) if isinstance(hook, BasePruningMethod) else None


def _change(module: nn.Module, name: str, value: Any) -> None:
    """Give a module a class of its own, in which one attribute has another value, such as a property."""
    vars(module).pop(name, None)
    kind = type(module)
    module.__class__ = type(kind.__name__, (kind,), {name: value, "__module__": kind.__module__})


def _scalar(name: str, module: nn.Module) -> Tensor:
    value = module._parameters[name]
    assert value is not None  # noqa: S101 - for mypy: only set for a parameter
    return value.reshape(())


def _with_first_state(module: Any, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the arguments of a recurrent layer with a first state that depends on the input."""
    x, state = (*given, *(named[n] for n in ("input", "hx") if n in named), None)[:2]
    if not isinstance(x, Tensor):
        return given, named
    if state is None:
        single = x.dim() == (2 if isinstance(module, nn.RNNBase) else 1)
        rows = () if single else (x.shape[int(not module.batch_first) if isinstance(module, nn.RNNBase) else 0],)
        layers = (module.num_layers * (1 + module.bidirectional),) if isinstance(module, nn.RNNBase) else ()
        hidden: Any = module.hidden_size
        zeros = x.new_zeros((*layers, *rows, hidden))
        state = (zeros, zeros) if isinstance(module, nn.LSTMCell) else zeros
    moved = tree_map(lambda t: t + x.new_zeros(()), state)  # Zeros like an input are batched as the input is.
    return (x, moved), {}


def adapt_layers(model: nn.Module) -> None:
    """Make a network in place one that `torch.func` differentiates: no activation in place, and only statistics are sent.

    Buffers other than those of batch normalisation become constants that are not saved (`leakbench.core.types.Network.statistics`).

    Raises:
        InputError: For an instance normalisation that keeps running statistics.
    """
    for name, module in model.named_modules():
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise InputError(
                f"model: {name!r} is a {type(module).__name__} with running statistics; expected track_running_stats=False"
            )
        if getattr(module, "inplace", False) is True:
            module.inplace = False
        if not isinstance(module, BatchNorm):
            module._non_persistent_buffers_set.update(module._buffers)


def unwrapped_model(model: nn.Module) -> nn.Module:
    """Return the module inside Opacus, a parallel wrapper or torch.compile; the model itself if it has no wrapper."""
    if len([*model.children()]) == 1 and not list(model.named_parameters(recurse=False)):
        for name in WRAPPERS:
            if isinstance(inner := getattr(model, name, None), nn.Module):
                return unwrapped_model(inner)
    return model


def unwrapped_arrays(model: nn.Module, arrays: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return arrays by the names of a network's own parameters, without the prefix of a wrapper."""
    own = [name for name, _ in model.named_parameters()]
    for prefix in (f"{wrapper}." for wrapper in WRAPPERS):
        if arrays and all(n.startswith(prefix) for n in arrays) and not any(n.startswith(prefix) for n in own):
            return unwrapped_arrays(model, {n.removeprefix(prefix): array for n, array in arrays.items()})
    return arrays


def remove_hooks(model: nn.Module) -> None:
    """Remove backward hooks, which change no output, and the hooks of Opacus, which cannot be differentiated."""
    for module in model.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
        module._is_full_backward_hook = None
        for key, hook in list(module._forward_hooks.items()):
            if (getattr(hook, "__module__", None) or "").startswith("opacus."):
                del module._forward_hooks[key]


def order_layers(model: nn.Module, x: Tensor) -> list[str]:
    """Put a network's modules in the order in which their parameters are first used for inputs x (n, *s), unused ones first.

    Returns:
        The names of the parameters in that order.
    """
    order = order_of_use(model, x)
    places = {name: place for place, name in enumerate(order)}
    for name, module in model.named_modules():
        if isinstance(module, HOLDERS):
            continue
        inner = f"{name}." if name else ""
        firsts = {
            part: min((places[n] for n in places if n.startswith(f"{inner}{part}.")), default=len(places))
            for part in module._modules
        }
        module._modules = OrderedDict((part, module._modules[part]) for part in sorted(firsts, key=firsts.__getitem__))
    return order
