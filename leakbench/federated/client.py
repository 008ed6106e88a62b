"""One round of a client: L local iterations, each through the `example` and `batch` stations of the defense.

Clients are lanes. An attacker unrolls and differentiates the same functions (`leakbench.federated.leakage`).

A model in train mode normalises each client's batch by the batch's own statistics. Every local iteration updates the running
statistics. The client sends them to the server with its update, and the server averages the means and the variances over the
clients, as implementations of FedAvg do. A model in eval mode uses the statistics that the server sent and does not change them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from leakbench.core.errors import InputError
from leakbench.core.rng import drawn_on
from leakbench.core.task import is_classification, task_of
from leakbench.core.types import Clock, Generators, Local, Network, Parameters, Signal, added_counts
from leakbench.defense.augmentation import Augmentation, Batch, applied
from leakbench.defense.transform import RunsNetwork, Stations, Transform, apply
from leakbench.engine.chain import Chain, chain_of
from leakbench.engine.once import gradients
from leakbench.engine.saved import recomputes
from leakbench.federated.by_member import summed_by_member
from leakbench.federated.canaries import CanaryExamples
from leakbench.federated.merged import merged_signal, merges
from leakbench.federated.optimizer import optimizer_of, regularised
from leakbench.models.batch_norm import mixes_examples

__all__ = [
    "Examples",
    "LocalIteration",
    "augmented",
    "chain_in",
    "client_update",
    "example_signal",
    "local_iterations",
    "mean_update",
    "runs_apart",
]

NO_EXAMPLE = "in train mode batch normalisation takes its statistics from the whole batch, so that no single example has a gradient"


@dataclass(frozen=True)
class Examples:
    """The training examples of K clients in one round.

    Args:
        inputs: (K, L, B, *s).
        targets: (K, L, B, classes).
        weights: (K, L, B); 0 marks padding.
        batch: B, the divisor of sums over a batch; the expected size of a Poisson batch.
        draws: (K, L, B, k), the random numbers of a sampling network (`leakbench.federated.sampling`); None for zeros.
        padded: Whether some weights may be 0. If false, the weights are not read, which saves a wait for the GPU.
        alone: Whether a single example's signal after the `example` station is read. If false, the station's noise may be drawn
            once for all examples (`leakbench.federated.merged`), and on a GPU once for all clients.
        canaries: Canary examples in the batches; None for none.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    batch: int
    draws: Tensor | None = None
    padded: bool = True
    alone: bool = True
    canaries: CanaryExamples | None = None

    def at(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs (K, B', *s), targets (K, B', classes) and weights (K, B') of one local iteration.

        B' is the size of the largest batch among the lanes in this iteration: Poisson batches are padded to the largest of all.
        """
        largest = self._largest[step]
        return self.inputs[:, step, :largest], self.targets[:, step, :largest], self.weights[:, step, :largest]

    @cached_property
    def _largest(self) -> list[int]:
        """The size of the largest batch of each local iteration, at least 1."""
        if not self.padded:
            return [self.weights.shape[2]] * self.weights.shape[1]
        places = torch.arange(1, self.weights.shape[2] + 1, device=self.weights.device)
        sizes: list[int] = ((self.weights != 0) * places).amax((0, 2)).clamp_min(1).tolist()
        return sizes

    def without_padding(self) -> Examples:
        """Return the examples with zeros instead of padding: an infinite gradient times a weight of zero is NaN."""
        if not self.padded or bool((self.weights != 0).all()):
            return self
        inputs, targets = (
            t.masked_fill((self.weights == 0).reshape(*self.weights.shape, *[1] * (t.dim() - 3)), 0)
            for t in (self.inputs, self.targets)
        )
        return replace(self, inputs=inputs, targets=targets)

    def of_lanes(self, lanes: slice) -> Examples:
        """Return the examples of some clients."""
        draws = None if self.draws is None else self.draws[lanes]
        canaries = None if self.canaries is None else self.canaries.of_lanes(lanes)
        inputs, targets, weights = self.inputs[lanes], self.targets[lanes], self.weights[lanes]
        return replace(self, inputs=inputs, targets=targets, weights=weights, draws=draws, canaries=canaries)

    def draws_at(self, step: int, count: int) -> Tensor:
        """Return the draws (K, B, count) of one local iteration."""
        if self.draws is None:
            return self.weights.new_zeros(*self.at(step)[2].shape, count)
        return self.draws[:, step, : self._largest[step]]


@dataclass(frozen=True)
class LocalIteration:
    """One local iteration of K clients.

    Args:
        examples: The signal after the `example` station, with B members; with one member, the batch's mean, if nothing reads
            single examples.
        batch: The signal after the `batch` station, with the memory for the next local iteration.
        direction: {p: (K, 1, *p)}; the client's step is minus the learning rate times this. With plain SGD it is the batch's
            gradient.
    """

    examples: Signal
    batch: Signal
    direction: Parameters


def _loss(
    model: nn.Module, state: Parameters, inputs: Tensor, targets: Tensor, weights: Tensor, draws: Tensor
) -> Tensor:
    """Return the weighted loss, and update the running statistics in `state`, which holds them and the parameters."""
    if draws.shape[-1] == 0:
        with sdpa_kernel(SDPBackend.MATH):  # Fused attention cannot be differentiated twice.
            outputs = functional_call(model, state, (inputs,))
        return (task_of(model).losses(outputs, inputs, targets) * weights).sum()
    logits, penalty = functional_call(model, state, (inputs, draws))
    loss: Tensor = ((task_of(model).losses(logits, inputs, targets) + penalty) * weights).sum()
    return loss


def example_signal(network: Network, examples: Examples, step: int) -> Signal:
    """Return the gradient of every example's loss, {p: (K, B, *p)}; zero for a weight of zero.

    The loss is that of the network's task (`leakbench.core.task`), for classes the soft cross-entropy, plus the penalty of a
    network that has one (`leakbench.core.types.Sampling`).

    Raises:
        InputError: For a network that normalises by the batch, where a single example has no gradient.
    """
    if mixes_examples(network.model):
        raise InputError(f"victim-mode: {NO_EXAMPLE}; choose eval")
    chain = chain_in(network, examples.inputs.shape[3:])
    if chain is not None:
        each = gradients(chain, network.parameters, network.shared, *examples.at(step), merged=False)
        return Signal(each, kind="example")

    def one(p: Parameters, x: Tensor, y: Tensor, w: Tensor, d: Tensor) -> Tensor:
        return _loss(network.model, {**p, **network.statistics}, x[None], y[None], w[None], d[None])

    over_batch = vmap(grad(one), in_dims=(None, 0, 0, 0, 0))
    draws = examples.draws_at(step, network.draws)
    each = vmap(over_batch, in_dims=(network.axis, 0, 0, 0, 0))(network.parameters, *examples.at(step), draws)
    return Signal(each, kind="example")


def runs_apart(network: Network, stations: Stations, shape: tuple[int, ...]) -> bool:
    """Return whether several threads can train clients at once.

    This requires the CPU, and that the network's own code does not run: it would swap the parameters of the shared model meanwhile.
    A part from outside leakbench may run this code.
    """
    on_cpu = all(p.device.type == "cpu" for p in network.parameters.values())
    transforms = (*stations.example, *stations.batch, *stations.client, *stations.server)
    alone = not any(isinstance(t, RunsNetwork) for t in transforms)
    return on_cpu and alone and _ours((*transforms, *stations.inputs)) and chain_in(network, shape) is not None


def _ours(transforms: Iterable[Transform | Augmentation]) -> bool:
    """Return whether no transform or augmentation is from outside leakbench."""
    return all(type(t).__module__.startswith("leakbench.") for t in transforms)


def chain_in(network: Network, shape: tuple[int, ...]) -> Chain | None:
    """Return the network's chain of layers for examples of that shape; None if `torch.func` has to differentiate it."""
    if network.engine == "reference" or network.draws or network.statistics or not is_classification(network.model):
        return None
    chain = chain_of(network.model)
    return chain if chain is not None and chain.takes(shape) else None


def _mean_signal(network: Network, chain: Chain | None, examples: Examples, step: int, memory: Parameters) -> Signal:
    if chain is not None:
        inputs, targets, weights = examples.at(step)
        weights = weights / examples.batch
        merged = gradients(chain, network.parameters, network.shared, inputs, targets, weights, merged=True)
        return Signal(merged, averaged=examples.batch, memory=memory)

    def mean(p: Parameters, s: Parameters, x: Tensor, y: Tensor, w: Tensor, d: Tensor) -> tuple[Tensor, Parameters]:
        state = {**p, **s}
        loss = _loss(network.model, state, x, y, w / examples.batch, d)
        return loss, {n: state[n] for n in s}

    draws, sent = examples.draws_at(step, network.draws), {n: memory[n][:, 0] for n in network.statistics}
    if _by_member(network, examples):

        def one(x: Tensor, y: Tensor, w: Tensor) -> Parameters:
            lanes = vmap(grad(mean, has_aux=True), in_dims=(network.axis, 0, 0, 0, 0, 0))
            return lanes(network.parameters, sent, x, y, w, draws[:, :1])[0]  # type: ignore[no-any-return]

        summed = summed_by_member(one, *examples.at(step))
        return Signal({n: g.unsqueeze(1) for n, g in summed.items()}, averaged=examples.batch, memory=memory)
    by_lane = vmap(grad(mean, has_aux=True), in_dims=(network.axis, 0, 0, 0, 0, 0))
    grads, moved = by_lane(network.parameters, sent, *examples.at(step), draws)
    return Signal(
        {name: g.unsqueeze(1) for name, g in grads.items()},
        averaged=examples.batch,
        memory={**memory, **{name: s.unsqueeze(1) for name, s in moved.items()}},
    )


def _by_member(network: Network, examples: Examples) -> bool:
    """Return whether the gradient of a batch is computed one example at a time: its activations are large and do not mix.

    Weights that depend on the guess, after a first local iteration, need the derivative of the whole batch.
    """
    large = recomputes(network, tuple(examples.inputs.shape[3:]), examples.inputs.shape[2])
    moved = any(p.requires_grad for p in network.parameters.values())
    return large and not (moved or network.draws or mixes_examples(network.model))


def _iteration(
    network: Network,
    chain: Chain | None,
    examples: Examples,
    step: int,
    memory: Parameters,
    stations: Stations,
    clock: Clock,
    rngs: Generators | None,
) -> tuple[Signal, Signal]:
    inputs, targets, weights = examples.at(step)
    local = Local(network, inputs, targets, weights)
    canaries = examples.canaries
    if chain is not None and not examples.alone and canaries is None and merges(stations.example):
        each = mean = merged_signal(chain, stations.example, local, examples.batch, memory, clock, rngs)
    elif stations.example:
        plain = replace(example_signal(network, examples, step), memory=memory, local=local)
        if canaries is not None:
            plain, weights = canaries.joined_to(plain, weights, step)
        each = apply(stations.example, plain, clock, rngs)
        # The station may have added noise to padding, which must not enter the mean.
        weighted = {n: g * _like(weights, g) for n, g in each.grads.items()}
        mean = replace(each, grads=weighted).mean(examples.batch)
    else:
        each = mean = replace(_mean_signal(network, chain, examples, step, memory), local=local)
    return each, apply(stations.batch, replace(mean, kind="batch"), clock, rngs)


def _like(weights: Tensor, grad: Tensor) -> Tensor:
    return weights.reshape(*weights.shape, *[1] * (grad.dim() - 2))


def augmented(
    examples: Examples, stations: Stations, clock: Clock, rngs: Generators | None
) -> tuple[Examples, Stations]:
    """Return the examples after the defense's changes of inputs, and the stations without these, so that they run once.

    Every local iteration has its own draws. With n members for each example, the divisor of sums is n B.

    Raises:
        InputError: For inputs that the changes do not accept, and if examples are copied after a network drew its numbers.
    """
    if not stations.inputs:
        return examples, stations
    steps = examples.inputs.shape[1]
    batches = []
    for step in range(steps):
        now = replace(clock, local_iteration=step, local_iterations=steps)
        plain = Batch(examples.inputs[:, step], examples.targets[:, step], examples.weights[:, step])
        batches.append(applied(stations.inputs, plain, now, rngs))
    inputs, targets, weights = (
        torch.stack([getattr(batch, name) for batch in batches], 1) for name in ("inputs", "targets", "weights")
    )
    copies = weights.shape[2] // examples.weights.shape[2]
    if copies > 1 and examples.draws is not None:
        raise InputError("inputs: examples are copied, and the network draws its numbers for each example once")
    changed = replace(examples, inputs=inputs, targets=targets, weights=weights, batch=copies * examples.batch)
    return changed, replace(stations, inputs=())


def local_iterations(
    network: Network,
    examples: Examples,
    learning_rate: float,
    stations: Stations,
    clock: Clock,
    rngs: Generators | None,
) -> Iterator[LocalIteration]:
    """Yield each of L local iterations (Wei et al., TPDS 2023, Algorithm 1, lines 6 to 20) with the clock's optimizer.

    Weight decay and the proximal term of FedProx enter after the `batch` station, so no clip counts them.

    The result is differentiable with respect to the examples' inputs and targets.
    """
    examples, stations = augmented(examples, stations, clock, rngs)
    examples = examples.without_padding()
    optimizer, chain = optimizer_of(clock), chain_in(network, examples.inputs.shape[3:])
    if chain is not None:
        network = replace(network, parameters=chain.laid_out(network.parameters))
    start, (clients, steps) = network, examples.inputs.shape[:2]
    if rngs and not examples.alone and _ours((*stations.example, *stations.batch)):
        # Only these stations use it. A part from outside may draw in other ways, on the CPU.
        rngs = drawn_on(rngs, examples.inputs.device)
    sent = {**network.memory, **network.statistics}
    memory = {n: m.expand(clients, 1, *m.shape) for n, m in sent.items()}
    for step in range(steps):
        now = replace(clock, local_iteration=step, local_iterations=steps)
        each, batch = _iteration(network, chain, examples, step, memory, stations, now, rngs)
        direction, optimizer = optimizer(regularised(batch.grads, network, start, clock))
        yield LocalIteration(each, batch, direction)
        memory = batch.memory
        if step + 1 < steps:
            network = network.moved({n: d[:, 0] for n, d in direction.items()}, learning_rate)


def mean_update(
    network: Network,
    examples: Examples,
    learning_rate: float,
    stations: Stations,
    clock: Clock,
    rngs: Generators | None,
) -> Signal:
    """Return the mean direction of a client's steps over the L local iterations, as K lanes of one member.

    The client's update is W_L - W_0 = -learning_rate * L * this. For plain SGD with L = 1 it is the batch's (sanitised) gradient.
    """
    total: Parameters = {}
    memory: Parameters = {}
    zeroed: Parameters = {}
    for iteration in local_iterations(network, examples, learning_rate, stations, clock, rngs):
        step, memory = iteration.direction, iteration.batch.memory
        zeroed = added_counts(zeroed, iteration.batch.zeroed)
        if not total:
            total = {n: g.clone() for n, g in step.items()}  # Cloned, since the loop adds to it in place.
        else:
            for n, g in step.items():
                total[n] += g
    return Signal({n: g / examples.inputs.shape[1] for n, g in total.items()}, memory=memory, zeroed=zeroed)


def client_update(
    network: Network,
    examples: Examples,
    learning_rate: float,
    stations: Stations,
    clock: Clock,
    rngs: Generators | None,
) -> Signal:
    """Return the clients' updates W_L - W_0 after the `client` station, as K lanes of one member."""
    examples, stations = augmented(examples, stations, clock, rngs)
    mean = mean_update(network, examples, learning_rate, stations, clock, rngs)
    length = -learning_rate * examples.inputs.shape[1]
    update = Signal(
        {n: g * length for n, g in mean.grads.items()},
        memory=mean.memory,
        zeroed=mean.zeroed,
        local=Local(network, *(t.flatten(1, 2) for t in (examples.inputs, examples.targets, examples.weights))),
    )
    return apply(stations.client, update, clock.at_the_end(), rngs)
