"""A card whose verdicts do not follow from its numbers, that says a thing twice or lies in no place of a card, is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import called

from leakbench.errors import InputError
from leakbench.leaderboard.page import markdown_of
from leakbench.leaderboard.read import read_card, read_cards

CARDS = Path(__file__).parent.parent / "leaderboard"

NONE = CARDS / "cancer" / "none.json"

VERDICTS = ("leaks", "protected", "unclear", "identifies", "attack failed", "no reconstruction")

LEAKS = {"asr": [0.9, 0.5958, 0.9821], "null_asr": [0.0, 0.0, 0.2775], "rmse": [0.01, 0.0, 0.02], "null_rmse": 0.09}
NOTHING = {"asr": [0.0, 0.0, 0.2775], "null_asr": [0.0, 0.0, 0.2775], "rmse": [0.2, 0.1, 0.3], "null_rmse": 0.09}
TOLD = {"identified": [0.9, 0.5958, 0.9821], "candidates": 50, "chance": 0.02}
UNTOLD = {"identified": [0.0, 0.0, 0.2775], "candidates": 50, "chance": 0.02}
FAILED = {**NOTHING, "rmse": None}
RANKING = {**NOTHING, "asr": None, "rmse": None}

ALLOWED: list[tuple[dict[str, Any], set[str]]] = [
    ({**LEAKS, **UNTOLD}, {"leaks"}),
    ({**LEAKS, **TOLD}, {"leaks"}),
    ({**NOTHING, **TOLD}, {"leaks", "identifies"}),
    ({**NOTHING, **UNTOLD}, {"leaks", "protected", "unclear"}),
    ({**NOTHING, **UNTOLD, "rmse": [0.05, 0.01, 0.08]}, {"leaks", "unclear"}),
    ({**NOTHING, **UNTOLD, "null_rmse": None}, {"leaks", "unclear"}),
    ({**NOTHING, **UNTOLD, "identified": None}, {"leaks", "unclear"}),
    ({**FAILED, **UNTOLD}, {"leaks", "attack failed"}),
    ({**FAILED, **TOLD}, {"leaks", "identifies"}),
    ({**RANKING, **UNTOLD}, {"leaks", "attack failed", "no reconstruction"}),
    ({**RANKING, **TOLD}, {"leaks", "identifies"}),
    ({**NOTHING, **UNTOLD, "chance": 0.9}, set()),
    ({**NOTHING, **UNTOLD, "candidates": 2}, set()),
]


def forged(folder: Path, change: Callable[[Any], None]) -> Path:
    """Write the card of no defense on cancer, changed."""
    fields = json.loads(NONE.read_text(encoding="utf-8"))
    change(fields)
    path = folder / "cancer" / "none.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(fields), encoding="utf-8")
    return path


@pytest.mark.parametrize("verdict", VERDICTS)
@pytest.mark.parametrize(("numbers", "allowed"), ALLOWED)
def test_a_verdict_follows_from_the_numbers(
    numbers: dict[str, Any], allowed: set[str], verdict: str, tmp_path: Path
) -> None:
    path = forged(tmp_path, lambda card: card["cells"][0]["points"][0].update({**numbers, "verdict": verdict}))
    if verdict in allowed:
        read_card(path)
        return
    with pytest.raises(
        InputError, match=rf"none\.json: cells\.oblivious\.paper\.type-2\.verdict: got '{verdict}', but"
    ):
        read_card(path)


def test_few_victims_protect_nobody(tmp_path: Path) -> None:
    few = {"victims": 4, "asr": [0.0, 0.0, 0.4899], "identified": [0.0, 0.0, 0.4899], "label_ranked": None}
    numbers = {**NOTHING, **UNTOLD, **few, "verdict": "protected"}
    with pytest.raises(InputError, match="there are 4 victims, expected at least 10"):
        read_card(forged(tmp_path, lambda card: card["cells"][0]["points"][0].update(numbers)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda card: card["cells"].append(card["cells"][0]), "cells: oblivious.paper stands twice"),
        (
            lambda card: card["cells"][0]["points"].append(card["cells"][0]["points"][0]),
            "cells.oblivious.paper.points: type-2 stands twice",
        ),
        (lambda card: card["asked"].update(taps=["type-1", "type-1"]), "asked.taps: type-1 stands twice"),
        (lambda card: card["asked"].update(protocols=["live", "live"]), "asked.protocols: live stands twice"),
    ],
)
def test_nothing_stands_twice(change: Callable[[Any], None], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        read_card(forged(tmp_path, change))


@pytest.mark.parametrize(
    "name", ["none.json", "cancer/None.JSON", "cancer/none.json.bak", "cancer/deep/none.json", "a/b/c/x.json"]
)
def test_a_card_in_no_place_of_one_is_not_left_out_silently(
    name: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    forged(tmp_path, lambda _: None)
    stray = tmp_path / name
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_text(NONE.read_text(encoding="utf-8"), encoding="utf-8")
    page = tmp_path / "page.md"
    code, out, err = called(monkeypatch, capsys, "leaderboard", "--cards", str(tmp_path), "--out", str(page))
    assert (code, out, err.count("\n")) == (2, "", 1) and not page.exists()
    assert str(stray) in err and "DATASET/DEFENSE.json" in err


def test_what_is_no_card_may_lie_beside(tmp_path: Path) -> None:
    forged(tmp_path, lambda _: None)
    for name in ("README.md", "cancer/notes.txt", "cancer/.none.json.1.tmp"):
        (tmp_path / name).write_text("x")
    assert len(read_cards(tmp_path)) == 1


def test_the_page_says_what_few_victims_cannot_exclude() -> None:
    page = markdown_of(read_cards(CARDS), "../leaderboard")
    assert "| protected |" not in page and ", protected |" not in page
    assert "protected: not told from chance by 10 victims, a rate of 0.28 is not excluded" in page
    # The highest end of either interval: of one identified in ten it is .40.
    assert "protected: not told from chance by 10 victims, a rate of 0.40 is not excluded" in page
