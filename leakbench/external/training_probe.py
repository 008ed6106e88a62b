"""A probe of any PyTorch training loop: it records what an attacker would see, and measures how much that leaks."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from leakbench.core.errors import InputError
from leakbench.core.imported import failing_as, reason_of
from leakbench.core.typed import typed_arguments
from leakbench.core.types import Parameters, plain_tensor
from leakbench.core.words import seconds
from leakbench.core.working_copy import differentiated, unchanged, working_copies
from leakbench.external.arrays import ENDINGS, Named
from leakbench.external.attack import attack_traces
from leakbench.external.attacker import Attacker, AttackerOptions
from leakbench.external.network import Numbers, mixes_batch, mode_of, normal_of, undo_normal
from leakbench.external.observation import (
    PLAIN,
    UNROLLED,
    Loss,
    ObservedBatches,
    PrivateGradients,
    StepHook,
    learning_rates,
    on_gradient,
    private_gradients,
    record_batch,
    unrolled_settings,
    unusual_settings,
)
from leakbench.external.outcome import Outcome
from leakbench.external.trace import Trace, Training
from leakbench.external.update import warn
from leakbench.models.conversion import unwrapped_model
from leakbench.storage.atomic import write_bytes

__all__ = ["Probe", "probe", "save_files"]

CURE = "pass normalise=(mean, std) as they were normalised"

FILES = ("truth.safetensors", "update.safetensors", "before.safetensors")

MARK = {"written_by": "leakbench.probe"}
"""Metadata of each file; a later save recognises the file from it."""


@runtime_checkable
class Canaries(Protocol):
    """Canaries of the training, see `leakbench.canaries`."""

    def started(self, model: nn.Module) -> None:
        """Score the model before the first step."""

    def stepped(self, model: nn.Module, moved: Collection[str]) -> None:
        """Score what a step released, of the parameters with these names that its optimizer has."""

    def ended(self, model: nn.Module) -> None:
        """Score the trained model."""


@dataclass
class OptimizerStep:
    """One optimizer step.

    Args:
        names: Names of the parameters that moved.
        inputs: The observed inputs of each microbatch since the step before.
        labels: The observed labels of each microbatch since the step before.
        optimizer: Class of the optimizer.
        rates: Its learning rates.
        odd: Difference from the optimizers that are unrolled, in words; empty for none.
        regular: Its momentum and weight decay.
    """

    names: set[str]
    inputs: list[Tensor]
    labels: list[Tensor]
    optimizer: str
    rates: set[float]
    odd: str
    regular: tuple[float, float] = (0.0, 0.0)

    @property
    def batch(self) -> int:
        """Number of observed examples, of all microbatches."""
        return sum(map(len, self.labels))


@dataclass
class RecordedTraining:
    """The recorded steps of a training, and what its first step shows.

    Args:
        before: {name: array} of parameters and buffers at the start of the block, then as the first step found them.
        steps: The steps.
        gradient: {p: (*p)}, the gradient of the first step.
        private: Gradients of its single examples that Opacus left.
        after: {p: (*p)} after the last step so far.
        mode: Mode of the model in the first step, `eval` or `train`.
        mixes: Whether no single example had a gradient, see `network.mixes_batch`.
        ended: Whether recording ended, since enough steps were recorded or one could not be.
        late: Whether a batch was observed after that.
        fault: Reason why a step could not be recorded; empty if all were.
    """

    before: Parameters = field(default_factory=dict)
    steps: list[OptimizerStep] = field(default_factory=list)
    gradient: Parameters = field(default_factory=dict)
    private: PrivateGradients = field(default_factory=PrivateGradients)
    after: Parameters = field(default_factory=dict)
    mode: str = "eval"
    mixes: bool = False
    ended: bool = False
    late: bool = False
    fault: str = ""

    @property
    def added(self) -> Parameters:
        """{p: (*p)}, what the steps added to the weights; {} before the first one."""
        return {name: p - self.before[name] for name, p in self.after.items()}


def _hooks(
    model: nn.Module, heard: RecordedTraining, observed: ObservedBatches, most: int | None
) -> tuple[StepHook, Callable[..., None]]:
    """Return a pre-hook and a post-hook of optimizers that record the first `most` steps on a model's parameters.

    A step that cannot be recorded does not end the training.
    """
    names: dict[int, str] = {}
    shown = 0  # Number of batches that belong to earlier steps.

    def start() -> None:
        names.update({id(p): name for name, p in model.named_parameters()})
        heard.before = _state(model)

    def own(optimizer: Optimizer) -> dict[str, Any]:
        return {names[id(p)]: p for group in optimizer.param_groups for p in group["params"] if id(p) in names}

    def record(optimizer: Optimizer) -> None:
        nonlocal shown
        parameters = own(optimizer)
        inputs, labels = observed.inputs[shown:], observed.labels[shown:]
        if heard.steps and not inputs and heard.steps[-1].names.isdisjoint(parameters):
            _join(heard, optimizer, parameters)  # Another optimizer of the same step.
            return
        shown = len(observed.inputs)
        odd, regular = _odd(optimizer), _regular(optimizer)
        if not heard.steps and regular[0] and any("momentum_buffer" in s for s in optimizer.state.values()):
            odd = odd or f"of SGD with momentum {regular[0]:g} from earlier steps"
        step = OptimizerStep(
            set(parameters), inputs, labels, type(optimizer).__name__, learning_rates(optimizer), odd, regular
        )
        if not heard.steps:
            heard.gradient = _gradients(parameters)
            heard.private = private_gradients({n: p for n, p in parameters.items() if p.requires_grad}, labels)
            heard.mode, heard.mixes = mode_of(model), mixes_batch(model)
            heard.before = _first_state(model, heard)
        heard.steps.append(step)

    def unless_it_fails(act: Callable[[], bool | None]) -> bool:
        try:
            return bool(act())
        except Exception as error:  # A user's model and optimizer may fail in any way; the training continues.
            heard.fault, heard.ended = reason_of(error), True
            return False

    on_step = on_gradient(lambda optimizer: unless_it_fails(lambda: record(optimizer)))

    def wanted(optimizer: Optimizer) -> bool:
        parameters = own(optimizer)
        if not parameters or heard.ended:
            return False
        other = bool(heard.steps) and heard.steps[-1].names.isdisjoint(parameters)
        if most is not None and len(heard.steps) == most and not other:
            heard.ended = True
        return not heard.ended

    def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        return on_step(optimizer, args, kwargs) if unless_it_fails(lambda: wanted(optimizer)) else None

    def moved(optimizer: Optimizer) -> None:
        if heard.steps and not heard.ended and own(optimizer):
            heard.after.update(_copied(dict(model.named_parameters())))

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        unless_it_fails(lambda: moved(optimizer))

    unless_it_fails(start)
    return before_step, after_step


def _state(model: nn.Module) -> Parameters:
    """Return a copy of a model's parameters and buffers, without those of lazy modules that have no shape yet."""
    return _copied({n: t for n, t in model.state_dict().items() if isinstance(t, Tensor) and not is_lazy(t)})


