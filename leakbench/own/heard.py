"""What a training loop lets hear: the steps of its optimizers, by which gradients, on which batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from leakbench.own.modes import trains
from leakbench.own.observed import Observed
from leakbench.types import Parameters

__all__ = ["Heard", "Step", "listener", "unwrapped_model"]

PLAIN: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, "maximize": False},
    "Adam": {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False, "maximize": False},
}
"""{optimizer of PyTorch: the settings with which an attacker unrolls its steps}."""


@dataclass
class Step:
    """One step: the names of the parameters that moved, the batches observed since the step before, and by what it was made.

    odd: how its optimizer is none that is unrolled, in words; empty where it is.
    """

    names: set[str]
    inputs: list[Tensor]
    labels: list[Tensor]
    optimizer: str
    rates: set[float]
    odd: str

    @property
    def batch(self) -> int:
        """How many examples were observed, of all microbatches; 0 where none was."""
        return sum(map(len, self.labels))


@dataclass
class Heard:
    """The steps, and of the first of them the gradient {p: (*p)}, single examples' {p: (B, *p)}, and the mode of the model.

    after: {p: (*p)} once the last step that counts was made.
    """

    steps: list[Step] = field(default_factory=list)
    gradient: Parameters = field(default_factory=dict)
    samples: Parameters = field(default_factory=dict)
    after: Parameters = field(default_factory=dict)
    mode: str = "eval"


Hook = Callable[[Optimizer, Any, Any], "tuple[Any, Any] | None"]


def listener(model: nn.Module, heard: Heard, observed: Observed, most: int | None) -> Hook:
    """Return a pre-hook of optimizers that hears the steps on a model's parameters, `most` of them.

    Of an optimizer that gets a closure, as Lightning and LBFGS do it, the gradient is what its first call leaves.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    batches = [0]

    def hear(optimizer: Optimizer, held: Mapping[str, Any]) -> None:
        inputs, labels = observed.inputs[batches[0] :], observed.labels[batches[0] :]
        if heard.steps and not inputs and heard.steps[-1].names.isdisjoint(held):
            _joins(heard, optimizer, held)  # Another optimizer of the same step.
            return
        batches[0] = len(observed.inputs)
        heard.steps.append(
            Step(set(held), inputs, labels, type(optimizer).__name__, _rates(optimizer), _odd(optimizer))
        )
        if len(heard.steps) == 1:
            heard.gradient, heard.samples = _gradients(held), _samples(held)
            heard.mode = "train" if trains(model) else "eval"

    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        held = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"] if id(p) in names}
        if not held or heard.after:
            return None
        other = bool(heard.steps) and heard.steps[-1].names.isdisjoint(held)
        if most is not None and len(heard.steps) == most and not other:
            heard.after = {name: p.detach().cpu().clone() for name, p in model.named_parameters()}
            return None
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if closure is None:
            hear(optimizer, held)
            return None
        called = [False]

        def told() -> Any:
            loss = closure()
            if not called[0]:
                called[0] = True
                hear(optimizer, held)
            return loss

        return ((args[0], told, *args[2:]), kwargs) if "closure" not in kwargs else (args, {**kwargs, "closure": told})

    return hook


def _joins(heard: Heard, optimizer: Optimizer, held: Mapping[str, Any]) -> None:
    step = heard.steps[-1]
    if len(heard.steps) == 1:
        heard.gradient |= _gradients(held)
        heard.samples = {}
    step.names |= set(held)
    step.rates |= _rates(optimizer)
    step.odd = step.odd or _odd(optimizer)
    if step.optimizer != type(optimizer).__name__:
        step.odd = f"of {step.optimizer} and {type(optimizer).__name__} together"


def _rates(optimizer: Optimizer) -> set[float]:
    return {float(group["lr"]) for group in optimizer.param_groups}


def _odd(optimizer: Optimizer) -> str:
    """Return how an optimizer does not step by plain gradients or torch's Adam; empty where it does."""
    name = type(optimizer).__name__
    if name not in PLAIN:
        return f"of {name}"
    for group in optimizer.param_groups:
        for setting, usual in PLAIN[name].items():
            got = group.get(setting, usual)
            if (tuple(got) if isinstance(got, list) else got) != usual:
                return f"of {name} with {setting.replace('_', ' ')} {got}"
    return ""


def _gradients(held: Mapping[str, Any]) -> Parameters:
    """Return {p: (*p)}; zeros of a parameter that the loss did not reach."""
    return {
        name: (p.detach() * 0 if p.grad is None else p.grad.detach()).cpu().clone()
        for name, p in held.items()
        if p.requires_grad
    }


def _samples(held: Mapping[str, Any]) -> Parameters:
    """Return {p: (B, *p)} that Opacus left at every parameter; {} where it did not."""
    trained = {name: p for name, p in held.items() if p.requires_grad}
    left = {name: getattr(p, "grad_sample", None) for name, p in trained.items()}
    if not all(isinstance(sample, Tensor) for sample in left.values()):
        return {}
    return {name: sample.detach().cpu().clone() for name, sample in left.items() if isinstance(sample, Tensor)}


def unwrapped_model(model: nn.Module) -> nn.Module:
    """Return the module that Opacus, a parallel wrapper or torch.compile holds; else the model."""
    for name in ("_module", "module", "_orig_mod"):
        held = getattr(model, name, None)
        if (
            isinstance(held, nn.Module)
            and not list(model.named_parameters(recurse=False))
            and len([*model.children()]) == 1
        ):
            return unwrapped_model(held)
    return model
