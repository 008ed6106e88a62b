"""From the words of `leakbench attack` to what leaked and who attacks: the model is built, the files are read and checked."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leakbench.errors import InputError
from leakbench.external.arrays import ENDINGS, as_parameters, check_shapes, read_arrays
from leakbench.external.assumptions import assumed, warned, with_notes
from leakbench.external.attack import attack_seen, attacked_into
from leakbench.external.attacker import Attacker, Who, suited
from leakbench.external.network import Numbers, normal_of
from leakbench.external.outcome import Outcome
from leakbench.external.trace import Named, Seen, Trained, leaked, truth_of
from leakbench.imported import import_function, said
from leakbench.store import check_out
from leakbench.words import seconds
from leakbench.words import success as threshold

__all__ = ["Asked", "attack_update", "built", "seen_of", "warn_of_contradiction"]


@dataclass(frozen=True)
class Asked:
    """What the command line asks for; see `leakbench attack --help`."""

    builder: str
    shape: tuple[int, ...]
    classes: int
    updates: tuple[Path, ...] = ()
    befores: tuple[Path, ...] = ()
    afters: tuple[Path, ...] = ()
    batch: int = 1
    learning_rate: float | None = None
    local_iterations: int = 1
    client_optimizer: str = "sgd"
    victim_mode: str = "eval"
    tap: str = "type-1"
    truth: Path | None = None
    who: Who = field(default_factory=Who)
    normalise: tuple[Numbers, Numbers] | None = None


def seen_of(asked: Asked) -> tuple[Seen, Attacker]:
    """Return what leaked and who attacks it; raises InputError, which names the option, for whatever does not fit."""
    how = Trained(asked.batch, asked.local_iterations, asked.learning_rate, asked.client_optimizer, asked.victim_mode)
    attacker = asked.who()
    if bool(asked.updates) == bool(asked.afters):
        raise InputError("update: expected either --update, or --before and --after")
    if asked.afters and (not asked.befores or asked.learning_rate is None):
        raise InputError("after: expected --before and --learning-rate too")
    model = built(asked.builder, Path.cwd())
    check_shapes(model, asked.builder)
    befores = [read_arrays("before", path) for path in _files("before", asked.befores)]
    updates: list[Named] = []
    if asked.afters:
        ended = [read_arrays("after", path) for path in _files("after", asked.afters)]
        if len(befores) not in (1, len(ended)):
            raise InputError(f"before: got {len(befores)} for {len(ended)} of --after, expected one, or one for each")
        for place, after in enumerate(ended):
            start = as_parameters("before", model, befores[place % len(befores)])
            updates.append({n: p - start[n] for n, p in as_parameters("after", model, after).items()})
    else:
        updates += [read_arrays("update", path) for path in _files("update", asked.updates)]
    truth = None
    if asked.truth is not None:
        read = read_arrays("truth", asked.truth)
        examples = 1 if asked.tap == "type-2" else how.batch * how.steps
        truth = truth_of(read, len(updates), examples, asked.shape, asked.classes)
    normal = None if asked.normalise is None else normal_of(*asked.normalise, asked.shape)
    seen = leaked(model, updates, asked.shape, asked.classes, how, befores or None, asked.tap, truth, normal)
    return seen, asked.who.with_public(attacker)


def built(builder: str, folder: Path) -> nn.Module:
    """Return the module that the user's function returns, `folder` being importable; what it prints goes to stderr.

    Raises InputError for whatever it raises, and for what is no module with parameters that are trained.
    """
    function = import_function("model", builder, str(folder))
    try:
        with redirect_stdout(sys.stderr):
            model: Any = function()
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        raise InputError(f"model: {builder!r} failed: {said(error)}") from None
    if not isinstance(model, nn.Module) or not any(p.requires_grad for p in model.parameters()):
        raise InputError(
            f"model: {builder!r} returned {type(model).__name__}, expected a torch.nn.Module with parameters that are trained"
        )
    return model


def _files(field: str, paths: tuple[Path, ...]) -> list[Path]:
    """Return the files, those of a folder in the order of their names; raises InputError for a folder without any."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(p for p in path.iterdir() if p.suffix in ENDINGS)
        if not inside:
            raise InputError(f"{field}: no {' or '.join(ENDINGS)} file in the folder {str(path)!r}")
        found += inside
    return found


OPTIONAL = ("iterations", "learning_rate", "success", "defense", "dataset", "knows")
"""Arguments that may be None."""


