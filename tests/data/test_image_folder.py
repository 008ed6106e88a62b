"""Folders of a user's own pictures: classes, splits, pictures of every kind, and every way in which a folder can be wrong."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from leakbench.core.errors import InputError
from leakbench.core.recipe import check_name, own_recipes, resolve
from leakbench.data import photographs
from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.commands import verify_dataset
from leakbench.data.find import load_dataset
from leakbench.data.image_folder import ImageFolder
from leakbench.data.photographs import squares, unknown_pictures
from leakbench.data.recipe import DatasetRecipe


def write(path, colour=(200, 10, 10), size=(20, 16), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path, **options)
    return path


def album(root, **counts):
    """Write this many pictures of each class, all different."""
    for number, (name, count) in enumerate(counts.items()):
        for i in range(count):
            write(root / name / f"{i}.png", (10 * i, 40 * number, 5))
    return root


def read(root, **fields):
    return ImageFolder(folder=str(root), side=8, **fields)(None)


def test_classes_are_the_sorted_folders_and_a_quarter_is_the_test_split(tmp_path):
    data = read(album(tmp_path, cow=6, ant=2))
    assert data.class_names == ("ant", "cow") and data.shape == (3, 8, 8)
    assert (len(data.train_targets), len(data.test_targets)) == (6, 2)
    assert data.train_targets.bincount().tolist()[0] >= 1
    assert data.victims.tolist() == list(range(6)) and data.groups is None
    red = (data.train_inputs[data.train_targets == 1][:, 0] * 255).round().unique().tolist()
    assert set(red) <= {0, 10, 20, 30, 40, 50}
    data.check("mine")


def test_train_and_val_folders_are_the_splits(tmp_path):
    album(tmp_path / "train", a=2, b=1)
    for i in range(2):
        write(tmp_path / "val" / "b" / f"{i}.png", (i, i, 200))
    data = read(tmp_path)
    assert data.train_targets.tolist() == [0, 0, 1] and data.test_targets.tolist() == [1, 1]
    (tmp_path / "val").rename(tmp_path / "test")
    assert read(tmp_path).test_targets.tolist() == [1, 1]
    album(tmp_path / "test", c=1)
    with pytest.raises(InputError, match=r"test/c: not a class of .*train"):
        read(tmp_path)


def test_a_folder_train_without_folders_is_a_class(tmp_path):
    assert read(album(tmp_path, train=2, plane=3)).class_names == ("plane", "train")


def test_the_only_picture_of_a_class_is_a_training_picture(tmp_path):
    for seed in range(5):
        data = read(album(tmp_path, one=1, many=7), seed=seed)
        assert 1 in data.train_targets.tolist() and data.test_targets.tolist() == [0, 0]
    with pytest.raises(InputError, match="every class has one picture"):
        read(album(tmp_path / "singles", one=1, two=1))


def test_content_follows_pictures_and_settings_and_not_the_place(tmp_path):
    one, other = (read(album(tmp_path / name, a=3, b=3)).content for name in ("x", "y"))
    assert one == other
    assert read(tmp_path / "x", seed=1).content != one
    assert ImageFolder(folder=str(tmp_path / "x"), side=9)(None).content != one
    (tmp_path / "y" / "a" / "0.png").rename(tmp_path / "y" / "b" / "9.png")
    assert read(tmp_path / "y").content != one


def test_the_accepted_content_is_compared(tmp_path):
    album(tmp_path, a=3, b=3)
    [row] = ImageFolder(folder=str(tmp_path)).check(None)
    assert row.ok and row.file == "6 pictures of 2 classes"
    assert len(read(tmp_path, sha256=row.got).train_targets) == 4
    write(tmp_path / "a" / "0.png", (1, 2, 3))
    pinned = ImageFolder(folder=str(tmp_path), sha256=row.got)
    assert not pinned.check(None)[0].ok
    with pytest.raises(InputError, match=r"sha256: .* expected"):
        pinned(None)


def test_hidden_files_other_files_and_links(tmp_path):
    root = album(tmp_path / "root", a=2, b=2)
    write(root / "a" / ".hidden.png")
    write(root / ".cache" / "0.png")
    (root / "a" / "Thumbs.db").write_bytes(b"x")
    (root / "readme.txt").write_text("x")
    (root / "b" / "link.png").symlink_to(write(tmp_path / "elsewhere.png"))
    data = read(root)
    assert data.class_names == ("a", "b") and len(data.train_targets) + len(data.test_targets) == 5
    (root / "b" / "broken.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(InputError, match=r"broken\.png: cannot be read: No such file"):
        read(root)
    (root / "b" / "broken.png").unlink()
    (root / "b" / "endless.png").symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"endless\.png: is not a file or a link to one"):
        read(root)


def test_names_in_any_script_and_bytes(tmp_path):
    album(tmp_path, **{"猫": 2, "dög": 2})
    os.mkdir(os.fsencode(tmp_path) + b"/\xff\xfe")
    write(tmp_path / os.fsdecode(b"\xff\xfe") / "a.png")
    data = read(tmp_path)
    assert data.class_names[:2] == ("dög", "猫") and data.class_names[2].encode()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: root.mkdir(), r"got 0 folders, expected 2 or more"),
        (lambda root: album(root, a=3), r"got 1 folders"),
        (lambda root: (album(root, a=3) / "b").mkdir(), r"/b: got no picture, expected files that end in \.jpg"),
        (lambda root: (album(root, a=3, b=3) / "b" / "0.png").write_bytes(b"no picture"), r"b/0\.png: not a readable"),
        (lambda root: cut(album(root, a=3, b=3) / "b" / "0.png"), r"b/0\.png: not a readable picture"),
        (lambda root: write(album(root, a=3, b=3) / "b" / "x.jpg", format="GIF"), r"b/x\.jpg: not a readable picture"),
    ],
)
def test_a_wrong_folder_is_one_line_that_names_it(tmp_path, make, words):
    make(tmp_path / "root")
    with pytest.raises(InputError, match=words) as caught:
        read(tmp_path / "root")
    assert "\n" not in str(caught.value)


def cut(path):
    path.write_bytes(path.read_bytes()[:-25])


def test_copies_of_training_pictures_are_not_public(tmp_path):
    album(tmp_path / "train", a=2, b=2)
    album(tmp_path / "val", a=3)  # Two of the three are those of the training split.
    assert read(tmp_path).public.tolist() == [2]
    (tmp_path / "val" / "a" / "2.png").unlink()
    with pytest.raises(InputError, match="every test picture is a training picture too"):
        read(tmp_path)
    assert unknown_pictures(np.zeros((1, 3, 2, 2), np.uint8), np.ones((2, 3, 2, 2), np.uint8)) is None


def square(path, side=8, crop=None):
    return squares([path], side, NO_CACHE, "test", crop)[0]


def test_the_largest_centred_square_is_resized(tmp_path):
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, 16:32] = 200
    Image.fromarray(wide).save(tmp_path / "wide.png")
    Image.fromarray(wide.transpose(1, 0, 2)).save(tmp_path / "tall.png")
    for name in ("wide.png", "tall.png"):
        assert (square(tmp_path / name) == 200).all()
    assert (square(tmp_path / "wide.png", crop=8) == 200).all()
    with pytest.raises(InputError, match="the crop has 20 x 20"):
        square(tmp_path / "wide.png", crop=20)


def test_a_small_picture_is_enlarged(tmp_path):
    assert (square(write(tmp_path / "dot.png", (7, 8, 9), (1, 1)))[:, 0, 0] == [7, 8, 9]).all()


@pytest.mark.parametrize(
    ("mode", "colour", "name", "expected"),
    [
        ("L", 90, "a.png", (90, 90, 90)),
        ("L", 90, "a.jpg", (90, 90, 90)),
        ("1", 1, "a.png", (255, 255, 255)),
        ("RGBA", (0, 0, 0, 0), "a.png", (255, 255, 255)),
        ("RGBA", (10, 20, 30, 255), "a.png", (10, 20, 30)),
        ("LA", (0, 51), "a.png", (204, 204, 204)),
        ("P", 0, "a.png", (0, 0, 0)),
        ("CMYK", (0, 0, 0, 255), "a.jpg", (0, 0, 0)),
        ("CMYK", (0, 0, 0, 0), "a.jpg", (255, 255, 255)),
    ],
)
def test_pictures_of_every_mode(tmp_path, mode, colour, name, expected):
    assert np.abs(square(write(tmp_path / name, colour, mode=mode)).astype(int)[:, 4, 4] - expected).max() <= 1


def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path):
    Image.fromarray(np.full((9, 9), 49152, np.uint16)).save(tmp_path / "deep.png")
    assert (square(tmp_path / "deep.png") == 191).all()  # 49152 / 257 = 191.3.


def test_a_transparent_palette_colour_is_white(tmp_path):
    picture = Image.new("P", (8, 8), 1)
    picture.putpalette([0, 0, 0, 9, 9, 9])
    picture.save(tmp_path / "p.png", transparency=1)
    assert (square(tmp_path / "p.png") == 255).all()


@pytest.mark.parametrize("name", ["turned.jpg", "turned.png"])
def test_exif_turns_a_photograph_upright(tmp_path, name):
    raw = np.zeros((16, 16, 3), np.uint8)
    raw[:8] = 250  # Bright above.
    exif = Image.Exif()
    exif[0x0112] = 6  # The camera was turned: rotate by 90 degrees clockwise, so that the right half is bright.
    Image.fromarray(raw).save(tmp_path / name, exif=exif)
    turned = square(tmp_path / name).astype(int)
    assert turned[0, :, 6].min() > 200
    assert turned[0, :, 1].max() < 50


def test_a_huge_picture_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(photographs, "MOST_PIXELS", 100)
    with pytest.raises(InputError, match=r"big\.png: not a readable picture: of 11 x 10 pixels, expected at most 100"):
        square(write(tmp_path / "big.png", size=(11, 10)))


def test_more_pictures_than_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(photographs, "memory_of", lambda device: 10_000)
    album(tmp_path, a=3, b=3)
    with pytest.raises(InputError, match=r"side: 6 pictures of 8 x 8 need about 0\.0 GB of memory"):
        read(tmp_path)
    assert len(read(tmp_path, most_per_class=1 + 1).train_targets) == 3


def test_decoded_pictures_are_cached_by_content_and_side(tmp_path, monkeypatch):
    root, cache = album(tmp_path / "root", a=2, b=2), Cache(tmp_path / "cache")
    form = ImageFolder(folder=str(root), side=8)
    first = form(None, cache)
    monkeypatch.setattr(photographs, "_square", None)
    assert torch.equal(form(None, cache).train_inputs, first.train_inputs)
    with pytest.raises(TypeError):
        ImageFolder(folder=str(root), side=9)(None, cache)


def test_a_folder_is_a_data_set_without_a_recipe(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = album(tmp_path / "my pictures", a=12, b=12)
    name, recipe, data = load_dataset(f"folder:{root}")
    assert (name, data.name, data.shape) == ("my_pictures", "my_pictures", (3, 64, 64))
    f = recipe.federation
    assert (len(data.train_targets), f.examples_per_client, f.batch, f.local_iterations) == (18, 1, 1, 1)
    large = resolve("datasets", DatasetRecipe, f"folder:{album(tmp_path / 'large', a=90, b=90)}")[1].federation
    assert (large.examples_per_client, large.batch, large.local_iterations) == (13, 4, 4)
    [row] = verify_dataset(f"folder:{root}")  # Without an accepted listing, nothing is compared.
    assert (row["expected"], row["ok"], len(row["got"])) == ("", None, 64)
    with pytest.raises(InputError, match=r"dataset: no folder '/none'"):
        check_name("datasets", "folder:/none")
    (tmp_path / "pics.zip").touch()
    with pytest.raises(InputError, match=r"^dataset: '.*pics\.zip' is a file, expected a folder; unpack it"):
        check_name("datasets", f"folder:{tmp_path / 'pics.zip'}")
    with pytest.raises(InputError, match=r"^dataset: got 'folder:' without a path, expected folder:PATH"):
        check_name("datasets", "folder:")
    with pytest.raises(InputError, match="unknown name 'folder:/none'"):
        check_name("attacks", "folder:/none")


def test_paths_in_a_file_begin_next_to_it():
    given = {"dataset": "folder:pictures", "defense": "mine.yaml", "attack": "cpl"}
    assert own_recipes(given, lambda path: f"/grids/{path}") == {
        "dataset": "folder:/grids/pictures",
        "defense": "/grids/mine.yaml",
    }
