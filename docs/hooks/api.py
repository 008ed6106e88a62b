"""The pages of the API: one for each folder of the package, with its modules in order."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["pages"]

HOME = Path(__file__).parent.parent.parent
PACKAGE = HOME / "leakbench"


def pages() -> Iterator[tuple[str, str]]:
    """Yield (uri, text) of the index and of each folder; mkdocstrings fills in what the docstrings say."""
    folders = [PACKAGE, *sorted(path.parent for path in PACKAGE.rglob("*/__init__.py"))]
    lines = [
        "# API",
        "",
        "Each folder of the package is a page. Recipes are the interface that is meant to last; modules may move.",
        "",
    ]
    for folder in folders:
        dotted = ".".join(folder.relative_to(HOME).parts)
        modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py" and _public(path)]
        about = _about(folder / "__init__.py")
        if not modules:
            continue
        lines.append(f"- [`{dotted}`]({dotted}.md): {about}")
        yield f"api/{dotted}.md", _page(dotted, about, modules)
    yield "api/index.md", "\n".join(lines) + "\n"


def _page(dotted: str, about: str, modules: list[Path]) -> str:
    blocks = "\n\n".join(f"::: {dotted}.{path.stem}" for path in modules)
    return f"# {dotted}\n\n{about}\n\n{blocks}\n"


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _about(path: Path) -> str:
    return (ast.get_docstring(_tree(path)) or "").partition("\n")[0]


def _public(path: Path) -> bool:
    """Say whether a module has names that it shows."""
    names = (node for node in _tree(path).body if isinstance(node, ast.Assign))
    return any(isinstance(t, ast.Name) and t.id == "__all__" for node in names for t in node.targets)
