"""The data that pass between the parts of a federation: the network that the server sends, and the clients' signals.

Letters: K lanes of clients, B examples of a batch, L local iterations, `*s` the shape of one input, `*p` the shape of one
parameter.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from leakbench.core.errors import InputError

__all__ = [
    "AT_SERVER",
    "WRAPPERS",
    "Clock",
    "Fact",
    "Generators",
    "HidesDraws",
    "IntegerNoise",
    "Kind",
    "Local",
    "Network",
    "Parameters",
    "Sampling",
    "ShowsDraws",
    "Signal",
    "added_counts",
    "joined",
    "plain_tensor",
    "sent_memory",
    "without_wrapper",
]

Parameters: TypeAlias = dict[str, Tensor]
"""{parameter name: tensor}, in the order of the model."""

WRAPPERS = ("_module", "module", "_orig_mod")
"""Attributes in which Opacus, parallel wrappers and torch.compile keep the network, and the prefixes of all its names."""

Generators: TypeAlias = tuple[torch.Generator, ...]
"""One generator per lane, so that a lane's random numbers do not depend on the other lanes."""


@dataclass(frozen=True)
class Clock:
    """A moment of the training, and the public numbers of the federation.

    Args:
        round: Index of the round, from 0.
        local_iteration: Index within the round, from 0.
        rounds: Number of rounds.
        local_iterations: Number of local iterations in a round.
        cohort: K_t, the expected number of clients in a round; a client that adds its share of a noise needs it.
        clients: N.
        examples_per_client: |D_i|.
        client_optimizer: Optimizer of the local iterations, `sgd` or `adam`, see `leakbench.federated.optimizer`.
        momentum: Momentum of SGD, in [0, 1).
        weight_decay: Factor of the weights that the client adds to each gradient.
        proximal: mu of FedProx: the client adds mu (w - w_0) to each gradient. 0 for FedAvg.
        in_turn: Whether clients take turns: the next K_t of one list in each round.
        groups: Number of groups of clients that take turns: round t draws from group t modulo this number. 1 without groups.
    """

    round: int
    local_iteration: int
    rounds: int
    local_iterations: int
    cohort: int = 1
    clients: int = 1
    examples_per_client: int = 1
    client_optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float = 0.0
    in_turn: bool = False
    groups: int = 1

    @property
    def separation(self) -> int:
        """Least difference between two rounds with one client: N / K_t, rounded down, if clients take turns, else of groups."""
        return self.clients // self.cohort if self.in_turn else self.groups

    def has_turn(self, place: Tensor) -> Tensor:
        """Return whether a client at a place (...) of the list, from 0, has its turn in this round."""
        return (place - self.round * self.cohort) % self.clients < self.cohort

    def at_the_end(self) -> Clock:
        """Return the moment of the round's last local iteration, for the client and the server station."""
        return dataclasses.replace(self, local_iteration=self.local_iterations - 1)


@dataclass(frozen=True)
class IntegerNoise:
    """Integer noise on updates that are rounded to a grid, in steps of the grid; see `leakbench.privacy.discrete`.

    Args:
        family: Distribution of the noise of one member.
        variance: Its variance in each coordinate; for a discrete Gaussian, its parameter sigma^2.
        l2: Largest L2 norm of a member after rounding.
        l1: Largest L1 norm of a member after rounding.
        dimension: Number of coordinates, with padding.
        step: Distance between points of the grid, in units of the update.

    Raises:
        InputError: For a field outside its range.
    """

    family: Literal["discrete_gaussian", "skellam"]
    variance: float
    l2: float
    l1: float
    dimension: int
    step: float

    def __post_init__(self) -> None:
        if self.family not in ("discrete_gaussian", "skellam"):
            raise InputError(f"family: got {self.family!r}, expected 'discrete_gaussian' or 'skellam'")
        if not self.variance >= 0:
            raise InputError(f"variance: got {self.variance}, expected a number >= 0")
        for name in ("l2", "l1", "step"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name}: got {getattr(self, name)}, expected a number > 0")
        if self.dimension < 1:
            raise InputError(f"dimension: got {self.dimension}, expected a whole number >= 1")


