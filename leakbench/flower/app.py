"""Somebody's Flower app: its components by its pyproject.toml, run in this process with taps."""

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import ServerApp
from torch import nn
from torch.nn.parameter import is_lazy

from leakbench.errors import InputError, nearest
from leakbench.external.assumptions import contradicted, normalisation, overlap
from leakbench.external.attack import attack_seen
from leakbench.external.attacker import Attacker, Who, suited
from leakbench.external.network import Normal, Numbers, normal_of
from leakbench.external.outcome import Row
from leakbench.external.update import built
from leakbench.flower.grids import InProcessGrid, TapGrid, context_of_server
from leakbench.flower.leaks import check_own, cleared
from leakbench.flower.messages import client_of
from leakbench.flower.mods import StepProbeMod, UpdateTapMod, attach
from leakbench.flower.trace import TAPS, Unknown, rounds_of, seen_at
from leakbench.imported import import_function, said

__all__ = ["Asked", "FlowerApp", "RunConfig", "benchmark", "load_flower_app", "run_tapped"]


RunConfig: TypeAlias = Mapping[str, bool | float | int | str]

ROUNDS = "num-server-rounds"
"""What Flower's own templates call the number of rounds in an app's config."""


@dataclass(frozen=True)
class FlowerApp:
    """An app's two components and its config, `[tool.flwr.app.config]`."""

    server: ServerApp
    client: ClientApp
    config: RunConfig

    def configured(self, rounds: int | None, changes: RunConfig) -> RunConfig:
        """Return the config with so many rounds and with the changes; raises InputError for a key that the app does not have."""
        given = dict(changes) if rounds is None else {**changes, ROUNDS: rounds}
        for key in given:
            if key not in self.config:
                field = "rounds" if key == ROUNDS else "run-config"
                raise InputError(f"{field}: the app's config has no {key!r}{nearest(key, list(self.config))}")
        return {**self.config, **given}


def load_flower_app(folder: Path) -> FlowerApp:
    """Return the app in a folder; its modules are imported.

    Raises InputError where there is no pyproject.toml with components, or one cannot be imported or is something else.
    """
    path = folder / "pyproject.toml"
    if not path.is_file():
        raise InputError(f"{folder}: no pyproject.toml, expected a Flower app")
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # Of TOML and of UTF-8.
        raise InputError(f"{path}: {error}") from None
    app = _table(_table(_table(written, "tool", path), "flwr", path), "app", path)
    components = _table(app, "components", path)
    found: dict[str, Any] = {}
    for name, kind in (("serverapp", ServerApp), ("clientapp", ClientApp)):
        if name not in components:
            raise InputError(f"{path}: tool.flwr.app.components has no {name!r}")
        found[name] = import_function(f"{path}: {name}", str(components[name]), str(folder.resolve()))
        if not isinstance(found[name], kind):
            raise InputError(
                f"{path}: {name}: {components[name]!r} is a {type(found[name]).__name__}, expected {kind.__name__}"
            )
    return FlowerApp(found["serverapp"], found["clientapp"], _flat(_table(app, "config", path)))


def run_tapped(app: FlowerApp, config: RunConfig, clients: int, sink: Path, steps: int = 1) -> None:
    """Run the app to its end without an engine, and write all that leaks at type-0, type-1 and type-2 into a folder.

    Raises InputError, of which what the app raised is the cause, where its server fails or ends the process, or any of its clients
    does, though the strategy would have gone on without it.

    Args:
        clients: How many nodes there are. What the app prints goes to stderr.
    """
    failed: list[InputError] = []
    taps = (UpdateTapMod(sink), StepProbeMod(sink, steps), _watched(failed))
    with quiet():
        grid = TapGrid(InProcessGrid(attach(app.client, *taps), clients, config), sink)
        try:
            app.server(grid, context_of_server(config))
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and str(error.filename).startswith(str(sink)):
                raise  # What failed is not the app but the writing of a leak.
            raise failed[0] if failed else InputError(f"app: its server failed: {said(error)}") from error
    if failed:
        raise failed[0]


def _watched(failed: list[InputError]) -> Mod:
    """Return a mod that keeps what a client raises: Flower's older strategies ask clients in threads and go on without a reply."""

    def watched(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            return call_next(message, context)
        except InputError as error:
            failed.append(error)
            raise
        except (Exception, SystemExit) as error:
            what = f"app: its client {client_of(context)} failed ({message.metadata.message_type}): {said(error)}"
            failed.append(InputError(what))
            raise failed[-1] from error

    return watched


@contextmanager
def quiet() -> Iterator[None]:
    """Let Flower log errors alone, and what an app prints go to stderr, within this block."""
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        log.setLevel(before)


def _table(holder: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Return a table of TOML, empty where there is none; raises InputError for anything else of its name."""
    found = holder.get(name, {})
    if not isinstance(found, dict):
        raise InputError(f"{path}: {name} is {found!r}, expected a table")
    return found


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | int | str]:
    """Return a config with its sections' keys joined by dots, as Flower does."""
    found: dict[str, bool | float | int | str] = {}
    for key, value in config.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


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
