"""SIGTERM and the end of a terminal, which end a sweep as Ctrl-C does; a second signal does not disturb the end of the first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["listening"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def listening() -> Iterator[None]:
    """Raise KeyboardInterrupt for the first of the signals; one that is ignored, as SIGHUP by `nohup`, stays so.

    Entered after an engine has begun: Ray has a handler of its own for SIGTERM.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)


def _stop(number: int, frame: Any) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt
