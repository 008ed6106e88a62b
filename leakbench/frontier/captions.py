"""What is written on a frontier's figure: the answer, the defenses' names beside their lines, and how to read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leakbench.frontier.answer import setting_of
from leakbench.frontier.choose import Choice
from leakbench.frontier.labels import spread
from leakbench.frontier.look import INK, LABELS, LARGE, MUTED, PAPER, RIGHT, SMALL, USUAL, Look
from leakbench.reproduce.columns import text_of

__all__ = ["names", "words"]

APART = 0.05
"""Between two labels, in shares of the panels' height."""

LOWEST = 0.2
"""How far down labels go, in the same; beneath stands the key."""

READ = {
    "type-2": "a gradient (type-2)",
    "type-1": "a client's update (type-1)",
    "type-0": "an update at the server (type-0)",
    "global": "the mean update",
}
"""{leakage point: what stands there to be read}"""

KEY = {"examples come back": True, "none does": False}


def names(axes: Axes, rows: pd.DataFrame, looks: dict[str, Look], choice: Choice) -> None:
    """Write each defense's name right of the panels, with its marker, and a thin line to the rightmost of its points."""
    ends = {
        str(defense): own.sort_values(["identified", "trained_accuracy"]).iloc[-1]
        for defense, own in rows.dropna(subset=["identified"]).groupby("defense", sort=False)
    }
    names = list(ends)
    # Heights are shares of the panel's, in which the labels keep their distance whatever the scale.
    to_share = axes.transData + axes.transAxes.inverted()
    wanted = [to_share.transform((0.0, float(ends[n]["trained_accuracy"])))[1] for n in names]
    places = to_share.inverted().transform([(0.0, y) for y in spread(wanted, APART, LOWEST, 1.0)])[:, 1]
    left, edge = axes.get_xlim()
    at = left + (LABELS - RIGHT[0]) / RIGHT[1] * (edge - left)
    for name, y in zip(names, places, strict=True):
        look, end = looks[name], ends[name]
        axes.plot(
            [float(end["identified"]), edge, at - 0.02],
            [float(end["trained_accuracy"]), y, y],
            color=look.colour,
            linewidth=0.5,
            alpha=0.6,
            clip_on=False,
            zorder=1,
        )
        axes.scatter(
            [at + 0.05],
            [y],
            s=26,
            marker=look.marker,
            facecolor=look.colour,
            edgecolor=look.colour,
            clip_on=False,
            zorder=3,
        )
        bold = choice.best is not None and choice.best["defense"] == name
        axes.text(
            at + 0.14, y, Path(name).stem, fontsize=SMALL, color=INK, va="center", weight="bold" if bold else "normal"
        )

    for place, (said, full) in enumerate(KEY.items()):
        y = to_share.inverted().transform((0.0, 0.07 - 0.05 * place))[1]
        face = MUTED if full else PAPER
        axes.scatter([at + 0.05], [y], s=26, marker="o", facecolor=face, edgecolor=MUTED, clip_on=False, zorder=3)
        axes.text(at + 0.14, y, said, fontsize=SMALL, color=MUTED, va="center")


def words(figure: Figure, rows: pd.DataFrame, choice: Choice) -> None:
    """Write the question, the answer and how the figure is read."""
    asked, first = json.loads(rows["asked"].iloc[0]), rows.iloc[0]
    figure.text(
        0.02,
        0.975,
        f"Which defense for {asked['dataset']}, and how much noise?",
        fontsize=LARGE,
        color=INK,
        va="top",
        weight="bold",
    )
    figure.text(0.02, 0.936, _answer(choice), fontsize=USUAL, color=INK, va="top", linespacing=1.35)
    foot = (
        "A line is one defense, from its most noise to its least; thin lines are 95 % intervals.\n"
        f"Read: {READ.get(first['point'], first['point'])} of {_examples(asked)}, by an attacker who knows the defense;\n"
        f"identified: {first['identify_victims']:,.0f} victims, each among {first['candidates']:,.0f} candidates. "
        "Up and left is better in both panels."
    )
    figure.text(0.02, 0.075, foot, fontsize=SMALL, color=MUTED, va="top", linespacing=1.35)


def _examples(asked: dict[str, Any]) -> str:
    return "one example" if asked["leak_batch"] == 1 else f"{asked['leak_batch']} examples"


def _answer(choice: Choice) -> str:
    """Return the answer in one line, or two."""
    if choice.best is None:
        return "No setting qualifies: every one trains nothing, or shows who the victim is."
    best = choice.best
    epsilon = (
        "no valid epsilon" if pd.isna(best["epsilon_valid"]) else f"valid $\\epsilon$ {_short(best['epsilon_valid'])}"
    )
    return (
        f"$\\bigstar$ {setting_of(best).replace('`', '')}: accuracy {text_of(best['trained_accuracy'])},\n"
        f"    identified {text_of(best['identified'], 3)} (chance: to {text_of(best['null_identified_high'], 3)}), {epsilon}"
    )


def _short(epsilon: float) -> str:
    return f"{epsilon:.3g}" if epsilon < 1000 else f"{epsilon:,.0f}"
