"""Cases of measures of pixels: RMSE, PSNR, SSIM and LPIPS of each picture, and their value over all examples."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leakbench.conformance.case import Between, Case, Close, EachExample, Finite, Known, OneOf, case
from leakbench.conformance.contract import Floats
from leakbench.conformance.pictures import SHAPE, TOLERANCES, Pictures, black_and_white, reference, turned
from leakbench.measure.metrics import LPIPS_ABSENT

__all__ = ["lpips_case", "pixel_cases"]


def pixel_cases() -> tuple[Case, ...]:
    """Return the cases of RMSE, PSNR and SSIM, in the order in which they are printed."""
    return *_rmse(), *_psnr(), *_ssim(), *_clamped(), *_each_example(), *_mean_of_members()


def _rmse() -> tuple[Case, ...]:
    """Return the cases of RMSE: a distance on the scale of the pixels, 0 for equal pictures, linear in the error."""
    same = black_and_white(2, 1, seed=10)
    grey = np.full((4, 1, *SHAPE), 0.5, dtype=np.float32)
    error = np.random.default_rng(11).uniform(-0.5, 0.5, SHAPE)
    scales = np.array([1.0, 0.1, 0.01, 0.001]).reshape(4, 1, 1, 1, 1)
    scaled = (grey + scales * error).astype(np.float32)
    return (
        case(
            "rmse: scale",
            "An error a thousand times as small scores a thousandth; one measured in units of itself always scores the same.",
            grey,
            scaled,
            {"rmse": Close(reference("rmse", grey, scaled), 1e-6, relative=1e-3)},
        ),
        case(
            "rmse: perfect",
            "What is the same is at no distance, and that is a number.",
            same,
            same.copy(),
            {"rmse": Close(np.zeros((2, 1)), 1e-6)},
        ),
    )


def _psnr() -> tuple[Case, ...]:
    """Return the cases of PSNR: data range 1 for any contrast, finite for a perfect picture, averaged and not added."""
    rng = np.random.default_rng(20)
    contrast = np.linspace(0.1, 1, 20).reshape(20, 1, 1, 1, 1)
    faint = (0.5 + contrast * rng.uniform(-0.5, 0.5, (20, 1, *SHAPE))).astype(np.float32)
    noisy = np.clip(faint + rng.normal(0, 0.1, faint.shape), 0, 1).astype(np.float32)
    truth = black_and_white(2, 3, seed=21)
    perfect = turned(truth, [[0, 1 / 16, 1 / 16], [1 / 16, 1 / 16, 0]])
    others = reference("psnr", truth, turned(truth, [[1 / 16] * 3] * 2))
    beside = np.where([[True, False, False], [False, False, True]], np.nan, others)
    return (
        case(
            "psnr: scikit-image",
            "The data range is that of pixels, 1; not a picture's own contrast, nor the data's standard deviation.",
            faint,
            noisy,
            {"psnr": Close(reference("psnr", faint, noisy), 0.01)},
        ),
        case(
            "psnr: perfect picture",
            "One perfect picture has no noise to divide by; it is capped, and the rest of its batch keeps its numbers.",
            truth,
            perfect,
            {"psnr": Finite(beside, 0.01)},
        ),
        case(
            "psnr: mean with a perfect picture",
            "Two of six pictures are perfect, the others at 12.04 dB: averaged as infinity they would make any table infinite.",
            truth,
            perfect,
            {"overall psnr": Between(12.03, 200.0)},
        ),
        case(
            "psnr: mean, not sum",
            "Three pictures that are equally good are together as good as each, not three times as good.",
            truth,
            turned(truth, [[1 / 16] * 3] * 2),
            {"psnr": Close(others, 0.01)},
        ),
    )


PAIRS = 100


def _ssim() -> tuple[Case, ...]:
    """Return the cases of SSIM (Wang et al., IEEE TIP 2004) with data range 1: scikit-image's value, and a closed form.

    The SSIM of two flat pictures a and b is (2ab + C1) / (a^2 + b^2 + C1) with C1 = 0.0001.
    """
    rng = np.random.default_rng(30)
    contrast = np.linspace(0.05, 1, PAIRS).reshape(PAIRS, 1, 1, 1, 1)
    truth = (0.5 + contrast * rng.uniform(-0.5, 0.5, (PAIRS, 1, *SHAPE))).astype(np.float32)
    strength = rng.permutation(np.linspace(0, 0.5, PAIRS)).reshape(PAIRS, 1, 1, 1, 1)
    answer = np.clip(truth + strength * rng.uniform(-0.5, 0.5, truth.shape), 0, 1).astype(np.float32)
    flat, other = (np.ones((2, 1, *SHAPE), dtype=np.float32) * _flat(*levels) for levels in ((0, 0.5), (0.01, 0.51)))
    closed = np.array([[0.5], [(2 * 0.5 * 0.51 + 1e-4) / (0.5**2 + 0.51**2 + 1e-4)]])
    return (
        case(
            "ssim: scikit-image",
            f"As Wang et al. print it, over the windows within the picture: {PAIRS} pairs from faint to full contrast.",
            truth,
            answer,
            {"ssim": Close(reference("ssim", truth, answer), 1e-4)},
        ),
        case(
            "ssim: flat pictures",
            "Black compared with a grey of .01 is 1/2 by the formula; without a data range it is 0, with one of 2 it is .8.",
            flat,
            other,
            {"ssim": Close(closed, 1e-4)},
        ),
    )


def _flat(first: float, second: float) -> np.ndarray:
    return np.array([first, second], dtype=np.float32).reshape(2, 1, 1, 1, 1)


def _clamped() -> tuple[Case, ...]:
    """Return one case per measure: pixels are clamped to [0, 1] before they are scored, since they are displayed so."""
    truth = black_and_white(3, 1, seed=40)
    within = turned(truth, [[1 / 16], [1 / 4], [9 / 16]])
    beyond = np.random.default_rng(41).uniform(0, 6, within.shape)
    answer = np.where(within > 0.5, 1 + beyond, -beyond).astype(np.float32)
    why = "Pixels of 7 and -5 are shown as white and black, and so they are scored."
    return tuple(
        case(f"{name}: clamped", why, truth, answer, {name: Close(reference(name, truth, within), tolerance)})
        for name, tolerance in TOLERANCES.items()
    )


def _each_example() -> tuple[Case, ...]:
    """Return one case per measure: each example has its own number, compared with its own truth."""
    truth = black_and_white(2, 2, seed=50)
    answer = turned(truth, [[1 / 16, 1 / 4], [9 / 64, 1 / 64]])
    why = "A success rate counts victims; one number for a batch does not show which of its victims was reconstructed."
    return tuple(
        case(
            f"{name}: each example", why, truth, answer, {name: EachExample(reference(name, truth, answer), tolerance)}
        )
        for name, tolerance in TOLERANCES.items()
    )


def _mean_of_members() -> tuple[Case, ...]:
    """Return one case per measure: the value over all examples covers every member of a batch, not only the best one.

    The squared errors in both batches are 1/64, 1/8 and 3/8. The squared error to any other picture is 1/2, so that each
    reconstruction is nearest to its own truth under any matching.
    """
    truth = black_and_white(2, 3, seed=130)
    answer = turned(truth, [[1 / 64, 1 / 8, 3 / 8]] * 2)
    why = "One of three members is reconstructed well: no mean or median over all three is as good."
    mean_square = float(np.square(answer - truth).mean())
    of_mean_square = {"rmse": mean_square**0.5, "psnr": -10 * np.log10(mean_square)}
    made = []
    for name, tolerance in TOLERANCES.items():
        values = reference(name, truth, answer)
        middles = {"mean": values.mean(), "median": np.median(values)}
        if name in of_mean_square:
            middles["of the mean square"] = of_mean_square[name]
        known: Known = OneOf({of: Close(np.array(middle), tolerance) for of, middle in middles.items()})
        made.append(case(f"{name}: mean, not best member", why, truth, answer, {f"overall {name}": known}))
    return tuple(made)


BACKBONES = {"squeeze": "squeezenet1_1-*.pth", "alex": "alexnet-*.pth", "vgg": "vgg16-*.pth"}

WHY = "The networks were trained on [-1, 1]; pictures in [0, 1] give another, smaller distance that looks as plausible."


def lpips_case(folder: Path | None) -> Case:
    """Return the case of LPIPS (Zhang et al., CVPR 2018), which takes pictures in [-1, 1].

    The known values are those of the package `lpips` on the backbones in `folder`, named as torchvision names them. The
    scorer must use one of these backbones. Without a backbone the case is skipped, with the reason.
    """
    rng = np.random.default_rng(110)
    truth = rng.uniform(0, 1, (2, 1, 3, 64, 64)).astype(np.float32)
    answer = np.clip(truth + rng.normal(0, 0.2, truth.shape), 0, 1).astype(np.float32)
    files = {net: file for net, name in BACKBONES.items() if folder for file in sorted(folder.glob(name))[:1]}
    known: dict[str, Known] = {net: Close(_lpips(net, f, truth, answer), 1e-5, 1e-3) for net, f in files.items()}
    made = case("lpips: range", WHY, truth, answer, {"lpips": OneOf(known)})
    return made if files else replace(made, skipped=LPIPS_ABSENT)


def _lpips(net: str, file: Path, truth: Pictures, answer: Pictures) -> Floats:
    import lpips  # noqa: PLC0415  (takes seconds to import, and is only needed with weights)

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # lpips calls torchvision by names that torchvision has deprecated
        network: Any = lpips.LPIPS(net=net, pnet_rand=True, verbose=False).eval()
    weights = torch.load(file, map_location="cpu", weights_only=True)
    # lpips keeps the numbers of torchvision's layers: `net.slice2.3.weight` is `features.3.weight`.
    network.net.load_state_dict({n: weights["features." + n.split(".", 1)[1]] for n in network.net.state_dict()})
    with torch.no_grad():
        distance = network(torch.from_numpy(answer[:, 0]) * 2 - 1, torch.from_numpy(truth[:, 0]) * 2 - 1)
    return np.asarray(distance.reshape(-1, 1).double().numpy())
