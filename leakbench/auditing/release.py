"""The release that an audit tests: the sum over a batch's examples or over a round's updates after a defense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from leakbench.core.rng import generators
from leakbench.core.types import Clock, Local, Parameters, Signal
from leakbench.defense import FactProbe
from leakbench.defense.transform import Stations, apply
from leakbench.privacy.ledger import Unit

__all__ = ["DefenseRelease", "Release", "flat"]

BYTES = 64_000_000


class Release(Protocol):
    """One release as a function of its members and of the seed of its noise."""

    @property
    def members(self) -> int:
        """Number of members of one release."""

    @property
    def seeded(self) -> bool:
        """Whether the same seed gives the same noise."""

    def __call__(self, inputs: Parameters, seeds: Sequence[int]) -> Tensor:
        """Return releases (lanes, coordinates).

        Args:
            inputs: {p: (lanes or 1, members, *p)}.
            seeds: One seed per lane.
        """


def flat(grads: Parameters) -> Tensor:
    """Return {p: (lanes, *p)} as (lanes, coordinates)."""
    return torch.cat([g.flatten(1) for g in grads.values()], 1)


@dataclass(frozen=True)
class DefenseRelease:
    """A release by a defense's real transforms, at the stations that protect its unit.

    Args:
        unit: `example`: the example and batch stations; members are the B examples of one batch. `client`: the client and server
            stations; members are the K_t updates of one round.
        clock: Moment of the release.
        seed: Seed of all generators, together with each lane's seed.
        probe: Network and federation for the transforms; all examples are grey.
    """

    stations: Stations
    unit: Unit
    members: int
    clock: Clock
    seed: int
    probe: FactProbe
    seeded: bool = True

    def __call__(self, inputs: Parameters, seeds: Sequence[int]) -> Tensor:
        """Return the sums over the members after the stations."""
        coordinates = sum(g[0, 0].numel() for g in inputs.values())
        chunk = max(1, BYTES // (4 * self.members * coordinates))
        run = self._of_examples if self.unit == "example" else self._of_clients
        found = []
        for start in range(0, len(seeds), chunk):
            now = seeds[start : start + chunk]
            lanes = {
                n: g.expand(len(now), *g.shape[1:]) if g.shape[0] == 1 else g[start : start + chunk]
                for n, g in inputs.items()
            }
            found.append(self.members * flat({n: g[:, 0] for n, g in run(lanes, now).grads.items()}))
        return torch.cat(found)

    def _of_examples(self, lanes: Parameters, seeds: Sequence[int]) -> Signal:
        rngs = generators(self.seed, "audit", [(s,) for s in seeds])
        each = apply(
            self.stations.example, Signal(lanes, local=self._local(len(seeds), self.members)), self.clock, rngs
        )
        return apply(self.stations.batch, each.mean(), self.clock, rngs)

    def _of_clients(self, lanes: Parameters, seeds: Sequence[int]) -> Signal:
        local = self._local(len(seeds) * self.members, self.probe.federation.batch)
        wire = Signal({n: g.reshape(-1, 1, *g.shape[2:]) for n, g in lanes.items()}, local=local)
        own = generators(self.seed, "audit", [(s, k) for s in seeds for k in range(self.members)])
        updates = apply(self.stations.client, wire, self.clock, own).gathered(self.members)
        rngs = generators(self.seed, "audit", [(s,) for s in seeds])
        return apply(self.stations.server, updates, self.clock, rngs).mean()

    def _local(self, lanes: int, examples: int) -> Local:
        inputs = torch.full((1, 1, *self.probe.shape), 0.5).expand(lanes, examples, *self.probe.shape)
        targets = torch.full((1, 1, self.probe.classes), 1 / self.probe.classes).expand(lanes, examples, -1)
        return Local(self.probe.network, inputs, targets)
