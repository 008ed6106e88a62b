"""Which round and which client a message belongs to."""

from __future__ import annotations

from typing import Any

from flwr.app import Context, Message, MetricRecord

__all__ = ["client_of", "is_train", "partition_of", "round_in", "round_of"]

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
