"""The ways of private local training without leakbench, by name."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec

from torch import nn

from benchmarks.speed.plain import Step, local_training, per_example_step
from benchmarks.speed.task import BATCH, CHECKED, CHECKED_CLIP, CLIP, RATE, SIGMA, BenchTask, check_same, our_update
from benchmarks.speed.timing import median
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.reproduce.cost import in_turns, with_threads

__all__ = ["WAYS", "check_way", "fastest_way", "private_step", "without_hook_warnings"]

WAYS = ("vmap", "Opacus, layers", "Opacus, layers by expanded weights", "Opacus, flat", "Opacus, ghost")
"""Per-example gradients by torch.func's vmap(grad); or Opacus, with a clip layer by layer on gradients from its hooks (its default)
or from PyTorch's expanded weights, a flat clip, and a flat clip by ghost norms."""


def private_step(way: str, model: nn.Module, clip: float = CLIP, sigma: float = SIGMA) -> tuple[nn.Module, Step]:
    """Return (a copy of the model, its private local iteration)."""
    if way == "vmap":
        own = copy.deepcopy(model)
        return own, per_example_step(own, RATE, clip, sigma)
    from benchmarks.speed.opacus_loop import opacus_step  # noqa: PLC0415

    return opacus_step(way.removeprefix("Opacus, "), model, RATE, BATCH, clip, sigma)


@contextmanager
def without_hook_warnings() -> Iterator[None]:
    """Suppress PyTorch's warning for every layer that Opacus' hooks run before its inputs have a derivative."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        yield


TRIED = 10
"""Local iterations for which the ways are compared."""


def fastest_way(task: BenchTask) -> str:
    """Return the fastest way of private local training with one thread, as in Flower's clients."""
    inputs, labels = task.held(0)
    arms = {}
    for way in WAYS:
        if way != "vmap" and find_spec("opacus") is None:
            continue
        model, step = private_step(way, task.model)
        arms[way] = partial(local_training, model, task.start, step, inputs, labels, BATCH, TRIED)
    with without_hook_warnings():
        taken = with_threads(1, partial(in_turns, arms, 3))
    return min(arms, key=lambda way: median(taken, way))


def check_way(task: BenchTask, way: str) -> None:
    """Raise RuntimeError if one client's update by a way, without noise, differs from leakbench's."""
    model, step = private_step(way, task.model, CHECKED_CLIP, 0.0)
    inputs, labels = task.held(1)
    with without_hook_warnings():
        theirs = local_training(model, task.start, step, inputs, labels, BATCH, CHECKED)
    clip = ClipLayers(CHECKED_CLIP) if way == "vmap" or "layers" in way else ClipWhole(CHECKED_CLIP)
    check_same(way, our_update(task, (clip,), inputs, labels, CHECKED), theirs)
