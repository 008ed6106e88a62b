"""--knows makes every attack adaptive or oblivious, against its recipe."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import leakbench
from leakbench.attack import Attack
from leakbench.cell import KNOWS, Request, identity, resolve_cell
from leakbench.cli import commands
from leakbench.core.errors import InputError
from leakbench.core.recipe import describe, names, resolve
from leakbench.execute import _sent, hand_out
from leakbench.experiment.victims import draw_victims, view_of


def cell(**asked):
    return resolve_cell(
        Request(**{"dataset": "digits", "victims": 1, "candidates": 5, "taps": ("type-2",), **asked}), None
    )


def test_the_words_equal_those_of_a_recipe():
    told = {resolve("attacks", Attack, name)[1].knows for name in names("attacks")}
    assert told == set(KNOWS)


def test_the_word_is_in_the_identity_the_manifest_and_the_recipe():
    plain, told = cell(attack="dlg"), cell(attack="dlg", knows="defense")
    assert plain.attack.knows == "oblivious" != told.attack.knows
    assert plain.hash != told.hash
    assert identity(told, "test")["recipes"]["attack"]["knows"] == "defense"
    assert {**describe(told.attack), "knows": "oblivious"} == describe(plain.attack)


def test_the_word_of_the_recipe_gives_the_same_cell():
    assert cell(attack="whitened", knows="defense").hash == cell(attack="whitened").hash


@pytest.mark.parametrize("knows", KNOWS)
def test_the_view_follows_the_word(knows):
    some = cell(attack="whitened" if knows == "oblivious" else "dlg", defense="fed_cdp_valid", knows=knows)
    view = view_of(
        some, "type-2", 0, draw_victims(some, "type-2", 0, hand_out(some)), torch.arange(1), _sent(some, None, None)
    )
    assert view.knowledge.defense is bool(view.stations.example) is (knows == "defense")


def test_the_oblivious_recipe_equals_whitened_with_one_word():
    """That word alone repeats its earlier measurements."""
    one, other = (resolve("attacks", Attack, name)[1] for name in ("whitened", "whitened_oblivious"))
    assert one.method == other.method
    assert (one.knows, other.knows) == ("defense", "oblivious")


@pytest.mark.parametrize(
    ("word", "said"),
    [("defence", "expected oblivious or defense; did you mean 'defense'"), ("all", "expected oblivious")],
)
def test_another_word_is_refused(word, said):
    with pytest.raises(InputError, match=f"knows: got '{word}', {said}"):
        cell(knows=word)


def test_the_table_shows_what_the_attacker_knows(tmp_path: Path):
    tiny = "run --dataset digits --attack cpl --defense prune_threshold --taps type-1 --leak-batch 1 --victims 1 --train-rounds 0"
    command = [*f"{tiny} --candidates 5 --iterations 1 --json --quiet --knows defense".split(), "--out", str(tmp_path)]
    found = CliRunner().invoke(commands, command, standalone_mode=False, catch_exceptions=False)
    assert json.loads(found.stdout)["knowledge"]["defense"] is True
    assert json.loads((tmp_path / "manifest.json").read_text())["recipes"]["attack"]["knows"] == "defense"
    assert "--knows" in CliRunner().invoke(commands, ["run", "--help"]).stdout


@pytest.mark.parametrize("defense", ["outpost", "nvflare_svt", "graddefense", "sign_client"])
def test_a_defense_after_the_leakage_point_changes_nothing_for_an_attacker_that_knows_it(
    defense: str, tmp_path: Path
) -> None:
    """The gradient of an example leaks before stations of the batch and of the client, so that it is that of no defense."""
    asked = {"dataset": "digits", "attack": "whitened", "victims": 2, "candidates": 10, "iterations": 3}
    more = {"taps": ["type-2"], "train_rounds": 0, "knows": "defense", "pictures": False}
    found = [
        leakbench.run(defense=name, out=tmp_path / name, **asked, **more).rows["rmse"].tolist()
        for name in (defense, "none")
    ]
    assert found[0] == found[1]
