"""Progress, convergence and saved states of the searches in an attack on an external update."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

__all__ = ["EXACT", "IMPROVES", "WINDOW", "Now", "Searches", "Searching", "Store", "search_name", "usual_share"]

Now: TypeAlias = Callable[[], float]
"""A clock in seconds; only differences matter."""

WINDOW = 15
"""Number of iterations after which a search that has not improved has converged."""

IMPROVES = 1e-3
"""Least relative decrease of the value that counts as an improvement within `WINDOW` iterations."""

PATIENT = 12
"""Adam has converged if it has not improved for the share 1 / `PATIENT` of its iterations after its first learning rate."""

EXACT = 1e-12
"""Share of its first value below which a squared distance consists of rounding errors of float32."""

EVERY = 10.0
"""Smallest number of seconds between two saves of a search."""

COSTLY = 20.0
"""Smallest time between two saves, as a multiple of the duration of the last save."""


class Store(Protocol):
    """Stores tensors by name. Each write is atomic."""

    def read(self, name: str) -> dict[str, Tensor] | None:
        """Return the tensors; None if they are missing or damaged."""

    def write(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Store tensors in place of earlier ones with the same name."""


class _Progress(Protocol):
    """Receives the progress of a search: its number from 0, its name, the share of its iterations that is done."""

    def __call__(self, number: int, name: str, share: float) -> None:
        """Receive it."""


def _ignored(number: int, name: str, share: float) -> None:
    pass


@dataclass
class Searches:
    """The searches of one attack, in the order in which they start.

    Args:
        tell: Called after each iteration with (number of the search, its name, share of its iterations that is done).
        resumed: Called when an interrupted search resumes, with (number of the search, its name, share that is done).
        store: Store for the states of the searches, from which an interrupted attack resumes; None saves nothing.
        prefix: Prefix of the names in the store.
        checks: Whether `AutoLeak` also tries its searches on public examples; if not, call `AutoLeak.checked` later.
        now: Clock for the intervals between saves.
        begun: Number of searches that have started.
    """

    tell: _Progress = _ignored
    resumed: _Progress = _ignored

    store: Store | None = None
    prefix: str = "search"
    checks: bool = True
    now: Now = time.monotonic
    begun: int = 0

    def begin(self, method: Any) -> Searching:
        """Return the next search, one of `method`."""
        number, self.begun = self.begun, self.begun + 1
        name = search_name(method)
        after, window = _patience(method)
        return Searching(
            self,
            f"{self.prefix}{number:02d}",
            lambda share: self.tell(number, name, share),
            lambda share: self.resumed(number, name, share),
            _fixed(method),
            after,
            window,
        )

    def of_check(self) -> Searches:
        """Return the searches of the same attack on public examples; their numbers follow those of the attack."""
        return dataclasses.replace(self, prefix=f"{self.prefix}.check")


