"""In which mode somebody's network computes: batch normalisation by the statistics of its batch, or by the running ones."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from leakbench.errors import InputError, nearest
from leakbench.imported import said
from leakbench.models.batch_norm import BatchNorm

__all__ = ["MODES", "in_mode", "norms", "trains"]

MODES = ("eval", "train")


def norms(model: nn.Module) -> list[str]:
    """Return the names of a model's batch normalisations."""
    return [name for name, module in model.named_modules() if isinstance(module, _BatchNorm | BatchNorm)]


def trains(model: nn.Module) -> bool:
    """Say whether any batch normalisation of a model is in train mode, in which it takes the statistics of its batch."""
    found = (module for module in model.modules() if isinstance(module, _BatchNorm | BatchNorm))
    return any(module.training or module.running_mean is None for module in found)


def in_mode(model: nn.Module, mode: str) -> nn.Module:
    """Return a copy on the CPU in float32 that computes as a client in that mode does, without dropout.

    In `train` mode each of PyTorch's batch normalisations becomes one of leakbench's, which has the same numbers and can be
    differentiated for several victims side by side. Raises InputError for another mode, a model that cannot be copied, and for a
    batch normalisation without weights or running statistics in train mode.
    """
    if mode not in MODES:
        raise InputError(f"victim-mode: got {mode!r}, expected {' or '.join(MODES)}{nearest(mode, MODES)}")
    try:
        copied = copy.deepcopy(model).cpu().float().train(False)
    except Exception as error:
        raise InputError(f"model: it cannot be copied: {said(error)}") from None
    _unhook(copied)
    if mode == "eval":
        return copied
    if isinstance(copied, _BatchNorm):
        return _ours("model", copied)
    for name in norms(copied):
        holder, _, last = name.rpartition(".")
        module = copied.get_submodule(name)
        if isinstance(module, _BatchNorm):
            module = _ours(name, module)
            setattr(copied.get_submodule(holder), last, module)
        module.train()
    return copied


def _unhook(model: nn.Module) -> None:
    """Take off hooks of the way back, which change no answer, and those of Opacus, which cannot be differentiated."""
    for module in model.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
        module._is_full_backward_hook = None
        for key, hook in list(module._forward_hooks.items()):
            if (getattr(hook, "__module__", None) or "").startswith("opacus."):
                del module._forward_hooks[key]


def _ours(name: str, module: _BatchNorm) -> BatchNorm:
    if not module.affine or module.running_mean is None or module.running_var is None or module.momentum is None:
        raise InputError(
            f"victim-mode: {name!r} is a {type(module).__name__} without weights, running statistics or momentum, which is"
            " attacked in eval mode only"
        )
    ours = BatchNorm(module.num_features, module.momentum, module.eps)
    ours.weight, ours.bias = module.weight, module.bias
    ours.running_mean, ours.running_var = module.running_mean, module.running_var
    return ours.train()
