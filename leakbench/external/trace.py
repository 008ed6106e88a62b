"""What a program recorded of a training, from a probe, a Flower app or files of weights, and the attacker's view of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from leakbench.core.errors import InputError, nearest
from leakbench.core.imported import failing_as
from leakbench.core.leakage_points import OWN
from leakbench.core.task import Heads, with_task
from leakbench.core.types import Clock, Network, Parameters
from leakbench.core.working_copy import protect
from leakbench.experiment.statistics import solved_statistics
from leakbench.external.arrays import Named, as_parameters, as_state
from leakbench.external.network import Normal, in_mode, mixes_batch
from leakbench.federated.client import NO_EXAMPLE
from leakbench.federated.optimizer import OPTIMIZERS, linear_steps
from leakbench.federated.view import Knowledge, View
from leakbench.models import one_hot
from leakbench.models.batch_norm import VARIANCE
from leakbench.models.conversion import order_layers, unwrapped_model
from leakbench.models.language import LanguageModel

__all__ = ["Trace", "Training"]

COUNTER = "num_batches_tracked"
"""Last word of the name of a counter of PyTorch's batch normalisation."""


ROUNDING = 1e-4
"""How far below 0 rounding can leave a solved variance, as a share of the largest running one."""


@dataclass(frozen=True)
class Training:
    """How a client trained: local steps of one batch size, from a fresh state of the optimizer.

    Args:
        batch: Number of examples in a step, B.
        steps: Number of local steps, L.
        learning_rate: Learning rate; None if the update is a gradient, as `.grad` has it.
        optimizer: `sgd`, or `adam` with torch's defaults.
        mode: `eval` or `train`, the mode of batch and instance normalisation.
        note: Where the training differs from what the attacker assumes, one sentence a line.
        momentum: Momentum of SGD, at least 0 and below 1.
        weight_decay: Factor of the weights that is added to each gradient.

    Raises:
        InputError: For a number out of its range, an unknown optimizer, and several steps, Adam or weight decay with a gradient.
    """

    batch: int = 1
    steps: int = 1
    learning_rate: float | None = None
    optimizer: str = "sgd"
    mode: str = "eval"
    note: str = ""
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        rate = self.learning_rate
        if self.batch < 1:
            raise InputError(f"batch: got {self.batch}, expected 1 or more")
        if self.steps < 1:
            raise InputError(f"local-iterations: got {self.steps}, expected 1 or more")
        if self.steps > 1 and rate is None:
            raise InputError(
                "local-iterations: a gradient is of one step; pass --learning-rate with an update of several"
            )
        if rate is not None and not 0 < rate < math.inf:
            raise InputError(f"learning-rate: got {rate:g}, expected a finite number > 0")
        if rate is not None and not 1e-30 <= rate <= 1e30:
            raise InputError(f"learning-rate: got {rate:g}, expected 1e-30 to 1e30, as single precision holds")
        if self.optimizer not in OPTIMIZERS:
            expected = f"{' or '.join(OPTIMIZERS)}{nearest(self.optimizer, list(OPTIMIZERS))}"
            raise InputError(f"client-optimizer: got {self.optimizer!r}, expected {expected}")
        if self.optimizer != "sgd" and rate is None:
            raise InputError("client-optimizer: a gradient is of no optimizer; pass --learning-rate with an update")
        if not 0 <= self.momentum < 1:
            raise InputError(f"momentum: got {self.momentum:g}, expected a number at least 0 and below 1")
        if self.weight_decay and not 1e-30 <= self.weight_decay <= 1e30:
            raise InputError(f"weight-decay: got {self.weight_decay:g}, expected 0, or a number from 1e-30 to 1e30")
        if self.momentum and self.optimizer != "sgd":
            raise InputError(
                f"momentum: got {self.momentum:g} with {self.optimizer}, expected 0, or --client-optimizer sgd"
            )
        for name, factor in (("momentum", self.momentum), ("weight-decay", self.weight_decay)):
            if factor and rate is None:
                raise InputError(f"{name}: a gradient is of no optimizer; pass --learning-rate with an update")

    @property
    def rate(self) -> float:
        """The learning rate; 1 for a gradient."""
        return self.learning_rate or 1.0


