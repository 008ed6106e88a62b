"""breaching: the benchmark's own loop over users, with its report and its averages."""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.peer_adapters.stand_in import package_without_init, random_backbone, stand_in

__all__ = ["BreachingBenchmark"]


class BreachingBenchmark:
    """`benchmark_breaches.main_process`, which calls `breaching.analysis.report` for each user and averages.

    One user a victim. raises: whether an attack that has no answer raises, as breaching's do where something breaks,
    or returns NaN.
    """

    def __init__(self, checkouts: Path, weights: Path, raises: bool = False) -> None:
        folder = checkouts / "breaching"
        random_backbone("alex", weights)
        stand_in("hydra", "omegaconf")
        sys.modules["hydra"].main = lambda **_: lambda function: function  # type: ignore[attr-defined]
        package = package_without_init("breaching", folder / "breaching")
        # IIP, which is not asked for, would compare with a data set; it gets the victim's own pictures.
        self.dataset: Any = None
        cases = ModuleType("breaching.cases")
        cases.construct_dataloader = lambda *_, **__: SimpleNamespace(dataset=self.dataset)  # type: ignore[attr-defined]
        sys.modules["breaching.cases"] = package.cases = cases  # type: ignore[attr-defined]
        package.analysis = importlib.import_module("breaching.analysis")  # type: ignore[attr-defined]
        package.utils = importlib.import_module("breaching.utils")  # type: ignore[attr-defined]
        sys.path.insert(0, str(folder))
        self.benchmark = importlib.import_module("benchmark_breaches")
        self.package, self.raises = package, raises

    def __call__(self, truth: Any, answer: Any) -> Mapping[str, Any]:
        """Return what the tables of the benchmark hold: a row a trial, and the averages."""
        victims, members = truth["labels"].shape
        rows: dict[int, dict[str, Any]] = {}
        means: dict[str, Any] = {}
        config = self._config(truth)

        def keep(_: Any, metrics: dict[str, Any], *__: Any, table_name: str = "", **___: Any) -> None:
            if table_name:
                means.update(metrics)
            else:
                rows[config.case.user.user_idx] = metrics

        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(truth["inputs"][0, 0].size, 512))
        self._replace(truth, answer, model, keep)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            self.benchmark.main_process(0, 1, config)
        per = {
            k: np.array([float(rows.get(v, {}).get(k, np.nan)) for v in range(victims)])
            for k in ("mse", "psnr", "lpips", "label_acc")
        }
        order = [np.asarray(rows.get(v, {}).get("order", np.arange(members))) for v in range(victims)]
        return {
            "rmse": np.sqrt(per["mse"]),
            "psnr": per["psnr"],
            "lpips": per["lpips"],
            "label_accuracy": per["label_acc"],
            "matched": np.stack(order),
            "overall": {
                "rmse": float(means["mse"]) ** 0.5,
                "psnr": float(means["psnr"]),
                "lpips": float(means["lpips"]),
            },
        }

    def _config(self, truth: Any) -> Any:
        data = SimpleNamespace(modality="vision", vocab_size=512, partition="none", shape=truth["inputs"].shape[2:])
        user = SimpleNamespace(user_idx=-1)
        case = SimpleNamespace(user=user, data=data, impl=None, model=None, server=SimpleNamespace(pretrained=False))
        return SimpleNamespace(
            case=case, attack=None, num_trials=len(truth["labels"]), dryrun=False, save_reconstruction=False
        )

    def _replace(self, truth: Any, answer: Any, model: torch.nn.Module, keep: Any) -> None:
        """Put the given arrays in the places of the data, the protocol and the attack."""
        setup = {"device": torch.device("cpu"), "dtype": torch.float}

        class Metadata(dict[str, str]):
            """Read both as an item and as an attribute."""

        payload = {"metadata": Metadata(modality="vision"), "parameters": list(model.parameters()), "buffers": []}

        def tensors(arrays: Any, victim: int) -> dict[str, Any]:
            return {
                "data": torch.from_numpy(arrays["inputs"][victim]),
                "labels": torch.from_numpy(arrays["labels"][victim]),
                "buffers": [],
            }

        def user(_: Any, __: Any, case: Any, ___: Any) -> Any:
            victim = case.user.user_idx
            real = tensors(truth, victim)
            pairs = list(zip(real["data"], real["labels"].tolist(), strict=True))
            self.dataset = type("D", (list,), {"lookup": {i: label for i, (_, label) in enumerate(pairs)}})(pairs)
            size = len(pairs)
            return SimpleNamespace(
                user_idx=victim, num_data_points=size, dataloader=SimpleNamespace(dataset=pairs), counted_queries=1
            )

        def protocol(user: Any) -> Any:
            return user.user_idx, [payload], tensors(truth, user.user_idx)

        def reconstruct(_: Any, victim: int, *__: Any, **___: Any) -> Any:
            said = tensors(answer, victim)
            if self.raises and not said["data"].isfinite().all():
                raise RuntimeError("no answer")
            return said, {"train_loss": [], "opt_value": 0.0}

        server = SimpleNamespace(vet_model=lambda m: m, run_protocol=protocol, secrets=None, model=model)
        self.package.cases.construct_model = lambda *_: (model, None)
        self.package.cases.construct_server = lambda *_: server
        self.package.cases.construct_user = user
        self.package.attacks = SimpleNamespace(prepare_attack=lambda *_: SimpleNamespace(reconstruct=reconstruct))  # type: ignore[attr-defined]
        self.package.utils.system_startup = lambda *_: setup
        self.package.utils.save_summary = keep
