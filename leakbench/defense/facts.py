"""Facts about a defense for the ledger, measured by running its transforms; the ledger does not rely on the recipe's text."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from leakbench.core.errors import InputError
from leakbench.core.progress import Progress, unreported
from leakbench.core.recipe import recipe_name
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Fact, Local, Network, Parameters, Signal, sent_memory
from leakbench.data.recipe import Federation
from leakbench.defense.augmentation import Augmentation, Batch, applied, copies_of
from leakbench.defense.recipe import Defense
from leakbench.defense.transform import SILENT, Transform, apply, name_of
from leakbench.models.batch_norm import mixes_examples
from leakbench.models.language import LanguageModel
from leakbench.privacy.ledger import OWN_NOISE, Phase

__all__ = ["FactProbe", "doubts_of_inputs", "facts_at", "phases"]

Facts: TypeAlias = dict[str, tuple[Fact, ...]]
"""{station: facts of its transforms, oldest first}."""

LARGE = 1e6
"""Value of every coordinate of a probing gradient. At this size every clip scales, and no scale from the data is zero by chance."""


@dataclass(frozen=True)
class FactProbe:
    """The setting in which a defense is run to measure its facts.

    Args:
        network: Network that is trained.
        shape: (*s) of one input.
    """

    network: Network
    shape: tuple[int, ...]
    classes: int
    federation: Federation


DRAWS = 8
"""Number of draws with which an augmentation is checked."""

LOUDEST = 1e31
"""Largest standard deviation at which every draw of noise is finite in single precision."""


REPORTED = 1000
"""Number of rounds, some seconds of work, after which progress is reported again."""


class _Watched(Clock):
    """A clock that records which of its times were read: one evaluation is enough for a defense that reads none."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("round", "local_iteration"):
            super().__getattribute__("__dict__").setdefault("read", set()).add(name)
        return super().__getattribute__(name)


def _small(probe: FactProbe) -> FactProbe:
    """Return the probe with one element of each tensor, which is enough for transforms that read only gradients."""
    tiny = {n: p.flatten()[:1].reshape([1] * p.dim()) for n, p in probe.network.parameters.items()}
    return dataclasses.replace(probe, network=dataclasses.replace(probe.network, parameters=tiny))


def phases(defense: Defense, probe: FactProbe, progress: Progress = unreported) -> tuple[Phase, ...]:
    """Split a whole training into phases, in order; within a phase, every station does the same in each local iteration.

    Args:
        progress: Called with the number of rounds for which the defense was run, if its noise depends on the round.

    Raises:
        InputError: If a transform cannot run at its station.
    """
    f = probe.federation
    watched = _Watched(**vars(defense.clock(f, 0)))
    first, memory = _run(defense, probe, watched)
    doubts = (
        *doubts_of_inputs(defense, probe),
        *_of_statistics(probe),
        *_of_values(defense, probe),
        *_of_memory(defense, probe, first, memory),
    )
    read = vars(watched).get("read", set()) | ({"round"} if callable(defense.cohort_growth) else set())
    # If the facts are the same for one element of each tensor, neither shapes nor examples matter. There may be thousands of
    # moments, so the small probe is used for the others.
    later = probe if read and _differs_in_small(defense, probe, first) else _small(probe)
    found: list[Phase] = []
    rounds = f.rounds if "round" in read else min(1, f.rounds)
    for t in range(rounds):
        if t and t % REPORTED == 0:
            progress("noise of each round", t, rounds)
        steps = range(f.local_iterations if "local_iteration" in read else 1)
        clocks = [defense.clock(f, t, step) for step in steps]
        seen = [first if (t, c.local_iteration) == (0, 0) else facts_at(defense, later, c) for c in clocks]
        for plain, many in _counted(seen, f.local_iterations if len(steps) == 1 else 1):
            facts = {name: (*doubts, *done) if done else done for name, done in plain.items()}
            found.append(Phase(facts, 1 if "round" in read else f.rounds, many, False, clocks[0].cohort))
        found[-1] = dataclasses.replace(found[-1], ends=True)
    return _joined(found)


def _of_values(defense: Defense, probe: FactProbe) -> tuple[Fact, ...]:
    """Return a fact against the epsilon if a member that is not finite passes a clip from outside leakbench, which bounds nothing.

    Every clip of leakbench starts with `Signal.finite`, as its tests check.
    """
    if all(type(t).__module__.startswith("leakbench.") for t in defense.stations.transforms):
        return ()
    clock, copies, found = defense.clock(probe.federation, 0), copies_of(defense.inputs), list[Fact]()

    def through(name: str, signal: Signal) -> Signal:
        for transform in getattr(defense.stations, name):
            stated = len(signal.facts)
            signal = apply((transform,), signal, clock, None)
            bounds = any(fact.kind == "clip" and fact.norm < math.inf for fact in signal.facts[stated:])
            if bounds and not all(bool(g.isfinite().all()) for g in signal.grads.values()):
                reason = (
                    f"{name_of(transform)} lets a member that is not finite pass its clip: call signal.finite() first"
                )
                found.append(Fact("other", reason=reason, raw=True))
        return signal

    for value in (math.nan, math.inf):
        examples, sent = (_large(probe, n, copies) for n in (probe.federation.batch * copies, 1))
        for signal in (examples, sent):
            next(iter(signal.grads.values()))[:, 0] = value
        through("batch", through("example", examples).mean())
        through("server", _repeated(through("client", sent), clock.cohort))
    return tuple(dict.fromkeys(found))


