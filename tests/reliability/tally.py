"""What came of trying one point."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = ["Tally"]


@dataclass
class Tally:
    """How many cases were tried, which failed, and what was measured besides.

    failures: a line each: the case, what was expected, what was found.  figures: what the page says beside the counts.
    """

    tried: int = 0
    failures: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    def expect(self, holds: bool, said: str) -> None:
        """Count one case, and `said` as its failure where it does not hold."""
        self.tried += 1
        if not holds:
            self.failures.append(said)

    @contextmanager
    def case(self, said: str) -> Iterator[None]:
        """Count what is done inside as one case, which fails by any exception."""
        self.tried += 1
        try:
            yield
        except Exception as error:  # Whatever comes is a failure of this case; the others are still tried.
            self.failures.append(f"{said}: {type(error).__name__}: {error}".splitlines()[0])
