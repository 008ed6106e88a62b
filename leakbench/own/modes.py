"""In which mode somebody's network computes: normalisation by the statistics of its batch or of each input, or by running ones."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from leakbench.errors import InputError, nearest
from leakbench.imported import said
from leakbench.models.batch_norm import BatchNorm

__all__ = ["MODES", "in_mode", "keeps", "mixes", "norms", "trains"]

MODES = ("eval", "train")

FORGOT = "statistics_taken_off"
"""The attribute of an instance normalisation of which they are."""


def norms(model: nn.Module) -> list[str]:
    """Return the names of a model's normalisations whose answers hang on the mode: of batches, and of instances that keep running
    statistics.
    """
    return [
        name for name, module in model.named_modules() if isinstance(module, _BatchNorm | BatchNorm) or keeps(module)
    ]


def keeps(module: nn.Module) -> bool:
    """Say whether a module normalises each input alone and keeps running statistics, or did so before they were taken off."""
    return isinstance(module, _InstanceNorm) and (module.track_running_stats or hasattr(module, FORGOT))


def trains(model: nn.Module) -> bool:
    """Say whether any of a model's normalisations computes by the statistics of what it is fed, as in train mode."""
    return mixes(model) or any(keeps(m) and (m.training or hasattr(m, FORGOT)) for m in model.modules())


def mixes(model: nn.Module) -> bool:
    """Say whether any batch normalisation takes the statistics of its batch, so that no example has a gradient of its own."""
    found = (module for module in model.modules() if isinstance(module, _BatchNorm | BatchNorm))
    return any(module.training or module.running_mean is None for module in found)


def in_mode(model: nn.Module, mode: str) -> nn.Module:
    """Return a copy on the CPU in float32 that computes as a client in that mode does, without dropout.

    In `train` mode each of PyTorch's batch normalisations becomes one of leakbench's, which has the same numbers and can be
    differentiated for several victims side by side, and instance normalisation takes each input's statistics and keeps none.

    Raises InputError for another mode, a model that cannot be copied, and for a batch normalisation without weights or running
    statistics in train mode.
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
        elif isinstance(module, _InstanceNorm):
            _forget(module)
        module.train()
    return copied


def _forget(module: _InstanceNorm) -> None:
    """Take off running statistics, which would be written in the midst of a gradient: each input's count, whatever the mode."""
    module.track_running_stats = False
    setattr(module, FORGOT, True)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        module._buffers[name] = None


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
