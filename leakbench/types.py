"""The few values that travel between the parts of a federation: the network that is sent, the signals that come back.

Letters: K lanes of clients, B examples of a batch, L local iterations, `*s` the shape of one input, `*p` the shape of one
parameter.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor, nn

__all__ = [
    "Clock",
    "Fact",
    "Generators",
    "Local",
    "Network",
    "Parameters",
    "Sampling",
    "ShowsDraws",
    "Signal",
    "joined",
]

Parameters: TypeAlias = dict[str, Tensor]
"""{parameter name: tensor}, in the order of the model."""

Generators: TypeAlias = tuple[torch.Generator, ...]
"""One generator a lane, so that what a lane draws does not depend on which lanes stand beside it."""


@dataclass(frozen=True)
class Clock:
    """Where in the training a transform acts, and what a server tells everybody about the federation.

    Args:
        round: 0-based round.
        local_iteration: 0-based, within the round.
        rounds: How many there are.
        local_iterations: How many there are.
        cohort: K_t, how many clients are expected in a round, which one that adds its share of a noise has to know.
        clients: N.
        examples_per_client: |D_i|.
        client_optimizer: How clients step in their local iterations, `sgd` or `adam`, see `leakbench.federated.optimizer`.
    """

    round: int
    local_iteration: int
    rounds: int
    local_iterations: int
    cohort: int = 1
    clients: int = 1
    examples_per_client: int = 1
    client_optimizer: str = "sgd"

    def at_the_end(self) -> Clock:
        """Return the moment of a round's last local iteration, which the client and the server station read."""
        return dataclasses.replace(self, local_iteration=self.local_iterations - 1)


@dataclass(frozen=True)
class Fact:
    """One thing that a transform did to a signal, as the privacy ledger needs it.

    Args:
        kind: `clip` | `scale` | `noise` | `uncalibrated_noise` | `other`.
        norm: For `clip`: the L2 bound that one whole member now has, over all parameters together (a layer-wise clip at C of M
            tensors gives sqrt(M) * C); infinite where there is no bound.
        std: For `noise`: standard deviation of the noise on the *sum* over all that is merged at this station; for noise drawn
            for each member, of the noise on one member.
        each: For `noise`: whether every member drew its own noise (else one noise for the sum).
        reason: Why this breaks or weakens a guarantee, one sentence; empty where it does not. Of `noise`: what else the reader of
            its epsilon should know.
        rescales: Of a `clip`: whether its norm holds by itself, in coordinates of its own, and not beside that of a clip before
            it.
        raw: Whether private data decide here without any noise before it, so that no earlier noise makes up for it.
        only: Of `noise`: whether it guards a release of its own (a count, a quantile), to which no other noise adds.
    """

    kind: Literal["clip", "scale", "noise", "uncalibrated_noise", "other"]
    norm: float = float("inf")
    std: float = 0.0
    each: bool = False
    reason: str = ""
    rescales: bool = False
    raw: bool = False
    only: bool = False


@runtime_checkable
class Sampling(Protocol):
    """What a network has that draws random numbers in training, beside the plain `forward(inputs)`, which draws none.

    Args:
        draws: k, how many standard normal numbers one example takes. `forward(inputs, draws)` with draws (n, k) returns (logits
            (n, classes), penalty (n,)); each example's penalty is added to its loss.
    """

    draws: int


@runtime_checkable
class ShowsDraws(Sampling, Protocol):
    """A sampling network whose gradient of one example tells what was drawn for it."""

    def drawn_for(self, parameters: Parameters, gradient: Parameters) -> Tensor:
        """Return the draws (k,) behind one example's gradient {p: (*p)} at these parameters."""


@dataclass(frozen=True)
class Network:
    """What a server sends: a model, the parameters it is run with, and what the defense remembers from the rounds before.

    Args:
        parameters: One set {p: (*p)} if `shared`, else one a lane {p: (K, *p)}.
        memory: {name: (*m)}, see `Signal.memory`; there also are the running statistics of batch normalisation, under their names
            in the model.
        own: {p: (K, *p)}, parameters of which a lying server sent each client of a cohort another value; {} where all got the
            same.
        engine: How its gradients are computed, see `leakbench.engine`; `reference` for `torch.func`'s.
    """

    model: nn.Module
    parameters: Parameters
    shared: bool = True
    memory: Parameters = field(default_factory=dict)
    own: Parameters = field(default_factory=dict)
    engine: str = "fast"

    def of_client(self, client: int) -> Network:
        """Return the network that one client of a cohort got."""
        own = {name: values[client] for name, values in self.own.items()}
        return dataclasses.replace(self, parameters={**self.parameters, **own}, own={})

    def moved(self, direction: Parameters, length: float) -> Network:
        """Return the network after a step of -length along {p: (K, *p)}, a set of parameters a lane."""
        stepped = {n: torch.sub(self.parameters[n], g, alpha=length) for n, g in direction.items()}
        return dataclasses.replace(self, parameters=stepped, shared=False)

    @property
    def statistics(self) -> Parameters:
        """{name: (*b)}, the running statistics of batch normalisation as sent, the model's own before anybody trained; else {}."""
        return {n: self.memory.get(n, b) for n, b in self.model.named_buffers()}

    @property
    def draws(self) -> int:
        """How many standard normal numbers an example takes in training, see `Sampling`; 0 where the model draws none."""
        return int(getattr(self.model, "draws", 0))

    @property
    def axis(self) -> int | None:
        """The parameters' lane axis, as `torch.func.vmap` takes it."""
        return None if self.shared else 0


