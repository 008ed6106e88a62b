"""Pictures at another size: values, victims, the examples that stay, and photographs that are read larger."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from leakbench.core.errors import InputError
from leakbench.core.task import CLASSIFICATION
from leakbench.data import resize
from leakbench.data.dataset import Dataset, Targets
from leakbench.data.find import at_size, load_dataset, without_examples
from leakbench.data.pictures import FaceFolders
from leakbench.data.resize import resized


def _data(size: int = 4) -> Dataset:
    rng = torch.Generator().manual_seed(0)
    train, test = torch.rand(12, 1, size, size, generator=rng), torch.rand(6, 1, size, size, generator=rng)
    targets = torch.tensor([0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 2, 2])
    victims, public = torch.tensor([0, 2, 3, 7, 10]), torch.tensor([0, 2, 3])
    return Dataset("d", "image", train, targets, test, targets[:6], ("a", "b", "c"), victims, "sha", public=public)


def test_constant_pictures_stay_constant_and_means_stay() -> None:
    data = dataclasses.replace(_data(), train_inputs=torch.full((12, 1, 4, 4), 0.3))
    larger = resized(data, 8)
    torch.testing.assert_close(larger.train_inputs, torch.full((12, 1, 8, 8), 0.3))
    smaller = resized(_data(8), 4)  # Antialiasing: no pixel is left out.
    torch.testing.assert_close(smaller.test_inputs.mean((2, 3)), _data(8).test_inputs.mean((2, 3)), rtol=0, atol=0.03)
    assert larger.content == "sha, pictures of 4 x 4 resized to 8 x 8, which are smoother than photographs of that size"
    assert smaller.resized == "pictures of 8 x 8 resized to 4 x 4"
    assert resized(_data(8), 8).resized == ""
    assert torch.equal(resized(_data(8), 8).train_inputs, _data(8).train_inputs)


def test_every_kth_example_of_a_class_stays_and_victims_are_the_same_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _data()
    monkeypatch.setattr(resize, "MOST_VALUES", 18 * 16 // 2)
    few = resized(data, 4)
    assert few.train_targets.bincount().tolist() == [3, 3, 1]
    assert torch.equal(few.train_inputs, data.train_inputs[[0, 2, 3, 5, 8, 9, 10]])
    assert few.victims.tolist() == [0, 1, 2, 6]
    assert torch.equal(few.test_inputs, data.test_inputs[::2])
    assert few.public is not None
    assert few.public.tolist() == [0, 1]
    assert few.resized == "pictures of 4 x 4; only one of 2 examples, to fit into memory"


def test_people_and_targets_stay_with_their_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    data = _data()
    targets = Targets(
        data.train_inputs.mean((1, 2, 3))[:, None], data.test_inputs.mean((1, 2, 3))[:, None], CLASSIFICATION
    )
    people = torch.arange(12)
    monkeypatch.setattr(resize, "MOST_VALUES", 18 * 16 // 2)
    few = resized(dataclasses.replace(data, groups=people, targets=targets), 4)
    assert few.groups is not None and few.targets is not None
    assert len(few.groups) == len(few.train_inputs) < 12
    assert torch.equal(data.train_inputs[few.groups], few.train_inputs)
    assert torch.equal(few.targets.train[:, 0], few.train_inputs.mean((1, 2, 3)))
    assert torch.equal(few.targets.test[:, 0], few.test_inputs.mean((1, 2, 3)))


def test_a_plan_without_examples_has_the_same_sizes() -> None:
    planned = without_examples("digits", size=20)[2]
    loaded = load_dataset("digits", size=20)[2]
    assert planned.shape == loaded.shape == (1, 20, 20)
    assert torch.equal(planned.train_targets.bincount(), loaded.train_targets.bincount())
    assert len(planned.victims) == len(loaded.victims)
    assert (
        planned.resized
        == loaded.resized
        == ("pictures of 8 x 8 resized to 20 x 20, which are smoother than photographs of that size")
    )
    assert load_dataset("digits")[2].resized == ""


def test_other_data_are_refused() -> None:
    with pytest.raises(InputError, match=r"size: got 20, but 'cancer' holds no pictures"):
        without_examples("cancer", size=20)


def test_photographs_are_read_from_a_larger_crop_with_the_same_centre() -> None:
    faces = FaceFolders(accepted={"v": "0" * 64})
    assert (faces.at(64).crop, faces.at(64).side) == ((61, 189), 64)
    assert (faces.at(224).crop, faces.at(224).side) == ((13, 237), 224)
    assert faces.at(250).crop == (0, 250)
    with pytest.raises(InputError, match=r"size: got 251, expected at most 250"):
        faces.at(251)
    recipe = without_examples("lfw")[1]
    form, sizes = at_size(recipe, 224)
    assert isinstance(form, FaceFolders)
    assert form.side == 224
    assert sizes is not None
    assert sizes.shape == (3, 224, 224)
