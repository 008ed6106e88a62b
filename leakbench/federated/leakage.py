"""The leakage points, and the view that an attacker has at one of them.

    examples --[example]--tap 2--> mean over B --[batch]--> local steps x L --> update --[client]--tap 1--> wire
         wire --> server --[server]--tap 0--> sum / K_t --> new global model --tap G (every participant sees it)

`leak` is both what happens to the victims and, run on a guess, what the attacker compares with.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from leakbench.data.columns import Columns
from leakbench.defense.guess import on_a_guess
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.transform import Stations, apply
from leakbench.errors import InputError
from leakbench.federated.client import Examples, client_update, local_iterations, mean_update
from leakbench.federated.sampling import drawn
from leakbench.fitted import Fits, fitted_anew
from leakbench.types import Clock, Generators, Network, Parameters, ShowsDraws, Signal

__all__ = ["TAPS", "Knowledge", "Public", "View", "leak", "logits_of", "rounded"]

TAPS = ("type-2", "type-1", "type-0", "global")


def leak(
    tap: str,
    network: Network,
    inputs: Tensor,
    targets: Tensor,
    learning_rate: float,
    stations: Stations,
    clock: Clock,
    rngs: Generators | None,
    draws: Generators | Tensor | None = None,
) -> Parameters:
    """Return what an attacker at `tap` reads of each of V victims, {p: (V, *p)}, of clients with SGD in units of a gradient.

    inputs (V, K, L, B, *s) and targets (V, K, L, B, classes): the examples of K clients (1 but where the update is a sum: at
    `global`, and at `type-0` under secure aggregation), in the order in which L local iterations use them. The victim of
    `type-2` is the first example; its gradient is read after the `example` station. `type-1` and `type-0` are the client's
    update after the `client` and after the `server` station, where noise that is declared on the sum is shown on the one update
    as the sum carries it; `global` is the mean update, and so is `type-0` of several clients. Updates are divided by
    -learning_rate * L, which every participant knows: at L = 1 an update is then the batch's gradient itself, if clients step by
    SGD. Of clients with Adam it is the mean of L directions, which have no unit: at L = 1 g / (|g| + 1e-8), nearly the signs.
    rngs: for the stations' noise, draws: for a network that samples, one generator for each of the V * K clients, or the numbers
    that it drew (V * K, L, B, k).
    """
    stations = stations.before(tap)
    victims, cohort, steps, batch = inputs.shape[:4]
    weights = inputs.new_ones(victims * cohort, steps, batch)
    numbers = draws if isinstance(draws, Tensor) else drawn(network, weights, draws)
    examples = Examples(inputs.flatten(0, 1), targets.flatten(0, 1), weights, batch, numbers)
    own, network = network, network.of_client(0)
    if tap == "type-2":
        if not stations.example:  # No station mixes the batch, so the victim's gradient needs no fellows.
            x, y, w = (t[:, :1, :1] for t in (examples.inputs, examples.targets, examples.weights))
            examples = Examples(x, y, w, 1, None if numbers is None else numbers[:, :1, :1])
        first = next(local_iterations(network, examples, learning_rate, stations, clock, rngs))
        return {n: g[:, 0] for n, g in first.examples.grads.items()}
    if not stations.client and not stations.server and cohort == 1:
        # No station acts on the update, so it is not scaled up and down again: the leak keeps the direction's bits, which are
        # those of the gradient if clients step by SGD.
        mean = mean_update(network, examples, learning_rate, stations, clock, rngs)
        return {n: g[:, 0] for n, g in mean.grads.items()}
    if own.own and cohort > 1:
        signal = _one_by_one(own, examples, cohort, learning_rate, stations, clock, rngs)
    else:
        signal = client_update(network, examples, learning_rate, stations, clock, rngs).gathered(cohort)
    signal = apply(stations.server, signal, clock.at_the_end(), None if rngs is None else rngs[::cohort])
    return {n: g.mean(1) / (-learning_rate * steps) for n, g in signal.grads.items()}


def _one_by_one(
    network: Network,
    examples: Examples,
    cohort: int,
    learning_rate: float,
    stations: Stations,
    clock: Clock,
    rngs: Generators | None,
) -> Signal:
    """Return the mean update of each `cohort` lanes, of clients that got a network of their own, as one member.

    One client after another, since each may have a gradient as large as all. Raises InputError where a server acts on single
    updates: it would have to hold all of them.
    """
    if not all(isinstance(t, GaussianNoise) and t.to == "sum" for t in stations.server):
        raise InputError(
            "server: it sends each client another model and sees no single update; expected only noise `to: sum`"
        )
    total: Signal | None = None
    for client in range(cohort):
        lanes = None if rngs is None else rngs[client::cohort]
        mine = examples.of_lanes(slice(client, None, cohort))
        one = client_update(network.of_client(client), mine, learning_rate, stations, clock, lanes)
        total = one if total is None else _added(total, one)
    assert total is not None
    mean = {name: g / cohort for name, g in total.grads.items()}
    return replace(total, grads=mean, averaged=cohort, local=None)


def _added(total: Signal, one: Signal) -> Signal:
    """Return the sum of two clients' updates; the larger sensitivity stays."""
    scales = [s.sensitivity for s in (total, one) if s.sensitivity is not None]
    largest = torch.stack(scales).amax(0) if scales else None
    return replace(total, grads={n: g + one.grads[n] for n, g in total.grads.items()}, sensitivity=largest)


