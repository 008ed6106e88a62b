"""Addresses that may be fetched: https, and plain http of this machine, as for a test server or a tunnel."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

__all__ = ["follows", "is_safe"]


def is_safe(url: str) -> bool:
    """Return whether an address is https, or http of this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and _is_here(host)))


def follows(before: str, after: str) -> bool:
    """Return whether a redirection may be followed: never from https to anything else."""
    return is_safe(after) and not (urlsplit(before).scheme == "https" and urlsplit(after).scheme != "https")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
