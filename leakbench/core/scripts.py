"""Functions of the scripts in studies/ and benchmarks/: errors as one line on stderr with exit code 2, and Markdown tables."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from leakbench.core.errors import InputError

__all__ = ["existing", "in_table", "markdown_table", "one_line", "untagged"]


def one_line(main: Callable[[], None]) -> None:
    """Run a script; for wrong input or a file error, print one line and exit with code 2."""
    try:
        main()
    except InputError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename2 or error.filename or 'file system'}: {error.strerror or error}"
    else:
        return
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {' '.join(message.split())}\n")
    sys.exit(2)


def existing(what: str, path: Path | None) -> Path | None:
    """Return an existing folder or None; raises InputError for a folder that does not exist."""
    if path is not None and not path.is_dir():
        raise InputError(f"{what}: no folder {str(path)!r}")
    return path


def in_table(words: object) -> str:
    """Return text escaped for a Markdown table: without tags, links, cell ends and line ends."""
    return " ".join(
        str(words).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("](", "]\\(").splitlines()
    )


def untagged(text: str) -> str:
    """Return Markdown without HTML tags."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def markdown_table(heads: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table, without a line end after the last row."""
    first = list(heads)
    lines: list[Iterable[object]] = [first, ["---"] * len(first), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
