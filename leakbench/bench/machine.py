"""On what it was measured, and whether others were at work there meanwhile."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from leakbench.provenance import versions

__all__ = ["Machine", "load", "machine"]


@dataclass(frozen=True)
class Machine:
    """cores: that this process may use.  threads: of PyTorch, for references and for us.

    load_before, load_after: the system's load average of the last minute; None where it has none.
    """

    cpu: str
    cores: int
    threads: int
    load_before: float | None
    load_after: float | None
    versions: dict[str, str]

    def warnings(self) -> tuple[str, ...]:
        """Say where times mean little."""
        found, before = [], self.load_before or 0.0
        if before > self.cores / 2:
            found.append(
                f"load was {before:.1f} on {self.cores} cores before it began: others were at work, so that times mean little"
            )
        if self.threads < self.cores:
            found.append(f"PyTorch has {self.threads} of {self.cores} threads (OMP_NUM_THREADS): the aims are for all")
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def load() -> float | None:
    """Return the load average of the last minute; None where the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def machine(before: float | None) -> Machine:
    """Describe this machine; `before`: its load before the measuring began."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Machine(_cpu(), cores, torch.get_num_threads(), before, load(), versions())


def _cpu() -> str:
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
    named = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()
