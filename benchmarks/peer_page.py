"""The page results/checks/peer_scorers.md: the code of each scorer, every case, and notes."""

from __future__ import annotations

import datetime
import subprocess
from pathlib import Path

from benchmarks.peer_adapters.stand_in import PLACEHOLDERS
from leakbench.box import box_of
from leakbench.conformance import CaseResult
from leakbench.core.errors import InputError
from leakbench.core.scripts import markdown_table

__all__ = ["NEEDED", "NOT_RUN", "SCORERS", "commit", "page"]

SCORERS = {
    "leakbench": ("leakbench", "leakbench/scoring/scores.py: score", "leakbench/summary/tap.py: tap_summary"),
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
    "- Numbers are in the order of the truth, (victims, members) row by row, or one for each batch if the",
    "  scorer has no more.",
    "- breaching averages its MSE over a batch; the table has the root. A reconstruction of NaN is passed",
    "  on unchanged. `raising`: the attack raises instead, as breaching's attacks do on an error, which",
    "  `main_process` logs before it continues.",
    "- LPIPS runs on a random AlexNet (GradAttack's on a random VGG-16), since the trained weights are",
    "  not on the machine. Both are compared with the package `lpips` on the same weights. breaching also",
    "  orders its batches by LPIPS.",
    "- GradAttack's script reads files, one folder for each victim, so it cannot change the truth. Its",
    "  PSNR is that of torchmetrics 0.6.0, which its requirements pin. Without a data range, this PSNR",
    "  uses the range of the target.",
    "- GradAttack's script and LeakPro's loaders do not clamp. By default, their attacks keep the pixels",
    "  in range.",
    "- LeakPro does not pin torchmetrics. SSIM of 1.9.0 also averages over windows that overlap the",
    "  mirrored border, and differs by up to .02 from scikit-image's (`ssim: scikit-image`). On the",
    "  windows inside the image, both agree to 1e-5. Its data range is correct (`ssim: flat pictures`).",
    "- LeakPro's loaders receive images without normalisation (mean 0, std 1). Their PSNR is summed over",
    "  a batch, as all cases with more than one image show, and compares images in the given order. Their",
    "  SSIM has a fixed data range of 6.",
    "- A case with several measures (`order`, `success`) tests every measure that the scorer has. The",
    "  table shows the first, or the first wrong one.",
    "- Not run, with the reason and what the source files show:",
)


def commit(folder: Path) -> str:
    """Return a checkout's commit and its date; raises InputError for another folder."""
    show = ["git", "-C", str(folder), "log", "-1", "--format=%h (%cs)"]
    told = subprocess.run(show, check=False, capture_output=True, text=True)
    if told.returncode:
        raise InputError(f"CHECKOUTS: {str(folder)!r} is not a git checkout: {told.stderr}")
    return told.stdout.strip()


def cell(result: CaseResult | None, expected: str) -> str:
    """Return the table cell of one case, in a row with the expected value."""
    if result is None:
        return ""
    other = "" if result.expected == expected else f", expected {result.expected}"
    return {"passed": "passed", "failed": f"**failed**: {result.got}{other}"}.get(result.outcome, "-")


SCORED = ("scorer", "commit", "file and function", "with", "passed", "failed", "not measured")


def scored(name: str, results: list[CaseResult], commits: dict[str, str]) -> list[str]:
    """Return the table row of one scorer."""
    peer, function, beside = SCORERS[name]
    counts = [str(sum(r.outcome == o for r in results)) for o in SCORED[4:]]
    return [name, commits[peer], f"`{function}`", beside, *counts]


def _box(found: dict[str, list[CaseResult]]) -> list[str]:
    wrong = {name: [r for r in results if r.outcome in ("passed", "failed")] for name, results in found.items()}
    each = ", ".join(
        f"{name} {sum(r.outcome == 'failed' for r in tried)} of {len(tried)}" for name, tried in wrong.items()
    )
    return box_of(
        "Scorers of gradient-leakage attacks give the known answers.",
        f"Failed cases of those that the scorer measures: {each}.",
        f"{len(found['leakbench'])} cases, {len(found)} scorers of {len({SCORERS[name][0] for name in found})} projects.",
        "leakbench wrote the cases, so its own result is not independent. Random LPIPS weights; some functions were not run.",
        "python -m benchmarks.peer_scorers CHECKOUTS",
    )


def page(found: dict[str, list[CaseResult]], commits: dict[str, str], checkouts: Path) -> list[str]:
    """Return the page, line by line."""
    by_name = {name: {r.case: r for r in results} for name, results in found.items()}
    expected = {r.case: r.expected for results in reversed(found.values()) for r in results if r.expected}
    needed = ", ".join(f"{name} {commit(checkouts / name)}" for name in NEEDED)
    cases = [
        (case, expected[case], *(cell(results.get(case), expected[case]) for results in by_name.values()))
        for case in by_name["leakbench"]
    ]
    return [
        "# Scorers of other projects on cases with known answers",
        "",
        *_box(found),
        f"Measured on {datetime.date.today()} by `python -m benchmarks.peer_scorers CHECKOUTS`: the other projects'",
        "own scoring code, imported from checkouts, on the cases of `leakbench conformance`. The adapters are in",
        "`benchmarks/peer_adapters/`.",
        f"Not installed, so imported from their sources: {needed}.",
        "",
        *(f"- In {peer}, placeholders replace {what}." for peer, what in PLACEHOLDERS.items()),
        "",
        markdown_table(SCORED, (scored(name, results, commits) for name, results in found.items())),
        "",
        markdown_table(("case", "expected", *found), cases),
        "",
        "`-`: the scorer does not measure it. Empty: not run, since the code is the same as in the column before.",
        "",
        *NOTES,
        "",
        "| peer | function | case | |",
        "| --- | --- | --- | --- |",
        *(f'| {p} | `{f}` | {c} | not run: {why}; read in its files: "{fact}" |' for p, f, c, why, fact in NOT_RUN),
    ]
