"""The result of trying one promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Tally"]


@dataclass
class Tally:
    """The number of cases, their failures, and measured figures.

    failures: one line each: the case, the expected and the actual outcome.  figures: what the page reports next to the counts.
    """

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    def expect(self, holds: bool, said: str) -> None:
        """Count one case, and `said` as its failure if it does not hold."""
        self.tried += 1
        if not holds:
            self.failures.append(said)

    @contextmanager
    def case(self, said: str) -> Iterator[None]:
        """Count the code inside as one case, which fails by any exception."""
        self.tried += 1
        try:
            yield
        except Exception as error:  # Any exception is a failure of this case; the others are still tried.
            self.failures.append(f"{said}: {type(error).__name__}: {error}".splitlines()[0])
