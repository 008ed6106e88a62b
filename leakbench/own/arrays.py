"""Files of named arrays from strangers: safetensors and NumPy's .npz, and no pickle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from leakbench.errors import InputError, out_of_memory
from leakbench.packed import check_npz

__all__ = ["ENDINGS", "read_arrays"]

ENDINGS = (".safetensors", ".npz")
"""Of the files that are read."""

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".npy")

CONVERT = (
    "convert one you trust: safetensors.torch.save_file(torch.load('{name}', weights_only=True), '{stem}.safetensors')"
)


def read_arrays(field: str, path: Path) -> dict[str, Tensor]:
    """Return {name: array} of a file, floating ones as float32, others as they are.

    Args:
        field: What the file is called in errors. Raises InputError, with the field and the file, for a file that is not there, is
            no whole safetensors or .npz, holds objects or nothing, or a number that is not finite.
    """
    if path.suffix in PICKLES:
        hint = CONVERT.format(name=path.name, stem=path.stem)
        raise InputError(f"{field}: {path} may be a pickle, which can run code; {hint}")
    if path.suffix not in ENDINGS:
        raise InputError(f"{field}: got {str(path)!r}, expected a .safetensors or .npz file")
    if not path.is_file():
        raise InputError(f"{field}: no file {str(path)!r}")
    try:
        found = _safetensors(path) if path.suffix == ".safetensors" else _npz(path)
    except Exception as error:  # Whatever readers raise at bytes of a stranger's.
        if out_of_memory(error):
            raise
        raise InputError(f"{field}: {path} cannot be read: {' '.join(str(error).split())}") from None
    if not found:
        raise InputError(f"{field}: {path} holds no arrays")
    return {name: _checked(field, path, name, array) for name, array in found.items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping


def _npz(path: Path) -> dict[str, Tensor]:
    check_npz(path)
    with np.load(path, allow_pickle=False) as file:
        found = {name: file[name] for name in file.files}
    return {name: torch.from_numpy(np.ascontiguousarray(a).reshape(a.shape)) for name, a in found.items()}


def _checked(field: str, path: Path, name: str, array: Tensor) -> Tensor:
    if array.is_complex():
        raise InputError(f"{field}: {path}: {name!r} has complex numbers, expected real ones")
    if not array.is_floating_point():
        return array
    array = array.float()
    if not bool(array.isfinite().all()):
        raise InputError(f"{field}: {path}: {name!r} has numbers that are not finite")
    return array