@dataclass(frozen=True, eq=False)
class Trace:
    """What a program recorded of V updates of one network at one leakage point, and the truth behind them if it is known.

    Args:
        model: Network of inputs (n, *shape) to logits (n, classes). Parameters whose `requires_grad` is false are not
            trained and do not leak.
        updates: V times {p: (*p)}, gradients of the mean loss, or what training added to the weights.
        shape: Shape of one input; (T,) for sentences of T tokens, the padding included.
        classes: Number of classes.
        training: How the clients trained.
        before: Weights and buffers that the clients received, for all or one for each; None for the model's own.
        tap: `type-2`, `type-1` or `type-0`; with `reads`, also another name of a Flower tap.
        truth: Inputs (V, M, *shape) in [0, 1], or numbers of tokens, and labels (V, M), M examples behind each update; None if
            unknown.
        normal: Normalisation of inputs in [0, 1] before the model gets them.
        reads: `gradient` or `weights`, what the updates are; None for `gradient` without a learning rate, else `weights`.
        round: Round of the leak, from 1.
        left_out: Number of clients that trained in another way and are not attacked.
        sent: Buffers that the clients sent after training, for all or one for each; None if they sent none.
        heads: What the network answers instead of a class; the truth then has targets (V, M, k) in place of labels, and `classes`
            is k.
    """

    model: nn.Module = field(repr=False)
    updates: Sequence[Named] = field(repr=False)
    shape: tuple[int, ...]
    classes: int
    training: Training = Training()
    before: Named | Sequence[Named] | None = field(default=None, repr=False)
    tap: str = "type-1"
    truth: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    normal: Normal | None = None
    reads: str | None = None
    round: int = 1
    left_out: int = 0
    heads: Heads | None = None
    sent: Named | Sequence[Named] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", unwrapped_model(self.model))

    @property
    def texts(self) -> LanguageModel | None:
        """The language model, if the inputs are sentences; else None."""
        return self.model if isinstance(self.model, LanguageModel) else None

    @property
    def inputs(self) -> Tensor | None:
        """The true inputs (V, M, *shape); None if unknown."""
        return None if self._truth is None else self._truth[0]

    @property
    def labels(self) -> Tensor | None:
        """The true labels (V, M), int64, zeros for a network with other targets than classes; None if unknown."""
        if self._truth is None or self.heads is None:
            return None if self._truth is None else self._truth[1]
        return torch.zeros(self._truth[1].shape[:2], dtype=torch.int64)

    @property
    def targets(self) -> Tensor | None:
        """The true targets (V, M, k), one-hot for classes; None if unknown."""
        if self._truth is None:
            return None
        return one_hot(self._truth[1], self.classes) if self.heads is None else self._truth[1]

    @property
    def examples(self) -> int:
        """Number of examples behind one update, M."""
        return 1 if self.tap == "type-2" else self.training.batch * self.training.steps

    @cached_property
    def view(self) -> View:
        """The attacker's view, computed once; see `to_view`."""
        return self.to_view()

    def to_view(self) -> View:
        """Return the view of an attacker that does not know the defense.

        Raises:
            InputError: For updates, weights or a truth that do not fit the network, a network that does not return (n,
                classes), and one whose gradient cannot be differentiated.
        """
        how, victims = self.training, len(self.updates)
        if not victims:
            raise InputError("update: got none, expected at least one")
        if self.reads is None:  # A Flower tap may have any name, and records one example of a larger batch at type-2.
            if self.tap not in OWN:
                raise InputError(f"tap: got {self.tap!r}, expected one of {', '.join(OWN)}")
            if self.tap == "type-2" and (how.batch, how.steps) != (1, 1):
                raise InputError("tap: type-2 is one example's gradient; got more than one, which is type-1")
        starts = self._starts
        if len(starts) not in (1, victims):
            raise InputError(f"before: got {len(starts)} of {victims} updates, expected one, or one for each")
        clock = Clock(
            self.round - 1,
            0,
            self.round,
            how.steps,
            client_optimizer=how.optimizer,
            momentum=how.momentum,
            weight_decay=how.weight_decay,
        )
        reads = self.reads or ("gradient" if how.learning_rate is None else "weights")
        updates = [as_parameters("update", self.model, update) for update in self.updates]
        network = self._network(starts)
        if self.tap == "type-2" and mixes_batch(network.model):
            raise InputError(f"victim-mode: {NO_EXAMPLE}; expected eval, or another tap")
        view = View(
            tap=self.tap,
            network=network,
            update=_stacked(network, updates, None if reads == "gradient" else (clock, how.rate)),
            batch=how.batch,
            shape=self.shape,
            classes=self.classes,
            learning_rate=how.rate,
            local_steps=how.steps,
            knowledge=Knowledge(examples=self.examples, reads=reads),
            clock=clock,
        )
        _check_gradient(view)
        return view

    @cached_property
    def solved(self) -> Parameters:
        """The statistics {name: (V, C)} of the clients' batches, solved from the running statistics that they sent.

        Raises:
            InputError: If they sent none, or those that they received.
        """
        several = [] if self.sent is None else [self.sent] if isinstance(self.sent, Mapping) else [*self.sent]
        network, victims = self.view.network, len(self.updates)
        if len(several) != victims:
            raise InputError(
                f"statistics: 'inferred' needs the running statistics that each client sent, got those of {len(several)} clients"
                f" of {victims}; give --before and --after with the buffers, or leave it out"
            )
        states = [as_state("after", self.model, state) for state in several]
        after = {name: torch.stack([state[name] for state in states]) for name in network.statistics}
        moved = [torch.equal(after[n], old.expand_as(after[n])) for n, old in network.statistics.items() if old.dim()]
        if all(moved):
            raise InputError(
                "statistics: 'inferred' got running statistics equal to those that the clients received, so that they did not"
                " send them, or trained in eval mode; leave it out"
            )
        start = self._starts[0]
        counters = [name for name in start if name.endswith(COUNTER)]
        steps = {int(state[n]) - int(start[n]) for state in several for n in counters if n in state}
        if steps - {1}:
            raise InputError(
                f"statistics: 'inferred' needs one local step, but a counter of batches rose by {min(steps - {1})}; expected batch"
                " or proxy, or the buffers after one step"
            )
        solved = solved_statistics(network, after, torch.zeros(self.training.batch, *self.shape))
        variances = {name: statistic for name, statistic in solved.items() if name.endswith(VARIANCE)}
        if any(bool(s.min() < -ROUNDING * network.statistics[name].max()) for name, s in variances.items()):
            raise InputError(
                "statistics: 'inferred' solves variances below 0, so that the buffers are not those of one step from --before with"
                " the momentum of the model; correct them, or leave it out"
            )
        return solved | {name: statistic.clamp_min(0) for name, statistic in variances.items()}

    @property
    def _starts(self) -> list[Named]:
        if self.before is None:
            return [dict(self.model.state_dict())]
        return [self.before] if isinstance(self.before, Mapping) else [*self.before]

    def _network(self, starts: Sequence[Named]) -> Network:
        """Return the network as it was sent, with one set of parameters, or one for each victim where they differ."""
        model = self.model
        sent = [as_parameters("before", model, start) for start in starts]
        states = [as_state("before", model, start) for start in starts]
        for name, tensor in states[0].items():
            if any(not torch.equal(tensor, other[name]) for other in states[1:]):
                raise InputError(
                    f"before: {name!r}, which is not trained, differs between victims; attack them one by one"
                )
        network = in_mode(model, "eval")
        shapes = {name: p.shape for name, p in network.named_parameters()}
        sent = [{name: p.reshape(shapes[name]) for name, p in one.items()} for one in sent]
        # Some networks read the version of their state dictionary, which arrays alone do not have.
        state = network.state_dict()
        state.update({**{n: t.reshape(shapes.get(n, t.shape)) for n, t in states[0].items()}, **sent[0]})
        network.load_state_dict(state, strict=False)
        x = torch.rand(1, *self.shape, generator=torch.Generator().manual_seed(0))
        x = x if self.texts is None else (x * (self.texts.tokens - 1)).floor()
        with failing_as(_failing_input(model, self.shape)):
            protect(network, x)
        if self.normal is not None and self.texts is not None:
            raise InputError("mean: tokens are not normalised; leave --mean and --std out")
        network = network if self.normal is None else self.normal.before(network)
        _check_answer(network, self.shape, self.classes, self.heads)
        order = order_layers(network, x)
        network = network if self.training.mode == "eval" else in_mode(network, self.training.mode)
        network = network if self.heads is None else with_task(network, self.heads)
        sent = [{name: one[name] for name in order if name in one} for one in sent]
        # The fast engine needs the parameters of every layer.
        engine = "fast" if all(p.requires_grad for p in model.parameters()) else "reference"
        memory = {name: states[0][name] for name, _ in network.named_buffers()}
        if all(torch.equal(p, other[name]) for other in sent[1:] for name, p in sent[0].items()):
            return Network(network, sent[0], memory=memory, engine=engine)
        stacked = {name: torch.stack([one[name] for one in sent]) for name in sent[0]}
        return Network(network, stacked, shared=False, memory=memory, engine=engine)

    @cached_property
    def _truth(self) -> tuple[Tensor, Tensor] | None:
        """The true inputs and labels, whose first axis of one may be missing in `truth`."""
        if self.truth is None:
            return None
        inputs, labels = self.truth
        if not (labels.is_floating_point() or labels.dtype == torch.bool):
            labels = labels.long()
        shape, counts = self.shape, (len(self.updates), self.examples)
        whole = (*counts, *shape)
        if inputs.numel() != math.prod(whole) or tuple(inputs.shape[-len(shape) :]) != shape:
            raise InputError(f"truth: inputs have the shape {tuple(inputs.shape)}, expected {whole}")
        if self.heads is not None:
            if not bool(torch.isfinite(labels.float()).all()):
                raise InputError("truth: targets have numbers that are not finite, expected finite ones")
            if labels.numel() != math.prod(counts) * self.classes:
                heads = " and ".join(f"{head.size} of {head.name}" for head in self.heads.heads)
                raise InputError(
                    f"truth: targets have the shape {tuple(labels.shape)}, expected finite numbers of the shape"
                    f" {(*counts, self.classes)}: {heads}, a class as a one-hot vector"
                )
        elif labels.numel() != math.prod(counts) or labels.is_floating_point() or labels.dtype == torch.bool:
            got = f"{tuple(labels.shape)} of {labels.dtype}"
            raise InputError(f"truth: labels are {got}, expected whole numbers of the shape {counts}")
        if self.texts is not None:
            _check_tokens(inputs.reshape(whole), self.texts)
        else:
            _check_range(inputs)
        if self.heads is not None:
            return inputs.reshape(whole).float(), labels.float().reshape(*counts, self.classes)
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= self.classes:
            raise InputError(f"truth: labels go from {low} to {high}, expected 0 to {self.classes - 1}")
        return inputs.reshape(whole).float(), labels.long().reshape(counts)


