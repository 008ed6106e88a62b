"""A probe around any training loop: it hears what an attacker would see of it, and measures how much that leaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from leakbench.errors import InputError
from leakbench.own.attack import attacker_of
from leakbench.own.attacked import Attacker, Outcome, attack_seen
from leakbench.own.folder import attacked_into
from leakbench.own.heard import Heard, listener, unwrapped_model
from leakbench.own.leak import Trained, leaked
from leakbench.own.normalised import Normal, Numbers, normal_of
from leakbench.own.observed import Observed, show
from leakbench.own.seen import Seen
from leakbench.own.suited import suited
from leakbench.store import write_atomically
from leakbench.types import Parameters

__all__ = ["Probe", "probe"]

Loss = Callable[[Tensor, Tensor], Tensor]

UNROLLED = {"SGD": "sgd", "Adam": "adam"}

HEARD_NONE = "probe: no optimizer of PyTorch stepped on this model's parameters within the block"


@dataclass
class Probe:
    """What was heard of one training.

    model: as it was given.  before: {name: array} of parameters and buffers as they were.
    update: {p: (*p)}, what training added to the weights.
    """

    model: nn.Module
    before: Parameters = field(default_factory=dict)
    update: Parameters = field(default_factory=dict)
    heard: Heard = field(default_factory=Heard)
    observed: Observed = field(default_factory=Observed)
    most: int | None = None

    def observe(self, x: Tensor, y: Tensor, loss_fn: Loss) -> None:
        """Show a batch of a step: x (B, *s), y (B,); by it answers are scored, and single examples have gradients.

        Call it before the step's backward pass, of each microbatch where gradients are accumulated. loss_fn: as
        `torch.nn.functional.cross_entropy`, of logits and y; it is called with batches of one.
        """
        if self.most is not None and len(self.heard.steps) >= self.most:
            return
        inner = unwrapped_model(self.model)
        # Opacus' hooks would take a second pass for one of the training's; it has these gradients anyway.
        show(self.observed, x, y, inner, None if hasattr(self.model, "disable_hooks") else loss_fn)

    @property
    def steps(self) -> int:
        """How many steps were heard."""
        return len(self.heard.steps)

    @property
    def gradient(self) -> Parameters:
        """{p: (*p)}, by which the first step was made, as `.grad` held it."""
        return self.heard.gradient

    @property
    def examples(self) -> Parameters:
        """{p: (B, *p)}, single examples' gradients in the first step, as Opacus or `observe` shows them; {} where neither does."""
        return self.heard.samples or self.observed.examples

    def leak(
        self,
        shape: tuple[int, ...] | None = None,
        classes: int | None = None,
        *,
        attack: str = "autoleak",
        knows: str | None = None,
        iterations: int | None = None,
        defense: str | None = None,
        dataset: str | None = None,
        data_dir: Path | None = None,
        success: float | None = None,
        seed: int = 0,
        victims: int = 10,
        normalise: tuple[Numbers, Numbers] | None = None,
        out: Path | None = None,
    ) -> dict[str, Outcome]:
        """Attack what was heard: {leakage point: what came of it}.

        type-2 is the gradients of the first step's first examples, `victims` at most; type-1 the gradient of a single step, or
        what several added to the weights. Answers are scored where `observe` was called in every step.
        shape (*s), classes: None where `observe` was called: as its inputs are, and as the model answers them. The other arguments
        are those of `attack_update`; of normalised inputs, `normalise` says by which mean and deviation.
        out: a folder for a page, rows and answers, as `leakbench attack --out` writes them; it may not hold anything else.

        Raises InputError where nothing was heard, or several steps were not of one batch size by plain SGD or Adam.
        """
        attacker = attacker_of(attack, defense, dataset, data_dir, success, seed, knows, iterations)
        points = self._points(attacker, shape, classes, victims, normalise)
        if out is None:
            return {tap: attack_seen(*point) for tap, point in points.items()}
        names = {"dataset": dataset or "own data", "defense": defense or "none told", "attack": attack}
        return attacked_into(Path(out), points, names, "leakbench.probe")

    def save(self, folder: str | Path) -> None:
        """Write what was heard, for `leakbench attack`: before.safetensors, update.safetensors (of one step its gradient), where
        they were shown example/00000.safetensors and on, and truth.safetensors where every step was observed.
        """
        if not self.gradient:
            raise InputError(HEARD_NONE)
        place = Path(folder)
        _write(place / "before.safetensors", self.before)
        _write(place / "update.safetensors", self.gradient if self.steps == 1 else self.update)
        for v in range(len(next(iter(self.examples.values()), ()))):
            _write(place / "example" / f"{v:05d}.safetensors", {name: g[v] for name, g in self.examples.items()})
        if all(step.batch for step in self.heard.steps):
            inputs = torch.cat([x for step in self.heard.steps for x in step.inputs])
            labels = torch.cat([y for step in self.heard.steps for y in step.labels])
            _write(place / "truth.safetensors", {"inputs": inputs, "labels": labels})

    def _points(
        self,
        attacker: Attacker,
        shape: tuple[int, ...] | None,
        classes: int | None,
        victims: int,
        normalise: tuple[Numbers, Numbers] | None,
    ) -> dict[str, tuple[Seen, Attacker]]:
        """Return {leakage point: what is seen there, and the attacker that suits the network}."""
        if not self.gradient:
            raise InputError(HEARD_NONE)
        shape, classes = self._sizes(shape, classes)
        model = unwrapped_model(self.model)
        normal = None if normalise is None else normal_of(*normalise, shape)
        found: dict[str, Seen] = {}
        if self.examples and self.heard.mode == "eval":
            many = min(victims, len(next(iter(self.examples.values()))))
            each = [{name: g[v] for name, g in self.examples.items()} for v in range(many)]
            truth = self._truth(0, many, normal)
            alone = None if truth is None else (truth[0][:, None], truth[1][:, None])
            found["type-2"] = leaked(model, each, shape, classes, Trained(), self.before, "type-2", alone, normal)
        how, update = self._trained()
        truth = self._truth(how.steps, how.batch * how.steps, normal)
        whole = None if truth is None else (truth[0][None], truth[1][None])
        found["type-1"] = leaked(model, [update], shape, classes, how, self.before, "type-1", whole, normal)
        return {tap: (seen, suited(attacker, seen)[0]) for tap, seen in found.items()}

    def _sizes(self, shape: tuple[int, ...] | None, classes: int | None) -> tuple[tuple[int, ...], int]:
        if shape is not None and classes is not None:
            return shape, classes
        if not self.observed.inputs:
            raise InputError(
                "probe: the shape of inputs and the classes are not known; pass both, or call probe.observe"
            )
        x = self.observed.inputs[0][:1]
        if classes is None:
            model = unwrapped_model(self.model)
            mode = {name: module.training for name, module in model.named_modules()}
            at = next(model.parameters())
            with torch.no_grad():
                answer = model.eval()(x.to(at))
            for name, module in model.named_modules():
                module.training = mode[name]
            classes = int(answer.shape[-1])
        return shape or tuple(x.shape[1:]), classes

    def _trained(self) -> tuple[Trained, Parameters]:
        steps, mode = self.heard.steps, self.heard.mode
        sizes = {step.batch for step in steps}
        if sizes == {0} and len(steps) == 1 and self.examples:
            sizes = {len(next(iter(self.examples.values())))}
        if len(sizes) != 1 or sizes == {0}:
            said = ", ".join(str(size or "none") for size in sorted(sizes))
            raise InputError(
                f"probe: batch sizes heard: {said}; call probe.observe(x, y, loss_fn) in each step, with batches alike, or"
                " hear one step: probe(model, steps=1)"
            )
        batch = sizes.pop()
        if len(steps) == 1:
            return Trained(batch, mode=mode), self.gradient
        odd = next((step.odd for step in steps if step.odd), "")
        rates = {rate for step in steps for rate in step.rates}
        if not odd and len(rates) > 1:
            odd = f"at learning rates {', '.join(f'{rate:g}' for rate in sorted(rates))}"
        if not odd and len({step.optimizer for step in steps}) > 1:
            odd = "of several optimizers"
        if odd:
            raise InputError(
                f"probe: {len(steps)} steps {odd} are not what an attacker unrolls; hear one step: probe(model, steps=1)"
            )
        return Trained(batch, len(steps), rates.pop(), UNROLLED[steps[0].optimizer], mode), self.update

    def _truth(self, steps: int, examples: int, normal: Normal | None) -> tuple[Tensor, Tensor] | None:
        """Return inputs (n, *s) and labels (n,) of the first examples, of so many steps at least; None where not all were observed.

        Raises InputError for inputs outside of [0, 1].
        """
        observed = self.heard.steps[: max(1, steps)]
        if any(step.batch == 0 for step in observed):
            return None
        inputs = torch.cat([x for step in observed for x in step.inputs])[:examples].float()
        labels = torch.cat([y for step in observed for y in step.labels])[:examples]
        if len(labels) < examples:
            return None
        inputs = inputs if normal is None else normal.undone(inputs)
        low, high = float(inputs.min()), float(inputs.max())
        if low < -SLACK or high > 1 + SLACK:
            raise InputError(
                f"probe: inputs go from {low:.3g} to {high:.3g}, out of [0, 1], in which the attacks search; pass normalise=(mean,"
                " std), by which they were normalised"
            )
        return inputs.clamp(0, 1), labels.long()


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    write_atomically(path, lambda file: file.write_bytes(save(whole)))


SLACK = 1e-3
"""How far from [0, 1] rounding may leave inputs whose normalisation is undone."""


@contextmanager
def probe(model: nn.Module, steps: int | None = None) -> Iterator[Probe]:
    """Hear every optimizer of PyTorch that steps on the model's parameters within this block, the first `steps` of its steps.

    Of Opacus' `GradSampleModule` it takes the gradients of single examples by itself; elsewhere `Probe.observe` shows them.
    """
    if steps is not None and steps < 1:
        raise InputError(f"steps: got {steps}, expected 1 or more")
    inner = unwrapped_model(model)
    before = {name: t.detach().cpu().clone() for name, t in inner.state_dict().items()}
    found = Probe(model, before, most=steps)
    handle = register_optimizer_step_pre_hook(listener(inner, found.heard, found.observed, steps))
    try:
        yield found
    finally:
        handle.remove()
        after: Mapping[str, Tensor] = found.heard.after or dict(inner.named_parameters())
        found.update = {n: after[n].detach().cpu() - before[n] for n, _ in inner.named_parameters()}
