"""Somebody's Flower app: its components by its pyproject.toml, run in this process with taps."""

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.serverapp import ServerApp

from leakbench.errors import InputError, nearest
from leakbench.flower.attached import attach
from leakbench.flower.in_process_grid import InProcessGrid, context_of_server
from leakbench.flower.step_probe_mod import StepProbeMod
from leakbench.flower.tap_grid import TapGrid
from leakbench.flower.update_tap_mod import UpdateTapMod
from leakbench.flower.whereabouts import client_of
from leakbench.imported import import_function, said

__all__ = ["FlowerApp", "RunConfig", "load_flower_app", "run_tapped"]

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
    for field, kind in (("serverapp", ServerApp), ("clientapp", ClientApp)):
        if field not in components:
            raise InputError(f"{path}: tool.flwr.app.components has no {field!r}")
        found[field] = import_function(f"{path}: {field}", str(components[field]), str(folder.resolve()))
        if not isinstance(found[field], kind):
            raise InputError(
                f"{path}: {field}: {components[field]!r} is a {type(found[field]).__name__}, expected {kind.__name__}"
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
