"""Blocks of pages that the program or the results say: between `<!-- NAME -->` and `<!-- end -->`.

`python docs/hooks/blocks.py` updates them in docs/*.md; a test checks that they are current.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import fill

import pandas as pd

from leakbench.core.scripts import markdown_table
from leakbench.defense.transform import STATIONS
from leakbench.frontier.answer import epsilon_or_reason, setting_of, share_text
from leakbench.frontier.choose import CHOICE, Requirements, chosen, main_rows
from leakbench.frontier.frontier import store_of
from leakbench.frontier.page import CHOSEN_BY
from leakbench.measure.rates import IDENTIFIED
from leakbench.overview import recorded
from leakbench.report.columns import (
    PAGE_COLUMNS,
    PICTURE_COLUMNS,
    PRECISION_COLUMN,
    TABLE_COLUMNS,
    TEXT_COLUMNS,
    PointColumn,
)
from leakbench.report.page import ALONE, D_SNR, IDEAL, ISOLATED, PERCENTILE
from leakbench.reproduce.accounting.page import NO_READING
from leakbench.reproduce.columns import text_of
from leakbench.reproduce.file import natural
from leakbench.reproduce.verdict import CONTRADICTED, NOT_MEASURED, REPRODUCED, UNDECIDED, VERDICTS
from leakbench.summary.threat import LETTERS

__all__ = ["BLOCKS", "renewed"]

HOME = Path(__file__).parent.parent.parent
RESULTS = HOME / "results"
MEASURED, COMPUTED = "row | what | claimed | measured", "claim | claimed | by the claim's own formula"
"""With what the heads of tables of verdicts begin."""

BLOCK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def renewed(markdown: str) -> str:
    """Return a page's text with every known block updated; other blocks are not changed."""

    def write(block: re.Match[str]) -> str:
        return f"{block[1]}\n{BLOCKS[block[2]]()}\n{block[3]}" if block[2] in BLOCKS else block[0]

    return BLOCK.sub(write, markdown)


def _meanings(columns: tuple[PointColumn, ...]) -> Callable[[], str]:
    return lambda: "".join(f"- **{column.heading}**: {column.meaning}\n" for column in columns)


def _letters() -> str:
    return "".join(f"- **{letter}**: {means}\n" for letter, means in LETTERS.items())


def _servers() -> str:
    words = {
        "by construction": ISOLATED,
        "alone in its bin": ALONE,
        "ideal server": IDEAL,
        "percentile": PERCENTILE,
        "D-SNR": D_SNR,
    }
    return "".join(f"- **{word}**: {meaning}\n" for word, meaning in words.items())


