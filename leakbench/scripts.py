"""What the scripts in results/ and benchmarks/ share: wrong input is one line on stderr and exit code 2; tables in Markdown."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from leakbench.errors import InputError

__all__ = ["existing", "in_table", "markdown_table", "one_line", "untagged"]


def one_line(main: Callable[[], None]) -> None:
    """Run a script; of wrong input, and of a file that cannot be read or written, say one line and exit with 2."""
    try:
        main()
    except InputError as error:
        said = str(error)
    except OSError as error:
        said = f"{error.filename2 or error.filename or 'file system'}: {error.strerror or error}"
    else:
        return
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {' '.join(said.split())}\n")
    sys.exit(2)


def existing(what: str, path: Path | None) -> Path | None:
    """Return a folder that is there, or None for none; raises InputError for another."""
    if path is not None and not path.is_dir():
        raise InputError(f"{what}: no folder {str(path)!r}")
    return path


def in_table(words: object) -> str:
    """Return words that stay words in a Markdown table: no tag, no link, no end of a cell or of a line."""
    return " ".join(
        str(words).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("](", "]\\(").splitlines()
    )


def untagged(text: str) -> str:
    """Return Markdown in which no tag of HTML is left."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def markdown_table(heads: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table under its heads, without a line's end after the last row."""
    first = list(heads)
    lines: list[Iterable[object]] = [first, ["---"] * len(first), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)
