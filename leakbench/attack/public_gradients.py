"""The gradients that candidates or public examples would have shown in place of the victims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.types import Network, Parameters
from leakbench.defense.guess import Surviving, on_a_guess
from leakbench.defense.transform import RunsNetwork, Stations
from leakbench.engine.budget import lanes_within
from leakbench.engine.saved import activations, gradient_bytes
from leakbench.federated.leakage import leak
from leakbench.federated.view import Public, View

__all__ = ["before_mask", "check_learnable", "chunk_bytes", "fitting", "flat", "gradients_alone", "numbers"]


CHUNK = 1_500_000_000
"""Largest number of bytes of the gradients that are computed at once for large pictures."""

MOST = 64
"""Largest number of gradients that are computed at once."""

STORED = 600_000_000
"""Largest number of bytes of the gradients that are in memory at once."""


def gradients_alone(
    view: View, examples: Public, chunk: int = MOST, rng: torch.Generator | None = None, draws: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield the gradients that each example would have shown alone, with the defense as far as the attacker knows it.

    Args:
        view: The view of the victims.
        examples: The examples.
        chunk: Number of gradients in memory at once; smaller for a large network.
        rng: Generator for the defense's noise, which differs from example to example; None for the deterministic part alone.
        draws: Random numbers (k,) of a stochastic network, the same for each example; None to draw them with `rng`.

    Yields:
        (at most `chunk`, p) for consecutive examples.
    """
    tap = "type-0" if view.tap == "global" else view.tap
    like = next(iter(view.network.parameters.values()))
    inputs = examples.inputs.to(like)[:, None, None, None]
    targets = examples.targets(view.classes).to(like)[:, None, None, None]
    # The gradients of language models are larger than all caches: fewer at once are several times faster.
    few = min(chunk, fitting(view, 64_000_000 if view.vocabulary is not None else STORED))
    if activations(view.network, view.shape):
        few = min(few, _together(view.network, view.shape))
    for x, y in zip(torch.split(inputs, few), torch.split(targets, few), strict=True):
        rngs = None if rng is None else (rng,) * len(x)
        with torch.no_grad():  # The yield is outside, since a caller that stops early would stay without derivatives.
            randomness = rngs if draws is None else draws.expand(len(x), 1, 1, -1)
            gradients = leak(tap, view.network, x, y, view.learning_rate, view.stations, view.clock, rngs, randomness)
        view.tick()
        yield flat(gradients)


def _together(network: Network, shape: tuple[int, ...]) -> int:
    """Return the number of gradients of large pictures that are computed at once."""
    return lanes_within(CHUNK, gradient_bytes(network, shape))


def chunk_bytes(network: Network, shape: tuple[int, ...]) -> int:
    """Return the bytes that a chunk of `gradients_alone` takes at most for large pictures, until the caller has the next chunk.

    For each example, these are the gradient while it is computed and three more of its size: the mean over the batch of one, the
    flat copy, and the flat copy of the chunk before, which the caller has until the next one is complete.
    """
    weights = next(iter(network.parameters.values())).element_size() * _numbers(network)
    examples = min(MOST, _fitting(network, STORED), _together(network, shape))
    return examples * (gradient_bytes(network, shape) + 3 * weights)


def before_mask(view: View) -> View | None:
    """Return the view without the defense if comparing the sent coordinates is as good and much faster.

    Soteria chooses the mask of an example with one backward pass per feature. The observed update shows the mask of the victim, so
    that a ranking of single examples does not need the masks of the candidates.

    Returns:
        None for every other defense, for batches, and if other transforms act as well.
    """
    acting = view.stations.before(view.tap)
    each, masks = acting.transforms, on_a_guess(acting, view.update).transforms
    visible = all(isinstance(t, RunsNetwork) for t in each) and all(isinstance(t, Surviving) for t in masks)
    return replace(view, stations=Stations()) if each and visible and view.examples == 1 else None


def check_learnable(view: View, part: str) -> None:
    """Raise InputError if a part that learns from single gradients at one network cannot read the view.

    Args:
        view: The view of the victims.
        part: Name of the part, for the message.
    """
    if view.examples > 1:
        raise InputError(f"{part}: it reads what one example leaks, got {view.examples} together (try {view.alone_by})")
    if not view.network.shared:
        raise InputError(f"{part}: it is fitted to one network, got a different network for each victim")


def fitting(view: View, budget: int) -> int:
    """Return how many gradients of the network fit into `budget` bytes; at least 4, so that both halves have two."""
    return _fitting(view.network, budget)


def _fitting(network: Network, budget: int) -> int:
    return max(4, budget // (4 * _numbers(network)))


def numbers(view: View) -> int:
    """Return p, the number of values of one gradient."""
    return _numbers(view.network)


def _numbers(network: Network) -> int:
    lanes = 1 if network.shared else len(next(iter(network.parameters.values())))
    return sum(weights.numel() for weights in network.parameters.values()) // lanes


def flat(gradients: Parameters) -> Tensor:
    """Concatenate gradients {p: (n, *p)} to one tensor (n, p)."""
    return torch.cat([g.flatten(1) for g in gradients.values()], 1)
