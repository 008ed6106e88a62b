"""A Flower message: its arrays, which of them are parameters, its round and its client."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from numpy.typing import NDArray

from leakbench.core.errors import InputError
from leakbench.core.types import Signal, native
from leakbench.federated.simulate import PLURALS
from leakbench.summary.warnings import MEMBERS

__all__ = [
    "Arrays",
    "arrays_of",
    "check_same_names",
    "client_of",
    "is_parameter",
    "is_train",
    "partition_of",
    "record_of",
    "round_in",
    "round_of",
    "warn_of_zeros",
    "with_arrays",
]

Arrays: TypeAlias = dict[str, NDArray[Any]]
"""{name in the record: array}, in the record's order."""

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Last parts of the names of PyTorch's batch normalisation buffers, which a state dict contains next to the parameters."""

COUNTER = "leakbench.rounds"
"""Record in a client's state that counts its train messages."""


def arrays_of(message: Message, name: str) -> Arrays:
    """Return the arrays of a message with one record of arrays.

    Args:
        message: The message.
        name: Name of the message in an error.

    Raises:
        InputError: For a message with no record of arrays, or several.
    """
    records = list(message.content.array_records.values())
    if len(records) != 1:
        raise InputError(f"{name}: got {len(records)} array records, expected one, the model's")
    return {name: native(array.numpy()) for name, array in records[0].items()}


def record_of(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Return the record of these arrays."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a).reshape(a.shape)) for name, a in arrays.items()})


def with_arrays(message: Message, arrays: Mapping[str, NDArray[Any]]) -> Message:
    """Replace the arrays of a message with one record of arrays, and return the message."""
    [key] = message.content.array_records.keys()
    message.content[key] = record_of(arrays)
    return message


def warn_of_zeros(signals: Sequence[Signal], number: int) -> None:
    """Give a UserWarning with the number of members of signals that were not finite and counted as zero.

    Args:
        signals: Updates after their stations.
        number: The round, from 1.
    """
    for kind, plural in PLURALS.items():
        if lost := sum(int(signal.zeroed[kind].sum()) for signal in signals if kind in signal.zeroed):
            verb = "was" if lost == 1 else "were"
            said = f"round {number}: {lost} of the {MEMBERS[plural]} {verb} not finite and counted as zero"
            warnings.warn(said, stacklevel=2)


def check_same_names(sent: Mapping[str, Any], reply: Mapping[str, Any]) -> None:
    """Check that a client replies with the arrays that it was sent, by name and shape.

    Raises:
        InputError: For a missing or additional array, and for another shape.
    """
    missing, extra = [n for n in sent if n not in reply], [n for n in reply if n not in sent]
    if missing or extra:
        raise InputError(f"reply: got arrays other than those sent: missing {missing}, not sent {extra}")
    for name, array in reply.items():
        if array.shape != sent[name].shape:
            raise InputError(f"reply: {name!r} has the shape {array.shape}, expected {sent[name].shape} as sent")


def is_parameter(name: str, array: NDArray[Any], buffers: Collection[str] = ()) -> bool:
    """Return whether an array is a parameter: a floating-point one that is not a running statistic and not in `buffers`."""
    floating = np.issubdtype(array.dtype, np.floating)
    return bool(floating) and name not in buffers and name.rpartition(".")[2] not in STATISTICS


def is_train(message: Message) -> bool:
    """Return whether a message asks a client to train, by any action."""
    return str(message.metadata.message_type).partition(".")[0] == "train"


def round_in(message: Message) -> int | None:
    """Return the server's round in a message, from 1: `server-round` of its config, else its group; None if neither has it."""
    for config in message.content.config_records.values():
        number: Any = config.get("server-round")
        if number is not None:
            return int(number)
    group = str(message.metadata.group_id)
    return int(group) if group.isdecimal() else None


def round_of(message: Message, context: Context) -> int:
    """Return the round of a train message, from 1; if the message has none, the number of this client's train messages.

    The count is kept in the client's state. Several mods that ask about one message get one result.
    """
    number = round_in(message)
    if number is not None:
        return number
    known: Any = context.state.get(COUNTER, {"rounds": 0, "created": 0.0})
    created = float(message.metadata.created_at)
    counted: int = int(known["rounds"]) + (created != known["created"])
    context.state[COUNTER] = MetricRecord({"rounds": counted, "created": created})
    return counted


def partition_of(context: Context) -> int | None:
    """Return the client's partition-id as its node was configured; None if it was not."""
    partition = context.node_config.get("partition-id")
    return None if partition is None else int(partition)


def client_of(context: Context) -> int:
    """Return the number that seeds a client's randomness: its partition-id, else its node's id."""
    partition = partition_of(context)
    return int(context.node_id) if partition is None else partition
