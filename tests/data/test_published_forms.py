"""CIFAR-100, TinyImageNet, FEMNIST and CelebA on small sets of the published form, and every way in which they can be wrong."""

import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from leakbench.core.errors import AbsentError, InputError
from leakbench.core.recipe import construct
from leakbench.data import commands, find
from leakbench.data.cache import Cache
from leakbench.data.celeba import CelebA
from leakbench.data.cifar import Cifar100Python
from leakbench.data.dataset import people_apart
from leakbench.data.femnist import NAMES, Femnist
from leakbench.data.find import load_dataset
from leakbench.data.omniglot import Omniglot
from leakbench.data.tiny_imagenet import TinyImageNet
from tests.command_line import called
from tests.data import made_sets
from tests.data.made_sets import MADE, python_2, small_recipe


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path) -> None:
    """Allow only data folders that a test makes, and a fresh cache."""
    monkeypatch.delenv("LEAKBENCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def form(cls, make, folder, **fields):
    """Write a set with `make`, and return its format."""
    [made] = make(folder).values()
    return construct(cls, {**made, **fields})


# CIFAR-100


def tiny_cifar100(folder, labels="fine", **changed):
    [fields] = made_sets.cifar100(folder, 6, 4, changed).values()
    return construct(Cifar100Python, {**fields, "labels": labels})


def test_cifar100_has_fine_and_coarse_labels(tmp_path):
    fine, coarse = (tiny_cifar100(tmp_path / kind, kind)(tmp_path / kind) for kind in ("fine", "coarse"))
    assert (fine.class_names, coarse.class_names) == (("a", "b", "c", "d"), ("x", "y"))
    assert torch.equal(coarse.train_targets, fine.train_targets // 2) and torch.equal(
        coarse.train_inputs, fine.train_inputs
    )
    assert fine.content.partition(",")[0] == coarse.content.partition(",")[0] and fine.content != coarse.content
    assert fine.shape == (3, 32, 32) and len(fine.test_targets) == 4


def test_cifar100_pixels_are_in_place_in_both_orders_of_memory(tmp_path):
    pixels = np.arange(2 * 3072).reshape(2, 3072).astype(np.uint8)
    batch = {"fine_labels": [3, 0], "coarse_labels": [1, 0]}
    for name, data in (("rows", pixels), ("columns", np.asfortranarray(pixels))):
        set_form = tiny_cifar100(tmp_path / name, train=python_2({**batch, "data": data}))
        inputs = set_form(tmp_path / name).train_inputs
        assert torch.equal((inputs * 255).round(), torch.from_numpy(pixels).reshape(2, 3, 32, 32).float())


class Bomb:
    """Raises AssertionError if an unpickler executes it."""

    def __reduce__(self):
        return exec, ("raise AssertionError('a pickle was run')",)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train", pickle.dumps(Bomb(), 2), r"train: not a CIFAR batch: .*no business with"),
        ("meta", python_2({"fine_label_names": Bomb()}), r"meta: not a CIFAR batch: .*no business with"),
        ("meta", python_2({"coarse_label_names": [b"x"]}), r"meta: fine_label_names: got no list of names"),
        ("test", python_2({"data": 3}), r"test: data: got no array"),
        ("test", python_2({"data": np.zeros((2, 1536), np.uint16)}), r"test: data: got no array of n x 3072 unsigned"),
        (
            "train",
            python_2({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 0]}),
            r"train: fine_labels: got no list",
        ),
        ("train", b"", r"train: not a CIFAR batch"),
    ],
    ids=["bomb", "bomb inside", "names", "data", "numbers of 16 bits", "labels", "empty"],
)
def test_a_right_md5_of_a_wrong_pickle_runs_no_code(tmp_path, name, content, words):
    set_form = tiny_cifar100(tmp_path / "set", **{name: content})
    assert all(c.ok for c in set_form.check(tmp_path / "set"))
    with pytest.raises(InputError, match=words):
        set_form(tmp_path / "set")


