"""GradAttack: the script that scores what its attack has saved."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import runpy
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_adapters.stand_in import random_backbone, stand_in

__all__ = ["GradAttackScript"]


class GradAttackScript:
    """`examples/calc_metric.py`, run on files as the attack saves them: one folder a victim, pictures (B, H, W, C)."""

    def __init__(self, checkouts: Path, weights: Path) -> None:
        stand_in("pkg_resources")
        sys.modules["pkg_resources"].DistributionNotFound = type("E", (Exception,), {})  # type: ignore[attr-defined]
        sys.path[:0] = [str(checkouts / "torchmetrics-0.6.0"), str(checkouts / "GradAttack")]
        importlib.import_module("torchmetrics")  # derives a class from the LPIPS that is replaced next
        random_backbone("vgg", weights)
        self.script = str(checkouts / "GradAttack" / "examples" / "calc_metric.py")

    def __call__(self, truth: Any, answer: Any) -> Mapping[str, Any]:
        """Return the lists that the script fills, and the averages that it prints."""
        shape, walk, arguments = truth["labels"].shape, os.walk, sys.argv
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
            for victim in range(len(truth["labels"])):
                place = Path(folder) / f"{victim:05d}"
                place.mkdir()
                np.save(place / "reconstructed.npy", np.moveaxis(answer["inputs"][victim], 1, -1))
                np.save(place / "transformed.npy", np.moveaxis(truth["inputs"][victim], 1, -1))
            # The script takes folders as they come; a result must be told apart from its neighbour's.
            os.walk = lambda root: iter(sorted(walk(root)))  # type: ignore[assignment, misc]
            sys.argv = ["calc_metric.py", "--dir", folder]
            try:
                found = runpy.run_path(self.script)
            finally:
                os.walk, sys.argv = walk, arguments
        scores = {
            n: np.array([float(np.asarray(x).squeeze()) for x in found[n]]).reshape(shape)
            for n in ("rmse", "psnr", "lpips")
        }
        averages = {n.lower(): float(x) for n, x in re.findall(r"Avg\. (\w+): (\S+)", printed.getvalue())}
        return {**scores, "overall": averages}
