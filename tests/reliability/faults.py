"""Faults of one download, each with the required outcome: `good`, a whole file, or `refused`, one line and no file."""

from __future__ import annotations

import email.utils
import gzip
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.reliability.lying import Asked, Behaviour, Server

__all__ = ["Fault", "faults"]

TIMEOUT = 0.4
"""Seconds of silence after which these downloads disconnect."""


@dataclass(frozen=True)
class Fault:
    """One behaviour. good: whether the file can be downloaded despite it. stalls: extra seconds that it may take for each try."""

    name: str
    does: Behaviour
    good: bool
    said: str = ""


def faults(content: bytes, rng: random.Random, server: Server) -> Iterator[Fault]:
    """Yield every fault once, at places that `rng` draws."""
    yield from _cuts(content, rng)
    yield from _stalls(content, rng)
    yield from _lengths(content, rng)
    yield from _ranges(content, rng)
    yield from _contents(content, rng)
    yield from _refusals(content)
    yield from _redirections(content, server)


def _cuts(content: bytes, rng: random.Random) -> Iterator[Fault]:
    size = len(content)
    somewhere, later = rng.randrange(1, size), rng.randrange(1, size)
    yield Fault("whole", lambda a: a.whole(content), True)
    yield Fault("cut once", lambda a: a.whole(content, somewhere if a.number == 0 else None), True)
    yield Fault("cut three times", lambda a: a.whole(content, later // 4 if a.number < 3 else None), True)
    yield Fault("cut at the first byte", lambda a: a.whole(content, 0 if a.number < 2 else None), True)
    yield Fault("cut always at once", lambda a: a.whole(content, 0), False, "4 times without getting on")
    yield Fault("dead before an answer", lambda a: a.die(), False, "4 times without getting on")
    yield Fault("dead twice, then well", lambda a: a.die() if a.number < 2 else a.whole(content), True)

    def chunked(asked: Asked, cut: bool) -> None:
        asked.head(200, Transfer_Encoding="chunked")
        for at in range(0, size, 50_000):
            piece = content[at : at + 50_000]
            asked.body(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            if cut and at >= size // 2:
                asked.die()
                return
        asked.body(b"0\r\n\r\n")

    yield Fault("chunked", lambda a: chunked(a, False), True)
    yield Fault("chunked, cut once", lambda a: chunked(a, a.number == 0), True)
    yield Fault("chunked, cut always", lambda a: chunked(a, True), False, "4 times without getting on")


def _stalls(content: bytes, rng: random.Random) -> Iterator[Fault]:
    somewhere = rng.randrange(1, len(content))

    def silent(asked: Asked) -> None:
        asked.head(200, Content_Length=len(content))
        asked.body(content[:somewhere])
        asked.silence(5)

    def header(asked: Asked) -> None:
        asked.drip(b"HTTP/1.1 200 OK\r\n" + b"X-Padding: 1\r\n" * 1000, 0.05)

    def body(asked: Asked) -> None:
        asked.head(200, Content_Length=len(content))
        asked.drip(content, 0.05)

    yield Fault("silent midway, then well", lambda a: silent(a) if a.number == 0 else a.whole(content), True)
    yield Fault(
        "silent before an answer, then well", lambda a: a.silence(5) if not a.number else a.whole(content), True
    )
    yield Fault("silent always", lambda a: a.silence(5), False, "4 times without getting on")
    yield Fault("a header byte by byte", header, False, "stalled")
    yield Fault("a body byte by byte", body, False, "stalled")


def _lengths(content: bytes, rng: random.Random) -> Iterator[Fault]:
    size = len(content)
    off = rng.randrange(1, size)

    def unsaid(asked: Asked, until: int) -> None:
        asked.head(200)
        asked.body(content[:until])

    def endless(asked: Asked) -> None:
        asked.head(200)
        for _ in range(100):
            asked.body(content)

    yield Fault("says that it has more", lambda a: a.whole(content, Content_Length=size - a.start + off), True)
    yield Fault("says that it has less", lambda a: a.whole(content, Content_Length=off), False, "wrong checksum")
    yield Fault("says that it has nothing", lambda a: a.whole(content, Content_Length=0), False, "wrong checksum")
    yield Fault("says that it has a petabyte", lambda a: a.whole(content, Content_Length=10**15), False, "at most")
    yield Fault("says no number", lambda a: a.whole(content, Content_Length="many"), True)
    yield Fault("says no length", lambda a: unsaid(a, size), True)
    yield Fault(
        "says no length and has half, once",
        lambda a: unsaid(a, off if not a.number else size),
        True,
    )
    yield Fault("says no length and has half", lambda a: unsaid(a, off), False, "wrong checksum")
    yield Fault("never ends", endless, False, "at most")


def _ranges(content: bytes, rng: random.Random) -> Iterator[Fault]:
    size = len(content)
    cut = rng.randrange(size // 2, size)

    def whole(asked: Asked, dies: bool) -> None:
        asked.head(200, Content_Length=size)
        asked.body(content[:cut] if dies else content)
        if dies:
            asked.die()

    def lies(asked: Asked, said: int, sent: int) -> None:
        if asked.start == 0:
            asked.whole(content, cut if asked.number == 0 else None)
            return
        asked.head(206, Content_Range=f"bytes {said}-{size - 1}/{size}", Content_Length=size - sent)
        asked.body(content[sent:])

    def refuses(asked: Asked) -> None:
        if asked.start:
            asked.head(416, Content_Range=f"bytes */{cut // 2}", Content_Length=0)
        else:
            asked.whole(content, cut if asked.number == 0 else None)

    yield Fault("ignores Range", lambda a: whole(a, a.number == 0), True)
    yield Fault("ignores Range and is cut always", lambda a: whole(a, True), False, "4 times without getting on")
    yield Fault("a range from elsewhere, which it says", lambda a: lies(a, 7, 7), False, "was asked for bytes from")
    yield Fault("a range from elsewhere, which it hides", lambda a: lies(a, a.start, a.start - 1), True)
    yield Fault("no range that is left", refuses, True)
    yield Fault(
        "a range that was not asked for", lambda a: (a.head(206, Content_Length=size), a.body(content))[0], True
    )


def _contents(content: bytes, rng: random.Random) -> Iterator[Fault]:
    flipped = bytearray(content)
    flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    other = rng.randbytes(len(content))
    for name, body in (
        ("one bit flipped", bytes(flipped)),
        ("another file as long", other),
        ("nothing", b""),
        ("a page of HTML", b"<html><script>alert(1)</script>"),
        ("a byte less", content[:-1]),
        ("a byte more", content + b"\n"),
        ("unrequested gzip", gzip.compress(content, 1)),
    ):
        yield Fault(name, lambda a, body=body: a.whole(body), False, "wrong checksum")


def _refusals(content: bytes) -> Iterator[Fault]:
    for status in (204, 304, 400, 401, 403, 404, 410, 451, 501):
        yield Fault(f"HTTP {status}", lambda a, s=status: a.head(s, Content_Length=0), False, f"HTTP {status}")
    for status in (408, 429, 500, 502, 503, 504):
        yield Fault(f"HTTP {status} always", lambda a, s=status: a.head(s, Content_Length=0), False, "4 times")
        yield Fault(f"HTTP {status} twice", lambda a, s=status: a.head(s) if a.number < 2 else a.whole(content), True)
    date = lambda ahead: email.utils.formatdate(time.time() + ahead, usegmt=True)  # noqa: E731
    for name, after, good in (
        ("7 seconds", lambda: "7", True),
        ("a date in 20 s", lambda: date(20), True),
        ("a date long ago", lambda: date(-9e5), True),
        ("nothing sensible", lambda: "soon", True),
        ("a negative number", lambda: "-5", True),
        ("an hour", lambda: "3600", False),
        ("a date next year", lambda: date(3e7), False),
        ("a number without end", lambda: "9" * 300, True),
    ):
        yield Fault(
            f"503, Retry-After of {name}",
            lambda a, after=after: (
                a.head(503, Retry_After=after(), Content_Length=0) if not a.number else a.whole(content)
            ),
            good,
            "" if good else "asks to be left alone",
        )


def _redirections(content: bytes, server: Server) -> Iterator[Fault]:
    names = (f"hop{n}" for n in itertools.count())

    def to(address: str, status: int = 302) -> Behaviour:
        return lambda a: a.head(status, Location=address, Content_Length=0)

    def chain(length: int) -> Behaviour:
        address = server.does(next(names), lambda a: a.whole(content))
        for _ in range(length - 1):
            address = server.does(next(names), to(address))
        return to(address)

    for status in (301, 302, 303, 307, 308):
        yield Fault(f"redirected by {status}", to(server.does(next(names), lambda a: a.whole(content)), status), True)
    yield Fault("redirected 4 times", chain(4), True)
    yield Fault("redirected 20 times", chain(20), False, "redirected in a loop")
    one, two = next(names), next(names)
    server.does(one, to(server.url(two)))
    yield Fault(
        "redirected in a circle", server.state.does.setdefault(two, to(server.url(one))), False, "redirected in a loop"
    )
    cut = server.does(next(names), lambda a: a.whole(content, len(content) // 2 if a.number == 0 else None))
    yield Fault("redirected to where it is cut", to(cut), True)
    for address in ("file:///etc/passwd", "ftp://127.0.0.1/x", "http://192.0.2.1/x", "http://example.org/x", "data:,x"):
        yield Fault(f"redirected to {address}", to(address), False, "")
    yield Fault("redirected to nowhere", lambda a: a.head(302, Content_Length=0), False, "")
    yield Fault("redirected to no address", to("http://[half"), False, "")
