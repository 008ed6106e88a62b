"""Write the page of a frontier in Markdown: the answer, the figure, every setting, the settings left out, the command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from leakbench.box import box_of, caveats_of, count_of
from leakbench.core.leakage_points import point_name
from leakbench.core.scripts import in_table, markdown_table, untagged
from leakbench.frontier.answer import (
    answer_of,
    command_words,
    epsilon_or_reason,
    p_text,
    required,
    setting_of,
    share_text,
)
from leakbench.frontier.choose import (
    CHOICE,
    CORRECTED,
    LEARNED,
    RELEASED,
    Choice,
    Requirements,
    chosen,
    first_point,
    judged,
    main_rows,
    refusals,
)
from leakbench.frontier.frontier import points_in
from leakbench.frontier.grid import DEFENSES, OUT
from leakbench.frontier.measure import SIZES, command_of
from leakbench.measure.measures import EDIT_DISTANCE, RMSE
from leakbench.measure.rates import ASR, IDENTIFIED, LABEL_RANKED
from leakbench.reproduce.columns import text_of, without_an_answer
from leakbench.study.rows import on_cpu
from leakbench.study.stale import stale_lines, stale_names
from leakbench.summary.verdict import CAUTION, LEVEL

__all__ = ["CHOSEN_BY", "page_of"]

HEADS = (
    *(
        "setting",
        "sigma",
        "accuracy on the choosing half",
        "accuracy [95 % CI]",
        "identified [95 % CI]",
        "chance",
        "p",
        "p corrected",
        "ASR [95 % CI]",
        "baseline ASR",
    ),
    *("label", "commonest class", "valid epsilon, released", "valid epsilon, here", "claimed", "verdict", "qualifies"),
)

LEGEND = """\
- accuracy: on one half of the test examples after the last round, {seeds}.
- identified: how often the likelihood of the observed update picks the victim among the candidates. The attacker is adaptive;
  {many} victims are only identified, by the attack `identification`. chance: 95 % range of a guess without any gradient; p: by a
  one-sided exact binomial test against chance; p corrected: by Holm's method for the number of settings.
- ASR: the share of the examples of {few} victims that `autoleak` reconstructs to the calibrated {distance}; an example without a
  reconstruction counts as not reconstructed. baseline ASR: the same for a guess from public data alone.
- label: how often the victim's class is ranked first; commonest class: its share among the public examples.
- valid epsilon, released: for the mechanism as executed, at delta = {delta:g}, against an observer of the released models; here:
  against an observer of the {point}. claimed: by the paper's own formula.
- verdict: for the attack by `autoleak`; `identifies` also where p is below {claim:g} and p corrected below {level:g}.
  `inconclusive`: nothing significant leaked, but fewer victims or networks were attacked than `no leak found` requires, or p is
  small for one setting but not for so many.
