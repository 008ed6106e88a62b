"""Recognition: is a reconstruction closer to its own original than to all other pictures of a data set?

This is a second success criterion for pictures, next to an RMSE of at most eta. A person may recognise a face in a picture whose
RMSE is above eta, for example because its brightness is shifted. Two distances decide, and both must agree: SSIM, which compares
local structure, and the RMSE of the high-passed pictures, each scaled to a root mean square of 1. The high-pass removes
brightness and slow gradients of illumination. Without the scaling, an original of half the contrast would be closer to dull
pictures than to itself. Nothing here uses a trained network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from leakbench.core.rng import generator
from leakbench.data.dataset import Dataset
from leakbench.measure.metrics import C1, C2, SIGMA, WINDOW, no_ssim, pairwise_rmse, ssim
from leakbench.measure.rates import RECOGNISED
from leakbench.measure.truth import VictimTruth

__all__ = [
    "BLUR",
    "RECOGNISED_COLUMNS",
    "SAME_CLASS",
    "RecognitionGallery",
    "gallery_of",
    "high_passed",
    "recognised",
    "scaled",
    "score_recognised",
    "ssim_to_all",
]

SAME_CLASS = "same_class_recognised"
"""Column of the rows: whether another picture of the original's class is recognised as the original."""

RECOGNISED_COLUMNS = (RECOGNISED.name, RECOGNISED.baseline, "gallery", SAME_CLASS)
"""Columns of the rows: whether the reconstruction and the baseline guess are recognised, and among how many other pictures; then
`SAME_CLASS`."""

MOST = 1000
"""Largest number of other pictures that a reconstruction is compared with."""

TIE = 1e-6
"""Difference of two distances, or of two similarities, up to which they are a tie: rounding."""

NUMBERS = 8_000_000
"""How many numbers of an intermediate result are held at once."""


@dataclass(frozen=True)
class RecognitionGallery:
    """The other pictures.

    Args:
        inputs: (g, C, H, W) in [0, 1].
        examples: Which training examples they are (g,).
        tests: Test pictures (t, C, H, W), of which one of the same class is compared with each original; None without classes.
        labels: Their classes (t,).
    """

    inputs: Tensor
    examples: Tensor
    tests: Tensor | None = None
    labels: Tensor | None = None


def gallery_of(data: Dataset, seed: int) -> RecognitionGallery | None:
    """Return at most `MOST` + 1 training pictures drawn by `seed`; None where SSIM is not defined for the data set's shape.

    One more than is compared with, since a victim may be one of them.
    """
    if no_ssim(data.layout):
        return None
    chosen = torch.randperm(len(data.train_targets), generator=generator(seed, "gallery"))[: MOST + 1]
    if data.test_targets.ndim > 1:  # Several labels are no class.
        return RecognitionGallery(data.train_inputs[chosen], chosen)
    return RecognitionGallery(data.train_inputs[chosen], chosen, data.test_inputs, data.test_targets)


def score_recognised(
    ordered: Tensor | None, truth: VictimTruth, guesses: Tensor, gallery: RecognitionGallery | None
) -> pd.DataFrame:
    """Return the columns RECOGNISED_COLUMNS of V * M rows, in the order of `leakbench.scoring.scores.score`.

    Args:
        ordered: (V, M, *s) reconstructions in the order of the truth, NaN without a reconstruction. None for an attack that only
            ranks, so that `recognised` is NaN.
        truth: The true examples behind the leak.
        guesses: The baseline guesses (V * M, *s) for all examples of the cell's victims.
        gallery: None where recognition is not defined, so that all columns are NaN.
    """
    many = truth.labels.numel()
    if gallery is None:
        return pd.DataFrame(dict.fromkeys(RECOGNISED_COLUMNS, np.nan), index=range(many))
    own, examples = truth.inputs.flatten(0, 1).cpu(), truth.examples.flatten().cpu()
    guesses = guesses.reshape(-1, truth.labels.shape[1], *guesses.shape[1:])[truth.lanes.cpu()].flatten(0, 1).cpu()
    guessed, others = recognised(guesses, own, examples, gallery)
    alike = _of_the_same_class(own, truth.labels.flatten().cpu(), examples, gallery)
    if ordered is None:
        found = torch.full((many,), torch.nan)
    else:
        found = recognised(ordered.flatten(0, 1).cpu(), own, examples, gallery)[0]
    columns = (found.double(), guessed.double(), others, alike)
    return pd.DataFrame({name: np.asarray(c) for name, c in zip(RECOGNISED_COLUMNS, columns, strict=True)})


def _of_the_same_class(own: Tensor, labels: Tensor, examples: Tensor, gallery: RecognitionGallery) -> Tensor:
    """Return (n,) whether a test picture of the same class is recognised as each original; NaN without such a picture.

    Another photograph of the same person can be closer to the original than those of other people are. Its rate is that of an
    attacker that knows what the class looks like, and nothing about the victim.
    """
    found = torch.full((len(own),), torch.nan, dtype=torch.float64)
    if gallery.tests is None or gallery.labels is None:
        return found
    places = {int(label): (gallery.labels.cpu() == label).nonzero()[:, 0] for label in torch.unique(labels)}
    known = torch.tensor([len(places[int(label)]) > 0 for label in labels])
    if known.any():
        pairs = zip(labels[known].tolist(), examples[known].tolist(), strict=True)
        picked = torch.stack([places[label][example % len(places[label])] for label, example in pairs])
        answers = gallery.tests[picked.to(gallery.tests.device)].cpu()
        found[known] = recognised(answers, own[known], examples[known], gallery)[0].double()
    return found


