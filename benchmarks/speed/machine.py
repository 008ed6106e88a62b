"""The machine of a measurement, and its load by other processes."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from leakbench.core.provenance import versions

__all__ = ["Machine", "load", "machine"]


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement.

    Args:
        cores: Number of cores that this process may use.
        threads: Number of PyTorch's threads, for references and for leakbench.
        load_before: The system's load average of the last minute before the measurement; None if the system does not have it.
        load_after: The load average after the measurement.
    """

    cpu: str
    cores: int
    threads: int
    load_before: float | None
    load_after: float | None
    versions: dict[str, str]

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about times that are not reliable."""
        found, before = [], self.load_before or 0.0
        if before > self.cores / 2:
            found.append(
                f"load was {before:.1f} on {self.cores} cores before it began: others were at work, so that times mean little"
            )
        if self.threads < self.cores:
            found.append(f"PyTorch has {self.threads} of {self.cores} threads (OMP_NUM_THREADS): the aims are for all")
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """Return the data for JSON."""
        return asdict(self)


def load() -> float | None:
    """Return the load average of the last minute; None if the system does not have it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def machine(before: float | None) -> Machine:
    """Describe this machine; `before` is its load before the measurement."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(_cpu(), cores, torch.get_num_threads(), before, load(), versions())


def _cpu() -> str:
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    named = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
