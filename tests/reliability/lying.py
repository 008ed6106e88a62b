"""A server on this machine that does what servers do wrong: each behaviour is a function of its requests, one after the other."""

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
    """One request: which of its path it is, from 0, and the first byte that it wants."""

    number: int
    start: int
    handler: Handler

    def head(self, status: int, **headers: object) -> None:
        """Send a status and headers, `_` for `-`."""
        self.handler.send_response(status)
        for name, value in headers.items():
            self.handler.send_header(name.replace("_", "-"), str(value))
        self.handler.end_headers()

    def body(self, content: bytes) -> None:
        """Send bytes, as far as somebody listens."""
        with suppress(OSError):
            self.handler.wfile.write(content)
            self.handler.wfile.flush()

    def whole(self, content: bytes, cut: int | None = None, **headers: object) -> None:
        """Answer as a good server does, but for `cut`: after so many bytes the line is dead."""
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
        """Cut the line, without the goodbye of TCP."""
        with suppress(OSError):
            self.handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.handler.close_connection = True
        with suppress(OSError):
            self.handler.connection.close()

    def drip(self, content: bytes, seconds: float) -> None:
        """Send a byte now and then, until nobody listens."""
        for byte in content:
            try:
                self.handler.wfile.write(bytes([byte]))
                self.handler.wfile.flush()
            except OSError:
                return
            time.sleep(seconds)

    def silence(self, seconds: float) -> None:
        """Say nothing for a while, which ends with the server."""
        self.handler.server.over.wait(seconds)


Behaviour = Callable[[Asked], None]


@dataclass
class State:
    """What a server was told to do, and what it was asked."""

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
        """Let a path behave so, and return its address."""
        self.state.does[name] = behaviour
        return self.url(name)

    def asked(self, name: str) -> int:
        """Return how often a path was asked for."""
        return sum(path == name for path, _ in self.state.log)

    def handle_error(self, *_: object) -> None:
        """Keep quiet: clients hang up on it."""


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
        """Keep quiet."""


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
    """Make a certificate of this machine for an hour; None without openssl."""
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