def _check_range(inputs: Tensor) -> None:
    """Raise InputError for true inputs that are not numbers in [0, 1], in which the attacks search."""
    if not inputs.is_floating_point():
        raise InputError(
            f"truth: inputs are of {inputs.dtype}, expected floating numbers in [0, 1]; divide 8-bit pixels by 255"
        )
    if not bool(inputs.isfinite().all()):
        raise InputError("truth: inputs have numbers that are not finite, expected numbers in [0, 1]")
    low, high = float(inputs.min()), float(inputs.max())
    if low < 0 or high > 1:
        raise InputError(
            f"truth: inputs go from {low:.3g} to {high:.3g}, expected numbers in [0, 1]; divide 8-bit pixels by 255, and undo"
            " a normalisation"
        )


def _check_tokens(inputs: Tensor, model: LanguageModel) -> None:
    """Raise InputError for sentences (V, M, T) that are not numbers of tokens, or have only padding."""
    numbers = inputs.double()
    if not bool(numbers.isfinite().all()) or not torch.equal(numbers, numbers.floor()):
        raise InputError("truth: inputs are not whole, expected the numbers of tokens")
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= model.tokens:
        raise InputError(
            f"truth: inputs go from {low} to {high}, expected numbers of tokens from 0 to {model.tokens - 1}"
        )
    for victim, member in (numbers == model.padding).all(-1).nonzero().tolist():
        raise InputError(
            f"truth: inputs[{victim}, {member}]: got {model.padding} alone, which is padding, expected the tokens of a sentence"
        )


