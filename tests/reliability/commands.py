"""The five commands that are killed. Each is small: seconds of work, with every kind of step that its command has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from tests.data.test_data_formats import ROLES, pack, sha
from tests.reliability.lying import Asked, Server

__all__ = ["Command", "commands"]

SMALL = {
    "attack": "cpl",
    "iterations": 3,
    "victims": 4,
    "candidates": 5,
    "train_rounds": 6,
    "clients": 4,
    "clients_per_round": 2,
    "local_iterations": 2,
}

CELL = tuple(word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value)))

GRID = {
    "given": {**SMALL, "victims": 2, "train_rounds": 2, "taps": ["type-2", "type-1"], "dataset": "digits"},
    "each": {"defense": ["none", "fed_cdp"], "seed": [0, 1]},
}

TRIAL = ("--set", "train_rounds=3", "--set", "clients_per_round=10", "--out", "results")

RECIPE = """
title: tiny
cite: made here
license: none
format:
  idx:
{files}
    class_names: [a, b]
federation: {{rounds: 1, batch: 1, examples_per_client: 2, clients: 2, clients_per_round: 2}}
origin: {{layouts: [tiny/raw], marker: "*.gz", megabytes: 1.0, mirrors: ["{mirror}"]}}
"""


@dataclass(frozen=True)
class Command:
    """A command line, and the files that its folder must contain before it starts."""

    name: str
    words: tuple[str, ...]
    prepared: Callable[[Path], object] = lambda _: None


def commands(server: Server, finished: Path) -> tuple[Command, ...]:
    """Return the commands; server: serves the set that is fetched.  finished: the folder of a finished run, which is audited."""
    audited = ("audit", "--defense", "fed_cdp", "--dataset", "digits", *CELL[8:], "--trials", "300", "--into", "run")
    return (
        Command("run", ("run", "--dataset", "digits", "--defense", "fed_cdp", *CELL)),
        Command(
            "sweep",
            ("sweep", "grid.yaml", "--workers", "2", "--threads-per-cell", "1"),
            lambda folder: (folder / "grid.yaml").write_text(yaml.safe_dump(GRID), encoding="utf-8"),
        ),
        Command("reproduce", ("reproduce", "fed_alpha_cdp_table_10", "--only", "cancer", *TRIAL)),
        Command("data fetch", ("data", "fetch", "tiny.yaml", "--data-dir", "data"), _offered(server)),
        Command("audit", audited, lambda folder: shutil.copytree(finished, folder / "run")),
    )


def _offered(server: Server) -> Callable[[Path], object]:
    """Serve a set of four files slowly; return a function that writes its recipe into a folder."""
    rng = np.random.default_rng(0)
    pixels, labels = pack(rng.integers(0, 256, (6_000, 4, 4), "uint8")), pack(rng.integers(0, 2, (6_000,), "uint8"))
    contents = dict(zip(ROLES, (pixels, labels, pixels, labels), strict=True))
    for role, content in contents.items():
        server.does(f"{role}.gz", lambda asked, content=content: _slowly(asked, content))
    files = "".join(f"    {role}: {{file: {role}.gz, sha256: {sha(content)}}}\n" for role, content in contents.items())
    recipe = RECIPE.format(files=files, mirror=server.url(""))
    return lambda folder: (folder / "tiny.yaml").write_text(recipe, encoding="utf-8")


def _slowly(asked: Asked, content: bytes) -> None:
    if asked.start == len(content):
        asked.whole(content)
        return
    said = {"Content_Range": f"bytes {asked.start}-{len(content) - 1}/{len(content)}"} if asked.start else {}
    asked.head(206 if asked.start else 200, Content_Length=len(content) - asked.start, **said)
    for at in range(asked.start, len(content), 5_000):
        asked.body(content[at : at + 5_000])
        asked.handler.server.over.wait(0.05)
