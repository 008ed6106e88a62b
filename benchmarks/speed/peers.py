"""Searches of breaching and LeakPro by their own code, with their own numbers, timed until their first success."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import math
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.speed.timing import ONE, either_way, median
from leakbench.core.types import Parameters
from leakbench.reproduce.cost import in_turns, with_threads

__all__ = ["PEERS", "Leak", "Peer", "Stopwatch", "peers_to_eta", "share"]

LBFGS = 20
"""Evaluations of a step of `torch.optim.LBFGS` with its default numbers."""

TRIAL = 40
"""Evaluations of the trials that warm the peer's code and choose the number of threads."""

TRIALS = 3
"""Number of trials with each number of threads."""


@dataclass(frozen=True)
class Leak:
    """The leak of one victim, in the form that the peers take.

    Args:
        model: The network with its weights.
        update: {p: (*p)}, the gradient of the victim's example.
        label: (1,), the label that the peers are given.
        inputs: (1, C, H, W), the true image in [0, 1]; LeakPro's simulated client computes the gradient from it.
        classes: Number of classes.
        error: Takes a reconstruction (1, C, H, W) and returns its RMSE.
    """

    model: nn.Module
    update: Parameters
    label: Tensor
    inputs: Tensor
    classes: int
    error: Callable[[Tensor], float]


Search: TypeAlias = Callable[[], Tensor]
"""A search that is ready to run, and returns its reconstruction (1, C, H, W)."""


@dataclass(frozen=True)
class Peer:
    """An attack of another package.

    Args:
        module: The module that is imported; its first name is the package's.
        install: How to install the package.
        prepare: Takes a leak and the largest number of evaluations; returns the search.
    """

    module: str
    install: str
    prepare: Callable[[Leak, int], Search]


