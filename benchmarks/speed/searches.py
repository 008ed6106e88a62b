"""Seconds of the other attackers: the whitened search, the ranking of candidates, the linear fit; 32 x 32 pictures in colour."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch

from benchmarks.speed.figure import Figure
from benchmarks.speed.size import Size
from benchmarks.speed.task import made_up
from leakbench.attack import Attack
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.methods.lmmse import Lmmse
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.slots.stop import Iterations
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Generators, Network
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Public, View
from leakbench.models import build, one_hot, parameters
from leakbench.reproduce.cost import seconds

__all__ = ["lmmse_fit_seconds", "ranking_seconds", "whitened_seconds_per_victim"]

SHAPE, CLASSES = (3, 32, 32), 10

OUTER, INNER = 20, 20
"""400 iterations of L-BFGS with one evaluation each, on undefended gradients, where no search ends earlier."""

CANDIDATES, PUBLIC, RATE = 1000, 3000, 0.1


def _leak(victims: int) -> View:
    """Return the gradients of pictures from the papers' LeNet, with candidates that include them, and public pictures."""
    data = made_up(max(victims, CANDIDATES), PUBLIC, SHAPE, CLASSES)
    model = build("lenet_cpl", SHAPE, CLASSES, generator(0, "leak model"), "default")
    network = Network(model, parameters(model))
    inputs = data.train_inputs[:victims].reshape(victims, 1, 1, 1, *SHAPE)
    targets = one_hot(data.train_targets[:victims], CLASSES).reshape(victims, 1, 1, 1, CLASSES)
    with torch.no_grad():
        update = leak("type-2", network, inputs, targets, RATE, Stations(), Clock(0, 0, 1, 1), None)
    return View(
        tap="type-2",
        network=network,
        update=update,
        batch=1,
        shape=SHAPE,
        classes=CLASSES,
        learning_rate=RATE,
        public=Public(data.test_inputs, data.test_targets),
        candidates=Public(data.train_inputs[:CANDIDATES], data.train_targets[:CANDIDATES]),
    )


def _rngs(victims: int) -> Generators:
    return generators(0, "bench start", [(v,) for v in range(victims)])


def whitened_seconds_per_victim(size: Size) -> Figure:
    """Return the seconds per victim of the whitened search of all together."""
    method = resolve("attacks", Attack, "whitened")[1].method
    assert isinstance(method, GradientMatching)
    view, victims = _leak(size.whitened), size.whitened
    short = dataclasses.replace(method, stop=Iterations(limit=1))
    whole = dataclasses.replace(method, stop=Iterations(limit=OUTER))
    short((view,), _rngs(victims))
    answers = []
    taken = [seconds(lambda: answers.append(whole((view,), _rngs(victims)))) for _ in range(size.rarely)]
    return Figure(
        "s",
        f"a victim of the whitened search, {OUTER} x {INNER} iterations of L-BFGS, {victims} victims of 32 x 32 x 3 together",
        tuple(t / victims for t in taken),
        {"evaluations a victim": float(answers[0].evaluations.float().mean())},
    )


def ranking_seconds(size: Size) -> Figure:
    """Return the seconds of a ranking of victims among 1,000 candidates."""
    view, rank = _leak(size.ranked), Candidates()
    work = partial(rank, (view,), _rngs(size.ranked))
    work()
    return Figure(
        "s",
        f"{size.ranked} victims ranked among {CANDIDATES:,} candidates of 32 x 32 x 3",
        tuple(seconds(work) for _ in range(size.rarely)),
    )


def lmmse_fit_seconds(size: Size) -> Figure:
    """Return the seconds of the linear fit on 3,000 public examples and one reconstruction, without cached fits."""
    view = _leak(2)
    work = partial(Lmmse(public=PUBLIC), (view,), _rngs(2))
    return Figure(
        "s",
        f"the linear estimate `lmmse` fitted on {PUBLIC:,} public examples of 32 x 32 x 3",
        tuple(seconds(work) for _ in range(size.rarely)),
    )
