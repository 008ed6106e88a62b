"""Files that contain private data: with --no-pictures no file contains an example or a reconstruction; pages may be redacted."""

from __future__ import annotations

import base64
import io
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from command_line import called
from PIL import Image
from safetensors.numpy import load_file

from leakbench.data.find import load_dataset

pytestmark = pytest.mark.usefixtures("with_pages")

SMALL = "--quiet --attack cpl --iterations 1 --train-rounds 0"


@pytest.fixture(scope="module", params=["digits", "cancer"])
def folders(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Path]]:
    """Yield (data set, the folder of a run with pictures, one without)."""
    place = tmp_path_factory.mktemp("private")
    with pytest.MonkeyPatch.context() as patch:
        for name, more in (("with", ()), ("without", ("--no-pictures",))):
            words = (
                f"run --dataset {request.param} {SMALL} --taps type-1 --leak-batch 2 --victims 3 --candidates 5".split()
            )
            code, _, err = called(patch, Captured(), *words, "--out", str(place / name), *more)  # type: ignore[arg-type]
            assert code == 0, err
    yield request.param, place / "with", place / "without"


class Captured:
    """Replaces capsys, which a module's fixture cannot use."""

    def readouterr(self) -> tuple[str, str]:
        return "", ""


READ = (".safetensors", ".parquet", ".html", ".json", ".npy")


