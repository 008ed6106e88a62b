"""Refuse connections that leave this machine. It imports nothing slow, since every child of a test imports it first."""

import errno
import os
import sys
from typing import Any

HERE = frozenset({"", "localhost", "ip6-localhost", "::", "::1", "0.0.0.0"})
BEGINNINGS = ("127.", "::ffff:127.")


def refuse_network() -> None:
    """Make this process raise OSError where Python code connects, sends or resolves beyond this machine.

    An audit hook sees every use of Python's sockets and cannot be removed. It does not see sockets that libraries in C
    open themselves.
    """
    sys.addaudithook(_check)


def _check(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        # An address that is not a tuple is a file (AF_UNIX).
        if isinstance(address, tuple) and address and not _is_here(address[0]):
            _refuse(event, address)
    elif event == "socket.getaddrinfo" and not (_is_here(arguments[0]) or _is_known(arguments[0])):
        _refuse(event, arguments[0])


def _is_here(host: Any) -> bool:
    if not isinstance(host, str | bytes):
        return True
    name = host.decode() if isinstance(host, bytes) else host
    return name in HERE or name.startswith(BEGINNINGS)


def _is_known(host: str | bytes) -> bool:
    """Say whether a host is an address or this machine's own name; both are resolved without a name server."""
    name = host.decode() if isinstance(host, bytes) else host
    return ":" in name or name.replace(".", "").isdigit() or name == os.uname().nodename


def _refuse(event: str, address: Any) -> None:
    raise OSError(errno.EHOSTUNREACH, f"the tests use no network, but {event} was called with {address!r}")
