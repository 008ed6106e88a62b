"""Slot `descent`: how a search moves downhill, for all victims at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from leakbench.attack.search.adam import Adam
from leakbench.attack.search.lbfgs import Late, Lbfgs, Objective, never
from leakbench.attack.slots.stop import Stop
from leakbench.part import Count, Fraction, NonNegative, Positive, Probability, part
from leakbench.recipe import Slot

__all__ = [
    "DESCENT",
    "AdamDescent",
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
    """What a search is told beside its objective.

    Args:
        limit: The most iterations that it may take.
        inputs: How many of a point's leading coordinates are the inputs'; the others are labels searched jointly.
        project: Points (v, d) to the same points with inputs moved into [0, 1].
        late: Whether a clock leaves no time for another evaluation of so many searches side by side.
    """

    limit: int
    inputs: int
    project: Callable[[Tensor], Tensor]
    late: Late = never


class Search(Protocol):
    """V searches under way, side by side: points (V, d), evaluations (V,), settled (V,) for who can never move again."""

    points: Tensor
    evaluations: Tensor
    settled: Tensor

    def step(self, objective: Objective) -> Tensor:
        """Take one iteration in place; return the values (V,) at the points before it."""

    def keep(self, lanes: Tensor) -> None:
        """Drop every victim but those in `lanes`."""


@runtime_checkable
class Descent(Protocol):
    """Begins searches from V starting points."""

    def __call__(self, start: Tensor, terms: Terms) -> Search:
        """Return the searches from `start` (V, d), before their first iteration."""


@dataclass(frozen=True)
class Descended:
    """What searches found, V victims in d dimensions.

    Args:
        best: (V, d) point of the lowest value seen.
        value: (V,) that value.
        trajectory: (iterations, V), NaN once a victim has ended.
        steps: (V,).
        evaluations: (V,).
        snapshots: (n, V, d), the best point at the iterations `at`.
        spent: (n, V), the evaluations until then.
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
    """Return what searches in several batches found as one batch's; all with the same limit."""
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
    """Return the iterations (1-based) at which the best guess is kept: each of the first 40, then 10 % apart, and the last."""
    kept, latest = [], 0
    while latest < limit:
        latest = latest + 1 if latest < 40 else min(limit, int(latest * 1.1))
        kept.append(latest)
    return tuple(kept)


class Running(Protocol):
    """Runs a search in the foreground of a user: it reports, ends what has converged, and keeps its state."""

    @property
    def tell(self) -> Callable[[float], None]:
        """Called with the share of the iterations that is done."""

    @property
    def resumed(self) -> Callable[[float], None]:
        """Called likewise when a search that was interrupted resumes."""

    def converged(self, trajectory: Tensor) -> Tensor:
        """Return which searches have converged (v,), by their values so far (iterations, v)."""

    def read(self, start: Tensor) -> dict[str, Tensor] | None:
        """Return the kept state of the search from the points `start` (V, d); None if there is none."""

    def write(self, start: Tensor, state: Callable[[], dict[str, Tensor]], ended: bool) -> None:
        """Keep the state of the search."""

    def share(self, first: int, picture: Callable[[Tensor, Tensor], Tensor]) -> Running:
        """Return the same for the victims from the position `first` on.

        Args:
            picture: (points, values) to the inputs answered.
        """


def descend(search: Search, objective: Objective, stop: Stop, running: Running | None = None) -> Descended:
    """Iterate until every search has ended; who has ended leaves the batch.

    The value of an iteration is that at the point before its step, as the papers print it.

    Args:
        running: Reports, ends searches that have converged, and keeps the state, from which a search that was interrupted resumes
            bit-identically; None does nothing of it.
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
    found = {"best": best, "value": value, "trajectory": trajectory, "snapshots": snapshots, "steps": steps}
    found |= {"evaluations": evaluations, "spent": spent}

    def state() -> dict[str, Tensor]:
        return {**found, **_state_of(search), "lanes": lanes, "iteration": torch.tensor(iteration)}

    if running is not None and (kept := running.read(start)) is not None:
        for name, tensor in found.items():
            tensor.copy_(kept[name])
        lanes, iteration = kept["lanes"], int(kept["iteration"])
        _resume(search, kept)
        begin = iteration + 1 if len(lanes) else limit + 1
        if begin <= limit:  # A stop may follow the iterations, as one that sharpens the network does.
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
            # A step ends at a point that nobody has evaluated yet.
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
"""Start of the names of a search's own tensors and numbers in its state."""


def _state_of(search: Search) -> dict[str, Tensor]:
    """Return the tensors and whole numbers that the steps of a search change."""
    found = {}
    for name, value in vars(search).items():
        if isinstance(value, Tensor):
            found[f"{STATE}{name}"] = value
        elif isinstance(value, int):
            found[f"{STATE}{name}"] = torch.tensor(value)
    return found


def _resume(search: Search, kept: dict[str, Tensor]) -> None:
    """Set the tensors and whole numbers of a search; a number that is not in the state is None."""
    for name, value in list(vars(search).items()):
        tensor = kept.get(f"{STATE}{name}")
        if isinstance(value, Tensor) and tensor is not None:
            setattr(search, name, tensor)
        elif isinstance(value, int) or value is None:
            setattr(search, name, None if tensor is None else type(value or 0)(tensor.item()))


def evaluations_each(descent: Descent) -> int:
    """Return the most gradient evaluations that one iteration of a search takes."""
    return int(getattr(descent, "inner", 1))


@part("descent.lbfgs")
class LbfgsDescent:
    """Run L-BFGS with the semantics and defaults of `torch.optim.LBFGS` for every victim, as DLG and CPL use it.

    One iteration is one outer step of `inner` inner iterations: the iterations that papers count.
    torch also ends an outer step after 5 / 4 * `inner` evaluations, which for 2 and 3 is one move earlier; this descent does not.
    """

    learning_rate: Positive = 1.0
    inner: Count = 20
    history: Count = 100
    tolerance_gradient: NonNegative = 1e-7
    tolerance_change: NonNegative = 1e-9

    def __call__(self, start: Tensor, terms: Terms) -> Search:
        """Begin; the limit and the projection are not used."""
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

    learning_rate: Positive = 0.1
    signed: Annotated[
        bool,
        Field(
            description=(
                "Use only the sign of the gradient by the inputs (Geiping et al., NeurIPS 2020, section 4, after adversarial "
                "attacks)."
            )
        ),
    ] = False
    box: Annotated[
        bool,
        Field(
            description=(
                "Move inputs into [0, 1] after each step. The learning rate is multiplied by `factor` after each of the "
                "`milestones`, shares of the iterations that the stop allows, rounded down; `milestones: []` keeps it constant. "
                "Labels that are searched jointly are neither signed nor boxed."
            )
        ),
    ] = False
    milestones: tuple[Fraction, ...] = (3 / 8, 5 / 8, 7 / 8)
    factor: Positive = 0.1
    decay: tuple[Probability, Probability] = (0.9, 0.999)
    epsilon: Positive = 1e-8

    def __call__(self, start: Tensor, terms: Terms) -> Search:
        """Begin."""
        at = [int(share * terms.limit) for share in self.milestones]
        rates = tuple(self.learning_rate * self.factor ** sum(i >= m for m in at) for i in range(terms.limit))
        signed = terms.inputs if self.signed else 0
        project = terms.project if self.box else lambda points: points
        return Adam(start.clone(), rates, signed, project, self.decay, self.epsilon)


DESCENT = Slot("descent", ("leakbench.attack.slots",))
