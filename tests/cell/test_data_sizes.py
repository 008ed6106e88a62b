"""Recorded sizes equal those of the data, and suffice for every number that needs no example."""

import dataclasses

import pytest
import torch

from leakbench.cell import Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import plan, prepare
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, names, resolve
from leakbench.data import find
from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset, without_examples
from leakbench.data.recipe import DatasetRecipe
from leakbench.data.sizes import Sizes

EMBEDDED = ["faces", "digits", "cancer"]
GOOD = {"shape": [1, 4, 4], "train": [3, 2], "test": 2}


def some(**changed: object) -> Sizes:
    return construct(Sizes, {**GOOD, **changed})


UNKNOWN = {"femnist", "celeba"}
"""Data sets whose numbers of examples of each class no source publishes; their data are loaded for them."""


@pytest.mark.parametrize("name", names("datasets"))
def test_every_recipe_of_the_catalog_records_its_sizes(name: str) -> None:
    recipe = resolve("datasets", DatasetRecipe, name)[1]
    if name in UNKNOWN:
        assert recipe.sizes is None
        return
    assert recipe.sizes is not None
    assert sum(recipe.sizes.train) >= recipe.federation.examples_per_client


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_recorded_sizes_are_those_of_the_data(name: str) -> None:
    _, recipe, data = load_dataset(name)
    assert recipe.sizes == Sizes.of(data)


@pytest.mark.parametrize("name", EMBEDDED)
def test_a_data_set_without_examples_has_the_sizes_of_one_with_them(name: str) -> None:
    data, bare = load_dataset(name)[2], without_examples(name)[2]
    assert data.has_examples and not bare.has_examples
    for what in ("name", "kind", "shape", "classes"):
        assert getattr(bare, what) == getattr(data, what)
    for what in ("train_inputs", "train_targets", "test_inputs", "test_targets", "victims"):
        assert (getattr(bare, what).shape, getattr(bare, what).dtype) == (
            getattr(data, what).shape,
            getattr(data, what).dtype,
        )
    for chosen in (slice(None), "victims"):
        counts = [
            d.train_targets[d.victims if chosen == "victims" else chosen].bincount(minlength=d.classes)
            for d in (data, bare)
        ]
        assert torch.equal(*counts)


def test_the_values_of_recorded_inputs_cannot_be_read() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        float(without_examples("mnist")[2].train_inputs[0, 0, 0, 0])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("shape", [1, 8, 9], r"sizes: shape: the recipe has \[1, 8, 9\], the data have \[1, 8, 8\]"),
        ("train", [133] * 10, r"sizes: train: the recipe has \[133, 133"),
        ("test", 449, "sizes: test: the recipe has 449, the data have 450"),
        ("victims", [1], r"sizes: victims: the recipe has \[1\], the data have \[\]"),
    ],
)
def test_data_of_other_sizes_are_refused(
    field: str, value: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, recipe = resolve("datasets", DatasetRecipe, "digits")
    assert recipe.sizes is not None
    wrong = dataclasses.replace(recipe.sizes, **{field: tuple(value) if isinstance(value, list) else value})
    monkeypatch.setattr(find, "resolve", lambda *_: (name, dataclasses.replace(recipe, sizes=wrong)))
    with pytest.raises(InputError, match=f"dataset 'digits': {message}"):
        load_dataset("digits")


@pytest.mark.parametrize(
    ("field", "value"), [("shape", []), ("shape", [0]), ("train", []), ("train", [-1]), ("test", 0), ("victims", [-1])]
)
def test_sizes_that_no_data_set_has_are_refused(field: str, value: object) -> None:
    assert some() == Sizes((1, 4, 4), (3, 2), 2)
    with pytest.raises(InputError, match=field):
        some(**{field: value})


def test_a_recipe_without_sizes_has_its_data_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    name, recipe = resolve("datasets", DatasetRecipe, "digits")
    monkeypatch.setattr(find, "resolve", lambda *_: (name, dataclasses.replace(recipe, sizes=None)))
    loaded: list[str] = []

    def load(asked: str, *arguments: object, **named: object) -> tuple[str, DatasetRecipe, Dataset]:
        loaded.append(asked)
        return load_dataset(asked)

    assert without_examples("digits", load=load)[2].has_examples
    assert loaded == ["digits"]


@pytest.mark.slow
@pytest.mark.parametrize("dataset", EMBEDDED)
@pytest.mark.parametrize("defense", ["fed_cdp_valid", "fed_sdp_client_valid", "none"])
def test_epsilons_from_recorded_sizes_are_those_from_the_data(dataset: str, defense: str) -> None:
    request = Request(dataset=dataset, defense=defense, train_rounds=2, victims=2, candidates=5)
    planned, whole = plan(request), prepare(request, None)
    assert not planned.data.has_examples and whole.data.has_examples
    found = [cell_epsilon(c.defense, c.data, c.settings, hand_out(c), None) for c in (planned, whole)]
    assert found[0] == found[1]
