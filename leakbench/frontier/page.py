"""The page of a frontier in Markdown: the answer, the figure, every setting, what was left out, how to repeat it."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd

from leakbench.frontier.answer import answer_of, epsilon_text, share_text
from leakbench.frontier.choose import Choice, first_point, main_rows, qualifies
from leakbench.frontier.limits import limits_of
from leakbench.frontier.measure import SIZES, command_of
from leakbench.frontier.stale import points_in
from leakbench.reproduce.columns import text_of
from leakbench.reproduce.stale import stale_lines
from leakbench.scripts import in_table, markdown_table, untagged
from leakbench.summary.verdict import CAUTION, LEVEL

__all__ = ["page_of"]

HEADS = (
    *(
        "setting",
        "sigma",
        "accuracy [95 % CI]",
        "identified [95 % CI]",
        "by chance",
        "p",
        "ASR [95 % CI]",
        "baseline ASR",
        "label told",
    ),
    *("a guess", "valid epsilon", "against who reads here", "claimed", "verdict", "qualifies"),
)

LEGEND = """\
- accuracy: of the test examples after the last round, {seeds}.
- identified: how often the victim is picked out of the candidates by the likelihood of what leaked, by an attacker who knows the
  defense, of {many} victims who are tried for this alone, by the attack `identification`; by chance: between which shares somebody
  who saw nothing stays with 95 % probability; p: how likely chance is to reach as many, by a one-sided exact binomial test.
- ASR: the share of examples of {few} victims that `autoleak`, who knows the defense, brings back to the calibrated RMSE; one
  without an answer counts as not brought back. baseline ASR: that of a guess from public data alone.
- label told: how often the victim's class comes first; a guess: the commonest class of the public examples.
- valid epsilon: of the mechanism as it was executed, at delta = {delta:g}, against who sees the released models; beside it against
  who reads at {point}.
- verdict: of the attack by `autoleak`; `identifies` also where p is below {claim:g}. `inconclusive`: nothing significant leaked,
  but fewer victims or networks were attacked than `no leak found` requires.
