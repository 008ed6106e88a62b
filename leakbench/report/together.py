"""The page of several runs: two compared, or three and more as levels of noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from leakbench.core.errors import InputError
from leakbench.report.compared import compared_page
from leakbench.report.levels import levels_page
from leakbench.report.several import read_several
from leakbench.storage.atomic import write_text
from leakbench.storage.manifest_file import check_spared

__all__ = ["write_together"]


def write_together(folders: Sequence[Path], out: Path | None = None, redact: bool = False) -> Path:
    """Write one page of two or more finished runs on the same victims.

    Args:
        folders: Run folders.
        out: Path of the page; by default next to the first run folder, named after the first and the last.
        redact: Whether to leave the pictures out.

    Returns:
        Path of the page.

    Raises:
        InputError: If the runs cannot be combined, or `out` is a folder, a file of a run or has another suffix.
    """
    if out is not None and not out.is_dir() and out.suffix != ".html":
        raise InputError(f"out: got {str(out)!r}, expected a name that ends in .html")
    if out is not None:
        check_spared("out", out)
    runs = read_several(folders, redact)
    html = compared_page(*runs) if len(runs) == 2 else levels_page(runs)
    if out is None:
        first, last = (folder.resolve() for folder in (folders[0], folders[-1]))
        kind = "compare" if len(runs) == 2 else f"{len(runs)}-levels"
        out = first.parent / f"{kind}-{first.name}-{last.name}.html"
    if out.is_dir():
        raise InputError(f"out: {str(out)!r} is a folder; give the name of a page, like compare.html")
    write_text(out, html, private=True)
    return out