def recognised(answers: Tensor, own: Tensor, examples: Tensor, gallery: RecognitionGallery) -> tuple[Tensor, Tensor]:
    """Return whether each picture is closer to its own original than to every other picture of the gallery.

    Closer by SSIM and by the RMSE of the high-passed and scaled pictures, both strictly: a tie is not recognised. A picture that is
    constant or not finite is not recognised. Gallery pictures that equal the original do not count as others.

    Args:
        answers: (n, C, H, W) pictures, clamped to [0, 1] here.
        own: (n, C, H, W) their originals.
        examples: (n,) which training examples the originals are.
        gallery: the other pictures.

    Returns:
        (n,) bool whether each is recognised, and (n,) int64 among how many others.
    """
    finite = answers.flatten(1).isfinite().all(1)
    pictures = answers.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).clamp(0, 1)
    truth, others = own.double().clamp(0, 1), gallery.inputs.double().clamp(0, 1)
    excluded = _excluded(truth, examples, others, gallery.examples)
    count = (~excluded).sum(1)
    varied = high_passed(pictures).flatten(1).square().mean(1).sqrt() > FLAT
    sharp, sharp_own, sharp_others = (scaled(high_passed(x)) for x in (pictures, truth, others))
    mine = (sharp - sharp_own).square().flatten(1).mean(1).sqrt()
    nearest = pairwise_rmse(sharp, sharp_others).masked_fill(excluded, torch.inf).amin(1)
    found = finite & varied & (mine < nearest - TIE) & (count > 0)
    left = found.nonzero()[:, 0]
    if len(left):  # SSIM takes longer, so only the pictures that pass the first distance are compared by it.
        similar = ssim_to_all(pictures[left], others).masked_fill(excluded[left], -torch.inf)
        found[left] = ssim(pictures[left][None], truth[left][None])[0] > similar.amax(1) + TIE
    return found, count


def _excluded(truth: Tensor, examples: Tensor, others: Tensor, numbers: Tensor) -> Tensor:
    """Return (n, g): which gallery images are not compared with each original: itself, equal ones, and those beyond `MOST`."""
    itself = (examples[:, None] == numbers) | (pairwise_rmse(truth, others) <= TIE)
    return itself | ((~itself).cumsum(1) > MOST)


def ssim_to_all(pictures: Tensor, others: Tensor) -> Tensor:
    """Return the SSIM (n, g) of pictures (n, C, H, W) and others (g, C, H, W), each as `leakbench.measure.metrics.ssim` has it."""
    height, width = pictures.shape[2:]
    down, across = (_windows(side).to(pictures) for side in (height, width))

    def local(products: Tensor) -> Tensor:
        return down @ products @ across.T

    mean_x = local(pictures)
    var_x = local(pictures * pictures) - mean_x.square()
    found = []
    for y in torch.split(others, max(1, NUMBERS // pictures[0].numel())):
        mean_y = local(y)
        var_y = local(y * y) - mean_y.square()
        squares, variances = mean_y.square() + C1, var_y + C2
        rows = []
        for x, mean, variance in zip(pictures, mean_x, var_x, strict=True):
            product = mean * mean_y
            similarity = (2 * product + C1) * (2 * (local(x * y) - product) + C2)
            similarity /= (mean.square() + squares) * (variance + variances)
            rows.append(similarity.flatten(1).mean(1))
        found.append(torch.stack(rows))
    return torch.cat(found, 1)


def _windows(side: int) -> Tensor:
    """Return (side - 10, side), the Gaussian windows of SSIM inside the picture; two products are faster than convolving."""
    first = torch.arange(side - WINDOW + 1)
    weights = _gaussian(first + WINDOW // 2, torch.arange(side), SIGMA)
    inside = (torch.arange(side) >= first[:, None]) & (torch.arange(side) < first[:, None] + WINDOW)
    kept = weights * inside
    return kept / kept.sum(1, keepdim=True)


BLUR = 1 / 8
"""Standard deviation of the blur that the high-pass subtracts, as a share of the shorter side: 4 pixels of 32.

It passes half of the amplitude at sqrt(log(2) / 2) / (pi * BLUR) = 1.5 cycles per picture. People recognise faces by 8 to 13 cycles
per face (Nasanen, Vision Research 39, 1999), which it passes whole. Brightness and a gradient of illumination have fewer cycles. A
narrower blur would leave only the finest details, and a slightly blurred original would then no longer be recognised.
"""

FLAT = 1e-6
"""Root mean square of a high-passed picture below which the picture is constant."""


def high_passed(pictures: Tensor) -> Tensor:
    """Return pictures (n, C, H, W) minus their blur by a Gaussian of standard deviation `BLUR` times the shorter side.

    At the border the blur averages over the pixels inside the picture, so that a constant picture becomes zero.
    """
    height, width = pictures.shape[2:]
    sigma = BLUR * min(height, width)
    down, across = (_gaussian(torch.arange(side), torch.arange(side), sigma).to(pictures) for side in (height, width))
    return pictures - down @ pictures @ across.T


def scaled(pictures: Tensor) -> Tensor:
    """Return pictures (n, C, H, W) with a root mean square of 1; one below `FLAT` becomes zero."""
    size = pictures.square().mean((1, 2, 3), keepdim=True).sqrt()
    return pictures.masked_fill(size <= FLAT, 0.0) / size.clamp_min(FLAT)


def _gaussian(centres: Tensor, positions: Tensor, sigma: float) -> Tensor:
    """Return (centres, positions) weights of a Gaussian, which sum to 1 for each centre."""
    weights = torch.exp(-(centres[:, None] - positions).double().square() / (2 * sigma**2))
    return weights / weights.sum(1, keepdim=True)
