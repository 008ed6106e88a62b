"""The pages of the catalog: one for each defense and each attack, made of its recipe, and an index of each kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from parts import described, escaped

from leakbench.attack import Attack
from leakbench.data.recipe import DatasetRecipe
from leakbench.defense import Defense
from leakbench.defense.transform import STATIONS
from leakbench.overview import Row, overview
from leakbench.recipe import catalog_folder, names, resolve
from leakbench.summary.threat import threat

__all__ = ["command_of", "pages"]

HOME = Path(__file__).parent.parent.parent
RESULTS = HOME / "results"

FEDERATION = (
    "At delta 1e-5, in the federation of the Fed-alphaCDP paper on MNIST: 1,000 clients, 100 a round, 100 rounds of 100 local"
    " iterations. *Valid* of the released models is against who sees these alone; type-0, type-1 and type-2 are against who reads"
    " one client there."
)
AFTER = {"example": "type-2", "batch": "", "client": "type-1", "server": "type-0"}


def pages() -> Iterator[tuple[str, str]]:
    """Yield (uri, text) of every page of the catalog."""
    rows = {name: row for name, _, row in overview()}
    yield "defenses/index.md", _defenses(rows)
    for name in names("defenses"):
        yield f"defenses/{name}.md", _defense(name, resolve("defenses", Defense, name)[1], rows[name])
    yield "attacks/index.md", _attacks()
    for name in names("attacks"):
        yield f"attacks/{name}.md", _attack(name, resolve("attacks", Attack, name)[1])
    yield "datasets/index.md", _datasets()


def _defenses(rows: dict[str, Row | None]) -> str:
    lines = [
        "# Defenses",
        "",
        FEDERATION + " *none* has its reason on the defense's page.",
        "",
        "Of a defense, the plain name follows the paper's text; `..._algorithm1` and `..._as_released` stand beside it where these"
        " differ; `..._flat` clips all tensors together where the paper clips layer by layer; of `..._valid` the epsilon follows.",
        "",
        "| defense | acts at | unit | claimed | valid | type-0 | type-1 | type-2 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in rows.items():
        known = ["?"] * 7
        if row is not None:
            known = [row.acts_at, row.unit, row.claimed, row.valid, row.type_0, row.type_1, row.type_2]
        title = resolve("defenses", Defense, name)[1].title
        lines.append(f"| [`{name}`]({name}.md)<br>{escaped(title)} | {' | '.join(known)} |")
    return "\n".join(lines) + "\n"


def _defense(name: str, defense: Defense, row: Row | None) -> str:
    lines = [*_head(name, defense), "## What it does", ""]
    lines += _stations(defense)
    lines += ["## Epsilon", "", *_epsilon(name, row), *_printed(defense)]
    commands = [
        f"leakbench run --defense {name}",
        f"leakbench epsilon --defense {name}",
        f"leakbench audit --defense {name}",
    ]
    lines += [*_foot("defenses", name, commands)]
    return "\n".join(lines) + "\n"


def _stations(defense: Defense) -> Iterator[str]:
    for extension in defense.network:
        yield from described(extension, "network")
    for station in STATIONS:
        transforms = getattr(defense, station)
        tap = f" (what [{AFTER[station]}](../threats.md) reads comes after it)" if AFTER[station] else ""
        if not transforms:
            yield f"- **{station}**{tap}: nothing"
            continue
        yield f"- **{station}**{tap}:"
        for transform in transforms:
            yield from described(transform, depth=1)
    secure = "; the server sees only the sum of a round's updates" if defense.aggregation == "secure" else ""
    yield f"- One epsilon protects one {defense.unit}; batches are drawn `{defense.batches}`, cohorts `{defense.cohorts}`{secure}."
    yield from described(defense.claim, "claim")
    yield ""


def _epsilon(name: str, row: Row | None) -> list[str]:
    if row is None:
        return [
            f"`leakbench epsilon --defense {name}` works it out; it is not recorded for this version of the recipe.",
            "",
        ]
    reason = [f"No valid epsilon, because: {escaped(row.reason)}.", ""] if row.reason else []
    return [
        "| claimed | valid: released models | type-0 | type-1 | type-2 |",
        "| --- | --- | --- | --- | --- |",
        f"| {row.claimed} | {row.valid} | {row.type_0} | {row.type_1} | {row.type_2} |",
        "",
        *reason,
        FEDERATION,
        "",
    ]


def _printed(defense: Defense) -> list[str]:
    if not defense.printed:
        return []
    sets = list(dict.fromkeys(dataset for values in defense.printed.values() for dataset in values))
    lines = [
        "## What is printed",
        "",
        f"By {escaped(defense.printed_by or 'the papers above')}.",
        "",
        f"| | {' | '.join(sets)} |",
        f"| --- |{' --- |' * len(sets)}",
    ]
    for what, values in defense.printed.items():
        shown = (f"{values[dataset]:g}" if dataset in values else "" for dataset in sets)
        lines.append(f"| {what} | {' | '.join(shown)} |")
    return [*lines, ""]


def _attacks() -> str:
    lines = [
        "# Attacks",
        "",
        "The letter is that of the [threat model](../threats.md). *Knows*: what the attacker is told of the defense, which"
        " `--knows` overrides; `oblivious` is nothing.",
        "",
        "| attack | knows | threat |",
        "| --- | --- | --- |",
    ]
    for name in names("attacks"):
        attack = resolve("attacks", Attack, name)[1]
        lines.append(f"| [`{name}`]({name}.md)<br>{escaped(attack.title)} | {attack.knows} | {threat(attack)} |")
    return "\n".join(lines) + "\n"


def _attack(name: str, attack: Attack) -> str:
    needs = attack.needs
    granted = [
        *(["the labels of the victims, by an oracle"] if needs.labels else []),
        *(["the logits of the victims, by an oracle"] if needs.logits else []),
        *([f"up to {needs.public:,} public examples"] if needs.public else []),
        *(["a list of candidates that holds the victim"] if needs.candidates else []),
        *(["the defense's recipe"] if attack.knows == "defense" else []),
    ]
    lines = [*_head(name, attack), "## What it does", ""]
    lines += described(attack.method, "method")
    lines += described(attack.server, "server")
    lines += ["", "## What it is granted", "", f"Threat: {threat(attack)}.", ""]
    lines += [f"Beside the model, the batch size and the learning rate: {'; '.join(granted) or 'nothing'}.", ""]
    reads = [
        *(["It reads what one example leaks: `--taps type-2`, or `--leak-batch 1`."] if needs.alone else []),
        *(["It reads tables alone."] if needs.table else []),
    ]
    lines += [*reads, ""] if reads else []
    return "\n".join([*lines, *_foot("attacks", name, [command_of(name, attack)])]) + "\n"


def command_of(name: str, attack: Attack) -> str:
    """Return a command with which an attack runs on an embedded data set."""
    more = ["--dataset cancer"] if attack.needs.table else []
    more += ["--leak-batch 1"] if attack.needs.alone else []
    server = attack.server
    if type(server).__name__ == "Fishing":
        more += ["--dataset digits"]  # Of faces no batch has another class.
    if name == "see_through":
        more += ["--victim-mode eval"]
    return " ".join([f"leakbench run --attack {name}", *more])


def _datasets() -> str:
    lines = [
        "# Data sets",
        "",
        "Embedded sets come with the package or with scikit-learn; the others are looked for and else fetched,",
    ]
    lines += ["checked by sha256. `leakbench data list` says what is where.", ""]
    for name in names("datasets"):
        recipe = resolve("datasets", DatasetRecipe, name)[1]
        federation = recipe.federation
        lines += [
            f"## {name} {{ #{name} }}",
            "",
            f"{escaped(recipe.title)}. {escaped(recipe.cite)}. Terms: {escaped(recipe.license)}.",
            "",
            escaped(_joined(recipe.note)),
            "",
            f"By default {federation.clients:,} clients of {federation.examples_per_client:,} examples,"
            f" {federation.clients_per_round:,} a round, {federation.rounds:,} rounds of {federation.local_iterations:,} local"
            f" iterations with batches of {federation.batch}.",
            "",
        ]
    return "\n".join(lines) + "\n"


def _head(name: str, recipe: Attack | Defense) -> list[str]:
    note = [escaped(_joined(recipe.note)), ""] if recipe.note else []
    return [f"# {escaped(recipe.title)}", "", f"`{name}`. {escaped(recipe.cite)}.", "", *note]


def _foot(kind: str, name: str, commands: list[str]) -> list[str]:
    text = (catalog_folder(kind) / f"{name}.yaml").read_text(encoding="utf-8")
    lines = ["## Commands", "", "```sh", *commands, f"leakbench show {name}", "```", ""]
    lines += ["## The recipe", "", f"`{kind}/{name}.yaml`", "", "```yaml", text.rstrip(), "```", ""]
    related = [other for other in names(kind) if other != name and (f"{other}_").startswith(f"{name}_")]
    if related:
        lines += [f"Beside it: {', '.join(f'[`{other}`]({other}.md)' for other in related)}.", ""]
    found = [f"[{title}](../results/{path})" for path, title, text in _results() if _mentions(text, name)]
    if found:
        lines += ["## Measured", "", *(f"- {link}" for link in found), ""]
    return lines


@cache
def _results() -> tuple[tuple[str, str, str], ...]:
    """Return (file, title, its text with its table's and its cells' recipes) of every page of results."""
    found = []
    for page in sorted(RESULTS.glob("*.md")):
        if page.name in ("README.md", "defenses.md"):
            continue
        beside = [page.with_suffix(".csv"), page.with_suffix(".yaml"), RESULTS / "tables" / f"{page.stem}.yaml"]
        text = page.read_text(encoding="utf-8")
        title = escaped(text.partition("\n")[0].removeprefix("# "))
        found.append(
            (page.name, title, "\n".join([text, *(p.read_text(encoding="utf-8") for p in beside if p.is_file())]))
        )
    return tuple(found)


def _mentions(text: str, name: str) -> bool:
    """Say whether a page's words or rows name a recipe; a bare word such as `none` or `rows` has to be one in their columns."""
    word = re.escape(name)
    if "_" in name:
        return re.search(rf"(?<![\w.]){word}(?!\w)", text) is not None
    return re.search(rf"`{word}`|(?:attack|defense): \[?(?:[\w., ]+, )?{word}[,\]}}\s]", text) is not None


def _joined(text: str) -> str:
    return " ".join(text.split())
