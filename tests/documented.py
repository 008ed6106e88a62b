"""Follows a page of docs/: writes its files, runs its commands in order, and checks that each prints the text below it."""

import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
LEFT_OUT = "..."

Called = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True)
class Step:
    """A file to write (`name`, `text`), or a command with its expected output."""

    name: str = ""
    text: str = ""
    command: str = ""


def steps(page: str) -> Iterator[Step]:
    """Yield the files and commands of a page, in order."""
    for language, title, text in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        if title:
            yield Step(name=title, text=text)
        elif language == "console":
            for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                first, _, printed = command.partition("\n")
                yield Step(command=first, text=printed)


def follow(page: str, leakbench: Called) -> list[str]:
    """Follow a page in the current folder; return its commands. `leakbench(*arguments)` -> (exit code, stdout, stderr)."""
    code, done = 0, []
    for step in steps(page):
        if step.name:
            Path(step.name).write_text(step.text, encoding="utf-8")
            continue
        if step.command == "echo $?":
            printed, code = f"{code}\n", 0
        else:
            assert code == 0, f"{done[-1]}: ended with {code}, which the page does not show"
            code, printed = _run(step.command, leakbench)
        missing = unlike(step.text, printed)
        assert not missing, f"{page}: `{step.command}` does not print\n{missing}\nbut\n{printed}"
        done.append(step.command)
    assert code == 0, f"{page}: `{done[-1]}` ended with {code}"
    return done


def _run(command: str, leakbench: Called) -> tuple[int, str]:
    program, _, out = command.partition(" > ")
    if program.startswith("leakbench "):
        code, printed, said = leakbench(*shlex.split(program)[1:])
        assert code in (0, 1), f"`{command}`: {said}"
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        ended = subprocess.run(
            program, shell=True, capture_output=True, text=True, env={**os.environ, "PATH": path}, check=False
        )
        code, printed = ended.returncode, ended.stdout or ended.stderr
    if out:
        Path(out).write_text(printed, encoding="utf-8")
        return code, ""
    return code, printed


def unlike(shown: str, printed: str) -> str:
    """Return the first line of `shown` that is missing in `printed`, or "". Between two `...` lines, matches must be adjacent."""
    lines = [line for line in printed.splitlines() if line.strip()]
    at, free = 0, False
    for line in (line for line in shown.splitlines() if line.strip()):
        if line.strip() == LEFT_OUT:
            free = True
            continue
        found = next(
            (n for n in range(at, len(lines) if free else min(at + 1, len(lines))) if alike(line, lines[n])), None
        )
        if found is None:
            return line
        at, free = found + 1, False
    return "" if free or at == len(lines) else f"(nothing more, but it goes on)\n{lines[at]}"


def alike(shown: str, printed: str) -> bool:
    """Say whether two lines have the same words, and numbers within a quarter or .02.

    L-BFGS rounds differently on other machines.
    """
    one, other = shown.split(), printed.split()
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(shown: str, printed: str) -> bool:
    if shown == printed:
        return True
    a, b = (_number(word) for word in (shown, printed))
    return a is not None and b is not None and math.isclose(a, b, rel_tol=0.25, abs_tol=0.02)


def _number(word: str) -> float | None:
    try:
        return float(word.strip("[](),;:"))
    except ValueError:
        return None