def test_a_wrong_md5_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    set_form = tiny_cifar100(tmp_path / "set")
    (tmp_path / "set" / "train").write_bytes(b"changed")
    monkeypatch.setattr("leakbench.data.cifar._Unpickler", None)
    with pytest.raises(InputError, match=r"train: 7 bytes with md5 .*, expected "):
        set_form(tmp_path / "set")
    assert [c.ok for c in set_form.check(tmp_path / "set")] == [False, True, True]


# TinyImageNet


def small_imagenet(folder, **fields):
    return form(TinyImageNet, lambda place: made_sets.tiny_imagenet(place, 3, 2, 4), folder, **fields)


def test_tiny_imagenet_classes_come_from_folders_and_the_table(tmp_path):
    data = small_imagenet(tmp_path)(tmp_path)
    assert data.class_names == ("n00000000 word 0", "n00000001 word 1", "n00000002")
    assert data.train_targets.tolist() == [0, 0, 1, 1, 2, 2] and data.test_targets.tolist() == [1, 2, 0, 1]
    assert data.shape == (3, 64, 64) and data.public is None
    with Image.open(tmp_path / "train/n00000001/images/n00000001_0.JPEG") as one:
        pixels = torch.from_numpy(np.asarray(one).transpose(2, 0, 1).copy())
    assert torch.equal((data.train_inputs[2] * 255).round(), pixels.float())


