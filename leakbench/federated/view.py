"""The attacker's view at a leakage point: the observed update, and the knowledge that the threat model grants."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import vmap

from leakbench.core.errors import InputError
from leakbench.core.fitted import Fits, fitted_anew
from leakbench.core.progress import Tick, unticked
from leakbench.core.types import Clock, HidesDraws, Network, Parameters, ShowsDraws
from leakbench.data.columns import Columns
from leakbench.data.vocabulary import Vocabulary
from leakbench.defense.guess import Hides, on_a_guess
from leakbench.defense.transform import Stations, name_of
from leakbench.federated.leakage import leak
from leakbench.federated.optimizer import linear_steps
from leakbench.federated.searches import Searches
from leakbench.federated.separations import Separations
from leakbench.models import one_hot
from leakbench.models.copies import as_type

__all__ = ["Knowledge", "Public", "View", "alone_by", "neighbours"]

T = TypeVar("T")


def alone_by(examples: int, batch: int) -> str:
    """Return the options with which an update would be that of one example.

    Args:
        examples: Number of examples behind the update.
        batch: Number of them in one batch; there are more with several clients or local steps.
    """
    return "--taps type-2, or --leak-batch 1" if examples == batch > 1 else "--taps type-2"


@dataclass(frozen=True)
class Knowledge:
    """The knowledge of the attacker in addition to the leaked update, as printed under the table of a result.

    Args:
        labels: `not given` or `given`.
        logits: `not given` or `given`.
        defense: Whether the attacker knows the defense's recipe.
        public: Public data of the attacker.
        examples: Number of examples in one update.
        clients: Number of clients in one update.
        reads: Form of an update, `gradient` or `weights`.
        statistics: Statistics of batch normalisation that the attacker uses, see `leakbench.experiment.statistics`; empty if the
            network does not depend on them.
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
    statistics: str = ""