@dataclass(frozen=True)
class Fact:
    """A statement of a transform about its effect on a signal, for the privacy ledger.

    Args:
        kind: `clip` | `scale` | `noise` | `uncalibrated_noise` | `other`.
        norm: For `clip`: the L2 bound of one whole member after it, over all parameters together (a layer-wise clip at C of M
            tensors gives sqrt(M) * C); infinite without a bound.
        std: For `noise`: standard deviation of the noise on the *sum* over all merged members of this station; for noise on each
            member, of the noise on one member.
        each: For `noise`: whether every member has its own noise; else the sum has one noise.
        reason: Why the transform breaks or weakens a guarantee, in one sentence; empty if it does not. For `noise`: a remark about
            the epsilon.
        rescales: For `clip`: whether its norm replaces that of an earlier clip, as in other coordinates; else the smaller one
            counts.
        replaced: For `clip`: whether `norm` bounds the distance between any two results of one member, and not the length of a
            result, as if clients clip their weights and not their updates. Then the epsilon is for replaced data.
        raw: Whether private data decide here without noise, so that earlier noise does not protect them.
        only: For `noise`: whether it protects a separate release (a count, a quantile), so that other noise does not add to it.
        training: For `noise` that is correlated over the rounds: standard deviation of noise that protects one release as much as
            this one protects everything that one unit contributes to the whole training. 0 for other noise.
        participation: For `noise` that is correlated over the rounds: standard deviation of independent noise that protects one
            round of a unit as much as this one does, if rounds of one unit share no noise. 0 for other noise.
        separation: For `noise` that is correlated over the rounds: least difference between two rounds with one unit for which
            `training` or `participation` holds.
        integer: For `noise` with integer values: its distribution; `std` is the same noise in units of the update.
        keeps_noise: For `other`: whether it acts on the sum of the members alone and leaves the noise before it as it is, as a sum
            modulo m does unless it wraps around. It bounds nothing for a noise after it.
    """

    kind: Literal["clip", "scale", "noise", "uncalibrated_noise", "other"]
    norm: float = float("inf")
    std: float = 0.0
    each: bool = False
    reason: str = ""
    rescales: bool = False
    replaced: bool = False
    raw: bool = False
    only: bool = False
    training: float = 0.0
    participation: float = 0.0
    separation: int = 1
    integer: IntegerNoise | None = None
    keeps_noise: bool = False


@runtime_checkable
class Sampling(Protocol):
    """A network that draws random numbers in training, in addition to the plain `forward(inputs)`, which draws none.

    `forward(inputs, draws)` with draws (n, k) returns (logits (n, classes), penalty (n,)). Each example's penalty is added to its
    loss.

    Args:
        draws: k, the number of standard normal numbers per example.
    """

    draws: int


@runtime_checkable
class ShowsDraws(Sampling, Protocol):
    """A sampling network whose gradient of one example shows the random numbers of this example."""

    def drawn_for(self, parameters: Parameters, gradient: Parameters) -> Tensor:
        """Return the random numbers (k,) of one example from its gradient {p: (*p)} at these parameters."""


@runtime_checkable
class HidesDraws(Sampling, Protocol):
    """A sampling network whose random numbers are the key of a client: the same for all its examples in a round.

    Args:
        usual: (k,), random numbers with the mean effect, with which an attacker runs the network if it does not search them.
    """

    usual: Tensor

    def searched_from(self, gradient: Parameters) -> Tensor:
        """Return where a search of the random numbers starts, (k,), given a gradient {p: (*p)}."""


@dataclass(frozen=True)
class Network:
    """The network that a server sends: a model, its parameters, and the memory of the defense.

    Args:
        parameters: {p: (*p)} if `shared`, else one set per lane {p: (K, *p)}.
        memory: {name: (*m)}, see `Signal.memory`, with the running statistics of batch normalisation under their names in the
            model.
        own: {p: (K, *p)}, parameters that a malicious server sent with a different value to each client of a cohort; {} if all
            clients received the same.
        engine: Computation of its gradients: `fast` for `leakbench.engine`, `reference` for `torch.func`.
        correction: {p: (K, *p)}, what each client adds to all its gradients (`leakbench.federated.scaffold`); {} for nothing.
    """

    model: nn.Module
    parameters: Parameters
    shared: bool = True
    memory: Parameters = field(default_factory=dict)
    own: Parameters = field(default_factory=dict)
    engine: str = "fast"
    correction: Parameters = field(default_factory=dict)

    def of_client(self, client: int) -> Network:
        """Return the network that one client of a cohort received."""
        own = {name: values[client] for name, values in self.own.items()}
        return dataclasses.replace(self, parameters={**self.parameters, **own}, own={})

    def moved(self, direction: Parameters, length: float) -> Network:
        """Return the network after a step of -length along {p: (K, *p)}, with one set of parameters per lane."""
        stepped = {n: torch.sub(self.parameters[n], g, alpha=length) for n, g in direction.items()}
        return dataclasses.replace(self, parameters=stepped, shared=False)

    @property
    def statistics(self) -> Parameters:
        """{name: (*b)}, the running statistics of batch normalisation that the server sent, before any training the model's own.

        Buffers that a model does not save, such as the positions of a transformer, are constants.
        """
        buffers = dict(self.model.named_buffers())
        saved = self.model.state_dict() if buffers else {}
        return {n: self.memory.get(n, b) for n, b in buffers.items() if n in saved}

    @property
    def frozen(self) -> Parameters:
        """{p: (*p)}, the model's parameters that are not trained and so are not among `parameters`."""
        return {n: p.detach() for n, p in self.model.named_parameters() if n not in self.parameters}

    @property
    def draws(self) -> int:
        """Number of standard normal numbers per example in training, see `Sampling`; 0 if the model draws none."""
        return int(getattr(self.model, "draws", 0))

    @property
    def axis(self) -> int | None:
        """The parameters' lane axis, as `torch.func.vmap` takes it."""
        return None if self.shared else 0


