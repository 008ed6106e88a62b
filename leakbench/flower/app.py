"""A user's Flower app: load it, run it in this process with taps, and attack what leaks."""

from __future__ import annotations

import dataclasses
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

from leakbench.core.errors import InputError, nearest
from leakbench.core.imported import import_function, reason_of
from leakbench.core.leakage_points import OWN as TAPS
from leakbench.external.assumptions import contradiction, mode_lines, overlap
from leakbench.external.attack import attack_trace
from leakbench.external.attacker import Attacker, AttackerOptions
from leakbench.external.network import Normal, Numbers, normal_of
from leakbench.external.outcome import NotAttacked, Row
from leakbench.flower.grids import InProcessGrid, TapGrid, context_of_server
from leakbench.flower.leaks import leak_files, leaked_rounds
from leakbench.flower.messages import client_of
from leakbench.flower.mods import StepProbeMod, UpdateTapMod, attach
from leakbench.flower.trace import TrainingOptions, trace_at
from leakbench.models.external import ExternalNetwork

__all__ = ["AppOptions", "FlowerApp", "RunConfig", "benchmark", "load_flower_app", "run_tapped"]

RunConfig: TypeAlias = Mapping[str, bool | float | int | str]

ROUNDS = "num-server-rounds"
"""Key of the number of rounds in the config of Flower's own templates."""


@dataclass(frozen=True)
class FlowerApp:
    """An app's two components and its config, `[tool.flwr.app.config]`."""

    server: ServerApp
    client: ClientApp
    config: RunConfig

    def configured(self, rounds: int | None, changes: RunConfig) -> RunConfig:
        """Return the config with changes.

        Args:
            rounds: Number of rounds; None for the app's.
            changes: {key: value}.

        Raises:
            InputError: For a key that the app does not have.
        """
        given = dict(changes) if rounds is None else {**changes, ROUNDS: rounds}
        for key in given:
            if key not in self.config:
                option = "rounds" if key == ROUNDS else "run-config"
                raise InputError(f"{option}: the app's config has no {key!r}{nearest(key, list(self.config))}")
        return {**self.config, **given}


def load_flower_app(folder: Path) -> FlowerApp:
    """Import the app in a folder.

    Raises:
        InputError: For a folder without a pyproject.toml that names components, and for a component that cannot be
            imported or has another type.
    """
    path = folder / "pyproject.toml"
    if not path.is_file():
        raise InputError(f"{folder}: no pyproject.toml, expected a Flower app")
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # From TOML and from UTF-8.
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


