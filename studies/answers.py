"""Answer five questions from the published rows: docs/answers.md and its figures.

    python studies/answers.py

Every number and every yes or no is computed from the rows in this folder; no number is typed here. Run it again after a row has
changed; a test checks that the page is what this script writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from answers_figures import SERVER_KNOWS, at_updates, flower_figure, malicious_figure, save, secure_figure

from leakbench.core.leakage_points import point_name
from leakbench.core.scripts import markdown_table, one_line
from leakbench.core.verdict_words import FAILED, LEAKING
from leakbench.frontier.answer import epsilon_or_reason, setting_of
from leakbench.frontier.choose import CHOICE, Choice, Requirements, chosen, main_rows, refusals
from leakbench.frontier.frontier import store_of
from leakbench.reproduce.columns import text_of
from leakbench.storage.store import write_atomically
from leakbench.study.rows import RowFormat, RowStore, of_table

HERE = Path(__file__).parent
DOCS, RESULTS = HERE.parent / "docs", HERE.parent / "results"

MAX_EPSILON = 8.0

HEAD = """# Answers

Five questions, answered from the [published rows](../results/README.md) by `python studies/answers.py`.

{short}
"""


@dataclass(frozen=True)
class Answer:
    """One question with its answer.

    short: the answer in one line.  figure: path from docs/.  caption: alternative text of the figure.
    """

    question: str
    short: str
    figure: str
    caption: str
    evidence: str
    caveat: str
    command: str
    more: str

    @property
    def anchor(self) -> str:
        """Anchor of its heading."""
        kept_signs = "".join(sign for sign in self.question.lower() if sign.isalnum() or sign in " -")
        return kept_signs.replace(" ", "-")

    def text(self) -> str:
        """Return its section."""
        return "\n".join(
            (
                f"## {self.question}",
                "",
                f"**{self.short}**",
                "",
                f"![{self.caption}]({self.figure})",
                "",
                f"- Evidence: {self.evidence}",
                f"- Caveat: {self.caveat}",
                f"- Command: `{self.command}`",
                f"- More: {self.more}",
            )
        )


def page(answers: Sequence[Answer]) -> str:
    """Return the page."""
    short = markdown_table(("question", "answer"), ((f"[{a.question}](#{a.anchor})", a.short) for a in answers))
    return "\n".join([HEAD.format(short=short), *(f"{a.text()}\n" for a in answers)])


def share(row: pd.Series, key: str) -> str:
    """Return a share with its interval."""
    return f"{text_of(row[key])} [{text_of(row[f'{key}_low'])}, {text_of(row[f'{key}_high'])}]"


def fed_alpha_cdp(frontier: pd.DataFrame, matrix: pd.DataFrame) -> Answer:
    """Answer whether Fed-alphaCDP protects: accuracy, leak and valid epsilon of each noise on MNIST."""
    rows = main_rows(frontier)
    own = rows[rows["defense"] == "fed_alpha_cdp"].sort_values("factor", ascending=False)
    plain = rows[rows["defense"] == "none"].iloc[0]
    reasons = refusals(rows)[own.index]
    papers = own[own["factor"] == 1].iloc[0]
    usable = own[~reasons.str.contains("accuracy")]
    good = own[reasons == ""]
    epsilon = "no valid epsilon" if own["epsilon_valid"].isna().all() else "a valid epsilon at some noise"
    if len(good):
        short = f"Partly: {setting_of(good.iloc[0])} is usable without a significant leak on MNIST; it has {epsilon}."
    else:
        short = f"Not usefully: it has {epsilon}, and on MNIST each of its {len(usable)} usable settings leaks."
    least = usable.iloc[0]
    at = matrix[matrix["cell"].str.startswith("Fed-alphaCDP, ")]
    leaking = int(at["verdict"].isin(LEAKING).sum())
    return Answer(
        "Does Fed-alphaCDP protect?",
        short,
        "../results/frontier/frontier_mnist.svg",
        "Accuracy against valid epsilon and against identification on MNIST",
        f"At the paper's noise (sigma {papers['sigma']}) accuracy is {share(papers, 'trained_accuracy')}, undefended "
        f"{share(plain, 'trained_accuracy')}; identification {share(papers, 'identified')}. The usable setting with the most noise "
        f"(x {least['factor']:g}) has accuracy {share(least, 'trained_accuracy')} and identifies {share(least, 'identified')} of "
        f"{least['identify_victims']:,.0f} victims. Leaks at the paper's noise: {leaking} of {len(at)} rows of the threat matrix.",
        f"Reason for epsilon none: {str(papers['epsilon_reason']).removeprefix('none: ')}. The matrix has "
        f"{at['victims'].max():.0f} victims a row, so that a missing leak there is inconclusive.",
        "leakbench frontier --dataset mnist --out results/frontier --page",
        "[frontier of MNIST](../results/frontier/frontier_mnist.md), [threat matrix](../results/servers/threat_matrix.md), "
        "[its printed epsilons](../results/papers/fed_alpha_cdp_table_6.md).",
    )


def defense_for_mnist(frontier: pd.DataFrame) -> Answer:
    """Answer which defense MNIST needs below an epsilon."""
    wanted = Requirements(MAX_EPSILON), Requirements(MAX_EPSILON, "type-1")
    choices = [chosen(main_rows(frontier, each), each) for each in wanted]
    released, here = choices
    if released.best is None:
        short = (
            f"None of the {released.settings} measured settings: each one shows a significant leak, learns too little, or "
            "exceeds the epsilon. A setting between two measured noise levels may qualify."
        )
    else:
        also = "also" if here.best is not None else "but no setting"
        short = f"{setting_of(released.best)} for released models; {also} against an observer of the client update."
    return Answer(
        f"Which defense for MNIST at an epsilon below {MAX_EPSILON:g}?",
        short,
        "../results/frontier/frontier_mnist.svg",
        "Accuracy against valid epsilon and against identification on MNIST",
        " ".join((nearest(released), limits(frontier, released))),
        f"One attacker, one small network, trainings of a setting: "
        f"{int(main_rows(frontier)['seeds'].max())}. Leaks are measured at the "
        f"{point_name(str(main_rows(frontier)['point'].iloc[0]))}.",
        # The published page has no requirement, so that one with a requirement is written into a copy of the folder.
        "cp -r results/frontier my_frontier && "
        f"leakbench frontier --dataset mnist --out my_frontier --page --max-epsilon {MAX_EPSILON:g}",
        "[frontier of MNIST](../results/frontier/frontier_mnist.md), "
        "[frontier of the cancer records](../results/frontier/frontier_cancer.md).",
    )


def nearest(choice: Choice) -> str:
    """Return the selected setting, or the most accurate setting without a leak, with its numbers."""
    row = choice.unusable if choice.best is None else choice.best
    if row is None:
        return "No setting within the epsilon is free of a significant leak."
    low = ", too low to be usable" if choice.best is None else ""
    return (
        f"Most accurate without a significant leak: {setting_of(row)}, accuracy {share(row, 'trained_accuracy')}{low}, "
        f"identification {share(row, 'identified')}, valid epsilon {epsilon_or_reason(row['epsilon_valid'])}."
    )


def limits(frontier: pd.DataFrame, choice: Choice) -> str:
    """Return the usable setting with the smallest epsilon, with its numbers."""
    rows = main_rows(frontier)
    least = choice.usable
    known = rows.dropna(subset=["epsilon_valid"])
    known = known if least is None else known[known[CHOICE] >= least]
    if not len(known):
        return "No usable setting has a valid epsilon."
    row = known.sort_values("epsilon_valid", kind="stable").iloc[0]
    return (
        f"Usable (accuracy of at least {text_of(least)}) with the smallest epsilon: {setting_of(row)}, accuracy "
        f"{share(row, 'trained_accuracy')}, identification {share(row, 'identified')}, valid epsilon "
        f"{epsilon_or_reason(row['epsilon_valid'])}."
    )


def flower(rows: pd.DataFrame) -> Answer:
    """Answer whether Flower's wrappers protect clients against the server."""
    wrappers = rows[rows["wrapper"] != "none"]
    open_ = wrappers[wrappers[f"{SERVER_KNOWS} asr_low"] > wrappers[f"{SERVER_KNOWS} null_asr"]]
    closed = wrappers.drop(open_.index)
    known = [name for name in closed["wrapper"] if "," not in name]
    short = (
        f"No: {len(open_)} of {len(wrappers)} configurations let the server reconstruct its clients' images; with "
        f"{' and '.join(known)} no significant reconstruction was measured."
        if len(open_) and known
        else f"{len(open_)} of {len(wrappers)} configurations let the server reconstruct its clients' images."
    )
    violated = "; ".join(wrappers.loc[wrappers["audit"] == "violated", "wrapper"]) or "none"
    local = closed.iloc[0] if len(closed) else None
    each = "; ".join(f"{row['wrapper']} {share(row, f'{SERVER_KNOWS} asr')}" for _, row in rows.iterrows())
    key = f"{SERVER_KNOWS} identified"
    each += "".join(
        f"; {row['wrapper']} identifies {text_of(row[key])}" for _, row in closed[closed[key] > 0].iterrows()
    )
    arrival = (
        ""
        if local is None
        else f" {local['wrapper']}: valid epsilon {epsilon_or_reason(local['valid arrival'])} against the server."
    )
    return Answer(
        "Does Flower's DP wrapper hide my clients from the server?",
        short,
        "assets/answers_flower.svg",
        "Share of the clients' images that the server reconstructs, for each wrapper",
        f"{int(rows['victims'].max())} victims a wrapper, attacked on arrival at the server by an adaptive `autoleak`: "
        f"{each}.{arrival}",
        "One image for each client and one step, the easiest case for the attacker. Apart from LocalDpMod, the wrappers' epsilons "
        f"are for released models and not for the server. Audits that contradict the claim: {violated}.",
        "python studies/flower_wrappers.py",
        "[wrappers](../results/papers/flower_wrappers.md), [Flower's epsilons](../results/papers/flower_epsilons.md), "
        "[Flower](flower.md).",
    )


