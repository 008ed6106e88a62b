"""Run folders with content that no run writes, behind checksums that match it, as an attacker could make them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import load_file, save_file

from leakbench.auditing.verdict import Audit
from leakbench.core.hashes import checksum
from leakbench.storage.rows_file import versioned, write_rows
from tests.bad.case import Case, Change
from tests.bad.made import run
from tests.resealed import reseal

ROWS, ROUNDS, MANIFEST, PICTURES, AUDIT = (
    *("rows.parquet", "rounds.parquet", "manifest.json"),
    *("reconstructions.safetensors", "audit.json"),
)
HUGE = 10**400
REPORT = "report run"


def _manifest(change: Callable[[dict[str, Any]], object]) -> Change:
    def write(folder: Path) -> None:
        fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        change(fields)
        reseal(folder, fields)

    return write


def _with(name: str, write: Callable[[Path], object]) -> Change:
    """Return a function that writes the file and puts its checksum into the manifest."""

    def change(folder: Path) -> None:
        write(folder / name)
        _manifest(lambda fields: fields["files"].update({name: checksum(folder / name)}))(folder)

    return change


def _rows(change: Callable[[pd.DataFrame], pd.DataFrame], name: str = ROWS) -> Change:
    return _with(name, lambda path: write_rows(path, change(pd.read_parquet(path))))


def _version(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"leakbench.rows": b"99"}), path)


def _twice(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(versioned(pa.table([*table.columns, table.column(0)], names=[*table.column_names, "tap"])), path)


def _pictures(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    return _with(PICTURES, lambda path: save_file(change(load_file(path)), path))


def _at(name: str, value: Any) -> Change:
    """Return a function that puts a value at a dotted path in the manifest."""
    *before, last = name.split(".")

    def change(fields: dict[str, Any]) -> None:
        for word in before:
            fields = fields[word]
        fields[last] = value

    return _manifest(change)


def _case(says: str, change: Change, command: str = REPORT) -> Case:
    return Case(command, (says,), run(change))


def _audit(**changed: Any) -> Change:
    def write(folder: Path) -> None:
        fields = {"hash": json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["hash"], **SOUND, **changed}
        _with(AUDIT, lambda path: path.write_text(json.dumps(fields), encoding="utf-8"))(folder)

    return write


SOUND = Audit(True, 1.0, 1.0, True, 0.5, 0.6, 1.0, 2.0, 0.95, 100, "holds", "one release").as_dict()

TAP = "summary.taps.type-2"


def _gone(name: str) -> Change:
    """Return a function that removes the field at a dotted path from the manifest."""
    *before, last = name.split(".")

    def change(fields: dict[str, Any]) -> None:
        for word in before:
            fields = fields[word]
        del fields[last]

    return _manifest(change)


CASES = (
    *[
        _case(f"{ROWS}: column {name!r} is missing", _rows(lambda rows, n=name: rows.drop(columns=n)))
        for name in ("tap", "victim", "rmse", "success")
    ],
    *[
        _case(f"{ROWS}: column {name!r}", _rows(lambda rows, n=name: rows.assign(**{n: None})))
        for name in ("victim", "eta", "candidates")
    ],
    *[
        _case(
            f"{ROWS}: column {name!r}",
            _rows(lambda rows, n=name, v=value: rows.assign(**{n: [v] * len(rows)})),
            command,
        )
        for name, value, command in (
            ("rmse", "small", REPORT),
            ("label", 1.5, "baseline run"),
            ("tap", 3, "gate run --baseline run"),
            ("rmse", [1.0], "compare run run"),
            ("success", {"a": 1}, REPORT),
            ("eta", np.inf, REPORT),
            ("eta", np.nan, "baseline run"),
        )
    ],
    _case(f"{ROWS}: rows of version '99'", _with(ROWS, _version)),
    _case(f"{ROWS}: column 'tap' appears twice", _with(ROWS, _twice)),
    _case(f"{ROWS}: cannot be read", _with(ROWS, lambda path: path.write_bytes(b"PAR1 and no more"))),
    _case(ROWS, _rows(lambda rows: rows.iloc[:0])),
    _case(f"{ROUNDS}: column 'accuracy' is missing", _rows(lambda rows: rows.drop(columns="accuracy"), ROUNDS)),
    _case(PICTURES, _with(PICTURES, lambda path: path.write_bytes(b"\xff" * 100))),
    *[
        _case(f"{MANIFEST}: summary.{name}", _at(f"summary.{name}", value))
        for name, value in (
            ("taps", {}),
            ("taps", []),
            ("accuracy", HUGE),
            ("accuracy", "high"),
            ("rounds", 1.5),
            ("epsilon", []),
            ("epsilon.claimed", HUGE),
            ("epsilon.valid", -1),
            ("epsilon.by_tap", {"type-2": 3}),
            ("warnings", [3]),
            ("notes", {"a": 1}),
            ("claims", [{"what": "ASR"}]),
            ("violations", [{}]),
        )
    ],
    *[
        _case(f"{MANIFEST}: {TAP}.{name}", _at(f"{TAP}.{name}", value))
        for name, value in (
            ("asr", HUGE),
            ("asr", 2),
            ("asr", "all"),
            ("victims", 0),
            ("round", "last"),
            ("verdict", 3),
            ("seen", {}),
        )
    ],
    *[
        _case(f"{MANIFEST}: {name}", _at(name, value))
        for name, value in (
            ("phases", {"attack": HUGE}),
            ("phases", {"attack": "long"}),
            ("versions", {"torch": 2}),
            ("computed", [[]]),
            ("files", {"../../x": ""}),
            ("files", {"rows.parquet": 3}),
            ("observations", {"a": 1}),
        )
    ],
    *[
        _case(f"{MANIFEST}: summary.{name} is missing", _gone(f"summary.{name}"))
        for name in ("rounds", "notes", "cell.attack", "epsilon.valid")
    ],
    _case(f"{MANIFEST}: summary.cell.defense is missing", _gone("summary.cell")),
    *[
        _case(f"{MANIFEST}: {name}", _at(name, value))
        for name, value in (
            ("summary.epsilon.q", []),
            ("summary.epsilon.by_tap.type-1.steps", ""),
            ("summary.epsilon.by_tap.type-1.participations", {"expected": "often"}),
            (f"{TAP}.anytime.iterations", {"at": [1.0, 2.0], "asr": [1.0]}),
            (f"{TAP}.attributes", {"sex": 3}),
            ("recipes.defense.title", 10**400),
        )
    ],
    *[
        _case(f"{AUDIT}: ", _audit(**{name: value}))
        for name, value in (
            ("verdict", 3),
            ("verdict", "sound"),
            ("reason", None),
            ("trials", 1.5),
            ("lower_bound", "low"),
            ("claimed", HUGE),
            ("hash", "0" * 64),
            ("more", 1),
        )
    ],
    _case(f"{AUDIT}: ", _with(AUDIT, lambda path: path.write_text("[" * 10**5))),
)
