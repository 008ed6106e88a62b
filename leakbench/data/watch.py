"""A watch over one transfer: it closes the connection if the server sends almost nothing, at any point of its response.

A socket's timeout applies to one call, so a server that sends one byte per minute would never reach it.
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
"""Bytes per second below which a transfer has stalled."""


class Watch:
    """Closes a connection if fewer than `SLOWEST` bytes per second came in `timeout` seconds; report bytes with `came`."""

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
        """Count received bytes."""
        self._came += count

    def _look(self) -> None:
        before = 0
        while not self._over.wait(self.timeout):
            if self._came - before < SLOWEST * self.timeout and self.socket is not None:
                self.stalled = True
                with suppress(OSError):  # Without TLS's closing message, since the server does not respond.
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
