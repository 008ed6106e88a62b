"""The arrays of a Flower message: of a model as it is sent or comes back, and which of them are parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, Message
from numpy.typing import NDArray

from leakbench.errors import InputError

__all__ = ["STATISTICS", "Arrays", "arrays_of", "check_same_names", "is_parameter", "record_of", "replaced"]

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""{name in the record: array}, in the record's order."""

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""How the buffers of PyTorch's batch normalisation end, which travel in a state dict beside the parameters."""


def arrays_of(message: Message, what: str) -> Arrays:
    """Return the arrays of the one record of arrays in a message, which `what` calls in an error.

    Raises InputError where the message holds none or several.
    """
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise InputError(f"{what}: got {len(records)} array records, expected one, the model's")
    return {name: array.numpy() for name, array in records[0].items()}


def record_of(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return the record of these arrays."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a).reshape(a.shape)) for name, a in arrays.items()})


def replaced(message: Message, arrays: Mapping[str, NDArray[Any]]) -> Message:
    """Return the message with these arrays in the stead of those of its one record of arrays."""
    [key] = message.content.array_records.keys()
    message.content[key] = record_of(arrays)
    return message


def check_same_names(sent: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
    """Raise InputError where a client answers with other arrays than it was sent, by name or shape."""
    missing, extra = [n for n in sent if n not in reply], [n for n in reply if n not in sent]
    if missing or extra:
        raise InputError(f"reply: got arrays other than those sent: missing {missing}, not sent {extra}")
    for name, array in reply.items():
        if array.shape != sent[name].shape:
            raise InputError(f"reply: {name!r} has the shape {array.shape}, expected {sent[name].shape} as sent")


def is_parameter(name: str, array: NDArray[Any], buffers: Collection[str] = ()) -> bool:
    """Say whether an array is a parameter: a floating-point one that is no running statistic and none of `buffers`."""
    floating = np.issubdtype(array.dtype, np.floating)
    return bool(floating) and name not in buffers and name.rpartition(".")[2] not in STATISTICS
