"""Curves and pictures of the page, each as a data URI: no file beside the page, no state of pyplot, no time stamp."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray

from leakbench.measure.statistics import proportion, threshold_curve
from leakbench.privacy.bounds import Seen

__all__ = [
    "COLOURS",
    "DASHES",
    "anytime_figure",
    "bound_curve",
    "picture",
    "rounds_figure",
    "threshold_figure",
    "training_figure",
]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which stay apart for the colour-blind; lines differ in their dashes too."""
DASHES = ("-", "--", "-.", ":")
WIDTH = 5.0
"""Inches; small, so that the letters can still be read where the figure fills a phone."""

ROUND_PANELS = {
    "accuracy": "accuracy",
    "epsilon": "valid $\\epsilon$\n(Rényi)",
    "loss": "training loss",
    "between_client_variance": "between-client\nvariance $V_c$",
    "update_scale": "update scale $U_s$",
}


def picture(example: NDArray[np.floating]) -> str:
    """Return one example as a PNG: (1 or 3, H, W) a picture; any other shape a strip of its features, dark is 0."""
    values = np.clip(example.astype(np.float64), 0, 1)
    if values.ndim == 3 and values.shape[0] == 3:
        pixels = values.transpose(1, 2, 0)
    else:
        plane = values[0] if values.ndim == 3 and values.shape[0] == 1 else values.reshape(1, -1)
        pixels = np.repeat(plane[..., None], 3, axis=2)
    buffer = BytesIO()
    imsave(buffer, np.ascontiguousarray(pixels), format="png")
    return _data_uri(buffer)


def training_figure(rounds: pd.DataFrame) -> str | None:
    """Return accuracy, epsilon, loss, V_c and U_s against the round, a panel each; None where no round was trained."""
    shown = [name for name in ROUND_PANELS if name in rounds and np.isfinite(_floats(rounds[name])).any()]
    if not shown:
        return None
    figure = Figure(figsize=(WIDTH, 0.6 + 1.3 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name, colour in zip(panels, shown, COLOURS, strict=False):
        # A lone round is a point, which a line alone would not show.
        axes.plot(rounds["round"], _floats(rounds[name]), color=colour, marker="o" if len(rounds) < 30 else "")
        axes.set_ylabel(ROUND_PANELS[name])
        axes.grid(alpha=0.25)
    panels[-1].set_xlabel("round")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    return _png(figure)


def rounds_figure(curves: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return ASR, and identification, against the rounds before the leak, a line a tap with its interval; None without any.

    curves: the summary's `over_rounds`.
    """
    if not curves:
        return None
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True, squeeze=False)[0]
    for axes, measure, title in zip(panels, ("asr", "identified"), ("ASR", "identified"), strict=True):
        for (tap, curve), colour in zip(curves.items(), COLOURS, strict=False):
            middle, low, high = (_floats(pd.Series(curve[f"{measure}{end}"])) for end in ("", "_low", "_high"))
            axes.plot(curve["rounds"], middle, color=colour, marker="o", label=tap)
            axes.fill_between(curve["rounds"], low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_ylim(-0.02, 1.02)
        axes.set_title(title)
        axes.set_xlabel("rounds trained before the leak")
        axes.grid(alpha=0.25)
    panels[0].legend(fontsize="small")
    return _png(figure)


def anytime_figure(taps: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return ASR against gradient evaluations, a line a leakage point that was ever rebuilt; None where none was.

    taps: the summary's leakage points with their `anytime` curves.
    """
    rebuilt = {name: tap["anytime"] for name, tap in taps.items() if (tap.get("asr") or 0) > 0 and "anytime" in tap}
    curves = {name: curve["evaluations"] for name, curve in rebuilt.items()}
    if not curves:
        return None
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    for place, (name, curve) in enumerate(curves.items()):
        at, asr = [1.0, *curve["at"]], [0.0, *curve["asr"]]
        colour, dashes = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
        axes.step(at, asr, where="post", label=name, color=colour, linestyle=dashes)
    axes.set_xscale("log")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("gradient evaluations of one victim")
    axes.set_ylabel("ASR")
    axes.grid(alpha=0.25)
    axes.legend(fontsize="small")
    return _png(figure)


def threshold_figure(groups: Mapping[str, pd.DataFrame], seen: Mapping[str, Seen] | None = None) -> str | None:
    """Return ASR against the RMSE that counts as success, one line a leakage point, the null attacker grey.

    groups: {leakage point: its rows}. The cross is the null attacker's best guess for success at eta, which need not be
    the guess of least RMSE that its line shows.  seen: {leakage point: what was seen there}; its bound is a thin line.
    """
    groups = {name: rows for name, rows in groups.items() if len(rows)}
    if not groups:
        return None
    everyone = pd.concat(list(groups.values()))
    eta = float(everyone["eta"].iloc[0])
    scores = np.concatenate([_floats(everyone["rmse"]), _floats(everyone["null_rmse"]), [2 * eta]])
    thresholds = np.linspace(0, min(1.0, 1.05 * float(np.nanmax(scores))), 501)
    figure = Figure(figsize=(WIDTH, 3.8), layout="constrained")
    axes = figure.subplots()
    for index, (name, rows) in enumerate(groups.items()):
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
        axes.step(
            thresholds, threshold_curve(_floats(rows["rmse"]), thresholds), dash, where="post", label=name, color=colour
        )
        if seen and name in seen:
            most = bound_curve(rows, seen[name], thresholds)
            axes.plot(thresholds, most, dash, label=f"{name} at most", color=colour, linewidth=0.9, alpha=0.7)
    _draw_null(axes, everyone, thresholds, eta)
    axes.set(xlabel="RMSE that counts as success", ylabel="ASR", ylim=(-0.02, 1.02), xlim=(0, thresholds[-1]))
    axes.grid(alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3)
    return _png(figure)


def bound_curve(rows: pd.DataFrame, seen: Seen, thresholds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the most (k,) that the ASR of one leakage point may be at each threshold (k,), by what was seen there.

    thresholds: rising.  Its kappa is the upper limit of the null attacker's ASR at that threshold, times the guesses in
    one answer.
    """
    scores, chances = _floats(rows["null_rmse"]), int(rows["member"].max()) + 1
    hits = [scores <= threshold for threshold in thresholds]
    upper = {int(hit.sum()): proportion(hit, rows["batch"].to_numpy())[2] for hit in hits}
    kappas = np.array([min(1.0, chances * upper[int(hit.sum())]) for hit in hits])
    # No hit at all bounds a few batches less tightly than a few hits do; the truth never falls with the threshold.
    return seen.robustness(np.maximum.accumulate(kappas))


def _draw_null(axes: Axes, rows: pd.DataFrame, thresholds: NDArray[np.float64], eta: float) -> None:
    curve = threshold_curve(_floats(rows["null_rmse"]), thresholds)
    axes.step(thresholds, curve, where="post", label="null attacker", color="#777777", linewidth=2.5, alpha=0.7)
    axes.plot([eta], [np.nan_to_num(_floats(rows["null_success"])).mean()], "x", color="#333333", label="null at eta")
    axes.axvline(eta, color="#333333", linewidth=0.8, label=f"eta {eta:.3f}")


def _floats(values: pd.Series) -> NDArray[np.float64]:
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


def _png(figure: Figure) -> str:
    buffer = BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(buffer, format="png", dpi=180, facecolor="white")
    return _data_uri(buffer)


def _data_uri(buffer: BytesIO) -> str:
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
