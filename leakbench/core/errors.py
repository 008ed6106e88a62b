"""Errors of wrong input, with a remedy in their message; and functions that recognise a lack of memory or disk space."""

import errno
import re
from difflib import get_close_matches
from pathlib import Path

from leakbench.core.untrusted import CONTROLS

__all__ = [
    "AbsentError",
    "BusyError",
    "DamagedError",
    "InputError",
    "check_file",
    "nearest",
    "no_room",
    "out_of_memory",
    "wanted",
]

LACKS = (
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "_STATUS_ALLOC_FAILED",
    "could not create a primitive",
    "could not create a memory object",
)
"""Texts in PyTorch's RuntimeErrors for a lack of memory: of its allocators on the CPU and on a GPU, of CUDA's libraries, and of
oneDNN, which gives no reason."""

NAMED = ("OutOfMemoryError",)
"""Name of PyTorch's error, which is not imported here; Arrow's error is a MemoryError."""

UNLOADED = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")
"""Texts of the loader of shared libraries in an ImportError."""


class InputError(ValueError):
    """Wrong input from the user: the command line prints its one line on stderr and exits with code 2.

    The message names the field, the given value, and what is accepted or how to fix it. It is always one line, with U+FFFD for
    control characters from quoted files.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(CONTROLS.sub("\ufffd", message).splitlines()))


class AbsentError(InputError):
    """A data set is not on this machine and was not fetched."""


class BusyError(InputError):
    """Another process uses a run's folder; it may be free later."""


class DamagedError(InputError):
    """A file has another content than the run wrote.

    Args:
        what: The file and the evidence.
        cure: The remedy, which the message adds.
    """

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what}; {cure}")
        self.what = what


def check_file(field: str, given: str | Path) -> None:
    """Raise InputError, with the field, for the path of a file that does not exist, or of a folder."""
    if Path(given).is_dir():
        raise InputError(f"{field}: {str(given)!r} is a folder, expected a file")
    if not Path(given).is_file():
        raise InputError(f"{field}: no file {str(given)!r}")


MANY = 24
"""Largest number of accepted names that a message lists where a command lists them too."""


FEW = 6
"""Largest number of accepted names that a message suggests."""


def nearest(name: str, known: list[str] | tuple[str, ...], listing: str = "") -> str:
    """Return the end of a message about an unknown name.

    Args:
        name: The unknown name.
        known: The accepted names.
        listing: The command that lists the names; empty without one.

    Returns:
        `; did you mean 'x'?` with the nearest known name, or with the few names that contain it if none is very near, or
        `; known: a, b` if none is near, where semicolons separate names with commas. More than `MANY` names are listed
        by the command only.
    """
    within = [k for k in known if name in k] if len(name) > 2 else []
    alike = get_close_matches(name, known, n=1, cutoff=0.6)
    if 0 < len(within) <= FEW and not get_close_matches(name, alike, cutoff=0.8):
        alike = get_close_matches(name, within, n=FEW, cutoff=0)
    if not alike and listing and len(known) > MANY:
        return f"; `{listing}` lists the names"
    return (
        f"; did you mean {' or '.join(map(repr, alike))}?"
        if alike
        else f"; known: {('; ' if any(',' in k for k in known) else ', ').join(sorted(known))}"
    )


def no_room(error: BaseException | None, place: Path) -> bool:
    """Return whether an error, or its cause, means that a folder cannot be written: a full or read-only disk, no permission."""
    if isinstance(error, InputError):
        return no_room(error.__cause__, place)
    if not isinstance(error, OSError):
        return False
    forbidden = error.errno in (errno.EACCES, errno.EPERM) and isinstance(error.filename, str | Path)
    within = forbidden and Path(error.filename).absolute().is_relative_to(place.absolute())
    return within or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means a lack of memory, in Python, NumPy or PyTorch, on the CPU or on a GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ in NAMED:
        return True
    if isinstance(error, ImportError):
        return any(lack in str(error) for lack in UNLOADED)
    return isinstance(error, RuntimeError) and any(lack in str(error) for lack in LACKS)


def wanted(error: BaseException) -> str:
    """Return ` (tried to allocate 2.00 GiB)` for an error with a lack of memory; an empty text if it has no size."""
    size = re.search(r"(tried|unable) to allocate ([\d.]+ \w+)", str(error), re.IGNORECASE)
    return f" ({size[1].lower()} to allocate {size[2]})" if size else ""
