"""What a run folder keeps of an attack: its searches until they have ended, and its reconstructions before they are scored."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from leakbench.core.answers import Fit, Reconstruction
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.types import Generators
from leakbench.storage.store import Run

__all__ = ["SavedAnswer", "SavedSearches", "Searched", "restore", "states_of"]


@dataclass
class SavedSearches:
    """The searches of one leakage point, as files in `parts/` of a run folder, and the seconds that they took."""

    run: Run
    tap: str
    _since: float = field(default_factory=time.perf_counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def spent(self) -> float:
        """Seconds until the last save, of this process and of earlier ones; 0 for a complete attack, which starts again."""
        if self.run.manifest["complete"]:
            return 0.0
        return float(self.run.manifest["phases"].get(LeakagePoint(self.tap).phase, 0.0))

    def read(self, name: str) -> dict[str, Tensor] | None:
        """Return the tensors; None if they are missing or damaged."""
        path = f"parts/{self.tap}.{name}.safetensors"
        with self._lock:
            return self.run.read_tensors(path) if self.run.has(path) else None

    def write(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Save tensors in place of earlier ones of the same name; searches on several threads wait for each other."""
        with self._lock:
            now = time.perf_counter()
            if self.run.manifest["complete"]:  # Parts of a complete run would be removed by the next process.
                self.run.manifest["complete"] = False
                self.run.manifest["phases"].clear()
            self.run.add_seconds(LeakagePoint(self.tap).phase, now - self._since)
            self._since = now
            self.run.write_tensors(f"parts/{self.tap}.{name}.safetensors", tensors)


@dataclass(frozen=True)
class Searched:
    """The reconstructions of an attack, and what its scores need to go on as if they followed the searches at once.

    Args:
        answer: The reconstructions.
        checked: Whether the attack has already tried its searches on public examples, if it does so.
        begun: Number of searches.
        states: States (V, bytes) of the random generators after the searches.
        seconds: Duration of the preparation and the searches.
    """

    answer: Reconstruction
    checked: bool
    begun: int
    states: Tensor
    seconds: float


REST = "rest"
"""Name of the tensor with everything that is not a tensor, as JSON."""

PLAIN = ("checked", "begun", "seconds")
"""Fields of a `Searched` that are numbers or flags."""

LISTS = ("snapshots", "stages", "not_begun")
"""Fields of a `Reconstruction` that are tuples."""

DOUBT = "doubt."
"""Start of the names of doubts."""


@dataclass(frozen=True)
class SavedAnswer:
    """The reconstructions of one leakage point, as a file of a run folder that stays when the attack is complete.

    They do not depend on the truth, so that the same attack with another truth is scored without a search.
    """

    run: Run
    tap: str

    @property
    def _path(self) -> str:
        return f"answers.{self.tap}.safetensors"

    def read(self) -> Searched | None:
        """Return the reconstructions; None if they are missing or damaged, which the run says."""
        if not self.run.has(self._path):
            return None
        try:
            return self._read()
        except (AttributeError, KeyError, TypeError, ValueError, SafetensorError):
            self.run.say(f"{self.run.folder / self._path}: has other arrays than an attack saves; it is made again")
            return None

    def _read(self) -> Searched:
        # Copies have the alignment of every other tensor. The last digits of a sum can depend on it.
        tensors = {name: tensor.clone() for name, tensor in self.run.read_tensors(self._path).items()}
        told = json.loads(bytes(tensors.pop(REST).tolist()))
        states, plain = tensors.pop("states"), {name: told[name] for name in PLAIN}
        doubts = {n.removeprefix(DOUBT): tensors.pop(n) for n in list(tensors) if n.startswith(DOUBT)}
        fit = None if told["fit"] is None else Fit(**told["fit"])
        whole: dict[str, Any] = tensors | {name: tuple(told[name]) for name in LISTS}
        return Searched(Reconstruction(**whole, fit=fit, doubts=doubts), states=states, **plain)

    def write(self, searched: Searched) -> None:
        """Save the reconstructions in place of earlier ones."""
        answer = searched.answer
        values = {each.name: getattr(answer, each.name) for each in fields(answer)}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        tensors |= {f"{DOUBT}{name}": value for name, value in answer.doubts.items()}
        fit = None if answer.fit is None else asdict(answer.fit)
        told = {name: list(values[name]) for name in LISTS}
        text = json.dumps(told | {"fit": fit} | {name: getattr(searched, name) for name in PLAIN})
        tensors |= {"states": searched.states, REST: torch.tensor(list(text.encode()), dtype=torch.uint8)}
        self.run.write_tensors(self._path, tensors)


def states_of(rngs: Generators) -> Tensor:
    """Return the states (V, bytes) of random generators."""
    return torch.stack([rng.get_state() for rng in rngs])


def restore(rngs: Generators, states: Tensor) -> None:
    """Set random generators to states (V, bytes)."""
    for rng, state in zip(rngs, states, strict=True):
        rng.set_state(state.clone())  # PyTorch crashes on a state inside another tensor.
