"""The hooks of the MkDocs site: pages that are made of recipes, code and results, the navigation, and links.

Pages in docs/ are written so that their links work in a checkout. Here a link to a recipe, a results page or a module becomes
one to the page that the site has of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import api
import blocks
import links
import recipes
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HOME = Path(__file__).parent.parent.parent

# Title and page, in order. A page that does not exist is left out, so that one which is written later only has to be named here.
WRITTEN: list[tuple[str, list[tuple[str, str]]]] = [
    (
        "Start",
        [
            ("Overview", "index.md"),
            ("Tutorial: ten minutes", "tutorial.md"),
            ("Answers", "answers.md"),
        ],
    ),
    (
        "Test a defense",
        [
            ("Run an experiment", "running.md"),
            ("Texts", "texts.md"),
            ("Epsilons and audits", "auditing.md"),
            ("Malicious servers", "servers.md"),
            ("Choose a defense", "choosing.md"),
            ("A gate for CI", "gate.md"),
            ("Submit a defense", "submitting.md"),
        ],
    ),
    (
        "Test my model",
        [
            ("Python", "python.md"),
            ("An external update", "own_updates.md"),
            ("A probe in a training loop", "probe.md"),
            ("Flower apps", "flower.md"),
            ("NVFlare and pfl", "frameworks.md"),
        ],
    ),
    (
        "Read results",
        [
            ("The table", "reading.md"),
            ("The report", "report.md"),
            ("Threat models", "threats.md"),
            ("Measures and verdicts", "measures.md"),
            ("The strongest attacker", "strongest-attacker.md"),
            ("Verdicts on papers", "papers.md"),
        ],
    ),
    (
        "Extend and scale",
        [
            ("The catalog", "catalog.md"),
            ("Add a part, a recipe, a data set", "adding.md"),
            ("Reproduce a paper's tables", "reproducing.md"),
            ("Many cells, a cluster", "scaling.md"),
            ("Check a scorer", "conformance.md"),
        ],
    ),
    (
        "Project",
        [
            ("Architecture", "architecture.md"),
            ("Performance", "performance.md"),
            ("Reliability", "reliability.md"),
        ],
    ),
]


EXAMPLES = (
    "examples/github/leakage.yml",
    "examples/flower/deploy.py",
    "examples/sweep.yaml",
    "examples/rising_noise.py",
)

# The first group whose pattern matches the beginning of a page's name has the page.
FAMILIES: dict[str, list[tuple[str, str]]] = {
    "defenses": [
        ("Fed-alphaCDP", "fed_alpha_cdp"),
        ("Fed-CDP", "fed_cdp|prune_fed_cdp"),
        ("Fed-SDP", "fed_sdp"),
        ("Flower's wrappers", "flower"),
        ("Other clipping and noise", "adaclip|geyer|nbafl|noise|priority|quantile"),
        ("Pruning and signs", "dssgd|prune|sign"),
        ("Networks, aggregation, refusal", "none|precode|refuse|secure|soteria"),
    ],
    "attacks": [
        ("Gradient matching", "cpl|dlg|idlg|inverting|see_through|tableak"),
        ("Knowledge of the noise", "autoleak|whitened"),
        ("Closed forms and features", "analytic|feature|rows|spear"),
        ("Learned attackers", "decoder|learning|lmmse"),
        ("Malicious servers", "fishing|imprint|loki|peftleak|quantile|scale_mia|seer|trap"),
        ("Rankings", "identification"),
    ],
    "results": [
        ("Findings, leaderboard and choices", "findings|leaderboard|frontier|defense|aware|largest|threat_matrix"),
        ("Fed-alphaCDP", "fed_alpha_cdp"),
        ("Geyer et al., priority-based noise, TabLeak", "geyer|priority|tableak"),
        ("Flower", "flower"),
        ("Attacks", "autoleak|batch_norm|leakage|strongest"),
        ("Malicious servers", "servers|conspicuous|ideal_server|fishing"),
        ("Checks of leakbench, the first version", "bench|bounds|history|noise_bounds|peer"),
    ],
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of recipes, of results and of the code, and say in which order all stand."""
    for uri, content in _made():
        files.append(File.generated(config, uri, content=content))
    for path in sorted([*(HOME / "results").rglob("*"), *(HOME / "studies").rglob("*.yaml")]):
        if path.suffix in (".csv", ".json", ".md", ".png", ".yaml") and "shared" not in path.parts:
            files.append(File.generated(config, path.relative_to(HOME).as_posix(), abs_src_path=str(path)))
    for name in ("CHANGELOG.md", "SECURITY.md"):
        files.append(File.generated(config, name.lower(), abs_src_path=str(HOME / name)))
    notebooks = [
        path.relative_to(HOME).as_posix() for path in sorted((HOME / "examples" / "notebooks").glob("*.ipynb"))
    ]
    for example in (*EXAMPLES, *notebooks):
        files.append(File.generated(config, example, abs_src_path=str(HOME / example)))
    config.nav = _navigation(files)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Bring the blocks of a page up to date and turn its links into ones within the site."""
    uri = page.file.src_uri
    return links.within_the_site(blocks.renewed(markdown), uri)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site whose pages would load anything from another one."""
    page = Path(config.site_dir, "index.html").read_text(encoding="utf-8")
    for found in re.findall(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=\"?(?:https?:)?//[^>]*>", page):
        raise PluginError(f"index.html loads from another site: {found}")


