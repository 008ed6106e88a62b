"""Tries one malformed input in this process."""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
import time
from pathlib import Path

import pytest

from leakbench import cli
from tests.bad.case import Case

__all__ = ["MOST_SECONDS", "asked", "found_wrong"]

MOST_SECONDS = 5.0
NEVER = ("Traceback", "bug in leakbench", "\x1b")


def found_wrong(case: Case, folder: Path) -> str:
    """Run the case in `folder`, which it does not share; return what is wrong with the refusal, or ""."""
    case.change(folder)
    before, started = _contents(folder), time.monotonic()
    code, out, err = asked(case.arguments, folder)
    seconds = time.monotonic() - started
    if code != 2:
        return f"exit code {code}, expected 2: {err or out}"
    if out:
        return f"printed {out!r}"
    if err.count("\n") != 1 or not err.endswith("\n") or any(word in err for word in NEVER):
        return f"not one line: {err!r}"
    if missing := [word for word in case.says if word not in err]:
        return f"does not say {missing}: {err!r}"
    if _contents(folder) != before:
        return f"left files: {sorted(set(_contents(folder)) ^ set(before)) or 'changed ones'}"
    return f"took {seconds:.1f} s" if seconds > MOST_SECONDS else ""


def _contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def asked(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    """Call `leakbench` with these words in `folder`; return (exit code, stdout, stderr)."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))
        patch.setattr(sys, "argv", ["leakbench", *arguments])
        patch.setattr(sys, "path", list(sys.path))
        # Modules of the same name in other folders must not be reused here, nor this folder's module in the next test.
        for path in folder.glob("*.py"):
            patch.setitem(sys.modules, path.stem, sys)
            del sys.modules[path.stem]
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return code, out.getvalue(), err.getvalue()
