"""The tap inside a client: what it sends, before or behind the defense."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable

from leakbench.flower.arrays import arrays_of
from leakbench.flower.leaks import Leak, write_leak
from leakbench.flower.whereabouts import is_train, partition_of, round_of

__all__ = ["UpdateTapMod"]


@dataclass(frozen=True)
class UpdateTapMod:
    """Write what a client answers to every train message into a folder, which `leakbench.flower.leaks` reads.

    The first Mod in a list is the outermost: before `DefenseMod` it sees what leaves the client (type-1), behind it what the
    client had trained.

    Args:
        sink: The folder.
        tap: What the view is called, and the folder within it.
    """

    sink: str | Path
    tap: str = "type-1"

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let the client train and write what it answers, which goes on as it is; an error is not written."""
        if not is_train(message):
            return call_next(message, context)
        sent, number = arrays_of(message, "message"), round_of(message, context)
        reply = call_next(message, context)
        if not reply.has_error():
            leak = Leak(self.tap, number, int(context.node_id), partition_of(context), arrays_of(reply, "reply"), sent)
            write_leak(Path(self.sink), leak)
        return reply