def _stacked(network: Network, updates: Sequence[Parameters], training: tuple[Clock, float] | None) -> Parameters:
    """Return the updates {p: (V, *p)} in the units of a gradient, as `leakbench.federated.leakage.leak` has them.

    Args:
        training: The clock and the learning rate of what training added to the weights; None for gradients.
    """
    shapes = {name: p.shape for name, p in network.model.named_parameters()}
    found = {n: torch.stack([one[n].reshape(shapes[n]) for one in updates]) for n in network.parameters}
    if training is not None:
        clock, rate = training
        how = linear_steps(clock, rate, clock.local_iterations)
        found = {n: update / (-rate * how.length) for n, update in found.items()}
        if how.kept != 1:
            found = {n: update - how.shift(rate) * network.parameters[n] for n, update in found.items()}
    for name, update in found.items():
        if not bool(update.isfinite().all()):
            raise InputError(f"update: {name!r} over the learning rate is not finite in single precision")
    return found


def _failing_input(model: nn.Module, shape: tuple[int, ...]) -> str:
    """Return the error of a model that fails on an input in float32: the shape, or the model's own types of numbers, cause it."""
    types = sorted({str(p.dtype).removeprefix("torch.") for p in model.parameters()})
    if types in ([], ["float32"]):
        return f"shape: the model fails on an input of {(1, *shape)}"
    return (
        f"model: got parameters of {' and '.join(types)}, expected a model that runs as model.float() on an input of {(1, *shape)},"
        " since attacks compute in float32; remove its casts, or correct the shape"
    )


