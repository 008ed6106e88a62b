"""Counts a hypothesis property in a tally: each example is one case; a failure is shrunk and counts once."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.reliability.tally import Tally

__all__ = ["holds"]


def holds(tally: Tally, said: str, examples: int, check: Callable[..., None], *drawn: st.SearchStrategy) -> None:
    """Try `check`, which asserts, on this many examples, always the same ones."""
    tried = 0

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
    )
    @given(st.tuples(*drawn))
    def case(values: tuple[object, ...]) -> None:
        nonlocal tried
        tried += 1
        check(*values)

    try:
        case()
    except AssertionError as error:
        told = "; ".join([str(error), *getattr(error, "__notes__", [])])
        tally.failures.append(f"{said}: {' '.join(told.split())[:1000]}")
    tally.tried += tried
