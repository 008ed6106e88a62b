"""From a name to a folder: where sets are searched, the message if none is found, folders that are never written to."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from leakbench.core.errors import AbsentError, InputError
from leakbench.data import commands, find
from leakbench.data.cache import user_cache
from leakbench.data.fetch import fetch_origin
from leakbench.data.find import load_dataset
from tests.data.test_data_formats import ROLES, tiny_faces, tiny_idx


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path) -> None:
    """Allow only data folders that a test makes, a fresh cache, and no network."""
    monkeypatch.delenv("LEAKBENCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(find, "fetch_origin", no_network)


def no_network(*_: object) -> Path:
    raise InputError("no network in this test")


def own_recipe(folder: Path, form: dict, layout: str = "tiny/raw", marker: str = "*.gz") -> str:
    """Write a user's recipe; return its path."""
    recipe = {
        "title": "tiny",
        "cite": "this test",
        "license": "none",
        "format": form,
        "federation": {"clients": 2, "clients_per_round": 1, "rounds": 1, "batch": 1, "examples_per_client": 2},
        "origin": {"layouts": [layout], "marker": marker, "megabytes": 1.0, "mirrors": ["https://invalid.invalid/"]},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return str(path)


@pytest.fixture
def tiny(tmp_path) -> str:
    """Write a user's idx set below `data`; return the path of its recipe."""
    raw = tmp_path / "data/tiny/raw"
    raw.mkdir(parents=True)
    form = tiny_idx(raw)
    files = {role: {"file": getattr(form, role).file, "sha256": getattr(form, role).sha256} for role in ROLES}
    return own_recipe(tmp_path, {"idx": {**files, "class_names": ["a", "b"]}})


@pytest.mark.parametrize("given", ["data", "data/tiny", "data/tiny/raw"])
def test_a_data_folder_or_the_sets_own_folder(tmp_path, tiny, given):
    name, recipe, data = load_dataset(tiny, tmp_path / given, offline=True)
    assert (name, data.name, recipe.title, len(data.train_targets)) == ("tiny", "tiny", "tiny", 6)


def test_the_order_of_searched_folders(tmp_path, tiny, monkeypatch):
    places = [tmp_path / "given", tmp_path / "environment", tmp_path / "cache/leakbench/data"]
    for place in places:
        shutil.copytree(tmp_path / "data", place)
    monkeypatch.setenv("LEAKBENCH_DATA", str(places[1]))
    for place in places:
        folder = find.find_folder(find.resolve("datasets", find.DatasetRecipe, tiny)[1].origin, places[0])
        assert folder == place / "tiny/raw"
        load_dataset(tiny, places[0], offline=True)
        shutil.rmtree(place / "tiny")


def test_missing_data_offline_are_reported_with_places_and_alternatives(tmp_path, monkeypatch):
    (tmp_path / "given").mkdir()
    (tmp_path / "environment").mkdir()
    monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path / "environment"))
    with pytest.raises(InputError) as caught:
        load_dataset("cifar10", tmp_path / "given", offline=True)
    line = str(caught.value)
    assert "\n" not in line and line.startswith("dataset 'cifar10': not in ")
    for part in (
        *(str(tmp_path / "given"), str(tmp_path / "environment"), str(tmp_path / "cache/leakbench/data"), "offline"),
        *("leakbench data fetch cifar10", "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"),
        "cancer, digits, faces",
    ):
        assert part in line


def test_a_failed_fetch_reports_the_same_and_the_reason():
    with pytest.raises(
        InputError, match=r"^dataset 'mnist': not in .*; no network in this test; name the folder .* LEAKBENCH_DATA"
    ):
        load_dataset("mnist")


def test_a_user_recipe_without_mirrors_reports_the_searched_folders(tmp_path, tiny, monkeypatch):
    """A download is not suggested, since the recipe has no address."""
    monkeypatch.setattr(find, "fetch_origin", fetch_origin)
    fields = yaml.safe_load(Path(tiny).read_text())
    fields["origin"]["mirrors"] = []
    Path(tiny).write_text(yaml.safe_dump(fields))
    (tmp_path / "empty").mkdir()
    with pytest.raises(AbsentError) as found:
        load_dataset(tiny, tmp_path / "empty")
    text = str(found.value)
    assert "the recipe has no address for it (mirrors is empty)" in text and "data fetch" not in text
    assert "name the folder that holds it with --data-dir" in text


def test_a_user_recipe_is_named_by_its_path(tmp_path, tiny):
    (tmp_path / "empty").mkdir()
    with pytest.raises(AbsentError, match=f"^dataset '{tiny}': .*`leakbench data fetch {tiny}`"):
        load_dataset(tiny, tmp_path / "empty", offline=True)
    with pytest.raises(InputError, match=f"`leakbench data fetch {tiny}`"):
        commands.verify_dataset(tiny, tmp_path / "empty")


def test_fetched_files_go_to_the_users_cache(tmp_path, tiny, monkeypatch):
    def fetch(form, origin, root, progress):
        progress("a", 1, 2)
        return Path(shutil.copytree(tmp_path / "data", root)) / "tiny/raw"

    monkeypatch.setattr(find, "fetch_origin", fetch)
    seen = []
    load_dataset(tiny, progress=lambda *report: seen.append(report))
    assert (tmp_path / "cache/leakbench/data/tiny/raw").is_dir() and seen == [("a", 1, 2)]


