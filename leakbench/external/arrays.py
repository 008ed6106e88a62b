"""Files of named arrays from strangers: safetensors and NumPy's .npz, and no pickle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from leakbench.errors import InputError, nearest, out_of_memory
from leakbench.packed import check_npz
from leakbench.types import Parameters

__all__ = ["ENDINGS", "as_parameters", "as_state", "check_shapes", "read_arrays", "unwrapped"]


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


WRAPPERS = ("_module.", "module.", "_orig_mod.")
"""What Opacus, parallel wrappers and torch.compile put before every name."""


def unwrapped(model: nn.Module, arrays: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Return the arrays by the model's own names, without what a wrapper put before all of them."""
    own = [name for name, _ in model.named_parameters()]
    for wrapper in WRAPPERS:
        if arrays and all(n.startswith(wrapper) for n in arrays) and not any(n.startswith(wrapper) for n in own):
            return unwrapped(model, {n.removeprefix(wrapper): array for n, array in arrays.items()})
    return arrays


def check_shapes(model: nn.Module, of: str = "the model") -> None:
    """Raise InputError for a model with a lazy module that has seen no input yet.

    Args:
        of: How it is called in the error.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InputError(
                f"model: {name!r} of {of} has no shape yet, since its module is lazy; pass an input through the model where it is"
                " built"
            )


def as_parameters(field: str, model: nn.Module, arrays: Mapping[str, Tensor]) -> Parameters:
    """Return {p: (*p)} of the parameters that are trained, in the order of the model.

    What else is of the model's state may stand among the arrays and is left out, as parameters whose `requires_grad` is false.
    Raises InputError with the parameter's name and shape, and as `check_shapes`.
    """
    check_shapes(model)
    arrays = {name: torch.as_tensor(array) for name, array in unwrapped(model, arrays).items()}
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}
    state = set(model.state_dict())  # With buffers, and every name of weights that are tied.
    for name, shape in shapes.items():
        if name not in arrays:
            raise InputError(f"{field}: the model's parameter {name!r} {shape} is missing{_near(name, arrays)}")
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
                f"{field}: {name!r} {tuple(array.shape)} is not a parameter of the model{_near(name, shapes)}"
            )
    return {name: arrays[name].detach().cpu().float().clone() for name in shapes}


def as_state(field: str, model: nn.Module, arrays: Mapping[str, Tensor]) -> Parameters:
    """Return {name: array} of the model's buffers and of its parameters that are not trained, as they are in the arrays or else
    in the model.

    Raises InputError for another shape.
    """
    arrays = unwrapped(model, arrays)
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


def _near(name: str, known: Mapping[str, object]) -> str:
    """Return the nearest name, or the first few where none is near."""
    several = sorted(known)
    text = nearest(name, several)
    if text.startswith("; known: ") and len(several) > 8:
        return f"; known: {', '.join(several[:8])} and {len(several) - 8} more"
    return text