def secure_aggregation(rows: pd.DataFrame) -> Answer:
    """Answer whether secure aggregation protects a client in a sum."""
    loki = rows[rows["cell"].str.startswith("loki, ")].copy()
    loki["clients"] = loki["cell"].str.rpartition("K = ")[2].astype(int)
    several = loki[loki["victims"] > 1]  # One sum does not show what another one leaks.
    most = (several if len(several) else loki).sort_values("clients").iloc[-1]
    leaks = most["asr"] > most["null_asr"] and most["verdict"] in LEAKING
    short = (
        f"Not against a malicious server: it recovers {share(most, 'asr')} of the images in a sum of {most['clients']} clients."
        if leaks
        else f"No leak was found in a sum of {most['clients']} clients."
    )
    each = "; ".join(f"{row['cell']}: {share(row, 'asr')}" for _, row in rows.iterrows())
    return Answer(
        "Is secure aggregation enough?",
        short,
        "assets/answers_secure.svg",
        "Share of the images recovered from a sum, by the number of clients",
        f"Recovered shares of CIFAR-10 images, 8 for each client: {each}.",
        f"Sums of {most['clients']} clients that were measured: {most['victims']:.0f}. The malicious server sends each client "
        "another model (LOKI); one shared model recovers less as the sum grows. Secure aggregation has no epsilon.",
        "leakbench reproduce servers_secure",
        "[secure aggregation](../results/servers/servers_secure.md), [threat models](threats.md).",
    )


