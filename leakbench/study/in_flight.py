"""The loop that all engines share: so many tasks in flight, those of a lost worker begun again."""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from leakbench.study.task import Outcome, Task

__all__ = ["RETRIES", "WINDOW", "Crew", "in_flight"]

WINDOW = 64
"""Tasks in flight at least, where an engine has a queue: enough to keep its workers busy, and few to lose."""

RETRIES = 3
"""How often a task is begun again after its worker was lost."""


class Crew(Protocol):
    """Workers of an engine."""

    def begin(self, task: Task) -> None:
        """Hand a task to a worker, or to the queue before them."""

    def ended(self) -> list[tuple[Task, Outcome | None]]:
        """Wait a second at most for tasks to end; of one whose worker was lost there is no outcome."""


def in_flight(tasks: Iterable[Task], crew: Crew, most: int, retries: int = RETRIES) -> Iterator[Outcome]:
    """Yield what comes of every task, as they end; at most so many are in flight."""
    source, again, lost, flying = iter(tasks), deque[Task](), Counter[str](), 0
    while True:
        while flying < most and (task := again.popleft() if again else next(source, None)) is not None:
            crew.begin(task)
            flying += 1
        if not flying:
            return
        for task, outcome in crew.ended():
            flying -= 1
            if outcome is not None:
                yield dataclasses.replace(outcome, tries=1 + lost[task.key])
                continue
            lost[task.key] += 1
            if lost[task.key] <= retries:
                again.append(task)
                continue
            tries = lost[task.key]
            yield Outcome(task.key, "lost", error=f"its worker was lost each of {tries} times", tries=tries)