@dataclass(frozen=True)
class Local:
    """A client's data of a signal: its network and its examples.

    Args:
        network: The network of the local iteration at the `example` and `batch` stations; the network that the server sent at
            `client`.
        inputs: (lanes, B, *s) of one batch; at `client` (lanes, L * B, *s).
        targets: (lanes, B, classes); at `client` (lanes, L * B, classes).
        weights: (lanes, B); at `client` (lanes, L * B). 0 marks padding; None without padding.
    """

    network: Network
    inputs: Tensor
    targets: Tensor
    weights: Tensor | None = None


Kind: TypeAlias = Literal["example", "batch", "update"]
"""What a member of a signal is: an example's gradient, the mean gradient of a batch, or a client's update."""


@dataclass(frozen=True)
class Signal:
    """Gradients or updates on their way through the four stations of a defense.

    Args:
        grads: {parameter: (lanes, members, *p)}; the next averaging merges the members.
        averaged: Number of items that each member is the mean of (1 for one example's gradient or one client's update).
        sensitivity: (lanes,), the scale of calibrated noise; None until a clip or a sensitivity rule sets it.
        facts: Facts of the transforms so far, oldest first.
        memory: {name: (lanes, holders, *m)}, data of a transform for its next use: from one local iteration to the next, then
            to the server (with the K clients as holders), and as their mean to every client of the next round. The running
            statistics of batch normalisation use it too. What is named `server.*` goes from the server's station to that of the
            next round alone; neither a client nor an attacker gets it.
        local: The client's network and examples; None at the server.
        kind: What a member is.
        zeroed: {kind of members: (lanes,)}, how many were not finite and count as zero since (`finite`); a kind without any may be
            missing.
    """

    grads: Parameters
    averaged: int = 1
    sensitivity: Tensor | None = None
    facts: tuple[Fact, ...] = ()
    memory: Parameters = field(default_factory=dict)
    local: Local | None = None
    kind: Kind = "update"
    zeroed: Parameters = field(default_factory=dict)

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

    def finite(self) -> Signal:
        """Return the signal with zeros for each member with a coordinate that is not finite.

        A clip multiplies by a factor, and no factor bounds such a member. Every transform that bounds the members calls this first.
        """
        # A sum that is finite shows that all its terms are, at the price of reading them once.
        if bool(torch.stack([g.detach().flatten(2).sum(2) for g in self.grads.values()]).isfinite().all()):
            return self
        whole = torch.stack([g.detach().flatten(2).isfinite().all(2) for g in self.grads.values()]).all(0)
        return self.without(~whole)

    def without(self, lost: Tensor) -> Signal:
        """Return the signal with zeros for the members where `lost` (lanes, members) is true, and count these."""
        grads = {n: g.masked_fill(lost.reshape(*lost.shape, *[1] * (g.dim() - 2)), 0) for n, g in self.grads.items()}
        weights = None if self.local is None else self.local.weights
        if self.kind == "example" and weights is not None and weights.shape == lost.shape:
            lost = lost & (weights != 0)  # Padding is not an example.
        counted = lost.sum(1) + self.zeroed.get(self.kind, 0)
        return dataclasses.replace(self, grads=grads, zeroed={**self.zeroed, self.kind: counted})

    def remembering(self, name: str, value: Tensor) -> Signal:
        """Return the signal with `value` (lanes, holders, *m) in the memory under `name`."""
        return dataclasses.replace(self, memory={**self.memory, name: value})

    def gathered(self, cohort: int) -> Signal:
        """Turn every `cohort` lanes of one member into the members of one lane, with the largest sensitivity among them."""
        grads = {name: g.reshape(-1, cohort, *g.shape[2:]) for name, g in self.grads.items()}
        memory = {name: m.reshape(-1, cohort, *m.shape[2:]) for name, m in self.memory.items()}
        scale = None if self.sensitivity is None else self.sensitivity.reshape(-1, cohort).amax(1)
        zeroed = {kind: count.reshape(-1, cohort).sum(1) for kind, count in self.zeroed.items()}
        return dataclasses.replace(self, grads=grads, sensitivity=scale, memory=memory, local=None, zeroed=zeroed)

    def mean(self, members: int | None = None) -> Signal:
        """Merge the members into one: their sum divided by `members`. The memory of several holders becomes their mean.

        Args:
            members: The divisor; None for the number of members. For a Poisson-sampled batch or cohort it is the expected size, so
                that the divisor is public.
        """
        n = self.members if members is None else members
        merged = {name: g.sum(1, keepdim=True) / n for name, g in self.grads.items()}
        memory = {name: m.mean(1, keepdim=True) for name, m in self.memory.items()}
        return dataclasses.replace(self, grads=merged, averaged=self.averaged * n, memory=memory)