def attack_update(
    model: nn.Module,
    update: Named | Sequence[Named],
    *,
    shape: tuple[int, ...],
    classes: int,
    batch: int = 1,
    before: Named | Sequence[Named] | None = None,
    learning_rate: float | None = None,
    local_iterations: int = 1,
    client_optimizer: str = "sgd",
    victim_mode: str = "eval",
    tap: str = "type-1",
    truth: tuple[Tensor, Tensor] | None = None,
    normalise: tuple[Numbers, Numbers] | None = None,
    attack: str = "autoleak",
    knows: str | None = None,
    iterations: int | None = None,
    budget: str | float | None = None,
    defense: str | None = None,
    dataset: str | None = None,
    data_dir: Path | None = None,
    success: str | float | None = None,
    seed: int = 0,
    out: str | Path | None = None,
) -> Outcome:
    """Attack one update of a model, or several, and score the reconstructions where the truth is given.

    Args:
        model: Model of inputs (n, *shape) in [0, 1] to logits (n, classes), trained with cross-entropy.
        update: {parameter: tensor}, the gradient of the mean loss as `.grad` has it; with a learning rate, what training added to
            the weights. Several updates are several victims.
        shape: Shape of one input.
        classes: Number of classes.
        batch: Number of examples in a step.
        before: Weights and buffers that were sent to the client, for all updates or one for each; None for the model's own.
        learning_rate: Learning rate of the client; None where `update` is a gradient.
        local_iterations: Number of local steps.
        client_optimizer: `sgd`, or `adam` with torch's defaults.
        victim_mode: `eval` or `train`: the mode in which batch and instance normalisation computed.
        tap: Leakage point: `type-2`, `type-1` or `type-0`.
        truth: Inputs (V, M, *shape) in [0, 1] and labels (V, M) of V victims with M examples each, to score the reconstructions.
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
    _check_types(
        model,
        {
            "classes": classes,
            "batch": batch,
            "local_iterations": local_iterations,
            "seed": seed,
            "iterations": iterations,
        },
        {"learning_rate": learning_rate, "success": success},
        {"attack": attack, "defense": defense, "dataset": dataset, "knows": knows},
    )
    shape = _shape(shape)
    several = _updates("update", update)
    if before is not None:
        _updates("before", before)
    if not several:
        raise InputError("update: got none, expected at least one")
    how = Trained(batch, local_iterations, learning_rate, client_optimizer, victim_mode)
    normal = None if normalise is None else normal_of(*normalise, shape)
    if truth is not None:
        arrays = {"inputs": torch.as_tensor(truth[0]).float(), "labels": torch.as_tensor(truth[1])}
        examples = 1 if tap == "type-2" else batch * local_iterations
        truth = truth_of(arrays, len(several), examples, shape, classes)
    who = Who(attack, defense, dataset, data_dir, success, seed, knows, iterations, None, seconds("budget", budget))
    attacker = who()
    seen = leaked(model, several, shape, classes, how, before, tap, truth, normal)
    attacker = who.with_public(attacker)
    warn_of_contradiction(seen, attacker, stacklevel=3)
    attacker, adapted = suited(attacker, seen)
    notes = "\n".join([*filter(None, [adapted]), *assumed(seen, attacker, before is not None)])
    if out is None:
        return with_notes(attack_seen(seen, attacker, began=began), seen, attacker, notes)
    return attacked_into(Path(out), {tap: (seen, attacker)}, who.names, "leakbench.attack_update", notes, began=began)[
        tap
    ]


def _got(value: object) -> str:
    text = repr(value)
    return f"got {text if len(text) <= 40 else 'a value'} of type {type(value).__name__}"


def _check_types(
    model: object, counts: Mapping[str, object], numbers: Mapping[str, object], names: Mapping[str, object]
) -> None:
    """Raise InputError for an argument of another type."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {_got(model)}, expected a torch.nn.Module; call a function that builds one")
    expected = (
        (counts, Integral, "a whole number"),
        (numbers, Real, "a number"),
        (names, str, "a name as a string"),
    )
    for fields, kind, words in expected:
        for name, value in fields.items():
            if value is None and name in OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, kind):
                hint = ", such as 0.1 or 'rmse<=0.1'" if name == "success" else ""
                raise InputError(f"{name}: {_got(value)}, expected {words}{hint}")


def _shape(shape: object) -> tuple[int, ...]:
    """Return the shape of an input; raises InputError for anything but whole numbers above 0."""
    sizes = tuple(shape) if isinstance(shape, tuple | list) else ()
    if not sizes or any(isinstance(n, bool) or not isinstance(n, Integral) or n < 1 for n in sizes):
        raise InputError(f"shape: {_got(shape)}, expected whole numbers above 0, such as (3, 32, 32)")
    return tuple(int(n) for n in sizes)


def _updates(field: str, given: object) -> list[Named]:
    """Return one mapping of names to tensors, or several, as a list; raises InputError for anything else."""
    several: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    for one in several:
        if not isinstance(one, Mapping):
            expected = "{parameter: tensor} as in model.state_dict(), or a list of these"
            raise InputError(f"{field}: {_got(one)}, expected {expected}")
    return several


def warn_of_contradiction(seen: Seen, attacker: Attacker, stacklevel: int) -> None:
    """Warn by a UserWarning with each sentence that `leakbench attack` prints as a warning."""
    for line in warned(seen, attacker):
        warnings.warn(f"{seen.view.tap}: {line}", stacklevel=stacklevel)
