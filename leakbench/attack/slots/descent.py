"""Slot `descent`: the steps of a search, for all victims at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.search.adam import AdamState
from leakbench.attack.search.lbfgs import Late, Lbfgs, Objective, never
from leakbench.attack.slots.stop import Stop
from leakbench.core.part import Count, Fraction, NonNegative, Positive, Probability, part
from leakbench.core.recipe import Slot

__all__ = [
    "DESCENT",
    "AdamDescent",
    "AdamLinear",
    "Descended",
    "Descent",
    "LbfgsDescent",
    "Search",
    "Terms",
    "descend",
    "evaluations_each",
    "snapshot_iterations",
    "together",
]


@dataclass(frozen=True)
class Terms:
    """Limits and constraints of a search, in addition to its objective.

    Args:
        limit: Largest number of iterations.
        inputs: Number of leading coordinates of a point that belong to the inputs; the others are labels that are searched jointly.
        project: Moves the inputs of points (v, d) into [0, 1].
        late: Whether a clock leaves no time for another evaluation of so many searches at once.
    """

    limit: int
    inputs: int
    project: Callable[[Tensor], Tensor]
    late: Late = never


class Search(Protocol):
    """V searches at once.

    Their tensors and whole numbers are saved, and exist before the first step.

    Attributes:
        points: Current points (V, d).
        evaluations: (V,) gradient evaluations.
        settled: (V,) bool, whether a search never moves again.
    """

    points: Tensor
    evaluations: Tensor
    settled: Tensor

    def step(self, objective: Objective) -> Tensor:
        """Take one iteration in place; return the values (V,) at the points before it."""

    def keep(self, lanes: Tensor) -> None:
        """Keep only the victims at the positions `lanes`."""


@runtime_checkable
class Descent(Protocol):
    """Starts searches at V points.

    A part may say in an attribute `settles` after which share of the stop's iterations a level value means that a search has
    converged: 0 for a descent whose steps do not follow a schedule; 1, the default, for never.
    """

    def __call__(self, start: Tensor, terms: Terms) -> Search:
        """Return the searches from `start` (V, d), before their first iteration."""


@dataclass(frozen=True)
class Descended:
    """The result of searches for V victims in d dimensions.

    Args:
        best: Point (V, d) of the lowest value.
        value: That value (V,).
        trajectory: Values (iterations, V), NaN after a victim's search has ended.
        steps: (V,) iterations.
        evaluations: (V,) gradient evaluations.
        snapshots: Best points (n, V, d) until the iterations `at`.
        at: Iterations of the n snapshots, from 1.
        spent: Evaluations (n, V) until the iterations `at`.
    """

    best: Tensor
    value: Tensor
    trajectory: Tensor
    steps: Tensor
    evaluations: Tensor
    snapshots: Tensor
    at: tuple[int, ...]
    spent: Tensor


def together(parts: Sequence[Descended]) -> Descended:
    """Join the results of searches in several chunks of victims, all with the same limit."""
    first, *others = parts
    if not others:
        return first

    def joined(name: str, axis: int) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts], axis)

    return Descended(
        best=joined("best", 0),
        value=joined("value", 0),
        trajectory=joined("trajectory", 1),
        steps=joined("steps", 0),
        evaluations=joined("evaluations", 0),
        snapshots=joined("snapshots", 1),
        at=first.at,
        spent=joined("spent", 1),
    )


def snapshot_iterations(limit: int) -> tuple[int, ...]:
    """Return the iterations (from 1) of the snapshots: each of the first 40, then in steps of 10 %, and the last."""
    iterations, latest = [], 0
    while latest < limit:
        latest = latest + 1 if latest < 40 else min(limit, int(latest * 1.1))
        iterations.append(latest)
    return tuple(iterations)


class Running(Protocol):
    """Reports the progress of a search, ends it once it has converged, and saves its state."""

    @property
    def tell(self) -> Callable[[float], None]:
        """Called with the share of the iterations that is done."""

    @property
    def resumed(self) -> Callable[[float], None]:
        """Called with the same share when an interrupted search resumes."""

    def converged(self, trajectory: Tensor) -> Tensor:
        """Return (v,) bool, which searches have converged, given their values so far (iterations, v)."""

    def read(self, start: Tensor) -> dict[str, Tensor] | None:
        """Return the saved state of the search from the points `start` (V, d); None if nothing is saved."""

    def write(self, start: Tensor, state: Callable[[], dict[str, Tensor]], ended: bool) -> None:
        """Save the state of the search."""

    def share(self, first: int, picture: Callable[[Tensor, Tensor], Tensor]) -> Running:
        """Return the same for the victims from position `first` on.

        Args:
            first: Position of the first victim.
            picture: Returns the inputs at points (v, d) with values (v,).
        """


def descend(search: Search, objective: Objective, stop: Stop, running: Running | None = None) -> Descended:
    """Iterate until every search has ended. Victims whose search has ended leave the batch.

    The value of an iteration is the value at the point before its step, as papers print it.

    Args:
        search: Searches for V victims.
        objective: Returns values and gradients at points.
        stop: Ends searches.
        running: Reports progress, ends converged searches, and saves states, from which an interrupted search resumes
            bit-identically; None does none of these.
    """
    start, limit, at = search.points, stop.limit, snapshot_iterations(stop.limit)
    victims, size = start.shape
    best, value = start.clone(), start.new_full((victims,), torch.inf)
    trajectory = start.new_full((limit, victims), torch.nan)
    snapshots = start.new_zeros(len(at), victims, size)
    steps = torch.zeros(victims, dtype=torch.int64, device=start.device)
    evaluations = torch.zeros_like(steps)
    spent = steps.new_zeros(len(at), victims)
    lanes, begin = torch.arange(victims, device=start.device), 1
    results = {"best": best, "value": value, "trajectory": trajectory, "snapshots": snapshots, "steps": steps}
    results |= {"evaluations": evaluations, "spent": spent}

    def state() -> dict[str, Tensor]:
        return {**results, **_state_of(search), "lanes": lanes, "iteration": torch.tensor(iteration)}

    # A state with other tensors was saved by another version of the search, which then starts again.
    saved = None if running is None else running.read(start)
    if running is not None and saved is not None and _state_of(search).keys() == _of_search(saved):
        for name, tensor in results.items():
            tensor.copy_(saved[name])
        lanes, iteration = saved["lanes"], int(saved["iteration"])
        _resume(search, saved)
        begin = iteration + 1 if len(lanes) else limit + 1
        if begin <= limit:  # The stop has a state too if it also sharpens the network.
            stop(iteration, trajectory[iteration - 1, lanes])
            running.resumed(iteration / limit)
    for iteration in range(begin, limit + 1):
        before = search.points
        values = search.step(lambda z, some, lanes=lanes: objective(z, lanes[some]))  # type: ignore[misc]
        trajectory[iteration - 1, lanes] = values
        steps[lanes], evaluations[lanes] = iteration, search.evaluations
        better = values < value[lanes]
        value[lanes[better]], best[lanes[better]] = values[better], before[better]
        if iteration in at:
            snapshots[at.index(iteration) :] = best
            spent[at.index(iteration) :] = evaluations
        ended = stop(iteration, values) | search.settled
        if running is not None:
            ended = ended | running.converged(trajectory[:iteration, lanes])
        if ended.any():
            # The last step ended at a point that has not been evaluated yet.
            over = lanes[ended]
            last = objective(search.points[ended], over)[0]
            evaluations[over] += 1
            better = last < value[over]
            value[over[better]], best[over[better]] = last[better], search.points[ended][better]
            following = bisect_left(at, iteration)
            snapshots[following:, over], spent[following:, over] = best[over], evaluations[over]
            lanes = lanes[~ended]
            search.keep((~ended).nonzero().flatten())
        if running is not None:
            running.tell(iteration / limit if len(lanes) else 1.0)
            running.write(start, state, not len(lanes))
        if not len(lanes):
            break
    return Descended(best, value, trajectory, steps, evaluations, snapshots, at, spent)


STATE = "search."
"""Prefix of the names of a search's own tensors and numbers in its state."""


