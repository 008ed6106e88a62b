"""From the words of `leakbench attack` to what leaked and who attacks: the model is built, the files are read and checked."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from leakbench.errors import InputError
from leakbench.imported import import_function, said
from leakbench.own.arrays import ENDINGS, read_arrays
from leakbench.own.attacker import Attacker
from leakbench.own.leak import Named, Trained, leaked, truth_of
from leakbench.own.named import as_parameters, check_shapes
from leakbench.own.normalised import Numbers, normal_of
from leakbench.own.seen import Seen
from leakbench.own.who import Who

__all__ = ["Asked", "built", "seen_of"]


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