@dataclass(frozen=True)
class Local:
    """What a client has at hand beside a signal: the network that the signal belongs to and the examples behind it.

    Args:
        network: At the `example` and `batch` stations as it is in that local iteration, at `client` as the server sent it.
        inputs: (lanes, B, *s) of one batch, at `client` (lanes, L * B, *s).
        targets: The same with (classes).
        weights: The same, of which 0 marks padding; None where there is none.
    """

    network: Network
    inputs: Tensor
    targets: Tensor
    weights: Tensor | None = None


@dataclass(frozen=True)
class Signal:
    """Gradients or updates on their way through the four stations of a defense.

    Args:
        grads: {parameter: (lanes, members, *p)}; members are what the next averaging merges.
        averaged: How many items each member is already the mean of (1 for one example's gradient or one client's update).
        sensitivity: (lanes,) the scale that calibrated noise multiplies; None until a clip or a sensitivity rule sets it.
        facts: What has been done so far, oldest first.
        memory: {name: (lanes, holders, *m)}, what a transform leaves for its next use: from one local iteration to the next, then
            to the server (there the holders are the K clients), and as their mean to every client of the next round. The running
            statistics of batch normalisation travel the same way.
        local: What a client has beside the signal; None at the server.
    """

    grads: Parameters
    averaged: int = 1
    sensitivity: Tensor | None = None
    facts: tuple[Fact, ...] = ()
    memory: Parameters = field(default_factory=dict)
    local: Local | None = None

    @property
    def lanes(self) -> int:
        """Number of independent problems side by side."""
        return next(iter(self.grads.values())).shape[0]

    @property
    def members(self) -> int:
        """Number of items that the next averaging merges."""
        return next(iter(self.grads.values())).shape[1]

    def replace(self, grads: Parameters, sensitivity: Tensor | None, fact: Fact) -> Signal:
        """Return the signal with new gradients and sensitivity and one more fact."""
        return dataclasses.replace(self, grads=grads, sensitivity=sensitivity, facts=(*self.facts, fact))

    def remembering(self, name: str, value: Tensor) -> Signal:
        """Return the signal with `value` (lanes, holders, *m) left under `name` for the next use."""
        return dataclasses.replace(self, memory={**self.memory, name: value})

    def gathered(self, cohort: int) -> Signal:
        """Make every `cohort` lanes of one member the members of one lane; the largest sensitivity among them stays."""
        grads = {name: g.reshape(-1, cohort, *g.shape[2:]) for name, g in self.grads.items()}
        memory = {name: m.reshape(-1, cohort, *m.shape[2:]) for name, m in self.memory.items()}
        scale = None if self.sensitivity is None else self.sensitivity.reshape(-1, cohort).amax(1)
        return dataclasses.replace(self, grads=grads, sensitivity=scale, memory=memory, local=None)

    def mean(self, members: int | None = None) -> Signal:
        """Merge the members: their sum over `members` (default: how many there are), as a signal of one member.

        A fixed `members` is the expected size of a Poisson-sampled batch or cohort, so that the divisor is no secret. What several
        holders remember becomes their mean.
        """
        n = self.members if members is None else members
        merged = {name: g.sum(1, keepdim=True) / n for name, g in self.grads.items()}
        memory = {name: m.mean(1, keepdim=True) for name, m in self.memory.items()}
        return dataclasses.replace(self, grads=merged, averaged=self.averaged * n, memory=memory)


def joined(signals: list[Signal]) -> Signal:
    """Put the lanes of several signals, which went through the same stations, side by side."""
    first = signals[0]
    grads = {name: torch.cat([s.grads[name] for s in signals]) for name in first.grads}
    memory = {name: torch.cat([s.memory[name] for s in signals]) for name in first.memory}
    scales = [s.sensitivity for s in signals if s.sensitivity is not None]
    scale = torch.cat(scales) if scales else None
    return dataclasses.replace(first, grads=grads, sensitivity=scale, memory=memory, local=None)