@dataclass
class Searching:
    """One search: its progress, its convergence, and its saved state.

    Args:
        searches: The searches of the attack.
        name: Name of its state in the store.
        tell: Called with the share of the iterations that is done.
        resumed: Called with the same share when the search resumes.
        converges: Whether `converged` can be true.
        after: Number of iterations before the window starts.
        window: Number of iterations without an improvement after which a search has converged.
        picture: Returns the inputs at points (v, d) with values (v,).
    """

    searches: Searches
    name: str
    tell: Callable[[float], None]
    resumed: Callable[[float], None]
    converges: bool
    after: int = 0
    window: int = WINDOW
    picture: Callable[[Tensor, Tensor], Tensor] | None = None
    _saved: float = field(default=0.0, init=False)
    _took: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._saved = self.searches.now()

    def share(self, first: int, picture: Callable[[Tensor, Tensor], Tensor]) -> Searching:
        """Return this search for the victims from position `first` on, which run in their own thread.

        Args:
            first: Position of the first victim.
            picture: Returns the inputs at points (v, d) with values (v,).
        """
        return dataclasses.replace(self, name=f"{self.name}.{first:05d}", picture=picture)

    def converged(self, trajectory: Tensor) -> Tensor:
        """Return (v,) bool, which searches have converged, given their values so far (iterations, v).

        A search has converged if its smallest value has not decreased by the share `IMPROVES` in `window` iterations. It has also
        converged if a value that started positive has reached the share `EXACT` of its first value.
        """
        first, least = trajectory[0], trajectory.amin(0)
        if not self.converges:
            return torch.zeros_like(first, dtype=torch.bool)
        ended = (least >= 0) & (least <= EXACT * first)
        if len(trajectory) > self.after + self.window:
            before = trajectory[: -self.window].amin(0)
            ended = ended | (before - least <= IMPROVES * before.abs())
        return ended

    def read(self, start: Tensor) -> dict[str, Tensor] | None:
        """Return the saved state of a search from the points `start` (v, d); None if nothing is saved."""
        if self.searches.store is None:
            return None
        state = self.searches.store.read(self.name)
        # A search from other starting points is another search.
        same = state is not None and torch.equal(state.pop("start"), start)
        # Copies have the alignment of every other tensor. The last digits of a sum can depend on it.
        return {name: tensor.clone() for name, tensor in state.items()} if state is not None and same else None

    def write(self, start: Tensor, state: Callable[[], dict[str, Tensor]], ended: bool) -> None:
        """Save the state of a search, unless the last save was too recent.

        Args:
            start: Starting points (v, d).
            state: Returns the state.
            ended: Whether the search has ended; its state is always saved.
        """
        store, now = self.searches.store, self.searches.now
        if store is None or not (ended or now() - self._saved >= max(EVERY, COSTLY * self._took)):
            return
        began = now()
        parts = state()
        if self.picture is not None:  # Readers of the store show the best inputs so far.
            parts["inputs"] = self.picture(parts["best"], parts["value"])
        store.write(self.name, {"start": start, **parts})
        self._saved = now()
        self._took = self._saved - began


def usual_share(method: Any) -> float:
    """Return the share of its iterations after which a search that can converge usually ends; 1 for one that cannot."""
    if not _fixed(method):
        return 1.0
    after, window = _patience(method)
    return 0.5 if after == 0 else min(1.0, 1.25 * (after + window) / method.stop.limit)


def _fixed(method: Any) -> bool:
    """Return whether the minimised function stays the same over the iterations."""
    return getattr(method, "sharpness", None) is None and getattr(method, "fading", (1.0, 1.0)) == (1.0, 1.0)


def _patience(method: Any) -> tuple[int, int]:
    """Return the number of iterations before the window of convergence, and the length of the window.

    The learning rate of Adam follows a schedule. The value can stay level at the first rate and fall again at the next one.
    """
    after, limit = getattr(method.descent, "settles", 1.0), method.stop.limit
    if after == 0:
        return 0, WINDOW
    return int(after * limit), max(WINDOW, limit // PATIENT)


def search_name(method: Any) -> str:
    """Return the name of a method in progress and results, such as "gradient matching (likelihood, L-BFGS)"."""
    words = [_words(type(method).__name__)]
    if distance := getattr(method, "distance", None):
        words.append(_words(type(distance).__name__))
    if descent := getattr(method, "descent", None):
        words.append("L-BFGS" if hasattr(descent, "inner") else _words(type(descent).__name__.removesuffix("Descent")))
    if len(words) == 1:
        return words[0]
    return f"{words[0]} ({', '.join(words[1:])})"


def _words(name: str) -> str:
    """Split the name of a class into words: "SquaredL2" becomes "squared L2"."""

    parts: list[str] = []
    for letter in name:
        if letter.isupper() or not parts:
            parts.append(letter)
        else:
            parts[-1] += letter
    return " ".join(part if part[1:].isdigit() or part == "Adam" else part.lower() for part in parts)
