"""A card can measure the accuracy over several trainings, one for each seed; the page and the ranking use all of them."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_line import called
from leaderboard_cards import changed, everywhere

from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.leaderboard.asked import CardSizes, asking, card_command, hash_of, trainings
from leakbench.leaderboard.card import Accuracy, Card
from leakbench.leaderboard.check import differences
from leakbench.leaderboard.make import claim_of, make_card
from leakbench.leaderboard.page import markdown_of
from leakbench.leaderboard.rank import standings
from leakbench.leaderboard.read import read_card, write_card
from leakbench.measure.statistics import accuracy_interval, wilson
from leakbench.storage.summary import PrintedNumber
from leakbench.study.study import Execution

TINY = CardSizes(
    victims=5,
    taps=("type-2",),
    protocols=("live",),
    leak_rounds=("0", "1", "last"),
    candidates=5,
    leak_batch=1,
    train_rounds=2,
    clients=8,
    clients_per_round=4,
    local_iterations=1,
    model="mlp_sigmoid",
    seeds=2,
    trials=100,
)

STUDENT_2 = 4.302653
"""The 97.5 % quantile of Student's distribution with two degrees of freedom."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def measured(runs: Path, asked: CardSizes) -> Card:
    return make_card(asked, "sign", "cancer", "lmmse", Execution(runs, None, Reporter(quiet=True)))


@pytest.fixture(scope="module")
def two(runs: Path) -> Card:
    """A card with two seeds and three rounds."""
    return measured(runs, TINY)


@pytest.fixture
def card(measured_card: tuple[Path, Card]) -> Card:
    return measured_card[1]


def trained(card: Card, name: str, right: tuple[int, ...], examples: int = 100, majority: float = 0.5) -> Card:
    """Return a card whose trainings classify so many test examples correctly."""
    value, low, high = accuracy_interval([each / examples for each in right], examples)
    known = Accuracy(
        value=(value, low, high),
        majority=majority,
        examples=examples,
        rounds=2,
        by_seed=tuple(map(float, right)) if len(right) > 1 else (),
    )
    asked = dataclasses.replace(card.asked, seeds=len(right))
    return dataclasses.replace(everywhere(card, name, 0.0, 0.1, 0.5), accuracy=known, asked=asked)


def test_the_interval_is_over_trainings_or_over_test_examples_of_one() -> None:
    half = STUDENT_2 * 0.1 / math.sqrt(3)
    assert accuracy_interval([0.5, 0.7, 0.6], 100) == pytest.approx((0.6, 0.6 - half, 0.6 + half))
    assert accuracy_interval([0.6], 100) == (0.6, *wilson(60, 100))
    # Trainings without a spread: Wilson's interval of three trials.
    assert accuracy_interval([0.6] * 3, 100) == pytest.approx((0.6, *wilson(1.8, 3)))


@pytest.mark.slow
def test_each_training_is_that_of_a_card_of_its_own_seed(two: Card, runs: Path) -> None:
    alone = [measured(runs, dataclasses.replace(TINY, seed=seed, seeds=1)).accuracy for seed in (0, 1)]
    values = [known.value[0] for known in alone if known.value is not None]
    examples = two.accuracy.examples
    assert all(known.by_seed == () for known in alone)
    assert [right / examples for right in two.accuracy.by_seed] == pytest.approx(values, abs=1e-4)
    assert two.accuracy.value == pytest.approx(
        accuracy_interval([right / examples for right in two.accuracy.by_seed], examples), abs=1e-4
    )


@pytest.mark.slow
def test_further_seeds_change_the_accuracy_alone(two: Card, runs: Path) -> None:
    one = measured(runs, dataclasses.replace(TINY, seeds=1))
    assert one.cells == two.cells and one.epsilon == two.epsilon and one.hash != two.hash
    assert {line.partition(":")[0].partition(".")[0] for line in differences(one, two)} == {
        "accuracy",
        "asked",
        "hash",
        "repeat",
    }
    assert shlex.split(two.repeat)[-2:] == ["--trials", "100"] and "--seeds 2" in two.repeat


