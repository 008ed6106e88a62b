"""All readers of untrusted files: each with valid seeds and the only exception that it may raise, InputError."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import pickle
import shutil
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from leakbench.core.errors import InputError

__all__ = ["READERS", "Reader"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Reader:
    """seeds: () -> valid contents.  read: (a file with any content) -> None; raises InputError for invalid content."""

    seeds: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    suffix: str = ""

    def __call__(self, content: bytes, folder: Path) -> None:
        """Read this content; raises every exception except InputError, and AssertionError for an InputError of several lines."""
        path = folder / f"read{self.suffix}"
        path.write_bytes(content)
        try:
            self.read(path)
        except InputError as error:
            if len(str(error).splitlines()) != 1:
                raise AssertionError(f"not one line: {error!r}") from None

    def accepts(self, content: bytes, folder: Path) -> None:
        """Raise InputError if a valid content is refused.

        The reader would then refuse all damaged contents before it reads them.
        """
        path = folder / f"read{self.suffix}"
        path.write_bytes(content)
        self.read(path)


def _files(*patterns: str, most: int = 20) -> Callable[[], list[bytes]]:
    return lambda: [
        path.read_bytes()
        for pattern in patterns
        for path in sorted(ROOT.glob(pattern))[:most]
        if path.stat().st_size < 10**5
    ]


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _recipe(kind: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        from leakbench.attack import Attack  # noqa: PLC0415
        from leakbench.core.recipe import load  # noqa: PLC0415
        from leakbench.data.recipe import DatasetRecipe  # noqa: PLC0415
        from leakbench.defense import Defense  # noqa: PLC0415

        return load({"defenses": Defense, "attacks": Attack, "datasets": DatasetRecipe}[kind], path)

    return read


def _grid(path: Path) -> object:
    from leakbench.study.grid import read_grid  # noqa: PLC0415

    return read_grid(path)


def _table(path: Path) -> object:
    from leakbench.reproduce.published import read_any  # noqa: PLC0415

    return read_any(str(path))


def _baseline(path: Path) -> object:
    from leakbench.gate.baseline import kept_of  # noqa: PLC0415

    return kept_of(path)


def _card(path: Path) -> object:
    from leakbench.leaderboard.read import read_card  # noqa: PLC0415

    return read_card(path)


def _manifest(path: Path) -> object:
    from leakbench.storage.store import read_manifest  # noqa: PLC0415

    folder = path.parent / "run"
    folder.mkdir(exist_ok=True)
    path.replace(folder / "manifest.json")
    return read_manifest(folder)


def _journal(path: Path) -> None:
    from leakbench.study.journal import open_journal  # noqa: PLC0415

    with open_journal(path):
        pass


def _idx(labels: bool) -> Callable[[Path], object]:
    """Return the reader of a file of labels with valid pictures, or of pictures with valid labels."""

    def read(path: Path) -> object:
        from leakbench.data.checks import File  # noqa: PLC0415
        from leakbench.data.pictures import Idx  # noqa: PLC0415

        good = path.parent / "good.gz"
        good.write_bytes(_some_idx()[not labels])
        of, other = (File(file=each.name, sha256=_sha(each)) for each in (path, good))
        files = (other, of, other, of) if labels else (of, other, of, other)
        return Idx(*files, ("a", "b"))(path.parent)

    return read


def _cifar(path: Path) -> object:
    from leakbench.data.checks import File  # noqa: PLC0415
    from leakbench.data.cifar import CifarPython  # noqa: PLC0415

    of = File(file=path.name, sha256=_sha(path))
    return CifarPython((of,), of, of)(path.parent)


def _photograph(path: Path) -> object:
    from leakbench.data.pictures import FaceFolders  # noqa: PLC0415

    return FaceFolders({"mine": "0" * 64}, crop=(0, 8), side=4)._picture(path)


def _adult(path: Path) -> object:
    from leakbench.data.checks import File  # noqa: PLC0415
    from leakbench.data.tables import AdultCsv  # noqa: PLC0415

    of = File(file=path.name, sha256=_sha(path))
    return AdultCsv(of, of)(path.parent)


def _rows(path: Path) -> object:
    from leakbench.study.rows import RowStore, of_table  # noqa: PLC0415

    return RowStore(path, of_table("claims")).read()


def _arrays(path: Path) -> object:
    from leakbench.external.arrays import read_arrays  # noqa: PLC0415

    return read_arrays("update", path)


@dataclass(frozen=True)
class AnyFile:
    """A data format that accepts every archive that unpacks."""

    files: tuple[Any, ...] = ()

    def check(self, folder: Path | None) -> tuple[Any, ...]:
        """Accept everything."""
        return ()


def _archive(path: Path) -> None:
    from leakbench.data.unpack import unpack  # noqa: PLC0415

    unpack(path, path.parent / "mine", AnyFile(), 10**6)  # type: ignore[arg-type]


def _in_a_run(name: str, read: Callable[[Path], object]) -> Callable[[Path], object]:
    """Return a reader that replaces a file of a finished run, updates its checksum, and reads the run."""

    def of(path: Path) -> object:
        from leakbench.core.hashes import checksum  # noqa: PLC0415
        from leakbench.storage.manifest import sealed  # noqa: PLC0415

        folder, good = path.parent / f"run with another {name}", _finished()
        if not folder.is_dir():
            shutil.copytree(good, folder)
        path.replace(folder / name)
        if name != "manifest.json":
            manifest = json.loads((good / "manifest.json").read_text(encoding="utf-8"))
            manifest["files"][name] = checksum(folder / name)
            (folder / "manifest.json").write_text(json.dumps(sealed(manifest)), encoding="utf-8")
        return read(folder)

    return of


@functools.cache
def _finished() -> Path:
    """Return the folder of a tiny finished run with its audit."""
    import tempfile  # noqa: PLC0415

    from leakbench.cell import Request, identity  # noqa: PLC0415
    from leakbench.cell.budget import prepare  # noqa: PLC0415
    from leakbench.execute import execute  # noqa: PLC0415
    from leakbench.report.audited import AUDIT  # noqa: PLC0415
    from leakbench.storage.store import open_run  # noqa: PLC0415

    folder = Path(tempfile.mkdtemp(prefix="leakbench-readers-")) / "run"
    tiny = {"attack": "cpl", "iterations": 1, "victims": 2, "candidates": 4, "train_rounds": 1, "taps": ("type-1",)}
    cell = prepare(Request(dataset="digits", clients=4, clients_per_round=2, **tiny), None)  # type: ignore[arg-type]
    with open_run(folder, identity(cell, "leakbench run")) as run:
        execute(cell, run, lambda *_: None)
        found = {"noise_data_independent": True, "sigma_measured": 6.0, "sigma_recipe": 6.0, "clip_holds": True}
        found |= {"lower_bound": 0.0, "lower_bound_family": None, "claimed": 1.0, "valid": 1.0, "confidence": 0.95}
        found |= {"trials": 100, "verdict": "holds", "reason": "none", "hash": run.manifest["hash"]}
        run.write_text(AUDIT, json.dumps(found))
    return folder


def _of_the_run(name: str) -> Callable[[], list[bytes]]:
    return lambda: [(_finished() / name).read_bytes()]


def _unfinished() -> list[bytes]:
    from leakbench.storage.manifest import sealed  # noqa: PLC0415

    manifest = json.loads((_finished() / "manifest.json").read_text(encoding="utf-8"))
    manifest.pop("summary")
    return [json.dumps(sealed({**manifest, "complete": False, "files": {}})).encode()]


def _sealed(path: Path) -> object:
    """Read any manifest under a checksum that matches it, as an attacker may write it."""
    from leakbench.storage.manifest import sealed  # noqa: PLC0415
    from leakbench.storage.store import read_manifest  # noqa: PLC0415

    try:
        said = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        said = None
    folder = path.parent / "sealed"
    folder.mkdir(exist_ok=True)
    path.replace(folder / "manifest.json")
    if isinstance(said, dict):
        (folder / "manifest.json").write_text(json.dumps(sealed(said)), encoding="utf-8")
    return read_manifest(folder)


def _audit(folder: Path) -> object:
    from leakbench.report.audited import audit_of  # noqa: PLC0415
    from leakbench.storage.store import read_manifest  # noqa: PLC0415

    return audit_of(folder, read_manifest(folder))


def _whole_run(folder: Path) -> object:
    from leakbench.report.finished import read_finished  # noqa: PLC0415

    found = read_finished(folder)
    return found.points()


def _leak(path: Path) -> object:
    from leakbench.flower.leaks import read_leaks  # noqa: PLC0415

    (path.parent / "type-1").mkdir(exist_ok=True)
    path.replace(path.parent / "type-1" / "round00001-node1.safetensors")
    return read_leaks(path.parent, "type-1")


def _some_leaks() -> list[bytes]:
    from safetensors.numpy import save  # noqa: PLC0415

    header = {"round": "1", "node-id": "7", "partition-id": "0", "local-steps": "1"}
    return [save({"weight": np.ones((2, 3), np.float32)}, header)]


def _some_idx() -> list[bytes]:
    pictures = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0, 4]) + bytes(32)
    labels = bytes([0, 0, 8, 1, 0, 0, 0, 2, 0, 1])
    return [gzip.compress(content, mtime=0) for content in (pictures, labels)]


def _some_cifar() -> list[bytes]:
    batch = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1], b"label_names": [b"a", b"b"]}
    return [pickle.dumps(batch, protocol=3).replace(b"numpy._core.", b"numpy.core.")]


def _some_photographs() -> list[bytes]:
    from PIL import Image  # noqa: PLC0415

    found = []
    for form in ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"):
        stream = io.BytesIO()
        Image.new("RGB", (12, 12), (9, 128, 0)).save(stream, form)
        found.append(stream.getvalue())
    return found


def _some_records() -> list[bytes]:
    line = "20, Private, 77516, Bachelors, 13, Never-married, Sales, Wife, White, Male, 0, 0, 40, Cuba, {}\n"
    return [(line.format("<=50K") * 4 + line.format(">50K.") * 4).encode()]


def _some_arrays(suffix: str) -> list[bytes]:
    from safetensors.numpy import save  # noqa: PLC0415

    arrays = {"a": np.ones((2, 3), np.float32), "b": np.arange(4)}
    if suffix == ".safetensors":
        return [save(arrays)]
    plain, packed = io.BytesIO(), io.BytesIO()
    np.savez(plain, **arrays)  # type: ignore[arg-type]
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]
    return [plain.getvalue(), packed.getvalue()]


def _some_archives() -> list[bytes]:
    found = []
    for mode in ("w", "w:gz", "w:bz2"):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode=mode) as file:
            for name, kind in (("mine", tarfile.DIRTYPE), ("mine/batches.meta", tarfile.REGTYPE)):
                member = tarfile.TarInfo(name)
                member.type = kind
                file.addfile(member)
        found.append(stream.getvalue())
    return found


def _some_outcomes() -> list[bytes]:
    from leakbench.study.task import TaskOutcome  # noqa: PLC0415

    done = TaskOutcome("0" * 64, "done", hash="1" * 64, run="mine", seconds=1.5)
    return [json.dumps(done.as_dict()).encode() + b"\n"]


READERS: Mapping[str, Reader] = {
    "defenses": Reader(_files("defenses/*.yaml"), _recipe("defenses"), ".yaml"),
    "attacks": Reader(_files("attacks/*.yaml"), _recipe("attacks"), ".yaml"),
    "data sets": Reader(_files("datasets/*.yaml"), _recipe("datasets"), ".yaml"),
    "grids": Reader(_files("examples/sweep.yaml"), _grid, ".yaml"),
    "tables": Reader(_files("studies/[!r]*/*.yaml"), _table, ".yaml"),
    "baselines": Reader(_files(".ci/baselines/*.json", most=3), _baseline, ".json"),
    "cards": Reader(_files("leaderboard/**/*.json", most=3), _card, ".json"),
    "manifests": Reader(_of_the_run("manifest.json"), _manifest, ".json"),
    "sealed manifests": Reader(_of_the_run("manifest.json"), _sealed, ".json"),
    "unfinished manifests": Reader(_unfinished, _sealed, ".json"),
    "audits": Reader(_of_the_run("audit.json"), _in_a_run("audit.json", _audit), ".json"),
    "rows of runs": Reader(_of_the_run("rows.parquet"), _in_a_run("rows.parquet", _whole_run), ".parquet"),
    "reconstructions": Reader(
        _of_the_run("reconstructions.safetensors"),
        _in_a_run("reconstructions.safetensors", _whole_run),
        ".safetensors",
    ),
    "leaks": Reader(_some_leaks, _leak, ".safetensors"),
    "journals": Reader(_some_outcomes, _journal, ".jsonl"),
    "idx pictures": Reader(lambda: _some_idx()[:1], _idx(labels=False), ".gz"),
    "idx labels": Reader(lambda: _some_idx()[1:], _idx(labels=True), ".gz"),
    "CIFAR batches": Reader(_some_cifar, _cifar),
    "photographs": Reader(_some_photographs, _photograph, ".jpg"),
    "records": Reader(_some_records, _adult, ".data"),
    "rows": Reader(_files("results/attacks/leakage_batches.csv"), _rows, ".csv"),
    "safetensors": Reader(functools.partial(_some_arrays, ".safetensors"), _arrays, ".safetensors"),
    "npz": Reader(functools.partial(_some_arrays, ".npz"), _arrays, ".npz"),
    "archives": Reader(_some_archives, _archive, ".tar"),
}
