"""The device of a cell: the CPU, or a GPU in full single precision."""

from __future__ import annotations

from typing import Any

import torch

from leakbench.core.errors import InputError
from leakbench.core.provenance import code, versions

__all__ = ["AUTO", "conditions", "described", "device_of"]

AUTO = "auto"
"""Name for a GPU if CUDA has one, else the CPU."""


def device_of(name: str) -> torch.device:
    """Return the device of a PyTorch name or `auto`; raises InputError for a device that cannot be used here."""
    try:
        device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == AUTO else name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        why = str(error).splitlines()[0].split(". ")[0].split(" The '")[0]
        why = "no kind of device that torch knows" if "device type" in why else why
        other = "" if name.startswith("cuda") else ", or cuda where there is a GPU"
        raise InputError(f"device: {name!r} cannot be used ({why}); try cpu{other}") from None
    if device.type == "cpu":
        if device.index:
            raise InputError(
                f"device: {name!r}: all cores are one device, which is cpu (OMP_NUM_THREADS says how many work)"
            )
        return torch.device("cpu")
    if device.type == "cuda":
        # TF32 has only 10 bits of mantissa: the rounding of gradients would hide the differences that a search needs.
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return device


def described(device: torch.device) -> str:
    """Return the name of a device, for a GPU with the name of its kind."""
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def conditions(device: torch.device) -> dict[str, Any]:
    """Return the conditions, other than the seed, that the last bits of a result depend on.

    Returns:
        `device`; `threads`, the number of PyTorch's threads; `capability`, the CPU instructions that PyTorch uses; `deterministic`,
        whether PyTorch refuses other algorithms; `code`, the version of leakbench's code; for a GPU also `tf32` and
        `cudnn_benchmark`; and the version of each library.
    """
    found = {
        "device": described(device),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "code": code(),
    }
    if device.type == "cuda":
        found["tf32"] = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
        found["cudnn_benchmark"] = torch.backends.cudnn.benchmark
    return {**found, **{name: version for name, version in versions().items() if name != "machine"}}