def _check_answer(model: nn.Module, shape: tuple[int, ...], classes: int, heads: Heads | None) -> None:
    """Check that a network returns finite logits (1, classes), or a finite loss of its heads, for an input of zeros."""
    with failing_as(f"shape: the model fails on an input of {(1, *shape)}"), torch.no_grad():
        found = model(torch.zeros(1, *shape))
    if heads is not None:
        _check_loss(found, shape, heads)
        return
    if not isinstance(found, Tensor):
        raise InputError(f"model: it answers with a {type(found).__name__}, expected a tensor (n, {classes})")
    if tuple(found.shape) != (1, classes):
        expected = (
            f", expected {found.shape[1]}" if found.dim() == 2 and len(found) == 1 else f" instead of (1, {classes})"
        )
        raise InputError(f"classes: got {classes}{expected}: the model answers one input with {tuple(found.shape)}")
    if not bool(found.isfinite().all()):
        raise InputError("model: it answers an input of zeros with numbers that are not finite")


def _check_loss(outputs: Any, shape: tuple[int, ...], heads: Heads) -> None:
    """Check that the outputs for one input have a finite loss."""
    with failing_as("loss: it fails on one input"), torch.no_grad():
        loss = heads.losses(outputs, torch.zeros(1, *shape), heads.possible(torch.zeros(1, heads.size)))
    if loss.shape != (1,) or not bool(loss.isfinite().all()):
        raise InputError(f"loss: got the shape {tuple(loss.shape)} for one input, or a number that is not finite")


def _check_gradient(view: View) -> None:
    """Check that a network's gradient can be differentiated by the inputs, as every search does."""
    model = view.network.model
    embedded = (model.width,) if isinstance(model, LanguageModel) else ()  # Searches of texts move embeddings.
    inputs = torch.full((1, view.examples, *view.shape, *embedded), 0.5, requires_grad=True)
    targets = torch.full((1, view.examples, view.classes), 1 / view.classes)
    with failing_as("model: its gradient cannot be computed and differentiated"):
        found = view.respond(inputs, targets, torch.zeros(1, dtype=torch.int64))
        torch.autograd.grad(torch.stack([g.square().sum() for g in found.values()]).sum(), inputs, allow_unused=True)
