"""The mean of a batch's sanitised gradients without the gradients of single examples: clips by norms, and one draw of noise.

If n examples draw noise of standard deviation s each, their sum has noise of sqrt(n) s, which is drawn once here. The distribution
is the same, but the numbers differ. This is only for training, where nothing reads the gradients of single examples.
"""

from __future__ import annotations

import dataclasses

import torch

from leakbench.core.types import Clock, Generators, Local, Parameters, Signal
from leakbench.defense.by_norm import ByNorm
from leakbench.defense.transform import AddsNoise, Transform, acts_on
from leakbench.engine.chain import Chain

__all__ = ["merged_signal", "merges"]


def merges(station: tuple[Transform, ...]) -> bool:
    """Return whether the `example` station consists of clips and scales, and at most one noise of each member at the end."""
    noisy = bool(station) and isinstance(station[-1], AddsNoise) and acts_on(station[-1]) == "each"
    return bool(station) and all(isinstance(t, ByNorm) for t in (station[:-1] if noisy else station))


def merged_signal(
    chain: Chain,
    station: tuple[Transform, ...],
    local: Local,
    batch: int,
    memory: Parameters,
    clock: Clock,
    rngs: Generators | None,
) -> Signal:
    """Return the mean over a batch after the `example` station, as K lanes of one member.

    Args:
        station: A station for which `merges` is true.
        local: The networks and examples of K clients, with weights.
        batch: B, the divisor of their sums.
    """
    network, weights = local.network, local.weights
    assert weights is not None  # noqa: S101 - for mypy: a client's examples have weights
    layers = chain.gradient(network.parameters, network.shared, local.inputs, local.targets, weights)
    norms = {name: norm for layer in layers for name, norm in layer.norms().items()}
    factors = dict.fromkeys(norms, weights / batch)
    signal = Signal({}, averaged=batch, memory=memory, local=local, kind="example")
    finite = torch.stack(list(norms.values())).isfinite().all(0)
    if isinstance(station[0], ByNorm) and not bool(finite.all()):  # These count as zero, as after `finite_norms`.
        layers = tuple(layer.without(~finite) for layer in layers)
        norms = {name: norm for layer in layers for name, norm in layer.norms().items()}
        signal = signal.without(~finite)
    noise: AddsNoise | None = None
    for transform in station:
        if isinstance(transform, ByNorm):
            made = transform.by_norm(norms, signal.sensitivity, clock)
            if made.factors:
                norms = {n: norm * made.factors[n] for n, norm in norms.items()}
                factors = {n: factor * made.factors[n] for n, factor in factors.items()}
            signal = dataclasses.replace(signal, sensitivity=made.sensitivity, facts=(*signal.facts, *made.facts))
        elif isinstance(transform, AddsNoise):
            noise = transform
    merged = {n: g for layer in layers for n, g in layer.merged(factors).items()}
    signal = dataclasses.replace(signal, grads=merged)
    if noise is None:
        return signal
    # The noise of all members together; padding has weight zero and no noise.
    length = weights.square().sum(1).sqrt() / batch
    noised = noise.times(length, dataclasses.replace(signal, averaged=1), clock, rngs)
    return dataclasses.replace(noised, averaged=batch)