def vectors(path: Path) -> Iterator[np.ndarray]:
    """Yield every sequence of numbers in a file: arrays, columns, pictures in pages, and its bytes as floats and pixels."""
    assert path.suffix in READ or path.name == ".lock", f"{path.name}: a kind of file that this test cannot read"
    content = path.read_bytes()
    if path.suffix == ".json":
        yield np.array([float(number) for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", content.decode())])
    for dtype in ("<f4", "<f8", "u1"):
        for start in range(np.dtype(dtype).itemsize):
            whole = max(0, len(content) - start) // np.dtype(dtype).itemsize
            if not whole:
                continue
            yield np.frombuffer(content, dtype, whole, start).astype(float) / (255 if dtype == "u1" else 1)
    if path.suffix == ".safetensors":
        for array in load_file(path).values():
            yield array.astype(float).ravel()
    if path.suffix == ".parquet":
        yield from pq.read_table(path).to_pandas().select_dtypes("number").to_numpy(float).T
    if path.suffix == ".html":
        for text in re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", content.decode()):
            yield (
                np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")).astype(float)[:, :, 0].ravel()
                / 255
            )


def holds(folder: Path, example: np.ndarray) -> list[str]:
    """Return the files that contain a part of an example: eight numbers that are not all equal."""
    flat = example.ravel().astype(float)
    pieces = [flat[at : at + 8] for at in range(0, len(flat) - 7, 4)]
    piece = max(pieces, key=lambda p: len(set(p.round(3).tolist())))
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with np.errstate(invalid="ignore"):  # Bytes read as floats can have any value.
            if any(_stands(piece, numbers) for numbers in vectors(path)):
                found.append(path.name)
    return found


def _stands(piece: np.ndarray, numbers: np.ndarray) -> bool:
    """Say whether the piece is among the numbers, to three digits."""
    at = np.arange(max(0, len(numbers) - len(piece) + 1))
    for place, value in enumerate(piece):
        at = at[np.abs(numbers[at + place] - value) < 0.003]
    return len(at) > 0


@pytest.mark.slow
def test_no_pixel_of_truth_or_reconstruction_is_in_any_file(folders: tuple[str, Path, Path]) -> None:
    _, kept, without = folders
    arrays = load_file(kept / "reconstructions.safetensors")
    searched = 0
    for name, array in arrays.items():
        if name.endswith((".truth", ".reconstruction")):
            for example in array.reshape(-1, *array.shape[2:])[:2]:
                if len(set(example.ravel().round(3).tolist())) > 4:
                    # Otherwise the search would find nothing in any file.
                    assert "reconstructions.safetensors" in holds(kept, example)
                    assert holds(without, example) == []
                    searched += 1
    assert searched >= 2
    assert all(name.endswith(".trajectory") for name in load_file(without / "reconstructions.safetensors"))


@pytest.mark.slow
def test_the_scores_are_the_same(folders: tuple[str, Path, Path]) -> None:
    one, other = (pd.read_parquet(folder / "rows.parquet") for folder in folders[1:])
    clock = [name for name in one if name.endswith("seconds")]
    pd.testing.assert_frame_equal(one.drop(columns=clock), other.drop(columns=clock))


def test_the_page_reports_that_no_pictures_were_kept(folders: tuple[str, Path, Path]) -> None:
    page = (folders[2] / "report.html").read_text(encoding="utf-8")
    assert "No reconstruction was kept." in page and "data:image/png" not in page


@pytest.mark.slow
def test_a_page_is_redacted(
    folders: tuple[str, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, kept, without = folders
    page = kept / "report.html"
    before = page.read_text(encoding="utf-8")
    assert "data:image/png" in before
    assert called(monkeypatch, capsys, "report", str(kept), "--redact")[0] == 0
    redacted = page.read_text(encoding="utf-8")
    assert "data:image/png" not in redacted and "No reconstruction was kept." in redacted
    assert called(monkeypatch, capsys, "report", str(kept))[0] == 0
    assert page.read_text(encoding="utf-8") == before
    beside = tmp_path / "beside.html"
    assert called(monkeypatch, capsys, "report", str(kept), str(without), "--redact", "--out", str(beside))[0] == 0
    assert "data:image/png" not in beside.read_text(encoding="utf-8")


@pytest.mark.slow
def test_an_interrupted_run_without_pictures_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Its chunks record their number of victims, and contain no picture either."""
    from leakbench.experiment import stage_attack  # noqa: PLC0415

    words = f"run --dataset digits {SMALL} --taps type-1 --leak-batch 2 --victims 4 --candidates 5 --no-pictures --json".split()
    monkeypatch.setattr(stage_attack, "lanes_within", lambda budget, each, most=None: 3)
    real, calls = stage_attack._attack_chunk, []

    def cut(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(stage_attack, "_attack_chunk", cut)
    assert called(monkeypatch, capsys, *words, "--out", str(tmp_path / "cut"))[0] == 130
    [piece] = (tmp_path / "cut" / "parts").glob("type-1*.safetensors")
    assert set(load_file(piece)) == {"trajectory"}
    monkeypatch.setattr(stage_attack, "_attack_chunk", real)
    assert called(monkeypatch, capsys, *words, "--out", str(tmp_path / "cut"))[0] == 0
    assert called(monkeypatch, capsys, *words, "--out", str(tmp_path / "whole"))[0] == 0
    one, other = (pd.read_parquet(tmp_path / name / "rows.parquet") for name in ("cut", "whole"))
    assert len(one) == 4 * 2 and one["rmse"].equals(other["rmse"])


def test_a_run_with_pictures_has_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request for scores alone is not answered with a folder that contains pictures."""
    asked = "run --quiet --dataset digits --attack lmmse --taps type-2 --train-rounds 0 --victims 2 --candidates 5"
    words = [*asked.split(), "--out", str(tmp_path / "run")]
    assert called(monkeypatch, capsys, *words)[0] == 0
    code, _, err = called(monkeypatch, capsys, *words, "--no-pictures")
    assert code == 2 and "contains another cell" in err


def test_only_the_owner_may_read_a_run(folders: tuple[str, Path, Path]) -> None:
    for folder in folders[1:]:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in folder.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_the_search_would_find_a_copy(tmp_path: Path) -> None:
    example = load_dataset("digits")[2].train_inputs[3].numpy()
    np.save(tmp_path / "copy.npy", example)
    assert holds(tmp_path, example) == ["copy.npy"]
