"""Curves of the page: success against threshold, work and rounds, and training; readable on a light and a dark page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from leakbench.core.leakage_points import point_name
from leakbench.core.svg import DASHES, INK, QUIET, SERIES, drawn, inline
from leakbench.measure.measures import deciding
from leakbench.measure.rates import ASR, IDENTIFIED
from leakbench.measure.statistics import proportion, threshold_curve
from leakbench.privacy.bounds import Seen
from leakbench.storage.summary import Tap

__all__ = ["anytime_figure", "bound_curve", "rounds_figure", "threshold_figure", "training_figure"]

WIDTH = 5.0
"""Inches; small, so that the text is legible where the figure fills a phone."""

THRESHOLDS = 161
"""Points of a threshold curve, besides eta itself."""

MARKED = 30
"""Number of points from which a line has no markers."""

ROUND_PANELS = {
    "accuracy": "accuracy",
    "epsilon": "valid epsilon (Rényi)",
    "loss": "training loss",
    "between_client_variance": "variance V_c",
    "update_scale": "update scale U_s",
}

TRAINING_MEANS = (
    "Accuracy against the round; where measured also valid epsilon, loss, between-client variance and update scale"
)
ROUNDS_MEAN = (
    "Attack success rate and share of victims identified, against the rounds trained before the leak; the table of "
    "leakage points has the values."
)
ANYTIME_MEANS = (
    "Attack success rate against the gradient evaluations that the attacker had spent on a victim; the table of leakage "
    "points has the values at the end."
)
THRESHOLD_MEANS = (
    "Attack success rate against the {measure} that counts as success, for each leakage point and the baseline guess; the table of "
    "leakage points has the values at eta."
)


def training_figure(rounds: pd.DataFrame) -> Markup | None:
    """Return accuracy, epsilon, loss, V_c and U_s against the round, a panel each; None where no round was trained."""
    shown = [name for name in ROUND_PANELS if name in rounds and np.isfinite(_floats(rounds[name])).any()]
    if not shown:
        return None
    # Two columns keep the figure as high as its neighbours on the page.
    wide = 2 if len(shown) > 2 else 1
    high = -(-len(shown) // wide)
    with drawn(WIDTH, max(3.4, 0.6 + 1.35 * high)) as figure:
        panels = list(figure.subplots(high, wide, sharex=True, squeeze=False).flat)
        for axes in panels[len(shown) :]:
            axes.set_axis_off()
        for axes, name, colour in zip(panels, shown, SERIES, strict=False):
            # A line through one round would be invisible.
            mark = {"marker": "o", "markersize": 4} if len(rounds) < MARKED else {}
            axes.plot(rounds["round"], _floats(rounds[name]), color=colour, **mark)
            axes.set_title(ROUND_PANELS[name])
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in panels[max(0, len(shown) - wide) : len(shown)]:
            axes.set_xlabel("round")
            axes.tick_params(labelbottom=True)
        last = f"; accuracy at the end {_floats(rounds['accuracy'])[-1]:.3f}." if "accuracy" in shown else "."
        return inline(figure, "training-curve", TRAINING_MEANS + last)


def rounds_figure(curves: Mapping[str, Mapping[str, Any]]) -> Markup | None:
    """Return ASR and identification against the rounds before the leak; None without curves.

    Args:
        curves: The summary's `over_rounds`: one curve with its interval for each leakage point.
    """
    if not curves:
        return None
    with drawn(WIDTH, 3.6) as figure:
        panels = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
        for axes, rate in zip(panels, (ASR, IDENTIFIED), strict=True):
            for place, (tap, curve) in enumerate(curves.items()):
                colour, dash = SERIES[place % len(SERIES)], DASHES[place % len(DASHES)]
                middle, low, high = (_floats(pd.Series(curve[field])) for field in rate.ends)
                axes.plot(curve["rounds"], middle, dash, color=colour, marker="o", markersize=4, label=point_name(tap))
                axes.fill_between(curve["rounds"], low, high, color=colour, alpha=0.15, linewidth=0)
            axes.set(ylim=(-0.02, 1.02), title=rate.heading, xlabel="rounds before the leak")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend_below(figure, panels[:1])
        return inline(figure, "rounds-curve", ROUNDS_MEAN)


def anytime_figure(taps: Mapping[str, Tap]) -> Markup | None:
    """Return ASR against gradient evaluations, for leakage points with a success; None without any.

    Args:
        taps: The summary's leakage points with their `anytime` curves.
    """
    curves = {name: tap.anytime["evaluations"] for name, tap in taps.items() if tap.asr and tap.anytime}
    if not curves:
        return None
    with drawn(WIDTH, 3.4) as figure:
        axes = figure.subplots()
        for place, (name, curve) in enumerate(curves.items()):
            at, asr = [1.0, *curve["at"]], [0.0, *curve[ASR.name]]
            colour, dash = SERIES[place % len(SERIES)], DASHES[place % len(DASHES)]
            axes.step(at, asr, where="post", label=point_name(name), color=colour, linestyle=dash)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_plainly)
        axes.set(ylim=(-0.02, 1.02), xlabel="gradient evaluations of one victim", ylabel="ASR")
        _legend_below(figure, [axes])
        return inline(figure, "anytime-curve", ANYTIME_MEANS)


def threshold_figure(
    groups: Mapping[str, pd.DataFrame], seen: Mapping[str, Seen] | None = None, name: str = "threshold-curve"
) -> Markup | None:
    """Return ASR against the threshold of success, a line for each group and a grey one for the baseline guess.

    The cross is the guess that is best for success at eta. It need not be the guess of least RMSE, which the grey line shows.

    Args:
        groups: {leakage point or title of a run: its rows}.
        seen: {leakage point: releases that the attacker saw}; their bound is a thin line.
        name: Identifier of the figure, unique on the page.

    Returns:
        The figure; None without rows.
    """
    groups = {name: rows for name, rows in groups.items() if len(rows)}
    if not groups:
        return None
    everyone = pd.concat(list(groups.values()))
    eta, ruler = float(everyone["eta"].iloc[0]), deciding(everyone)
    scores = np.concatenate([_floats(everyone[ruler.name]), _floats(everyone[ruler.baseline]), [2 * eta]])
    most = min(1.0, 1.05 * float(np.nanmax(scores)))
    thresholds = np.unique(np.append(np.linspace(0, most, THRESHOLDS), min(eta, most)))
    with drawn(WIDTH, 3.8) as figure:
        axes, bounded = figure.subplots(), False
        for index, (name_of, rows) in enumerate(groups.items()):
            colour, dash = SERIES[index % len(SERIES)], DASHES[index % len(DASHES)]
            curve = threshold_curve(_floats(rows[ruler.name]), thresholds)
            axes.step(thresholds, curve, dash, where="post", label=point_name(name_of), color=colour, linewidth=1.8)
            if seen and name_of in seen:
                limit = bound_curve(rows, seen[name_of], thresholds)
                axes.plot(thresholds, limit, dash, color=colour, linewidth=0.8)
                bounded = True
        if bounded:
            axes.plot([], [], color=INK, linewidth=0.8, label="upper bound")
        _draw_null(axes, everyone, thresholds, eta)
        axes.set(
            xlabel=f"{ruler.heading} that counts as success", ylabel="ASR", ylim=(-0.02, 1.02), xlim=(0, thresholds[-1])
        )
        _legend_below(figure, [axes])
        return inline(figure, name, THRESHOLD_MEANS.format(measure=ruler.heading))


def bound_curve(rows: pd.DataFrame, seen: Seen, thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the upper bounds (k,) on the ASR of one leakage point at rising thresholds (k,), given the releases seen there.

    The kappa of a bound is the upper limit of the baseline guess's ASR at that threshold, times the guesses in one answer.
    """
    scores, chances = _floats(rows[deciding(rows).baseline]), int(rows["member"].max()) + 1
    hits = [scores <= threshold for threshold in thresholds]
    upper = {int(hit.sum()): proportion(hit, rows["batch"].to_numpy())[2] for hit in hits}
    kappas = np.array([min(1.0, chances * upper[int(hit.sum())]) for hit in hits])
    # No hit at all bounds a few batches less tightly than a few hits do; the truth never falls with the threshold.
    return seen.robustness(np.maximum.accumulate(kappas))


def _draw_null(axes: Axes, rows: pd.DataFrame, thresholds: NDArray[np.float64], eta: float) -> None:
    curve = threshold_curve(_floats(rows[deciding(rows).baseline]), thresholds)
    axes.step(thresholds, curve, where="post", label="baseline guess", color=QUIET, linewidth=2.5, alpha=0.7)
    axes.plot(
        [eta], [np.nan_to_num(_floats(rows["null_success"])).mean()], "x", color=INK, label="baseline guess at eta"
    )
    axes.axvline(eta, color=INK, linewidth=0.8, linestyle=":", label=f"eta {eta:.3f}")


def _legend_below(figure: Figure, panels: Sequence[Axes]) -> None:
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)


def _plainly(value: float, _: float) -> str:
    """Return the tick of a power of ten without a superscript, which SVG text would split into letters."""
    return f"{value:,.0f}" if 1 <= value < 1e6 else f"{value:g}"


def _floats(values: pd.Series) -> NDArray[np.float64]:
    return values.to_numpy(dtype=np.float64, na_value=np.nan)