- qualifies: `yes`, or why not. leak: the verdict is `reconstructs` or `identifies`. accuracy: the setting is not
  usable{usable}.{epsilon} The most accurate setting that qualifies is the answer, by the accuracies on the choosing half."""

HERE = """\
The {point} is what an honest server receives, and what an observer of the network sees without encryption. The server has not
processed it, so a defense at the server does not protect it."""

PROTOCOL = """\
The leak is that of the `paper` protocol: a {network} at random weights, one local iteration, {batch}. This is the easiest
case for the attacker. `leakbench run --protocol live --defense ...` measures a setting on another network or a trained one."""


def _kind(rows: pd.DataFrame) -> dict[str, str]:
    """Return the distance that decides about a success, and the kind of network that leaks: texts have others."""
    texts = EDIT_DISTANCE.baseline in rows and bool(rows[EDIT_DISTANCE.baseline].notna().any())
    if texts:
        return {"distance": EDIT_DISTANCE.heading, "network": "transformer"}
    return {"distance": RMSE.heading, "network": "sigmoid network"}


CHOSEN_BY = (
    "A setting is chosen by its accuracy on one half of the test examples, the choosing half. The other accuracy is on the "
    "other half: there, a setting that was chosen among fewer can be more accurate."
)
"""Sentences next to a table of settings that were chosen under different requirements."""

MAXIMA = (1.0, 8.0, None)
"""Largest epsilons of the table of requirements; None for any setting."""


def page_of(rows: pd.DataFrame, choice: Choice, name: str, unnamed: str = "", out: Path = OUT) -> str:
    """Return the page.

    Args:
        rows: All rows, of every leakage point, with the settings that were left out.
        choice: The choice among the rows of the leakage point that the page is about.
        name: Name of the frontier.
        unnamed: Why the best setting has no recipe; empty where it has one.
        out: Folder of the page and its rows.
    """
    if not len(rows):
        return "# Frontier\n\nNothing was measured yet.\n"
    asked, main, point = json.loads(rows["asked"].iloc[0]), main_rows(rows, choice.wanted), _point(rows, choice)
    others = rows[rows["left_out"].isna() & (rows["point"] != point)] if "point" in rows else rows.head(0)
    published = list(points_in(name, rows, out=out))
    stale = stale_names(published)
    delta = main["delta"].iloc[0] if len(main) else 1e-5
    kind = _kind(rows)
    lines = [
        f"# Which defense for {untagged(str(asked['dataset']))}, at what setting",
        "",
        *_box(rows, main, choice, stale, out),
        untagged(answer_of(main, choice)),
        "",
        *stale_lines(published, stale),
        *_limits_of(rows, main),
        *_recipe(choice, name, unnamed, asked["dataset"]),
        "",
        f"![Accuracy against valid epsilon, and against identification, of every setting]({name}.svg)",
        "",
        HERE.format(point=point_name(point)) if point == "type-1" else f"Leakage point: {point_name(point)}.",
        "",
        PROTOCOL.format(
            network=kind["network"],
            batch="one example" if asked["leak_batch"] == 1 else f"batches of {asked['leak_batch']} examples",
        ),
        "",
        *_requirements(rows),
        "## Every setting",
        "",
        _table(main, choice.wanted),
        "",
        LEGEND.format(
            distance=kind["distance"],
            seeds=_seeds(main),
            delta=delta,
            point=point_name(point),
            level=CAUTION,
            claim=LEVEL,
            many=_range(main, "identify_victims"),
            few=_range(main, "victims"),
            usable=""
            if choice.usable is None
            else f" (below {text_of(choice.usable, 3)}, {LEARNED:.0%} of what undefended "
            "training learns above the commonest class)",
            epsilon=f" epsilon: no {required(choice.wanted)}." if choice.wanted.max_epsilon is not None else "",
        ),
        "",
        *without_an_answer(main),
        *_after(main, point),
        *(["## Other leakage points", "", _table(others, choice.wanted, tap=True), ""] if len(others) else []),
        *_left_out(rows),
        "## Sizes and command",
        "",
        _sizes(asked),
        "",
        f"`{command_of(rows, out)}{command_words(choice.wanted)}`",
        "",
        "Finished settings are not measured again. With `--page`, the command only writes this page again. Each row of the CSV "
        "has its hash, seeds, versions and minutes "
        f"({text_of(on_cpu(rows).drop_duplicates('cell')['wall_minutes'].sum(), 0)} minutes in total, on shared cores).",
    ]
    return "\n".join(lines).rstrip() + "\n"


def _recipe(choice: Choice, name: str, unnamed: str, dataset: str) -> list[str]:
    if choice.best is None:
        return []
    data = f" --dataset {dataset}"
    if unnamed:
        return ["", f"No recipe was written: {unnamed}."]
    return [
        "",
        f"Recipe: [{name}_best.yaml]({name}_best.yaml), for `leakbench run --defense {name}_best.yaml{data}`.",
    ]


def _box(
    rows: pd.DataFrame, main: pd.DataFrame, choice: Choice, stale: Mapping[str, Sequence[str]], out: Path
) -> list[str]:
    """Return the box at the top of the page."""
    asked, best = json.loads(rows["asked"].iloc[0]), choice.best
    limit = required(choice.wanted)
    claim = (
        f"Which defense for {asked['dataset']} trains a usable model{f' with a {limit}' if limit else ''}, without a significant "
        f"leak at the {point_name(_point(rows, choice))}?"
    )
    verdict = f"No usable setting among {choice.settings} qualifies."
    if best is not None:
        verdict = (
            f"{setting_of(best)}: accuracy {share_text(best, 'trained_accuracy')}, "
            f"identification {share_text(best, IDENTIFIED.name)}, valid epsilon "
            f"{epsilon_or_reason(best['epsilon_valid'])} (released models), {epsilon_or_reason(best['epsilon_tap'])} (here)."
        )
    evidence = (
        f"{choice.settings} settings of {main['defense'].nunique()} defenses; {_range(main, 'identify_victims')} victims "
        f"identified and {_range(main, 'victims')} attacked by an adaptive `autoleak` in each; "
        f"training seeds: {_range(main, 'seeds')}."
    )
    lacking, _ = _not_measured(rows, main)
    caveats = caveats_of(stale, main, noun="setting")
    caveats += (
        [f"{count_of(lacking, 'setting')} of the grid {'was' if lacking == 1 else 'were'} not measured."]
        if lacking
        else []
    )
    caveats += [f"One attacker, {_kind(rows)['network']}s at random weights: another attacker may find more."]
    command = f"{command_of(rows, out)}{command_words(choice.wanted)}"
    return box_of(claim, untagged(verdict), evidence, untagged(" ".join(caveats)), command)


def _point(rows: pd.DataFrame, choice: Choice) -> str:
    return first_point(rows) if choice.wanted.observer == RELEASED else choice.wanted.observer


def _requirements(rows: pd.DataFrame) -> list[str]:
    """Return the table of answers under other requirements: for each largest epsilon and each measured observer."""
    measured = rows[rows["left_out"].isna()] if "point" in rows else rows.head(0)
    lines = []
    for observer in (RELEASED, *dict.fromkeys(measured["point"])) if len(measured) else ():
        for most in MAXIMA:
            if most is None and observer != RELEASED:
                continue
            wanted = Requirements(most, observer)
            main = main_rows(rows, wanted)
            best = chosen(main, wanted).best
            against = "released models" if observer == RELEASED else point_name(observer)
            shown = (
                ("no usable setting", "-", "-", "-", "-")
                if best is None
                else (
                    setting_of(best),
                    text_of(best[CHOICE], 3),
                    share_text(best, "trained_accuracy"),
                    share_text(best, IDENTIFIED.name),
                    epsilon_or_reason(best[wanted.column]),
                )
            )
            lines.append(("any" if most is None else f"{most:g}", "-" if most is None else against, *shown))
    if not lines:
        return []
    heads = (
        "largest epsilon",
        "against an observer of",
        "setting",
        "accuracy on the choosing half",
        "accuracy [95 % CI]",
        "identified [95 % CI]",
        "epsilon",
    )
    rule = (
        "Every answer also requires a usable accuracy and no significant leak (`--max-epsilon`, `--observer`). "
        + CHOSEN_BY
    )
    return ["## Answers by required epsilon", "", rule, "", markdown_table(heads, lines), ""]


def _table(rows: pd.DataFrame, wanted: Requirements, tap: bool = False) -> str:
    reasons = list(refusals(rows, wanted)) if len(rows) else list[str]()
    rows, lines = judged(rows), []
    for reason, (_, row) in zip(reasons, rows.iterrows(), strict=True):
        lines.append(
            (
                in_table(f"{row['row']}, {row['point']}" if tap else row["row"]),
                "-" if pd.isna(row["sigma"]) else in_table(row["sigma"]),
                text_of(row[CHOICE], 3),
                share_text(row, "trained_accuracy"),
                f"{share_text(row, IDENTIFIED.name)} of {row['candidates']:,.0f}",
                f"{text_of(row['null_identified_low'], 3)} to {text_of(row['null_identified_high'], 3)}",
                p_text(row["identify_p"]),
                p_text(row[CORRECTED]),
                share_text(row, ASR.name),
                text_of(row[ASR.baseline]),
                text_of(row[LABEL_RANKED.name]),
                text_of(row["null_label"]),
                epsilon_or_reason(row["epsilon_valid"]),
                epsilon_or_reason(row["epsilon_tap"]),
                epsilon_or_reason(row["epsilon_claimed"]),
                in_table(row["verdict"]),
                f"no: {reason}" if reason else "yes",
            )
        )
    return markdown_table(HEADS, lines)


def _range(rows: pd.DataFrame, column: str) -> str:
    """Return a column's number, or its range where rows differ."""
    found = sorted({int(n) for n in rows[column]}) if len(rows) else []
    return " to ".join(f"{n:,}" for n in dict.fromkeys((*found[:1], *found[-1:]))) or "no"


