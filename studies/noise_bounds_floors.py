"""The floors of RMSE under noise for two Gaussian priors of images; `noise_bounds.py` draws them next to its measurements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.search.whitening import Whitening, one_over_f
from leakbench.attack.slots.space_whitened import Whitened
from leakbench.cell import Cell
from leakbench.cell.cell import hand_out
from leakbench.core.types import Network
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, aware, draw_victims, truth, view_of
from leakbench.federated.view import View
from leakbench.limits.fisher_prior import information_matrix, prior_floors
from leakbench.models import one_hot
from leakbench.storage.store import write_atomically

__all__ = ["floors", "root_of"]


def floors(cell: Cell, runs: Path, victims: int, stds: Sequence[float]) -> dict[str, list[float]]:
    """Return {`floor_one_over_f`, `floor_public`: the floor at each std} and likewise `prior_...`, the priors' own deviation.

    Args:
        cell: A cell whose attack searches in a space whitened by public examples. Both priors come from these examples.
    """
    view, inputs, targets = _first(cell, victims)
    method = cell.attack.method
    assert isinstance(method, GradientMatching)
    space = method.space
    assert isinstance(space, Whitened)
    assert view.public is not None
    known = information(cell, view, inputs, targets, runs)
    examples = view.public.inputs[: space.public].double()
    priors = {"one_over_f": one_over_f(view.shape, examples), "public": space.around(examples)}
    found: dict[str, list[float]] = {}
    for name, white in priors.items():
        root = root_of(white)
        found[f"floor_{name}"] = prior_floors(known, root, stds)
        found[f"prior_{name}"] = [float(root.square().sum() / len(root)) ** 0.5] * len(stds)
    return {**found, "public": [len(examples)] * len(stds), "floor_victims": [victims] * len(stds)}


def _first(cell: Cell, many: int) -> tuple[View, Tensor, Tensor]:
    """Return (what leaks of the first victims, with the stations that act; their inputs, their targets)."""
    partition, tap, lanes = hand_out(cell), "type-2", torch.arange(many)
    drawn = draw_victims(cell, tap, 0, partition)
    view = aware(view_of(cell, tap, 0, drawn, lanes, Sent(Network(*fresh_network(cell, trained=False)))), cell)
    inputs, labels, _ = (t[lanes] for t in truth(cell, tap, drawn))
    return view, inputs, one_hot(labels, cell.data.classes)


def information(cell: Cell, view: View, inputs: Tensor, targets: Tensor, runs: Path) -> Tensor:
    """Return the mean of J^T J over the victims, (d, d); each one's stays in a file of `runs`, where a later call reads it."""
    total = torch.zeros(())
    for lane in range(len(inputs)):
        path = runs / f"information-{cell.hash[:8]}" / f"{lane}.npy"
        if not path.exists():
            own = torch.tensor([lane])
            found = information_matrix(view.of(own), inputs[own], targets[own]).numpy()
            write_atomically(path, lambda to, found=found: _save(to, found))  # type: ignore[misc]
            print(f"information of victim {lane + 1} of {len(inputs)}", flush=True)
        total = total + torch.from_numpy(np.load(path))
    return total / len(inputs)


def _save(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, array)


def root_of(white: Whitening) -> Tensor:
    """Return W (d, d) of a whitening, a column for each direction of z."""
    features = white.mean.numel()
    every = torch.eye(features, dtype=white.mean.dtype).reshape(features, *white.mean.shape)
    return white.apply(every).flatten(1).T
