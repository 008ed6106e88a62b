"""Figure of leakage and accuracy against the level of noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from leakbench.leakage_points import point_name
from leakbench.report.svg import DASHES, SERIES, drawn, inline

__all__ = ["levels_figure"]

MEANS = "Attack success rate, share of victims identified and accuracy against the level of noise; the table has the values."


def levels_figure(names: Sequence[str], panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Markup:
    """Return a panel for each measure, with a line for each leakage point over the levels; values in [0, 1] or NaN."""
    with drawn(5.4, 0.9 + 1.35 * len(panels)) as figure:
        places = range(len(names))
        for axes, (measure, curves) in zip(
            figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0], panels.items(), strict=True
        ):
            for place, (name, values) in enumerate(curves.items()):
                # The axis names a lone curve; its colour differs from those of the leakage points.
                colour, dash = SERIES[place if len(curves) > 1 else 3], DASHES[place % len(DASHES)]
                axes.plot(places, values, dash, color=colour, marker="o", markersize=4, label=point_name(name))
            axes.set(ylim=(-0.04, 1.04), ylabel=measure)
        axes.set_xticks(places, names, rotation=30, ha="right", rotation_mode="anchor")
        figure.align_ylabels()
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
        return inline(figure, "levels-curve", MEANS)
