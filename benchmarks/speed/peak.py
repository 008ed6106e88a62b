"""The peak memory of one private round, in a separate process: `python -m benchmarks.speed.peak CLIENTS ITERATIONS`."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from leakbench.engine.memory import keep_freed_memory

__all__ = ["peak", "peak_of_a_round"]


def peak_of_a_round(clients: int, iterations: int) -> float:
    """Return the peak memory in MiB of a new process that trains one round of `clients` clients out of N = 1000."""
    asked = [sys.executable, "-m", "benchmarks.speed.peak", *map(str, (clients, iterations))]
    told = subprocess.run(asked, check=True, capture_output=True, text=True)
    return float(told.stdout)


def main() -> None:
    """Train the round and print the peak."""
    from benchmarks.speed.task import defense, task  # noqa: PLC0415

    keep_freed_memory()
    clients, iterations = map(int, sys.argv[1:])
    task(clients, iterations).round(defense("fed_cdp"))
    sys.stdout.write(f"{peak():.1f}\n")


def peak() -> float:
    """Return the peak resident memory of this process in MiB."""
    status = Path("/proc/self/status")
    if status.is_file():  # On Linux, the peak of `getrusage` includes that of the parent process.
        [line] = [line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


if __name__ == "__main__":
    main()
