"""Flower's simulation of the same private round, in a separate process, since it starts Ray with one process per core."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

__all__ = ["FlowerRounds", "flower_rounds", "missing"]

LIMIT = 1800
"""Time limit of a simulation in seconds."""

QUIET = {
    # With a stale file of an earlier cluster, Ray would search for the cluster for minutes.
    "RAY_ADDRESS": "local",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


@dataclass(frozen=True)
class FlowerRounds:
    """Seconds: from the start of the process to the end of round 1, of each later round, and of the whole process."""

    first: float
    later: tuple[float, ...]
    whole: float


def missing() -> str:
    """Return why a simulation is impossible; empty if it is possible."""
    absent = [name for name in ("flwr", "ray") if find_spec(name) is None]
    return f"{' and '.join(absent)} not installed: pip install 'leakbench[bench]'" if absent else ""


def flower_rounds(clients: int, iterations: int, rounds: int, way: str) -> FlowerRounds | str:
    """Run a simulation and return its seconds, or the reason of a failure in one line."""
    home = Path(__file__).parent.parent.parent
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(home), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, **QUIET, "FLWR_HOME": folder, "PYTHONPATH": os.pathsep.join(paths)}
        out = Path(folder) / "seconds.json"
        cores = torch.get_num_threads()  # One process with one thread for each thread of leakbench.
        numbers = {"clients": clients, "iterations": iterations, "rounds": rounds, "cores": cores}
        asked = json.dumps({**numbers, "way": way})
        command = [sys.executable, "-m", "benchmarks.speed.flower_app", asked, str(out)]
        with (Path(folder) / "said").open("w+", encoding="utf-8") as said:
            process = subprocess.Popen(
                command, env=environment, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                return f"Flower's simulation did not end within {LIMIT} s"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # Its own group, with the processes that it started.
                    process.wait()
            if not out.is_file():
                said.seek(0)
                lines = [line.strip() for line in said if line.strip()]
                return (
                    f"Flower's simulation failed ({process.returncode}): {lines[-1][:200] if lines else 'said nothing'}"
                )
        found = json.loads(out.read_text(encoding="utf-8"))
    return FlowerRounds(found["first"], tuple(found["later"]), found["whole"])
