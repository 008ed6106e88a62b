"""SIGTERM and the end of a terminal, which end a sweep as Ctrl-C does; a second signal does not disturb the end of the first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from leakbench.ending import SIGNALS, Told

__all__ = ["listening"]


@contextmanager
def listening() -> Iterator[None]:
    """Raise KeyboardInterrupt for the first of the signals; one that is ignored, as SIGHUP by `nohup`, stays so.

    Entered after an engine has begun: Ray has a handler of its own for SIGTERM.
    """
    told = Told()
    before = {number: signal.getsignal(number) for number in SIGNALS}
    heard = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in heard:
        signal.signal(number, told)
    try:
        yield
    finally:
        for number, handler in heard.items():
            if not told.to_end:
                signal.signal(number, handler)
