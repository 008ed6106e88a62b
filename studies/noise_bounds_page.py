"""The page and the figure of `noise_bounds.py`: measurements compared with their bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from leakbench.box import box_of
from leakbench.core.scripts import markdown_table
from leakbench.report.bounds import NOTHING

__all__ = ["FLOORS", "draw", "judged", "page_of"]

FLOORS = {
    "floor_deviation": "the pixels' deviation",
    "floor_one_over_f": "a 1 / f spectrum",
    "floor_public": "the public covariance",
}
"""{field: prior knowledge of the attacker}"""

HEADS = (
    *("row", "ASR [95 % CI]", "baseline ASR", "ASR bound", "median RMSE", "RMS [95 % CI]", "baseline RMSE"),
    *(f"floor, {what}" for what in FLOORS.values()),
    "victims, limit",
)

PAGE = """# Noise against its bounds: LFW, sigmoid LeNet, flat clip at 4, type-2

{box}
`python studies/noise_bounds.py` measures and writes this page, `noise_bounds.csv` and the figure. The
attacker sees one example's gradient from a network at random weights, clipped at a norm of 4 over all
tensors, with Gaussian noise on each coordinate. {victims} victims, of other people than the public
images; at most {limit} iterations; seed 0. The prior of `whitened` is images whose spectrum falls as
1 / f. The prior of `whitened_public` has the covariance of {public} public faces, plus a share of that
spectrum. Both attacks infer labels and know the defense.

![ASR and RMSE against the noise](noise_bounds.png)

## Bounds and measurements