@dataclass(frozen=True)
class Public:
    """Examples that the attacker may know, without the victims.

    Args:
        inputs: (P, *s).
        labels: (P,), their classes.
        answers: (P, k), their targets, if networks answer with something else than the class; else None.
    """

    inputs: Tensor
    labels: Tensor
    answers: Tensor | None = None
    found: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, compute: Callable[[Public], T]) -> T:
        """Return `compute` of the examples; the result is kept, so that searches with the same public examples share it.

        The examples and the result must not be changed afterwards.

        Args:
            key: What is computed, with everything else that it depends on.
            compute: Takes the examples.
        """
        if key not in self.found:
            # Threads that compute it at once all get the result of the first one.
            self.found.setdefault(key, compute(self))
        found: T = self.found[key]
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was computed, which a copy in another process computes again."""
        return vars(self) | {"found": {}}

    def first(self, most: int) -> Public:
        """Return the first examples, at most `most`; the same object each time, and this one if those are all."""
        if most >= len(self.labels):
            return self
        return self.once(("first", most), lambda public: public.at(slice(most)))

    def at(self, chosen: Tensor | slice) -> Public:
        """Return some of the examples."""
        return Public(self.inputs[chosen], self.labels[chosen], None if self.answers is None else self.answers[chosen])

    def targets(self, classes: int) -> Tensor:
        """Return the targets (P, k) of the examples, one-hot (P, classes) for classes."""
        return one_hot(self.labels, classes) if self.answers is None else self.answers


@dataclass(frozen=True)
class View:
    """One observation of V victims at one leakage point.

    An input guess is (V, M, *s), with M = K * L * B distinct examples. If the clients pass E times over the same examples, M is
    K * L * B / E, and a guess is used in the same order in each epoch; with `apart`, each epoch has its own guesses.

    Args:
        network: The network that the clients received, with one set of parameters for all victims or one for each.
        update: {p: (V, *p)}, the leaked update.
        batch: B.
        shape: (*s) of one input.
        cohort: K.
        local_steps: L.
        epochs: E, the number of passes of a client over the same examples, each in an order that the attacker does not know.
        apart: Whether a guess has the inputs of each epoch apart, as (K, E, n) examples.
        stations: The defense whose deterministic part the attacker runs on a guess; empty for an oblivious attacker.
        noise: Standard deviation of the defense's noise on each coordinate of `update`, for an adaptive attacker. None without
            noise, or if the noise is not Gaussian, additive and independent of the data.
        unknown: Reason for `noise` None although the defense may be random, for an adaptive attacker; else empty.
        clock: Moment of the leak.
        public: Public examples.
        candidates: The hypotheses of a ranking; the victim is among them.
        labels: (V, M) int64, the true labels in the order of use, if the threat model grants them.
        logits: (V, M, classes), the sent model's logits of the true inputs, if the threat model grants them.
        statistics: {name of a running statistic: (V, C)}, the statistics of batch normalisation that a prior compares a guess with;
            None for those that the server sent.
        secret: The malicious server's record of its change of the model.
        columns: The features of a table and their columns.
        vocabulary: The tokens of texts; None for other data.
        fits: Source of fitted models for parts that learn.
        separations: Separated batches so far, shared by the searches of one attack; None does not cache them.
        searches: The `leakbench.federated.searches.Searches` of an attack on an external update; None in a run.
        tick: Called after each gradient evaluation and each other step of an attack, to show progress.
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
    epochs: int = 1
    apart: bool = False
    knowledge: Knowledge = field(default_factory=Knowledge)
    stations: Stations = field(default_factory=Stations)
    noise: float | None = None
    unknown: str = ""
    clock: Clock = field(default_factory=lambda: Clock(0, 0, 1, 1))
    public: Public | None = None
    candidates: Public | None = None
    labels: Tensor | None = None
    logits: Tensor | None = None
    statistics: Parameters | None = None
    secret: Any = None
    columns: Columns | None = None
    vocabulary: Vocabulary | None = None
    fits: Fits = fitted_anew
    separations: Separations | None = None
    searches: Searches | None = None
    tick: Tick = unticked

    @property
    def victims(self) -> int:
        """V, the number of victims."""
        return self.like.shape[0]

    @property
    def like(self) -> Tensor:
        """One of the leaked gradients (V, ...), for new tensors of their type on their device."""
        return next(iter(self.update.values()))

    @property
    def alone_by(self) -> str:
        """Options with which the update would be that of one example."""
        return alone_by(self.examples, self.batch)

    @property
    def examples(self) -> int:
        """M, the number of examples behind one update (1 for a type-2 gradient)."""
        if self.tap == "type-2":
            return 1
        return self.cohort * self.local_steps * self.batch // (1 if self.apart else self.epochs)

    def respond(
        self,
        inputs: Tensor,
        targets: Tensor,
        lanes: Tensor | None = None,
        by_what_leaked: bool = False,
        hidden: Tensor | None = None,
    ) -> Parameters:
        """Return the update {p: (V, *p)} that a guess would leak; differentiable.

        Args:
            inputs: (V, M, *s), the guess; for texts also embeddings (V, M, T, width).
            targets: (V, M, classes), its soft labels.
            lanes: Indices of the victims in `inputs`; None for all.
            by_what_leaked: Whether to take the defense's choices (such as the coordinates to send) and random numbers from the
                observed update. Otherwise the defense chooses on the guess, and random numbers are zero.
            hidden: (V, h), guessed private numbers of the defense, see `hidden`; None to run it without them.
        """
        network = self.network
        if not network.shared and lanes is not None:
            network = replace(network, parameters={n: p[lanes] for n, p in network.parameters.items()})
        grid = (1, 1, 1) if self.tap == "type-2" else (self.cohort, self.local_steps, self.batch)
        x, y = self._in_steps(inputs, grid), self._in_steps(targets, grid)
        stations = self.stations
        if by_what_leaked:
            seen = self.observed(lanes)
            if grid[0] > 1:
                seen = {n: u.repeat_interleave(grid[0], 0) for n, u in seen.items()}
            stations = on_a_guess(stations, seen, hidden)
        draws = self.drawn(lanes)[:, None, None] if by_what_leaked and self.reads_draws else None
        if hidden is not None and isinstance(network.model, HidesDraws):
            draws = hidden[:, None, None].expand(-1, *grid[1:], -1)
        return leak(self.tap, network, x, y, self.learning_rate, stations, self.clock, None, draws)

    def _in_steps(self, guess: Tensor, grid: tuple[int, int, int]) -> Tensor:
        """Return a guess (V, M, ...) as the local iterations use it, (V, K, L, B, ...)."""
        if self.epochs == 1 or self.apart or self.tap == "type-2":
            return guess.reshape(guess.shape[0], *grid, *guess.shape[2:])
        cohort, steps, batch = grid
        once = guess.reshape(guess.shape[0], cohort, steps // self.epochs, batch, *guess.shape[2:])
        return torch.cat([once] * self.epochs, 2)

    def hidden(self) -> Tensor | None:
        """Return where a search of the defense's private numbers starts, (V, h), with a standard normal prior.

        The result is None if the attacker does not know the defense, if it has no such numbers (`Hides`, `HidesDraws`), and if
        several local iterations or clients have numbers of their own.

        Raises:
            InputError: If several parts of the defense have such numbers.
        """
        model = self.network.model
        several = self.tap != "type-2" and self.cohort * self.local_steps > 1
        if not self.knowledge.defense or not self.of_gradients or several:
            return None
        hiding = [t for t in self.stations.before(self.tap).transforms if isinstance(t, Hides)]
        names = [*([type(model).__name__] if isinstance(model, HidesDraws) else []), *map(name_of, hiding)]
        if len(names) > 1:
            raise InputError(
                f"defense: got {len(names)} parts with private numbers, {' and '.join(names)}; an attacker that knows the defense"
                " searches those of one: leave the others out, or --knows oblivious"
            )
        if isinstance(model, HidesDraws):
            drawn: Tensor = vmap(model.searched_from)(self.update)
            return drawn
        return hiding[0].hidden(self.update, self.examples, self.shape, self.classes) if hiding else None

    @property
    def of_gradients(self) -> bool:
        """Whether the update consists of gradients, and not of the directions of clients with Adam.

        A defense that scales an update also scales what weight decay added to it, which then cannot be subtracted.
        """
        stations = self.stations.before(self.tap)
        scaled = bool(self.clock.weight_decay) and bool(stations.client or stations.server)
        return self.tap == "type-2" or (self.clock.client_optimizer == "sgd" and not scaled)

    @property
    def of_one_example(self) -> bool:
        """Whether each update is the gradient of one example at the sent weights, with nothing added and no defense before it.

        `leakbench.federated.leakage.leak` then returns the plain gradient of a guess.
        """
        alone = self.tap == "type-2" or self.cohort * self.local_steps * self.batch == 1
        added = bool(self.clock.weight_decay or self.network.correction or self.network.own)
        undefended = self.of_gradients and self.stations.before(self.tap) == Stations()
        return alone and undefended and not added and self.clock.client_optimizer == "sgd"

    @property
    def reads_draws(self) -> bool:
        """Whether the update shows the random numbers of a sampling network to an adaptive attacker; see `ShowsDraws`."""
        undefended = self.of_gradients and self.stations.before(self.tap) == Stations()
        shown = isinstance(self.network.model, ShowsDraws) and undefended
        return shown and self.knowledge.defense and self.examples == 1

    def drawn(self, lanes: Tensor | None = None) -> Tensor:
        """Return the network's random numbers (V, k) for each victim's one example, which its gradient shows.

        Raises:
            TypeError: If `reads_draws` is false.
        """
        model = self.network.model
        if not isinstance(model, ShowsDraws) or not self.reads_draws:
            raise TypeError(f"{type(model).__name__}: the leak does not show what was drawn")
        draws: Tensor = vmap(model.drawn_for, in_dims=(self.network.axis, 0))(self.network.parameters, self.update)
        return draws if lanes is None else draws[lanes]

    def of(self, lanes: Tensor) -> View:
        """Return the view of the victims at the positions `lanes` (n,)."""
        network = self.network
        if not network.shared:
            network = replace(network, parameters={n: p[lanes] for n, p in network.parameters.items()})
        granted = {"labels": self.labels, "logits": self.logits}
        chosen = {name: None if t is None else t[lanes] for name, t in granted.items()}
        statistics = None if self.statistics is None else {n: s[lanes] for n, s in self.statistics.items()}
        return replace(self, network=network, update=self.observed(lanes), statistics=statistics, **chosen)  # type: ignore[arg-type]

    def coarser(self, local_steps: int) -> View:
        """Return the view of an attacker that assumes fewer, longer local steps than L, over the same examples.

        With one step, the attacker treats the update as the gradient of one batch of all examples. After E epochs, up to E steps
        are each over all examples, so that no order is assumed.

        Raises:
            InputError: If `local_steps` does not divide L, or is neither a divisor nor a multiple of E.
        """
        if self.tap == "type-2" or local_steps >= self.local_steps:
            return self
        if self.local_steps % local_steps:
            raise InputError(
                f"local_steps: got {local_steps}, expected a divisor of the {self.local_steps} local iterations"
            )
        epochs = min(local_steps, self.epochs)
        if self.epochs % epochs or local_steps % epochs:
            raise InputError(
                f"local_steps: got {local_steps}, expected a divisor or a multiple of the {self.epochs} epochs of a client"
            )
        times = self.local_steps // local_steps
        longer = linear_steps(self.clock, self.learning_rate, self.local_steps).length / self.local_steps
        return replace(
            self,
            local_steps=local_steps,
            batch=self.batch * times * epochs // self.epochs,
            epochs=epochs,
            apart=self.apart and epochs > 1,
            learning_rate=self.learning_rate * times * longer,
            clock=replace(self.clock, momentum=0.0, weight_decay=0.0, proximal=0.0),
        )

    def observed(self, lanes: Tensor | None = None) -> Parameters:
        """Return the leaked update of all victims, or of those in `lanes`; neighbouring lanes are not copied."""
        if lanes is None:
            return self.update
        where = neighbours(lanes)
        return {n: u[lanes if where is None else where] for n, u in self.update.items()}

    def to(self, dtype: torch.dtype) -> View:
        """Return the same view in another floating-point type (the checks run in float64)."""

        def cast(tensors: Parameters) -> Parameters:
            return {n: t.to(dtype) for n, t in tensors.items()}

        network = replace(
            self.network,
            model=as_type(self.network.model, dtype),
            parameters=cast(self.network.parameters),
            memory=cast(self.network.memory),
            own=cast(self.network.own),
        )
        statistics = None if self.statistics is None else cast(self.statistics)
        return replace(self, network=network, update=cast(self.update), statistics=statistics)


def neighbours(lanes: Tensor) -> slice | None:
    """Return the lanes (n,) as a slice; None if they are not consecutive, or on a GPU, which would have to wait."""
    if lanes.device.type != "cpu" or not len(lanes):
        return None
    first = int(lanes[0])
    follow = torch.equal(lanes, torch.arange(first, first + len(lanes)))
    return slice(first, first + len(lanes)) if follow else None
