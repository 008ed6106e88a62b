"""Whether a head of Ray is alive at an address, found out within seconds: Ray itself goes on trying for minutes."""

from __future__ import annotations

import os
import re
import socket

from leakbench.errors import InputError

__all__ = ["check_address"]

SECONDS = 4.0

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""How a client of gRPC, which a head speaks, begins (RFC 9113, section 3.4): the words and an empty SETTINGS frame."""

SETTINGS = 0x04
"""The type, the fourth byte of a frame, of the one with which a server has to answer."""


def check_address(address: str, seconds: float = SECONDS) -> None:
    """Raise InputError where no head of Ray answers at HOST:PORT in this many seconds."""
    found = re.fullmatch(r"\[?([^\[\]/ ]+?)\]?:(\d{1,5})", address)
    if not found or not 0 < int(found[2]) < 65536:
        raise InputError(f"address: got {address!r}, expected HOST:PORT of a head of Ray, as 10.0.0.5:6379")
    try:
        with socket.create_connection((found[1], int(found[2])), timeout=seconds / 2) as line:
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
                line.settimeout(seconds / 2)
                line.sendall(PREFACE)
                answered = line.recv(9)
                if len(answered) < 4 or answered[3] != SETTINGS:
                    raise OSError("the program at this address is not a head of Ray")
    except OSError as error:
        why = str(error.strerror or error)
        raise InputError(
            f"address: no Ray cluster answers at {address} ({why}); start one there (ray start --head --port 6379), or leave"
            " --address out for a Ray of this machine alone"
        ) from None
