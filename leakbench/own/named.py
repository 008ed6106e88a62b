"""Named arrays held against the parameters of a model: one that is missing, extra or of another shape is named."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from leakbench.errors import InputError, nearest
from leakbench.types import Parameters

__all__ = ["as_buffers", "as_parameters"]


def as_parameters(field: str, model: nn.Module, arrays: Mapping[str, Tensor]) -> Parameters:
    """Return {p: (*p)} in the order of the model.

    What else is of the model's state may stand among the arrays and is left out.  Raises InputError with the parameter's name
    and shape.
    """
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    state = set(model.state_dict())  # With buffers, and every name of weights that are tied.
    for name, shape in shapes.items():
        if name not in arrays:
            raise InputError(f"{field}: the model's parameter {name!r} {shape} is missing{nearest(name, list(arrays))}")
        got = tuple(arrays[name].shape)
        if got != shape:
            raise InputError(f"{field}: {name!r} has the shape {got}, the model's parameter {shape}")
        if not arrays[name].is_floating_point():
            raise InputError(f"{field}: {name!r} has numbers of type {arrays[name].dtype}, expected floating ones")
    for name, array in arrays.items():
        if name not in shapes and name not in state:
            raise InputError(
                f"{field}: {name!r} {tuple(array.shape)} is no parameter of the model{nearest(name, list(shapes))}"
            )
    return {name: arrays[name] for name in shapes}


def as_buffers(field: str, model: nn.Module, arrays: Mapping[str, Tensor]) -> Parameters:
    """Return {b: (*b)} of the model's buffers, those that are among the arrays from there; raises InputError for another shape."""
    found = {}
    for name, buffer in model.named_buffers():
        if name in arrays and arrays[name].shape != buffer.shape:
            raise InputError(
                f"{field}: {name!r} has the shape {tuple(arrays[name].shape)}, the model's buffer {tuple(buffer.shape)}"
            )
        found[name] = arrays[name].to(buffer.dtype) if name in arrays else buffer.detach().clone()
    return found
