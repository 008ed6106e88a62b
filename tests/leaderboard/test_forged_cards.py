"""A card is refused if its verdicts do not follow from its numbers, if it repeats a field, or if its path is not a card's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import called

from leakbench.core.errors import InputError
from leakbench.leaderboard.page import markdown_of
from leakbench.leaderboard.read import read_card, read_cards

CARDS = Path(__file__).parents[2] / "leaderboard"

NONE = CARDS / "cancer" / "none.json"

VERDICTS = ("reconstructs", "identifies", "no leak found", "inconclusive", "attack failed")

ONE_NETWORK = {"victims": 10, "networks": 1, "by_network": {}, "label_ranked": None}
LEAKS = {"asr": [0.9, 0.5958, 0.9821], "null_asr": [0.0, 0.0, 0.2775], "rmse": [0.01, 0.0, 0.02], "null_rmse": 0.09}
NOTHING = {"asr": [0.0, 0.0, 0.2775], "null_asr": [0.0, 0.0, 0.2775], "rmse": [0.2, 0.1, 0.3], "null_rmse": 0.09}
TOLD = {"identified": [0.9, 0.5958, 0.9821], "candidates": 50, "chance": 0.02}
UNTOLD = {"identified": [0.0, 0.0, 0.2775], "candidates": 50, "chance": 0.02}
FAILED = {**NOTHING, "rmse": None}
RANKING = {**NOTHING, "asr": None, "rmse": None}

ALLOWED: list[tuple[dict[str, Any], set[str]]] = [
    ({**LEAKS, **UNTOLD}, {"reconstructs"}),
    ({**LEAKS, **TOLD}, {"reconstructs"}),
    ({**NOTHING, **TOLD}, {"reconstructs", "identifies"}),
    ({**NOTHING, **UNTOLD}, {"reconstructs", "inconclusive"}),
    ({**NOTHING, **UNTOLD, "rmse": [0.05, 0.01, 0.08]}, {"reconstructs", "inconclusive"}),
    ({**NOTHING, **UNTOLD, "null_rmse": None}, {"reconstructs", "inconclusive"}),
    ({**NOTHING, **UNTOLD, "identified": None}, {"reconstructs", "inconclusive"}),
    ({**FAILED, **UNTOLD}, {"reconstructs", "attack failed"}),
    ({**FAILED, **TOLD}, {"reconstructs", "identifies"}),
    ({**RANKING, **UNTOLD}, {"reconstructs", "attack failed", "inconclusive"}),
    ({**RANKING, **TOLD}, {"reconstructs", "identifies"}),
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
    changed = {**ONE_NETWORK, **numbers, "verdict": verdict}
    path = forged(tmp_path, lambda card: card["cells"][0]["points"][0].update(changed))
    if verdict in allowed:
        assert read_card(path).cells[0].points[0].verdict == verdict
        return
    with pytest.raises(
        InputError, match=rf"none\.json: cells\.oblivious\.paper\.type-2\.verdict: got '{verdict}', but"
    ):
        read_card(path)


ENOUGH = {
    "victims": 100,
    "asr": [0.0, 0.0, 0.037],
    "null_asr": [0.0, 0.0, 0.037],
    "identified": [0.0, 0.0, 0.037],
    "label_ranked": None,
    "rmse": [0.2, 0.1, 0.3],
    "verdict": "no leak found",
}
"""The numbers of a point with no success among 100 victims."""


def hidden(card: dict[str, Any], changes: dict[str, Any], cell: int = 2, networks: int = 5, attack: str = "") -> None:
    """Make the first point of a cell, by default the adaptive attacker's in the paper protocol, one with no leak found."""
    card["attack"]["name"] = attack or card["attack"]["name"]
    point = card["cells"][cell]["points"][0]
    live = card["cells"][cell]["protocol"] == "live"
    point.update({**ENOUGH, "candidates": 50, "chance": 0.02, "networks": 1 if live else networks, **changes})
    shares = [name for name in ("asr", "identified", "label_ranked") if point[name] is not None]
    counted = {name: _by_network(point[name][0], point["victims"], networks) for name in shares}
    point["by_network"] = {} if live else counted


def _by_network(share: float, victims: int, networks: int) -> list[int]:
    """Return how many of `victims` are counted on each network, spread as evenly as possible."""
    right = round(share * victims)
    return [len(range(first, right, networks)) for first in range(networks)]