def _state_of(search: Search) -> dict[str, Tensor]:
    """Return the tensors and whole numbers that the steps of a search change."""
    state = {}
    for name, value in vars(search).items():
        if isinstance(value, Tensor):
            state[f"{STATE}{name}"] = value
        elif isinstance(value, int):
            state[f"{STATE}{name}"] = torch.tensor(value)
    return state


def _of_search(state: dict[str, Tensor]) -> set[str]:
    """Return the names of a search's own tensors and numbers in a saved state."""
    return {name for name in state if name.startswith(STATE)}


def _resume(search: Search, state: dict[str, Tensor]) -> None:
    """Set the tensors and whole numbers of a search."""
    for name in _of_search(state):
        own = name.removeprefix(STATE)
        whole = getattr(search, own)
        setattr(search, own, state[name] if isinstance(whole, Tensor) else state[name].item())


def evaluations_each(descent: Descent) -> int:
    """Return the largest number of gradient evaluations in one iteration of a search."""
    return int(getattr(descent, "inner", 1))


@part("descent.lbfgs")
class LbfgsDescent:
    """Run L-BFGS with the semantics and defaults of `torch.optim.LBFGS` for every victim, as DLG and CPL use it.

    One iteration is one outer step with `inner` inner iterations; papers count outer steps. torch also ends an outer step after
    5 / 4 * `inner` evaluations, which is one move earlier for `inner` of 2 and 3; this descent does not.
    """

    learning_rate: Annotated[Positive, Field(description="Length of a step in units of its direction.")] = 1.0
    inner: Annotated[Count, Field(description="Largest number of inner iterations of one iteration.")] = 20
    history: Annotated[Count, Field(description="Number of earlier steps that determine the direction.")] = 100
    tolerance_gradient: Annotated[
        NonNegative, Field(description="Largest absolute value of a gradient at which the search ends.")
    ] = 1e-7
    tolerance_change: Annotated[
        NonNegative, Field(description="Smallest change of the point and of the value at which an iteration continues.")
    ] = 1e-9

    @property
    def settles(self) -> float:
        """See `Descent`."""
        return 0.0

    def __call__(self, start: Tensor, terms: Terms) -> Search:
        """Return the searches; the limit and the projection are not used."""
        return Lbfgs(
            start.clone(),
            self.history,
            self.inner,
            self.learning_rate,
            self.tolerance_gradient,
            self.tolerance_change,
            terms.late,
        )


