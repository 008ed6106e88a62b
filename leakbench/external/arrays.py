"""Named arrays of a user: read from safetensors and NumPy's .npz, never from a pickle, and compared with a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from leakbench.core.errors import InputError, check_file, nearest, out_of_memory
from leakbench.core.types import Parameters
from leakbench.models.conversion import unwrapped_arrays
from leakbench.storage.packed import check_npz

__all__ = ["ENDINGS", "Named", "as_parameters", "as_state", "check_shapes", "read_arrays"]

Named: TypeAlias = Mapping[str, Tensor]
"""{name of a parameter or buffer: array}."""

ENDINGS = (".safetensors", ".npz")
"""Endings of the files that are read."""

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".npy")

CONVERT = (
    "convert one you trust: safetensors.torch.save_file(torch.load('{name}', weights_only=True), '{stem}.safetensors')"
)


def read_arrays(field: str, path: Path) -> dict[str, Tensor]:
    """Return {name: array} of a file, floating-point arrays as float32.

    Args:
        field: Name of the file in errors.
        path: A .safetensors or .npz file.

    Raises:
        InputError: For a file that is missing, damaged or empty, or that contains objects, complex numbers or numbers
            that are not finite.
    """
    if path.suffix in PICKLES:
        hint = CONVERT.format(name=path.name, stem=path.stem)
        raise InputError(f"{field}: {path} may be a pickle, which can run code; {hint}")
    if path.suffix not in ENDINGS:
        raise InputError(f"{field}: got {str(path)!r}, expected a .safetensors or .npz file")
    check_file(field, path)
    try:
        found = _safetensors(path) if path.suffix == ".safetensors" else _npz(path)
    except Exception as error:  # Readers raise many types of error for bytes that a stranger wrote.
        if out_of_memory(error):
            raise
        raise InputError(f"{field}: {path} cannot be read: {' '.join(str(error).split())}") from None
    if not found:
        raise InputError(f"{field}: {path} holds no arrays")
    return {name: _checked(field, path, name, array) for name, array in found.items()}


def _safetensors(path: Path) -> dict[str, Tensor]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is not a mapping


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


def check_shapes(model: nn.Module, name: str = "the model") -> None:
    """Check that every lazy module has seen an input.

    Args:
        model: The network.
        name: Name of the network in the error.

    Raises:
        InputError: For a parameter or buffer without a shape.
    """
    for key, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InputError(
                f"model: {key!r} of {name} has no shape yet, since its module is lazy; pass an input through the model where it is"
                " built"
            )


def as_parameters(field: str, model: nn.Module, arrays: Named) -> Parameters:
    """Return {p: (*p)} of the parameters that are trained, in the order of the model.

    Buffers, and parameters whose `requires_grad` is false, may be among the arrays and are left out.

    Args:
        field: Name of the arrays in errors.
        model: The network.
        arrays: {name: array}, with or without a wrapper's prefix.

    Raises:
        InputError: For a parameter that is missing, unknown, of another shape or type, or not finite, and as `check_shapes`.
    """
    check_shapes(model)
    arrays = {name: torch.as_tensor(array) for name, array in unwrapped_arrays(model, arrays).items()}
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    state = set(model.state_dict())  # With buffers, and every name of tied weights.
    for name, shape in shapes.items():
        if name not in arrays:
            others = {n: tuple(array.shape) for n, array in arrays.items() if n not in state}
            near = _near(name, shape, others, "expected an array for each trained parameter")
            raise InputError(f"{field}: the model's parameter {name!r} {shape} is missing{near}")
        got = tuple(arrays[name].shape)
        if got != shape:
            several = f"; {got[0]} victims are a file each" if got[1:] == shape else ""
            raise InputError(f"{field}: {name!r} has the shape {got}, the model's parameter {shape}{several}")
        if not arrays[name].is_floating_point():
            raise InputError(f"{field}: {name!r} has numbers of type {arrays[name].dtype}, expected floating ones")
        if not bool(arrays[name].isfinite().all()):
            raise InputError(f"{field}: {name!r} has numbers that are not finite")
    for name, array in arrays.items():
        if name not in shapes and name not in state:
            raise InputError(
                f"{field}: {name!r} {tuple(array.shape)} is not a parameter of the model, whose trained parameters are all given;"
                " leave it out"
            )
    return {name: arrays[name].detach().cpu().float().clone() for name in shapes}


def as_state(field: str, model: nn.Module, arrays: Named) -> Parameters:
    """Return {name: array} of the model's buffers and untrained parameters, from the arrays or else from the model.

    Raises:
        InputError: For another shape.
    """
    arrays = unwrapped_arrays(model, arrays)
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    found = {}
    for name, tensor in (*model.named_buffers(), *frozen.items()):
        if name in arrays and arrays[name].shape != tensor.shape:
            kind = "parameter" if name in frozen else "buffer"
            raise InputError(
                f"{field}: {name!r} has the shape {tuple(arrays[name].shape)}, the model's {kind} {tuple(tensor.shape)}"
            )
        found[name] = arrays.get(name, tensor).detach().cpu().to(tensor.dtype).clone()
    return found


def _near(name: str, shape: tuple[int, ...], others: Mapping[str, tuple[int, ...]], without: str) -> str:
    """Return the nearest of the arrays that belong to no parameter, or the first few if none is near.

    Args:
        name: Name of the missing parameter.
        shape: Its shape.
        others: {name: shape} of these arrays; those of the same shape come first.
        without: The text if there are none.
    """
    several = sorted(n for n, size in others.items() if size == shape) or sorted(others)
    if not several:
        return f"; {without}"
    text = nearest(name, several)
    if text.startswith("; known: ") and len(several) > 8:
        return f"; known: {', '.join(several[:8])} and {len(several) - 8} more"
    return text
