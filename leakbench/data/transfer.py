"""One transfer over HTTP into a file: resumed if the server supports it, limited in bytes, and ended if it stalls."""

from __future__ import annotations

import email.utils
import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, TypeAlias

from leakbench.data.addresses import follows, is_safe
from leakbench.data.watch import SLOWEST, Watch, opener

__all__ = ["Failed", "Progress", "size_of", "transfer"]

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with (file, bytes so far, total bytes or None if the server does not say)."""

CHUNK = 1 << 18
REDIRECTIONS = 5
PASSING = (408, 425, 429, 500, 502, 503, 504)
"""HTTP status codes that may be temporary."""


class Failed(Exception):
    """The reason why one address did not give the file.

    Args:
        why: The reason.
        again: Whether another try may succeed.
        wait: Seconds that the server asks to wait; None without such a request.
    """

    def __init__(self, why: str, again: bool = False, wait: float | None = None) -> None:
        super().__init__(" ".join(why.split()))
        self.again = again
        self.wait = wait


@dataclass(frozen=True)
class _Sent:
    """A server's description of its response: the position of the first byte, and the file's length or None."""

    start: int
    total: int | None


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def transfer(url: str, part: Path, most: int, progress: Progress | None, timeout: float) -> bool:
    """Append the rest of the file to `part`, or start over if the server does not resume.

    Args:
        most: Largest size of the whole file in bytes.

    Returns:
        Whether the server stated the size of the file.

    Raises:
        Failed: If the address does not give the file.
        OSError: If `part` cannot be written.
    """
    if not is_safe(url):
        raise Failed("expected an address of https (of http only on this machine)")
    before = size_of(part)
    # The address is https, or of this machine: checked above, and by `_Redirections` for redirections.
    request = urllib.request.Request(url, headers={"Range": f"bytes={before}-"} if before else {})  # noqa: S310 - checked
    with Watch(timeout) as watch:
        try:
            with opener(watch, _Redirections()).open(request, timeout=timeout) as response:
                sent = _sent(response, before)
                if sent.total is not None and sent.total > most:
                    raise Failed(f"says that it has {sent.total:,} bytes, expected at most {most:,}")
                done = _copied(response, part, sent, most, progress, watch)
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 416 and before:
                    return _nothing_left(error, part, before)
                raise _refused(error) from None
        except (urllib.error.URLError, TimeoutError, http.client.HTTPException, ConnectionError, ssl.SSLError) as error:
            raise _broken(error, watch, size_of(part)) from None
        except ValueError as error:  # From a redirection to an invalid address.
            raise Failed(f"{type(error).__name__}: {error}"[:200]) from None
    if watch.stalled:
        raise _broken(None, watch, done)
    if sent.total is not None and done > sent.total:
        part.unlink()  # The earlier bytes are not from the same file.
        raise Failed(f"sent {done:,} of {sent.total:,} bytes; what came was deleted", again=True)
    if sent.total is not None and done != sent.total:
        raise Failed(f"cut off after {done:,} of {sent.total:,} bytes", again=True)
    return sent.total is not None


def _sent(response: http.client.HTTPResponse, before: int) -> _Sent:
    """Return the position of a response in the file and the length of the file, from the server's headers."""
    length = _count(response.headers.get("Content-Length"))
    if response.status == 200:
        return _Sent(0, length)
    if response.status != 206:
        raise Failed(f"HTTP {response.status} {response.reason}, expected 200 or 206")
    header = response.headers.get("Content-Range")
    parsed = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", header.strip()) if header else None
    if header and (parsed is None or int(parsed[1]) != before):
        raise Failed(f"was asked for bytes from {before:,} on and sends {header[:60]!r}", again=True)
    total = int(parsed[3]) if parsed and parsed[3] != "*" else None
    return _Sent(before, total if total is not None else None if length is None else before + length)


def _count(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,18}", text.strip()) else None


def _copied(
    response: http.client.HTTPResponse, part: Path, sent: _Sent, most: int, progress: Progress | None, watch: Watch
) -> int:
    """Write the body after the first `start` bytes of `part`; return the new length."""
    name, done = part.name.removesuffix(".part"), sent.start
    with part.open("r+b" if sent.start else "wb") as stream:
        stream.seek(sent.start)
        while chunk := response.read1(CHUNK):
            watch.came(len(chunk))
            done += len(chunk)
            if done > most:
                break
            stream.write(chunk)
            if progress is not None:
                progress(name, done, sent.total)
    if done > most:
        part.unlink()  # Otherwise it would be resumed, but it is not the start of the expected file.
        raise Failed(f"sent more than the {most:,} bytes that were expected at most; what came was deleted")
    return done


def _nothing_left(error: urllib.error.HTTPError, part: Path, before: int) -> bool:
    """Handle status 416: `part` is complete, or it is longer than the file and so from another one."""
    if error.headers.get("Content-Range") == f"bytes */{before}":
        return True
    part.unlink()
    raise Failed("has less than came before, which was deleted", again=True)


def _refused(error: urllib.error.HTTPError) -> Failed:
    if 300 <= error.code < 400:
        return Failed(f"HTTP {error.code}: redirected in a loop, or more than {REDIRECTIONS} times")
    wait = _asked(error.headers.get("Retry-After")) if error.code in PASSING else None
    return Failed(f"HTTP {error.code} {str(error.reason)[:100]}", again=error.code in PASSING, wait=wait)


def _asked(text: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header, which is a number or a date; None for another text."""
    if not text:
        return None
    seconds = _count(text)
    if seconds is not None:
        return float(seconds)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None


def _broken(error: Exception | None, watch: Watch, here: int) -> Failed:
    if watch.stalled:
        text = f"stalled: fewer than {SLOWEST * watch.timeout:,.0f} bytes in {watch.timeout:g} s; {here:,} bytes came so far"
        return Failed(text, again=True)
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    # An unknown host, a refused connection or an invalid certificate will not change in a second.
    lasting = isinstance(reason, ssl.SSLCertVerificationError | ConnectionRefusedError | str) or (
        isinstance(error, urllib.error.URLError) and not isinstance(reason, TimeoutError | ConnectionError)
    )
    text = str(reason) if isinstance(error, urllib.error.URLError) else f"{type(reason).__name__} {reason}".strip()
    return Failed(text[:200], again=not lasting)


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Follows a few redirections, but none away from https."""

    max_redirections = REDIRECTIONS
    max_repeats = 2

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request | None:
        if not follows(req.full_url, newurl):
            fp.close()
            raise Failed(f"redirected to {newurl[:100]!r}, expected https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
