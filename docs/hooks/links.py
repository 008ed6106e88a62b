"""Links that work in a checkout, turned into links within the site."""

from __future__ import annotations

import posixpath
import re

__all__ = ["on_the_site", "within_the_site"]

LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
WHOLE = {"CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md", "studies": "studies/index.md"}
GENERATED = ("defenses/", "attacks/", "datasets/", "api/")


def within_the_site(markdown: str, uri: str) -> str:
    """Return a page's text with its links, which are relative to where its file lies in a checkout, relative to its uri."""
    if uri.startswith(GENERATED):
        return markdown
    at_the_top = {"changelog.md": "CHANGELOG.md", "security.md": "SECURITY.md"}
    here = at_the_top.get(uri, uri if uri.startswith("results/") else f"docs/{uri}")

    def turned(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link[1]))
        page, anchor = on_the_site(target)
        return posixpath.relpath(page, posixpath.dirname(uri) or ".") + (link[2] or anchor)

    pieces = CODE.split(markdown)
    return "".join(piece if number % 2 else LINK.sub(turned, piece) for number, piece in enumerate(pieces))


def on_the_site(path: str) -> tuple[str, str]:
    """Return (the page or file that the site has of a file in the repository, the place on it)."""
    folder, _, rest = path.partition("/")
    name = rest.removesuffix(".yaml")
    page, anchor = path, ""
    if path in WHOLE:
        page = WHOLE[path]
    elif folder == "docs":
        page = rest or "index.md"
    elif folder in ("defenses", "attacks"):
        page = f"{folder}/{name or 'index'}.md"
    elif folder == "datasets":
        page, anchor = "datasets/index.md", f"#{name}" if name else ""
    elif path.endswith(".py") and folder == "leakbench":
        module = path.removesuffix(".py").replace("/", ".")
        page, anchor = f"api/{module.rpartition('.')[0]}.md", f"#{module}"
    elif folder == "leakbench":
        page = f"api/{path.replace('/', '.')}.md"
    return page, anchor
