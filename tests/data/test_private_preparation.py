"""What a data set computes from its private training data is printed next to every valid epsilon, which does not cover it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command_line import called

import leakbench
from leakbench.box import not_covered
from leakbench.core.errors import InputError
from leakbench.core.recipe import catalog_folder, names, resolve
from leakbench.data.find import load_dataset, without_examples
from leakbench.data.recipe import DatasetRecipe
from leakbench.report.headline import headline
from leakbench.report.latex import latex_table
from leakbench.report.page import write_report
from leakbench.storage.summary import Summary
from tests.data.test_data_formats import ROW, sha
from tests.report.test_report import run_folder, summary_of

SCALED = "The features are scaled by the range of the private training data, which this epsilon does not cover."
PUBLIC = {
    **{"age": [0, 100], "fnlwgt": [0, 2_000_000], "education-num": [1, 16]},
    **{"capital-gain": [0, 99_999], "capital-loss": [0, 99_999], "hours-per-week": [0, 99]},
}


def table(folder: Path, **changes: Any) -> Path:
    """Write an own table in the format of Adult, and its recipe with some fields changed."""
    rows = "".join(ROW.format(age=20 + i, work="Private", income=("<=50K", ">50K")[i % 2]) for i in range(40))
    files = {}
    for part in ("data", "test"):
        (folder / f"own.{part}").write_text(rows)
        files[part] = {"file": f"own.{part}", "sha256": sha(rows.encode())}
    recipe = {
        **{"title": "own", "cite": "own", "license": "own"},
        "format": {"adult_csv": {**files, **({"ranges": changes.pop("ranges")} if "ranges" in changes else {})}},
        "federation": {"rounds": 1, "batch": 2, "examples_per_client": 10, "clients": 4, "clients_per_round": 2},
        "origin": {"layouts": ["own"], "marker": "own.*", "megabytes": None, "mirrors": []},
        **changes,
    }
    path = folder / "own.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def sentences(dataset: str | Path, defense: str = "fed_cdp_valid", data_dir: Path | None = None) -> list[str]:
    found = leakbench.epsilon(defense, dataset=str(dataset), data_dir=data_dir, train_rounds=1).as_dict()
    return list(found["not_covered"])


def test_each_data_set_of_the_catalog_says_whether_private_data_scale_it() -> None:
    """Pixels are divided by a constant, and the word pieces of reviews are from other sentences."""
    recipes = {name: resolve("datasets", DatasetRecipe, name)[1] for name in names("datasets")}
    assert {name for name, recipe in recipes.items() if recipe.preparations} == {"adult", "cancer"}
    for name in ("adult", "cancer", "digits"):
        for data in [without_examples(name)[2], *([] if name == "adult" else [load_dataset(name)[2]])]:
            assert data.private_preparation == recipes[name].preparations
        assert sentences(name) == [SCALED] * (name != "digits")


def test_a_table_of_ones_own_says_so_unless_its_recipe_declares_public_ranges(tmp_path: Path) -> None:
    assert sentences(table(tmp_path), data_dir=tmp_path) == [SCALED]
    some = {name: PUBLIC[name] for name in list(PUBLIC)[:5]}
    assert sentences(table(tmp_path, ranges=some), data_dir=tmp_path) == [SCALED]
    assert sentences(table(tmp_path, ranges=PUBLIC), data_dir=tmp_path) == []
    said = "The numbers are standardised by the mean and deviation of the private training data"
    own = table(tmp_path, ranges=PUBLIC, private_preparation=said)
    assert sentences(own, data_dir=tmp_path) == [f"{said}, which this epsilon does not cover."]
    assert sentences(own, "none", tmp_path) == []


def test_declared_ranges_scale_without_the_data(tmp_path: Path) -> None:
    """A record of age 30 is .3 of [0, 100], whichever other records there are; one beyond the range is clamped."""
    data = load_dataset(str(table(tmp_path, ranges=PUBLIC)), tmp_path)[2]
    ages = torch.cat([data.train_inputs, data.test_inputs])[:, 0]
    assert set(ages.double().mul(100).round().int().tolist()) == set(range(20, 60))
    assert (data.features[0].low, data.features[0].high) == (0.0, 100.0)
    narrow = load_dataset(str(table(tmp_path, ranges=PUBLIC | {"age": [30, 40]})), tmp_path)[2]
    assert (float(narrow.train_inputs[:, 0].min()), float(narrow.train_inputs[:, 0].max())) == (0.0, 1.0)
    plain = load_dataset(str(table(tmp_path)), tmp_path)[2]
    assert len({each.content for each in (data, narrow, plain)}) == 3


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"agee": [0, 1]}, "ranges: unknown number 'agee'; did you mean 'age'"),
        ({"age": [5, 5]}, "ranges: age: got [5, 5], expected two finite numbers, the smaller one first"),
        ({"age": [0, float("inf")]}, "ranges: age: got [0, inf]"),
    ],
)
def test_wrong_ranges_are_named(ranges: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        resolve("datasets", DatasetRecipe, str(table(tmp_path, ranges=ranges)))
    assert words in str(raised.value) and "\n" not in str(raised.value)


def test_every_page_with_an_epsilon_prints_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = ("epsilon", "--defense", "fed_cdp_valid", "--dataset", "adult")
    assert called(monkeypatch, capsys, *asked)[1].rstrip().endswith(SCALED)
    assert json.loads(called(monkeypatch, capsys, *asked, "--json")[1])["not_covered"] == [SCALED]
    found = summary_of()
    found["epsilon"]["not_covered"] = [SCALED]
    summary = Summary.of(found)
    assert headline(summary).epsilon.endswith(SCALED.removesuffix("."))
    assert SCALED in latex_table([summary]) and latex_table([summary, summary]).count(SCALED) == 1
    assert f"<p>{SCALED}</p>" in write_report(run_folder(tmp_path / "run", summary=found)).read_text(encoding="utf-8")


def test_pages_of_results_print_it_for_the_data_sets_of_their_epsilons() -> None:
    assert not_covered({"mnist", "mine"}) == []
    assert not_covered({"mnist", "cancer", "adult"}) == [
        "On adult and cancer, the features are scaled by the range of the private training data, which no epsilon covers."
    ]
    root = catalog_folder("datasets").parent
    if (root / "results").is_dir():
        for name in ("adult", "cancer"):
            text = (root / "results" / "frontier" / f"frontier_{name}.md").read_text(encoding="utf-8")
            assert f"On {name}, the features are scaled by the range of the private training data" in text
