"""A watch over one transfer: a server that sends next to nothing is hung up on, wherever in its answer it stalls.

A socket's own timeout is of one call, so that a byte a minute would pass it for days.
"""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

__all__ = ["Watch", "opener"]

SLOWEST = 1024.0
"""Bytes a second; what comes slower has stalled."""


class Watch:
    """Hangs up where less than `SLOWEST` came in each `timeout` seconds; tell it of bytes by `came`."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.stalled = False
        self.socket: socket.socket | None = None
        self._came = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def came(self, count: int) -> None:
        """Enter that so many bytes came."""
        self._came += count

    def _look(self) -> None:
        before = 0
        while not self._over.wait(self.timeout):
            if self._came - before < SLOWEST * self.timeout and self.socket is not None:
                self.stalled = True
                with suppress(
                    OSError
                ):  # The descriptor itself: what of TLS is left to say is not said to who does not listen.
                    socket.socket.shutdown(self.socket, socket.SHUT_RDWR)
            before = self._came


def opener(watch: Watch, *handlers: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """Return an opener whose connections are watched."""
    return urllib.request.build_opener(_Plain(watch), _Encrypted(watch), *handlers)


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_watched(http.client.HTTPConnection, self.watch), req)


class _Encrypted(urllib.request.HTTPSHandler):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_watched(http.client.HTTPSConnection, self.watch), req)


def _watched(kind: Callable[..., http.client.HTTPConnection], watch: Watch) -> Any:
    def made(host: str, **given: Any) -> http.client.HTTPConnection:
        connection = kind(host, **given)
        connect = connection.connect

        def connected() -> None:
            connect()
            watch.socket = connection.sock

        connection.connect = connected  # type: ignore[method-assign]
        return connection

    return made
