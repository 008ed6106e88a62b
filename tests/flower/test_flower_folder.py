"""The folder `--out` of `leakbench flower`: files of an earlier run are replaced, all others are kept and refused."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

import leakbench.flower.leaks
from leakbench.core.errors import InputError
from leakbench.core.leakage_points import OWN as TAPS
from leakbench.flower.leaks import Leak, leak_files, leaked_rounds, read_leaks, write_leak

ONE = {"weight": np.ones(3, np.float32)}


def everything(folder):
    return {str(path.relative_to(folder)): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def cleared(folder):
    """Remove the files of a run, as the next run does."""
    for path in leak_files(folder):
        path.unlink()


@pytest.fixture
def leaks(tmp_path):
    """Return the files of a run, including those of a killed one."""
    folder = tmp_path / "leaks"
    for tap in TAPS:
        write_leak(folder, Leak(tap, 1, 2**63, 0, ONE, ONE))
    save_file({"type-1.round1.inputs": np.ones(2), "type-1.round1.labels": np.ones(2)}, folder / "rebuilt.safetensors")
    (folder / "type-1" / ".part-a8_c2x1z").write_bytes(b"half")
    return folder


def test_files_of_an_earlier_run_are_removed(leaks):
    cleared(leaks)
    assert not any(path.is_file() for path in leaks.rglob("*"))
    assert all(read_leaks(leaks, tap) == [] for tap in TAPS)


def test_only_the_requested_round_is_read_and_sent_arrays_once(tmp_path, monkeypatch):
    for number in (1, 2, 12):
        for node in (1, 2):
            write_leak(tmp_path, Leak("type-1", number, node, node, ONE, ONE))
    opened, whole = [], leakbench.flower.leaks._opened
    monkeypatch.setattr(leakbench.flower.leaks, "_opened", lambda path: opened.append(path) or whole(path))
    assert [(leak.round, leak.node) for leak in read_leaks(str(tmp_path), "type-1", 2)] == [(2, 1), (2, 2)]
    assert sorted(path.parent.name for path in opened) == ["sent", "type-1", "type-1"]
    assert leaked_rounds(tmp_path) == [1, 2, 12] and len(opened) == 3
    with pytest.raises(InputError, match="none: no such folder of leaks"):
        read_leaks(tmp_path / "none", "type-1")


def test_a_missing_or_empty_folder_is_accepted(tmp_path):
    cleared(tmp_path / "none")
    cleared(tmp_path)
    assert not (tmp_path / "none").exists()


def test_empty_reconstructions_belong_to_a_run(leaks):
    save_file({}, leaks / "rebuilt.safetensors")
    cleared(leaks)
    assert not (leaks / "rebuilt.safetensors").exists()


@pytest.mark.parametrize(
    "name",
    [
        "letters.txt",
        "sent/letter.txt",
        "sent/0123456789abcdef.safetensors",
        "sent/old/letter.txt",
        "type-0/notes.md",
        "type-2/round00001-node2.safetensors",
        "rebuilt.safetensors",
        ".hidden",
    ],
)
def test_other_files_are_refused_and_nothing_is_removed(leaks, name):
    (leaks / name).parent.mkdir(exist_ok=True)
    (leaks / name).write_bytes(b"mine")
    before = everything(leaks)
    with pytest.raises(InputError, match=r"out: .* is not of `leakbench flower`.*give another --out"):
        cleared(leaks)
    assert everything(leaks) == before


def test_arrays_of_other_programs_are_refused_under_any_name(leaks):
    for name in ("rebuilt.safetensors", "type-2/round00001-node2.safetensors"):
        before = (leaks / name).read_bytes() if (leaks / name).exists() else None
        save_file(ONE, leaks / name)
        with pytest.raises(InputError, match=name):
            cleared(leaks)
        (leaks / name).unlink() if before is None else (leaks / name).write_bytes(before)
    cleared(leaks)


def test_a_link_is_not_followed(leaks, tmp_path):
    shutil.move(leaks / "sent", tmp_path / "elsewhere")
    (leaks / "sent").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="sent"):
        cleared(leaks)
    assert len(list((tmp_path / "elsewhere").iterdir())) == 1


def test_a_file_instead_of_the_folder_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(InputError, match="is a file, expected a folder"):
        leak_files(tmp_path / "file")


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({}, "its header has round 'missing', node-id 'missing'"),
        ({"round": "x", "node-id": "1"}, "its header has round 'x', node-id '1'"),
        ({"round": "1", "node-id": "1", "partition-id": "9" * 5000}, "partition-id '999"),
        (None, "cannot be read as safetensors"),
    ],
)
def test_an_unknown_leak_is_refused_by_name(leaks, header, says):
    path = leaks / "type-1" / "round00001-node9.safetensors"
    path.write_bytes(b"no safetensors") if header is None else save_file(ONE, path, header)
    with pytest.raises(InputError, match=f"{path.name}: .*{says}"):
        read_leaks(leaks, "type-1")
