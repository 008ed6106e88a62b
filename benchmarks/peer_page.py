"""The page results/peer_scorers.md: which code was asked, every case, and what must be known to read it."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

from peer_adapters.stand_in import PLACEHOLDERS

from leakbench.conformance import Result
from leakbench.errors import InputError
from leakbench.scripts import markdown_table

__all__ = ["NEEDED", "NOT_RUN", "SCORERS", "commit", "page"]

SCORERS = {
    "leakbench": ("leakbench", "leakbench/measure/scores.py: score", "leakbench/summary/tap.py: tap_summary"),
    "breaching": ("breaching", "benchmark_breaches.py: main_process", "breaching/analysis/analysis.py: report"),
    "breaching, raising": ("breaching", "benchmark_breaches.py: main_process", "an attack without an answer raises"),
    "GradAttack": ("GradAttack", "examples/calc_metric.py", "gradattack/metrics/pixelwise.py: MeanPixelwiseError"),
    "LeakPro, modular": (
        "LeakPro",
        "leakpro/fl_utils/fl_client_simulator.py: FLClientSimulator.compute_metrics",
        "fl_utils/matching_utils.py: match_images",
    ),
    "LeakPro, loaders": (
        "LeakPro",
        "leakpro/fl_utils/similarity_measurements.py: dataloaders_psnr, dataloaders_ssim_ignite",
        "reported by attacks/gia_attacks/abstract_gia.py",
    ),
}

NOT_RUN = (
    (
        "breaching",
        "breaching/analysis/metrics.py: cw_ssim",
        "ssim",
        "pytorch_wavelets is not installed",
        "CW-SSIM called SSIM",
    ),
    (
        "breaching",
        "breaching/analysis/metrics.py: registered_psnr_compute",
        "R-PSNR",
        "kornia is not installed",
        "R-PSNR warped image v whole batch",
    ),
    (
        "breaching",
        "the user's side of the protocol",
        "truth: untouched",
        "happens before scoring, which no scorer shows",
        "ground truth mutated by input noise (scored against noised data)",
    ),
    (
        "LeakPro",
        "leakpro/attacks/gia_attacks/abstract_gia.py",
        "stopping",
        "happens in the attack, which no scorer shows",
        "oracle stopping: iterate chosen by SSIM to ground truth, on by default",
    ),
)

NEEDED = ("torchmetrics", "torchmetrics-0.6.0", "ignite", "utilities")
NOTES = (
    "How to read it:",
    "",
    "- Numbers stand in the order of the truth, (victims, members) row by row, or one a batch where a scorer has no more.",
    "- breaching averages its MSE over a batch; its root is taken here. An answer of NaN goes in as it is; `raising`: the attack",
    "  raises instead, as breaching's do where something breaks, which `main_process` logs before it goes on.",
    "- LPIPS, by which breaching also orders its batches, runs on a random AlexNet, GradAttack's on a random VGG-16, since the",
    "  weights are not on the machine. Both are held against the package `lpips` on the same weights.",
    "- GradAttack's script reads files, one folder a victim, so that it cannot touch the truth. Its PSNR is of torchmetrics 0.6.0,",
    "  which its requirements pin; called without a data range, it takes that of the target.",
    "- GradAttack's script and LeakPro's loaders do not clamp; their attacks keep the pixels in range themselves, by default.",
    "- LeakPro pins no torchmetrics. SSIM of 1.9.0 averages over windows that hang over the mirrored border, too, which is up to",
    "  .02 from scikit-image's (`ssim: scikit-image`), to which the windows within the picture alone are equal to 1e-5; its data",
    "  range is right (`ssim: flat pictures`).",
    "- LeakPro's loaders get pictures as they are, mean 0 and std 1. Their PSNR is added over a batch, which all cases with more",
    "  than one picture show, and is of pictures in the order in which they came; their SSIM has a fixed data range of 6.",
    "- A case that knows several measures (`order`, `success`) holds all of them that a scorer has; shown is the first, or the",
    "  first that is wrong.",
    "- What was not run, and why, with what was read in the files instead:",
)


def commit(folder: Path) -> str:
    """Return a checkout's commit and its day; raises InputError for a folder that is none."""
    show = ["git", "-C", str(folder), "log", "-1", "--format=%h (%cs)"]
    told = subprocess.run(show, check=False, capture_output=True, text=True)
    if told.returncode:
        raise InputError(f"CHECKOUTS: {str(folder)!r} is no git checkout: {told.stderr}")
    return told.stdout.strip()


def cell(result: Result | None, expected: str) -> str:
    """Return what a table says of one case, in a row that says what is expected."""
    if result is None:
        return ""
    other = "" if result.expected == expected else f", expected {result.expected}"
    return {"passed": "passed", "failed": f"**failed**: {result.got}{other}"}.get(result.outcome, "-")


SCORED = ("scorer", "commit", "file and function", "with", "passed", "failed", "not measured")


def scored(name: str, results: list[Result], commits: dict[str, str]) -> list[str]:
    """Return what a table says of one scorer."""
    peer, function, beside = SCORERS[name]
    counts = [str(sum(r.outcome == o for r in results)) for o in SCORED[4:]]
    return [name, commits[peer], f"`{function}`", beside, *counts]


def page(found: dict[str, list[Result]], commits: dict[str, str], checkouts: Path) -> list[str]:
    """Return the page, line by line."""
    by_name = {name: {r.case: r for r in results} for name, results in found.items()}
    expected = {r.case: r.expected for results in reversed(found.values()) for r in results if r.expected}
    needed = ", ".join(f"{name} {commit(checkouts / name)}" for name in NEEDED)
    cases = [
        (case, expected[case], *(cell(results.get(case), expected[case]) for results in by_name.values()))
        for case in by_name["leakbench"]
    ]
    return [
        "# Peers' scorers beside known answers",
        "",
        f"Measured on {datetime.date.today()} by `python benchmarks/peer_scorers.py CHECKOUTS`: the peers' own scoring code,",
        "imported from checkouts, asked the cases of `leakbench conformance`. The adapters are in `benchmarks/peer_adapters/`.",
        f"Not installed, so taken from their sources: {needed}.",
        "",
        *(f"- In {peer}, placeholders stand for {what}." for peer, what in PLACEHOLDERS.items()),
        "",
        markdown_table(SCORED, (scored(name, results, commits) for name, results in found.items())),
        "",
        markdown_table(("case", "expected", *found), cases),
        "",
        "`-`: the scorer does not measure it. Empty: not asked, as it is the same code as in the column before.",
        "",
        *NOTES,
        "",
        "| peer | function | case | |",
        "| --- | --- | --- | --- |",
        *(f'| {p} | `{f}` | {c} | not run: {why}; read in its files: "{fact}" |' for p, f, c, why, fact in NOT_RUN),
    ]
