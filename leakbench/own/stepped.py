"""How an optimizer steps: by what rates and settings, as an attacker unrolls it or not, and when its gradient is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["UNROLLED", "Begins", "odd", "once_graded", "rates", "unusual"]

UNROLLED = {"SGD": "sgd", "Adam": "adam"}
"""{optimizer of PyTorch: how leakbench's clients step}."""

PLAIN: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False},
    "Adam": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False, "maximize": False},
}
"""{optimizer of PyTorch: the settings with which an attacker unrolls its steps}."""

Begins: TypeAlias = Callable[[Optimizer, Any, Any], "tuple[Any, Any] | None"]
"""A pre-hook of an optimizer's step: (optimizer, args, kwargs) -> others in their stead, or None."""


def rates(optimizer: Optimizer) -> set[float]:
    """Return the learning rates of all groups."""
    return {float(group["lr"]) for group in optimizer.param_groups if "lr" in group}


def unusual(optimizer: Optimizer) -> dict[str, Any]:
    """Return {setting: value} by which an optimizer steps otherwise than it is unrolled, of any group; {} for one that is not."""
    found: dict[str, Any] = {}
    for group in optimizer.param_groups:
        for setting, plain in PLAIN.get(type(optimizer).__name__, {}).items():
            got = group.get(setting, plain)
            got = float(got) if isinstance(got, Tensor) else tuple(got) if isinstance(got, list) else got
            if got != plain:
                found.setdefault(setting, got)
    return found


def odd(optimizer: Optimizer) -> str:
    """Return how an optimizer does not step by plain gradients or torch's Adam, in words; empty where it does."""
    name = type(optimizer).__name__
    if name not in PLAIN:
        return f"of {name}"
    return next((f"of {name} with {what.replace('_', ' ')} {got}" for what, got in unusual(optimizer).items()), "")


def once_graded(hear: Callable[[Optimizer], None]) -> Begins:
    """Return a pre-hook that calls `hear` once a step when the gradient is there.

    Of a step that gets a closure, as Lightning and LBFGS do it, that is what the closure's first call leaves.
    """

    def begins(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            hear(optimizer)
            return None
        called = [False]

        def told() -> Any:
            loss = closure()
            if not called[0]:
                called[0] = True
                hear(optimizer)
            return loss

        return ((args[0], told, *args[2:]), kwargs) if "closure" not in kwargs else (args, {**kwargs, "closure": told})

    return begins
