"""The command that holds a scorer against known answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from leakbench.cli.options import FOLDER

__all__ = ["conformance"]


@click.command()
@click.option("--scorer", help="your scorer package.module:name [default: leakbench's own]")
@click.option("--lpips-weights", type=FOLDER, help="folder with torchvision's squeezenet, alexnet or vgg16 weights")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def conformance(scorer: str | None, lpips_weights: Path | None, as_json: bool) -> None:
    """Hold a scorer of reconstructions against known answers; exit 1 where a case failed.

    A scorer gets (truth, answer), dicts of the numpy arrays inputs (V, B, C, H, W) and labels (V, B), and returns a dict
    of what it measures: rmse, psnr, ssim, lpips, success, label_accuracy, matched, asr, overall. The current folder is
    importable.
    """
    from leakbench.conformance.command import as_dict, lines  # noqa: PLC0415
    from leakbench.conformance.command import conformance as hold  # noqa: PLC0415

    results = hold(scorer, lpips_weights)
    for line in [json.dumps(as_dict(scorer, results), indent=1)] if as_json else lines(scorer, results):
        click.echo(line)
    if any(result.outcome == "failed" for result in results):
        sys.exit(1)
