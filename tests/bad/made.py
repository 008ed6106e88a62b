"""A finished run with its baseline and card, made once; the damaged inputs are copies of them."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leakbench.gate.baseline import baseline_of
from leakbench.leaderboard.read import text_of
from tests.bad.case import Change
from tests.bad.command_line import RUN
from tests.bad.tried import asked
from tests.leaderboard_cards import small_card

__all__ = ["baseline", "card", "in_json", "run"]

Fields = dict[str, Any]


@functools.cache
def _whole() -> Path:
    """Return a folder that contains a finished run in `run`, its baseline and a card; the folder is removed at exit."""
    kept = tempfile.TemporaryDirectory(prefix="leakbench-bad-")
    _KEPT.append(kept)
    folder = Path(kept.name)
    code, _, err = asked([*RUN.split(), "--out", "run"], folder)
    if code:
        raise RuntimeError(err)
    with contextlib.redirect_stderr(io.StringIO()):
        (folder / "card.json").write_text(text_of(small_card(folder / "runs")), encoding="utf-8")
    return folder


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def run(change: Change) -> Change:
    """Return a function that copies the finished run to `run` and changes it."""

    def copied(folder: Path) -> None:
        shutil.copytree(_whole() / "run", folder / "run")
        change(folder / "run")

    return copied


def baseline(change: Callable[[Fields], object]) -> Change:
    """Return a function that writes the run and `kept.json`, its baseline with changed fields."""

    def write(folder: Path) -> None:
        run(lambda _: None)(folder)
        fields = json.loads(json.dumps(baseline_of(folder / "run")))
        change(fields)
        (folder / "kept.json").write_text(json.dumps(fields), encoding="utf-8")

    return write


def card(change: Callable[[Fields], object]) -> Change:
    """Return a function that writes `cards/digits/sign.json` with changed fields."""

    def write(folder: Path) -> None:
        fields = json.loads((_whole() / "card.json").read_text(encoding="utf-8"))
        change(fields)
        (folder / "cards" / "digits").mkdir(parents=True)
        (folder / "cards" / "digits" / "sign.json").write_text(json.dumps(fields), encoding="utf-8")

    return write


def in_json(name: str, change: Callable[[Fields], object]) -> Change:
    """Return a function that changes the fields of a JSON file."""

    def write(folder: Path) -> None:
        fields = json.loads((folder / name).read_text(encoding="utf-8"))
        change(fields)
        (folder / name).write_text(json.dumps(fields), encoding="utf-8")

    return write
