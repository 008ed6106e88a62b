"""Formats on tiny sets made here: closed forms, and every way in which files can be wrong."""

import gzip
import hashlib
import io
import pickle
import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from leakbench.core.errors import InputError
from leakbench.data.cache import Cache
from leakbench.data.checks import File
from leakbench.data.cifar import CifarPython
from leakbench.data.pictures import FaceFolders, Idx
from leakbench.data.split import apportion, split
from leakbench.data.tables import AdultCsv

ROLES = ("train_images", "train_labels", "test_images", "test_labels")


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pack(array: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


def tiny_idx(folder, **changed: bytes) -> Idx:
    """Write four idx files (with `changed` bytes for some) with right checksums; return their format."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, high, shape, np.uint8) for shape, high in (((6, 4, 4), 256), ((6,), 2)) * 2]
    contents = {role: changed.get(role, pack(a)) for role, a in zip(ROLES, arrays, strict=True)}
    for role, content in contents.items():
        (folder / f"{role}.gz").write_bytes(content)
    files = {role: File(file=f"{role}.gz", sha256=sha(content)) for role, content in contents.items()}
    return Idx(**files, class_names=("a", "b"))


def test_idx_pixels_are_in_place(tmp_path):
    pixels = np.arange(32, dtype=np.uint8).reshape(2, 4, 4) * 8
    form = tiny_idx(tmp_path, train_images=pack(pixels), train_labels=pack(np.array([1, 0], np.uint8)))
    data = form(tmp_path)
    assert data.shape == (1, 4, 4) and data.classes == 2 and data.victims.tolist() == [0, 1]
    assert torch.equal(data.train_inputs * 255, torch.from_numpy(pixels).unsqueeze(1).float())
    assert data.train_targets.tolist() == [1, 0] and data.train_targets.dtype == torch.int64
    assert all(c.ok for c in form.check(tmp_path))
    assert form(tmp_path).content == data.content


def test_a_changed_or_truncated_file_is_named(tmp_path):
    form = tiny_idx(tmp_path)
    whole = (tmp_path / "train_images.gz").read_bytes()
    (tmp_path / "train_images.gz").write_bytes(whole[:-9])
    with pytest.raises(InputError, match=r"train_images\.gz: .* expected .* cut short or changed"):
        form(tmp_path)
    assert [c.ok for c in form.check(tmp_path)] == [False, True, True, True]


def test_a_missing_file_among_several_is_named(tmp_path):
    form = tiny_idx(tmp_path)
    (tmp_path / "test_labels.gz").unlink()
    with pytest.raises(InputError, match=r"test_labels\.gz: missing; fetch it again"):
        form(tmp_path)
    assert form.check(tmp_path)[3].got == ""


def test_a_folder_with_the_name_of_a_file_cannot_be_read(tmp_path):
    form = tiny_idx(tmp_path)
    (tmp_path / "test_labels.gz").unlink()
    (tmp_path / "test_labels.gz").mkdir()
    with pytest.raises(InputError, match=r"test_labels\.gz: cannot be read"):
        form(tmp_path)
    assert "cannot be read" in form.check(tmp_path)[3].got


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (pack(np.zeros((6, 4, 4), np.uint8))[:-9], "not a whole gzip file"),
        (b"no gzip at all", "not a whole gzip file"),
        (pack(np.zeros((6, 4), np.uint8)), "not an idx file of 3 dimensions"),
        (gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 6, 4, 4) + b"short", mtime=0), "not an idx file"),
        (gzip.compress(b"\0\0", mtime=0), "not an idx file"),
    ],
)
def test_a_right_checksum_of_a_wrong_file_is_one_clear_line(tmp_path, content, why):
    with pytest.raises(InputError, match=rf"train_images\.gz: {why}") as caught:
        tiny_idx(tmp_path, train_images=content)(tmp_path)
    assert "\n" not in str(caught.value)


class Bomb:
    """Raises AssertionError if an unpickler executes it."""

    def __reduce__(self):
        return exec, ("raise AssertionError('a pickle was run')",)


def tiny_cifar(folder, names: bytes) -> CifarPython:
    """Write a file of class names, which is read first, and no batches, which are tested with the real files."""
    (folder / "batches.meta").write_bytes(names)
    batch = File(file="data_batch_1", sha256="0" * 64)
    return CifarPython(train=(batch,), test=batch, names=File(file="batches.meta", sha256=sha(names)))


def test_a_pickle_is_not_executed_even_with_a_right_checksum(tmp_path):
    bomb = pickle.dumps({b"label_names": Bomb()}, protocol=2)
    with pytest.raises(InputError, match=r"batches\.meta: not a CIFAR batch: .*no business with"):
        tiny_cifar(tmp_path, bomb)(tmp_path)


def test_a_pickle_with_a_wrong_checksum_is_not_even_parsed(tmp_path, monkeypatch):
    form = tiny_cifar(tmp_path, pickle.dumps({b"label_names": [b"cat"]}, protocol=2))
    (tmp_path / "batches.meta").write_bytes(pickle.dumps(Bomb(), protocol=2))
    monkeypatch.setattr("leakbench.data.cifar._Unpickler", None)
    with pytest.raises(InputError, match=r"batches\.meta: .* with sha256"):
        form(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q", b"not a pickle"])
def test_a_broken_pickle_is_one_clear_line(tmp_path, content):
    with pytest.raises(InputError, match=r"batches\.meta: not a CIFAR batch"):
        tiny_cifar(tmp_path, content)(tmp_path)


def jpeg(level: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (250, 250), (level, 128, 0)).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def tiny_faces(folder, **fields) -> FaceFolders:
    """Write 4 people with 8, 4, 4 and 1 grey-level photographs; accept those of people with at least 4."""
    lines = []
    for person, count in (("Zoe_Z", 8), ("Ann_A", 4), ("Bob_B", 4), ("Rare_R", 1)):
        (folder / person).mkdir()
        for i in range(1, count + 1):
            content = jpeg(len(person) * i * 3)
            (folder / person / f"{person}_{i:04}.jpg").write_bytes(content)
            if count > 1:
                lines.append(f"{sha(content)}  {person}/{person}_{i:04}.jpg\n")
    listing = "".join(sorted(lines, key=lambda line: line.split()[1]))
    return FaceFolders(accepted={"tiny": sha(listing.encode())}, minimum=4, **fields)


def test_faces_of_people_with_enough_photographs(tmp_path):
    data = tiny_faces(tmp_path)(tmp_path)
    assert data.class_names == ("Ann_A", "Bob_B", "Zoe_Z") and data.shape == (3, 32, 32)
    assert (len(data.train_targets), len(data.test_targets)) == (12, 4)
    assert torch.bincount(data.test_targets).tolist() == [1, 1, 2]
    assert data.train_inputs.is_contiguous()
    level = data.train_inputs[data.train_targets == 2][:, 0].mean((1, 2)) * 255
    assert set(level.round().int().tolist()) <= {5 * i * 3 + d for i in range(1, 9) for d in (-1, 0, 1)}


def test_victims_and_public_pictures_show_different_people(tmp_path):
    """Ann, Bob and Zoe: the first and the third may be victims; only Bob's test picture is public."""
    data = tiny_faces(tmp_path)(tmp_path)
    assert sorted(set(data.train_targets[data.victims].tolist())) == [0, 2]
    assert len(data.victims) == int((data.train_targets != 1).sum())
    assert data.public_targets.tolist() == [1]
    assert torch.equal(data.public_inputs, data.test_inputs[data.test_targets == 1])


def test_decoded_faces_are_cached_and_damage_is_repaired(tmp_path):
    photographs, kept = tmp_path / "photographs", tmp_path / "kept"
    photographs.mkdir()
    form, told = tiny_faces(photographs), []
    cache = Cache(kept, told.append)
    first = form(photographs, cache)
    [file] = kept.iterdir()
    again = form(photographs, cache)
    assert torch.equal(first.train_inputs, again.train_inputs)
    for damage in (b"", file.read_bytes()[:-500], b"PK\x03\x04 not a zip"):
        file.write_bytes(damage)
        assert torch.equal(form(photographs, cache).train_inputs, first.train_inputs)
    assert [p.name for p in kept.iterdir()] == [file.name] and told == []


def test_an_unwritable_cache_is_reported_once_and_not_fatal(tmp_path):
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    (tmp_path / "kept").write_text("a file where the folder should be")
    told = []
    data = tiny_faces(photographs)(photographs, Cache(tmp_path / "kept", told.append))
    assert len(data.train_targets) == 12
    assert len(told) == 1 and "cannot be kept" in told[0]


def test_unknown_photographs_are_refused(tmp_path):
    form = tiny_faces(tmp_path)
    (tmp_path / "Ann_A" / "Ann_A_0001.jpg").write_bytes(jpeg(1))
    with pytest.raises(InputError, match=r"the 16 photographs .* accepted: .* \(tiny\)"):
        form(tmp_path)
    assert [c.ok for c in form.check(tmp_path)] == [False]


def test_no_photographs_at_all_are_refused(tmp_path):
    form = FaceFolders(accepted={"tiny": "0" * 64})
    with pytest.raises(InputError, match="the 0 photographs"):
        form(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        form(tmp_path / "nowhere")
    assert not form.check(tmp_path / "nowhere")[0].ok


def test_a_file_that_is_not_a_photograph_is_named(tmp_path):
    album = tmp_path / "Ann_A"
    album.mkdir()
    (album / "Ann_A_0001.jpg").write_bytes(b"no picture")
    listing = f"{sha(b'no picture')}  Ann_A/Ann_A_0001.jpg\n"
    with pytest.raises(InputError, match=r"Ann_A_0001\.jpg: not a readable picture"):
        FaceFolders(accepted={"tiny": sha(listing.encode())}, minimum=1)(tmp_path)


ROW = "{age}, {work}, 77516, Bachelors, 13, Never-married, Sales, Wife, White, Male, 0, 0, 40, Cuba, {income}\n"


def adult(folder, data: str, test: str) -> AdultCsv:
    for name, text in (("adult.data", data), ("adult.test", test)):
        (folder / name).write_text(text)
    return AdultCsv(*(File(file=n, sha256=sha(t.encode())) for n, t in (("adult.data", data), ("adult.test", test))))


def test_unknown_categories_have_no_column_and_labels_lose_their_dot(tmp_path):
    rows = [
        ROW.format(age=20 + i, work=w, income=c) for i, (w, c) in enumerate([("?", "<=50K"), ("Private", ">50K")] * 4)
    ]
    data = "".join(rows) + "\n"
    test = "|1x3 Cross validator\n" + "".join(r.replace("50K\n", "50K.\n") for r in rows)
    form = adult(tmp_path, data, test)
    whole = form(tmp_path)
    # One value for each other category in these rows, and none for "?".
    assert whole.class_names == ("<=50K", ">50K") and whole.shape == (6 + 8,)
    assert len(whole.train_targets) == 12 and len(whole.test_targets) == 4
    [work] = [f for f in whole.features if f.name == "workclass"]
    assert work.values == ("Private",)
    assert torch.equal(whole.train_inputs[:, work.start], whole.train_targets.float())


def test_a_file_that_is_not_a_table_is_named(tmp_path):
    with pytest.raises(InputError, match=r"adult\.data: not a table of 15 columns"):
        adult(tmp_path, "one, two\n", ROW)(tmp_path)


def test_a_format_without_a_folder_names_the_missing_folder(tmp_path):
    with pytest.raises(InputError, match="origin: missing"):
        tiny_idx(tmp_path)(None)


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.floats(0.05, 0.95), st.integers(0, 5))
def test_a_split_is_exact_and_stratified(labels, share, seed):
    targets = torch.tensor(labels)
    train, test = split(targets, share, seed)
    assert sorted(train.tolist() + test.tolist()) == list(range(len(labels)))
    assert len(test) == int(np.ceil(share * len(labels)))
    counts, taken = torch.bincount(targets), torch.bincount(targets[test], minlength=int(targets.max()) + 1)
    exact = counts * len(test) / len(labels)
    assert bool(((taken - exact).abs() < 1 + 1e-6).all())
    assert torch.equal(split(targets, share, seed)[1], test)


def test_apportion_by_largest_remainder():
    assert apportion(np.array([10, 10, 10]), 10).tolist() == [4, 3, 3]
    assert apportion(np.array([53, 24, 23]), 10).tolist() == [5, 3, 2]
