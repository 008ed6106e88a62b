"""Every module of leakbench can be imported alone: imports at module level have no cycles."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

HOME = Path(__file__).parents[2]


def named(folder: Path) -> dict[str, Path]:
    """Return {dotted name: file} of a package's modules."""
    found = {}
    for path in (folder / "leakbench").rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the imports of module-level statements, without functions: `module.name`, where `name` may be a module."""
    for statement in body:
        if isinstance(statement, ast.ImportFrom) and statement.module:
            yield from (f"{statement.module}.{alias.name}" for alias in statement.names)
        elif isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            yield from imported(statement.orelse)  # Only type checkers read the body.
        elif isinstance(statement, ast.If | ast.Try | ast.ClassDef):
            yield from imported([*statement.body, *getattr(statement, "orelse", [])])


def read_first(modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return {module: modules imported before it}: a module of another package comes after that package's `__init__`.

    The packages that contain a module started before it, and wait for it.
    """
    before = {}
    for name, path in modules.items():
        found = set[str]()
        for target in imported(ast.parse(path.read_text(encoding="utf-8")).body):
            parts = target.split(".")
            found |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)} & modules.keys()
        before[name] = {other for other in found if other != name and not name.startswith(f"{other}.")}
    return before


def circle(before: Mapping[str, set[str]]) -> list[str]:
    """Return the modules of a cycle in order, or an empty list."""
    done, way = set[str](), list[str]()

    def walk(name: str) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        way.append(name)
        found = next(filter(None, (walk(other) for other in sorted(before[name]))), [])
        way.pop()
        done.add(name)
        return found

    return next(filter(None, (walk(name) for name in sorted(before))), [])


def test_imports_have_no_cycles() -> None:
    modules = named(HOME)
    assert len(modules) > 150
    assert not circle(read_first(modules))


def test_a_cycle_is_found(tmp_path: Path) -> None:
    """Through a package's `__init__` too; a package that imports its own modules is not a cycle."""
    files = {
        "__init__.py": "",
        "one/__init__.py": "from leakbench.one.inner import a",
        "one/inner.py": "from leakbench.two import b\na = 1",
        "one/other.py": "c = 1",
        "two.py": "def late():\n    from leakbench.one.other import c\nb = 1",
    }
    for name, text in files.items():
        path = tmp_path / "leakbench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert not circle(read_first(named(tmp_path)))
    (tmp_path / "leakbench" / "two.py").write_text("from leakbench.one.other import c\nb = 1", encoding="utf-8")
    assert set(circle(read_first(named(tmp_path)))) == {"leakbench.one", "leakbench.one.inner", "leakbench.two"}


def test_the_package_can_be_run_as_the_command_line() -> None:
    """If the script is not on the path, as in a scheduler's job."""
    done = subprocess.run([sys.executable, "-m", "leakbench", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("leakbench, version ")
