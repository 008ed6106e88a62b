"""Flower's simulation engine, a plain loop, `InProcessGrid` and `VectorisedGrid`, side by side in one run.

    python -m benchmarks.flower_engines [--rounds 20] [--repeats 5] [--networks mlp,cnn] [--json FILE]

All train the same ten clients a round by the same batches; the weights after two rounds are compared (later, ReLUs and maxima that
flip move those of convolutions apart). Flower's engine starts Ray,
with one core a client, in a separate process; its steady state is the median of its rounds from the second on. The others run in
turns with one of PyTorch's threads. Aims: `VectorisedGrid` at most .7 times the plain loop, and 5 times as fast as the engine.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from pathlib import Path

from leakbench.core.scripts import one_line
from leakbench.flower import check_flwr

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",  # A stale file of a cluster that is gone would make Ray look for it for minutes.
    "OMP_NUM_THREADS": "1",
}


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--repeats", type=int, default=5, help="turns of all ways but the engine")
    options.add_argument("--networks", default="mlp,cnn")
    options.add_argument("--json", type=Path, help="write the figures here too")
    given = options.parse_args()
    check_flwr()
    os.environ.update(QUIET)  # Before flwr is imported, which reads them then.
    from benchmarks.flower_engines_ways import measured  # noqa: PLC0415

    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(f"load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    found = {network: measured(network, given.rounds, given.repeats) for network in given.networks.split(",")}
    print(f"load after: {os.getloadavg()[0]:.2f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    one_line(main)