@part("descent.adam")
class AdamDescent:
    """Run Adam with the semantics and defaults of `torch.optim.Adam` for every victim, as Inverting Gradients uses it."""

    learning_rate: Annotated[Positive, Field(description="Learning rate of the first steps.")] = 0.1
    signed: Annotated[
        bool,
        Field(
            description=(
                "Use only the sign of the gradient by the inputs (Geiping et al., NeurIPS 2020, section 4, after adversarial "
                "attacks). Labels that are searched jointly keep their gradient."
            )
        ),
    ] = False
    box: Annotated[
        bool,
        Field(description=("Move inputs into [0, 1] after each step. Labels that are searched jointly are not moved.")),
    ] = False
    milestones: Annotated[
        tuple[Fraction, ...],
        Field(
            description=(
                "Shares of the stop's iterations, rounded down, after which the learning rate is multiplied by `factor`; `[]` "
                "keeps it constant."
            )
        ),
    ] = (3 / 8, 5 / 8, 7 / 8)
    factor: Annotated[Positive, Field(description="Factor of the learning rate at each milestone.")] = 0.1
    decay: Annotated[
        tuple[Probability, Probability],
        Field(description="Decay rates of the running means of the gradient and of its square."),
    ] = (0.9, 0.999)
    epsilon: Annotated[Positive, Field(description="Added to the root of the mean square.")] = 1e-8

    @property
    def settles(self) -> float:
        """See `Descent`: before the first milestone the value may stay level, and fall again at the next rate."""
        return min(self.milestones, default=1.0)

    def __call__(self, start: Tensor, terms: Terms) -> Search:
        """Return the searches."""
        at = [int(share * terms.limit) for share in self.milestones]
        rates = tuple(self.learning_rate * self.factor ** sum(i >= m for m in at) for i in range(terms.limit))
        signed = terms.inputs if self.signed else 0
        project = terms.project if self.box else lambda points: points
        return AdamState(start.clone(), rates, signed, project, self.decay, self.epsilon)


@part("descent.adam_linear")
class AdamLinear:
    """Run Adam with a learning rate that rises from 0 during a warm-up and then falls to 0, both linearly, as for transformers."""

    learning_rate: Annotated[Positive, Field(description="Largest learning rate.")] = 0.2
    warmup: Annotated[
        Fraction, Field(description="Share of the stop's iterations in which the learning rate rises.")
    ] = 0.05
    decay: Annotated[
        tuple[Probability, Probability],
        Field(description="Decay rates of the running means of the gradient and of its square."),
    ] = (0.9, 0.999)
    epsilon: Annotated[Positive, Field(description="Added to the root of the mean square.")] = 1e-8

    def __call__(self, start: Tensor, terms: Terms) -> Search:
        """Return the searches; the projection is not used."""
        rising = int(self.warmup * terms.limit)
        rates = tuple(
            self.learning_rate * min((i + 1) / (rising + 1), (terms.limit - i) / (terms.limit - rising))
            for i in range(terms.limit)
        )
        return AdamState(start.clone(), rates, 0, lambda points: points, self.decay, self.epsilon)


DESCENT = Slot("descent", ("leakbench.attack.slots",))