def _seeds(rows: pd.DataFrame) -> str:
    many = int(rows["seeds"].max()) if len(rows) else 1
    if many == 1:
        return "for one seed; the interval is over test examples"
    return f"mean over {many} seeds with Student's interval; the first seed is attacked"


def _after(rows: pd.DataFrame, point: str) -> list[str]:
    """Return why defenses have no epsilon against an observer of the leakage point, or none at all."""
    bare = rows[rows["epsilon_valid"].notna() & rows["epsilon_tap"].isna()].drop_duplicates("defense")
    none = rows[rows["epsilon_valid"].isna()].drop_duplicates("defense")
    lines = [untagged(f"- `{row['defense']}`: {_reason(row['epsilon_tap_reason'])}.") for _, row in bare.iterrows()]
    found = (
        [f"Valid epsilon for released models, but not against an observer of the {point_name(point)}:", "", *lines, ""]
        if lines
        else []
    )
    lines = [untagged(f"- `{row['defense']}`: {_reason(row['epsilon_reason'])}.") for _, row in none.iterrows()]
    return [*found, *(["No valid epsilon:", "", *lines, ""] if lines else [])]


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
        f"Sizes: {', '.join(said)}; other sizes are the data set's defaults. Smaller sizes than in the papers give wider "
        "intervals and lower accuracies."
    )