def malicious_server(rows: pd.DataFrame) -> Answer:
    """Answer what a malicious server recovers, at the client update, for each defense."""
    both = at_updates(rows)
    leaks = both[both["lying verdict"].isin(LEAKING)]
    clear = both[~both["lying verdict"].isin(LEAKING) & ~both["honest verdict"].isin(LEAKING)]
    honest = both[~both["lying verdict"].isin(LEAKING) & both["honest verdict"].isin(LEAKING)]
    full = both[both["lying"] >= FULL]
    failed = int((both["lying verdict"] == FAILED).sum())
    low = rows.loc[rows["asr"] == 1, "asr_low"].min()
    interval = f"[{text_of(low)}, 1.00]"
    short = (
        f"At the client update it reconstructs {FULL:.0%} or more of the images in {len(full)} of {len(both)} cases "
        f"(undefended and {len(both) - 1} defenses); {len(leaks)} cases leak."
    )
    return Answer(
        "What does a malicious server get?",
        short,
        "assets/answers_malicious.svg",
        "Share of reconstructed images at the client update, by an honest and a malicious server, for each defense",
        f"No significant leak by either server: {', '.join(clear.index) or 'none'}. "
        f"By an honest server only: {', '.join(honest.index) or 'none'}. "
        f"Malicious server: {'; '.join(f'{name} {text_of(a)}' for name, a in both['lying'].items())}.",
        f"{rows['victims'].max():.0f} victims a cell, one image for each client; one kind of malicious model (an imprint; LOKI "
        f"with secure aggregation). A share of 1.00 has the interval {interval}. In {failed} cases the malicious server's attack "
        "failed, which shows nothing.",
        "leakbench reproduce servers_matrix",
        "[threat matrix](../results/servers/threat_matrix.md), "
        "[an imprint against defenses](../results/servers/servers_defenses.md).",
    )


FULL = 0.95
"""Share of reconstructed images that counts as nearly all."""


@dataclass(frozen=True)
class Rows:
    """The published rows that the answers follow from."""

    frontier: pd.DataFrame
    matrix: pd.DataFrame
    secure: pd.DataFrame
    wrappers: pd.DataFrame


def read() -> Rows:
    """Return the rows in this folder."""
    matrix, secure = (
        RowStore(RESULTS / "servers" / f"servers_{name}.csv", of_table("servers")).read()
        for name in ("matrix", "secure")
    )
    wrappers = RowStore(RESULTS / "papers" / "flower_wrappers.csv", RowFormat(("wrapper",)), typed=False).read()
    return Rows(store_of(RESULTS / "frontier" / "frontier_mnist.csv").read(), matrix, secure, wrappers)


def answers(rows: Rows) -> list[Answer]:
    """Return all answers."""
    return [
        fed_alpha_cdp(rows.frontier, rows.matrix),
        defense_for_mnist(rows.frontier),
        flower(rows.wrappers),
        secure_aggregation(rows.secure),
        malicious_server(rows.matrix),
    ]


def main() -> None:
    """Write the page and its figures."""
    rows = read()
    figures = {
        "flower": flower_figure(rows.wrappers),
        "secure": secure_figure(rows.secure),
        "malicious": malicious_figure(rows.matrix),
    }
    for name, figure in figures.items():
        save(figure, DOCS / "assets" / f"answers_{name}.svg")
    text = page(answers(rows))
    write_atomically(DOCS / "answers.md", lambda file: file.write_text(text, encoding="utf-8"))


if __name__ == "__main__":
    one_line(main)