def test_tiny_imagenet_counts_its_pictures(tmp_path):
    set_form = small_imagenet(tmp_path)
    assert all(c.ok for c in set_form.check(tmp_path))
    (tmp_path / "val/images/val_1.JPEG").unlink()
    assert [(c.expected, c.got, c.ok) for c in set_form.check(tmp_path)] == [(("6",), "6", True), (("4",), "3", False)]
    with pytest.raises(InputError, match=r"val: got 3 pictures, expected 4"):
        set_form(tmp_path)
    assert not any(c.ok for c in set_form.check(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "line", ["val_0.JPEG n00000000", "val_0.JPEG\tn9", "../a.JPEG\tn00000000", "val_2.JPEG\tn00000000"]
)
def test_tiny_imagenet_names_a_wrong_line(tmp_path, line):
    set_form = small_imagenet(tmp_path)
    table = tmp_path / "val/val_annotations.txt"
    table.write_text(table.read_text() + line + "\n")
    with pytest.raises(InputError, match=r"val_annotations\.txt: (line 5: got|a picture appears twice)"):
        set_form(tmp_path)


def test_tiny_imagenet_accepts_one_content_if_the_recipe_has_it(tmp_path):
    pinned = small_imagenet(tmp_path, sha256="0" * 64)
    got = pinned.check(tmp_path)[2].got
    with pytest.raises(InputError, match=f"listing sha256 {got}, expected 0000"):
        pinned(tmp_path)
    accepted = construct(TinyImageNet, {"train": 6, "test": 4, "sha256": got, "side": 8})
    assert accepted(tmp_path).shape == (3, 8, 8) and all(c.ok for c in accepted.check(tmp_path))


# Omniglot


def drawings(folder, **fields):
    return form(Omniglot, lambda place: made_sets.omniglot(place, (3, 2), 4), folder, **fields)


def test_omniglot_classes_are_the_characters_of_its_alphabets(tmp_path):
    data = drawings(tmp_path)(tmp_path)
    assert data.class_names == tuple(
        f"{n}/character0{i}" for n, i in (("A", 1), ("A", 2), ("B", 1), ("B", 2), ("B", 3))
    )
    assert data.shape == (1, 28, 28) and data.public is None
    assert data.train_targets.bincount().tolist() == [3] * 5 and data.test_targets.bincount().tolist() == [1] * 5
    some = construct(Omniglot, {"alphabets": ["B"], "side": 105, "test_share": 0.25})(tmp_path)
    assert some.class_names == ("B/character01", "B/character02", "B/character03")
    with Image.open(tmp_path / "B/character01/0000_01.png") as one:
        pixels = torch.from_numpy(np.asarray(one).copy()).float()
    both = torch.cat([some.train_inputs, some.test_inputs])[:, 0]
    assert pixels.unique().tolist() == [0, 1] and any(torch.equal(each, pixels) for each in both)


def test_omniglot_names_what_is_missing(tmp_path):
    set_form = drawings(tmp_path)
    got = set_form.check(tmp_path)[0]
    assert got.ok and got.file == "20 pictures of 5 characters"
    with pytest.raises(InputError, match=r"C: cannot be read"):
        construct(Omniglot, {"alphabets": ["C"]})(tmp_path)
    with pytest.raises(InputError, match=f"listing sha256 {got.got}, expected 0000"):
        construct(Omniglot, {"sha256": "0" * 64})(tmp_path)
    for path in (tmp_path / "A/character02").iterdir():
        path.unlink()
    with pytest.raises(InputError, match=r"character02: expected pictures in <alphabet>/<character>"):
        set_form(tmp_path)
    assert not set_form.check(tmp_path)[0].ok


# FEMNIST


def read_femnist(folder, counts=(6, 5, 8, 4), **fields):
    made_sets.femnist(folder, counts)
    return Femnist(**fields)(folder)


def test_femnist_pixels_labels_and_writers(tmp_path):
    data = read_femnist(tmp_path)
    assert (
        data.classes == 62 and data.class_names[10] == "A" and data.class_names[36] == "a" and data.shape == (1, 28, 28)
    )
    # One of the four writers is the test split.
    assert len(set(data.groups.tolist())) == 3 and len(data.test_targets) in (4, 5, 6, 8)
    for writer in set(data.groups.tolist()):
        mine, own = data.groups == writer, made_sets.images_of(writer, (6, 5, 8, 4)[writer])
        assert data.train_targets[mine].tolist() == own["y"]
        assert torch.allclose(data.train_inputs[mine].flatten(1), torch.tensor(own["x"]), atol=1e-7)
    assert len(data.victims) == len(data.groups) and data.public is None


def test_femnist_by_example_keeps_writers_of_victims_and_public_images_apart(tmp_path):
    data = read_femnist(tmp_path, (20, 30, 40, 10), split="example", test_share=0.1)
    assert len(data.test_targets) == 10 and torch.bincount(data.groups).tolist() == [18, 27, 36, 9]
    assert set(data.groups[data.victims].tolist()) == {0, 2} and len(data.public) == 3 + 1


def test_femnist_reads_the_split_of_leaf(tmp_path):
    made_sets.femnist(tmp_path, (6, 5), "train")
    made_sets.femnist(tmp_path, (2, 3), "test")
    data = Femnist(split="leaf")(tmp_path)
    assert torch.bincount(data.groups).tolist() == [6, 5]
    assert data.test_targets.tolist() == made_sets.images_of(0, 2)["y"] + made_sets.images_of(1, 3)["y"]
    assert set(data.groups[data.victims].tolist()) == {0} and len(data.public) == 3


def test_femnist_limits_writers_and_its_content_follows_the_split(tmp_path):
    data = read_femnist(tmp_path, most_writers=2)
    assert len(data.train_targets) + len(data.test_targets) == 6 + 5
    contents = {Femnist(split=split)(tmp_path).content for split in ("writer", "example")}
    assert len(contents | {data.content, Femnist(seed=1, most_writers=2)(tmp_path).content}) >= 3


def test_femnist_skips_writers_that_leaf_leaves_out_of_its_list(tmp_path):
    made_sets.femnist(tmp_path, (6, 5))
    path = tmp_path / "all_data/all_data_0.json"
    body = json.loads(path.read_text())
    body["user_data"]["f9999_99"] = {"x": [], "y": []}
    path.write_text(json.dumps(body))
    assert len(Femnist()(tmp_path).groups.unique()) == 1


IMAGE = [0.5] * 784


def test_femnist_rounds_to_the_nearest_of_256_levels(tmp_path):
    (tmp_path / "all_data").mkdir()
    data = {name: {"x": [IMAGE], "y": [1]} for name in ("a", "b")}
    (tmp_path / "all_data/all_data_0.json").write_text(json.dumps({"users": ["a", "b"], "user_data": data}))
    assert (Femnist()(tmp_path).train_inputs * 255).round().unique().tolist() == [128]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("no json", "JSONDecodeError"),
        ({"users": ["a"]}, "KeyError"),
        ({"users": [], "user_data": {}}, "`users` are not"),
        ({"users": ["a", "a"], "user_data": {"a": {"x": [IMAGE], "y": [1]}}}, "`users` are not"),
        ({"users": ["b"], "user_data": {"a": {"x": [IMAGE], "y": [1]}}}, "`users` are not"),
        ({"users": ["a"], "user_data": {"a": {"x": [IMAGE[1:]], "y": [1]}}}, r"x: got shape \(1, 783\)"),
        ({"users": ["a"], "user_data": {"a": {"x": [[2.0] * 784], "y": [1]}}}, "expected lists of 784 numbers"),
        ({"users": ["a"], "user_data": {"a": {"x": [["0.5"] * 784], "y": [1]}}}, "expected lists of 784 numbers"),
        (
            {"users": ["a"], "user_data": {"a": {"x": [[float("nan")] * 784], "y": [1]}}},
            "expected lists of 784 numbers",
        ),
        ({"users": ["a"], "user_data": {"a": {"x": [IMAGE, IMAGE], "y": [1]}}}, "y: expected 2 whole numbers"),
        ({"users": ["a"], "user_data": {"a": {"x": [IMAGE], "y": [62]}}}, "y: expected 1 whole numbers from 0 to 61"),
        ({"users": ["a"], "user_data": {"a": {"x": [IMAGE], "y": [1.5]}}}, "y: expected"),
    ],
)
def test_femnist_names_a_wrong_file(tmp_path, body, words):
    (tmp_path / "all_data").mkdir()
    text = body if isinstance(body, str) else json.dumps(body)
    (tmp_path / "all_data/all_data_0.json").write_text(text)
    with pytest.raises(InputError, match=rf"all_data_0\.json: not a file of LEAF's FEMNIST: .*{words}"):
        Femnist()(tmp_path)


