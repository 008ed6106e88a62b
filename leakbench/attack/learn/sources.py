"""The source code that a part runs, so that a fit made by other code is not used."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from leakbench.core.errors import InputError

__all__ = ["sources"]

HERE = "leakbench.attack"


def sources(module: str) -> dict[str, bytes]:
    """Return {name: source} of a module and of all modules of `leakbench.attack` that it imports, directly or indirectly.

    Imports are read from the source, also inside functions. `from leakbench.attack import name` counts as an import of the
    package itself, which imports every part.

    Raises:
        InputError: For a module without a source file.
    """
    texts: dict[str, bytes] = {}
    left = [module]
    while left:
        name = left.pop()
        if name not in texts:
            texts[name] = _source(name)
            left += _imported(texts[name])
    return dict(sorted(texts.items()))


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