def _differs_in_small(defense: Defense, probe: FactProbe, first: Facts) -> bool:
    try:
        return facts_at(defense, _small(probe), defense.clock(probe.federation, 0)) != first
    except (InputError, RuntimeError, ValueError, IndexError):
        return True


def _counted(seen: list[Facts], weight: int) -> list[tuple[Facts, int]]:
    """Return each run of equal facts once, with its number of local iterations; each element of `seen` counts `weight` times."""
    return [(facts, weight * len(list(same))) for facts, same in itertools.groupby(seen)]


def _joined(found: list[Phase]) -> tuple[Phase, ...]:
    """Merge neighbouring rounds that consist of one equal phase each."""
    joined: list[Phase] = []
    for phase in found:
        if (
            joined
            and phase.ends
            and joined[-1].ends
            and dataclasses.replace(phase, rounds=joined[-1].rounds) == joined[-1]
        ):
            phase = dataclasses.replace(phase, rounds=phase.rounds + joined.pop().rounds)  # noqa: PLW2901
        joined.append(phase)
    return tuple(joined)


def facts_at(defense: Defense, probe: FactProbe, clock: Clock) -> Facts:
    """Return the facts of each station at one moment.

    The transforms run without generators, since a transform states its noise without drawing it.

    Raises:
        InputError: If a transform cannot run at its station, or if its noise is too large for single precision.
    """

    return _run(defense, probe, clock)[0]


def _run(defense: Defense, probe: FactProbe, clock: Clock) -> tuple[Facts, Parameters]:
    """Return the facts of one moment, and the memory after it."""

    def through(name: str, signal: Signal) -> Signal:
        after = signal
        try:
            for transform in getattr(defense.stations, name):
                after = _with_own_noise(transform, after, apply((transform,), after, clock, None), clock)
        except InputError as error:
            raise InputError(f"defense: at the {name} station, {error}") from None
        found[name] = after.facts[len(signal.facts) :]
        loudest = max((fact.std for fact in found[name]), default=0.0)
        if not loudest <= LOUDEST:
            raise InputError(
                f"defense: at the {name} station, its noise has a standard deviation of {loudest:g}, expected at most"
                f" {LOUDEST:g}, as single precision holds"
            )
        return after

    f = probe.federation
    found: Facts = {}
    copies = copies_of(defense.inputs)
    inside = through("batch", through("example", _large(probe, f.batch * copies, copies)).mean())
    sent = dataclasses.replace(_large(probe, 1, copies), memory=inside.memory)
    after = through("server", _repeated(through("client", sent), clock.cohort))
    return found, {n: m[0, 0] for n, m in after.mean().memory.items()}


def _with_own_noise(transform: Transform, before: Signal, after: Signal, clock: Clock) -> Signal:
    """Return `after`, with a fact against the epsilon if the transform draws random numbers and states no fact about them."""
    stated = after.facts[len(before.facts) :]
    if any(fact.kind != "other" or SILENT not in fact.reason for fact in stated):
        return after
    # Gradients of ones: small noise would vanish in the rounding of large gradients.
    ones = dataclasses.replace(before, grads={name: torch.ones_like(grad) for name, grad in before.grads.items()})
    rngs = generators(0, "own noise", [(lane,) for lane in range(before.lanes)])
    plain, drawn = (transform(ones, clock, drawing).grads for drawing in (None, rngs))
    if all(torch.equal(drawn[name], grad) for name, grad in plain.items()):
        return after
    doubt = Fact("other", reason=f"{OWN_NOISE}: {type(transform).__name__} states no `noise` fact")
    return dataclasses.replace(after, facts=(*before.facts, doubt))


def doubts_of_inputs(defense: Defense, probe: FactProbe) -> tuple[Fact, ...]:
    """Return a fact against the epsilon of one example if the changes of inputs put it into several members of a batch.

    A clip then bounds one member, not what one example changes. For a whole client, the clip of its update bounds all of it.
    """
    if not defense.inputs or defense.unit == "client":
        return ()
    for augmentation in defense.inputs:
        alone = bool(getattr(augmentation, "by_example", False)) and _changes_one(augmentation, probe)
        if not alone:
            name = recipe_name(type(augmentation)) or type(augmentation).__name__
            reason = f"{name} puts one example into several members of a batch, and a clip bounds each member alone"
            return (Fact("other", reason=reason, raw=True),)
    return ()