def rounded(update: Parameters, weights: Parameters, length: float) -> Parameters:
    """Return an update {p: (V, *p)}, in the units of `leak`, as the difference of single-precision weights shows it.

    weights: before the update, {p: (*p)} or one set a victim.  length: learning rate times local iterations, by which who
    reads the difference divides it.
    """
    return {n: (weights[n] - (weights[n] - length * u)) / length for n, u in update.items()}


def logits_of(network: Network, inputs: Tensor) -> Tensor:
    """Return what a network that all clients share answers to inputs (V, M, *s): (V, M, classes)."""
    with torch.no_grad():
        answered: Tensor = functional_call(
            network.model, {**network.parameters, **network.statistics}, (inputs.flatten(0, 1),)
        )
    return answered.reshape(*inputs.shape[:2], -1)


@dataclass(frozen=True)
class Knowledge:
    """What the threat model grants the attacker beside the leaked gradient; it stands under the table.

    labels, logits: `not given` or `given`.  defense: whether the attacker knows the defense's recipe.
    public: what public data it has.  examples: how many stand behind one update, of how many clients.  reads: what an update is
    read as, `gradient` or `weights`.
    """

    labels: str = "not given"
    logits: str = "not given"
    batch_size: bool = True
    learning_rate: bool = True
    defense: bool = False
    public: str = "none"
    examples: int = 1
    clients: int = 1
    reads: str = "gradient"