AT_SERVER = "server."
"""Start of the names of what the server remembers for itself alone (`Signal.memory`)."""


def sent_memory(memory: Parameters) -> Parameters:
    """Return what the server sends to the clients of its memory {name: (*m)}."""
    return {name: m for name, m in memory.items() if not name.startswith(AT_SERVER)}


def joined(signals: list[Signal]) -> Signal:
    """Concatenate the lanes of several signals after the same stations."""
    first = signals[0]
    grads = {name: torch.cat([s.grads[name] for s in signals]) for name in first.grads}
    memory = {name: torch.cat([s.memory[name] for s in signals]) for name in first.memory}
    scales = [s.sensitivity for s in signals if s.sensitivity is not None]
    scale = torch.cat(scales) if scales else None
    return dataclasses.replace(
        first, grads=grads, sensitivity=scale, memory=memory, local=None, zeroed=_counts_of(signals)
    )


def _counts_of(signals: list[Signal]) -> Parameters:
    """Return the counts of members that were not finite, {kind: (lanes of all signals,)}."""
    lanes = next(iter(signals[0].grads.values())).new_zeros
    kinds = dict.fromkeys(kind for s in signals for kind in s.zeroed)
    none = {s.lanes: lanes(s.lanes, dtype=torch.int64) for s in signals}
    return {kind: torch.cat([s.zeroed.get(kind, none[s.lanes]) for s in signals]) for kind in kinds}


def added_counts(one: Parameters, other: Parameters) -> Parameters:
    """Return the sums of two counts of members that were not finite, {kind: (lanes,)}."""
    return {**one, **{kind: count + one.get(kind, 0) for kind, count in other.items()}}


def without_wrapper(name: str) -> str:
    """Return a parameter's name without the prefixes of wrappers."""
    prefix, _, rest = name.partition(".")
    return without_wrapper(rest) if rest and prefix in WRAPPERS else name


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array with positive strides and the byte order of this machine, which torch needs; a copy only of another."""
    return np.require(array, array.dtype.newbyteorder("="), "C")


def plain_tensor(field: str, name: str, array: object) -> Tensor:
    """Return an array of a user as a tensor of real numbers without a graph, on its device; a sparse one gets its zeros.

    Args:
        field: Name of the arrays in errors.
        name: Name of the array in errors.

    Raises:
        InputError: For a value that is not an array of real numbers, and for a tensor without numbers.
    """
    try:
        array = native(array) if isinstance(array, np.ndarray) else array
        # An array that cannot be written is copied without a warning.
        tensor = array.detach() if isinstance(array, Tensor) else torch.tensor(array)
        tensor = tensor.dequantize() if tensor.is_quantized else tensor
        tensor = tensor if tensor.is_meta or tensor.layout is torch.strided else tensor.to_dense()
        tensor = tensor.clone() if tensor.is_inference() else tensor  # Autograd takes no tensor of an inference mode.
    except Exception:  # Another library's array may fail in any way.
        kind = type(array).__name__
        raise InputError(f"{field}: {name!r}: got a value of type {kind}, expected an array of numbers") from None
    if tensor.is_meta:
        raise InputError(f"{field}: {name!r} is on the meta device and has no numbers, expected a tensor with numbers")
    if tensor.is_complex():
        raise InputError(f"{field}: {name!r} has complex numbers, expected real ones")
    return tensor
