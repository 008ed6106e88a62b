"""How freed memory is kept: by the process, not handed back to the system after every large tensor.

glibc gives large blocks back as soon as they are free, and the system hands out zeroed pages one by one when the next tensor of
the same size asks again; that took 10 to 40 % of an evaluation's time here (docs/performance.md).
"""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

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
