"""A card can be repeated; the check of a tampered card fails and names the change."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import called
from leaderboard_cards import changed, with_points

from leakbench.core import recipe
from leakbench.core.behaviour import SHARED
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.leaderboard.asked import asking
from leakbench.leaderboard.card import Card
from leakbench.leaderboard.check import check, differences, identity_differences
from leakbench.leaderboard.read import read_card, write_card
from leakbench.measure.statistics import wilson
from leakbench.study.study import Execution

QUIET = Reporter(quiet=True)


@pytest.fixture
def runs(measured_card: tuple[Path, Card]) -> Path:
    return measured_card[0]


@pytest.fixture
def card(measured_card: tuple[Path, Card]) -> Card:
    return measured_card[1]


@pytest.fixture
def no_measuring() -> Callable[..., Card]:
    def make(*_: Any) -> Card:
        raise AssertionError("a card of other cells was measured")

    return make


@pytest.mark.slow
def test_a_card_repeats_from_the_runs_and_without_them(
    card: Card, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_card(tmp_path, card)
    for where in (runs, tmp_path / "fresh"):
        before = sorted(p.name for p in where.glob("*"))
        code, out, err = called(monkeypatch, capsys, "card", "--check", str(path), "--runs", str(where), "--quiet")
        assert (code, out) == (0, "check: the card repeats\n"), (out, err)
        assert len(list(where.glob("*"))) == 2 and before in ([], sorted(p.name for p in where.glob("*")))


def test_a_tampered_asr_fails_by_name(
    card: Card, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lower(fields: dict[str, Any]) -> None:
        point = fields["cells"][1]["points"][0]
        point["asr"] = [0.0, *(round(end, 4) for end in wilson(0, point["victims"]))]
        point["by_network"]["asr"] = [0.0] * point["networks"]

    path = changed(card, tmp_path, lower)
    code, out, _ = called(monkeypatch, capsys, "card", "--check", str(path), "--runs", str(runs), "--quiet")
    assert code == 1
    first, *more = out.splitlines()
    assert first.startswith("cells.aware.paper.points.type-2.asr: the card has [0.0, 0.0, ")
    numbers = [line for line in more[:-1] if line.startswith("cells.aware.paper.points.type-2.by_network.asr.")]
    assert numbers == more[:-1] != [] and more[-1] == f"check: {len(more)} differences"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda f: f["cells"][0].update(hash="0" * 64), "cells.oblivious.paper.hash"),
        (lambda f: f.update(hash="0" * 64), "hash"),
        (lambda f: f["defense"].update(content="0" * 64), "defense.content"),
        (lambda f: f["defense"].update(title="Better than it is"), "defense.title"),
        (lambda f: f["dataset"].update(content="0" * 64), "dataset.content"),
        (lambda f: f["cells"][0].update(command="rm -rf /"), "cells.oblivious.paper.command"),
        (lambda f: f["settings"].update(clients=7), "settings.clients"),
        (lambda f: f["cells"].pop(), "cells"),
        (lambda f: f.update(repeat="leakbench card sign faces"), "repeat"),
        (lambda f: f["epsilon"]["audited"].update(command="leakbench audit"), "epsilon.audited.command"),
    ],
)
def test_a_card_of_other_cells_fails_by_name_before_anything_is_run(
    card: Card, tmp_path: Path, no_measuring: Callable[..., Card], change: Callable[[dict[str, Any]], None], named: str
) -> None:
    tampered = read_card(changed(card, tmp_path, change))
    found = check(tampered, Execution(tmp_path / "runs", None, QUIET), no_measuring)
    assert [line.partition(":")[0] for line in found] == [named]
    assert not (tmp_path / "runs").exists()


def test_a_card_of_another_release_has_the_same_cells_unless_a_behaviour_changed(card: Card) -> None:
    older = dataclasses.replace(card, made_with={**card.made_with, "leakbench": "0.0.1"})
    names = (card.defense.name, card.dataset.name, card.attack.name)
    assert list(identity_differences(older, asking(card.asked, *names, None))) == []


def test_a_stale_card_names_the_behaviours_that_changed_and_how_to_measure_it_again(
    card: Card, tmp_path: Path, no_measuring: Callable[..., Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message replaces the hashes, which all differ; other differences follow."""
    accounting, training = SHARED["accounting"], SHARED["leakage"]
    monkeypatch.setitem(SHARED, "accounting", accounting + 1)
    monkeypatch.setitem(SHARED, "leakage", training + 1)
    changed = f"accounting {accounting} -> {accounting + 1}, leakage {training} -> {training + 1}"
    line = f"the card is stale: {changed}; measure it again: {card.repeat}"
    assert check(card, Execution(tmp_path, None, QUIET), no_measuring) == [line]
    other = dataclasses.replace(card, settings={**card.settings, "clients": 7})
    first, second = check(other, Execution(tmp_path, None, QUIET), no_measuring)
    assert first == line and second.startswith("settings.clients: the card has 7, here it is ")


def test_sizes_that_do_not_match_the_hashes_fail(card: Card, tmp_path: Path, no_measuring: Callable[..., Card]) -> None:
    fewer = dataclasses.replace(card, asked=dataclasses.replace(card.asked, victims=9))
    found = [line.partition(":")[0] for line in check(fewer, Execution(tmp_path, None, QUIET), no_measuring)]
    assert found[0] == "settings.victims" and {"cells.oblivious.paper.hash", "cells.aware.paper.hash"} <= set(found)