The ASR bound is the reconstruction robustness of the Gaussian mechanism, computed from the upper limit
of the baseline guess's ASR. A floor limits the mean squared error over images. It is therefore compared
with the root mean square over victims (RMS), not with the median. Intervals are at 95 %, by t over
victims. Each floor is for an attacker whose prior is a Gaussian (van Trees' inequality):

- *the pixels' deviation*: from the trace of the Fisher information, the median of at most 4 victims.
- *a 1 / f spectrum* and *the public covariance*: from the whole matrix, averaged over {floor_victims}
  victims. Too few victims raise these floors. The priors alone have an RMSE of {prior_one_over_f:.3f} and {prior_public:.3f}.

{table}

## What is beyond a bound or floor

{judged}

*Above* and *below* compare the measured numbers. *Significantly*: the exact lower 95 % limit of the ASR
is above the bound, or the whole interval of the RMS is below the floor.

## What the floors do not exclude

A floor does not limit an attacker that knows more than the floor's Gaussian.

- The pixels' deviation ignores that neighbouring pixels are similar, so attackers in a whitened space
  may come below it.
- The 1 / f prior describes images around grey with a variance of .06 for each pixel. These faces vary
  less, so an attacker may come below it, even with the same prior.
- The public covariance is that of {public} faces plus the share of a 1 / f spectrum with which each half of
  them best explains the other.
- Faces are not Gaussian. An attacker that knows more than their mean and covariance may come below any
  of the three.
"""


def page_of(rows: pd.DataFrame) -> str:
    """Return the page in Markdown."""
    one = rows.iloc[0]
    found = sorted(set(rows["victims"]))
    fields: dict[str, Any] = {
        "victims": " or ".join(f"{many:.0f}" for many in found),
        "limit": f"{rows['limit'].max():.0f}",
        "public": f"{one['public']:.0f}",
        "floor_victims": f"{one['floor_victims']:.0f}",
        "prior_one_over_f": one["prior_one_over_f"],
        "prior_public": one["prior_public"],
    }
    table = markdown_table(HEADS, (line_of(row) for row in rows.to_dict("records")))
    return PAGE.format(**fields, box=_box(rows), table=table, judged="\n".join(f"- {line}" for line in judged(rows)))


def _box(rows: pd.DataFrame) -> str:
    surely = {what: int((rows["rms_high"] < rows[floor]).sum()) for floor, what in FLOORS.items()}
    above = int((rows["asr_exact_low"] > rows["asr_bound"]).sum())
    empty = int((rows["asr_bound"] >= NOTHING).sum())
    each = ", ".join(f"{what} {many}" for what, many in surely.items())
    return "\n".join(
        box_of(
            "Bounds and floors for noise limit what the strongest attack reconstructs.",
            f"The bound is 1.00 in {empty} of {len(rows)} rows, where it excludes nothing; the ASR is significantly above it in"
            f" {above}. Floors apply to their own prior only: the RMS is significantly below the floor of {each} of"
            f" {len(rows)} rows.",
            f"{len(rows)} rows, {rows['victims'].max():.0f} victims a row.",
            "One network, one seed, type-2 and LFW only."
            " An RMS below a floor is possible for an attacker whose prior is better than the floor's.",
            "python studies/noise_bounds.py",
        )
    )


def line_of(row: dict[Any, Any]) -> list[str]:
    """Return the cells of one row of the table."""
    return [
        row["row"],
        f"{row['asr']:.2f} [{row['asr_low']:.2f}, {row['asr_high']:.2f}]",
        f"{row['null_asr']:.2f}",
        f"{row['asr_bound']:.2f}",
        f"{row['rmse']:.3f}",
        f"{row['rms']:.3f} [{row['rms_low']:.3f}, {row['rms_high']:.3f}]",
        f"{row['null_rmse']:.3f}",
        *(f"{row[floor]:.3f}" for floor in FLOORS),
        f"{row['victims']:.0f}, {row['limit']:.0f}",
    ]


def judged(rows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the reconstruction bound, one on where it excludes nothing, and one on each floor."""
    above = [
        f"{_who(row)} ({row['asr']:.2f}, bound {row['asr_bound']:.2f}{_surely(row['asr_exact_low'] > row['asr_bound'])})"
        for row in rows.to_dict("records")
        if row["asr"] > row["asr_bound"]
    ]
    yield f"The ASR is above the reconstruction bound {_where(above, len(rows))}."
    empty = sorted(set(rows.loc[rows["asr_bound"] >= NOTHING, "std"]))
    if empty:
        yield f"This bound is 1.00, which excludes nothing, at noise {', '.join(f'{std:g}' for std in empty)}."
    for floor, what in FLOORS.items():
        below = rows[rows["rms"] < rows[floor]]
        surely = below["rms_high"] < below[floor]
        yield (
            f"Floor of {what}: significantly below it is the RMS {_at(below[surely], len(rows))}; below it, but not significantly,"
            f" {_at(below[~surely], len(rows))}."
        )


def _at(found: pd.DataFrame, many: int) -> str:
    """Return the attacks and their noise, or that no row is one."""
    each = [
        f"of `{attack}` at {', '.join(f'{std:g}' for std in own['std'])}"
        for attack, own in found.groupby("attack", sort=False)
    ]
    return " and ".join(each) if each else f"in none of {many} rows"


def _who(row: dict[Any, Any]) -> str:
    return f"of `{row['attack']}` at {row['std']:g}"


def _surely(yes: bool) -> str:
    return ", significantly" if yes else ""


def _where(found: list[str], many: int) -> str:
    return "; ".join(found) if found else f"in none of {many} rows"


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Draw the ASR, and under it the RMSE, against the noise, with the bound, the baseline guess and the floors."""
    figure = Figure(figsize=(8, 9), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    by_std = rows.groupby("std").first()
    for number, (name, found) in enumerate(rows.sort_values("std").groupby("attack")):
        colour = f"C{number}"
        _measured(upper, found, "asr", ("asr_low", "asr_high"), colour, str(name))
        _measured(lower, found, "rms", ("rms_low", "rms_high"), colour, f"{name}, root mean square")
        lower.plot(found["std"], found["rmse"], "x:", color=colour, alpha=0.6, label=f"{name}, median")
    upper.plot(by_std.index, by_std["asr_bound"], "k-", label="reconstruction bound")
    upper.plot(by_std.index, by_std["null_asr"], color="grey", linestyle="--", label="baseline guess")
    for (floor, what), dash in zip(FLOORS.items(), ("-", "--", "-."), strict=True):
        lower.plot(by_std.index, by_std[floor], color="black", linestyle=dash, label=f"floor, {what}")
    upper.set_ylabel("ASR")
    upper.set_title("LFW, sigmoid LeNet, flat clip at 4, type-2")
    lower.set_ylabel("RMSE")
    lower.set_xlabel("standard deviation of the noise")
    lower.set_xscale("log")
    for panel in (upper, lower):
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=8)
    figure.savefig(path, dpi=90, metadata={"Software": None})


def _measured(panel: Axes, found: pd.DataFrame, key: str, limits: tuple[str, str], colour: str, label: str) -> None:
    low, high = limits
    panel.plot(found["std"], found[key], "o-", color=colour, label=label)
    panel.fill_between(found["std"], found[low], found[high], color=colour, alpha=0.15)
