"""The engine `ray`: a cluster that is there, or a Ray of this machine alone, which begins and ends with the sweep."""

from __future__ import annotations

import math
import os
import re
import socket
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leakbench.core.errors import InputError
from leakbench.study.task import Task, TaskOutcome, Work
from leakbench.study.work import measure
from leakbench.study.workers import RETRIES, WINDOW, in_flight, listening, needed

__all__ = ["RayEngine", "check_address"]

STORE = 100 * 2**20
"""Bytes of Ray's store of objects on this machine: results are files, so that it holds next to nothing."""

SETTLING = 10.0
"""Seconds to wait for a cluster's first node."""


@dataclass(frozen=True)
class RayEngine:
    """Measure tasks by Ray, each a task of `threads` CPUs and `gpus_per_cell` GPUs.

    Args:
        address: HOST:PORT of a head; None starts a Ray of this machine with `workers` places, where it is said.
        workers: Largest number of tasks in flight on a cluster; None for twice its number of places.
    """

    address: str | None = None
    workers: int | None = None
    threads: int = 1
    gpus_per_cell: float = 0.0
    retries: int = RETRIES
    work: Work = measure

    def __call__(self, tasks: Iterable[Task]) -> Generator[TaskOutcome, None, None]:
        """Yield the outcome of each task as it ends; raises InputError at once if the cluster cannot be reached or is too small."""
        ray = self._begun()
        try:
            with listening():  # Ray has just set its own handler.
                places = self._places(ray)
                shared = (
                    self.workers if self.address else None
                )  # A Ray of our own has so many places that they queue for.
                most = shared or max(WINDOW, 2 * places)
                yield from in_flight(tasks, self._crew(ray), most, self.retries)
        finally:
            ray.shutdown()

    def _begun(self) -> Any:
        """Return the package `ray`, connected."""
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Read when it is imported.
        # Cells without a share of a GPU compute on the CPU in any case; Ray warns if GPUs are hidden.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        if self.address is not None:
            check_address(self.address)
            _with_token()
        ray = needed("ray")
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address is not None:
            try:
                ray.init(address=self.address, **quiet)
            except (ConnectionError, RuntimeError) as error:
                why = " ".join(str(error).split())
                raise InputError(
                    f"address: the head at {self.address} does not let this sweep in ({why}); it may ask for a token"
                    " (RAY_AUTH_MODE=token), or run another version of Ray"
                ) from None
            return ray
        # Without an address Ray would look for a cluster of anybody's on this machine, alive or dead.
        cpus = None if self.workers is None else self.workers * self.threads
        ray.init(address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=STORE, **quiet)
        return ray

    def _places(self, ray: Any) -> int:
        """Return how many tasks fit side by side; raises InputError where not one does, for which Ray would wait for ever."""
        asked = {"CPU": float(self.threads), "GPU": self.gpus_per_cell}
        nodes = self._nodes(ray)
        for name, least in asked.items():
            largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
            if largest < least:
                option = "gpus-per-cell" if name == "GPU" else "threads-per-cell"
                raise InputError(f"{option}: got {least:g}, but no node of this Ray has more than {largest:g} {name}s")
        return sum(
            min(math.floor(node.get(name, 0.0) / least + 1e-9) for name, least in asked.items() if least)
            for node in nodes
        )

    def _nodes(self, ray: Any) -> list[dict[str, float]]:
        """Return what each node has; a head that has just begun knows of none for a moment."""
        until = time.monotonic() + SETTLING
        while True:
            nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            if nodes or time.monotonic() > until:
                return nodes
            time.sleep(0.2)

    def _crew(self, ray: Any) -> _RayCrew:
        options = {"num_cpus": self.threads, "num_gpus": self.gpus_per_cell, "max_retries": 0}
        return _RayCrew(ray, ray.remote(self.work).options(**options))


def _with_token() -> None:
    """Speak to a cluster as `ray start` would: with a token where this user has one, unless RAY_AUTH_MODE says otherwise."""
    told = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if "RAY_AUTH_MODE" not in os.environ and (told or (Path.home() / ".ray" / "auth_token").is_file()):
        os.environ["RAY_AUTH_MODE"] = "token"  # Read when Ray is imported.


@dataclass
class _RayCrew:
    ray: Any
    remote: Any
    _flying: dict[Any, Task] = field(default_factory=dict)

    def begin(self, task: Task) -> None:
        self._flying[self.remote.remote(task)] = task

    def ended(self) -> list[tuple[Task, TaskOutcome | None]]:
        # One that is there is enough: the next is begun while others go on.
        ready, _ = self.ray.wait(list(self._flying), num_returns=1, timeout=1.0)
        return [self._answer(each) for each in ready]

    def _answer(self, reference: Any) -> tuple[Task, TaskOutcome | None]:
        task = self._flying.pop(reference)
        try:
            return task, self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:  # leakbench is not installed there, or another version is.
            return task, TaskOutcome(task.key, "failed", error=" ".join(f"on a worker: {error.cause}".split()))
        except self.ray.exceptions.RayError:
            return task, None


SECONDS = 4.0

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""How a client of gRPC, which a head speaks, begins (RFC 9113, section 3.4): the words and an empty SETTINGS frame."""

SETTINGS = 0x04
"""The type, the fourth byte of a frame, of the one with which a server has to answer."""


def check_address(address: str, seconds: float = SECONDS) -> None:
    """Raise InputError where no head of Ray answers at HOST:PORT in this many seconds."""
    found = re.fullmatch(r"\[?([^\[\]/ ]+?)\]?:(\d{1,5})", address)
    if not found or not 0 < int(found[2]) < 65536:
        raise InputError(f"address: got {address!r}, expected HOST:PORT of a head of Ray, as 10.0.0.5:6379")
    try:
        with socket.create_connection((found[1], int(found[2])), timeout=seconds / 2) as line:
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
                line.settimeout(seconds / 2)
                line.sendall(PREFACE)
                answered = line.recv(9)
                if len(answered) < 4 or answered[3] != SETTINGS:
                    raise OSError("the program at this address is not a head of Ray")
    except OSError as error:
        why = str(error.strerror or error)
        raise InputError(
            f"address: no Ray cluster answers at {address} ({why}); start one there (ray start --head --port 6379), or leave"
            " --address out for a Ray of this machine alone"
        ) from None