def _table(holder: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Return a table of TOML, empty if it is missing."""
    found = holder.get(name, {})
    if not isinstance(found, dict):
        raise InputError(f"{path}: {name} is {found!r}, expected a table")
    return found


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | float | int | str]:
    """Return a config with the keys of its sections joined by dots, as in Flower."""
    found: dict[str, bool | float | int | str] = {}
    for key, value in config.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def run_tapped(app: FlowerApp, config: RunConfig, clients: int, sink: Path) -> None:
    """Run an app to its end without an engine, and write the leaks at type-0, type-1 and type-2 (first step) into a folder.

    What the app prints goes to stderr.

    Args:
        app: The app.
        config: Its run config.
        clients: Number of nodes.
        sink: The folder.

    Raises:
        InputError: If the server fails or ends the process, or any client does, even if the strategy would continue
            without it. The app's own error is its cause.
    """
    failed: list[InputError] = []
    taps = (UpdateTapMod(sink), StepProbeMod(sink, 1), _watched(failed))
    with quiet():
        grid = TapGrid(InProcessGrid(attach(app.client, *taps), clients, config), sink)
        try:
            app.server(grid, context_of_server(config))
        except InputError:
            raise
        except (Exception, SystemExit) as error:
            if isinstance(error, OSError) and str(error.filename).startswith(str(sink)):
                raise  # The app did not fail, but the writing of a leak did.
            raise failed[0] if failed else InputError(f"app: its server failed: {reason_of(error)}") from error
    if failed:
        raise failed[0]


def _watched(failed: list[InputError]) -> Mod:
    """Return a mod that keeps a client's errors: older strategies of Flower continue without the reply of a thread."""

    def watched(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            return call_next(message, context)
        except InputError as error:
            failed.append(error)
            raise
        except (Exception, SystemExit) as error:
            text = f"app: its client {client_of(context)} failed ({message.metadata.message_type}): {reason_of(error)}"
            failed.append(InputError(text))
            raise failed[-1] from error

    return watched


@contextmanager
def quiet() -> Iterator[None]:
    """Let Flower log errors only, and send what an app prints to stderr, within this block."""
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        log.setLevel(before)


@dataclass(frozen=True)
class AppOptions:
    """The options of `leakbench flower`; see `leakbench flower --help`.

    Args:
        out: Folder of the leaks.
    """

    app_dir: Path
    out: Path
    builder: str
    shape: tuple[int, ...]
    classes: int
    rounds: int | None = None
    clients: int = 10
    run_config: RunConfig = field(default_factory=dict)
    attacker: AttackerOptions = field(default_factory=AttackerOptions)
    leak_rounds: str = "1"
    victims: int = 50
    batch: int | None = None
    local_iterations: int | None = None
    learning_rate: float | None = None
    victim_mode: str | None = None
    normalise: tuple[Numbers, Numbers] | None = None

    @property
    def training(self) -> TrainingOptions:
        """How the clients train, where it is given."""
        return TrainingOptions(self.local_iterations, self.batch, self.learning_rate, self.victim_mode)


def benchmark(options: AppOptions) -> list[Row]:
    """Run an app and attack what leaks; the leaks of an earlier run are replaced.

    Raises:
        InputError: For options that do not fit, and for a folder `out` with content other than leaks, which is not changed.
    """
    leak_files(options.out)
    attacker = options.attacker()
    words = options.leak_rounds
    if words != "all" and not all(word.strip().isdecimal() or word.strip() == "last" for word in words.split(",")):
        raise InputError(f"leak-rounds: got {words!r}, expected round numbers with commas between them, last, or all")
    app = load_flower_app(options.app_dir)
    config = app.configured(options.rounds, options.run_config)
    normal = normal_of(options.normalise, options.shape)
    model = _model(options)
    attacker = options.attacker.with_public(attacker)
    for path in leak_files(options.out):
        path.unlink()
    run_tapped(app, config, options.clients, options.out)
    return [_row(options, model, attacker, normal, tap, number) for number in _rounds(options) for tap in TAPS]


def _model(options: AppOptions) -> nn.Module:
    """Return the app's network; lazy layers are shown an input of zeros."""
    network, folder = ExternalNetwork(options.builder), options.app_dir.resolve()
    model = network.made(options.shape, options.classes, folder=folder)
    if any(is_lazy(p) for p in model.parameters()):
        try:
            with torch.no_grad(), redirect_stdout(sys.stderr):
                model.eval()(torch.zeros(1, *options.shape))
        except (Exception, SystemExit) as error:
            raise InputError(
                f"shape: the model fails on an input of {(1, *options.shape)}: {reason_of(error)}"
            ) from error
    return model


def _row(
    options: AppOptions, model: nn.Module, attacker: Attacker, normal: Normal | None, tap: str, number: int
) -> Row:
    trace = trace_at(
        options.out, tap, number, model, options.shape, options.classes, options.training, options.victims, normal
    )
    if isinstance(trace, str):
        return NotAttacked(tap, number, trace)
    attacker = attacker.for_network(trace)
    outcome = attack_trace(trace, attacker)
    notes = [trace.training.note]
    if trace.left_out:
        notes.append(f"{trace.left_out} clients that train otherwise, or got other buffers, are left out")
    if trace.inputs is None:
        notes.append("the truth is not known, since the app does not call leakbench.flower.observe: no score")
    warnings = tuple(contradiction(trace, attacker))
    notes += [*mode_lines(trace.view.network.model), attacker.adapted, *overlap(trace, attacker), *warnings]
    return dataclasses.replace(outcome, assumptions="\n".join(filter(None, notes)), warnings=warnings)


def _rounds(options: AppOptions) -> list[int]:
    """Return the rounds that are attacked."""
    leaked = leaked_rounds(options.out)
    if not leaked:
        raise InputError(
            f"{options.app_dir}: the app sent no client a train message, or none answered with one record of arrays"
        )
    if options.leak_rounds == "all":
        return leaked
    words = options.leak_rounds.replace("last", str(leaked[-1])).split(",")
    if not all(word.strip().isdecimal() and int(word) in leaked for word in words):
        raise InputError(f"leak-rounds: got {options.leak_rounds!r}, expected some of {leaked}, last, or all")
    return sorted({int(word) for word in words})
