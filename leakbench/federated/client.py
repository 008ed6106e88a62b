"""What one client does in one round: L local iterations, each through the `example` and `batch` stations of the defense.

Clients are lanes. The same function, differentiated, is what an attacker unrolls (`leakbench.federated.view`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from leakbench.defense import Defense
from leakbench.defense.transform import apply
from leakbench.types import Clock, Generators, Parameters, Signal

__all__ = ["LocalIteration", "example_signal", "local_iterations", "mean_update"]


@dataclass(frozen=True)
class LocalIteration:
    """One local iteration of K clients.

    examples: the signal after the `example` station (members = B; one member that is already the batch's mean where the
    defense leaves examples alone and nothing needs them one by one).  batch: the signal after the `batch` station.
    """

    examples: Signal
    batch: Signal


def _loss(model: nn.Module, parameters: Parameters, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    log_probabilities = torch.log_softmax(functional_call(model, parameters, (inputs,)), dim=-1)
    return -((targets * log_probabilities).sum(-1) * weights).sum()


def example_signal(
    model: nn.Module, parameters: Parameters, shared: bool, inputs: Tensor, targets: Tensor, weights: Tensor
) -> Signal:
    """Return every example's gradient of the soft cross-entropy: grads {p: (K, B, *p)}, zero where its weight is zero.

    parameters: {p: (*p)} if `shared`, else one set a lane {p: (K, *p)}. inputs (K, B, *s), targets (K, B, classes),
    weights (K, B): 1 for an example that is there, 0 for padding.
    """

    def one(p: Parameters, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return _loss(model, p, x[None], y[None], w[None])

    over_batch = vmap(grad(one), in_dims=(None, 0, 0, 0))
    return Signal(vmap(over_batch, in_dims=(None if shared else 0, 0, 0, 0))(parameters, inputs, targets, weights))


def _mean_signal(
    model: nn.Module, parameters: Parameters, shared: bool, inputs: Tensor, targets: Tensor, weights: Tensor, batch: int
) -> Signal:
    def mean(p: Parameters, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return _loss(model, p, x, y, w / batch)

    grads = vmap(grad(mean), in_dims=(None if shared else 0, 0, 0, 0))(parameters, inputs, targets, weights)
    return Signal({name: g.unsqueeze(1) for name, g in grads.items()}, averaged=batch)


def _iteration(
    model: nn.Module,
    parameters: Parameters,
    shared: bool,
    data: tuple[Tensor, Tensor, Tensor],
    batch: int,
    defense: Defense,
    clock: Clock,
    rngs: Generators,
) -> LocalIteration:
    inputs, targets, weights = data
    if defense.example:
        examples = apply(defense.example, example_signal(model, parameters, shared, inputs, targets, weights), clock, rngs)
        # Padding must stay silent: whatever the station did to it (noise) does not enter the mean.
        kept = {n: g * weights.reshape(*weights.shape, *[1] * (g.dim() - 2)) for n, g in examples.grads.items()}
        mean = replace(examples, grads=kept).mean(batch)
    else:
        examples = mean = _mean_signal(model, parameters, shared, inputs, targets, weights, batch)
    return LocalIteration(examples, apply(defense.batch, mean, clock, rngs))


def local_iterations(
    model: nn.Module,
    parameters: Parameters,
    shared: bool,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    batch: int,
    learning_rate: float,
    defense: Defense,
    clock: Clock,
    rngs: Generators,
) -> Iterator[LocalIteration]:
    """Yield each of L local SGD iterations (Wei et al., TPDS 2023, Algorithm 1, lines 6 to 20).

    inputs (K, L, B, *s), targets (K, L, B, classes), weights (K, L, B) mark padding by 0. batch: the B that sums are divided
    by (the expected size of a Poisson batch). Differentiable with respect to inputs and targets.
    """
    steps = inputs.shape[1]
    for step in range(steps):
        data = (inputs[:, step], targets[:, step], weights[:, step])
        now = replace(clock, local_iteration=step, local_iterations=steps)
        done = _iteration(model, parameters, shared, data, batch, defense, now, rngs)
        yield done
        if step + 1 < steps:
            moved = {n: g[:, 0] for n, g in done.batch.grads.items()}
            parameters = {n: parameters[n] - learning_rate * g for n, g in moved.items()}
            shared = False


def mean_update(
    model: nn.Module,
    parameters: Parameters,
    shared: bool,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    batch: int,
    learning_rate: float,
    defense: Defense,
    clock: Clock,
    rngs: Generators,
) -> Parameters:
    """Return the mean over the L local iterations of what a client descends along: {p: (K, *p)}.

    The client's update is W_L - W_0 = -learning_rate * L * this; at L = 1 it is the batch's (sanitised) gradient. Arguments as
    in `local_iterations`.
    """
    done = local_iterations(
        model, parameters, shared, inputs, targets, weights, batch, learning_rate, defense, clock, rngs
    )
    grads = [iteration.batch.grads for iteration in done]
    return {name: sum((g[name][:, 0] for g in grads[1:]), grads[0][name][:, 0]) / len(grads) for name in grads[0]}
