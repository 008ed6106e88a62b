"""The Python versions of CIFAR-10 and CIFAR-100: pickles, which are read without running them."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.core.untrusted import CONTROLS
from leakbench.data.cache import NO_CACHE, Cache
from leakbench.data.checks import (
    AFile,
    AnMd5File,
    Check,
    File,
    Md5File,
    check_files,
    checked_bytes,
    identity,
    identity_of,
    within,
)
from leakbench.data.dataset import Dataset, everyone
from leakbench.data.pictures import unit

__all__ = ["Cifar100Python", "CifarPython"]


@part("format.cifar_python")
class CifarPython:
    """The Python version of CIFAR-10: pickled batches of 32 x 32 pictures in colour.

    A batch is unpickled only after a check of its checksum, and the unpickler runs no code.
    """

    train: Annotated[tuple[AFile, ...], Field(description="Training batches, in order.")]
    test: Annotated[AFile, Field(description="Test batch.")]
    names: Annotated[AFile, Field(description="File with the names of the classes.")]

    @property
    def files(self) -> tuple[File, ...]:
        """All files of the set."""
        return *self.train, self.test, self.names

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare every file with its checksum."""
        return check_files(folder, self.files)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError for a file that is missing or damaged."""
        names = _names(_unpickle(folder, self.names), within(folder) / self.names.file, "label_names")
        train, labels = _batches(folder, self.train)
        test, answers = _batches(folder, (self.test,))
        return Dataset("", "image", train, labels, test, answers, names, everyone(labels), identity(self.files))


def _batches(folder: Path | None, files: tuple[File, ...]) -> tuple[Tensor, Tensor]:
    """Return the pictures (n, 3, 32, 32) and labels (n,) of some batches."""
    batches = [_batch(_unpickle(folder, f), within(folder) / f.file, "labels") for f in files]
    pixels = bytearray().join(pixels for pixels, _ in batches)
    labels = [label for _, labels in batches for label in labels]
    return unit(np.frombuffer(pixels, np.uint8).reshape(-1, 3, 32, 32)), torch.tensor(labels)


def _batch(batch: dict[bytes, Any], where: Path, kind: str) -> tuple[bytes, list[int]]:
    """Return the pixels of one batch, 3,072 bytes per picture, and the labels; raises InputError for other content."""
    state = getattr(batch.get(b"data"), "state", None)
    pixels = state[4] if isinstance(state, tuple) and len(state) == 5 and _of_bytes(state[2]) else None
    if not isinstance(pixels, bytes) or not pixels or len(pixels) % 3072:
        raise InputError(f"{where}: data: got no array of n x 3072 unsigned bytes")
    labels = batch.get(kind.encode())
    if not isinstance(labels, list) or any(type(label) is not int or not 0 <= label < 256 for label in labels):
        raise InputError(f"{where}: {kind}: got no list of numbers from 0 to 255")
    if len(labels) * 3072 != len(pixels):
        raise InputError(f"{where}: {kind}: got {len(labels)} for {len(pixels) / 3072:g} pictures")
    if isinstance(state, tuple) and state[3]:  # NumPy wrote the array column by column.
        pixels = np.frombuffer(pixels, np.uint8).reshape(3072, -1).T.tobytes()
    return pixels, labels


def _of_bytes(kind: Any) -> bool:
    """Return whether the pickled type of an array is that of unsigned bytes."""
    return getattr(kind, "arguments", ())[:1] in ((b"u1",), ("u1",))


def _names(meta: dict[bytes, Any], where: Path, kind: str) -> tuple[str, ...]:
    """Return the names of the classes; raises InputError for a file without them."""
    names = meta.get(kind.encode())
    if not isinstance(names, list) or not names or not all(isinstance(name, bytes) for name in names):
        raise InputError(f"{where}: {kind}: got no list of names")
    return tuple(name.decode(errors="replace") for name in names)


@part("format.cifar100_python")
class Cifar100Python:
    """The Python version of CIFAR-100: two pickled batches of 32 x 32 pictures in colour, each with a fine and a coarse label.

    The source publishes an MD5 of each file and no sha256. The unpickler never runs code of a file.
    """

    train: Annotated[AnMd5File, Field(description="Training batch.")]
    test: Annotated[AnMd5File, Field(description="Test batch.")]
    names: Annotated[AnMd5File, Field(description="File with the names of the classes.")]
    labels: Annotated[
        Literal["fine", "coarse"],
        Field(description="Labels: fine (100 classes) or coarse (20 groups of five classes)."),
    ] = "fine"

    @property
    def files(self) -> tuple[Md5File, ...]:
        """All files of the set."""
        return self.train, self.test, self.names

    def check(self, folder: Path | None) -> tuple[Check, ...]:
        """Compare every file with its checksum."""
        return check_files(folder, self.files)

    def __call__(self, folder: Path | None, cache: Cache = NO_CACHE) -> Dataset:
        """Read the set; raises InputError for a file that is missing or damaged."""
        contents = [checked_bytes(folder, f) for f in self.files]
        places = [within(folder) / f.file for f in self.files]
        batches = [_unpickled(content, where) for content, where in zip(contents, places, strict=True)]
        names = _names(batches[2], places[2], f"{self.labels}_label_names")
        (train, labels), (test, answers) = (
            _batch(batch, where, f"{self.labels}_labels") for batch, where in zip(batches[:2], places[:2], strict=True)
        )
        hashes = ((f.file, hashlib.sha256(c).hexdigest()) for f, c in zip(self.files, contents, strict=True))
        targets = torch.tensor(labels)
        parts = (_pictures(train), targets, _pictures(test), torch.tensor(answers))
        return Dataset("", "image", *parts, names, everyone(targets), f"{identity_of(hashes)}, {self.labels} labels")


def _pictures(pixels: bytes) -> Tensor:
    return unit(np.frombuffer(bytearray(pixels), np.uint8).reshape(-1, 3, 32, 32))


class _Inert:
    """Replaces the classes in a pickle: stores the arguments and the state, and does nothing."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments, self.state = arguments, ()

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle._Unpickler):
    """Reads NumPy arrays as `_Inert` records and refuses every other class.

    This is pickle's implementation in Python: the one in C allocates memory for any memo index in a batch. Both allocate a
    bytearray of any length in a batch, so bytearrays are refused; CIFAR has none.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)

    def load_bytearray8(self) -> None:
        raise pickle.UnpicklingError("a batch has no business with a bytearray")

    dispatch[pickle.BYTEARRAY8[0]] = load_bytearray8

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")}:
            return _Inert
        raise pickle.UnpicklingError(f"a batch has no business with {module}.{name}")


def _unpickle(folder: Path | None, file: File) -> dict[bytes, Any]:
    return _unpickled(checked_bytes(folder, file), within(folder) / file.file)


def _unpickled(content: bytes, where: Path) -> dict[bytes, Any]:
    """Return the dictionary in a pickle; raises InputError for another pickle, and for one with other classes than arrays."""
    try:
        batch: Any = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # A damaged pickle may raise any error.
        reason = " ".join(CONTROLS.sub("\ufffd", f"{type(error).__name__}: {error}"[:200]).split())
        raise InputError(f"{where}: not a CIFAR batch: {reason}") from None
    if not isinstance(batch, dict):
        raise InputError(f"{where}: not a CIFAR batch: got {type(batch).__name__}, expected a dict")
    return batch