def _changes_one(augmentation: Augmentation, probe: FactProbe) -> bool:
    """Return whether another first example, or none, changes the first member of an augmented batch alone, in several draws."""
    rng = torch.Generator().manual_seed(0)
    inputs = torch.rand(1, 3, *probe.shape, generator=rng)
    targets = torch.softmax(torch.randn(1, 3, probe.classes, generator=rng), 2)
    weights, clock = torch.ones(1, 3), probe.federation.clock(0)
    other = Batch(torch.cat([1 - inputs[:, :1], inputs[:, 1:]], 1), targets.roll(1, 2), weights)
    other = dataclasses.replace(other, targets=torch.cat([other.targets[:, :1], targets[:, 1:]], 1))
    for seed in range(DRAWS):
        one, two = (
            applied((augmentation,), batch, clock, generators(seed, "changes one", [(0,)]))
            for batch in (Batch(inputs, targets, weights), other)
        )
        same = [torch.equal(getattr(one, name)[:, 1:], getattr(two, name)[:, 1:]) for name in ("inputs", "targets")]
        if one.weights.shape != weights.shape or not torch.equal(one.weights, weights) or not all(same):
            return False
    return True


def _of_statistics(probe: FactProbe) -> tuple[Fact, ...]:
    """Return a fact against the epsilon if clients send running statistics of batch normalisation: no station protects them."""
    if not mixes_examples(probe.network.model):
        return ()
    reason = (
        "the running statistics of batch normalisation go to the server with the update, clipped and noised by nothing"
    )
    return (Fact("other", reason=reason, raw=True),)


def _sent_of_examples(defense: Defense, probe: FactProbe, clock: Clock) -> bool:
    """Return whether something is remembered of examples after the last local iteration, which goes to the server."""
    of_examples = dataclasses.replace(defense, client=(), server=())
    begun = _run(of_examples, probe, clock)[1]
    later = dataclasses.replace(probe, network=dataclasses.replace(probe.network, memory=begun))
    return bool(begun and _run(of_examples, later, clock.at_the_end())[1])


def _of_memory(defense: Defense, probe: FactProbe, facts: Facts, memory: Parameters) -> tuple[Fact, ...]:
    """Return a fact against the epsilon if the ratio of noise to bound depends on the memory, which cannot be predicted.

    Args:
        facts: Facts of the first moment.
        memory: Memory after the first moment.
    """
    memory = sent_memory(memory)  # What the server keeps to itself reaches no client.
    if not memory:
        return ()
    clock = defense.clock(probe.federation, 0)
    if defense.unit == "client" and _sent_of_examples(defense, probe, clock):
        return (
            Fact(
                "other", reason="what is remembered of single examples passes the noise on a whole client by", raw=True
            ),
        )
    later = dataclasses.replace(probe, network=dataclasses.replace(probe.network, memory=memory))
    moved = any(
        not math.isclose(a, b, rel_tol=1e-3)
        for a, b in zip(_ratios(facts), _ratios(_run(defense, later, clock)[0]), strict=True)
    )
    return (Fact("other", reason="the noise over the bound moves with what the defense remembers"),) if moved else ()


def _ratios(facts: Facts) -> list[float]:
    """Return the standard deviation of each noise divided by the bound of the clip before it."""
    found, bound = list[float](), math.inf
    for done in facts.values():
        for fact in done:
            bound = fact.norm if fact.kind == "clip" else bound
            if fact.kind == "noise":
                found.append(fact.std / bound)
    return found


def _large(probe: FactProbe, members: int, copies: int = 1) -> Signal:
    grads = {n: p.new_full((1, members, *p.shape), LARGE) for n, p in probe.network.parameters.items()}
    device, batch = next(iter(grads.values())).device, probe.federation.batch * copies
    reads_tokens = any(isinstance(module, LanguageModel) for module in probe.network.model.modules())
    inputs = torch.full((1, batch, *probe.shape), 0.5, device=device)
    inputs = inputs.long() if reads_tokens else inputs
    targets = torch.full((1, batch, probe.classes), 1 / probe.classes, device=device)
    memory = {n: m[None, None] for n, m in probe.network.memory.items()}
    return Signal(grads, memory=memory, local=Local(probe.network, inputs, targets))


def _repeated(update: Signal, cohort: int) -> Signal:
    """Repeat one client's update for a cohort, with one element of each tensor: no transform of a server reads shapes."""
    lanes = torch.zeros(cohort, dtype=torch.int64)
    small = {
        n: g.reshape(*g.shape[:2], -1)[lanes, :, :1].reshape(cohort, 1, *[1] * (g.dim() - 2))
        for n, g in update.grads.items()
    }
    memory = {n: m[lanes] for n, m in update.memory.items()}
    scale = None if update.sensitivity is None else update.sensitivity[lanes]
    return dataclasses.replace(update, grads=small, memory=memory, sensitivity=scale, zeroed={}).gathered(cohort)
