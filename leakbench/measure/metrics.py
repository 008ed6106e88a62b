"""Scores that compare a reconstruction with the truth, on pixels clamped to [0, 1]; the attacker does not see them.

A reconstruction that is not finite counts as missing: all its scores are NaN. The shares and medians of
`leakbench.measure.statistics` count NaN as a failure. No score is normalised by the data.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakbench.core.errors import InputError

__all__ = [
    "LPIPS_ABSENT",
    "MOST_PAIRED",
    "NO_PIXELS",
    "Score",
    "load_lpips",
    "match",
    "no_lpips",
    "no_pixels",
    "no_ssim",
    "pairwise_rmse",
    "psnr",
    "rmse",
    "sample",
    "ssim",
    "success_threshold",
]

Score: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(reconstruction (V, M, *s), truth (V, M, *s)) -> (V, M)."""

PSNR_CAP = 100.0
WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2
LPIPS_SIDE = 64
LPIPS_CHUNK = 64
LPIPS_BACKBONES = {"squeeze": "squeezenet1_1-*.pth", "alex": "alexnet-*.pth"}
LPIPS_ABSENT = "n/a: backbone weights not found; pass --lpips-weights DIR"


NO_PIXELS = "n/a: tokens have no pixels; the edit distance is the distance of texts"


def no_pixels(layout: tuple[int, ...]) -> str:
    """Return why examples of a layout have no distance of pixels or features; nothing where they have."""
    return NO_PIXELS if len(layout) == 2 else ""


def no_ssim(layout: tuple[int, ...]) -> str:
    """Return why examples of a layout have no SSIM; nothing where they have."""
    if len(layout) != 3:
        return no_pixels(layout) or "n/a: tabular data have no neighbouring pixels"
    _, height, width = layout
    if min(height, width) < WINDOW:
        return f"n/a: pictures of {height}x{width} are smaller than the {WINDOW}x{WINDOW} window of SSIM"
    return ""


def no_lpips(layout: tuple[int, ...]) -> str:
    """Return why examples of a layout have no LPIPS; nothing where they have."""
    if len(layout) != 3:
        return no_pixels(layout) or "n/a: tabular data are not pictures"
    return "" if layout[0] in (1, 3) else f"n/a: LPIPS takes 1 or 3 channels, not {layout[0]}"


