"""The command that holds a scorer against known answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from leakbench.cli.options import FOLDER

__all__ = ["conformance"]


@click.command()
@click.option("--scorer", show_default="leakbench's own", help="Your scorer, as package.module:name.")
@click.option(
    "--lpips-weights", type=FOLDER, help="Folder with torchvision's weights of squeezenet, alexnet or vgg16, for LPIPS."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def conformance(scorer: str | None, lpips_weights: Path | None, as_json: bool) -> None:
    """Test a scorer of reconstructions on cases with known results.

    The exit code is 1 if a case failed. A scorer is a function score(truth, answer) of two dicts of NumPy arrays, for V
    victims with batches of B images each:

    \b
      truth["inputs"]   (V, B, C, H, W) float32 in [0, 1]     truth["labels"]   (V, B) int64
      answer["inputs"]  the same shape, in any order within a batch; an image of NaN means that the attack returned
                        nothing for it; values can be outside [0, 1], and the scorer clamps them
      answer["labels"]  (V, B) int64; label b belongs to image b of the answer

    The scorer changes neither dict. It returns a dict with any of the keys below; a key that is missing or None counts as
    "not measured":

    \b
      rmse            root mean squared error of pixels in [0, 1], from 0 to 1; shape (V, B) in the order of the
                      truth, or (V,) with one number per batch; NaN or the worst value without a reconstruction
      psnr            same shapes; dB at a data range of 1; finite (capped) for a perfect image
      ssim            same shapes; at most 1; Wang et al. 2004, 11 x 11 Gaussian window, data range 1
      lpips           same shapes; at least 0; Zhang et al. 2018, for images rescaled to [-1, 1]
      success         same shapes; 1 if the example counts as reconstructed by the scorer's own threshold, else 0
      label_accuracy  same shapes; from 0 to 1: share of labels found; a repeated label counts each time
      matched         (V, B) int: index in the answer of the image that was matched with each image of the truth
      asr             one number from 0 to 1: share of all examples that were reconstructed; an example without an
                      answer counts as a failure
      overall         dict with one number for any of rmse, psnr, ssim, lpips: the table's value over all examples,
                      a mean or a median

    The documentation has an example. Modules in the current folder can be imported.
    """
    from leakbench.conformance.command import as_dict, lines  # noqa: PLC0415
    from leakbench.conformance.command import conformance as hold  # noqa: PLC0415

    results = hold(scorer, lpips_weights)
    for line in [json.dumps(as_dict(scorer, results), indent=1)] if as_json else lines(scorer, results):
        click.echo(line)
    if any(result.outcome == "failed" for result in results):
        sys.exit(1)
