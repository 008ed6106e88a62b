"""What a defense does to a unit's data, found by running its real transforms: the ledger believes no recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from leakbench.data.recipe import Federation
from leakbench.defense.recipe import Defense
from leakbench.defense.transform import STATIONS, apply
from leakbench.errors import InputError
from leakbench.types import Clock, Fact, Local, Network, Signal

__all__ = ["Probe", "facts", "facts_at"]

LARGE = 1e6
"""Of every coordinate of a probing gradient: every clip binds, and a scale that is taken from the data is not by accident zero."""


@dataclass(frozen=True)
class Probe:
    """Where a defense is tried out: the network that is trained, the shape of one input, the classes, the federation."""

    network: Network
    shape: tuple[int, ...]
    classes: int
    federation: Federation


class _Watched(Clock):
    """A clock that notes which of its hands were read, so that one look is enough at what never changes."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("round", "local_iteration"):
            super().__getattribute__("__dict__").setdefault("read", set()).add(name)
        return super().__getattribute__(name)


def facts(defense: Defense, probe: Probe) -> dict[str, tuple[Fact, ...]]:
    """Return what each station does in a whole federation, in its weakest form: the least noise, the widest clip.

    Raises InputError where a transform cannot stand where it stands.
    """
    found: dict[str, tuple[Fact, ...]] = {}
    for now in _over_time(defense, probe):
        found = {name: _weakest(found.get(name, now[name]), now[name]) for name in STATIONS}
    return found


def _over_time(defense: Defense, probe: Probe) -> Iterator[dict[str, tuple[Fact, ...]]]:
    f = probe.federation
    watched = _Watched(**vars(f.clock(0)))
    yield facts_at(defense, probe, watched)
    read = vars(watched).get("read", set())
    for t in range(f.rounds if "round" in read else 1):
        for step in range(f.local_iterations if "local_iteration" in read else 1):
            if (t, step) != (0, 0):
                yield facts_at(defense, probe, f.clock(t, step))


def facts_at(defense: Defense, probe: Probe, clock: Clock) -> dict[str, tuple[Fact, ...]]:
    """Return {station: what it does} at one moment.

    The deterministic part runs (no generators), since a transform states its noise without drawing it.
    """

    def through(name: str, signal: Signal) -> Signal:
        try:
            after = apply(getattr(defense.stations, name), signal, clock, None)
        except InputError as error:
            raise InputError(f"defense: at the {name} station, {error}") from None
        found[name] = after.facts[len(signal.facts) :]
        return after

    f = probe.federation
    found: dict[str, tuple[Fact, ...]] = {}
    through("batch", through("example", _large(probe, f.batch)).mean())
    through("server", _repeated(through("client", _large(probe, 1)), f.clients_per_round))
    return found


def _large(probe: Probe, members: int) -> Signal:
    grads = {n: p.new_full((1, members, *p.shape), LARGE) for n, p in probe.network.parameters.items()}
    device = next(iter(grads.values())).device
    inputs = torch.full((1, probe.federation.batch, *probe.shape), 0.5, device=device)
    targets = torch.full((1, probe.federation.batch, probe.classes), 1 / probe.classes, device=device)
    return Signal(grads, local=Local(probe.network, inputs, targets))


def _repeated(update: Signal, cohort: int) -> Signal:
    """Return one client's update as those of a cohort, with one element left of each tensor: a server sees no shapes."""
    lanes = torch.zeros(cohort, dtype=torch.int64)
    small = {n: g.flatten(2)[lanes, :, :1].reshape(cohort, 1, *[1] * (g.dim() - 2)) for n, g in update.grads.items()}
    memory = {n: m[lanes] for n, m in update.memory.items()}
    scale = None if update.sensitivity is None else update.sensitivity[lanes]
    return dataclasses.replace(update, grads=small, memory=memory, sensitivity=scale).gathered(cohort)


def _weakest(before: tuple[Fact, ...], now: tuple[Fact, ...]) -> tuple[Fact, ...]:
    if [f.kind for f in before] != [f.kind for f in now]:
        return (*before, Fact("other", reason="what the station does changes in kind over the rounds"))
    return tuple(
        dataclasses.replace(a, norm=max(a.norm, b.norm), std=min(a.std, b.std))
        for a, b in zip(before, now, strict=True)
    )