def test_femnist_without_files_is_named(tmp_path):
    with pytest.raises(InputError, match="all_data: cannot be read"):
        Femnist()(tmp_path)
    (tmp_path / "all_data").mkdir()
    assert not Femnist().check(tmp_path)[0].ok
    with pytest.raises(InputError, match=r"all_data: got no \.json file, expected those of LEAF"):
        Femnist()(tmp_path)
    assert NAMES[9] == "9" and NAMES[61] == "z"


# CelebA


def read_celeba(folder, each=3, **fields):
    return form(CelebA, lambda place: made_sets.celeba(place, 9, each), folder, **fields)(folder)


def test_celeba_attributes_people_and_published_splits(tmp_path):
    data = read_celeba(tmp_path, side=8)
    assert data.class_names == ("not Smiling", "Smiling") and data.shape == (3, 8, 8)
    assert (len(data.train_targets), len(data.test_targets)) == (18, 9)
    assert set(data.groups.tolist()) == {100, 101, 103, 104, 106, 107}
    # The split is by person, so all training photographs may be victims, and all test photographs are public.
    assert len(data.victims) == 18 and data.public is None
    rows = [line.split() for line in (tmp_path / "list_attr_celeba.txt").read_text().splitlines()[2:]]
    smiling = [int(row[3]) == 1 for i, row in enumerate(rows) if i % 9 % 3 != 2]
    assert data.train_targets.tolist() == list(map(int, smiling))


def test_celeba_has_all_attributes_for_a_multi_label_task(tmp_path):
    data = read_celeba(tmp_path, side=8, labels="attributes")
    assert data.class_names == ("Bald", "Male", "Smiling") and data.train_targets.shape == (18, 3)
    assert data.train_targets.dtype == torch.float32 and set(data.train_targets.unique().tolist()) == {0, 1}
    data.check("celeba")
    assert torch.equal(data.train_targets[:, 2].long(), CelebA(*fields_of(tmp_path), side=8)(tmp_path).train_targets)


