"""A Flower app from its folder to the rows of a table: run with taps, attack, score."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from leakbench.errors import InputError
from leakbench.flower.app import RunConfig, load_flower_app, run_tapped
from leakbench.flower.cleared import check_own, cleared
from leakbench.flower.seen import TAPS, rounds_of, seen_at
from leakbench.flower.training import Unknown
from leakbench.imported import said
from leakbench.own.asked import built
from leakbench.own.assumed import contradicted, normalisation, overlap
from leakbench.own.attacked import attack_seen
from leakbench.own.attacker import Attacker
from leakbench.own.normalised import Normal, Numbers, normal_of
from leakbench.own.suited import suited
from leakbench.own.table import Row
from leakbench.own.who import Who

__all__ = ["Asked", "benchmark"]


@dataclass(frozen=True)
class Asked:
    """What the command line asks for; see `leakbench flower --help`.

    Args:
        out: The folder of the leaks.
    """

    app_dir: Path
    out: Path
    builder: str
    shape: tuple[int, ...]
    classes: int
    rounds: int | None = None
    clients: int = 10
    run_config: RunConfig = field(default_factory=dict)
    who: Who = field(default_factory=Who)
    leak_rounds: str = "1"
    victims: int = 50
    batch: int | None = None
    local_iterations: int | None = None
    learning_rate: float | None = None
    victim_mode: str | None = None
    normalise: tuple[Numbers, Numbers] | None = None


def benchmark(asked: Asked) -> list[Row]:
    """Run the app and attack what leaked; leaks of an earlier run are replaced.

    Raises InputError for whatever does not fit, and for a folder `out` that holds anything else than leaks, which stays as it is.
    """
    check_own(asked.out, TAPS)
    attacker = asked.who()
    _check_rounds(asked.leak_rounds)
    app = load_flower_app(asked.app_dir)
    config = app.configured(asked.rounds, asked.run_config)
    normal = None if asked.normalise is None else normal_of(*asked.normalise, asked.shape)
    model = _model(asked)
    attacker = asked.who.with_public(attacker)
    cleared(asked.out, TAPS)
    run_tapped(app, config, asked.clients, asked.out)
    return list(_rows(asked, model, attacker, normal))


def _model(asked: Asked) -> nn.Module:
    """Return the app's network, whose lazy layers, if it has any, were shown an input; raises InputError where they fail on it."""
    model = built(asked.builder, asked.app_dir.resolve())
    if any(is_lazy(p) for p in model.parameters()):
        try:
            with torch.no_grad(), redirect_stdout(sys.stderr):
                model.eval()(torch.zeros(1, *asked.shape))
        except (Exception, SystemExit) as error:
            raise InputError(f"shape: the model fails on an input of {(1, *asked.shape)}: {said(error)}") from error
    return model


def _rows(asked: Asked, model: nn.Module, attacker: Attacker, normal: Normal | None) -> Iterator[Row]:
    given = Unknown(asked.local_iterations, asked.batch, asked.learning_rate, asked.victim_mode)
    for number in _rounds(asked):
        for tap in TAPS:
            seen = seen_at(asked.out, tap, number, model, asked.shape, asked.classes, given, asked.victims, normal)
            if isinstance(seen, str):
                yield Row(tap, number, None, note=seen)
                continue
            notes = [seen.training.note] if seen.training.note else []
            if seen.left_out:
                notes.append(f"{seen.left_out} clients that train otherwise, or got other buffers, are left out")
            if seen.inputs is None:
                notes.append("the truth is not known, since the app does not call leakbench.flower.observe: no score")
            suiting, adapted = suited(attacker, seen)
            outcome = attack_seen(seen, suiting)
            notes += normalisation(seen.view.network.model)
            warnings = tuple(filter(None, [contradicted(seen, suiting)]))
            notes += filter(None, [adapted, overlap(seen, suiting), *warnings])
            yield Row(tap, number, outcome, seen.view.victims, seen.view.examples, "\n".join(notes), warnings)


def _check_rounds(words: str) -> None:
    """Raise InputError for words that no run of an app could have as rounds."""
    if words != "all" and not all(word.strip().isdecimal() or word.strip() == "last" for word in words.split(",")):
        raise InputError(f"leak-rounds: got {words!r}, expected round numbers with commas between them, last, or all")


def _rounds(asked: Asked) -> list[int]:
    leaked = rounds_of(asked.out)
    if not leaked:
        raise InputError(
            f"{asked.app_dir}: the app sent no client a train message, or none answered with one record of arrays"
        )
    if asked.leak_rounds == "all":
        return leaked
    words = asked.leak_rounds.replace("last", str(leaked[-1])).split(",")
    if not all(word.strip().isdecimal() and int(word) in leaked for word in words):
        raise InputError(f"leak-rounds: got {asked.leak_rounds!r}, expected some of {leaked}, last, or all")
    return sorted({int(word) for word in words})