def _copied(tensors: Mapping[str, Tensor]) -> Parameters:
    return {name: plain_tensor("probe", name, t).cpu().clone() for name, t in tensors.items()}


def _first_state(model: nn.Module, heard: RecordedTraining) -> Parameters:
    """Return the state that the client received.

    The forward pass of the first step has moved the buffers by now: they are as at the start of the block, unless weights
    were loaded within it.
    """
    now, before = _state(model), heard.before
    loaded = any(n not in before or not torch.equal(p.detach().cpu(), before[n]) for n, p in model.named_parameters())
    return now if loaded or heard.mode == "eval" else before


def _join(heard: RecordedTraining, optimizer: Optimizer, parameters: Mapping[str, Any]) -> None:
    """Add another optimizer of the same step."""
    step = heard.steps[-1]
    if len(heard.steps) == 1:
        heard.gradient |= _gradients(parameters)
        if heard.private.examples:
            heard.private = PrivateGradients(note="several optimizers share the gradients of single examples of Opacus")
    step.names |= set(parameters)
    step.rates |= learning_rates(optimizer)
    step.odd = step.odd or _odd(optimizer)
    if step.regular != _regular(optimizer):
        step.odd = step.odd or "of several momenta or weight decays"
    if step.optimizer != type(optimizer).__name__:
        step.odd = f"of {step.optimizer} and {type(optimizer).__name__} together"


