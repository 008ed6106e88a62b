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

    A scorer is a function score(truth, answer) of two dicts of numpy arrays, V victims with batches of B pictures each:

    \b
      truth["inputs"]   (V, B, C, H, W) float32 in [0, 1]     truth["labels"]   (V, B) int64
      answer["inputs"]  the same, in any order within a batch; NaN throughout a picture where there is no answer,
                        and not always within [0, 1]: to be clamped
      answer["labels"]  (V, B) int64, the b-th belongs to the b-th picture of the answer

    It changes neither and returns a dict of what it measures of these; what it leaves out, or None, is "not measured":

    \b
      rmse            (V, B) in the order of the truth, or (V,), one number a batch: root mean squared error of
                      pixels in [0, 1], so from 0 to 1; NaN, or the worst there is, where there is no answer
      psnr            likewise, dB at a data range of 1; of a perfect picture finite (a cap)
      ssim            likewise, at most 1: Wang et al. 2004, an 11 x 11 Gaussian window, data range 1
      lpips           likewise, at least 0: Zhang et al. 2018, of pictures rescaled to [-1, 1]
      success         likewise, 1 or 0: whether it counts as reconstructed, by the scorer's own threshold
      label_accuracy  likewise, in [0, 1]: the share of labels found, a repeated one as often as it is there
      matched         (V, B) int: the place in the answer of the picture that was taken for each of the truth
      asr             one number in [0, 1]: the share of all examples, missing answers included, that were rebuilt
      overall         dict with one number for any of rmse, psnr, ssim, lpips: what stands for all examples in a
                      table, a mean or a median

    The README has an example. The current folder is importable.
    """
    from leakbench.conformance.command import as_dict, lines  # noqa: PLC0415
    from leakbench.conformance.command import conformance as hold  # noqa: PLC0415

    results = hold(scorer, lpips_weights)
    for line in [json.dumps(as_dict(scorer, results), indent=1)] if as_json else lines(scorer, results):
        click.echo(line)
    if any(result.outcome == "failed" for result in results):
        sys.exit(1)
