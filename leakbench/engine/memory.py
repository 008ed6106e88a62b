"""The size of memory, and a setting that lets the process keep freed memory instead of returning large blocks.

glibc returns large blocks to the system as soon as they are free, and the system then provides zeroed pages one by one for the next
tensor of the same size. That takes 10 to 40 % of an evaluation's time (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["RETAINED", "keep_freed_memory", "memory_of"]

LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files of Linux with the memory limit of a container."""

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h."""

RETAINED = 512 * 1024 * 1024
"""Largest block, and largest amount of free memory, in bytes, that the process retains."""


def keep_freed_memory() -> bool:
    """Set glibc to keep freed blocks and free memory of up to 512 MiB; return whether it does.

    The function does nothing without glibc, or if the environment has `MALLOC_TRIM_THRESHOLD_` or `MALLOC_MMAP_THRESHOLD_`.
    """
    chosen = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"} & set(os.environ)
    if chosen or not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # musl does not have it.
        return False
    return bool(mallopt(MMAP_THRESHOLD, RETAINED) and mallopt(TRIM_THRESHOLD, RETAINED))


def memory_of(device: torch.device) -> int:
    """Return the total number of bytes of a GPU's memory, else of the machine's or the container's.

    Free memory would change from one run to the next, and with it the chunks and the last bits of the results.
    """
    if device.type == "cuda":
        import torch  # noqa: PLC0415 - the command line asks glibc for its memory before torch is imported

        return int(torch.cuda.get_device_properties(device).total_memory)
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for limit in map(Path, LIMITS):
        text = limit.read_text().strip() if limit.is_file() else "max"
        sizes += [int(text)] if text.isdecimal() else []
    return min(sizes)