def _regular(optimizer: Optimizer) -> tuple[float, float]:
    """Return momentum and weight decay of an optimizer as an attacker unrolls them."""
    settings = unrolled_settings(optimizer)
    return settings.get("momentum", 0.0), settings.get("weight_decay", 0.0)


def _odd(optimizer: Optimizer) -> str:
    """Return how an optimizer differs from plain SGD and torch's Adam, in words; empty if it does not."""
    name = type(optimizer).__name__
    if name not in PLAIN:
        return f"of {name}"
    # Momentum alone is unrolled; next to another setting, that one is the reason.
    settings = sorted(unusual_settings(optimizer).items(), key=lambda item: item[0] == "momentum")
    return next((f"of {name} with {setting.replace('_', ' ')} {got}" for setting, got in settings), "")


def _gradients(parameters: Mapping[str, Any]) -> Parameters:
    """Return {p: (*p)}; zeros for a parameter that the loss did not reach."""
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    return _copied({name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in trained.items()})


@dataclass
class Probe:
    """The record of one training; within the block, of its steps so far.

    Args:
        model: The model as it was given to `probe`.
        heard: The recorded steps.
        observed: The recorded batches.
        most: Number of steps that are recorded; None for all within the block.
    """

    model: nn.Module
    heard: RecordedTraining = field(default_factory=RecordedTraining)
    observed: ObservedBatches = field(default_factory=ObservedBatches)
    most: int | None = None

    def observe(self, x: Tensor, y: Tensor, loss_fn: Loss) -> None:
        """Record a batch of a step; it scores the reconstructions, and its examples get gradients of their own.

        Call it before the step's backward pass, for each microbatch if gradients are accumulated. It never ends the
        training: `leak` and `save` report a batch that could not be recorded.

        Args:
            x: Inputs (B, *s).
            y: Labels (B,), or (B, classes) of ones and zeros.
            loss_fn: Loss of logits and y, as `torch.nn.functional.cross_entropy`; it is called with batches of one.
        """
        if self.most is not None and len(self.heard.steps) >= self.most:
            self.heard.late = True
            return
        record_batch(self.observed, x, y, self.model, loss_fn)

    @property
    def steps(self) -> int:
        """Number of recorded steps."""
        return len(self.heard.steps)

    @property
    def before(self) -> Parameters:
        """{name: array} of parameters and buffers as the first step found them."""
        return self.heard.before

    @property
    def update(self) -> Parameters:
        """{p: (*p)}, what the steps added to the weights; {} before the first one."""
        return self.heard.added

    @property
    def gradient(self) -> Parameters:
        """{p: (*p)}, the gradient of the first step, as `.grad` has it."""
        return self.heard.gradient

    @property
    def examples(self) -> Parameters:
        """{p: (B, *p)}, single examples' gradients in the first step, from Opacus or `observe`; {} for neither."""
        return self.heard.private.examples or self.observed.examples

    @typed_arguments
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
        data_dir: str | Path | None = None,
        success: float | None = None,
        seed: int = 0,
        victims: int = 10,
        normalise: tuple[Numbers, Numbers] | None = None,
        out: str | Path | None = None,
    ) -> dict[str, Outcome]:
        """Attack what was recorded at each leakage point.

        type-2 is the gradients of the first step's first examples; type-1 is the gradient of a single step, or what several
        steps added to the weights. Reconstructions are scored if `observe` was called in every step.

        Args:
            shape: Shape of one input; None for the shape of the observed inputs.
            classes: Number of classes; None for the model's number of logits.
            batch: Number of examples in a step; None for the observed number.
            attack: Name in the catalog, or path of a recipe.
            knows: `oblivious` or `defense`, what the attacker knows; None for what the recipe says.
            iterations: Most iterations of a search; None for the recipe's number.
            budget: Most seconds of the attack at each leakage point, also as `60s` or `2m`; None for no limit.
            defense: Recipe of the defense that was applied, which the attacker then knows.
            dataset: Dataset whose public examples the attacker has; None for synthetic ones.
            data_dir: Folder with the datasets.
            success: RMSE up to which a reconstruction counts as a success; None for the dataset's threshold, else 0.1.
            seed: Seed of the attacker.
            victims: Largest number of attacked examples at type-2.
            normalise: Mean and standard deviation of the normalisation of the observed inputs.
            out: Folder for a report, rows and reconstructions, as `leakbench attack --out` writes them. It may not contain
                anything else.

        Returns:
            {leakage point: the outcome}.

        Raises:
            InputError: If nothing was recorded, a batch was observed after its step, labels are not classes, or several
                steps did not have one batch size and plain SGD or Adam.

        Warns:
            UserWarning: If the observed batches do not explain the gradient (a loss that is not a mean, microbatches that
                are not divided, a clip, another batch), and if type-2 is left out.
        """
        limit, place = seconds("budget", budget), None if data_dir is None else Path(data_dir)
        options = AttackerOptions(attack, defense, dataset, place, success, seed, knows, iterations, None, limit)
        self._check()
        with differentiated(), unchanged(self.model):
            points = self._points(options.with_public(options()), shape, classes, victims, normalise, batch)
            note = self.heard.private.note or self.observed.note
            if "type-2" not in points and note:
                warnings.warn(f"type-2 is left out: {note}", stacklevel=3)
            for point in points.values():
                warn(*point, stacklevel=4)
            return attack_traces(points, None if out is None else Path(out), options.names, "leakbench.probe")

    @typed_arguments
    def save(self, folder: str | Path) -> None:
        """Write the record for `leakbench attack`, in place of an earlier one.

        The files are before.safetensors, update.safetensors (for one step its gradient), example/00000.safetensors and so
        on if there are gradients of single examples, and truth.safetensors if every step was observed.

        Args:
            folder: The folder.

        Raises:
            InputError: If nothing was recorded, a batch was observed after its step, or a file has one of these names and
                was not written by a probe.
        """
        self._check()
        many = len(next(iter(self.examples.values()), ()))
        files = {f"example/{v:05d}.safetensors": {name: g[v] for name, g in self.examples.items()} for v in range(many)}
        if all(step.batch for step in self.heard.steps):
            inputs = torch.cat([x for step in self.heard.steps for x in step.inputs])
            labels = torch.cat([y for step in self.heard.steps for y in step.labels])
            files["truth.safetensors"] = {"inputs": inputs, "labels": labels}
        files["update.safetensors"] = self.gradient if self.steps == 1 else self.update
        save_files(Path(folder), files | {"before.safetensors": self.before})

    def _check(self) -> None:
        """Check that steps and batches were recorded, and that no batch was observed after its step."""
        heard, observed = self.heard, self.observed
        if heard.fault:
            raise InputError(f"probe: a step could not be heard: {heard.fault}; the training went on without the probe")
        if observed.fault:
            raise InputError(f"probe: observe could not show a batch: {observed.fault}")
        if not heard.gradient:
            raise InputError("probe: no optimizer of PyTorch stepped on this model's parameters within the block")
        later = len(observed.inputs) - sum(len(step.labels) for step in heard.steps)
        if (later or heard.late) and any(step.batch == 0 for step in heard.steps):
            raise InputError(
                "probe: a batch was observed after its step; call probe.observe before the step's backward pass"
            )

    def _points(
        self,
        attacker: Attacker,
        shape: tuple[int, ...] | None,
        classes: int | None,
        victims: int,
        normalise: tuple[Numbers, Numbers] | None,
        batch: int | None = None,
    ) -> dict[str, tuple[Trace, Attacker]]:
        """Return {leakage point: the trace there, and the attacker for the network}."""
        if victims < 1:
            raise InputError(f"victims: got {victims}, expected 1 or more")
        empty = next((i for i, step in enumerate(self.heard.steps, 1) if step.labels and not step.batch), 0)
        if not all(map(len, self.examples.values())):
            empty = 1
        if empty:
            raise InputError(
                f"probe: step {empty} has an empty batch, from which nothing leaks; record steps with examples"
            )
        model, heard, examples = unwrapped_model(self.model), self.heard, self.examples
        shape, classes = self._sizes(model, shape, classes)
        normal = normal_of(normalise, shape)
        traced = partial(Trace, model, shape=shape, classes=classes, before=heard.before, normal=normal)
        traces: list[Trace] = []

        def truth(steps: int, count: int, first: int = 0) -> tuple[Tensor, Tensor] | None:
            """Return `count` observed examples of so many steps from the `first` on; None if not all were observed."""
            seen = heard.steps[:steps]
            if not all(step.batch for step in seen) or sum(step.batch for step in seen) < first + count:
                return None
            inputs = torch.cat([x for step in seen for x in step.inputs])[first : first + count].float()
            labels = torch.cat([y for step in seen for y in step.labels])[first : first + count]
            return undo_normal(inputs, normal, "probe", CURE), labels

        if examples and not heard.mixes:
            many = min(victims, len(next(iter(examples.values()))))
            each: list[Named] = [{name: g[v] for name, g in examples.items()} for v in range(many)]
            alone = Training(mode=heard.mode)
            first = heard.private.first
            behind = None if first is None else truth(1, many, first)
            traces.append(traced(each, training=alone, tap="type-2", truth=behind))
            _ = traces[0].inputs, traces[0].view
        training = self._training(batch)
        update = heard.gradient if training.learning_rate is None else heard.added
        behind = truth(training.steps, training.batch * training.steps)
        traces.append(traced([update], training=training, truth=behind))
        _ = traces[-1].inputs
        return {trace.tap: (trace, attacker.for_network(trace)) for trace in traces}

    def _sizes(
        self, model: nn.Module, shape: tuple[int, ...] | None, classes: int | None
    ) -> tuple[tuple[int, ...], int]:
        """Return the shape of an input and the number of classes, of the observed inputs where they are not given."""
        if shape is not None and classes is not None:
            return shape, classes
        if not self.observed.inputs:
            raise InputError(
                "probe: the shape of inputs and the classes are not known; pass both, or call probe.observe"
            )
        # Cloned: a network can change its input in place, and the record is the truth.
        x = self.observed.inputs[0][:1].clone()
        if classes is None:
            with working_copies(model) as (own,), torch.no_grad():
                like = next(own.parameters())
                with failing_as(f"probe: the model fails on an observed input of {tuple(x.shape)}"):
                    answer = own.eval()(x.to(like if x.is_floating_point() else like.device))
            if not isinstance(answer, Tensor) or answer.dim() != 2:
                raise InputError("probe: the model does not answer one input with (1, classes); pass shape and classes")
            classes = int(answer.shape[1])
        return shape or tuple(x.shape[1:]), classes

    def _training(self, given: int | None) -> Training:
        """Return how the model was trained, with a given batch size if there is one; one step is read as its gradient."""
        steps, mode = self.heard.steps, self.heard.mode
        sizes = {step.batch for step in steps}
        if given is not None:
            shown = sizes - {0, given}
            if given < 1:
                raise InputError(f"batch: got {given}, expected 1 or more")
            if shown:
                several = ", ".join(map(str, sorted(shown)))
                raise InputError(f"batch: got {given}, but {several} examples were observed in a step")
            sizes = {given}
        if sizes == {0} and len(steps) == 1 and self.examples:
            sizes = {len(next(iter(self.examples.values())))}
        if len(sizes) != 1 or sizes == {0}:
            several = ", ".join(str(size or "none") for size in sorted(sizes))
            cure = "pass batch=B, or call probe.observe(x, y, loss_fn) in each step, with batches alike"
            raise InputError(
                f"probe: recorded batch sizes: {several}; {cure}{', or record one step: probe(model, steps=1)' * (len(steps) > 1)}"
            )
        batch = sizes.pop()
        if len(steps) == 1:
            return Training(batch, mode=mode)
        odd = next((step.odd for step in steps if step.odd), "")
        rates = {rate for step in steps for rate in step.rates}
        if not odd and len(rates) > 1:
            odd = f"at learning rates {', '.join(f'{rate:g}' for rate in sorted(rates))}"
        if not odd and len({step.optimizer for step in steps}) > 1:
            odd = "by several optimizers"
        if not odd and len({step.regular for step in steps}) > 1:
            odd = "of several momenta or weight decays"
        if odd:
            raise InputError(
                f"probe: {len(steps)} steps {odd} are not what an attacker unrolls; record one step: probe(model, steps=1)"
            )
        momentum, decay = steps[0].regular
        optimizer = UNROLLED[steps[0].optimizer]
        return Training(batch, len(steps), rates.pop(), optimizer, mode, momentum=momentum, weight_decay=decay)


