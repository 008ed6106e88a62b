"""Folders that are no longer finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bad.case import Case, Change, nothing, written
from tests.bad.made import in_json, run

ROWS, MANIFEST, PICTURES = "rows.parquet", "manifest.json", "reconstructions.safetensors"


def _cut(name: str, share: float) -> Change:
    def cut(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return cut


def _flipped(name: str) -> Change:
    def flip(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(bytes(content))

    return flip


def _without(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def _folder(name: str) -> Change:
    return lambda folder: ((folder / name).unlink(), (folder / name).mkdir())


def _field(name: str, value: Any) -> Change:
    return in_json(MANIFEST, lambda fields: fields.update({name: value}))


def _asked(command: str, name: str, change: Change) -> Case:
    return Case(command, (name,), run(change))


COMMANDS = ("report run", "baseline run", "gate run --baseline run", "compare run run")

CASES = (
    Case("report run", ("run",), written("run", "a file")),
    Case("report run", ("run",), lambda folder: (folder / "run").mkdir()),
    *[_asked("report run", ROWS, change(ROWS)) for change in (_flipped, _without, _folder)],
    *[_asked("report run", ROWS, _cut(ROWS, share)) for share in (0, 0.5, 0.99)],
    *[_asked(command, ROWS, _flipped(ROWS)) for command in COMMANDS[1:]],
    *[_asked(command, ROWS, _without(ROWS)) for command in COMMANDS[1:]],
    *[_asked("report run", PICTURES, change(PICTURES)) for change in (_flipped, _without, _folder)],
    *[_asked("report run", MANIFEST, change(MANIFEST)) for change in (_without, _folder)],
    *[_asked("report run", MANIFEST, _cut(MANIFEST, share)) for share in (0, 0.5, 0.99)],
    *[
        _asked("report run", MANIFEST, written(MANIFEST, text))
        for text in ("{}", "null", "[]", "3", "[" * 10**5, b"\xff\xfe", '{"schema": 1}', '{"schema": NaN}')
    ],
    *[_asked("report run", MANIFEST, _field("schema", value)) for value in (99, "1", None, [])],
    *[_asked("baseline run", MANIFEST, _field("hash", value)) for value in ("", 3, None, "../..")],
    *[_asked("compare run run", MANIFEST, _field("cell", value)) for value in (3, {}, None)],
    *[_asked("gate run --baseline run", MANIFEST, _field("versions", value)) for value in (3, None)],
    Case("report run run", ("run", "once"), run(nothing)),
    Case("compare run other", ("other",), run(nothing)),
    Case("report run --out page.html", ("out", "page.html"), run(nothing)),
)
