"""The source of what a part runs, so that a fit made by another is told from it."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from leakbench.errors import InputError

__all__ = ["sources"]

HERE = "leakbench.attack"


def sources(module: str) -> dict[str, bytes]:
    """Return {name: source} of a module and of all in `leakbench.attack` that it imports, and these in turn.

    What is imported is read off the sources, wherever it stands in them; of `from leakbench.attack import name` the package's own
    module is meant, which imports every part. Raises InputError for a module without a source.
    """
    found: dict[str, bytes] = {}
    left = [module]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = _source(name)
            left += _imported(found[name])
    return dict(sorted(found.items()))


def _source(module: str) -> bytes:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.has_location or spec.origin is None:
        raise InputError(f"module: got {module!r}, which has no source; expected a part in a separate file")
    return Path(spec.origin).read_bytes()


def _imported(source: bytes) -> list[str]:
    nodes = list(ast.walk(ast.parse(source)))
    plain = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    of = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return [name for name in (*plain, *of) if name == HERE or name.startswith(f"{HERE}.")]
