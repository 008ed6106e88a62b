"""Baselines of the gate and cards of the leaderboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bad.case import Case, written
from tests.bad.made import baseline, card

GATE = "gate run --baseline kept.json"
PAGE = "leaderboard --cards cards --out page.md"


def _kept(field: str, value: Any) -> Case:
    return Case(GATE, ("kept.json", field.rpartition(".")[2]), baseline(_put(field, value)))


def _card(field: str, value: Any) -> Case:
    return Case(PAGE, ("sign.json", field.rpartition(".")[2]), card(_put(field, value)))


def _put(field: str, value: Any) -> Callable[[Any], None]:
    """Return a function that puts a value at a path such as `cells.0.points.0.asr`; None removes the field."""

    def put(fields: Any) -> None:
        *path, last = [int(word) if word.isdecimal() else word for word in field.split(".")]
        for word in path:
            fields = fields[word]
        if value is GONE:
            del fields[last]
        else:
            fields[last] = value

    return put


def _twice(path: Path) -> None:
    path.write_text(path.read_text().replace("{", '{"a": 1, "a": 2, ', 1))


GONE = object()

CASES = (
    Case("gate nowhere --baseline kept.json", ("nowhere",), baseline(lambda _: None)),
    Case(GATE, ("kept.json",), lambda f: (baseline(lambda _: None)(f), (f / "kept.json").unlink())),
    Case(GATE, ("kept.json",), lambda f: (baseline(lambda _: None)(f), (f / "kept.json").write_text(""))),
    Case(GATE, ("kept.json",), lambda f: (baseline(lambda _: None)(f), (f / "kept.json").write_text("[1]"))),
    Case(GATE, ("kept.json",), lambda f: (baseline(lambda _: None)(f), (f / "kept.json").write_text("[" * 10**5))),
    Case(GATE, ("kept.json",), lambda f: (baseline(lambda _: None)(f), (f / "kept.json").write_bytes(b"\xff\xfe{}"))),
    Case(GATE, ("kept.json", "'a' appears twice"), lambda f: (baseline(lambda _: None)(f), _twice(f / "kept.json"))),
    _kept("leakbench baseline", 2),
    _kept("leakbench baseline", GONE),
    Case(GATE, ("kept.json", "checksum"), baseline(_put("dataset", "mnist"))),
    _kept("dataset", 3),
    _kept("examples", 10**12),
    _kept("examples", "two"),
    Case(GATE, ("kept.json", "NaN"), baseline(_put("accuracy", float("nan")))),
    _kept("accuracy", 7),
    _kept("epsilon", -1),
    _kept("rows", []),
    _kept("rows.rmse", GONE),
    _kept("rows.rmse", [0.1]),
    _kept("rows.rmse", "small"),
    _kept("rows.success", 7),
    _kept("rows.tap", "type-3"),
    _kept("rows.victim", [0, 0.5]),
    Case("gate run --baseline run --max-asr 2", ("max-asr", "2"), baseline(lambda _: None)),
    Case("gate run --baseline run --max-epsilon nan", ("max-epsilon", "nan"), baseline(lambda _: None)),
    Case("leaderboard --cards nowhere", ("nowhere",)),
    Case(PAGE, ("sign.json",), written("cards/digits/sign.json", "")),
    Case(PAGE, ("sign.json",), written("cards/digits/sign.json", "{}")),
    Case(PAGE, ("sign.json",), written("cards/digits/sign.json", "null")),
    Case(PAGE, ("sign.json",), written("cards/digits/sign.json", "[" * 10**5)),
    Case(PAGE, ("sign.json",), written("cards/digits/sign.json", b"\x00\xff")),
    _card("format", 99),
    _card("dataset", 3),
    _card("dataset", GONE),
    _card("surprise", 1),
    _card("cells", []),
    _card("cells", {"a": 1}),
    _card("cells.0.attacker", "psychic"),
    _card("cells.0.points.0.asr", "high"),
    _card("cells.0.points.0.asr", [0.9, 0.1]),
    _card("cells.0.points.0.asr", [2.0, 0.0, 3.0]),
    _card("cells.0.points.0.verdict", "fine"),
    _card("cells.0.points", GONE),
    _card("defense.name", 5),
    _card("defense.name", "a\u0000b"),
    Case(PAGE, ("sign.json", "Infinity"), card(_put("accuracy.value", [float("inf"), 0, 1]))),
)