@pytest.mark.slow
def test_a_card_of_several_seeds_is_read_back_and_repeats(
    two: Card, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_card(tmp_path, two)
    assert read_card(path) == two
    monkeypatch.chdir(tmp_path)
    code, out, err = called(monkeypatch, capsys, "card", "--check", str(path), "--runs", str(runs), "--quiet")
    assert (code, out) == (0, "check: the card repeats\n"), (out, err)


@pytest.mark.slow
def test_three_rounds_of_the_live_protocol_are_on_the_card_and_the_page(two: Card) -> None:
    assert [point.name for point in two.cells[0].points] == ["type-2@0", "type-2@1", "type-2@2"]
    page = markdown_of([two], "cards")
    assert "victims over 1 network in the live protocol after 0, 1 and 2 rounds" in page
    assert "mean of 2 trainings (seeds 0 to 1)" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda known: known.update(by_seed=[]), r"accuracy\.by_seed: got 0 numbers"),
        (lambda known: known.update(by_seed=known["by_seed"] * 2), r"accuracy\.by_seed: got 4 numbers"),
        (lambda known: known["by_seed"].__setitem__(0, 144.0), r"expected at most 143 examples"),
        (lambda known: known.update(value=[known["value"][0], 0.0, 1.0]), r"accuracy\.value: got"),
        (lambda known: known.update(value=[0.99, 0.98, 1.0]), r"accuracy\.value: got"),
    ],
)
def test_an_accuracy_that_does_not_follow_from_its_trainings_is_refused(
    two: Card, tmp_path: Path, change: Any, says: str
) -> None:
    spread = trained(two, two.defense.name, (90, 100), two.accuracy.examples).accuracy
    path = changed(dataclasses.replace(two, accuracy=spread), tmp_path, lambda fields: change(fields["accuracy"]))
    with pytest.raises(InputError, match=says):
        read_card(path)


def test_a_card_without_the_fields_of_seeds_has_one_training(card: Card, tmp_path: Path) -> None:
    def older(fields: dict[str, Any]) -> None:
        del fields["asked"]["seeds"], fields["accuracy"]["by_seed"]

    path = changed(card, tmp_path, older)
    assert "seeds" not in json.loads(path.read_text(encoding="utf-8"))["asked"]
    assert read_card(path) == card and card.asked.seeds == 1


def test_one_undertrained_training_is_enough_for_no_rank(card: Card) -> None:
    """Of 100 test examples, 59 right are significantly more than a half, 58 are not (one-sided exact test, .05)."""
    learned = {
        right: standings([trained(card, "x", right)])[0].learned
        for right in [(59,), (58,), (59, 59, 59), (99, 99, 58), (0, 99, 99)]
    }
    assert list(learned.values()) == [True, False, True, False, False]


def test_a_printed_accuracy_is_compared_with_the_mean_of_the_trainings(card: Card) -> None:
    several = dataclasses.replace(card.accuracy, value=(0.7, 0.6, 0.8), by_seed=(80.0, 60.0))
    printed = PrintedNumber(what="accuracy", claimed=0.9, measured=0.8, source="a paper", comment=None)
    assert claim_of(printed, several).measured == 0.7
    assert claim_of(printed.replaced(what="epsilon"), several).measured == 0.8
    assert claim_of(printed, dataclasses.replace(several, value=None)).measured == 0.8


def test_a_card_without_a_learning_rate_is_shown(card: Card) -> None:
    for rate in (None, "fast"):
        shown = markdown_of([dataclasses.replace(card, settings={**card.settings, "learning_rate": rate})], "cards")
        assert "learning rate unknown" in shown


def test_a_command_names_the_seeds_and_only_several_change_the_hash() -> None:
    asked = dataclasses.replace(TINY, seed=3, seeds=3)
    cells = asking(asked, "sign", "cancer", "lmmse", None)
    further = trainings(asked, cells[0].cell, "sign", None)
    assert [each.cell.settings.seed for each in further] == [4, 5]
    assert [each.name for each in further] == ["training with seed 4", "training with seed 5"]
    for each in further:
        for field in ("federation", "model", "stop_after"):
            assert getattr(each.cell.settings, field) == getattr(cells[0].cell.settings, field)
    assert "--seeds 3" in card_command(asked, "sign", "cancer", "lmmse")
    one = dataclasses.replace(asked, seeds=1)
    assert "--seeds" not in card_command(one, "sign", "cancer", "lmmse")
    assert trainings(one, cells[0].cell, "sign", None) == [] and hash_of(cells, one) != hash_of(cells, asked)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["card", "sign", "digits", "--seeds", "0"], "seeds: got 0, expected at least 1"),
        (["card", "sign", "digits", "--seeds", "two"], "seeds"),
        (["card", "--check", __file__, "--seeds", "2"], "check: got seeds as well"),
        (["card", "sign", "digits", "--leak-batch", "1", "--seeds", "2", "--train-rounds", "0"], "without training"),
    ],
)
def test_wrong_seeds_are_refused(
    line: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = called(monkeypatch, capsys, *line)
    assert (code, out, err.count("\n")) == (2, "", 1) and says in err, err
    assert list(tmp_path.iterdir()) == []
