"""Links that work in a checkout, turned into links within the site."""

from __future__ import annotations

import posixpath
import re

__all__ = ["on_the_site", "within_the_site"]

LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
WHOLE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "results/tables": "results/tables/index.md"}
GENERATED = ("defenses/", "attacks/", "datasets/", "api/")


def within_the_site(markdown: str, uri: str) -> str:
    """Return a page's text with its links, which are relative to where its file lies in a checkout, relative to its uri."""
    if uri.startswith(GENERATED):
        return markdown
    here = {"changelog.md": "CHANGELOG.md"}.get(uri, uri if uri.startswith("results/") else f"docs/{uri}")

    def turned(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[1]))
        page, anchor = on_the_site(target)
        return posixpath.relpath(page, posixpath.dirname(uri) or ".") + (link[2] or anchor)

    pieces = CODE.split(markdown)
    return "".join(piece if number % 2 else LINK.sub(turned, piece) for number, piece in enumerate(pieces))


def on_the_site(path: str) -> tuple[str, str]:
    """Return (the page or file that the site has of a file in the repository, the place on it)."""
    if path in WHOLE:
        return WHOLE[path], ""
    folder, _, rest = path.partition("/")
    if folder == "docs":
        return rest or "index.md", ""
    if folder in ("defenses", "attacks"):
        return (path.removesuffix(".yaml") + ".md" if rest else f"{folder}/index.md"), ""
    if folder == "datasets":
        return "datasets/index.md", f"#{rest.removesuffix('.yaml')}" if rest else ""
    if folder == "leakbench" and path.endswith(".py"):
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        package = module.rpartition(".")[0] or module
        return f"api/{package}.md", f"#{module}"
    if folder == "leakbench":
        return f"api/{path.replace('/', '.')}.md", ""
    return path, ""
