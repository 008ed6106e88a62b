"""Random draws: the server's clients, a client's batches (an epsilon may depend on both), and a sampling network's numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.core.rng import generator
from leakbench.core.types import Generators, HidesDraws, Network

__all__ = ["Batches", "draw_batches", "draw_clients", "drawn", "drop_out", "groups_of"]


@dataclass(frozen=True)
class Batches:
    """The batches of K clients in one round.

    Args:
        positions: (K, L, B) int64, positions in each client's list of examples.
        weights: (K, L, B) float; 0 marks padding.
    """

    positions: Tensor
    weights: Tensor


def draw_clients(
    clients: int,
    per_round: int,
    cohorts: str,
    seed: int,
    index: int,
    groups: int = 1,
    available: Tensor | None = None,
) -> Tensor:
    """Draw the sorted ids of a round's clients; see `Defense.cohorts` for the kinds.

    Args:
        clients: N.
        per_round: K_t.
        cohorts: The kind.
        seed: Seed of the run.
        index: Index of the round, from 0.
        groups: Number of groups that take turns, see `Defense.cohort_groups`; only with Poisson cohorts.
        available: (N,) bool, the clients that can be drawn; None for all. If they are fewer than K_t, all of them take part.
            Clients that take turns do so only if they are available.
    """
    if cohorts == "in_turn":
        order = torch.randperm(clients, generator=generator(seed, "turns"))
        turn = order[(index * per_round + torch.arange(per_round)) % clients].sort().values
        return turn if available is None else turn[available[turn]]
    rng = generator(seed, "clients", index)
    if cohorts == "poisson":
        takes_part = torch.rand(clients, generator=rng) < groups * per_round / clients
        if groups > 1:
            takes_part &= groups_of(clients, seed, groups) == index % groups
        if available is not None:
            takes_part &= available
        return torch.nonzero(takes_part).flatten()
    order = torch.randperm(clients, generator=rng)
    if available is not None:
        order = order[available[order]]
    return order[:per_round].sort().values


def groups_of(clients: int, seed: int, groups: int) -> Tensor:
    """Return the group (N,) of each client, from 0, the same in all rounds."""
    return torch.randperm(clients, generator=generator(seed, "groups")) % groups


def drop_out(clients: Tensor, probability: float, rng: torch.Generator) -> Tensor:
    """Return those of the `clients` (K,) that do not fail; each one fails independently with the given probability."""
    return clients[torch.rand(len(clients), generator=rng, dtype=torch.float64) >= probability]


def draw_batches(kind: str, examples: int, iterations: int, batch: int, rngs: Generators) -> Batches:
    """Draw L batches of B out of `examples` positions for each lane; see `Defense.batches` for the kinds.

    A Poisson batch has a random size; it is padded to the largest one in any of these lanes.
    """
    if kind == "poisson":
        return _poisson(examples, iterations, batch, rngs)
    draw = {"fixed": _fixed, "split": _split}[kind]
    positions = torch.stack([draw(examples, iterations, batch, rng) for rng in rngs])
    return Batches(positions, torch.ones(positions.shape))


def _fixed(examples: int, iterations: int, batch: int, rng: torch.Generator) -> Tensor:
    return torch.rand(iterations, examples, generator=rng).topk(batch, dim=1).indices


def _split(examples: int, iterations: int, batch: int, rng: torch.Generator) -> Tensor:
    """Pass over a shuffled list; each further pass, if L * B needs one, shuffles it again."""
    passes = -(-iterations * batch // (examples - examples % batch))
    whole = torch.cat([torch.randperm(examples, generator=rng)[: examples - examples % batch] for _ in range(passes)])
    return whole[: iterations * batch].reshape(iterations, batch)


def _poisson(examples: int, iterations: int, batch: int, rngs: Generators) -> Batches:
    drawn = torch.stack([torch.rand(iterations, examples, generator=rng) < batch / examples for rng in rngs])
    largest = max(1, int(drawn.sum(2).max()))
    weights, positions = drawn.float().topk(largest, dim=2)
    return Batches(positions, weights)


def drawn(network: Network, weights: Tensor, rngs: Generators | None) -> Tensor | None:
    """Draw the standard normal numbers of a sampling network, (K, L, B, k).

    Each lane draws from its own generator, and only for its own largest batch, so its numbers do not depend on other lanes. The
    numbers of a network that `HidesDraws` are the same for all examples of a lane.

    Args:
        weights: (K, L, B), the weights of the examples.
        rngs: One generator per lane; None for the mean (or usual) network, as an attacker runs it on a guess.

    Returns:
        None if the network does not sample, or without `rngs`.
    """
    model = network.model
    if isinstance(model, HidesDraws):
        key = model.usual if rngs is None else torch.stack([torch.randn(network.draws, generator=rng) for rng in rngs])
        return key.to(weights).reshape(-1, 1, 1, network.draws).expand(*weights.shape, network.draws)
    if rngs is None or network.draws == 0:
        return None
    draws = weights.new_zeros(*weights.shape, network.draws)
    for lane, weight, rng in zip(draws, weights, rngs, strict=True):
        own = int((weight > 0).sum(-1).max())
        shape = (lane.shape[0], own, network.draws)
        lane[:, :own] = torch.randn(shape, generator=rng, dtype=draws.dtype).to(draws.device)
    return draws
