"""LPIPS (Zhang et al., CVPR 2018) takes pictures in [-1, 1]: fed with [0, 1], it sees everything at half its contrast."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leakbench.conformance.case import Case, case
from leakbench.conformance.contract import Floats
from leakbench.conformance.known import Close, Known, OneOf
from leakbench.conformance.pictures import Pictures
from leakbench.measure.metrics import LPIPS_ABSENT

__all__ = ["cases"]

BACKBONES = {"squeeze": "squeezenet1_1-*.pth", "alex": "alexnet-*.pth", "vgg": "vgg16-*.pth"}

WHY = "The networks were trained on [-1, 1]; pictures in [0, 1] give another, smaller distance that looks as plausible."


def cases(folder: Path | None) -> tuple[Case, ...]:
    """Return the case of LPIPS, by the package `lpips` on the backbones (as torchvision names them) in `folder`.

    The scorer must use one of these. Without any the case is skipped, with the reason.
    """
    rng = np.random.default_rng(110)
    truth = rng.uniform(0, 1, (2, 1, 3, 64, 64)).astype(np.float32)
    answer = np.clip(truth + rng.normal(0, 0.2, truth.shape), 0, 1).astype(np.float32)
    files = {net: file for net, name in BACKBONES.items() if folder for file in sorted(folder.glob(name))[:1]}
    known: dict[str, Known] = {net: Close(_reference(net, f, truth, answer), 1e-5, 1e-3) for net, f in files.items()}
    made = case("lpips: range", WHY, truth, answer, {"lpips": OneOf(known)})
    return (made if files else Case(made.name, made.why, made.truth, made.answer, made.known, LPIPS_ABSENT),)


def _reference(net: str, file: Path, truth: Pictures, answer: Pictures) -> Floats:
    import lpips  # noqa: PLC0415  (seconds to import, and only wanted where weights are at hand)

    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # lpips calls torchvision by names that torchvision has deprecated
        network: Any = lpips.LPIPS(net=net, pnet_rand=True, verbose=False).eval()
    weights = torch.load(file, map_location="cpu", weights_only=True)
    # lpips keeps the numbers of torchvision's layers: `net.slice2.3.weight` is `features.3.weight`.
    network.net.load_state_dict({n: weights["features." + n.split(".", 1)[1]] for n in network.net.state_dict()})
    with torch.no_grad():
        distance = network(torch.from_numpy(answer[:, 0]) * 2 - 1, torch.from_numpy(truth[:, 0]) * 2 - 1)
    return np.asarray(distance.reshape(-1, 1).double().numpy())
