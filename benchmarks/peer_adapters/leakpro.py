"""LeakPro: the client that scores what came back, and the older attacks' functions on data loaders."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peer_adapters.stand_in import package_without_init, stand_in

__all__ = ["LeakProClient", "LeakProLoaders"]


def leakpro_imports(checkouts: Path) -> None:
    """Make LeakPro's modules and torchmetrics and ignite, both from their sources, importable."""
    folder = checkouts / "LeakPro" / "leakpro"
    stand_in("seaborn", "optuna", "transformers")
    package_without_init("leakpro", folder)
    sys.path[:0] = [str(checkouts / name) for name in ("torchmetrics/src", "utilities/src", "ignite")]


class LeakProClient:
    """`FLClientSimulator.compute_metrics`, which the modular attacks' examples report; data of mean 0 and std 1."""

    def __init__(self, checkouts: Path, weights: Path) -> None:
        leakpro_imports(checkouts)
        self.client = importlib.import_module("leakpro.fl_utils.fl_client_simulator").FLClientSimulator

    def __call__(self, truth: Any, answer: Any) -> Mapping[str, Any]:
        """Return PSNR and SSIM, one number a batch, and the order in which the reconstruction is handed back."""
        psnr, ssim, order = [], [], []
        zero, one = torch.zeros(1, 3, 1, 1), torch.ones(1, 3, 1, 1)
        for victim in range(len(truth["labels"])):
            real, said = (torch.from_numpy(side["inputs"][victim]) for side in (truth, answer))
            batch = [(real, torch.from_numpy(truth["labels"][victim]))]
            result = self.client(batch, zero, one, 512, torch.device("cpu")).compute_metrics(said, {})
            psnr.append(result.PSNR_score)
            ssim.append(result.SSIM_score)
            order.append([int((said - picture).abs().flatten(1).sum(1).argmin()) for picture in result.recreated_data])
        return {"psnr": psnr, "ssim": ssim, "matched": np.array(order)}


class LeakProLoaders:
    """`dataloaders_psnr` and `dataloaders_ssim_ignite`, which the older attacks report; data of mean 0 and std 1."""

    def __init__(self, checkouts: Path, weights: Path) -> None:
        leakpro_imports(checkouts)
        self.measures = importlib.import_module("leakpro.fl_utils.similarity_measurements")

    def __call__(self, truth: Any, answer: Any) -> Mapping[str, Any]:
        """Return one number a batch."""
        pairs = [
            [[(torch.from_numpy(side["inputs"][v]), torch.from_numpy(side["labels"][v]))] for side in (truth, answer)]
            for v in range(len(truth["labels"]))
        ]
        m = self.measures
        return {
            "psnr": [float(m.dataloaders_psnr(*pair)) for pair in pairs],
            "ssim": [float(m.dataloaders_ssim_ignite(*pair)) for pair in pairs],
        }
