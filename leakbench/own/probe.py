"""A probe around any training loop: it hears what an attacker would see of it, and measures how much that leaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leakbench.errors import InputError
from leakbench.own.attack import attacker_of
from leakbench.own.attacked import Outcome, attack_seen
from leakbench.own.leak import Trained, leaked
from leakbench.own.observed import Observed, listening, observe
from leakbench.types import Parameters

__all__ = ["Probe", "probe"]

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Probe:
    """What was heard of one training.

    before: {name: array} of parameters and buffers as they were.  gradient: {p: (*p)}, by which the first step was made.
    update: what training added to the weights.  examples: {p: (B, *p)} of the first step, as `observe` or Opacus shows them.
    steps: how many.  learning_rate: of the optimizer.
    """

    model: nn.Module
    before: Parameters = field(default_factory=dict)
    gradient: Parameters = field(default_factory=dict)
    update: Parameters = field(default_factory=dict)
    examples: Parameters = field(default_factory=dict)
    steps: int = 0
    learning_rate: float | None = None
    optimizer: str = ""
    observed: Observed = field(default_factory=Observed)

    def observe(self, x: Tensor, y: Tensor, loss_fn: Loss) -> None:
        """Show the batch of a step: x (B, *s), y (B,); by it answers are scored, and single examples have gradients.

        Call it before the backward pass of each step.
        """
        observe(x, y, _inner(self.model), loss_fn)

    def leak(
        self,
        shape: tuple[int, ...],
        classes: int,
        attack: str = "autoleak",
        defense: str | None = None,
        dataset: str | None = None,
        data_dir: Path | None = None,
        success: float | None = None,
        seed: int = 0,
    ) -> dict[str, Outcome]:
        """Attack what was heard: {leakage point: what came of it}.

        type-2 is the first example's gradient in the first step; type-1 the gradient of a single step, or what several added to
        the weights. Answers are scored where `observe` was called in every step.  The arguments are those of `attack_update`.
        Raises InputError where nothing was heard, or several steps were not of one batch size by SGD.
        """
        if not self.gradient:
            raise InputError("probe: no optimizer of PyTorch stepped on this model's parameters within the block")
        attacker = attacker_of(attack, defense, dataset, data_dir, success, seed)
        model, found = _inner(self.model), dict[str, Outcome]()
        if self.examples:
            one = {name: g[0] for name, g in self.examples.items()}
            truth = self._truth(1, 1)
            seen = leaked(model, [one], shape, classes, Trained(), self.before, "type-2", truth)
            found["type-2"] = attack_seen(seen, attacker)
        how, update = self._trained()
        seen = leaked(model, [update], shape, classes, how, self.before, "type-1", self._truth(how.steps, how.batch))
        return found | {"type-1": attack_seen(seen, attacker)}

    def _trained(self) -> tuple[Trained, Parameters]:
        sizes = {len(labels) for labels in self.observed.labels}
        sizes |= {len(next(iter(self.examples.values())))} if self.examples and not sizes else set()
        if len(sizes) != 1:
            said = "none" if not sizes else ", ".join(map(str, sorted(sizes)))
            raise InputError(
                f"probe: batch sizes heard: {said}; call probe.observe(x, y, loss_fn) in each step, with batches alike"
            )
        batch = next(iter(sizes))
        if self.steps == 1:
            return Trained(batch), self.gradient
        if self.optimizer not in ("SGD", "DPOptimizer"):
            raise InputError(
                f"probe: {self.steps} steps of {self.optimizer} are no sum of gradients; leave the block after one step"
            )
        return Trained(batch, self.steps, self.learning_rate), self.update

    def _truth(self, steps: int, batch: int) -> tuple[Tensor, Tensor] | None:
        if len(self.observed.inputs) < steps:
            return None
        inputs, labels = ([t[:batch] for t in each[:steps]] for each in (self.observed.inputs, self.observed.labels))
        return _joined(inputs), _joined(labels)


def _joined(several: list[Tensor]) -> Tensor:
    from torch import cat  # noqa: PLC0415

    return cat(several)[None]


@contextmanager
def probe(model: nn.Module) -> Iterator[Probe]:
    """Hear every optimizer of PyTorch that steps on the model's parameters within this block.

    Of Opacus' `GradSampleModule` it takes the gradients of single examples by itself; elsewhere `Probe.observe` shows them.
    """
    inner = _inner(model)
    names = {id(p): name for name, p in inner.named_parameters()}
    heard = Probe(model, {name: t.detach().cpu().clone() for name, t in inner.state_dict().items()})

    def hear(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        held = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"] if id(p) in names}
        if not held:
            return
        if heard.steps == 0:
            heard.gradient = {n: p.grad.detach().cpu().clone() for n, p in held.items() if p.grad is not None}
            heard.examples = _samples(held)
            heard.optimizer = type(getattr(optimizer, "original_optimizer", optimizer)).__name__
            heard.learning_rate = float(optimizer.param_groups[0]["lr"])
        heard.steps += 1

    handle = register_optimizer_step_pre_hook(hear)
    try:
        with listening() as heard.observed:
            yield heard
    finally:
        handle.remove()
    after: Mapping[str, Tensor] = dict(inner.named_parameters())
    heard.update = {n: after[n].detach().cpu() - heard.before[n] for n in names.values()}
    heard.examples = heard.examples or heard.observed.examples


def _inner(model: nn.Module) -> nn.Module:
    """Return the module that Opacus or a parallel wrapper holds; else the model."""
    for name in ("_module", "module"):
        held = getattr(model, name, None)
        if isinstance(held, nn.Module):
            return _inner(held)
    return model


def _samples(held: Mapping[str, Any]) -> Parameters:
    """Return {p: (B, *p)} that Opacus left at every parameter; {} where it did not."""
    found = {
        n: s.detach().cpu().clone() for n, p in held.items() if isinstance(s := getattr(p, "grad_sample", None), Tensor)
    }
    return found if len(found) == len(held) else {}
