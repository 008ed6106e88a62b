"""Canaries of a training: each is included with probability 1/2, for an audit of the epsilon of that training.

Canaries are clients where the defense protects a client, and else examples. A canary's update, or an example's gradient, has one
nonzero coordinate in each tensor that has enough of them for all canaries. It is far above every clip, so that the clip of the
defense decides how much of it is released. An included canary client takes part in each round with the rate of the clients. A
canary example belongs to one client, and each of its batches uses it with the rate of the client's examples. Both are hidden
from the auditor, whose score is the sum over all rounds of the inner products with the released updates.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Local, Network, Parameters, Signal, added_counts
from leakbench.defense.transform import Stations, apply

__all__ = ["Canaries", "CanaryExamples", "draw_canaries", "inclusion"]

FAR = 1e6
"""Norm of a canary in each tensor."""


@dataclass(frozen=True)
class Canaries:
    """The canaries of a training, clients or examples.

    Args:
        included: (m,), bool, drawn independently with probability 1/2.
        places: {p: (m,)}, the coordinate of each canary in flattened tensors, for the tensors with at least m coordinates. Without
            any, canaries share the coordinates of the largest tensor.
        signs: {p: (m,)}, the sign of this coordinate, 1 or -1.
        shapes: {p: *p}, the shapes of these tensors.
        seed: Seed of the training.
        norm: Norm of a canary's update in each of these tensors.
    """

    included: Tensor
    places: Parameters
    signs: Parameters
    shapes: Mapping[str, tuple[int, ...]]
    seed: int
    norm: float = FAR

    def participants(self, clock: Clock) -> Tensor:
        """Return the ids of the included canaries that take part in a round, as often as clients do.

        Each takes part with probability K_t / N, or in its turn, where clients take turns. Groups that take turns have every so
        many canaries.
        """
        if clock.in_turn:
            takes_part = clock.has_turn(torch.arange(len(self.included)))
        else:
            rng, ids = generator(self.seed, "canary participation", clock.round), torch.arange(len(self.included))
            takes_part = torch.rand(len(ids), generator=rng) < clock.groups * clock.cohort / clock.clients
            takes_part &= ids % clock.groups == clock.round % clock.groups
        return (takes_part & self.included).nonzero()[:, 0]

    def examples(self, clients: Tensor, clock: Clock, iterations: int, rate: float) -> CanaryExamples:
        """Return the canary examples in the batches of some clients in a round.

        Canary i belongs to client i modulo N.

        Args:
            clients: (K,), their ids.
            clock: Round and number N of clients.
            iterations: L, the number of local iterations.
            rate: Probability that a batch has a certain example of its client.
        """
        ids = torch.arange(len(self.included))
        owned = [ids[(ids % clock.clients == client) & self.included] for client in clients.cpu()]
        some = max(1, max(map(len, owned), default=1))
        padded, uses = torch.full((len(owned), some), -1), torch.zeros(len(owned), iterations, some, dtype=torch.bool)
        rngs = generators(self.seed, "canary batches", [(clock.round, int(client)) for client in clients])
        for lane, own in enumerate(owned):
            padded[lane, : len(own)] = own
            uses[lane, :, : len(own)] = torch.rand(iterations, len(own), generator=rngs[lane]) < rate
        return CanaryExamples(self, padded.clamp_min(0), uses)

    def contrasts(self, clients: Tensor, clock: Clock) -> Tensor:
        """Return (m,), the weights of a round in the scores of canary examples: whether the canary's client takes part.

        The observer sees the drawn clients. Minus their expected share, what all rounds have in common cancels, which is most of
        what the other examples add.
        """
        takes_part = torch.isin(torch.arange(len(self.included)) % clock.clients, clients.cpu()).double()
        share = clock.cohort / clock.clients
        return takes_part - share if share < 1 else takes_part

    def joined_to(self, updates: Signal, network: Network, local: Local, stations: Stations, clock: Clock) -> Signal:
        """Return the updates of a round's clients with those of its canaries as more members.

        Args:
            updates: After the `client` station, with one lane.
            network: Network that the server sent.
            local: Data of a client without examples.
            stations: Stations of the defense; the canaries pass `client` and, with the clients, `server`.
        """
        ids = self.participants(clock)
        if not len(ids):
            return updates
        memory = {n: m.expand(len(ids), 1, *m.shape) for n, m in network.memory.items()}
        sent = Signal(self.updates(ids, network.parameters), memory=memory, local=local)
        rngs = generators(self.seed, "canary noise", [(clock.round, int(i)) for i in ids])
        passed = apply(stations.client, sent, clock.at_the_end(), rngs).gathered(len(ids))
        grads = {n: torch.cat([g, passed.grads[n]], 1) for n, g in updates.grads.items()}
        scales = [s for s in (updates.sensitivity, passed.sensitivity) if s is not None]
        scale = torch.stack(scales).amax(0) if scales else None
        zeroed = added_counts(updates.zeroed, passed.zeroed)
        return dataclasses.replace(updates, grads=grads, sensitivity=scale, zeroed=zeroed)

    def updates(self, ids: Tensor, like: Parameters) -> Parameters:
        """Return the updates {p: (n, 1, *p)} of some canaries."""
        found = {}
        for name, p in like.items():
            flat = p.new_zeros(len(ids), p.numel())
            if name not in self.places:
                found[name] = flat.reshape(len(ids), 1, *p.shape)
                continue
            places, values = self.places[name][ids].to(p.device), self.norm * self.signs[name][ids].to(p)
            found[name] = flat.scatter_(1, places[:, None], values[:, None]).reshape(len(ids), 1, *p.shape)
        return found

    def products(self, released: Parameters) -> Tensor:
        """Return (m,), the inner product of each canary's direction of length 1 with a released update {p: (*p)}, in float64."""
        found = {n: released[n].flatten()[p.to(released[n].device)] for n, p in self.places.items()}
        each = [self.signs[n].double() * values.cpu().double() for n, values in found.items()]
        return torch.stack(each).sum(0) / math.sqrt(len(each))


