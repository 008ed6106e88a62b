"""What a card's numbers were made with: where all of it is the same, they repeat to the last digits."""

from __future__ import annotations

import os
import platform

import torch

from leakbench.provenance import versions

__all__ = ["made_with"]


def made_with() -> dict[str, str]:
    """Return the packages' versions, the machine's kind, what PyTorch uses of its processor, and the threads."""
    found = {name: text for name, text in versions().items() if name != "machine"}
    return {
        **found,
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "cores": str(os.cpu_count()),
    }
