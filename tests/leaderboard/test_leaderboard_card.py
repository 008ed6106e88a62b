"""A card is measured by one command, written compactly, read strictly, and its commands run the cells of its hashes."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import called
from leaderboard_cards import SMALL, changed

from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.cli.leaderboard import card as card_options
from leakbench.cli.options import words
from leakbench.cli.run import run as run_options
from leakbench.core.errors import InputError
from leakbench.core.recipe import catalog_folder
from leakbench.leaderboard.asked import CardSizes, asking, trainings
from leakbench.leaderboard.card import Card, link_of
from leakbench.leaderboard.point import point_of
from leakbench.leaderboard.read import path_of, read_card, read_cards, text_of, write_card
from leakbench.storage.summary import Summary


@pytest.fixture
def card(measured_card: tuple[Path, Card]) -> Card:
    return measured_card[1]


@pytest.mark.slow
def test_the_command_writes_the_card_to_its_path(
    card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = called(monkeypatch, capsys, "card", "sign", "digits", *SMALL.split(), "--quiet")
    assert code == 0, err
    path = Path("leaderboard/digits/sign.json")
    assert out == f"card: {path}\n"
    assert read_card(path) == card
    keys = list(json.loads(path.read_text(encoding="utf-8")))
    assert keys == sorted(keys) and path.stat().st_size < 10_000


@pytest.mark.slow
def test_a_card_contains_the_measurements(card: Card) -> None:
    assert [(cell.attacker, cell.protocol) for cell in card.cells] == [("oblivious", "paper"), ("aware", "paper")]
    point = card.cells[0].points[0]
    assert (point.name, point.victims, point.candidates, point.chance) == ("type-2", 10, 20, 0.05)
    assert point.asr is not None and point.asr[1] <= point.asr[0] <= point.asr[2]
    # Without training, the card has no accuracy: unmeasured is not zero.
    assert card.accuracy.value is None and card.accuracy.rounds == 0
    assert card.epsilon.valid is None and card.epsilon.reason
    assert card.epsilon.audited.trials == 100
    assert card.settings["rounds"] == 0 and card.settings["victims"] == 10
    # Neither a date nor a path of this machine.
    assert not re.search(r"20\d\d-\d\d", text_of(card)) and "/tmp" not in text_of(card)


def hash_by(command: str) -> str:
    """Return the hash of the cell that a command line runs."""
    program, name, *options = shlex.split(command)
    assert (program, name) == ("leakbench", "run")
    given = run_options.make_context("run", options).params
    for name in ("out", "as_json", "quiet", "verbose", "tracker", "data_dir"):
        del given[name]
    given |= {name: words(name, given[name]) for name in ("taps", "leak_rounds")}
    return prepare(Request(**given), None).hash


def test_each_command_runs_the_cell_of_its_hash() -> None:
    numbers = {"victims": 3, "candidates": 7, "leak_batch": 2, "observations": 2, "train_rounds": 3, "clients": 9}
    numbers |= {"clients_per_round": 4, "local_iterations": 2, "batch": 3, "seed": 5}
    asked = CardSizes(
        **numbers, iterations=4, leak_rounds=("1", "last"), taps=("type-1",), learning_rate=0.25, model="mlp_sigmoid"
    )
    cells = asking(asked, "fed_cdp", "digits", "cpl", None)
    assert len({each.cell.hash for each in cells}) == 4
    assert [hash_by(each.command) for each in cells] == [each.cell.hash for each in cells]
    settings = [(each.cell.settings.protocol, each.cell.settings.leak_rounds) for each in cells]
    assert settings == [("paper", (0,)), ("live", (1, 3))] * 2


def test_the_commands_of_a_recipe_at_a_path_are_printed_with_the_path(tmp_path: Path) -> None:
    """The card has the name that the recipe will have in the catalog."""
    own = tmp_path / "signs_of_mine.yaml"
    shutil.copy(catalog_folder("defenses") / "sign.yaml", own)
    asked = CardSizes(victims=2, protocols=("live",), train_rounds=1, seeds=2)
    cells = asking(asked, str(own), "digits", "cpl", None)
    cells += trainings(asked, cells[0].cell, str(own), None)
    assert [hash_by(each.given) for each in cells] == [each.cell.hash for each in cells]
    assert all(f"--defense {own}" in each.given and "--defense signs_of_mine" in each.command for each in cells)


def test_the_commands_on_a_card_run_its_cells(card: Card) -> None:
    assert [hash_by(cell.command) for cell in card.cells] == [cell.hash for cell in card.cells]
    _, _, *options = shlex.split(card.repeat)
    given = card_options.make_context("card", options).params
    assert (given["defense"], given["dataset"], given["attack"], given["taps"]) == ("sign", "digits", "lmmse", "type-2")
    assert shlex.split(card.epsilon.audited.command)[-2:] == ["--trials", "100"]


def test_a_card_is_read_back_unchanged(card: Card, tmp_path: Path) -> None:
    path = write_card(tmp_path, card)
    assert path == tmp_path / "digits" / "sign.json" == path_of(tmp_path, card)
    assert read_card(path) == card and text_of(read_card(path)) == path.read_text(encoding="utf-8")
    assert read_cards(tmp_path) == [card]


def _set(*place: Any) -> Callable[[dict[str, Any]], None]:
    *keys, value = place

    def change(fields: Any) -> None:
        for key in keys[:-1]:
            fields = fields[key]
        if value is None:
            del fields[keys[-1]]
        else:
            fields[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("mine", 1), "unknown field 'mine'"),
        (_set("threat", None), "missing field 'threat'"),
        (_set("format", 2), "format"),
        (_set("defense", "name", "../../etc/passwd"), "name"),
        (_set("dataset", "name", "/tmp/x"), "name"),
        (_set("attack", "name", "x.yaml"), "name"),
        (_set("hash", "abc"), "hash"),
        (_set("defense", "link", "javascript:alert(1)"), "link"),
        (_set("threat", "one\ntwo"), "threat"),
        (_set("cells", 0, "points", 0, "asr", [0.1, 0.5, 0.9]), "low <= value <= high"),
        (_set("cells", 0, "points", 0, "asr", [0.1, 0.0, 1.5]), "asr"),
        (_set("cells", 0, "points", 0, "asr", "0.1"), "asr"),
        (_set("cells", 0, "points", 0, "null_asr", float("nan")), "NaN"),
        (_set("epsilon", "valid", float("inf")), "Infinity"),
        (_set("epsilon", "audited", "verdict", "fine"), "verdict"),
        (_set("cells", 0, "points", 0, "mine", 1), "unknown field 'mine'"),
        (_set("cells", []), "cells"),
        (_set("asked", "victims", "10"), "victims"),
    ],
)
def test_files_that_are_not_cards_are_refused_in_one_line(
    card: Card,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = changed(card, tmp_path, change)
    code, out, err = called(monkeypatch, capsys, "card", "--check", str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"leakbench: {path}: ") and said in err and "bug" not in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("text", ["", "[]", "1", "{", '{"a": 1, "a": 2}', "[" * 100_000, " " * 1_000_001])
def test_invalid_json_of_a_card_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"x\.json"):
        read_card(path)


def test_a_repeated_field_is_refused(card: Card, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text_of(card).replace('"threat":', '"threat": "none",\n "threat":'), encoding="utf-8")
    with pytest.raises(InputError, match="'threat' appears twice"):
        read_card(path)


def test_a_card_at_another_path_is_refused(card: Card, tmp_path: Path) -> None:
    (tmp_path / "faces").mkdir()
    (tmp_path / "faces" / "sign.json").write_text(text_of(card), encoding="utf-8")
    with pytest.raises(InputError, match=r"sign on digits, expected at digits/sign\.json"):
        read_cards(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        read_cards(tmp_path / "none")
    with pytest.raises(InputError, match=r"expected at DATASET/DEFENSE\.json"):
        read_cards(tmp_path / "faces")


@pytest.mark.parametrize(
    ("cite", "link"),
    [
        ("A. Author, WACV 2022, arXiv:2108.04725", "https://arxiv.org/abs/2108.04725"),
        ("A. Author, IEEE TPDS, 10.1109/TPDS.2023.1234567.", "https://doi.org/10.1109/TPDS.2023.1234567"),
        ("A. Author, NeurIPS 2017, section 4", ""),
    ],
)
def test_the_link_comes_from_the_citation(cite: str, link: str) -> None:
    assert link_of(cite) == link


def test_extra_options_of_a_check_and_a_missing_recipe_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for line, said in (
        (["card"], "card: got no DEFENSE and DATASET"),
        (["card", "sign"], "card: got no DATASET"),
        (["card", "--check", __file__, "--victims", "3"], "check: got victims as well"),
        (["card", "--check", "x.json"], "check: no file 'x.json'"),
        (["card", "sign", "digits", "--protocols", "alive"], "protocols"),
        (["card", "sign", "digits", "--victims", "0"], "victims"),
        (["card", "sing", "digits"], "did you mean 'sign'"),
        (["leaderboard", "--cards", str(tmp_path), "--out", "x.txt"], "out: got 'x.txt'"),
    ):
        code, out, err = called(monkeypatch, capsys, *line)
        assert (code, out, err.count("\n")) == (2, "", 1), line
        assert said in err, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((), "card: got no DEFENSE and DATASET, expected both, as in `leakbench card sign faces`"),
        (("fed_cdp_valid",), "card: got no DATASET, expected both, as in `leakbench card fed_cdp_valid faces`"),
        (
            ("sign", "faces", "--leak-rounds", "0,lst"),
            "leak-rounds: got 'lst', expected round numbers with commas between them, or last",
        ),
    ],
)
def test_a_missing_argument_and_a_wrong_round_are_named(
    given: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(monkeypatch, capsys, "card", *given)
    assert (code, out) == (2, "") and err.rstrip().endswith(says)


def test_failures_are_the_worst_of_a_card_s_median(card: Card) -> None:
    """Batches of three: the median over all examples, which the interval of the victims' medians contains."""
    point = card.cells[0].points[0]
    tap = {
        f"{name}{end}": 0.5
        for name in ("asr", "null_asr", "identified", "label_ranked")
        for end in ("", "_low", "_high")
    }
    tap |= {
        "victims": 12,
        "batch": 3,
        "failures": 12,
        "rmse": 0.1,
        "null_rmse": 0.3,
        "candidates": 20,
        "verdict": "inconclusive",
    }
    tap |= {"label_accuracy": None, "feature_accuracy": None, "null_feature_accuracy": None, "record_match": None}
    summary = Summary.of({"taps": {point.name: tap}})
    rows = pd.DataFrame(
        [{"victim": v, "network": 0, "rmse": each} for v in range(12) for each in (0.1, 0.2 + v / 100, math.nan)]
    )
    found = point_of(point.name, summary, rows).rmse
    assert found is not None
    medians = sorted(0.2 + v / 100 for v in range(12))
    assert found[0] == pytest.approx((medians[5] + medians[6]) / 2, abs=1e-4)  # 12 below, 12 failed above.
    assert found[1] is not None and found[2] is not None and medians[0] <= found[1] < found[0] < found[2] <= medians[-1]
