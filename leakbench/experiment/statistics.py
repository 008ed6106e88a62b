"""The statistics of batch normalisation that an attacker has, if the victims normalise each batch by its own statistics.

In one gradient these statistics are not sent. What an attacker does without them is part of the threat model:

| choice | the guess is normalised by | a prior of batch normalisation compares it with |
| --- | --- | --- |
| `batch` | the guess's own statistics, as the victim did | the running statistics that the server sent |
| `running` | the running statistics that the server sent | the same |
| `proxy` | the guess's own | the statistics of public examples |
| `given` | the guess's own | the statistics of the victim's batch, a strong assumption |
| `inferred` | the guess's own | the statistics of the victim's batch, solved from the running ones after the client's step |

`running` is not what the victim did: the true examples then do not explain the update. Clients of FedAvg send their running
statistics with the update, so a server without secure aggregation can use `inferred`. Huang et al. (NeurIPS 2021) compare exact
statistics, those of a proxy, and a guess's own.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from leakbench.core.errors import InputError
from leakbench.core.types import Network, Parameters
from leakbench.core.working_copy import copied
from leakbench.federated.view import Public
from leakbench.models.batch_norm import MEAN, NO_MOMENTUM, VARIANCE, BatchNorm, batch_moments, in_client_mode

__all__ = ["attacker_network", "attacker_statistics", "proxy_statistics", "solved_statistics"]

PROXIES = 64
"""Largest number of public examples whose statistics are a proxy."""


def attacker_network(network: Network, choice: str) -> Network:
    """Return the network with which an attacker computes the update of a guess.

    Args:
        network: The network that the server sent, in the mode of the victims.
        choice: One of `leakbench.core.request.STATISTICS`.
    """
    if choice != "running":
        return network
    return dataclasses.replace(network, model=in_client_mode(copied(network.model), "eval"))


def attacker_statistics(network: Network, choice: str, inputs: Tensor, public: Public) -> Parameters | None:
    """Return the statistics {name: (V, C)} that a guess should have; None for the running ones that the server sent.

    Args:
        network: The network that the server sent, in train mode.
        choice: One of `leakbench.core.request.STATISTICS`.
        inputs: The victims' examples (V, M, *s), of one local iteration of one client.
        public: The attacker's public examples.
    """
    if choice not in ("proxy", "given", "inferred"):
        return None
    if choice == "proxy":
        return proxy_statistics(network, public, inputs)
    return _moments(network, inputs) if choice == "given" else _inferred(network, inputs)


def proxy_statistics(network: Network, public: Public, like: Tensor) -> Parameters:
    """Return the statistics {name: (V, C)} of public examples, the same for each of V victims with examples like (V, M, *s)."""
    moments = _moments(network, public.first(PROXIES).inputs.to(like)[None])
    return {name: m.expand(len(like), -1) for name, m in moments.items()}


@torch.no_grad()
def _moments(network: Network, inputs: Tensor) -> Parameters:
    """Return the mean and the biased variance {name: (V, C)} of each batch (V, M, *s)."""

    def one(own: Parameters, x: Tensor) -> Parameters:
        return batch_moments(network.model, {**own, **network.statistics}, x)[0]

    return vmap(one, in_dims=(network.axis, 0))(network.parameters, inputs)


@torch.no_grad()
def _inferred(network: Network, inputs: Tensor) -> Parameters:
    """Return what the server solves from the running statistics that each client sends, {name: (V, C)}."""
    old = network.statistics

    def sent(own: Parameters, x: Tensor) -> Parameters:
        state = {**own, **old}
        functional_call(network.model, state, (x,))
        return {name: state[name] for name in old}

    after = vmap(sent, in_dims=(network.axis, 0))(network.parameters, inputs)
    solved = solved_statistics(network, after, inputs[0])
    return {name: s.clamp_min(0) if name.endswith(VARIANCE) else s for name, s in solved.items()}


@torch.no_grad()
def solved_statistics(network: Network, after: Parameters, like: Tensor) -> Parameters:
    """Return the statistics of each client's batch, {name: (V, C)}, from its running statistics after one step in train mode.

    With momentum m and n values of a channel, the client sends (1 - m) old + m mean, and likewise n / (n - 1) times the variance.

    Args:
        network: The network that the server sent, with the old running statistics, in train mode.
        after: {name: (V, C)}, the running statistics after the step.
        like: (M, *s), any batch of the size of a client's.

    Returns:
        Variances below 0 are rounding errors, or of statistics that are not those after one step.
    """
    layers = {name: m for name, m in network.model.named_modules() if isinstance(m, BatchNorm)}
    old = network.statistics
    whole = {**{n: p if network.shared else p[0] for n, p in network.parameters.items()}, **old}
    counts = batch_moments(network.model, whole, like)[1]
    solved: Parameters = {}
    for name, new in after.items():
        layer, _, kind = name.rpartition(".")
        if kind in (MEAN, VARIANCE):
            momentum, n = layers[layer].momentum, counts[name]
            if momentum is None:
                raise InputError(NO_MOMENTUM)
            batch = (new - (1 - momentum) * old[name]) / momentum
            solved[name] = batch if kind == MEAN else batch * (n - 1) / n
    return solved