def test_no_leak_found_is_accepted_with_enough_evidence(tmp_path: Path) -> None:
    card = read_card(forged(tmp_path, lambda card: hidden(card, {})))
    assert card.cells[2].points[0].verdict == "no leak found"


@pytest.mark.parametrize(
    ("changes", "how", "says"),
    [
        ({"victims": 99}, {}, "99 victims, at least 100 are needed"),
        ({}, {"networks": 4}, "4 networks, at least 5 are needed"),
        ({}, {"cell": 0}, "the attacker does not know the defense"),
        ({}, {"cell": 3}, "1 training, at least 5 are needed"),
        ({}, {"attack": "cpl"}, "the attack is cpl, not the catalog's autoleak"),
        ({"identified": None}, {}, "no candidates were ranked"),
        ({"rmse": [0.05, 0.01, 0.08]}, {}, "the median RMSE 0.05 is below"),
        (
            {"rmse": None, "edit_distance": [0.05, 0.01, 0.08], "null_edit_distance": 0.9},
            {},
            "the median edit distance 0.05 is below",
        ),
        ({"identified": [0.06, 0.0377, 0.0942]}, {}, "significant at 0.05 but not at 0.01"),
    ],
)
def test_no_leak_found_is_refused_with_less_evidence(
    changes: dict[str, Any], how: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=says):
        read_card(forged(tmp_path, lambda card: hidden(card, changes, **how)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda card: card["cells"].append(card["cells"][0]), "cells: oblivious.paper appears twice"),
        (
            lambda card: card["cells"][0]["points"].append(card["cells"][0]["points"][0]),
            "cells.oblivious.paper.points: type-2 appears twice",
        ),
        (lambda card: card["asked"].update(taps=["type-1", "type-1"]), "asked.taps: type-1 appears twice"),
        (lambda card: card["asked"].update(protocols=["live", "live"]), "asked.protocols: live appears twice"),
    ],
)
def test_repeated_fields_are_refused(change: Callable[[Any], None], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says):
        read_card(forged(tmp_path, change))


@pytest.mark.parametrize(
    "name", ["none.json", "cancer/None.JSON", "cancer/none.json.bak", "cancer/deep/none.json", "a/b/c/x.json"]
)
def test_a_card_at_a_wrong_path_is_reported(name: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    forged(tmp_path, lambda _: None)
    stray = tmp_path / name
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_text(NONE.read_text(encoding="utf-8"), encoding="utf-8")
    page = tmp_path / "page.md"
    code, out, err = called(monkeypatch, capsys, "leaderboard", "--cards", str(tmp_path), "--out", str(page))
    assert (code, out, err.count("\n")) == (2, "", 1) and not page.exists()
    assert str(stray) in err and "DATASET/DEFENSE.json" in err


def test_other_files_next_to_cards_are_ignored(tmp_path: Path) -> None:
    forged(tmp_path, lambda _: None)
    for name in ("README.md", "cancer/notes.txt", "cancer/.none.json.1.tmp"):
        (tmp_path / name).write_text("x")
    assert len(read_cards(tmp_path)) == 1


@pytest.mark.parametrize(
    ("excluded", "says"),
    [
        (0.3901, "inconclusive: up to 40 % of victims not excluded"),
        (None, "the card does not say which rates are excluded"),
    ],
)
def test_the_page_shows_the_rate_that_the_evidence_excludes(excluded: float | None, says: str, tmp_path: Path) -> None:
    """The run computed it by network; older cards have none. It is an upper bound, so that it is rounded up."""

    def change(fields: Any) -> None:
        for cell in fields["cells"]:
            for point in cell["points"]:
                point.update({**ONE_NETWORK, **NOTHING, **UNTOLD, "verdict": "inconclusive", "excluded": excluded})

    read_card(forged(tmp_path, change))
    page = markdown_of(read_cards(tmp_path), "cards")
    assert "| inconclusive |" not in page and says in page


def test_a_card_cannot_exclude_its_measured_rate(tmp_path: Path) -> None:
    def change(fields: Any) -> None:
        point = fields["cells"][0]["points"][0]
        point["excluded"] = max(point["asr"][0], point["identified"][0]) - 0.05

    with pytest.raises(InputError, match=r"excluded: got .*, expected at least the rate that was measured"):
        read_card(forged(tmp_path, change))