def test_without_a_home_embedded_sets_and_given_folders_work_and_the_rest_is_one_line(tmp_path, tiny, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", no_home)
    assert user_cache() is None
    assert load_dataset("digits")[2].classes == 10
    assert load_dataset(tiny, tmp_path / "data")[2].classes == 2
    with pytest.raises(InputError, match=r"'lfw': not in any folder .*; no home folder to fetch it into \(set XDG"):
        load_dataset("lfw")
    with pytest.raises(InputError, match="no home folder to fetch into; give --data-dir"):
        commands.fetch_dataset("lfw")


def no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_relative_cache_home_is_ignored_as_the_convention_says(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() in (tmp_path / ".cache/leakbench", tmp_path / "Library/Caches/leakbench")


@pytest.mark.parametrize("told", ["--data-dir", "$LEAKBENCH_DATA"])
def test_a_missing_data_folder_is_named(tmp_path, monkeypatch, told):
    given = tmp_path / "none" if told == "--data-dir" else None
    monkeypatch.setenv("LEAKBENCH_DATA", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"^.{9,15}: no folder .*none") as caught:
        load_dataset("mnist", given)
    assert str(caught.value).startswith(told)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, tiny, monkeypatch):
    def refused(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(InputError, match=r"tiny/raw: cannot be read: Permission denied"):
        load_dataset(tiny, tmp_path / "data", offline=True)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every folder")
def test_a_folder_without_permission_is_named(tmp_path, tiny):
    raw = tmp_path / "data/tiny/raw"
    raw.chmod(0)
    try:
        with pytest.raises(InputError, match="cannot be read"):
            load_dataset(tiny, tmp_path / "data", offline=True)
    finally:
        raw.chmod(0o755)


def test_one_missing_file_is_an_error_and_no_other_folder_is_searched(tmp_path, tiny):
    shutil.copytree(tmp_path / "data", tmp_path / "cache/leakbench/data")
    (tmp_path / "data/tiny/raw/train_labels.gz").unlink()
    with pytest.raises(InputError, match=r"data/tiny/raw/train_labels\.gz: missing"):
        load_dataset(tiny, tmp_path / "data", offline=True)


def test_the_data_folder_is_never_written_to_and_decoded_faces_are_kept(tmp_path):
    photographs = tmp_path / "data/lfw/faces"
    photographs.mkdir(parents=True)
    accepted = tiny_faces(photographs).accepted
    recipe = own_recipe(tmp_path, {"face_folders": {"accepted": accepted, "minimum": 4}}, "lfw/faces", "*/*_0001.jpg")
    before = sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "data").rglob("*"))
    first, second = (load_dataset(recipe, tmp_path / "data", offline=True)[2] for _ in range(2))
    assert before == sorted((p, p.stat().st_mtime_ns) for p in (tmp_path / "data").rglob("*"))
    assert (first.train_inputs == second.train_inputs).all()
    assert len(list((tmp_path / "cache/leakbench/decoded").iterdir())) == 1


def test_an_unwritable_cache_is_reported_and_not_fatal(tmp_path, monkeypatch):
    photographs = tmp_path / "faces"
    photographs.mkdir()
    accepted = tiny_faces(photographs).accepted
    recipe = own_recipe(tmp_path, {"face_folders": {"accepted": accepted, "minimum": 4}}, "faces", "*/*_0001.jpg")
    (tmp_path / "cache").write_text("a file")
    told = []
    assert load_dataset(recipe, tmp_path, offline=True, warn=told.append)[2].classes == 3
    assert len(told) == 1 and "cannot be kept" in told[0]


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="unknown name 'mnits'; did you mean 'mnist'"):
        load_dataset("mnits")
    with pytest.raises(InputError, match=r"no file 'none\.yaml'"):
        load_dataset("none.yaml")


def test_list_shows_the_state_of_each_set(tmp_path):
    (tmp_path / "adult").mkdir()
    (tmp_path / "adult/adult.data").write_text("")
    rows = {row["name"]: row for row in commands.list_datasets(tmp_path)}
    assert len(rows) == 13
    assert rows["faces"]["state"] == "embedded" and rows["faces"]["megabytes"] == 0
    assert rows["adult"]["state"] == f"found at {tmp_path / 'adult'}"
    assert rows["cifar10"]["state"] == "absent" and rows["cifar10"]["megabytes"] == 170.5


def test_verify_reports_each_file(tmp_path, tiny):
    rows = commands.verify_dataset(tiny, tmp_path / "data")
    assert [row["ok"] for row in rows] == [True] * 4 and rows[0]["expected"] == rows[0]["got"]
    (tmp_path / "data/tiny/raw/test_images.gz").write_bytes(b"damaged")
    (tmp_path / "data/tiny/raw/test_labels.gz").unlink()
    rows = commands.verify_dataset(tiny, tmp_path / "data")
    assert [row["ok"] for row in rows] == [True, True, False, False] and rows[3]["got"] == ""
    assert [row["ok"] for row in commands.verify_dataset("digits")] == [True]
    with pytest.raises(InputError, match="'mnist': not found; fetch it"):
        commands.verify_dataset("mnist")


def test_fetch_keeps_right_files_and_downloads_the_others(tmp_path, tiny, monkeypatch):
    monkeypatch.setattr(commands, "fetch_origin", lambda form, origin, root, progress: root / "fetched")
    assert commands.fetch_dataset("faces") is None
    assert commands.fetch_dataset(tiny, tmp_path / "data") == tmp_path / "data/tiny/raw"
    assert commands.fetch_dataset(tiny) == tmp_path / "cache/leakbench/data/fetched"
    assert commands.fetch_dataset(tiny, tmp_path / "new") == tmp_path / "new/fetched"
    (tmp_path / "data/tiny/raw/test_labels.gz").write_bytes(b"damaged")
    assert commands.fetch_dataset(tiny, tmp_path / "data") == tmp_path / "data/fetched"
    with pytest.raises(InputError, match="cannot be made"):
        commands.fetch_dataset(tiny, tmp_path / "tiny.yaml")
