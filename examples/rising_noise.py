"""Draws docs/front.png: reconstructions of one face behind increasing noise, and how many victims are identified.

`python examples/rising_noise.py FIGURE` attacks 20 faces of the embedded data set at the example gradient (type-2), once for each
noise level of Fed-CDP. It takes some minutes. Run folders are written to runs/, so a second call only draws.
"""

from __future__ import annotations

import sys

from matplotlib.figure import Figure

import leakbench
from leakbench.report.result import Result

FACTORS = (None, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
"""Noise relative to the published Fed-CDP; None is a run without a defense."""
POINT = "type-2"
LEAKS, MUTED, INK = "#b34700", "#6b7280", "#1f2328"
BOLD = {"weight": "bold"}


def measure(factor: float | None) -> Result:
    """Return the run at one noise level."""
    return leakbench.run(
        defense="none" if factor is None else "fed_cdp",
        noise_factor=factor,
        attack="whitened_public",
        dataset="faces",
        taps=(POINT,),
        victims=20,
        train_rounds=0,
    )


def typical(runs: list[Result]) -> int:
    """Return the victim whose RMSE is closest to the median of all victims, summed over the noise levels."""
    errors = [run.rows["rmse"] for run in runs]
    return int(sum((error / error.median() - 1).abs() for error in errors).argmin())


def draw(runs: list[Result]) -> Figure:
    """Return the figure: one column for each noise level."""
    victim = typical(runs)
    figure = Figure(figsize=(11, 3.4), dpi=110, facecolor="white")
    grid = {"left": 0.012, "right": 0.988, "top": 0.76, "bottom": 0.32, "wspace": 0.12}
    axes = figure.subplots(1, len(runs) + 1, gridspec_kw=grid)
    heads = ["original", "no defense", *(f"noise × {factor:g}" for factor in FACTORS[1:])]
    pictures = [runs[0].pictures[POINT].truth, *(run.pictures[POINT].reconstruction for run in runs)]
    for axis, picture, head in zip(axes, pictures, heads, strict=True):
        axis.imshow(picture[victim, 0, 0].clip(0, 1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(head, fontsize=10.5, color=INK)
        axis.axis("off")
    left = axes[0].get_position().x0
    figure.text(left, 0.9, "Noise hides the face before it hides the victim", fontsize=15, color=INK, **BOLD)
    heights = {"reconstructed": 0.2, "identified": 0.105}
    for word, height in heights.items():
        figure.text(left, height, word, fontsize=12, color=INK, **BOLD)
    for axis, run in zip(axes[1:], runs, strict=True):
        middle = sum(axis.get_position().intervalx) / 2
        # The verdict of the run decides what counts as a leak, not the number alone.
        leaks = {
            "reconstructed": run.verdict == "reconstructs",
            "identified": run.verdict in ("reconstructs", "identifies"),
        }
        for word, column in (("reconstructed", "success"), ("identified", "identified")):
            share = f"{run.rows[column].mean():.0%}"
            style = {"color": LEAKS, **BOLD} if leaks[word] else {"color": MUTED}
            figure.text(middle, heights[word], share, fontsize=14, ha="center", **style)
    rows = runs[0].rows
    note = (
        f"{len(rows)} victims, one gradient each. The attacker knows the defense: Fed-CDP with a fraction of its noise. "
        f"Baseline guess: {rows['null_success'].mean():.0%} and {1 / rows['candidates'].iloc[0]:.1%}. Orange: significant."
    )
    figure.text(left, 0.025, note, fontsize=9, color=MUTED)
    return figure


def main() -> None:
    """Measure and draw."""
    draw([measure(factor) for factor in FACTORS]).savefig(sys.argv[1])


if __name__ == "__main__":
    main()