def test_a_tampered_recipe_fails_by_name(
    card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_measuring: Callable[..., Card]
) -> None:
    for kind in ("defenses", "datasets", "attacks"):
        shutil.copytree(recipe.catalog_folder(kind), tmp_path / kind)
    sign = tmp_path / "defenses" / "sign.yaml"
    sign.write_text(sign.read_text(encoding="utf-8") + "batches: poisson\n", encoding="utf-8")
    monkeypatch.setattr(recipe, "catalog_folder", lambda kind: tmp_path / kind)
    found = [line.partition(":")[0] for line in check(card, Execution(tmp_path / "runs", None, QUIET), no_measuring)]
    assert found[0] == "defense.content"
    assert {"cells.oblivious.paper.hash", "cells.aware.paper.hash"} <= set(found)
    assert not any(name.startswith(("settings", "dataset", "attack")) for name in found)


def test_a_card_of_a_recipe_that_is_not_in_the_catalog_is_refused(
    card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = changed(card, tmp_path, lambda f: f["defense"].update(name="signs_of_mine"))
    monkeypatch.chdir(tmp_path)
    code, out, err = called(monkeypatch, capsys, "card", "--check", str(path))
    assert (code, out, err.count("\n")) == (2, "", 1) and "'signs_of_mine' is not in the catalog" in err


def _elsewhere(card: Card) -> Card:
    return dataclasses.replace(card, made_with={**card.made_with, "processor": "another"})


def _identified(card: Card, value: float) -> Card:
    return with_points(
        card, lambda p: dataclasses.replace(p, identified=(value, max(0, value - 0.1), min(1, value + 0.1)))
    )


def test_numbers_must_agree_to_rounding_or_on_other_machines_to_their_intervals(card: Card) -> None:
    one = _identified(card, 0.5)
    for other, here, there in ((0.5001, 0, 0), (0.55, 2, 0), (0.61, 2, 2)):
        again = _identified(card, other)
        names = {line.partition(":")[0] for line in differences(one, again)}
        assert len(names) == here and all(name.endswith("type-2.identified") for name in names)
        assert len(list(differences(one, _elsewhere(again)))) == there


@pytest.mark.parametrize(("value", "refused"), [(0.39, 2), (0.41, 0), (0.59, 0), (0.61, 2)])
def test_on_other_machines_both_ends_of_the_interval_count(card: Card, value: float, refused: int) -> None:
    wide = with_points(card, lambda p: dataclasses.replace(p, identified=(value, 0.0, 1.0)))
    assert len(list(differences(_elsewhere(wide), _identified(card, 0.5)))) == refused
    assert len(list(differences(_elsewhere(_identified(card, 0.5)), wide))) == refused


@pytest.mark.parametrize("end", [1, 2])
@pytest.mark.parametrize("field", ["asr", "identified", "label_ranked"])
def test_an_interval_that_does_not_follow_from_its_share_is_refused(
    card: Card, tmp_path: Path, field: str, end: int
) -> None:
    """At either end: every repeated number would be in [0, 1]."""

    def move(fields: dict[str, Any]) -> None:
        share = fields["cells"][0]["points"][0][field]
        share[end] = share[end] + 0.05 if share[end] < 0.5 else share[end] - 0.05

    path = changed(card, tmp_path, move)
    with pytest.raises(InputError, match=rf"{field}"):
        read_card(path)


def test_the_interval_of_the_accuracy_follows_from_its_examples(card: Card, tmp_path: Path) -> None:
    low, high = (round(end, 4) for end in wilson(50, 100))
    for examples, refused in ((100, False), (1000, True)):
        path = changed(card, tmp_path, lambda f, n=examples: f["accuracy"].update(value=[0.5, low, high], examples=n))
        if refused:
            with pytest.raises(InputError, match=r"accuracy\.value: got the interval"):
                read_card(path)
        else:
            assert read_card(path).accuracy.value == (0.5, low, high)


def test_claiming_another_machine_gains_no_verdict_and_no_wide_interval(card: Card) -> None:
    """A card that calls a leak inconclusive, with shares of 0 and intervals from 0 to 1; the honest one measures it again."""
    honest = with_points(card, lambda p: dataclasses.replace(p, asr=(0.9, 0.6, 0.98), verdict="reconstructs"))
    said = with_points(card, lambda p: dataclasses.replace(p, asr=(0.0, 0.0, 1.0), verdict="inconclusive"))
    fields = {line.partition(":")[0].rpartition(".")[2] for line in differences(_elsewhere(said), honest)}
    assert fields == {"asr", "verdict"}


def test_on_other_machines_numbers_without_an_interval_must_be_close(card: Card) -> None:
    def spent(of: Card, valid: float) -> Card:
        return dataclasses.replace(
            of, epsilon=dataclasses.replace(of.epsilon, valid=valid), warnings=(f"{valid} it is",)
        )

    one = spent(card, 1.0)
    assert [d.partition(":")[0] for d in differences(one, spent(card, 1.01))] == ["warnings.0"]
    assert not list(differences(one, _elsewhere(spent(card, 1.04))))
    assert [d.partition(":")[0] for d in differences(one, _elsewhere(spent(card, 1.06)))] == ["epsilon.valid"]
    # A missing number is not close to any number.
    none = dataclasses.replace(card, epsilon=dataclasses.replace(card.epsilon, valid=None))
    assert [d.partition(":")[0] for d in differences(one, _elsewhere(none))] == ["epsilon.valid"]
