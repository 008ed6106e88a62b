"""The tap at the server: every reply as it arrives, whatever the strategy does with it then."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from leakbench.flower.arrays import Arrays, arrays_of
from leakbench.flower.leaks import Leak, write_leak
from leakbench.flower.whereabouts import is_train, round_in

__all__ = ["TapGrid", "written"]


class TapGrid(Grid):
    """Do what another grid does, and write each reply to a train message into a folder (`leakbench.flower.leaks`).

    This is type-0 for any strategy, Flower's own wrappers of differential privacy too: what arrives, before a strategy's own
    clip or noise. See `ProbeStrategy` for what an inner strategy is given.

    grid: the engine's.  sink: the folder.  tap: what the view is called, and the folder within it.
    """

    def __init__(self, grid: Grid, sink: str | Path, tap: str = "type-0") -> None:
        self.grid, self.sink, self.tap = grid, Path(sink), tap
        self._rounds = 0
        self._sent: dict[int, tuple[int, Arrays]] = {}

    def set_run(self, run: Run) -> None:
        """Pass the run on."""
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        """The grid's run."""
        return self.grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Let the grid make a message."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the grid's nodes."""
        found: Iterable[int] = self.grid.get_node_ids()
        return found

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what the grid tells of its nodes."""
        found: Iterable[NodeInfo] = self.grid.get_nodes()
        return found

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages and remember what is sent to whom."""
        found: Iterable[str] = self.grid.push_messages(self._remembered(messages))
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pull replies and write what they hold."""
        return self._written(self.grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages, wait for the replies and write what they hold."""
        return self._written(self.grid.send_and_receive(self._remembered(messages), timeout=timeout))

    def _remembered(self, messages: Iterable[Message]) -> list[Message]:
        messages = list(messages)
        train = [message for message in messages if is_train(message)]
        self._rounds += bool(train)
        for message in train:
            number = round_in(message)
            arrays = arrays_of(message, "message")
            self._sent[int(message.metadata.dst_node_id)] = (self._rounds if number is None else number, arrays)
        return messages

    def _written(self, replies: Iterable[Message]) -> list[Message]:
        replies = list(replies)
        for reply in replies:
            node = int(reply.metadata.src_node_id)
            if is_train(reply) and not reply.has_error() and node in self._sent:
                number, sent = self._sent[node]
                written(self.sink, self.tap, number, reply, sent)
        return replies


def written(sink: Path, tap: str, number: int, reply: Message, sent: Arrays) -> None:
    """Write what one reply of a round holds."""
    write_leak(sink, Leak(tap, number, int(reply.metadata.src_node_id), None, arrays_of(reply, "reply"), sent))