def fields_of(folder):
    names = ("list_attr_celeba.txt", "identity_CelebA.txt", "list_eval_partition.txt")
    return [made_sets_file(folder / name) for name in names]


def made_sets_file(path):
    return {"file": path.name, "md5": made_sets.md5(path.read_bytes())}


def test_celeba_by_identity_shows_victims_and_public_photographs_of_different_people(tmp_path):
    data = read_celeba(tmp_path, 4, side=8, labels="identity", minimum=4)
    assert data.classes == 6 and data.class_names[0] == "person 100" and len(data.train_targets) == 18
    assert set(data.train_targets[data.victims].tolist()) == {0, 2, 4}
    assert set(data.public_targets.tolist()) <= {1, 3, 5}


def test_a_cached_split_gives_another_split_its_own_photographs(tmp_path):
    cache, folder = Cache(tmp_path / "cache", print), tmp_path / "celeba"
    folder.mkdir()
    fields = {"side": 8, "labels": "identity", "minimum": 4}
    reads = [form(CelebA, lambda place: made_sets.celeba(place, 9, 8), folder, **fields, seed=seed) for seed in (0, 1)]
    reads[0](folder, cache)
    assert torch.equal(reads[1](folder, cache).train_inputs, reads[1](folder).train_inputs)


def test_celeba_takes_the_first_people_of_each_split(tmp_path):
    data = read_celeba(tmp_path, side=8, most_people=2)
    assert sorted(set(data.groups.tolist())) == [100, 101] and len(data.test_targets) == 6


def test_celeba_crops_the_centre(tmp_path):
    data = read_celeba(tmp_path, crop=8, side=8)
    with Image.open(tmp_path / "img_align_celeba/000001.jpg") as photograph:
        centre = np.asarray(photograph.crop((85, 105, 93, 113))).transpose(2, 0, 1)
    assert torch.equal((data.train_inputs[0] * 255).round(), torch.from_numpy(centre.copy()).float())


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("identity_CelebA.txt", "000001.jpg 1\n", "has other photographs than list_attr_celeba.txt"),
        ("identity_CelebA.txt", "000001.jpg x\n", "got the line '000001.jpg x'"),
        ("identity_CelebA.txt", "../1.jpg 1\n", r"got the line '\.\./1\.jpg 1'"),
        ("list_attr_celeba.txt", "", "has other photographs|no table of attributes"),
        ("list_attr_celeba.txt", "1\nBald\n000001.jpg 1 1\n", "expected a new file name and 1 whole numbers"),
        ("list_attr_celeba.txt", "1\nBald\n000001.jpg \u0661\n", "expected a new file name and 1 whole numbers"),
        ("list_eval_partition.txt", "\n", "got the line ''"),
    ],
)
def test_celeba_names_a_wrong_table(tmp_path, name, text, words):
    set_form = form(CelebA, lambda place: made_sets.celeba(place, 3, 1, **{name: text}), tmp_path)
    with pytest.raises(InputError, match=words):
        set_form(tmp_path)
    assert not set_form.check(tmp_path)[-1].ok


def test_celeba_wrong_labels_and_missing_photographs(tmp_path):
    set_form = form(CelebA, lambda place: made_sets.celeba(place, 3, 1), tmp_path, labels="Smilling")
    with pytest.raises(InputError, match="labels: unknown attribute 'Smilling'; did you mean 'Smiling'"):
        set_form(tmp_path)
    assert all(c.ok for c in set_form.check(tmp_path))
    (tmp_path / "img_align_celeba/000001.jpg").unlink()
    assert [c.ok for c in set_form.check(tmp_path)] == [True, True, True, False]
    with pytest.raises(InputError, match=r"000001\.jpg: cannot be read"):
        set_form(tmp_path)


