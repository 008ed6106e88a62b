"""An attack on external updates: `leakbench.attack_update`, and the files of `leakbench attack`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.core.imported import import_function
from leakbench.core.request import check_model
from leakbench.core.rng import generator
from leakbench.core.task import Heads, LossFunction, heads_from
from leakbench.core.typed import got, typed_arguments
from leakbench.core.types import plain_tensor
from leakbench.core.words import seconds
from leakbench.core.words import success as threshold
from leakbench.core.working_copy import copied, differentiated, unchanged
from leakbench.data.vocabulary import Vocabulary
from leakbench.external.arrays import ENDINGS, Named, as_parameters, check_shapes, named_arrays, read_arrays
from leakbench.external.assumptions import warnings_of
from leakbench.external.attack import attack_traces
from leakbench.external.attacker import Attacker, AttackerOptions
from leakbench.external.network import Numbers, frozen, normal_of
from leakbench.external.outcome import Outcome
from leakbench.external.trace import Trace, Training
from leakbench.models import MODELS, architecture, build
from leakbench.models.external import ExternalNetwork
from leakbench.models.folder import TOKENS, NetworkFolder
from leakbench.models.language import LanguageModel
from leakbench.storage.store import check_out

__all__ = ["UpdateFiles", "attack_update", "warn"]


@typed_arguments
def attack_update(
    model: nn.Module,
    update: Named | Sequence[Named],
    *,
    shape: tuple[int, ...],
    classes: int | None = None,
    targets: str | None = None,
    loss: LossFunction | None = None,
    batch: int = 1,
    before: Named | Sequence[Named] | None = None,
    learning_rate: float | None = None,
    local_iterations: int = 1,
    client_optimizer: str = "sgd",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    victim_mode: str = "eval",
    tap: str = "type-1",
    truth: Any = None,
    normalise: tuple[Numbers, Numbers] | None = None,
    attack: str = "autoleak",
    knows: str | None = None,
    iterations: int | None = None,
    budget: str | float | None = None,
    defense: str | None = None,
    dataset: str | None = None,
    data_dir: str | Path | None = None,
    success: str | float | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    vocabulary: str | Path | None = None,
    statistics: str = "batch",
    sent: Named | Sequence[Named] | None = None,
) -> Outcome:
    """Attack one update of a model, or several, and score the reconstructions where the truth is given.

    Args:
        model: Model of inputs (n, *shape) in [0, 1] to logits (n, classes), trained with cross-entropy.
        update: {parameter: tensor}, the gradient of the mean loss as `.grad` has it; with a learning rate, what training added to
            the weights. Several updates are several victims. None is the gradient of a parameter that is not trained, or, if other
            victims have one, zero.
        shape: Shape of one input.
        classes: Number of classes; None with `targets`.
        targets: What the network predicts instead of a class: its outputs as `kind:number`, of the kinds `classes`, `labels` (0
            or 1) and `numbers`. `labels:1x64x64,classes:10` is one label for each of 64 x 64 pixels, and one of 10 classes.
        loss: Function of outputs and targets that returns the loss of each example, or their mean; None for cross-entropy of
            classes and labels, and squared error of numbers. It needs `targets`.
        batch: Number of examples in a step.
        before: Weights and buffers that were sent to the client, for all updates or one for each; None for the model's own.
        learning_rate: Learning rate of the client; None where `update` is a gradient.
        local_iterations: Number of local steps.
        client_optimizer: `sgd`, or `adam` with torch's defaults.
        momentum: Momentum of SGD, from a fresh state.
        weight_decay: Weight decay, as in torch.optim: this factor times the weights is added to each gradient.
        victim_mode: `eval` or `train`: the mode in which batch and instance normalisation computed.
        tap: Leakage point: `type-2`, `type-1` or `type-0`.
        truth: Inputs (V, M, *shape) in [0, 1] and labels (V, M), with `targets` targets (V, M, k), of V victims with M examples
            each, to score the reconstructions; or {"inputs": ..., "labels": ...}, as files have it.
        normalise: Mean and standard deviation, a number or one for each channel, that turn inputs in [0, 1] into the model's.
        attack: Name in the catalog, or path of a recipe.
        knows: `oblivious` or `defense`, what the attacker knows; None for what the recipe says.
        iterations: Most iterations of a search; None for the recipe's number.
        budget: Most seconds of the attack, also as `60s` or `2m`; None for no limit. Preparation and scores can exceed it.
        defense: Recipe of the defense that was applied to the update, which the attacker then knows.
        dataset: Dataset whose public examples the attacker has; None for synthetic ones.
        data_dir: Folder with the datasets.
        success: RMSE up to which a reconstruction counts as a success, also as `rmse<=0.1`; None for the dataset's threshold,
            else 0.1.
        seed: Seed of the attacker.
        out: Folder for a report, rows and reconstructions, as `leakbench attack --out` writes them. It may not contain anything
            else. An interrupted attack resumes from it.
        vocabulary: File with the tokens of a language model, as of `--vocabulary`; None for those of the dataset.
        statistics: Statistics of batch normalisation with which a guess is compared, if `victim_mode` is `train`: `batch`, the
            running ones that were sent to the client; `proxy`, those of public examples; `inferred`, those of the client's batch,
            solved from `sent`.
        sent: Buffers that the client sent after training, for one update or one for each; None if it sent none.

    Returns:
        The reconstructions; with `truth` also their scores and the verdict, in `summary`.

    Raises:
        InputError: For arguments that do not fit together, or a folder that contains something else.

    Warns:
        UserWarning: Where the gradient of the truth is not the update, where an update is zero everywhere or too long for a search,
            and where victims have equal examples.
    """
    began = time.monotonic()
    if out is not None:
        check_out(Path(out))
    success = threshold(success) if isinstance(success, str) else success
    shape = _shape(shape)
    updates = _updates("update", update)
    if before is not None:
        _updates("before", before)
    if sent is not None:
        _updates("sent", sent)
    if not updates:
        raise InputError("update: got none, expected at least one")
    how = Training(batch, local_iterations, learning_rate, client_optimizer, victim_mode, "", momentum, weight_decay)
    normal = normal_of(normalise, shape)
    heads = _heads(classes, targets, None if loss is None else copied(loss))
    width = int(classes or 0) if heads is None else heads.size
    with differentiated(), unchanged(model):
        arrays = None if truth is None else _truth(truth, heads)
        own, updates = _trained(model, updates)
        trace = Trace(own, updates, shape, width, how, before, tap, arrays, normal, heads=heads, sent=sent)
        _ = trace.inputs  # A truth that does not fit is reported first.
        limit, place = seconds("budget", budget), None if data_dir is None else Path(data_dir)
        options = AttackerOptions(
            attack, defense, dataset, place, success, seed, knows, iterations, None, limit, statistics
        )
        attacker, path = options(), None if vocabulary is None else Path(vocabulary)
        _check_reads_words(path, trace.texts is not None, type(model).__name__)
        _ = trace.view  # An update that does not fit is reported before the dataset is read.
        attacker = options.with_public(attacker, None if path is None else Vocabulary.of_file(path))
        # The fourth frame is the caller of the checked function.
        warn(trace, attacker, stacklevel=4)
        points = {tap: (trace, attacker.for_network(trace, path))}
        folder = None if out is None else Path(out)
        return attack_traces(points, folder, options.names, "leakbench.attack_update", began=began)[tap]


def _heads(classes: int | None, targets: str | None, loss: LossFunction | None) -> Heads | None:
    """Return the heads of a network with other targets than classes.

    Raises:
        InputError: Unless exactly one of classes and targets is given, and for a loss without targets.
    """
    if (classes is None) == (targets is None):
        raise InputError(
            f"classes: got {'none' if classes is None else 'targets too'}; give one of classes and targets"
        )
    if targets is None:
        if loss is not None:
            raise InputError("loss: got a function without targets; expected targets too, as classes:10")
        return None
    return heads_from(targets, loss)


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    if not shape or min(shape) < 1:
        raise InputError(f"shape: {got(shape)}, expected whole numbers above 0, such as (3, 32, 32)")
    return tuple(map(int, shape))


def _truth(truth: object, heads: Heads | None) -> tuple[Tensor, Tensor]:
    """Return the inputs and the labels or targets of a pair, or of a dictionary with their names."""
    names = ("inputs", "labels" if heads is None else "targets")
    if isinstance(truth, Mapping):
        if set(truth) != set(names):
            raise InputError(
                f"truth: got the arrays {', '.join(sorted(map(str, truth)))}, expected {' and '.join(names)}"
            )
        truth = tuple(truth[name] for name in names)
    if not (isinstance(truth, tuple | list) and len(truth) == 2):
        raise InputError(f"truth: {got(truth)}, expected ({', '.join(names)})")
    inputs, labels = (plain_tensor("truth", name, array) for name, array in zip(names, truth, strict=True))
    return inputs.float(), labels


def _trained(model: nn.Module, updates: Sequence[Named]) -> tuple[nn.Module, list[Named]]:
    """Return the network and the updates without gradients that are None.

    A parameter without a gradient in any update counts as frozen; one that only some updates have has the gradient zero in the
    others.
    """
    check_shapes(model)
    several = [named_arrays("update", model, update) for update in updates]
    shapes = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
    known = {name for one in several for name, array in one.items() if array is not None}
    never = {name for one in several for name in one if name in shapes and name not in known}
    if never >= shapes.keys():
        raise InputError(
            "update: every gradient is None, expected numbers; call backward() before, and use p.grad of that model"
        )
    found: list[Named] = [
        {
            n: torch.zeros(shapes[n]) if a is None else a
            for n, a in one.items()
            if a is not None or n in known & shapes.keys()
        }
        for one in several
    ]
    return frozen(model, never), found


def _updates(field: str, given: object) -> list[Named]:
    """Return one mapping of names to tensors, or several, as a list."""
    several: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    for one in several:
        if not isinstance(one, Mapping):
            expected = "{parameter: tensor} as in model.state_dict(), or a list of these"
            raise InputError(f"{field}: {got(one)}, expected {expected}")
    return several


def warn(trace: Trace, attacker: Attacker, stacklevel: int) -> None:
    """Give a UserWarning with each sentence that `leakbench attack` prints as a warning."""
    for line in warnings_of(trace, attacker):
        warnings.warn(f"{trace.tap}: {line}", stacklevel=stacklevel)


@dataclass(frozen=True)
class UpdateFiles:
    """The update that the options of `leakbench attack` describe; see `leakbench attack --help`."""

    builder: str
    shape: tuple[int, ...]
    classes: int | None = None
    updates: tuple[Path, ...] = ()
    befores: tuple[Path, ...] = ()
    afters: tuple[Path, ...] = ()
    batch: int = 1
    learning_rate: float | None = None
    local_iterations: int = 1
    client_optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    victim_mode: str = "eval"
    tap: str = "type-1"
    truth: Path | None = None
    targets: str | None = None
    loss: str | None = None
    normalise: tuple[Numbers, Numbers] | None = None
    vocabulary: Path | None = None

    def read(self, options: AttackerOptions) -> tuple[Trace, Attacker]:
        """Build the model, read the files, and return the trace and the attacker for its network.

        Raises:
            InputError: With the name of the option, for anything that does not fit.
        """
        how = Training(
            self.batch,
            self.local_iterations,
            self.learning_rate,
            self.client_optimizer,
            self.victim_mode,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
        )
        attacker = options()
        if bool(self.updates) == bool(self.afters):
            raise InputError("update: expected either --update, or --before and --after")
        if self.afters and (not self.befores or self.learning_rate is None):
            raise InputError("after: expected --before and --learning-rate too")
        named = MODELS.get(self.builder)
        _check_reads_words(self.vocabulary, named is None or named.texts, self.builder)
        words = self._words
        model = self._model(options, words)
        _check_reads_words(self.vocabulary, isinstance(model, LanguageModel), self.builder)
        check_shapes(model, self.builder)
        befores = _read("before", self.befores)
        updates, afters = _read("update", self.updates), _read("after", self.afters)
        if afters:
            updates = _changes(model, befores, afters)
        truth = None if self.truth is None else read_arrays("truth", self.truth)
        heads = self._heads
        arrays = None if truth is None else _truth(truth, heads)
        normal = normal_of(self.normalise, self.shape)
        trace = Trace(
            model,
            updates,
            self.shape,
            self._width,
            how,
            befores or None,
            self.tap,
            arrays,
            normal,
            heads=heads,
            sent=afters or None,
        )
        _ = trace.inputs, trace.view  # Files that do not fit are reported before the dataset is read.
        return trace, options.with_public(attacker, words).for_network(trace, self.vocabulary)

    @property
    def _heads(self) -> Heads | None:
        """The heads of a network with other targets than classes."""
        loss = None if self.loss is None else import_function("loss", self.loss, str(Path.cwd()))
        return _heads(self.classes, self.targets, loss)

    @property
    def _width(self) -> int:
        """Number of outputs."""
        return int(self.classes or 0) if self._heads is None else self._heads.size

    @property
    def _words(self) -> Vocabulary | None:
        """The tokens of the network's folder, else of the file; None for those of the dataset.

        Raises:
            InputError: For a broken file, and for one with other tokens than the folder, which are the network's.
        """
        folder = NetworkFolder.of(self.builder)
        if self.vocabulary is None:
            return None if folder is None else Vocabulary.of_folder(folder.path)
        given = Vocabulary.of_file(self.vocabulary)
        # Of a folder with a tokenizer in another format, the file says the tokens.
        if folder is None or not any((folder.path / name).is_file() for name in TOKENS):
            return given
        own = Vocabulary.of_folder(folder.path)
        other = None if own is None else given.first_other(own)
        if other is not None:
            number, mine, theirs = other
            raise InputError(
                f"vocabulary: {self.vocabulary}: token {number} is {_token(mine)}, in {str(folder)!r} {_token(theirs)}; leave out"
                " --vocabulary, since the tokens are the folder's"
            )
        return own

    def _model(self, options: AttackerOptions, words: Vocabulary | None) -> nn.Module:
        """Return the user's network, or one of the catalog or of a folder at weights that are not those that were sent."""
        name = self.builder
        external = ExternalNetwork.of(name)
        check_model("model", name)
        drawn = external is None or not (external.runs_code or external.trained)
        if drawn and not self.befores:
            raise InputError(f"before: got none, expected the weights of {name!r} that the client received")
        if external is not None:
            return external.made(self.shape, self._width)
        shape, padding = self.shape, 0
        if architecture(name).texts:
            tokens, padding = options.known_tokens(words)
            shape = (*shape, tokens)
        rng = generator(options.seed, "network")
        return build(name, shape, self._width, rng, padding=padding, heads=self._heads)