def _breaching(preset: str, leak: Leak, evaluations: int) -> Search:
    """Prepare an attack of breaching, with the normalisation of mean 0 and standard deviation 1.

    The attacks that search for the label together with the image refuse a given one.
    """
    package = importlib.import_module("breaching")
    config = package.get_attack_config(preset)
    each = LBFGS if config.optim.optimizer == "L-BFGS" else 1
    config.optim.max_iterations = min(config.optim.max_iterations, evaluations // each)
    attacker = package.attacks.prepare_attack(leak.model, nn.CrossEntropyLoss(), config)
    _, channels, *_ = leak.inputs.shape
    metadata = _Metadata(
        modality="vision",
        task="classification",
        shape=tuple(leak.inputs.shape[1:]),
        classes=leak.classes,
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
    )
    payload = {"parameters": [p.detach() for p in leak.model.parameters()], "buffers": [], "metadata": metadata}
    label = None if config.attack_type == "joint-optimization" else leak.label
    shared = {
        "gradients": [leak.update[name] for name, _ in leak.model.named_parameters()],
        "buffers": None,
        "metadata": {"num_data_points": 1, "labels": label, "local_hyperparams": None},
    }

    def search() -> Tensor:
        reconstruction: Tensor = attacker.reconstruct([payload], [shared], {})[0]["data"]
        return reconstruction

    return search


class _Metadata(dict[str, Any]):
    """A dictionary whose items are attributes too, as breaching reads them."""

    __getattr__ = dict.__getitem__


def _leakpro(leak: Leak, evaluations: int) -> Search:
    """Prepare Inverting Gradients of LeakPro, with the normalisation of mean 0 and standard deviation 1.

    LeakPro's client computes the gradient itself. The reconstruction is that of least loss: LeakPro reports the one that is
    most similar to the true image, which an attacker does not know.

    Raises:
        RuntimeError: The client's gradient is not the leaked one, or the search ended before its last step: LeakPro logs an error
            in a step and ends.
    """
    module = importlib.import_module("leakpro.attacks.gia_attacks.invertinggradients")
    config = module.InvertingConfig()
    config.at_iterations = min(config.at_iterations, evaluations)
    channels = leak.inputs.shape[1]
    zero, one = torch.zeros(channels, 1, 1), torch.ones(channels, 1, 1)
    client = DataLoader(TensorDataset(leak.inputs, leak.label))
    # It creates a folder for its results in the current one.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        attacker = module.InvertingGradients(leak.model, client, zero, one, configs=config)
    attacker.prepare_attack()
    names = [name for name, _ in leak.model.named_parameters()]
    for name, step in zip(names, attacker.client_gradient, strict=True):
        leaked = -config.optimizer.lr * leak.update[name]
        if not torch.allclose(step, leaked, rtol=0, atol=1e-3 * float(leaked.abs().max())):
            raise RuntimeError(f"LeakPro's client computes another gradient: {name} differs")

    def search() -> Tensor:
        steps: list[object] = []
        # LeakPro's last line reads it, but it is set only once a reconstruction is similar to the true image.
        attacker.final_best = attacker.reconstruction_loader
        handle = register_optimizer_step_post_hook(lambda *_: steps.append(None))
        try:
            for _ in attacker.run_attack():
                pass
        finally:
            handle.remove()
        if len(steps) < config.at_iterations:
            raise RuntimeError(f"LeakPro's search ended after {len(steps)} of {config.at_iterations} steps")
        reconstruction: Tensor = attacker.best_reconstruction.dataset.reconstruction.detach()
        return reconstruction

    return search


BREACHING = partial(Peer, "breaching", "pip install breaching")

LEAKPRO = partial(
    Peer,
    "leakpro.attacks.gia_attacks.invertinggradients",
    "pip install git+https://github.com/aidotse/LeakPro torchmetrics pytorch-ignite optuna lpips transformers",
)

PEERS = {
    "breaching, Inverting Gradients": BREACHING(partial(_breaching, "invertinggradients")),
    "breaching, DLG by L-BFGS": BREACHING(partial(_breaching, "deepleakage")),
    "LeakPro, Inverting Gradients": LEAKPRO(_leakpro),
}
"""{name: the attack}."""


@dataclass
class Stopwatch:
    """Times a search until its point is a success for the first time, and to its end; comparing takes none of the time.

    Each step of any of PyTorch's optimizers is compared. A search runs one of them, whose first tensor is the point.

    Args:
        error: Takes a point and returns its RMSE.
        eta: Largest RMSE of a success.
    """

    error: Callable[[Tensor], float]
    eta: float
    steps: int = field(default=0, init=False)
    began: float = field(default=0.0, init=False)
    seconds: float = field(default=math.inf, init=False)
    """Seconds until the first success; infinite without one."""
    evaluations: float = field(default=math.inf, init=False)
    """Evaluations until the first success; infinite without one."""
    whole: float = field(default=math.inf, init=False)
    """Seconds of the whole search."""
    final: float = field(default=math.inf, init=False)
    """RMSE of the reconstruction."""

    def run(self, search: Search) -> None:
        """Run a search."""
        handle = register_optimizer_step_post_hook(self._compare)
        try:
            self.began = time.perf_counter()
            reconstruction = search()
            self.whole = time.perf_counter() - self.began
        finally:
            handle.remove()
        self.final = self.error(reconstruction)

    def _compare(self, optimizer: torch.optim.Optimizer, _: object, __: object) -> None:
        now = time.perf_counter()
        self.steps += 1
        point = optimizer.param_groups[0]["params"][0]
        if math.isinf(self.seconds) and self.error(point.detach()) <= self.eta:
            self.seconds = now - self.began
            # L-BFGS counts its evaluations; the other optimizers make one in each step.
            self.evaluations = float(optimizer.state[point].get("func_evals", self.steps))
        self.began += time.perf_counter() - now


def peers_to_eta(leaks: Sequence[Leak], eta: float, evaluations: int) -> tuple[dict[str, float], list[str]]:
    """Search the victims of the leaks one by one with each peer.

    Args:
        leaks: The victims.
        eta: Largest RMSE of a success.
        evaluations: Largest number of evaluations of a search. If a package's own is larger, its schedule is scaled.

    Returns:
        The parts of the figure, and the reason for each peer that is left out.
    """
    parts, reasons = dict[str, float](), dict[str, None]()
    with _quiet():
        for name, peer in PEERS.items():
            package = peer.module.partition(".")[0]
            try:
                importlib.import_module(peer.module)
                searches = _searches(peer, leaks, eta, evaluations)
            except ImportError as error:
                reasons[f"{package} is left out ({error}): {peer.install}"] = None
            except Exception as error:  # Of another package's code: the figures measured before must not be lost.
                reasons[f"{name} is left out, since {package} failed ({type(error).__name__}: {error})"] = None
            else:
                parts |= _parts(name, searches)
    return parts, list(reasons)


def _searches(peer: Peer, leaks: Sequence[Leak], eta: float, evaluations: int) -> tuple[int, list[Stopwatch]]:
    """Return (the number of threads, the stopwatches of the victims); trials choose ours or one."""
    watches = [Stopwatch(leak.error, eta) for leak in leaks]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ways = either_way({"": peer.prepare(leaks[0], TRIAL)})
        taken = in_turns(ways, TRIALS)
        threads = 1 if min(ways, key=partial(median, taken)) == ONE else torch.get_num_threads()
        for victim, (leak, watch) in enumerate(zip(leaks, watches, strict=True)):
            torch.manual_seed(victim)
            with_threads(threads, partial(watch.run, peer.prepare(leak, evaluations)))
    return threads, watches


def _parts(name: str, searches: tuple[int, list[Stopwatch]]) -> dict[str, float]:
    threads, watches = searches
    until = {
        "s to eta": statistics.median(watch.seconds for watch in watches),
        "evaluations to eta": statistics.median(watch.evaluations for watch in watches),
    }
    return {
        **{f"{name}, {part}": value for part, value in until.items() if math.isfinite(value)},
        f"{name}, share of {len(watches)} that reach eta": share([watch.seconds for watch in watches]),
        f"{name}, RMSE at the end": statistics.median(watch.final for watch in watches),
        f"{name}, s of a whole search": statistics.median(watch.whole for watch in watches),
        f"{name}, threads": float(threads),
    }


def share(values: Sequence[float]) -> float:
    """Return the share of finite values: of searches that were a success."""
    return sum(map(math.isfinite, values)) / len(values)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the packages print, log at each better loss, and warn of."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