def _scored(reconstruction: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    if reconstruction.shape != truth.shape:
        # Broadcasting would quietly score one answer against every truth.
        raise ValueError(f"reconstruction: got shape {tuple(reconstruction.shape)}, expected {tuple(truth.shape)}")
    answered = reconstruction.isfinite().flatten(2).all(2)
    answer = reconstruction.double().masked_fill(~_like(answered, reconstruction), torch.nan)
    return answer.clamp(0, 1), truth.double().clamp(0, 1)


def _like(per_example: Tensor, pictures: Tensor) -> Tensor:
    return per_example.reshape(*per_example.shape, *[1] * (pictures.dim() - 2))


def match(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """Return the order (V, M) int64 in which `reconstruction[v, order[v, m]]` is the answer for `truth[v, m]`.

    One answer goes to one truth, at the least total MSE (Hungarian method); both (V, M, *s). No answer (NaN) costs more
    than the worst finite one, whose MSE is 1.
    """
    answers, truths = (x.flatten(2) for x in _scored(reconstruction, truth))
    orders = []
    for answer, true in zip(answers, truths, strict=True):
        distance = torch.cdist(true, answer, compute_mode="donot_use_mm_for_euclid_dist")
        cost = (distance.square() / true.shape[1]).nan_to_num(nan=2.0)
        # Rows are truths, so the columns that come back are, in order of the truths, the indices of their answers.
        orders.append(torch.as_tensor(linear_sum_assignment(cost.cpu().numpy())[1]))
    return torch.stack(orders).to(truth.device)


def rmse(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """Return the root mean squared error, (V, M) in [0, 1] for (V, M, *s); NaN without a reconstruction."""
    answer, true = _scored(reconstruction, truth)
    return (answer - true).square().flatten(2).mean(2).sqrt()


def psnr(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in dB, (V, M) in [0, 100] for (V, M, *s), of a data range of 1.

    Capped at 100 dB, so that one perfect reconstruction does not make every mean infinite. NaN without a reconstruction.
    """
    return (-20 * rmse(reconstruction, truth).log10()).clamp(max=PSNR_CAP)


def ssim(reconstruction: Tensor, truth: Tensor) -> Tensor:
    """Return the structural similarity, (V, M) in [-1, 1] for (V, M, C, H, W); NaN where `no_ssim` names a reason.

    Wang et al., IEEE TIP 2004, eq. 13 and section III-C: 11 x 11 Gaussian window of sigma 1.5, K1 = .01, K2 = .03, data
    range 1, mean over the windows that lie inside the picture and over channels; equals scikit-image's.
    """
    answer, true = _scored(reconstruction, truth)
    if no_ssim(tuple(truth.shape[2:])):
        return answer.new_full(answer.shape[:2], torch.nan)
    x, y = (picture.flatten(0, 1) for picture in (answer, true))
    mean_x, mean_y = _local_mean(x), _local_mean(y)
    var_x, var_y = _local_mean(x * x) - mean_x.square(), _local_mean(y * y) - mean_y.square()
    covariance = _local_mean(x * y) - mean_x * mean_y
    similarity = (2 * mean_x * mean_y + C1) * (2 * covariance + C2)
    similarity = similarity / ((mean_x.square() + mean_y.square() + C1) * (var_x + var_y + C2))
    return similarity.flatten(1).mean(1).reshape(answer.shape[:2])


def _local_mean(pictures: Tensor) -> Tensor:
    offset = torch.arange(WINDOW, dtype=pictures.dtype, device=pictures.device) - WINDOW // 2
    weight = torch.exp(-offset.square() / (2 * SIGMA**2))
    weight = (weight / weight.sum()).reshape(1, 1, 1, WINDOW)
    planes = pictures.flatten(0, 1)[:, None]
    blurred = F.conv2d(F.conv2d(planes, weight), weight.transpose(2, 3))
    return blurred.reshape(*pictures.shape[:2], *blurred.shape[2:])


MOST_PAIRED = 3000
"""Largest number of examples whose distances give the threshold of success."""


def pairwise_rmse(a: Tensor, b: Tensor) -> Tensor:
    """Return the RMSE of every pair, (n, k) float64, between examples (n, *s) and (k, *s).

    By a Gram matrix in float64 about the mean of `b`: right to 1e-7 even for near-duplicates.
    """
    x, y = (examples.flatten(1).to(torch.float64, copy=True) for examples in (a, b))
    centre = y.mean(0)
    x -= centre  # In place, since large pictures fill the memory.
    y -= centre
    squared = torch.addmm(x.square().sum(1)[:, None] + y.square().sum(1), x, y.T, alpha=-2)
    return squared.clamp_min_(0).div_(x.shape[1]).sqrt_()


def success_threshold(
    examples: Tensor,
    rng: torch.Generator,
    most: int = MOST_PAIRED,
    quantile: float = 0.001,
    among: Tensor | None = None,
) -> float:
    """Return eta: the `quantile` of the RMSE between two distinct examples (n, *s) of a data set, over at most `most`.

    A random other picture would pass once in a thousand. Exact duplicates count as one example.

    Args:
        examples: All examples.
        rng: Draws the examples if there are more than `most`.
        most: Largest number of examples.
        quantile: Share of the pairs that are closer, in [0, 1].
        among: Positions (k,) of the examples that may be drawn; None for all.

    Raises:
        InputError: For fewer than two distinct examples, or for data that are not finite.
    """
    chosen = sample(examples, rng, most, among)
    if not chosen.isfinite().all():
        raise InputError("examples: got values that are not finite, expected [0, 1]")
    distinct = torch.from_numpy(np.unique(chosen.flatten(1).clamp(0, 1).cpu().numpy(), axis=0))
    if len(distinct) < 2:
        raise InputError(f"examples: got {len(distinct)} distinct, expected at least 2 to measure a distance")
    chunks = []
    for start in range(0, len(distinct), 500):
        # Only pairs i < j: half the work, and no example is compared with itself.
        pairs = pairwise_rmse(distinct[start : start + 500], distinct[start:])
        above = torch.ones_like(pairs, dtype=torch.bool).triu(1)
        chunks.append(pairs[above])
    return float(torch.quantile(torch.cat(chunks), quantile))


def sample(examples: Tensor, rng: torch.Generator, most: int, among: Tensor | None) -> Tensor:
    """Return at most `most` random ones of the examples (n, *s) at the positions `among` (k,); None for all positions."""
    order = torch.randperm(len(examples) if among is None else len(among), generator=rng)[:most]
    # The positions of all examples would copy a whole data set.
    return examples[(order if among is None else among.cpu()[order]).to(examples.device)]


def load_lpips(folder: Path | None) -> Score | str:
    """Return LPIPS (Zhang et al., CVPR 2018, version 0.1) as a score, or the reason why it is not available.

    The score takes (V, M, C, H, W) in [0, 1], C = 1 or 3. It rescales them to [-1, 1] and repeats a grey channel three times.
    Images with a side below 64 pixels are enlarged bilinearly, since the strides of the backbone would leave nothing of them.
    NaN without a reconstruction, and where `no_lpips` names a reason.

    Args:
        folder: Contains the backbone as torchvision names it, `squeezenet1_1-<sha256>.pth` or `alexnet-<sha256>.pth`; checked
            against the start of its sha256, never fetched.
    """
    kinds = LPIPS_BACKBONES.items() if folder else ()
    files = [(net, file) for net, name in kinds for file in sorted(Path(folder or "").glob(name))]
    if not files:
        return LPIPS_ABSENT
    net, file = files[0]
    expected = file.stem.split("-")[-1]
    if not hashlib.sha256(file.read_bytes()).hexdigest().startswith(expected):
        return f"n/a: {file.name} is damaged: its sha256 does not start with {expected}"
    distance = _lpips_network(net, torch.load(file, map_location="cpu", weights_only=True))

    def score(reconstruction: Tensor, truth: Tensor) -> Tensor:
        answer, true = _scored(reconstruction, truth)
        if no_lpips(tuple(truth.shape[2:])):
            return torch.full(truth.shape[:2], torch.nan, dtype=torch.float64, device=truth.device)
        answer, true = _lpips_input(answer), _lpips_input(true)
        with torch.no_grad():
            starts = range(0, len(true), LPIPS_CHUNK)
            chunks = [distance(answer[i : i + LPIPS_CHUNK], true[i : i + LPIPS_CHUNK]) for i in starts]
        values = torch.cat(chunks).flatten().double()
        answered = answer.isfinite().flatten(1).all(1)
        return values.masked_fill(~answered, torch.nan).reshape(truth.shape[:2]).to(truth.device)

    return score


def _lpips_input(pictures: Tensor) -> Tensor:
    pictures = pictures.flatten(0, 1).float().cpu().expand(-1, 3, -1, -1) * 2 - 1
    height, width = pictures.shape[2:]
    scale = LPIPS_SIDE / min(height, width)
    if scale <= 1:
        return pictures
    size = [round(height * scale), round(width * scale)]
    return F.interpolate(pictures, size=size, mode="bilinear", align_corners=False)


def _lpips_network(net: str, weights: dict[str, Tensor]) -> Any:
    import lpips  # noqa: PLC0415  (seconds to import, and only wanted where weights are at hand)

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # lpips calls torchvision by names that torchvision has deprecated
        network = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
    # lpips keeps the numbers of torchvision's layers: `net.slice2.3.weight` is `features.3.weight`.
    backbone = {name: weights["features." + name.split(".", 1)[1]] for name in network.net.state_dict()}
    network.net.load_state_dict(backbone)
    return network.eval().requires_grad_(False)
