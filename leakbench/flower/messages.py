"""The arrays of a Flower message: of a model as it is sent or comes back, and which of them are parameters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord
from numpy.typing import NDArray

from leakbench.errors import InputError

__all__ = [
    "STATISTICS",
    "Arrays",
    "arrays_of",
    "check_same_names",
    "client_of",
    "is_parameter",
    "is_train",
    "partition_of",
    "record_of",
    "replaced",
    "round_in",
    "round_of",
]


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


COUNTER = "leakbench.rounds"
"""The record in a client's state that counts its train messages."""


def is_train(message: Message) -> bool:
    """Say whether a message asks a client to train, by whatever action."""
    return str(message.metadata.message_type).partition(".")[0] == "train"


def round_in(message: Message) -> int | None:
    """Return the server's round as a message says it: `server-round` of its config, else its group; None where neither does.

    Flower counts rounds from 1.
    """
    for config in message.content.config_records.values():
        said: Any = config.get("server-round")
        if said is not None:
            return int(said)
    group = str(message.metadata.group_id)
    return int(group) if group.isdecimal() else None


def round_of(message: Message, context: Context) -> int:
    """Return the round of a train message; where it does not say, which train message of this client it is, counted from 1.

    The count is kept in the client's state; several mods that ask of one message get one answer.
    """
    said = round_in(message)
    if said is not None:
        return said
    held: Any = context.state.get(COUNTER, {"rounds": 0, "created": 0.0})
    created = float(message.metadata.created_at)
    number: int = int(held["rounds"]) + (created != held["created"])
    context.state[COUNTER] = MetricRecord({"rounds": number, "created": created})
    return number


def partition_of(context: Context) -> int | None:
    """Return the client's partition-id as its node was configured; None where it was not."""
    said = context.node_config.get("partition-id")
    return None if said is None else int(said)


def client_of(context: Context) -> int:
    """Return the number by which a client's randomness is told from others': its partition-id, else its node's id."""
    partition = partition_of(context)
    return int(context.node_id) if partition is None else partition
