"""The tap at the server between strategies: what a strategy is given to aggregate."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from leakbench.flower.arrays import Arrays
from leakbench.flower.tap_grid import written

__all__ = ["Probe", "ProbeStrategy"]

Probe: TypeAlias = Callable[[int, Arrays, list[Message]], None]
"""(round from 1, {name: array} that was sent, replies without error): told before they are aggregated."""


class ProbeStrategy(Strategy):
    """Do what another strategy does, and tell a probe what it is given to aggregate, as Flower's own wrappers delegate.

    Around a wrapper of differential privacy at the server it sees what arrives; inside it, around the inner strategy, what the
    wrapper's clip left.

    strategy: the one that works.  probe: who is told, or a folder (`leakbench.flower.leaks`).  tap: what the view is called there.
    """

    def __init__(self, strategy: Strategy, probe: Probe | str | Path, tap: str = "type-0") -> None:
        super().__init__()
        self.strategy, self.tap = strategy, tap
        self.probe = _into(Path(probe), tap) if isinstance(probe, str | Path) else probe
        self._sent: Arrays = {}

    def __repr__(self) -> str:
        return f"ProbeStrategy({self.strategy!r})"

    def summary(self) -> None:
        """Let the strategy log what it is."""
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose whom it sends what, and remember the arrays."""
        self._sent = {name: array.numpy() for name, array in arrays.items()}
        messages: Iterable[Message] = self.strategy.configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Tell the probe and let the strategy aggregate."""
        replies = list(replies)
        self.probe(server_round, self._sent, [reply for reply in replies if not reply.has_error()])
        found: tuple[ArrayRecord | None, MetricRecord | None] = self.strategy.aggregate_train(server_round, replies)
        return found

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose whom it asks."""
        messages: Iterable[Message] = self.strategy.configure_evaluate(server_round, arrays, config, grid)
        return messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Let the strategy sum up."""
        return self.strategy.aggregate_evaluate(server_round, replies)


def _into(folder: Path, tap: str) -> Probe:
    def probe(number: int, sent: Arrays, replies: list[Message]) -> None:
        for reply in replies:
            written(folder, tap, number, reply, sent)

    return probe
