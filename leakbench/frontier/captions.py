"""Write the words on a frontier's figure: the answer, the names of the defenses next to their lines, and how to read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leakbench.frontier.answer import epsilon_text, required, setting_of
from leakbench.frontier.choose import Choice
from leakbench.frontier.labels import spread
from leakbench.frontier.look import INK, LABELS, LARGE, MUTED, PAPER, RIGHT, SMALL, USUAL, Look
from leakbench.leakage_points import point_name
from leakbench.reproduce.columns import text_of

__all__ = ["names", "words"]

APART = 0.05
"""Distance between two labels, as a share of the panels' height."""

LOWEST = 0.2
"""Lowest place of a label, in the same unit; the key is below it."""

KEY = {"reconstructs": True, "does not": False}


def names(axes: Axes, rows: pd.DataFrame, looks: dict[str, Look], choice: Choice) -> None:
    """Write each defense's name to the right of the panels, with its marker, and a thin line to its rightmost point."""
    ends = {
        str(defense): own.sort_values(["identified", "trained_accuracy"]).iloc[-1]
        for defense, own in rows.dropna(subset=["identified"]).groupby("defense", sort=False)
    }
    names = list(ends)
    # Heights are shares of the panel's height: labels keep their distance on every scale.
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
    """Write the question, the answer and how to read the figure."""
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
        f"Attacked: the {point_name(first['point'])} of {_examples(asked)}, by an adaptive attacker.\n"
        f"Identified: {first['identify_victims']:,.0f} victims, each among {first['candidates']:,.0f} candidates. "
        "Up and left is better."
    )
    figure.text(0.02, 0.075, foot, fontsize=SMALL, color=MUTED, va="top", linespacing=1.35)


def _examples(asked: dict[str, Any]) -> str:
    return "one example" if asked["leak_batch"] == 1 else f"{asked['leak_batch']} examples"


def _answer(choice: Choice) -> str:
    """Return the answer in one or two lines."""
    if choice.best is None:
        if choice.wanted.max_epsilon is None:
            return "No usable setting qualifies:\neach one leaks or learns too little."
        return f"No usable setting qualifies with a\n{required(choice.wanted)}."
    best, column = choice.best, choice.wanted.column
    epsilon = "no valid epsilon" if pd.isna(best[column]) else f"valid $\\epsilon$ {epsilon_text(best[column])}"
    return (
        f"$\\bigstar$ {setting_of(best).replace('`', '')}: accuracy {text_of(best['trained_accuracy'])},\n"
        f"    identified {text_of(best['identified'], 3)} (chance: up to {text_of(best['null_identified_high'], 3)}), {epsilon}"
    )