HALVES = (
    "The setting is selected by its accuracy on one half of the test examples (`choosing half`), and the other accuracies on this "
    "page are those on the other half, so that the choice does not raise them."
)

SEVERAL_SEEDS = (
    "All trainings are tested on the same examples: the interval of an accuracy covers another training, but not other test "
    "examples."
)

ONE_SEED = "With one seed, the interval of an accuracy covers the choice of test examples, but not another training."


def _limits_of(rows: pd.DataFrame, main: pd.DataFrame) -> list[str]:
    """Return paragraphs.

    Args:
        rows: All rows, with the settings that were left out.
        main: The rows of the leakage point that the answer is about.
    """
    lacking, grid = _not_measured(rows, main)
    said = (
        f"Not measured: {lacking} of the {grid} settings of the grid of these defenses and noise factors; the answer is among the "
        f"other {grid - lacking}."
        if lacking
        else f"All {grid} settings of the grid of these defenses and noise factors were measured."
    )
    others = [f"`{name}`" for name in DEFENSES if name not in set(rows["defense"])]
    absent = (
        [f"Default defenses that were not tried ({len(others)} of {len(DEFENSES)}): {', '.join(others)}."]
        if others
        else []
    )
    seeds = [ONE_SEED if main["seeds"].max() == 1 else SEVERAL_SEEDS] if len(main) else []
    return [" ".join([said, *absent]), "", " ".join([*seeds, HALVES])]


def _not_measured(rows: pd.DataFrame, main: pd.DataFrame) -> tuple[int, int]:
    """Return how many settings of the grid were not measured, and how many settings the grid has.

    The grid: every defense with noise at every factor of these rows, and every other defense once.
    """
    noisy = rows[rows["noise"].astype(bool)]
    grid = noisy["defense"].nunique() * noisy["factor"].nunique()
    grid += len(set(rows["defense"]) - set(noisy["defense"]))
    return grid - main["cell"].nunique(), grid
