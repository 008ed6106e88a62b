"""The table of finished runs for a paper in LaTeX, with the lines of the package booktabs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from leakbench.core.leakage_points import point_name
from leakbench.core.words import epsilon_text
from leakbench.report.columns import BASELINE, PICKED, SUCCESS, VERDICT, VICTIMS, distance_columns, text_columns
from leakbench.report.epsilons import not_covered
from leakbench.report.words import number
from leakbench.storage.summary import Summary

__all__ = ["escaped", "latex_table"]

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}

RECIPES = ("dataset", "defense", "attack")

COLUMNS = (
    replace(VICTIMS, text=lambda tap: str(tap.victims)),
    replace(SUCCESS, heading=SUCCESS.heading.replace("95%", "95 %")),
    replace(BASELINE, heading="baseline"),
    PICKED,
)
"""Columns after the leakage point; the measures of texts, the distance and the verdict follow."""


def escaped(text: str) -> str:
    """Return a text in which no character is a command of LaTeX."""
    return "".join(SPECIAL.get(character, character) for character in text)


def latex_table(summaries: Sequence[Summary], settings: Sequence[Mapping[str, str]] = ()) -> str:
    r"""Return the table of one or several runs.

    Args:
        summaries: Summary of each run, as `leakbench run --json` prints it.
        settings: {setting: its value} of each run, or none.

    Returns:
        A `table` for a document that loads booktabs (`\usepackage{booktabs}`). A recipe or setting that differs between the runs
        is a column; the others are in the caption, and so are accuracy and valid epsilon of a single run.
    """
    cells = [summary.cell.as_dict() for summary in summaries]
    measured = (*COLUMNS, *text_columns(summaries), *distance_columns(summaries), VERDICT)
    differ = [name for name in RECIPES if len({cell[name] for cell in cells}) > 1]
    several = len(summaries) > 1
    names = dict.fromkeys(name for each in settings for name in each if name not in RECIPES)
    changed = [name for name in names if len({each.get(name, "none") for each in settings}) > 1]
    headings = [
        *differ,
        *changed,
        "leakage point",
        *(column.heading for column in measured),
        *(["accuracy", "valid epsilon"] if several else []),
    ]
    lines = [
        [
            *(str(cells[place][name]) for name in differ),
            *(settings[place].get(name, "none") for name in changed),
            point_name(point),
            *(column.text(tap) for column in measured),
            *([number(summary.accuracy), epsilon_text(summary.epsilon.valid)] if several else []),
        ]
        for place, summary in enumerate(summaries)
        for point, tap in summary.taps.items()
    ]
    same = [f"{name} {cells[0][name]}" for name in RECIPES if name not in differ]
    accuracy, valid = summaries[0].accuracy, epsilon_text(summaries[0].epsilon.valid)
    facts = [] if several else [f"accuracy {number(accuracy)}", f"valid epsilon {valid}"]
    caption = f"Measured with leakbench: {', '.join([*same, *facts])}."
    caption = " ".join([caption, *dict.fromkeys(s for summary in summaries for s in not_covered(summary))])
    columns = (
        "l" * (len(differ) + len(changed) + 1) + "".join("lr"[column.numeric] for column in measured) + "rr" * several
    )
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{escaped(caption)}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            f"    {_line(headings)}",
            r"    \midrule",
            *(f"    {_line(line)}" for line in lines),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def _line(cells: Sequence[str]) -> str:
    return " & ".join(escaped(cell) for cell in cells) + r" \\"