@dataclass(frozen=True)
class Public:
    """Examples that anyone may know, none of them a victim: inputs (P, *s), labels (P,)."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True)
class View:
    """One observation of V victims at one leakage point.

    network: as the clients got it, with one set of parameters for all victims or one for each.
    update: what leaked, {p: (V, *p)}.  cohort K, local_steps L, batch B: an input guess is (V, M = K * L * B, *s).
    stations: the defense whose deterministic part the attacker runs on a guess; empty for one who does not know it.
    noise: the standard deviation of the defense's noise on each coordinate of `update`, told with the stations; None where there
    is none or it is not Gaussian, additive and independent of the data.  unknown: why what the defense does has no such noise
    though it may draw at random, told with the stations; empty where it has, and where nothing is drawn.
    clock: when it leaked.  public: public examples.  candidates: the hypotheses of a ranking, among which the victim is.
    labels: (V, M) int64, the true labels in the order of use, where the threat model grants them.  logits: (V, M, classes),
    likewise what the sent model answers to the true inputs.
    secret: what a lying server remembers of how it built the model.
    columns: of a table, which columns make up which feature.  fits: whom a part that learns asks for what it learned.
    """

    tap: str
    network: Network
    update: Parameters
    batch: int
    shape: tuple[int, ...]
    classes: int
    learning_rate: float
    cohort: int = 1
    local_steps: int = 1
    knowledge: Knowledge = field(default_factory=Knowledge)
    stations: Stations = field(default_factory=Stations)
    noise: float | None = None
    unknown: str = ""
    clock: Clock = field(default_factory=lambda: Clock(0, 0, 1, 1))
    public: Public | None = None
    candidates: Public | None = None
    labels: Tensor | None = None
    logits: Tensor | None = None
    secret: Any = None
    columns: Columns | None = None
    fits: Fits = fitted_anew

    @property
    def victims(self) -> int:
        """V."""
        return next(iter(self.update.values())).shape[0]

    @property
    def examples(self) -> int:
        """M, the number of examples behind one update (1 for a type-2 gradient)."""
        return 1 if self.tap == "type-2" else self.cohort * self.local_steps * self.batch

    def respond(
        self, inputs: Tensor, targets: Tensor, lanes: Tensor | None = None, by_what_leaked: bool = False
    ) -> Parameters:
        """Return what would have leaked had the examples been `inputs` (V, M, *s) and `targets` (V, M, classes); differentiable.

        lanes: indices of the victims that stand in `inputs`; all of them where it is None.
        by_what_leaked: whether a choice that the defense makes, as of coordinates to send, and what it draws, is what shows in
        what leaked, and not what it would choose on the guess, and nothing drawn.
        """
        network = self.network
        if not network.shared and lanes is not None:
            network = replace(network, parameters={n: p[lanes] for n, p in network.parameters.items()})
        grid = (1, 1, 1) if self.tap == "type-2" else (self.cohort, self.local_steps, self.batch)
        x = inputs.reshape(inputs.shape[0], *grid, *self.shape)
        y = targets.reshape(targets.shape[0], *grid, self.classes)
        stations = self.stations
        if by_what_leaked:
            seen = {n: u.repeat_interleave(grid[0], 0) for n, u in self.observed(lanes).items()}
            stations = on_a_guess(stations, seen)
        draws = self.drawn(lanes)[:, None, None] if by_what_leaked and self.reads_draws else None
        return leak(self.tap, network, x, y, self.learning_rate, stations, self.clock, None, draws)

    @property
    def of_gradients(self) -> bool:
        """Whether what leaked was made of gradients, and not of the quotients by which clients with Adam step."""
        return self.tap == "type-2" or self.clock.client_optimizer == "sgd"

    @property
    def reads_draws(self) -> bool:
        """Whether what leaked tells what a sampling network drew, to an attacker who knows the defense; see `ShowsDraws`."""
        undefended = self.of_gradients and self.stations.before(self.tap) == Stations()
        shown = isinstance(self.network.model, ShowsDraws) and undefended
        return shown and self.knowledge.defense and self.examples == 1

    def drawn(self, lanes: Tensor | None = None) -> Tensor:
        """Return what the network drew for each victim's one example (V, k), as its gradient shows.

        Raises TypeError where `reads_draws` is false.
        """
        model = self.network.model
        if not isinstance(model, ShowsDraws) or not self.reads_draws:
            raise TypeError(f"{type(model).__name__}: what leaked does not tell what was drawn")
        found: Tensor = vmap(model.drawn_for, in_dims=(self.network.axis, 0))(self.network.parameters, self.update)
        return found if lanes is None else found[lanes]

    def of(self, lanes: Tensor) -> View:
        """Return the view of the victims at the positions `lanes` (n,)."""
        network = self.network
        if not network.shared:
            network = replace(network, parameters={n: p[lanes] for n, p in network.parameters.items()})
        told = {"labels": self.labels, "logits": self.logits}
        chosen = {name: None if t is None else t[lanes] for name, t in told.items()}
        return replace(self, network=network, update=self.observed(lanes), **chosen)  # type: ignore[arg-type]

    def coarser(self, local_steps: int) -> View:
        """Return the view of an attacker who takes fewer, longer local steps in the stead of L, over the same examples.

        Raises InputError where L steps cannot be shared out evenly. With one step the whole update is taken for the gradient of
        one batch of L * B examples.
        """
        if self.tap == "type-2" or local_steps >= self.local_steps:
            return self
        if self.local_steps % local_steps:
            raise InputError(
                f"local_steps: got {local_steps}, expected a divisor of the {self.local_steps} local iterations"
            )
        times = self.local_steps // local_steps
        return replace(
            self, local_steps=local_steps, batch=self.batch * times, learning_rate=self.learning_rate * times
        )

    def observed(self, lanes: Tensor | None = None) -> Parameters:
        """Return the leaked update of all victims, or of those in `lanes`."""
        return self.update if lanes is None else {n: u[lanes] for n, u in self.update.items()}

    def to(self, dtype: torch.dtype) -> View:
        """Return the same view in another floating-point type (the checks run in float64)."""

        def cast(tensors: Parameters) -> Parameters:
            return {n: t.to(dtype) for n, t in tensors.items()}

        network = replace(
            self.network,
            model=deepcopy(self.network.model).to(dtype),
            parameters=cast(self.network.parameters),
            memory=cast(self.network.memory),
            own=cast(self.network.own),
        )
        return replace(self, network=network, update=cast(self.update))
