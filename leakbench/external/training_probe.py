"""The folder in which a probe keeps what it heard: an earlier probe's files are replaced, all of them, and nobody else's is."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from leakbench.errors import InputError
from leakbench.external.arrays import ENDINGS
from leakbench.external.assumptions import assumed, with_notes
from leakbench.external.attack import attack_seen, attacked_into
from leakbench.external.attacker import Attacker, Who, suited
from leakbench.external.network import Normal, Numbers, mixes, normal_of, trains, unnormalised
from leakbench.external.observation import UNROLLED, Begins, Observed, odd, once_graded, rates, show
from leakbench.external.outcome import Outcome
from leakbench.external.trace import Named, Seen, Trained, leaked, truth_of
from leakbench.external.update import warn_of_contradiction
from leakbench.imported import said
from leakbench.store import write_atomically
from leakbench.types import Parameters
from leakbench.words import seconds

__all__ = [
    "Heard",
    "Probe",
    "Step",
    "added",
    "check_heard",
    "examples_of",
    "listener",
    "points_of",
    "probe",
    "save_heard",
    "unwrapped_model",
]


ALONE = ("truth.safetensors", "update.safetensors", "before.safetensors")

MARK = {"written_by": "leakbench.probe"}
"""In the metadata of each file, by which a later save knows it."""


def save_heard(folder: Path, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    """Write {name of a file: {name: array}} as safetensors: `truth`, `update`, `before` and those in `example/`.

    Files of an earlier save are removed before the first is written, so that those of two are never side by side; other names are
    left alone. Raises InputError, before anything is written, for a file by one of these names that no probe wrote.
    """
    several = folder / "example"
    arrays = [p for p in several.iterdir() if p.suffix in ENDINGS] if several.is_dir() else []
    old = [path for path in (*(folder / name for name in ALONE), *sorted(arrays)) if os.path.lexists(path)]
    for path in old:
        if not _ours(path):
            raise InputError(f"save: {path} is not of a probe and is not replaced; move it away or give another folder")
    for path in old:
        path.unlink()
    for name, tensors in files.items():
        whole = save({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}, MARK)
        write_atomically(folder / name, partial(_write, whole), private=True)


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _ours(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).items() >= MARK.items()
    except (SafetensorError, OSError):
        return False


@dataclass
class Step:
    """One step: the names of the parameters that moved, the batches observed since the step before, and by what it was made.

    Args:
        odd: How its optimizer is none that is unrolled, in words; empty where it is.
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

    Args:
        before: {name: array} of parameters and buffers, at first as they were when hearing began, then as the first step found
            them.
        after: {p: (*p)} once the last step so far was made.
        mixes: Whether no single example had a gradient, see `modes.mixes`.
        ended: Whether as many steps were made as count.
        late: Whether a batch was observed after them.
        fault: Why a step could not be heard; empty where each could.
    """

    before: Parameters = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    gradient: Parameters = field(default_factory=dict)
    samples: Parameters = field(default_factory=dict)
    after: Parameters = field(default_factory=dict)
    mode: str = "eval"
    mixes: bool = False
    ended: bool = False
    late: bool = False
    fault: str = ""


Ends = Callable[[Optimizer, Any, Any], None]


def listener(model: nn.Module, heard: Heard, observed: Observed, most: int | None) -> tuple[Begins, Ends]:
    """Return a pre-hook and a post-hook of optimizers that hear the steps on a model's parameters, `most` of them.

    Of an optimizer that gets a closure, as Lightning and LBFGS do it, the gradient is what its first call leaves. A step that
    cannot be heard is made all the same.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    batches = [0]
    heard.before = _state(model)

    def held_by(optimizer: Optimizer) -> dict[str, Any]:
        return {names[id(p)]: p for group in optimizer.param_groups for p in group["params"] if id(p) in names}

    def hear(optimizer: Optimizer, held: Mapping[str, Any]) -> None:
        inputs, labels = observed.inputs[batches[0] :], observed.labels[batches[0] :]
        if heard.steps and not inputs and heard.steps[-1].names.isdisjoint(held):
            _joins(heard, optimizer, held)  # Another optimizer of the same step.
            return
        batches[0] = len(observed.inputs)
        step = Step(set(held), inputs, labels, type(optimizer).__name__, rates(optimizer), odd(optimizer))
        if not heard.steps:
            heard.gradient, heard.samples = _gradients(held), _samples(held)
            heard.mode, heard.mixes = "train" if trains(model) else "eval", mixes(model)
            heard.before = _found(model, heard)
        heard.steps.append(step)

    def unless_it_fails(act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # Whatever an optimizer or a tensor is not like: the training goes on.
            heard.fault, heard.ended = said(error), True

    graded = once_graded(lambda optimizer: unless_it_fails(lambda: hear(optimizer, held_by(optimizer))))

    def begins(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        held = held_by(optimizer)
        if not held or heard.ended:
            return None
        other = bool(heard.steps) and heard.steps[-1].names.isdisjoint(held)
        if most is not None and len(heard.steps) == most and not other:
            heard.ended = True
            return None
        return graded(optimizer, args, kwargs)

    def ends(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if heard.steps and not heard.ended and held_by(optimizer):
            unless_it_fails(lambda: heard.after.update(_copied(dict(model.named_parameters()))))

    return begins, ends


def _state(model: nn.Module) -> Parameters:
    """Return a copy of a model's parameters and buffers, but those of lazy modules that have no shape yet."""
    return _copied({n: t for n, t in model.state_dict().items() if isinstance(t, Tensor) and not is_lazy(t)})


def _copied(tensors: Mapping[str, Tensor]) -> Parameters:
    return {name: t.detach().cpu().clone() for name, t in tensors.items()}


def _found(model: nn.Module, heard: Heard) -> Parameters:
    """Return what the first step finds; buffers that its own forward pass has moved as they were, where no weights were loaded."""
    now = _state(model)
    moved = any(
        n not in heard.before or not torch.equal(p.detach().cpu(), heard.before[n]) for n, p in model.named_parameters()
    )
    return now if moved or heard.mode == "eval" else heard.before


def _joins(heard: Heard, optimizer: Optimizer, held: Mapping[str, Any]) -> None:
    step = heard.steps[-1]
    if len(heard.steps) == 1:
        heard.gradient |= _gradients(held)
        heard.samples = {}
    step.names |= set(held)
    step.rates |= rates(optimizer)
    step.odd = step.odd or odd(optimizer)
    if step.optimizer != type(optimizer).__name__:
        step.odd = f"of {step.optimizer} and {type(optimizer).__name__} together"


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


CURE = "pass normalise=(mean, std) as they were normalised"


def check_heard(heard: Heard, observed: Observed) -> None:
    """Raise InputError where nothing was heard, where a step or a batch could not be, and for batches shown after their step."""
    if heard.fault:
        raise InputError(f"probe: a step could not be heard: {heard.fault}; the training went on without the probe")
    if observed.fault:
        raise InputError(f"probe: observe could not show a batch: {observed.fault}")
    if not heard.gradient:
        raise InputError("probe: no optimizer of PyTorch stepped on this model's parameters within the block")
    left = len(observed.inputs) - sum(len(step.labels) for step in heard.steps)
    if (left or heard.late) and any(step.batch == 0 for step in heard.steps):
        raise InputError(
            "probe: a batch was observed after its step; call probe.observe before the step's backward pass"
        )


def examples_of(heard: Heard, observed: Observed) -> Parameters:
    """Return {p: (B, *p)}, single examples' gradients in the first step, as Opacus or `observe` shows them; {} where none does."""
    return heard.samples or observed.examples


def added(heard: Heard) -> Parameters:
    """Return {p: (*p)}, what the steps added to the weights; {} where there was none."""
    return {name: p - heard.before[name] for name, p in heard.after.items()}


def points_of(
    model: nn.Module,
    heard: Heard,
    observed: Observed,
    attacker: Attacker,
    shape: tuple[int, ...] | None,
    classes: int | None,
    victims: int,
    normalise: tuple[Numbers, Numbers] | None,
    batch: int | None = None,
) -> dict[str, tuple[Seen, Attacker]]:
    """Return {leakage point: what is seen there, and the attacker that suits the network}.

    Args:
        model: Without its wrappers. Else as `Probe.leak`, whose errors it raises.
    """
    check_heard(heard, observed)
    if victims < 1:
        raise InputError(f"victims: got {victims}, expected 1 or more")
    shape, classes = _sizes(model, observed, shape, classes)
    normal = None if normalise is None else normal_of(*normalise, shape)
    found: dict[str, Seen] = {}
    examples = examples_of(heard, observed)
    if examples and not heard.mixes:
        many = min(victims, len(next(iter(examples.values()))))
        each = [{name: g[v] for name, g in examples.items()} for v in range(many)]
        arrays, alone = _truth(heard, 0, many, normal), Trained(mode=heard.mode)
        truth = None if arrays is None else truth_of(arrays, many, 1, shape, classes)
        found["type-2"] = leaked(model, each, shape, classes, alone, heard.before, "type-2", truth, normal)
    how, update = _trained(heard, examples, batch)
    behind = how.batch * how.steps
    arrays = _truth(heard, how.steps, behind, normal)
    truth = None if arrays is None else truth_of(arrays, 1, behind, shape, classes)
    found["type-1"] = leaked(model, [update], shape, classes, how, heard.before, "type-1", truth, normal)
    return {tap: (seen, suited(attacker, seen)[0]) for tap, seen in found.items()}


def _sizes(
    model: nn.Module, observed: Observed, shape: tuple[int, ...] | None, classes: int | None
) -> tuple[tuple[int, ...], int]:
    if shape is not None and classes is not None:
        return shape, classes
    if not observed.inputs:
        raise InputError("probe: the shape of inputs and the classes are not known; pass both, or call probe.observe")
    x = observed.inputs[0][:1]
    if classes is None:
        mode = {name: module.training for name, module in model.named_modules()}
        try:
            with torch.no_grad():
                answer = model.eval()(x.to(next(model.parameters())))
        except Exception as error:
            raise InputError(
                f"probe: the model fails on an observed input of {tuple(x.shape)}: {said(error)}"
            ) from None
        finally:
            for name, module in model.named_modules():
                module.training = mode[name]
        if not isinstance(answer, Tensor) or answer.dim() != 2:
            raise InputError("probe: the model does not answer one input with (1, classes); pass shape and classes")
        classes = int(answer.shape[1])
    return shape or tuple(x.shape[1:]), classes


def _trained(heard: Heard, examples: Parameters, given: int | None) -> tuple[Trained, Parameters]:
    steps, mode = heard.steps, heard.mode
    sizes = {step.batch for step in steps}
    if given is not None:
        shown = sizes - {0, given}
        if given < 1:
            raise InputError(f"batch: got {given}, expected 1 or more")
        if shown:
            several = ", ".join(map(str, sorted(shown)))
            raise InputError(f"batch: got {given}, but {several} examples were observed in a step")
        sizes = {given}
    if sizes == {0} and len(steps) == 1 and examples:
        sizes = {len(next(iter(examples.values())))}
    if len(sizes) != 1 or sizes == {0}:
        several = ", ".join(str(size or "none") for size in sorted(sizes))
        cure = "pass batch=B, or call probe.observe(x, y, loss_fn) in each step, with batches alike"
        raise InputError(
            f"probe: batch sizes heard: {several}; {cure}{', or hear one step: probe(model, steps=1)' * (len(steps) > 1)}"
        )
    batch = sizes.pop()
    if len(steps) == 1:
        return Trained(batch, mode=mode), heard.gradient
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
    return Trained(batch, len(steps), rates.pop(), UNROLLED[steps[0].optimizer], mode), added(heard)


def _truth(heard: Heard, steps: int, examples: int, normal: Normal | None) -> Named | None:
    """Return inputs (n, *s) and labels (n,) of the first examples, of so many steps at least; None where not all were observed.

    Raises InputError for inputs outside of [0, 1].
    """
    seen = heard.steps[: max(1, steps)]
    if any(step.batch == 0 for step in seen):
        return None
    inputs = torch.cat([x for step in seen for x in step.inputs])[:examples].float()
    labels = torch.cat([y for step in seen for y in step.labels])[:examples]
    if len(labels) < examples:
        return None
    return {"inputs": unnormalised(inputs, normal, "probe", CURE), "labels": labels}


Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Probe:
    """What was heard of one training; within the block, of its steps so far.

    Args:
        model: As it was given.
        most: How many steps are heard; None: all within the block.
    """

    model: nn.Module
    heard: Heard = field(default_factory=Heard)
    observed: Observed = field(default_factory=Observed)
    most: int | None = None

    def observe(self, x: Tensor, y: Tensor, loss_fn: Loss) -> None:
        """Show a batch of a step: x (B, *s), y (B,); by it answers are scored, and single examples have gradients.

        Call it before the step's backward pass, of each microbatch where gradients are accumulated.

        The training goes on whatever it is given; what could not be shown `leak` and `save` say.

        Args:
            y: Classes, or (B, classes) of ones and zeros.
            loss_fn: As `torch.nn.functional.cross_entropy`, of logits and y; it is called with batches of one.
        """
        if self.most is not None and len(self.heard.steps) >= self.most:
            self.heard.late = True
            return
        inner = unwrapped_model(self.model)
        # Opacus' hooks would take a second pass for one of the training's; it has these gradients anyway.
        show(self.observed, x, y, inner, None if hasattr(self.model, "disable_hooks") else loss_fn)

    @property
    def steps(self) -> int:
        """How many steps were heard."""
        return len(self.heard.steps)

    @property
    def before(self) -> Parameters:
        """{name: array} of parameters and buffers as the first step found them."""
        return self.heard.before

    @property
    def update(self) -> Parameters:
        """{p: (*p)}, what the steps added to the weights; {} before the first was made."""
        return added(self.heard)

    @property
    def gradient(self) -> Parameters:
        """{p: (*p)}, by which the first step was made, as `.grad` held it."""
        return self.heard.gradient

    @property
    def examples(self) -> Parameters:
        """{p: (B, *p)}, single examples' gradients in the first step, as Opacus or `observe` shows them; {} where neither does."""
        return examples_of(self.heard, self.observed)

    def leak(
        self,
        shape: tuple[int, ...] | None = None,
        classes: int | None = None,
        *,
        batch: int | None = None,
        attack: str = "autoleak",
        knows: str | None = None,
        iterations: int | None = None,
        budget: str | float | None = None,
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
        what several added to the weights. Answers are scored where `observe` was called in every step. shape (*s), classes,
        batch: None where `observe` was called: as its inputs are, as the model answers them, and how many examples were observed
        in each step. The other arguments are those of `attack_update`; of normalised inputs, `normalise` says by which mean and
        deviation.

        Warns where what was observed is not what the gradient came of: a loss that is no mean, microbatches that are not divided, a
        clip, another batch; and of the reason where single examples' gradients could not be computed.

        Raises InputError where nothing was heard, for a batch that was observed after its step, for labels that are no classes, and
        where several steps were not of one batch size by plain SGD or Adam.

        Args:
            budget: The most seconds of the attack at each leakage point, also as `60s` or `2m`; None: no limit.
            out: a folder for a page, rows and answers, as `leakbench attack --out` writes them; it may not hold anything else.
        """
        who = Who(attack, defense, dataset, data_dir, success, seed, knows, iterations, None, seconds("budget", budget))
        points = self._points(who.with_public(who()), shape, classes, victims, normalise, batch)
        if "type-2" not in points and self.observed.note:
            warnings.warn(f"type-2 is left out: {self.observed.note}", stacklevel=2)
        for seen, knowing in points.values():
            warn_of_contradiction(seen, knowing, stacklevel=3)
        if out is None:
            return {
                tap: with_notes(attack_seen(*point), *point, "\n".join(assumed(*point, True)))
                for tap, point in points.items()
            }
        return attacked_into(Path(out), points, who.names, "leakbench.probe")

    def save(self, folder: str | Path) -> None:
        """Write what was heard, for `leakbench attack`: before.safetensors, update.safetensors (of one step its gradient), where
        they were shown example/00000.safetensors and on, and truth.safetensors where every step was observed.

        What an earlier save left there is replaced. Raises InputError for a file by one of these names that no probe wrote, where
        nothing was heard, and for a batch that was observed after its step.
        """
        check_heard(self.heard, self.observed)
        many = len(next(iter(self.examples.values()), ()))
        files = {f"example/{v:05d}.safetensors": {name: g[v] for name, g in self.examples.items()} for v in range(many)}
        if all(step.batch for step in self.heard.steps):
            inputs = torch.cat([x for step in self.heard.steps for x in step.inputs])
            labels = torch.cat([y for step in self.heard.steps for y in step.labels])
            files["truth.safetensors"] = {"inputs": inputs, "labels": labels}
        files["update.safetensors"] = self.gradient if self.steps == 1 else self.update
        save_heard(Path(folder), files | {"before.safetensors": self.before})

    def _points(
        self,
        attacker: Attacker,
        shape: tuple[int, ...] | None,
        classes: int | None,
        victims: int,
        normalise: tuple[Numbers, Numbers] | None,
        batch: int | None = None,
    ) -> dict[str, tuple[Seen, Attacker]]:
        model = unwrapped_model(self.model)
        return points_of(model, self.heard, self.observed, attacker, shape, classes, victims, normalise, batch)


@contextmanager
def probe(model: nn.Module, steps: int | None = None) -> Iterator[Probe]:
    """Hear every optimizer of PyTorch that steps on the model's parameters within this block, the first `steps` of its steps.

    They start from the weights that the first step finds, whatever was loaded within the block. `leak` and `save` are called after
    the block; within it they are of the steps so far. Of Opacus' `GradSampleModule` it takes the gradients of single examples by
    itself; elsewhere `Probe.observe` shows them.
    """
    if steps is not None and steps < 1:
        raise InputError(f"steps: got {steps}, expected 1 or more")
    found = Probe(model, most=steps)
    begins, ends = listener(unwrapped_model(model), found.heard, found.observed, steps)
    handles = register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