def _check_reads_words(vocabulary: Path | None, texts: bool, name: str) -> None:
    """Raise InputError if a file of tokens is given for a network that reads none."""
    if vocabulary is not None and not texts:
        raise InputError(f"vocabulary: only for language models, got {name}")


def _token(name: str) -> str:
    return repr(name) if name else "missing"


def _changes(model: nn.Module, befores: Sequence[Named], afters: Sequence[Named]) -> list[Named]:
    """Return what training added to the weights."""
    if len(befores) not in (1, len(afters)):
        raise InputError(f"before: got {len(befores)} for {len(afters)} of --after, expected one, or one for each")
    changes: list[Named] = []
    for place, after in enumerate(afters):
        start = as_parameters("before", model, befores[place % len(befores)])
        changes.append({n: p - start[n] for n, p in as_parameters("after", model, after).items()})
    return changes


def _read(field: str, paths: Sequence[Path]) -> list[Named]:
    """Return the arrays of the files, those of a folder in the order of their names."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(p for p in path.iterdir() if p.suffix in ENDINGS) if path.is_dir() else [path]
        if not inside:
            raise InputError(f"{field}: no {' or '.join(ENDINGS)} file in the folder {str(path)!r}")
        files += inside
    return [read_arrays(field, path) for path in files]