@typed_arguments
@contextmanager
def probe(model: nn.Module, steps: int | None = None, canaries: Canaries | None = None) -> Iterator[Probe]:
    """Record the steps of every PyTorch optimizer on a model's parameters within this block.

    The record starts from the weights that the first step finds, even if they were loaded within the block. Call `leak`
    and `save` after the block; within it they use the steps so far. The gradients of single examples are taken from Opacus'
    `GradSampleModule` if there is one; otherwise `Probe.observe` computes them.

    Args:
        model: The model, with or without a wrapper.
        steps: Number of steps to record; None for all.
        canaries: Of `leakbench.canaries`, to score in all steps of the block, also in those beyond `steps`; call their `audit`
            after it. The training must use them: gradient canaries through `join`, example canaries as more examples. None for
            no audit.

    Yields:
        The record.

    Raises:
        InputError: For fewer than one step, for canaries of another model, and for a training without a step, or without gradient
            canaries in each.
    """
    if steps is not None and steps < 1:
        raise InputError(f"steps: got {steps}, expected 1 or more")
    if canaries is not None:
        canaries.started(model)
    found = Probe(model, most=steps)
    before_step, after_step = _hooks(unwrapped_model(model), found.heard, found.observed, steps)
    handles = [register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step)]
    faults: list[str] = []
    if canaries is not None:
        handles.append(register_optimizer_step_post_hook(_scoring(model, canaries, faults)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
    if faults:
        raise InputError(f"canaries: a step could not be scored: {faults[0]}; the training continued without them")
    if canaries is not None:
        canaries.ended(model)


def _scoring(model: nn.Module, canaries: Canaries, faults: list[str]) -> Callable[..., None]:
    """Return a post-hook of optimizers that lets canaries score each step on a model's parameters, until one fails."""
    names = {id(p): name for name, p in model.named_parameters()}

    def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        moved = {names[id(p)] for group in optimizer.param_groups for p in group["params"] if id(p) in names}
        if moved and not faults:
            try:
                canaries.stepped(model, moved)
            except Exception as error:  # The training continues.
                faults.append(reason_of(error))

    return after_step


def save_files(folder: Path, files: Mapping[str, Named]) -> None:
    """Write {name of a file: {name: array}} as safetensors: `truth`, `update`, `before` and those in `example/`.

    Files of an earlier save are removed before the first is written, so that files of two saves are never together; other
    names are left alone.

    Raises:
        InputError: For a file with one of these names that a probe did not write, before anything is changed.
    """
    several = folder / "example"
    arrays = [p for p in several.iterdir() if p.suffix in ENDINGS] if several.is_dir() else []
    old = [path for path in (*(folder / name for name in FILES), *sorted(arrays)) if os.path.lexists(path)]
    for path in old:
        if not _by_probe(path):
            raise InputError(f"save: {path} is not of a probe and is not replaced; move it away or give another folder")
    for path in old:
        path.unlink()
    for name, tensors in files.items():
        content = save({n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}, MARK)
        write_bytes(folder / name, content, private=True)


def _by_probe(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).items() >= MARK.items()
    except (SafetensorError, OSError):
        return False