@dataclass(frozen=True)
class CanaryExamples:
    """The canary examples in the batches of K clients.

    Args:
        canaries: All canaries.
        ids: (K, c), those of each client.
        uses: (K, L, c), bool, whether a batch has one.
    """

    canaries: Canaries
    ids: Tensor
    uses: Tensor

    def of_lanes(self, lanes: slice) -> CanaryExamples:
        """Return those of some clients."""
        return CanaryExamples(self.canaries, self.ids[lanes], self.uses[lanes])

    def joined_to(self, examples: Signal, weights: Tensor, step: int) -> tuple[Signal, Tensor]:
        """Return the gradients of a local iteration's examples with those of the canaries as more members, and their weights.

        Args:
            examples: The gradients (K, B, *p) before the `example` station.
            weights: (K, B); 0 marks padding.
            step: Index of the local iteration.
        """
        like = {n: g[0, 0] for n, g in examples.grads.items()}
        uses = self.uses[:, step].to(weights)
        own = self.canaries.updates(self.ids.flatten(), like)
        grads = {}
        for n, g in examples.grads.items():
            far = own[n].reshape(*self.ids.shape, *g.shape[2:])
            grads[n] = torch.cat([g, far * uses.reshape(*uses.shape, *[1] * (g.dim() - 2))], 1)
        local = examples.local
        if local is not None:  # Without data for each member, a part would take the members for those of a whole batch.
            count = self.ids.shape[1]
            inputs, targets = (
                torch.cat([t, t.new_zeros(len(t), count, *t.shape[2:])], 1) for t in (local.inputs, local.targets)
            )
            kept = torch.ones_like(weights) if local.weights is None else local.weights
            local = dataclasses.replace(local, inputs=inputs, targets=targets, weights=torch.cat([kept, uses], 1))
        return dataclasses.replace(examples, grads=grads, local=local), torch.cat([weights, uses], 1)


def inclusion(count: int, seed: int) -> Tensor:
    """Return (m,), bool, whether the training includes each canary."""
    return torch.rand(count, generator=generator(seed, "canary inclusion")) < 0.5


def draw_canaries(like: Mapping[str, Tensor], count: int, seed: int) -> Canaries:
    """Return the canaries of a training with parameters {p: (*p)}."""
    rng = generator(seed, "canaries")
    sizes = {n: p.numel() for n, p in like.items()}
    enough = [n for n, size in sizes.items() if size >= count] or [max(sizes, key=sizes.__getitem__)]
    places = {n: torch.randperm(sizes[n], generator=rng)[torch.arange(count) % sizes[n]] for n in enough}
    signs = {n: torch.randint(0, 2, (count,), generator=rng) * 2 - 1 for n in enough}
    shapes = {n: tuple(like[n].shape) for n in enough}
    return Canaries(inclusion(count, seed), places, signs, shapes, seed)
