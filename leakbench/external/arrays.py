"""Named arrays of a user: read from safetensors and NumPy's .npz, never from a pickle, and compared with a network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from leakbench.core.errors import InputError, check_file, nearest, out_of_memory
from leakbench.core.types import Parameters, native, plain_tensor
from leakbench.models.conversion import check_unscripted, unwrapped_arrays
from leakbench.storage.packed import check_npz

__all__ = ["ENDINGS", "Named", "as_parameters", "as_state", "check_shapes", "named_arrays", "read_arrays"]

Named: TypeAlias = Mapping[str, Tensor]
"""{name of a parameter or buffer: array}."""

ENDINGS = (".safetensors", ".npz")
"""Endings of the files that are read."""

PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".bin", ".ckpt", ".npy")

EXTRA = "_extra_state"
"""Last part of the name of what a module adds to its state dict that need not be a tensor."""

UNREACHED = (
    "expected an array for each trained parameter: zeros for one that the loss does not reach, or requires_grad_(False) in the"
    " model"
)

CONVERT = (
    "convert one you trust: safetensors.torch.save_file(torch.load('{name}', weights_only=True), '{stem}.safetensors')"
)


def read_arrays(field: str, path: Path) -> dict[str, Tensor]:
    """Return {name: array} of a file, floating-point arrays as float32.

    Args:
        field: Name of the file in errors.
        path: A .safetensors or .npz file.

    Raises:
        InputError: For a file that is missing, damaged or empty, or that contains objects or complex numbers.
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
    return {name: torch.from_numpy(native(a)) for name, a in found.items()}


def _checked(field: str, path: Path, name: str, array: Tensor) -> Tensor:
    if array.is_complex():
        raise InputError(f"{field}: {path}: {name!r} has complex numbers, expected real ones")
    return array.float() if array.is_floating_point() else array


def named_arrays(field: str, model: nn.Module, arrays: Mapping[Any, Any]) -> dict[str, Tensor | None]:
    """Return dense arrays by the model's own names: without a wrapper's prefix, and tied weights under their first name.

    None stays, as the gradient of a parameter that is frozen or that the loss does not reach. What modules save besides tensors
    is left out.

    Args:
        field: Name of the arrays in errors.
        model: The network.
        arrays: {name: array}, with or without a wrapper's prefix.

    Raises:
        InputError: For a name that is not a text, a value that is not an array, and two arrays of one parameter that differ.
    """
    for key in arrays:
        if not isinstance(key, str):
            raise InputError(f"{field}: got the name {key!r} of type {type(key).__name__}, expected a name as a string")
    several = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    own = {name: first.setdefault(id(tensor), name) for name, tensor in several}
    found: dict[str, Tensor | None] = {}
    for key, value in unwrapped_arrays(model, arrays).items():
        if key.rpartition(".")[2] == EXTRA:
            continue
        name, array = own.get(key, key), None if value is None else plain_tensor(field, key, value)
        known = found.get(name)
        if known is not None and array is not None and not torch.equal(known.cpu(), array.cpu()):
            raise InputError(
                f"{field}: {name!r} and {key!r} are one parameter of the model, got different numbers; expected one of the names"
            )
        found[name] = known if array is None else array
    return found


def check_shapes(model: nn.Module, name: str = "the model") -> None:
    """Check that every lazy module has seen an input, and that no module is compiled by TorchScript, which hides its parts.

    Args:
        model: The network.
        name: Name of the network in the error.

    Raises:
        InputError: For a parameter or buffer without a shape, and for a module of TorchScript.
    """
    check_unscripted(model, called=name)
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
    found = named_arrays(field, model, arrays)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    state = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    taken = {}
    for name, shape in shapes.items():
        array = found.get(name)
        if array is None:
            others = {n: tuple(a.shape) for n, a in found.items() if n not in state and a is not None}
            near = _near(name, shape, others, UNREACHED)
            what = "is None" if name in found else f"is missing{near}"
            raise InputError(f"{field}: the model's parameter {name!r} {shape} {what}")
        got = tuple(array.shape)
        if got != shape:
            several = f"; {got[0]} victims are a file each" if got[1:] == shape else ""
            raise InputError(f"{field}: {name!r} has the shape {got}, the model's parameter {shape}{several}")
        if not array.is_floating_point():
            raise InputError(f"{field}: {name!r} has numbers of type {array.dtype}, expected floating ones")
        taken[name] = array.cpu().to(torch.float32, copy=True)
        if not bool(taken[name].isfinite().all()):
            wide = array.dtype == torch.float64 and bool(array.isfinite().all())
            what = "beyond single precision, expected at most 3.4e38" if wide else "that are not finite"
            raise InputError(f"{field}: {name!r} has numbers {what}")
    for name, array in found.items():
        if name not in shapes and name not in state:
            size = "" if array is None else f" {tuple(array.shape)}"
            raise InputError(
                f"{field}: {name!r}{size} is not a parameter of the model, whose trained parameters are all given; leave it out"
            )
    return taken


def as_state(field: str, model: nn.Module, arrays: Named) -> Parameters:
    """Return {name: array} of the model's buffers and untrained parameters, from the arrays or else from the model.

    Raises:
        InputError: For another shape, for numbers that are not finite where the model's own are, and as `named_arrays`.
    """
    given = named_arrays(field, model, arrays)
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    found = {}
    for name, tensor in (*model.named_buffers(), *frozen.items()):
        array = given.get(name)
        array = tensor if array is None else array
        if array.shape != tensor.shape:
            kind = "parameter" if name in frozen else "buffer"
            raise InputError(
                f"{field}: {name!r} has the shape {tuple(array.shape)}, the model's {kind} {tuple(tensor.shape)}"
            )
        found[name] = array.detach().cpu().to(tensor.dtype).clone()
        # A mask of attention may have infinite numbers.
        if bool((tensor.cpu().isfinite() & ~found[name].isfinite()).any()):
            raise InputError(f"{field}: {name!r} has numbers that are not finite, where the model's own are")
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
