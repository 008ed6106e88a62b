"""A Flower run without an engine: a strategy's messages go to the ClientApp in the same process, one client after another."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from threading import RLock
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from leakbench.errors import InputError

__all__ = ["InProcessGrid", "check_nodes", "context_of_server"]

PATIENCE = 5
"""How often an app asks for the nodes without a message in between before it is taken to wait for more of them."""

SERVER, RUN, TASK = 1, 1, 1
"""Flower's id of the server's node, and those of the one run and task."""


class InProcessGrid(Grid):
    """Answer messages by calling a ClientApp, in order, in this process: no Ray, no polling, no serialisation of messages.

    The clients' contexts live as long as the grid, so that their states last over rounds. What a client raises is raised, where an
    engine would send an error in its stead. Nodes are numbered from 2, partitions from 0.

    client_app: the app.  clients: N, how many nodes there are.  run_config: what the app reads from `context.run_config`.
    """

    def __init__(
        self, client_app: ClientApp, clients: int, run_config: Mapping[str, bool | float | int | str] = {}
    ) -> None:
        check_nodes(clients)
        _identify()
        self.client_app = client_app
        self.contexts = {
            SERVER + 1 + i: Context(
                RUN,
                SERVER + 1 + i,
                {"partition-id": i, "num-partitions": clients},
                RecordDict(),
                dict(run_config),
            )
            for i in range(clients)
        }
        self._replies: dict[str, Message] = {}
        self._run = Run.create_empty(RUN)
        self._asked = 0
        self._alone = RLock()  # Flower's older strategies ask their clients from several threads.

    def set_run(self, run: Run) -> None:
        """Take the run that a server's process belongs to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message from the server to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes; raises InputError where an app asks on and on, since it waits for more of them."""
        self._asked += 1
        if self._asked > PATIENCE:
            raise InputError(
                f"clients: got {len(self.contexts)}, fewer than the app waits for (a strategy's min_available_nodes, 2 by default)"
            )
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Answer the messages now and return the ids by which `pull_messages` hands over the replies."""
        ids = []
        for reply in self.send_and_receive(messages):
            ids.append(f"reply-{len(self._replies)}")
            self._replies[ids[-1]] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies of these ids, each once."""
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Return the clients' replies in the order of the messages; `timeout` means nothing, as nobody is waited for."""
        self._asked = 0
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        """Return one client's reply; raises InputError for a node that is none."""
        node = int(message.metadata.dst_node_id)
        if node not in self.contexts:
            raise InputError(f"dst_node_id: got {node}, expected one of {len(self.contexts)} nodes from {SERVER + 1}")
        with self._alone:
            return self.client_app(_apart(message), self.contexts[node])


def check_nodes(clients: int) -> None:
    """Raise InputError for a number of clients below 1."""
    if clients < 1:
        raise InputError(f"clients: got {clients}, expected at least 1")


def context_of_server(run_config: Mapping[str, bool | float | int | str]) -> Context:
    """Return the context with which a ServerApp is called."""
    return Context(RUN, SERVER, {}, RecordDict(), dict(run_config))


def _identify() -> None:
    """Tell Flower in which task this process is, which an engine does, else no message can be made; an engine's stays."""
    if TaskIdentity._task_id is None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = TASK, RUN, SERVER


def _apart(message: Message) -> Message:
    """Return the message with records of its own: a strategy sends one content to all, which a client may write into."""
    content = RecordDict()
    for key, record in message.content.items():
        content[key] = _copied(record)
    make: Any = Message  # Flower's types do not tell of `metadata`, by which its own engine makes messages.
    copied: Message = make(content, metadata=copy.copy(message.metadata))
    return copied


def _copied(record: ArrayRecord | MetricRecord | ConfigRecord) -> ArrayRecord | MetricRecord | ConfigRecord:
    if isinstance(record, ArrayRecord):
        return ArrayRecord(dict(record))  # The bytes of an array are nobody's to change.
    values: dict[str, Any] = {key: list(v) if isinstance(v, list) else v for key, v in record.items()}
    return type(record)(values)
