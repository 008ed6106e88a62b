"""The pages of the catalog: one for each defense and each attack, made of its recipe, and an index of each kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from parts import described, escaped

from leakbench.attack import Attack
from leakbench.core.recipe import catalog_folder, names, resolve
from leakbench.data.recipe import DatasetRecipe
from leakbench.defense import Defense
from leakbench.defense.transform import STATIONS
from leakbench.overview import Row, overview
from leakbench.summary.threat import threat

__all__ = ["command_of", "pages"]

HOME = Path(__file__).parent.parent.parent
RESULTS = HOME / "results"

FEDERATION = (
    "Delta is 1e-5. The federation is that of the Fed-alphaCDP paper on MNIST: 1,000 clients, 100 per round, 100 rounds, and 100"
    " local iterations. *Valid* without a leakage point is for an observer of the released models. The columns of the server-side"
    " update (type-0), the client update (type-1) and the example gradient (type-2) are for an attacker at this leakage point."
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
        FEDERATION + " The page of a defense gives the reason of *none*.",
        "",
        "A plain name follows the paper's text. `..._algorithm1` follows its algorithm and `..._as_released` its released code,"
        " if they differ. `..._flat` clips all tensors together instead of layer by layer. `..._valid` has a valid epsilon.",
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
        tap = f" (before the leakage point [{AFTER[station]}](../threats.md))" if AFTER[station] else ""
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
            f"It is not recorded for this version of the recipe. `leakbench epsilon --defense {name}` computes it.",
            "",
        ]
    reason = [f"Reason for *none*: {escaped(row.reason)}.", ""] if row.reason else []
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
        "## Numbers in the paper",
        "",
        f"Source: {escaped(defense.printed_by or 'the papers above')}.",
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
        "*Knows* is the attacker's knowledge of the defense: `defense` (adaptive, has its recipe) or `oblivious`. `--knows`"
        " overrides it. [Threat models](../threats.md#the-letters) explains the letters.",
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
        *(["a list of candidates that contains the victim"] if needs.candidates else []),
        *(["the defense's recipe"] if attack.knows == "defense" else []),
    ]
    lines = [*_head(name, attack), "## What it does", ""]
    lines += described(attack.method, "method")
    lines += described(attack.server, "server")
    lines += ["", "## Knowledge of the attacker", "", f"Threat model: {threat(attack)}.", ""]
    lines += [f"The model, the batch size, the learning rate{''.join(f'; {one}' for one in granted)}.", ""]
    reads = [
        *(["It attacks the gradient of one example: `--taps type-2`, or `--leak-batch 1`."] if needs.alone else []),
        *(["It attacks tables only."] if needs.table else []),
        *(["It attacks texts only."] if needs.text else []),
    ]
    lines += [*reads, ""] if reads else []
    return "\n".join([*lines, *_foot("attacks", name, [command_of(name, attack)])]) + "\n"


def command_of(name: str, attack: Attack) -> str:
    """Return a command that runs an attack on an embedded dataset."""
    more = ["--dataset cancer"] if attack.needs.table else ["--dataset reviews"] if attack.needs.text else []
    more += ["--leak-batch 1"] if attack.needs.alone else []
    server = attack.server
    if type(server).__name__ == "Fishing":
        more += ["--dataset digits"]  # Of faces no batch has another class.
    if name == "see_through":
        more += ["--victim-mode eval"]
    return " ".join([f"leakbench run --attack {name}", *more])


def _datasets() -> str:
    lines = [
        "# Datasets",
        "",
        "Embedded datasets come with scikit-image or scikit-learn. leakbench searches the data folders for the others, downloads",
    ]
    lines += [
        "them if they are missing and their source allows it, and checks their checksums. `leakbench data list` prints the"
    ]
    lines += ["folder of each.", ""]
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
            *([f"Get the files from <{recipe.page}>.", ""] if recipe.page else []),
            f"Default federation: {federation.clients:,} clients with {federation.examples_per_client:,} examples,"
            f" {federation.clients_per_round:,} per round, {federation.rounds:,} rounds of {federation.local_iterations:,} local"
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
        lines += [f"Related: {', '.join(f'[`{other}`]({other}.md)' for other in related)}.", ""]
    found = [f"[{title}](../results/{path})" for path, title, text in _results() if _mentions(text, name)]
    if found:
        lines += ["## Measured", "", *(f"- {link}" for link in found), ""]
    return lines


@cache
def _results() -> tuple[tuple[str, str, str], ...]:
    """Return (file, title, its text with its table's and its cells' recipes) of every page of results."""
    found = []
    for page in sorted([*RESULTS.glob("*.md"), *RESULTS.glob("*/*.md")]):
        if page.name in ("README.md", "defenses.md"):
            continue
        beside = [
            page.with_suffix(".csv"),
            page.with_suffix(".yaml"),
            HOME / "studies" / page.parent.name / f"{page.stem}.yaml",
        ]
        text = page.read_text(encoding="utf-8")
        title = escaped(text.partition("\n")[0].removeprefix("# "))
        found.append(
            (
                page.relative_to(RESULTS).as_posix(),
                title,
                "\n".join([text, *(p.read_text(encoding="utf-8") for p in beside if p.is_file())]),
            )
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
