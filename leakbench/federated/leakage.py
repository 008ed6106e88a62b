"""The leakage points, and the update that leaks at each.

    examples --[example]--tap 2--> mean over B --[batch]--> local steps x L --> update --[client]--tap 1--> wire
         wire --> server --[server]--tap 0--> sum / K_t --> new global model --tap G (every participant sees it)

`leak` computes the victims' update; run on a guess, it computes the update that an attacker compares with it
(`leakbench.federated.view`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call

from leakbench.core.errors import InputError
from leakbench.core.types import Clock, Generators, Network, Parameters, Signal, added_counts
from leakbench.defense.transform import Stations, acts_on, apply
from leakbench.federated.client import Examples, augmented, client_update, local_iterations, mean_update
from leakbench.federated.optimizer import linear_steps
from leakbench.federated.sampling import drawn

__all__ = ["leak", "logits_of", "rounded"]


def leak(
    tap: str,
    network: Network,
    inputs: Tensor,
    targets: Tensor,
    learning_rate: float,
    stations: Stations,
    clock: Clock,
    rngs: Generators | None,
    draws: Generators | Tensor | None = None,
) -> Parameters:
    """Return the update of each of V victims that an attacker at a leakage point observes, in units of a gradient.

    - `type-2` is the gradient of the first example, as the defense changed it, after the `example` station.
    - `type-1` and `type-0` are the client's update after the `client` and after the `server` station. A single update carries the
      whole noise of a sum.
    - `global` is the mean update of the clients, and so is `type-0` of several clients.

    Updates are divided by -learning_rate * L, which every client knows. With SGD and L = 1 the result is the batch's gradient. With
    Adam it is the mean of L directions without a unit: for L = 1, g / (|g| + 1e-8), nearly the signs. With momentum, weight decay
    or the proximal term, public numbers replace L, and what weight decay adds for the sent weights is subtracted
    (`leakbench.federated.optimizer.linear_steps`), so that the result is a weighted mean of gradients.

    Args:
        tap: One of `TAPS`.
        inputs: (V, K, L, B, *s), the examples of K clients in the order of L local iterations. K is 1 unless the update is a sum:
            at `global`, and at `type-0` under secure aggregation.
        targets: (V, K, L, B, classes).
        rngs: One generator for each of the V * K clients, for the stations' noise; None for no noise.
        draws: For a network that samples: one generator for each of the V * K clients, or the random numbers (V * K, L, B, k).

    Returns:
        {p: (V, *p)}.
    """
    stations = stations.before(tap)
    victims, cohort, steps, batch = inputs.shape[:4]
    weights = inputs.new_ones(victims * cohort, steps, batch)
    examples = Examples(inputs.flatten(0, 1), targets.flatten(0, 1), weights, batch, padded=False)
    examples, stations = augmented(examples, stations, clock, rngs)
    numbers = draws if isinstance(draws, Tensor) else drawn(network, examples.weights, draws)
    examples = replace(examples, draws=numbers)
    own, network = network, network.of_client(0)
    if tap == "type-2":
        if not stations.example:  # No station mixes the batch, so only the victim's own gradient is computed.
            x, y, w = (t[:, :1, :1] for t in (examples.inputs, examples.targets, examples.weights))
            examples = Examples(x, y, w, 1, None if numbers is None else numbers[:, :1, :1], padded=False)
        first = next(local_iterations(network, examples, learning_rate, stations, clock, rngs))
        return _seen({n: g[:, 0] for n, g in first.examples.grads.items()}, first.examples, rngs)
    if not stations.client and not stations.server and cohort == 1:
        # No station acts on the update, so it is not multiplied and divided: with SGD the result is bit-identical to the gradient.
        mean = mean_update(network, examples, learning_rate, stations, clock, rngs)
        update = _seen({n: g[:, 0] for n, g in mean.grads.items()}, mean, rngs)
        return _in_gradients(update, own, learning_rate, clock, steps)
    if own.own and cohort > 1:
        signal = _one_by_one(own, examples, cohort, learning_rate, stations, clock, rngs)
    else:
        signal = client_update(network, examples, learning_rate, stations, clock, rngs).gathered(cohort)
    signal = apply(stations.server, signal, clock.at_the_end(), None if rngs is None else rngs[::cohort])
    update = {n: g.mean(1) / (-learning_rate * steps) for n, g in signal.grads.items()}
    return _in_gradients(_seen(update, signal, rngs), own, learning_rate, clock, steps)


def _seen(update: Parameters, signal: Signal, rngs: Generators | None) -> Parameters:
    """Return an update {p: (V, *p)}, for a guess (without `rngs`) as NaN if a defense counted a part of it as zero.

    A search must see that the gradient of its guess is not finite. Zeros may be closer to the observed update than its best guess.
    """
    if rngs is not None or not signal.zeroed:
        return update
    lost = torch.stack(list(signal.zeroed.values())).sum(0) > 0
    return {n: g.masked_fill(lost.reshape(-1, *[1] * (g.dim() - 1)), torch.nan) for n, g in update.items()}


def _in_gradients(update: Parameters, network: Network, learning_rate: float, clock: Clock, steps: int) -> Parameters:
    """Return an update {p: (V, *p)} over -learning_rate * L in the units of `leak`."""
    how = linear_steps(clock, learning_rate, steps)
    if how.length != steps:
        update = {n: g * (steps / how.length) for n, g in update.items()}
    if how.kept != 1:
        update = {n: g - how.shift(learning_rate) * _sent(network, n, len(g)) for n, g in update.items()}
    return update


def _sent(network: Network, name: str, victims: int) -> Tensor:
    """Return the weights before the update, (1, *p) or (V, *p), as their mean over the clients of a sum."""
    weights = network.parameters[name]
    if name in network.own:
        return network.own[name].mean(0, keepdim=True)
    return weights[None] if network.shared else weights.reshape(victims, -1, *weights.shape[1:]).mean(1)


def _one_by_one(
    network: Network,
    examples: Examples,
    cohort: int,
    learning_rate: float,
    stations: Stations,
    clock: Clock,
    rngs: Generators | None,
) -> Signal:
    """Return the mean update over each `cohort` lanes as one member, for clients that received different networks.

    The clients are computed one after another to save memory. Raises InputError if the server acts on single updates, for which it
    would need all of them at once.
    """
    if not all(acts_on(t) == "sum" for t in stations.server):
        raise InputError(
            "server: it sends each client another model and sees no single update; expected only noise `to: sum`"
        )
    total: Signal | None = None
    for client in range(cohort):
        lanes = None if rngs is None else rngs[client::cohort]
        mine = examples.of_lanes(slice(client, None, cohort))
        one = client_update(network.of_client(client), mine, learning_rate, stations, clock, lanes)
        total = one if total is None else _added(total, one)
    assert total is not None  # noqa: S101 - for mypy: a cohort has at least one client
    mean = {name: g / cohort for name, g in total.grads.items()}
    return replace(total, grads=mean, averaged=cohort, local=None)


def _added(total: Signal, one: Signal) -> Signal:
    """Return the sum of two clients' updates and of their counts; the larger sensitivity stays."""
    scales = [s.sensitivity for s in (total, one) if s.sensitivity is not None]
    largest = torch.stack(scales).amax(0) if scales else None
    grads = {n: g + one.grads[n] for n, g in total.grads.items()}
    return replace(total, grads=grads, sensitivity=largest, zeroed=added_counts(total.zeroed, one.zeroed))


def rounded(update: Parameters, weights: Parameters, length: float, kept: float = 1.0) -> Parameters:
    """Return an update as the difference of single-precision weights shows it.

    Args:
        update: {p: (V, *p)}, in the units of `leak`.
        weights: Weights before the update, {p: (*p)} or {p: (V, *p)}.
        length: Learning rate times local iterations; the attacker divides the difference by it.
        kept: Factor of the weights before the update, see `leakbench.federated.optimizer.LinearSteps`.
    """
    return {n: (kept * weights[n] - (kept * weights[n] - length * u)) / length for n, u in update.items()}


def logits_of(network: Network, inputs: Tensor) -> Tensor:
    """Return the logits (V, M, classes) of inputs (V, M, *s) for a network that all clients share."""
    with torch.no_grad():
        logits: Tensor = functional_call(
            network.model, {**network.parameters, **network.statistics}, (inputs.flatten(0, 1),)
        )
    return logits.reshape(*inputs.shape[:2], -1)
