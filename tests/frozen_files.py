"""Records file formats: columns, keys and kinds of value in the files and the JSON that small commands write.

`python -m tests.frozen_files` runs the commands and adds new entries to `frozen_files.json` next to this file. Like
`tests.frozen_commands`, it refuses to write while a recorded entry is missing or different.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import torch
import yaml
from click.testing import CliRunner
from pandas.api import types
from safetensors import safe_open
from safetensors.torch import save_file

from leakbench.cli import commands
from leakbench.conformance.command import as_dict
from leakbench.conformance.judge import CaseResult
from leakbench.leaderboard.read import read_card, text_of
from leakbench.storage.manifest_file import read_manifest
from leakbench.study.grid import read_grid
from leakbench.study.journal import open_journal
from leakbench.study.rows import ACCOUNTING, FRONTIER, OF_PAGES, of_table
from leakbench.study.task import TaskOutcome
from tests import own_network
from tests.frozen_commands import NULL, record

__all__ = ["COMMAND", "RECORDED", "current"]

RECORDED = Path(__file__).with_suffix(".json")

COMMAND = "python -m tests.frozen_files"

ROOT = Path(__file__).parent.parent

CELL = {"dataset": "digits", "attack": "analytic_fc", "leak_model": "mlp_sigmoid", "taps": ["type-2"]}
CELL |= {"victims": 2, "candidates": 5, "train_rounds": 0, "networks": 1}
"""The first cell: images, a closed form, initial weights, no defense."""

LIVE = """--dataset cancer --attack identification --defense fed_cdp_valid --protocol live --leak-rounds 0,last --train-rounds 1
--clients 4 --clients-per-round 2 --local-iterations 2 --taps type-2,type-1 --victims 2 --candidates 5 --networks 1"""
"""The second: records, a ranking, a trained model, two leakage points at two rounds, a defense with a valid epsilon."""

TABLE = {"title": "Tiny", "cite": "nobody", "text": "A table of one cell.", "given": CELL, "found": "Little."}
TABLE |= {"quick": {"victims": 1}, "rows": [{"name": "one", "claim": {"asr": 1.0}, "because": "small"}]}

OWN = """--model tests.own_network:build --shape 1,8,8 --classes 10 --tap type-2 --attack cpl --iterations 2
--update update.safetensors --truth truth.safetensors"""
"""An external update, of a user's network."""

CARDS = ("cancer/fed_cdp_valid", "faces/none")

BY_NAME = ("computed", "notes", "observations", "versions")
"""Mappings whose keys depend on the installed packages, on missing numbers or on the number of victims."""


def current(folder: Path) -> dict[str, Any]:
    """Run the commands in an empty folder; return {file or command: {column or key: kind of value}}."""
    with chdir(folder):
        return dict(_commands()) | dict(_files())


def _commands() -> Iterator[tuple[str, Any]]:
    words = " ".join(f"--{name.replace('_', '-')} {_word(value)}" for name, value in CELL.items())
    for name, line in {"first": words, "live": LIVE}.items():
        yield f"run {name} --json, also summary in its manifest", _json(f"run {line} --quiet --json --out {name}")
    x, y = own_network.batch(1)
    save_file(own_network.gradient(own_network.build(), x, y), "update.safetensors")
    save_file({"inputs": x[:, None], "labels": y[:, None]}, "truth.safetensors")
    yield "attack --json", _json(f"attack {OWN} --quiet --json --out own")
    Path("tiny.yaml").write_text(yaml.safe_dump(TABLE), encoding="utf-8")
    _printed("reproduce ./tiny.yaml --out . --runs runs")
    Path("grid.yaml").write_text(yaml.safe_dump({"given": CELL}), encoding="utf-8")
    [asked] = read_grid(Path("grid.yaml")).cells
    with open_journal(Path("swept/cells.jsonl")) as journal:  # A finished cell needs no worker.
        journal.append(TaskOutcome(asked.key, "done", read_manifest(Path("first"))["hash"], "first"))
    yield "sweep --json", _json("sweep grid.yaml --runs . --out swept --quiet --json")
    yield "conformance --json", kinds(as_dict("", [CaseResult("case", "why", "passed")]))
    baseline = json.loads(_printed("baseline live"))  # A column is one value if all its rows agree.
    yield "baseline", kinds(baseline) | {"rows": dict.fromkeys(baseline["rows"], "column")}
    for line in ("compare live live", "runs .", "list", "list attacks", "data list", "data verify digits"):
        yield f"{line} --json", _json(f"{line} --json")
    for line in ("epsilon", "audit --trials 100 --quiet"):
        options = "--defense fed_cdp_valid --dataset cancer --train-rounds 1 --json"
        yield f"{line} --json", _json(f"{line} {options}")


def _word(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value)


def _printed(line: str) -> str:
    done = CliRunner().invoke(commands, line.split(), catch_exceptions=False)
    if done.exit_code:
        raise RuntimeError(f"leakbench {line}: exit code {done.exit_code}: {done.output}")
    return done.stdout


def _json(line: str) -> Any:
    return kinds(json.loads(_printed(line)))


def _files() -> Iterator[tuple[str, Any]]:
    for path in sorted(Path().rglob("*")):
        if path.is_file() and path.parts[0] in ("first", "live", "own", "swept", "tiny.csv") and path.suffix in READERS:
            yield str(path), READERS[path.suffix](path)
    for name, kind in {"accounting": ACCOUNTING, "frontier": FRONTIER, **{n: of_table(n) for n in OF_PAGES}}.items():
        yield f"csv of {name}", {what: dict.fromkeys(columns, "column") for what, columns in vars(kind).items()}
    for name in CARDS:
        yield f"card {name}", kinds(json.loads(text_of(read_card(ROOT / "leaderboard" / f"{name}.json"))))


def kinds(value: Any) -> Any:
    """Return a value of JSON with each single value replaced by its kind; a list of mappings is one mapping of all their keys."""
    if isinstance(value, Mapping):
        return {n: "by name" if n in BY_NAME and isinstance(v, dict | list) else kinds(v) for n, v in value.items()}
    if isinstance(value, list):
        items = [kinds(item) for item in value]
        if items and all(isinstance(item, dict) for item in items):
            return {"[]": {name: kind for item in items for name, kind in item.items()}}
        return "list" if items else NULL
    return {bool: "true or false", type(None): NULL, str: "text", int: "integer", float: "number"}[type(value)]


def _columns(path: Path) -> dict[str, str]:
    rows = pd.read_csv(path)
    return {str(name): "number" if types.is_numeric_dtype(rows[name]) else "text" for name in rows}


def _tensors(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118


def _manifest(path: Path) -> Any:
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["files"].pop("report.html", None)  # Most tests run without writing the page.
    return kinds({name: value for name, value in manifest.items() if name != "summary" or "kind" in manifest})


def _parquet(path: Path) -> dict[str, str]:
    return {field.name: str(field.type).removeprefix("large_") for field in pq.read_schema(path)}


READERS: dict[str, Callable[[Path], Any]] = {
    ".csv": _columns,
    ".json": _manifest,
    ".jsonl": lambda path: kinds([json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]),
    ".parquet": _parquet,
    ".safetensors": _tensors,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEAKBENCH_FITS"] = folder
        sys.exit(record(RECORDED, current(Path(folder))))
