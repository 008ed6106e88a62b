"""How a server draws its clients and a client its batches, on which an epsilon may rest, and what a sampling network draws."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.types import Generators, Network

__all__ = ["Batches", "draw_batches", "draw_clients", "drawn", "drop_out"]


@dataclass(frozen=True)
class Batches:
    """The batches of K clients in one round.

    Args:
        positions: (K, L, B) int64, into each client's own list of examples.
        weights: (K, L, B) float, 0 marks padding.
    """

    positions: Tensor
    weights: Tensor


def draw_clients(clients: int, per_round: int, cohorts: str, rng: torch.Generator) -> Tensor:
    """Return the ids of the clients of a round, sorted: exactly K_t (`fixed`) or each with probability K_t / N (`poisson`)."""
    if cohorts == "poisson":
        return torch.nonzero(torch.rand(clients, generator=rng) < per_round / clients).flatten()
    return torch.randperm(clients, generator=rng)[:per_round].sort().values


def drop_out(clients: Tensor, probability: float, rng: torch.Generator) -> Tensor:
    """Return those of the `clients` (K,) that do not fail, each with the given probability by itself."""
    return clients[torch.rand(len(clients), generator=rng, dtype=torch.float64) >= probability]


def draw_batches(kind: str, examples: int, iterations: int, batch: int, rngs: Generators) -> Batches:
    """Draw L batches of B out of `examples` positions for each lane; see `Defense.batches` for the kinds.

    A Poisson batch has a random size; it is padded to the largest one drawn in any of these lanes.
    """
    if kind == "poisson":
        return _poisson(examples, iterations, batch, rngs)
    draw = {"fixed": _fixed, "split": _split}[kind]
    positions = torch.stack([draw(examples, iterations, batch, rng) for rng in rngs])
    return Batches(positions, torch.ones(positions.shape))


def _fixed(examples: int, iterations: int, batch: int, rng: torch.Generator) -> Tensor:
    return torch.rand(iterations, examples, generator=rng).topk(batch, dim=1).indices


def _split(examples: int, iterations: int, batch: int, rng: torch.Generator) -> Tensor:
    """One pass over a shuffled list; where L * B asks for more than one pass, another shuffle follows."""
    passes = -(-iterations * batch // (examples - examples % batch))
    whole = torch.cat([torch.randperm(examples, generator=rng)[: examples - examples % batch] for _ in range(passes)])
    return whole[: iterations * batch].reshape(iterations, batch)


def _poisson(examples: int, iterations: int, batch: int, rngs: Generators) -> Batches:
    drawn = torch.stack([torch.rand(iterations, examples, generator=rng) < batch / examples for rng in rngs])
    largest = max(1, int(drawn.sum(2).max()))
    weights, positions = drawn.float().topk(largest, dim=2)
    return Batches(positions, weights)


def drawn(network: Network, weights: Tensor, rngs: Generators | None) -> Tensor | None:
    """Return what a sampling network draws for the examples of weights (K, L, B): (K, L, B, k) standard normal numbers.

    Each lane draws from its own generator, and no more than its own largest batch holds, so that the padding which it owes to the
    lanes beside it moves nothing. None where the network draws nothing, and where `rngs` is None: the mean, as an attacker
    runs it on a guess.
    """
    if rngs is None or network.draws == 0:
        return None
    draws = weights.new_zeros(*weights.shape, network.draws)
    for lane, weight, rng in zip(draws, weights, rngs, strict=True):
        own = int((weight > 0).sum(-1).max())
        shape = (lane.shape[0], own, network.draws)
        lane[:, :own] = torch.randn(shape, generator=rng, dtype=draws.dtype).to(draws.device)
    return draws
