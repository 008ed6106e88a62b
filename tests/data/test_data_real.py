"""The real sets, if available on this machine: published counts, ranges, and pixels in their places."""

from pathlib import Path

import pytest
import torch

from leakbench.cell import Request, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.core.recipe import resolve
from leakbench.data.commands import verify_dataset
from leakbench.data.dataset import Dataset
from leakbench.data.find import find_folder, load_dataset
from leakbench.data.recipe import DatasetRecipe
from leakbench.data.sizes import Sizes

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


def load(name: str, data_dir: Path, cache: str) -> Dataset:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", cache)
        if find_folder(resolve("datasets", DatasetRecipe, name)[1].origin, data_dir) is None:
            pytest.skip(f"{name} is not in {data_dir}")
        return load_dataset(name, data_dir, offline=True)[2]


def check_values(data: Dataset) -> None:
    for inputs, targets in ((data.train_inputs, data.train_targets), (data.test_inputs, data.test_targets)):
        assert inputs.dtype == torch.float32 and targets.dtype == torch.int64 and inputs.is_contiguous()
        assert (float(inputs.min()), float(inputs.max())) == (0.0, 1.0)
        assert set(targets.unique().tolist()) == set(range(data.classes))
    assert data.public is not None or data.victims.tolist() == list(range(len(data.train_targets)))
    assert data.victims.tolist() == sorted(set(data.victims.tolist()))


def test_mnist(data_dir, cache):
    data = load("mnist", data_dir, cache)
    check_values(data)
    assert data.shape == (1, 28, 28) and data.class_names == tuple("0123456789")
    assert data.train_targets.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test_targets.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert data.train_targets[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert float(data.train_inputs.mean()) == pytest.approx(0.1307, abs=1e-4)
    assert float(data.train_inputs.std()) == pytest.approx(0.3081, abs=1e-4)


def test_cifar10(data_dir, cache):
    data = load("cifar10", data_dir, cache)
    check_values(data)
    assert data.shape == (3, 32, 32)
    assert data.class_names[:3] == ("airplane", "automobile", "bird") and data.class_names[6] == "frog"
    assert data.train_targets.bincount().tolist() == [5000] * 10
    assert data.test_targets.bincount().tolist() == [1000] * 10
    assert data.train_targets[:5].tolist() == [6, 9, 9, 4, 1]
    # The means of the three colours, as everyone normalises by them.
    means = data.train_inputs.mean((0, 2, 3)).tolist()
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)


def test_lfw(data_dir, cache):
    data = load("lfw", data_dir, cache)
    check_values(data)
    assert data.shape == (3, 32, 32) and data.classes == 62
    assert (len(data.train_targets), len(data.test_targets)) == (2267, 756)
    counts = torch.cat([data.train_targets, data.test_targets]).bincount().tolist()
    people = dict(zip(data.class_names, counts, strict=True))
    assert sum(people.values()) == 3023 and min(people.values()) == 20
    assert (people["George_W_Bush"], people["Colin_Powell"], people["Tony_Blair"]) == (530, 236, 144)
    assert list(people) == sorted(people)
    assert (len(data.victims), len(data.public_targets)) == (1393, 292)
    assert not set(data.train_targets[data.victims].tolist()) & set(data.public_targets.tolist())  # Different people.
    again = load("lfw", data_dir, cache)  # From the cache of the first reading.
    assert torch.equal(data.train_inputs, again.train_inputs) and torch.equal(data.test_inputs, again.test_inputs)
    assert len(list(Path(cache).rglob("*.npz"))) == 1


def test_adult(data_dir, cache):
    data = load("adult", data_dir, cache)
    check_values(data)
    assert data.shape == (105,) and data.kind == "tabular"
    assert (len(data.train_targets), len(data.test_targets)) == (36_631, 12_211)
    assert data.class_names == ("<=50K", ">50K")
    income = torch.cat([data.train_targets, data.test_targets])
    assert income.bincount().tolist() == [24_720 + 12_435, 7_841 + 3_846]
    numbers, categories = data.features[:6], data.features[6:]
    assert [f.stop - f.start for f in numbers] == [1] * 6
    assert sum(f.stop - f.start for f in categories) == 99 == sum(len(f.values) for f in categories)
    assert [f.start for f in data.features[1:]] == [f.stop for f in data.features[:-1]]
    for feature in categories:
        ones = data.train_inputs[:, feature.start : feature.stop]
        known = ones.sum(1)
        assert set(ones.unique().tolist()) == {0.0, 1.0} and set(known.tolist()) <= {0.0, 1.0}
        may_be_unknown = feature.name in {"workclass", "occupation", "native-country"}
        assert bool((known == 1).all()) is not may_be_unknown
    age = numbers[0]
    assert (age.name, age.low, age.high) == ("age", 17.0, 90.0)


@pytest.mark.parametrize("name", ["mnist", "adult", "lfw", "cifar10"])
def test_the_recorded_sizes_are_those_of_the_data(data_dir, cache, name):
    assert resolve("datasets", DatasetRecipe, name)[1].sizes == Sizes.of(load(name, data_dir, cache))


@pytest.mark.parametrize(("name", "files"), [("mnist", 4), ("adult", 2), ("lfw", 1), ("cifar10", 7)])
def test_verify(data_dir, name, files):
    if find_folder(resolve("datasets", DatasetRecipe, name)[1].origin, data_dir) is None:
        pytest.skip(f"{name} is not in {data_dir}")
    rows = verify_dataset(name, data_dir)
    assert [row["ok"] for row in rows] == [True] * files


def test_the_page_of_audits_counts_the_photographs_of_one_person(data_dir: Path, cache: str) -> None:
    """Docs, "Several examples of one person": the commonest person of LFW in the federation of seed 0."""
    faces = load("lfw", data_dir, cache)
    federation = hand_out(resolve_cell(Request(defense="fed_cdp_valid", dataset="lfw"), data_dir))
    counts = faces.train_targets.bincount()
    held = (faces.train_targets[federation.indices] == counts.argmax()).sum(1)
    assert (int(counts.max()), len(faces.train_targets)) == (397, 2267)
    assert (int((held > 0).sum()), int(held.max()), federation.most_copies) == (1000, 76, 133)
    page = (Path(__file__).parents[2] / "docs" / "auditing.md").read_text(encoding="utf-8")
    said = " ".join(page.split("- LFW is such a case")[1][:300].split())
    assert "397 of the 2,267 training photographs" in said and "all 1,000 clients" in said
    assert "up to 76 each, while M is 133" in said