def test_people_in_both_splits_are_divided_into_victims_and_public_examples():
    train, test = torch.tensor([5, 5, 7, 9]), torch.tensor([7, 9, 5, 11])
    victims, public = people_apart(train, test)
    assert train[victims].tolist() == [5, 5, 9] and test[public].tolist() == [7, 11]
    victims, public = people_apart(train, torch.tensor([1, 2]))
    assert victims.tolist() == [0, 1, 2, 3] and public is None


# From the catalog's recipes, with the checksums and numbers of the small sets


@pytest.mark.parametrize("name", MADE)
def test_the_catalogs_recipe_reads_a_small_set(tmp_path, name):
    recipe = small_recipe(name, tmp_path)
    got, _, data = load_dataset(recipe, tmp_path, offline=True)
    assert got == data.name == name and data.kind == "image" and data.sentences == ((), ())
    assert not any(row["ok"] is False for row in commands.verify_dataset(recipe, tmp_path))
    again = load_dataset(recipe, tmp_path, offline=True)[2]
    assert torch.equal(again.train_inputs, data.train_inputs) and again.content == data.content


@pytest.mark.parametrize(
    ("name", "page"), [("celeba", "https://mmlab.ie.cuhk.edu.hk"), ("femnist", "https://github.com")]
)
def test_a_set_that_is_not_downloaded_names_the_page_of_its_files(tmp_path, name, page):
    with pytest.raises(AbsentError, match=rf"dataset '{name}': not in .*mirrors is empty.*; get its files from {page}"):
        load_dataset(name)
    rows = {row["name"]: row for row in commands.list_datasets(tmp_path)}
    assert (rows[name]["state"], rows[name]["megabytes"]) == ("absent", 0)


def test_labels_that_do_not_exclude_each_other_are_the_targets_of_networks(tmp_path, monkeypatch, capsys):
    recipe = small_recipe("celeba", tmp_path)
    text = (tmp_path / "celeba.yaml").read_text()
    (tmp_path / "celeba.yaml").write_text(text.replace("celeba:\n", "celeba:\n    labels: attributes\n", 1))
    monkeypatch.chdir(tmp_path)
    words = ("run", "--dataset", recipe, "--data-dir", str(tmp_path), "--train-rounds", "0")
    few = ("--attack", "identification", "--victims", "2", "--candidates", "2", "--taps", "type-2", "--clients", "3")
    code, _, err = called(monkeypatch, capsys, *words, *few, "--out", "found")
    assert code == 0, err
    assert json.loads((tmp_path / "found" / "manifest.json").read_text())["settings"]["loss"] == "targets"
    read = load_dataset(recipe, tmp_path)[2]
    assert read.targets is not None
    assert read.targets.train.shape == (len(read.train_inputs), 3)
    assert read.class_names == ("example",)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MADE, "folder"])
def test_a_run_from_end_to_end(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    if name == "folder":
        made_sets.tiny_imagenet(tmp_path / "set", 2, 20, 2)
        dataset = "folder:set/pictures"
        for each in (tmp_path / "set" / "train").iterdir():
            (each / "images").rename(tmp_path / "set" / each.name)
        (tmp_path / "set" / "pictures").mkdir()
        for each in ("n00000000", "n00000001"):
            (tmp_path / "set" / each).rename(tmp_path / "set" / "pictures" / each)
    else:
        dataset = small_recipe(name, tmp_path)
    words = ["--dataset", dataset, "--data-dir", str(tmp_path), "--attack", "cpl", "--iterations", "2", "--quiet"]
    words += ["--victims", "2", "--candidates", "4", "--taps", "type-2,type-1", "--train-rounds", "1", "--clients", "3"]
    code, out, err = called(monkeypatch, capsys, "run", *words, "--local-iterations", "1")
    assert code == 0 and "type-1" in out, err
    [rows] = (tmp_path / "runs").glob("*/rows.parquet")
    assert rows.parent.name.startswith(("pictures" if name == "folder" else name) + "-none-cpl-")


def test_no_download_is_tried_for_sets_that_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(find, "fetch_origin", None)  # A download would call it.
    assert len(load_dataset(small_recipe("femnist", tmp_path), tmp_path)[2].train_targets) > 0
