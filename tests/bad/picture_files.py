"""idx and CIFAR files whose checksums are right and whose content is not, and files whose checksums are wrong."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tests.bad.case import Case

ROLES = ("train_images", "train_labels", "test_images", "test_labels")
RUN = "run --quiet --dataset mine.yaml --data-dir data --attack lmmse --taps type-2 --train-rounds 0 --victims 2"


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    """Return an array of bytes as a gzipped idx file."""
    head = bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(head + array.tobytes(), mtime=0)


def recipe(folder: Path, form: dict[str, Any], marker: str) -> None:
    """Write `mine.yaml`, a data set of this format whose files are in `data/mine`."""
    fields = {
        **{"title": "Mine", "cite": "nobody", "license": "none", "format": form},
        "federation": {"rounds": 1, "batch": 1, "examples_per_client": 2, "clients": 2, "clients_per_round": 1},
        "origin": {"layouts": ["mine"], "marker": marker, "megabytes": 1, "mirrors": ["https://example.org/"]},
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(fields), encoding="utf-8")


def _whole() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    shapes = ((8, 4, 4), (8,), (8, 4, 4), (8,))
    return {
        role: idx(rng.integers(0, 256 if "images" in role else 2, shape, np.uint8))
        for role, shape in zip(ROLES, shapes, strict=True)
    }


def _idx(role: str, content: bytes | None, *says: str, sha: bytes | None = None, named: str = "") -> Case:
    """Give one of the four files another content, or remove it; its checksum is that of `sha`, or of the content."""

    def write(folder: Path) -> None:
        (folder / "data" / "mine").mkdir(parents=True)
        files = {**_whole(), **({} if content is None else {role: content})}
        named = {}
        for name, whole in files.items():
            if name != role or content is not None:
                (folder / "data" / "mine" / f"{name}.gz").write_bytes(whole)
            checked = sha if name == role and sha is not None else whole
            named[name] = {"file": f"{name}.gz", "sha256": hashlib.sha256(checked).hexdigest()}
        recipe(folder, {"idx": {**named, "class_names": ["a", "b"]}}, "*.gz")

    return Case(RUN, (named or f"{role}.gz", *says), write)


def pickled(value: Any) -> bytes:
    """Return a pickle whose arrays are in NumPy 1's format, as in the files of CIFAR."""
    return pickle.dumps(value, protocol=3).replace(b"numpy._core.", b"numpy.core.")


class _Bomb:
    """A pickle that would write a file if it were unpickled."""

    def __reduce__(self) -> Any:
        return exec, ("open('hacked', 'w').close()",)


def _cifar(batch: bytes | dict[bytes, Any], *says: str, names: bytes | None = None, name: str = "data_batch_1") -> Case:
    """Write these batches, and the names of the classes of two of them."""

    def write(folder: Path) -> None:
        (folder / "data" / "mine").mkdir(parents=True)
        content = batch if isinstance(batch, bytes) else pickled(batch)
        meta = pickled({b"label_names": [b"cat", b"dog"]}) if names is None else names
        files = {"data_batch_1": content, "test_batch": content, "batches.meta": meta}
        for file, whole in files.items():
            (folder / "data" / "mine" / file).write_bytes(whole)
        said = {file: {"file": file, "sha256": hashlib.sha256(whole).hexdigest()} for file, whole in files.items()}
        form = {"train": [said["data_batch_1"]], "test": said["test_batch"], "names": said["batches.meta"]}
        recipe(folder, {"cifar_python": form}, "data_batch_*")

    return Case(RUN, (name, *says), write)


def _batch(n: int = 8, wide: int = 3072, labels: Any = None, dtype: Any = np.uint8) -> dict[bytes, Any]:
    rng = np.random.default_rng(0)
    return {
        b"data": rng.integers(0, 256, (n, wide)).astype(dtype),
        b"labels": [i % 2 for i in range(n)] if labels is None else labels,
    }


PIXELS, LABELS = np.zeros((8, 4, 4), np.uint8), np.zeros(8, np.uint8)

CASES = (
    _idx("train_images", None),
    _idx("test_labels", None),
    _idx("train_images", b"", sha=idx(PIXELS)),
    _idx("train_images", idx(PIXELS)[:-3], sha=idx(PIXELS)),
    _idx("train_images", b""),
    _idx("train_images", b"no gzip"),
    _idx("train_images", idx(PIXELS)[:-3]),
    _idx("train_images", idx(PIXELS) + b"behind"),
    _idx("train_images", gzip.compress(b"", mtime=0)),
    _idx("train_images", gzip.compress(b"\0\0\x08", mtime=0)),
    _idx("train_images", gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 8, 4, 4) + b"few", mtime=0)),
    _idx("train_images", gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 2**31, 2**31, 4), mtime=0)),
    _idx("train_images", gzip.compress(b"\0\0\x08\xff", mtime=0)),
    _idx("train_images", gzip.compress(bytes(3 * 10**9 // 10**3), mtime=0)),
    _idx("train_images", idx(PIXELS, kind=0x0D)),
    _idx("train_images", idx(PIXELS.reshape(8, 16))),
    _idx("train_images", idx(np.zeros((0, 4, 4), np.uint8))),
    _idx("train_images", idx(np.zeros((8, 0, 4), np.uint8))),
    _idx("train_images", idx(PIXELS[:5]), "8 labels for 5 pictures", named="train_labels.gz"),
    _idx("test_images", idx(np.zeros((8, 5, 5), np.uint8)), "test split", "(1, 5, 5)", named="mine"),
    _idx("train_labels", idx(LABELS + 2), "training split", "label 2", named="mine"),
    _idx("train_labels", idx(np.zeros((8, 1), np.uint8))),
    _idx("test_labels", idx(LABELS + 255), "test split", "label 255", named="mine"),
    _cifar(b""),
    _cifar(b"not a pickle"),
    _cifar(pickle.PROTO + b"\x05" + pickle.BYTEARRAY8 + (2**31).to_bytes(8, "little") + b"room"),
    _cifar(pickled(_Bomb())),
    _cifar(pickled({b"data": _Bomb()})),
    _cifar(pickled(_batch())[:-40]),
    _cifar(pickled([1, 2])),
    _cifar({}),
    _cifar({b"data": 3, b"labels": [0]}),
    _cifar({b"data": [1, 2], b"labels": [0, 1]}),
    _cifar(_batch(wide=3071)),
    _cifar(_batch(n=0)),
    _cifar(_batch(dtype=np.float32)),
    _cifar(_batch(labels=[0, 1])),
    _cifar(_batch(labels=[0] * 7 + [2]), "training split", "label 2", name="mine"),
    _cifar(_batch(labels=[0] * 7 + [-1])),
    _cifar(_batch(labels=["cat"] * 8)),
    _cifar(_batch(labels=3)),
    _cifar(_batch(), names=b"", name="batches.meta"),
    _cifar(_batch(), names=pickled({}), name="batches.meta"),
    _cifar(_batch(), names=pickled({b"label_names": [1, 2]}), name="batches.meta"),
    _cifar(_batch(), names=pickled({b"label_names": _Bomb()}), name="batches.meta"),
)