def _reasons() -> str:
    """Return why defenses have no valid epsilon, and how many of each."""
    found: dict[str, list[str]] = {}
    for row in recorded():
        if row.reason:
            found.setdefault(row.reason, []).append(row.name)
    lines = ["| no valid epsilon, because | defenses |", "| --- | --- |"]
    for reason, names in sorted(found.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(f"[`{name}`](../defenses/{name}.yaml)" for name in names[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        lines.append(f"| {reason} | {shown}{more} |")
    return "\n".join(lines) + "\n"


def _stations() -> str:
    """Return how many of the catalog's defenses act where."""
    acts = {row.name: row.acts_at.split(", ") for row in recorded()}
    lines = ["| station | defenses that act there | for example |", "| --- | --- | --- |"]
    for station in ("inputs", *STATIONS, "model", "aggregation", "nowhere"):
        there = [name for name, stations in acts.items() if station in stations]
        if there:
            first = min(there, key=lambda name: (len(acts[name]), len(name)))
            lines.append(f"| {station} | {len(there)} | [`{first}`](../defenses/{first}.yaml) |")
    return "\n".join(lines) + "\n"


def _link(page: Path) -> str:
    return f"../results/{page.relative_to(RESULTS).as_posix()}"


def _of(verdict: str) -> Callable[[], str]:
    """Return the block of the numbers with a verdict, from every page on which a paper's cells have one: the measured ones in
    a table, the computed ones by their number."""

    def block() -> str:
        lines, computed, kinds = [], 0, Counter[str]()
        for page, title in _pages():
            computed += sum(cells[-2] == f"**{verdict}**" for cells in _table(page, COMPUTED))
            for row, what, printed, measured, interval, word, reason in _table(page, MEASURED):
                if word == f"**{verdict}**":
                    kinds[what.replace("resilient (1 yes, 0 no)", "yes or no: resilient")] += 1
                    cell = f"{row}, {what} | {printed} | {measured} {interval.strip('-')}".rstrip() + f" | {reason}"
                    lines.append(f"| [{title}]({_link(page)}) | {cell} |")
        below = "[below](#epsilons-that-do-not-follow)"
        measured = f"{len(lines)} measured number{'' if len(lines) == 1 else 's'}"
        counts = f"{computed} computed epsilons and rounds ({below}) and {measured} are {verdict}"
        counts += f" ({'; '.join(f'{what}: {number}' for what, number in sorted(kinds.items()))})." if kinds else "."
        heads = ["", "| page | cell | printed | measured [95 % CI] | why |", "| --- | --- | --- | --- | --- |"]
        return "\n".join([counts, *(heads if lines else ()), *lines]) + "\n"

    return block


def _verdicts() -> str:
    """Return how many printed numbers have which verdict, of every page with verdicts, counted on the pages."""
    lines = [f"| page | {' | '.join(VERDICTS)} |", f"| ---{' | ---' * len(VERDICTS)} |"]
    sums = Counter[str]()
    for page, title in _pages():
        words = Counter(cells[-2].strip("*") for head in (MEASURED, COMPUTED) for cells in _table(page, head))
        if words.keys() - {NOT_MEASURED}:
            sums += words
            lines.append(f"| [{title}]({_link(page)}) | {' | '.join(str(words[v]) for v in VERDICTS)} |")
    lines.append(f"| all | {' | '.join(str(sums[verdict]) for verdict in VERDICTS)} |")
    return "\n".join(lines) + "\n"


def _epsilons() -> str:
    """Return how many printed epsilons and rounds the formula gives, as stated or as read otherwise, of every page of them."""
    lines = ["| page | cells | as stated | read otherwise | by no reading |", "| --- | --- | --- | --- | --- |"]
    for page, title in _pages():
        cells = list(_table(page, COMPUTED))
        stated = sum(cell[-2] == f"**{REPRODUCED}**" for cell in cells)
        otherwise = sum("; given by '" in cell[-1] or cell[-2] == f"**{UNDECIDED}**" for cell in cells)
        none = sum(NO_READING in cell[-1] for cell in cells)
        if cells:
            lines.append(f"| [{title}]({_link(page)}) | {len(cells)} | {stated} | {otherwise} | {none} |")
    return "\n".join(lines) + "\n"


def _pairs() -> str:
    """Return what a search gains by knowing the defense, over the pairs of rows of `aware.csv`."""
    rows = pd.read_csv(RESULTS / "attacks" / "aware.csv")
    names = rows["row"].str.extract(r"(?P<pair>.*), (?P<knows>oblivious|defense)$")
    wide = rows.assign(**names).pivot(index="pair", columns="knows", values=["asr", "rmse"])
    gain = (wide["asr"]["defense"] - wide["asr"]["oblivious"]) * rows["victims"].max()
    nearer = wide["rmse"]["defense"] < wide["rmse"]["oblivious"]
    same = gain.abs() < 0.5  # The same victims: fewer than one of them.
    apart = "; ".join(
        f"{name}: median RMSE {wide['rmse'].loc[name, 'defense']:.4f}, without {wide['rmse'].loc[name, 'oblivious']:.4f}"
        for name in gain.index[same & ~nearer]
    )
    victims, networks = (f"{rows[column].max():.0f}" for column in ("victims", "networks"))
    return (
        f"In {(gain > 0.5).sum()} of {len(gain)} pairs, the same search reconstructs more victims when it knows the defense; it"
        f" reconstructs fewer in {(gain < -0.5).sum()}, and as many in {same.sum()}. Where it reconstructs as many, it is closer in"
        f" {(same & nearer).sum()}{f', and not closer in {(same & ~nearer).sum()} ({apart})' if apart else ''}. Each row has"
        f" {victims} victims on {networks} networks.\n"
    )


def _pages() -> Iterator[tuple[Path, str]]:
    for page in sorted(RESULTS.glob("*/*.md"), key=lambda page: natural(page.as_posix())):
        yield page, page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").replace("|", r"\|")


def _table(page: Path, head: str) -> Iterator[list[str]]:
    """Yield the rows, each a list of its cells, of the tables of a page whose heads begin so."""
    inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        inside = line.startswith("|") and (inside or line.startswith(f"| {head} |"))
        if inside and not line.startswith((f"| {head} |", "| ---")):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _frontiers() -> str:
    """Return the recommended setting of every published frontier, for any epsilon and for one of at most 8."""
    lines = []
    for path in sorted((RESULTS / "frontier").glob("frontier_*.csv")):
        rows, name = store_of(path).read(), path.stem.removeprefix("frontier_")
        for wanted in (Requirements(), Requirements(8.0)):
            choice = chosen(main_rows(rows, wanted), wanted)
            best = choice.best
            found = (
                ("no usable setting", "-", "-", "-", "-")
                if best is None
                else (
                    setting_of(best),
                    text_of(best[CHOICE], 3),
                    share_text(best, "trained_accuracy"),
                    share_text(best, IDENTIFIED.name),
                    epsilon_or_reason(best["epsilon_valid"]),
                )
            )
            limit = "any" if wanted.max_epsilon is None else f"at most {wanted.max_epsilon:g}"
            page = f"[{name}](../results/frontier/{path.stem}.md)"
            lines.append((page, limit, *found, f"{choice.qualified} of {choice.settings}"))
    heads = (
        *("data set", "epsilon", "recommended", "accuracy on the choosing half", "accuracy", "identified"),
        *("valid epsilon, released", "qualify"),
    )
    return f"{markdown_table(heads, lines)}\n\n{fill(CHOSEN_BY, 100)}\n"


def _sweep_plan() -> str:
    line = [sys.executable, "benchmarks/sweep_plan.py"]
    printed = subprocess.run(line, cwd=HOME, capture_output=True, text=True, check=True).stdout
    return printed.replace("\n|", "\n\n|", 1)  # A table needs an empty line before it.


BLOCKS: dict[str, Callable[[], str]] = {
    "columns": _meanings(PICTURE_COLUMNS),
    "table_columns": _meanings(TABLE_COLUMNS),
    "text_columns": _meanings(TEXT_COLUMNS),
    "page_columns": _meanings((PRECISION_COLUMN, *PAGE_COLUMNS)),
    "letters": _letters,
    "servers": _servers,
    "reasons": _reasons,
    "stations": _stations,
    "verdicts": _verdicts,
    "contradicted": _of(CONTRADICTED),
    "reproduced": _of(REPRODUCED),
    "epsilons": _epsilons,
    "frontiers": _frontiers,
    "pairs": _pairs,
    "sweep_plan": _sweep_plan,
}


def main() -> None:
    """Update the blocks of all pages."""
    for page in sorted((HOME / "docs").glob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = renewed(before)
        if after != before:
            page.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
