"""The one error that means: what was asked for cannot be done, and here is how to cure it; and what says that memory ran out."""

import errno
import re
from difflib import get_close_matches
from pathlib import Path

from leakbench.bounded import CONTROLS

__all__ = ["AbsentError", "BusyError", "DamagedError", "InputError", "nearest", "no_room", "out_of_memory", "wanted"]

LACKS = (
    "not enough memory",
    "can't allocate memory",
    "out of memory",
    "_STATUS_ALLOC_FAILED",
    "could not create a primitive",
    "could not create a memory object",
)
"""What stands in the text of PyTorch's RuntimeErrors: of its allocators on the CPU and on a GPU, of CUDA's libraries, and of
oneDNN, which does not say why."""

NAMED = ("OutOfMemoryError",)
"""That of PyTorch, which need not be imported here; Arrow's is a MemoryError."""

UNLOADED = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")
"""What the loader of shared libraries says, in an ImportError."""


class InputError(ValueError):
    """Wrong input from the user: the command line prints its one line on stderr and exits with 2.

    The message names the field, what was got, and what is accepted or how to cure it. Whatever it quotes of a stranger's file,
    it is one line, with U+FFFD for what a terminal would obey.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(CONTROLS.sub("\ufffd", message).splitlines()))


class AbsentError(InputError):
    """A data set is not on this machine, and was not fetched."""


class BusyError(InputError):
    """A run's folder is held by another process; it may be free later."""


class DamagedError(InputError):
    """A file is not as it was written.

    what: which, and how that is known, without what to do about it, which the whole line has.
    """

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what}; {cure}")
        self.what = what


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest known name, or `".

    Names of which one has a comma are parted by semicolons.

    Args:
        known: a, b"` where none is near.
    """
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return (
        f"; did you mean {close[0]!r}?"
        if close
        else f"; known: {('; ' if any(',' in k for k in known) else ', ').join(sorted(known))}"
    )


def no_room(error: BaseException | None, place: Path) -> bool:
    """Say whether an error, or its cause, is of a place that takes no more: its disk full or read-only, its folder forbidden."""
    if isinstance(error, InputError):
        return no_room(error.__cause__, place)
    if not isinstance(error, OSError):
        return False
    forbidden = error.errno in (errno.EACCES, errno.EPERM) and isinstance(error.filename, str | Path)
    within = forbidden and Path(error.filename).absolute().is_relative_to(place.absolute())
    return within or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that memory did not suffice, in Python, NumPy or PyTorch, on the CPU or on a GPU."""
    if isinstance(error, MemoryError) or type(error).__name__ in NAMED:
        return True
    if isinstance(error, ImportError):
        return any(lack in str(error) for lack in UNLOADED)
    return isinstance(error, RuntimeError) and any(lack in str(error) for lack in LACKS)


def wanted(error: BaseException) -> str:
    """Return `" (tried to allocate 2.00 GiB)"` of an error for which memory did not suffice; nothing where it does not say."""
    said = re.search(r"(tried|unable) to allocate ([\d.]+ \w+)", str(error), re.IGNORECASE)
    return f" ({said[1].lower()} to allocate {said[2]})" if said else ""