- qualifies: identification is not significantly above chance at level {level:g}, and the verdict is not `reconstructs` or
  `identifies`;
  the most accurate of these is the answer."""

HERE = """\
Read at `type-1`: an honest server, or who listens on the wire, reads each client's update before the server does anything to it,
so this is where a client is on its own. What a defense does later, at the server, hides nothing there."""

PROTOCOL = """\
The leak is that of the `paper` protocol: a sigmoid network at random weights, one local iteration, {batch}, which is easiest for
the attacker. Who trusts a setting for another network, or a trained one, measures it there:
`leakbench run --protocol live --defense ...`."""


def page_of(rows: pd.DataFrame, choice: Choice, name: str, unnamed: str = "") -> str:
    """Return the page; rows: all of them, of every leakage point, with what was left out.

    unnamed: why the best setting has no recipe, where it has none.
    """
    if not len(rows):
        return "# Frontier\n\nNothing was measured yet.\n"
    asked, main, point = json.loads(rows["asked"].iloc[0]), main_rows(rows), first_point(rows)
    others = rows[rows["left_out"].isna() & (rows["point"] != point)] if "point" in rows else rows.head(0)
    delta = main["delta"].iloc[0] if len(main) else 1e-5
    lines = [
        f"# Which defense for {untagged(str(asked['dataset']))}, at what setting",
        "",
        untagged(answer_of(main, choice)),
        "",
        *stale_lines(list(points_in(name, rows))),
        *limits_of(rows, main),
        *_recipe(choice, name, unnamed, asked["dataset"]),
        "",
        f"![Accuracy against valid epsilon, and against identification, of every setting]({name}.svg)",
        "",
        HERE if point == "type-1" else f"Read at `{point}`, as was asked.",
        "",
        PROTOCOL.format(
            batch="one example" if asked["leak_batch"] == 1 else f"batches of {asked['leak_batch']} examples"
        ),
        "",
        "## Every setting",
        "",
        _table(main),
        "",
        LEGEND.format(
            seeds=_seeds(main),
            delta=delta,
            point=point,
            level=CAUTION,
            claim=LEVEL,
            many=_range(main, "identify_victims"),
            few=_range(main, "victims"),
        ),
        "",
        *_after(main, point),
        *(["## Other leakage points", "", _table(others, tap=True), ""] if len(others) else []),
        *_left_out(rows),
        "## What was measured, and how to repeat it",
        "",
        _sizes(asked),
        "",
        f"`{command_of(rows, asked)}`",
        "",
        "A setting that was measured is not measured again; each row of the CSV has its hash, seeds, versions and minutes "
        f"({text_of(rows.drop_duplicates('cell')['wall_minutes'].sum(), 0)} minutes in all, on shared cores).",
    ]
    return "\n".join(lines).rstrip() + "\n"


def _recipe(choice: Choice, name: str, unnamed: str, dataset: str) -> list[str]:
    if choice.best is None:
        return []
    data = f" --dataset {dataset}"
    if unnamed:
        return ["", f"Without a recipe: {unnamed}."]
    return [
        "",
        f"As a recipe: [{name}_best.yaml]({name}_best.yaml), for `leakbench run --defense {name}_best.yaml{data}`.",
    ]


def _table(rows: pd.DataFrame, tap: bool = False) -> str:
    good = qualifies(rows)
    lines = []
    for qualified, (_, row) in zip(good, rows.iterrows(), strict=True):
        lines.append(
            (
                in_table(f"{row['row']}, {row['point']}" if tap else row["row"]),
                "-" if pd.isna(row["sigma"]) else in_table(row["sigma"]),
                share_text(row, "trained_accuracy"),
                f"{share_text(row, 'identified')} of {row['candidates']:,.0f}",
                f"{text_of(row['null_identified_low'], 3)} to {text_of(row['null_identified_high'], 3)}",
                _p_text(row["identify_p"]),
                share_text(row, "asr"),
                text_of(row["null_asr"]),
                text_of(row["label_ranked"]),
                text_of(row["null_label"]),
                epsilon_text(row["epsilon_valid"]),
                epsilon_text(row["epsilon_tap"]),
                epsilon_text(row["epsilon_claimed"]),
                in_table(row["verdict"]),
                "yes" if qualified else "no",
            )
        )
    return markdown_table(HEADS, lines)


def _p_text(p: float) -> str:
    """Return a p-value in three digits, a small one by its power of ten."""
    if pd.isna(p):
        return "not measured"
    return text_of(p, 3) if p >= 0.001 else "< 1e-99" if p < 1e-99 else f"{p:.0e}"


def _range(rows: pd.DataFrame, column: str) -> str:
    """Return a column's number, or its ends where it is not the same in all rows."""
    found = sorted({int(n) for n in rows[column]}) if len(rows) else []
    return " to ".join(f"{n:,}" for n in dict.fromkeys((*found[:1], *found[-1:]))) or "no"


def _seeds(rows: pd.DataFrame) -> str:
    many = int(rows["seeds"].max()) if len(rows) else 1
    if many == 1:
        return "of one seed, its interval by how many test examples there are"
    return f"the mean over {many} seeds with Student's interval; the first seed is the one that was attacked"


def _after(rows: pd.DataFrame, point: str) -> list[str]:
    """Return why defenses with an epsilon have none against who reads here."""
    bare = rows[rows["epsilon_valid"].notna() & rows["epsilon_tap"].isna()].drop_duplicates("defense")
    none = rows[rows["epsilon_valid"].isna()].drop_duplicates("defense")
    lines = [untagged(f"- `{row['defense']}`: {_reason(row['epsilon_tap_reason'])}.") for _, row in bare.iterrows()]
    found = (
        [f"With an epsilon for released models, but none against who reads {point}:", "", *lines, ""] if lines else []
    )
    lines = [untagged(f"- `{row['defense']}`: {_reason(row['epsilon_reason'])}.") for _, row in none.iterrows()]
    return [*found, *(["Without any valid epsilon:", "", *lines, ""] if lines else [])]


def _reason(said: Any) -> str:
    return str(said).removeprefix("none: ").rstrip(".")


def _left_out(rows: pd.DataFrame) -> list[str]:
    out = rows[rows["left_out"].notna()]
    lines = [untagged(f"- {row['row']}: {row['left_out']}.") for _, row in out.iterrows()]
    return ["Left out:", "", *lines, ""] if lines else []


def _sizes(asked: dict[str, Any]) -> str:
    texts = {**SIZES, "seeds": "one seed"} if asked.get("seeds") == 1 else SIZES
    said = [text.format(asked[key]) for key, text in texts.items() if asked.get(key) is not None]
    return (
        f"Sizes: {', '.join(said)}; what is not named is the data set's own. Smaller sizes than the papers' make wider intervals "
        "and lower accuracies."
    )
