"""A faulty server on this machine: each fault is a function that handles one request."""

from __future__ import annotations

import random
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["Asked", "Behaviour", "Server", "certificate", "served"]


@dataclass
class Asked:
    """One request: its number on its path, from 0, and the first byte requested."""

    number: int
    start: int
    handler: Handler

    def head(self, status: int, **headers: object) -> None:
        """Send a status and headers, with `_` for `-`."""
        self.handler.send_response(status)
        for name, value in headers.items():
            self.handler.send_header(name.replace("_", "-"), str(value))
        self.handler.end_headers()

    def body(self, content: bytes) -> None:
        """Send bytes while the client is connected."""
        with suppress(OSError):
            self.handler.wfile.write(content)
            self.handler.wfile.flush()

    def whole(self, content: bytes, cut: int | None = None, **headers: object) -> None:
        """Answer as a good server does, except for `cut`: the connection is dead after this many bytes."""
        start = self.start if self.start <= len(content) else 0
        if self.start == len(content) > 0:
            self.head(416, Content_Range=f"bytes */{len(content)}", Content_Length=0)
            return
        said = {"Content_Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        self.head(206 if start else 200, **({"Content_Length": len(content) - start} | said | headers))
        self.body(content[start:] if cut is None else content[start : start + cut])
        if cut is not None:
            self.die()

    def die(self) -> None:
        """Cut the connection without closing TCP properly."""
        with suppress(OSError):
            self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.handler.close_connection = True
        with suppress(OSError):
            self.handler.connection.close()

    def drip(self, content: bytes, seconds: float) -> None:
        """Send a byte now and then, until the client disconnects."""
        for byte in content:
            try:
                self.handler.wfile.write(bytes([byte]))
                self.handler.wfile.flush()
            except OSError:
                return
            time.sleep(seconds)

    def silence(self, seconds: float) -> None:
        """Send nothing for a while; ends with the server."""
        self.handler.server.over.wait(seconds)


Behaviour = Callable[[Asked], None]


@dataclass
class State:
    """The behaviours of a server, and its requests so far."""

    does: dict[str, Behaviour] = field(default_factory=dict)
    log: list[tuple[str, str | None]] = field(default_factory=list)


class Server(ThreadingHTTPServer):
    """Serves behaviours by path; unknown paths are 404."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, tls: tuple[Path, Path] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.state, self.over, self.scheme = State(), threading.Event(), "http"
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.socket, self.scheme = context.wrap_socket(self.socket, server_side=True), "https"

    def url(self, name: str, host: str = "127.0.0.1") -> str:
        """Return the address of a path."""
        return f"{self.scheme}://{host}:{self.server_address[1]}/{name}"

    def does(self, name: str, behaviour: Behaviour) -> str:
        """Set the behaviour of a path, and return its address."""
        self.state.does[name] = behaviour
        return self.url(name)

    def asked(self, name: str) -> int:
        """Return the number of requests for a path."""
        return sum(path == name for path, _ in self.state.log)

    def handle_error(self, *_: object) -> None:
        """Log nothing: clients disconnect on purpose."""


class Handler(BaseHTTPRequestHandler):
    """Hands each request to the behaviour of its path."""

    server: Server

    def do_GET(self) -> None:
        """Answer."""
        name, wanted = self.path.lstrip("/"), self.headers.get("Range")
        number = self.server.asked(name)
        self.server.state.log.append((name, wanted))
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        behaviour = self.server.state.does.get(name)
        asked = Asked(number, start, self)
        if behaviour is None:
            asked.head(404, Content_Length=0)
            return
        with suppress(OSError):
            behaviour(asked)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def served(tls: tuple[Path, Path] | None = None) -> Iterator[Server]:
    """Run a server for a while."""
    with Server(tls) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


def certificate(folder: Path) -> tuple[Path, Path] | None:
    """Make a certificate of this machine for one hour; None without openssl."""
    folder.mkdir(parents=True, exist_ok=True)
    key, made = folder / "key.pem", folder / "certificate.pem"
    names = "subjectAltName=IP:127.0.0.1,DNS:localhost"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    try:
        subprocess.run(
            [*words, "-addext", names, "-keyout", str(key), "-out", str(made)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return made, key


def content_of(seed: int, size: int) -> bytes:
    """Return bytes that do not compress."""
    return random.Random(seed).randbytes(size)