def _made() -> Iterator[tuple[str, str]]:
    yield from recipes.pages()
    yield from api.pages()
    tables = sorted((HOME / "studies").glob("*/*.yaml"))
    listed = "\n".join(
        f"- [{path.stem}]({path.parent.name}/{path.name})" for path in tables if path.parent.name != "recipes"
    )
    text = "Each is one file of cells and claims; `leakbench reproduce NAME` measures it."
    yield "studies/index.md", f"# Tables\n\n{text}\n\n{listed}\n"


def _navigation(files: Files) -> list[Any]:
    there = {file.src_uri for file in files}
    written = {uri for _, pages in WRITTEN for _, uri in pages} | {"changelog.md", "security.md"}
    nav: list[Any] = [{section: [{title: uri} for title, uri in pages if uri in there]} for section, pages in WRITTEN]
    more = sorted(uri for uri in there if re.fullmatch(r"[^/]+\.md", uri) and uri not in written)
    nav[-1]["Project"] += more
    for kind in ("defenses", "attacks"):
        nav.append({kind.capitalize(): [f"{kind}/index.md", *_families(kind, there)]})
    nav.append({"Data sets": "datasets/index.md"})
    tables = {"Recipes of the tables": "studies/index.md"}
    nav.insert(4, {"Results": ["results/README.md", *_families("results", there), tables]})
    nav.append({"API": ["api/index.md", *_named("api", there)]})
    nav.append({"Security": "security.md"})
    nav.append({"Changes": "changelog.md"})
    return nav


def _families(folder: str, there: set[str]) -> list[dict[str, Any]]:
    """Return the pages of a folder in groups; a page that fits no group is in the last one."""
    found: dict[str, list[Any]] = {title: [] for title, _ in FAMILIES[folder]}
    for page in _named(folder, there):
        ((name, uri),) = page.items()
        family = next((title for title, begins in FAMILIES[folder] if re.match(begins, name)), "More")
        found.setdefault(family, []).append({_title(uri, name): uri})
    return [{title: pages} for title, pages in found.items() if pages]


def _title(uri: str, name: str) -> str:
    """Return the title of a page of results, up to its colon; a recipe is called by its name."""
    if not uri.startswith("results/"):
        return name
    heading = (HOME / uri).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").replace("`", "")
    return heading.partition(": ")[0] if heading.count(" of ") and ": " in heading else heading


def _named(folder: str, there: set[str]) -> list[dict[str, str]]:
    """Return the pages of a folder but its index, each by the name of its file: so recipes and modules are called."""
    inside = (uri for uri in there if os.path.dirname(uri) == folder and uri.endswith(".md"))
    named = {os.path.basename(uri).removesuffix(".md"): uri for uri in inside}
    return [{name: uri} for name, uri in sorted(named.items()) if name not in ("index", "README")]
