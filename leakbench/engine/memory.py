"""How much memory there is, and how freed memory is kept: by the process, not handed back after every large tensor.

glibc gives large blocks back as soon as they are free, and the system hands out zeroed pages one by one when the next tensor of
the same size asks again; that took 10 to 40 % of an evaluation's time here (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["keep_freed_memory", "memory_of"]

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where Linux says how much the processes of a container may take together."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h."""

KEPT = 512 * 1024 * 1024
"""Bytes; blocks above it, and what lies free beyond it, go back to the system."""


def keep_freed_memory() -> bool:
    """Ask glibc to keep blocks and free memory of up to 512 MiB; return whether it will.

    Does nothing elsewhere, and where the environment says how (`MALLOC_TRIM_THRESHOLD_`, `MALLOC_MMAP_THRESHOLD_`).
    """
    said = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & set(os.environ)
    if said or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl has none.
        return False
    return bool(mallopt(MMAP_THRESHOLD, KEPT) and mallopt(TRIM_THRESHOLD, KEPT))


def memory_of(device: torch.device) -> int:
    """Return the bytes of a GPU's memory, else of the machine's or the container's; all of it, free or not.

    What is free changes from one run to the next, and with it would the last bits of what is computed side by side.
    """
    if device.type == "cuda":
        import torch  # noqa: PLC0415 - the command line asks glibc for its memory before torch is imported

        return int(torch.cuda.get_device_properties(device).total_memory)
    there = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in map(Path, LIMITS):
        said = limit.read_text().strip() if limit.is_file() else "max"
        there += [int(said)] if said.isdecimal() else []
    return min(there)
