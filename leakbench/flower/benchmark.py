"""A Flower app from its folder to the rows of a table: run with taps, attack, score."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from leakbench.attack import Attack
from leakbench.data.find import load_dataset
from leakbench.defense import Defense
from leakbench.errors import InputError
from leakbench.flower.app import RunConfig, load_flower_app, run_tapped
from leakbench.flower.seen import TAPS, rounds_of, seen_at
from leakbench.flower.training import Unknown
from leakbench.imported import import_function
from leakbench.own.attacked import Attacker, attack_seen
from leakbench.own.table import Row
from leakbench.recipe import resolve

__all__ = ["Asked", "benchmark"]


@dataclass(frozen=True)
class Asked:
    """What the command line asks for; see `leakbench flower --help`. out: the folder of the leaks."""

    app_dir: Path
    out: Path
    builder: str
    shape: tuple[int, ...]
    classes: int
    rounds: int | None = None
    clients: int = 10
    run_config: RunConfig = field(default_factory=dict)
    attack: str = "autoleak"
    defense: str | None = None
    dataset: str | None = None
    data_dir: Path | None = None
    success: float | None = None
    leak_rounds: str = "1"
    victims: int = 50
    batch: int | None = None
    local_iterations: int | None = None
    learning_rate: float | None = None
    seed: int = 0


def benchmark(asked: Asked) -> list[Row]:
    """Run the app and attack what leaked; raises InputError for whatever does not fit. Leaks of an earlier run are replaced."""
    attacker = Attacker(
        resolve("attacks", Attack, asked.attack)[1],
        None if asked.defense is None else resolve("defenses", Defense, asked.defense)[1],
        None if asked.dataset is None else load_dataset(asked.dataset, asked.data_dir)[2],
        asked.success,
        asked.seed,
    )
    app = load_flower_app(asked.app_dir)
    config = app.configured(asked.rounds, asked.run_config)
    model = import_function("model", asked.builder, str(asked.app_dir.resolve()))()
    if not isinstance(model, nn.Module):
        raise InputError(f"model: {asked.builder!r} returned a {type(model).__name__}, expected a torch.nn.Module")
    if not list(model.parameters()):
        raise InputError(f"model: {asked.builder!r} has no parameters, so that nothing could leak")
    for name in (*TAPS, "sent"):
        shutil.rmtree(asked.out / name, ignore_errors=True)
    run_tapped(app, config, asked.clients, asked.out)
    return list(_rows(asked, model, attacker))


def _rows(asked: Asked, model: nn.Module, attacker: Attacker) -> Iterator[Row]:
    given = Unknown(asked.local_iterations, asked.batch, asked.learning_rate)
    for number in _rounds(asked):
        for tap in TAPS:
            seen = seen_at(asked.out, tap, number, model, asked.shape, asked.classes, given, asked.victims)
            if isinstance(seen, str):
                yield Row(tap, number, None, note=seen)
                continue
            notes = [seen.training.note] if seen.training.note else []
            if seen.left_out:
                notes.append(f"{seen.left_out} clients that train otherwise are left out")
            if seen.inputs is None:
                notes.append("the truth is not known, since the app does not call leakbench.flower.observe: no score")
            outcome = attack_seen(seen, attacker)
            yield Row(tap, number, outcome, seen.view.victims, seen.view.examples, "; ".join(notes))


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
