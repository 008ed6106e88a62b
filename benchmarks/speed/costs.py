"""The time of one evaluation of gradient matching as a product of powers of the sizes of an attack, to predict a run."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import nn

from benchmarks.speed.attack import TimedDescent
from benchmarks.speed.figure import Figure
from benchmarks.speed.size import Size
from benchmarks.speed.task import made_up
from leakbench.attack import Attack
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.slots.stop import Iterations
from leakbench.core.recipe import resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import one_hot, parameters
from leakbench.models.initialise import initialise, torch_default

__all__ = ["evaluation_ms"]

CLASSES, RATE = 10, 0.1

CONFIDENCE = 0.95
"""Confidence of the intervals of the exponents."""


@dataclass(frozen=True)
class Attacked:
    """The sizes of an attack on client updates of one batch.

    Args:
        victims: V.
        batch: B.
        channels: Channels of the network's two convolutions.
        side: Height and width of a picture with three channels.
    """

    victims: int = 16
    batch: int = 2
    channels: int = 12
    side: int = 32

    def network(self) -> nn.Sequential:
        """Return the network: two convolutions with strides of 2 and sigmoids, and a linear layer."""
        c, left = self.channels, (self.side // 4) ** 2
        with torch.random.fork_rng(devices=[]):  # A new layer draws from the global generator.
            first, second = (nn.Conv2d(entering, c, 5, stride=2, padding=2) for entering in (3, c))
            last = nn.Linear(c * left, CLASSES)
        model = nn.Sequential(first, nn.Sigmoid(), second, nn.Sigmoid(), nn.Flatten(), last)
        initialise(model, torch_default, generator(0, "bench network"))
        return model

    def counts(self) -> dict[str, int]:
        """Return {size: number} of the sizes that the fit uses."""
        return {
            "victims": self.victims,
            "batch": self.batch,
            "parameters": sum(p.numel() for p in self.network().parameters()),
            "pixels": 3 * self.side**2,
        }


BASE = Attacked()

FULL = (
    *(dataclasses.replace(BASE, victims=n) for n in (4, 16, 64)),
    *(dataclasses.replace(BASE, batch=n) for n in (4, 8, 16)),
    *(dataclasses.replace(BASE, channels=n) for n in (24, 48, 96)),
    *(dataclasses.replace(BASE, side=n) for n in (16, 64, 128)),
    *(dataclasses.replace(BASE, side=n, channels=48) for n in (16, 64)),
)
"""Attacks that are timed. The last layer grows with the pictures, so that some have more channels at another size too.

All have batches of several examples: one example alone is matched by its factors (`leakbench.engine.matched`), at another cost.
"""

ONE = dataclasses.replace(BASE, batch=1)
"""One example, which is timed apart from the fit."""

FEW = (
    *(dataclasses.replace(BASE, victims=n) for n in (4, 16)),
    dataclasses.replace(BASE, batch=4),
    dataclasses.replace(BASE, channels=48),
    *(dataclasses.replace(BASE, side=n) for n in (16, 64)),
    dataclasses.replace(BASE, side=16, channels=48),
)
"""Those of `--quick`."""


@dataclass(frozen=True)
class Exponents:
    """A fit of seconds = scale * product of size^exponent, by least squares of the logarithms.

    Args:
        scale: Seconds where all sizes are 1.
        exponents: {size: its exponent}.
        halves: {size: half the length of the exponent's interval}.
        apart: The largest factor between a time and its prediction.
    """

    scale: float
    exponents: dict[str, float]
    halves: dict[str, float]
    apart: float


def fitted(counts: Sequence[dict[str, int]], seconds: Sequence[float]) -> Exponents:
    """Return the fit to the sizes and the time of each attack.

    The intervals assume independent errors of the logarithms of equal variance, and that the law holds. Where it does not, they are
    too short; `apart` shows by how much a prediction can miss.
    """
    names = tuple(counts[0])
    rows = np.array([[1.0, *(math.log(count[name]) for name in names)] for count in counts])
    logs = np.log(seconds)
    found, *_ = np.linalg.lstsq(rows, logs, rcond=None)
    rest = logs - rows @ found
    free = len(rows) - len(found)
    variance = rest @ rest / free * np.linalg.inv(rows.T @ rows)
    half = stats.t.ppf((1 + CONFIDENCE) / 2, free) * np.sqrt(np.diag(variance))
    return Exponents(
        math.exp(found[0]),
        dict(zip(names, map(float, found[1:]), strict=True)),
        dict(zip(names, map(float, half[1:]), strict=True)),
        math.exp(float(np.abs(rest).max())),
    )


def evaluation_ms(size: Size) -> Figure:
    """Return the milliseconds of one evaluation for all victims of `BASE`, and the exponents of the sizes around it."""
    attacks = FULL if size.sizes else FEW
    repeats = size.repeats if size.sizes else size.rarely
    taken = [[_seconds(attacked) for attacked in attacks] for _ in range(repeats)]
    alone = [_seconds(ONE) for _ in range(repeats)]
    times = [float(np.median(each)) for each in zip(*taken, strict=True)]
    fit = fitted([attacked.counts() for attacked in attacks], times)
    base = BASE.counts()
    sizes = ", ".join(f"{name} {number:,}" for name, number in base.items())
    return Figure(
        "ms",
        f"one evaluation of gradient matching (cpl's, client updates) for all victims together: {sizes}; elsewhere, the"
        f" fit times the product of (size / this size)^exponent, fitted to {len(attacks)} sizes by least squares of the logarithms"
        + ("" if size.sizes else "; with --quick, too few sizes for exponents that predict"),
        tuple(repeat[attacks.index(BASE)] * 1e3 for repeat in taken),
        {
            **{
                f"exponent of the {name}{end}": value
                for name in base
                for end, value in (
                    ("", fit.exponents[name]),
                    (", lowest at 95 %", fit.exponents[name] - fit.halves[name]),
                    (", highest at 95 %", fit.exponents[name] + fit.halves[name]),
                )
            },
            "ms by the fit at these sizes": 1e3
            * fit.scale
            * math.prod(n ** fit.exponents[name] for name, n in base.items()),
            "largest factor between a time and its prediction": fit.apart,
            "ms with batches of one example, which the fit does not cover": 1e3 * statistics.median(alone),
        },
    )


def _seconds(attacked: Attacked) -> float:
    """Return the seconds of one evaluation of an attack for all its victims."""
    view = _leak(attacked)
    method = resolve("attacks", Attack, "cpl")[1].method
    assert isinstance(method, GradientMatching)
    timed = TimedDescent()
    twice = dataclasses.replace(method, descent=timed, stop=Iterations(limit=2))  # The first step fills caches.
    twice((view,), generators(0, "bench", [(v,) for v in range(attacked.victims)]))
    return max(timed.taken[1])


def _leak(attacked: Attacked) -> View:
    """Return the clients' gradients of made-up pictures."""
    victims, batch, shape = attacked.victims, attacked.batch, (3, attacked.side, attacked.side)
    data = made_up(victims * batch, 1, shape, CLASSES)
    model = attacked.network()
    network = Network(model, parameters(model))
    inputs = data.train_inputs.reshape(victims, 1, 1, batch, *shape)
    targets = one_hot(data.train_targets, CLASSES).reshape(victims, 1, 1, batch, CLASSES)
    with torch.no_grad():
        update = leak("type-1", network, inputs, targets, RATE, Stations(), Clock(0, 0, 1, 1), None)
    return View("type-1", network, update, batch, shape, CLASSES, RATE)
