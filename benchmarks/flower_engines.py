"""Flower's simulation engine, a plain loop, `InProcessGrid` and `VectorisedGrid`, side by side in one run.

    python benchmarks/flower_engines.py [--rounds 20] [--repeats 5] [--networks mlp,cnn] [--json FILE]

All train the same ten clients a round by the same batches; the weights after two rounds are compared (later, ReLUs and maxima that
flip move those of convolutions apart). Flower's engine starts Ray,
with one core a client, in a process of its own; its steady state is the median of its rounds from the second on. The others run in
turns with one of PyTorch's threads. Aims: `VectorisedGrid` at most .7 times the plain loop, and 5 times as fast as the engine.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",  # A stale file of a cluster that is gone would make Ray look for it for minutes.
    "OMP_NUM_THREADS": "1",
}
TOLERANCE, LIMIT = 1e-5, 600
"""How far weights may be apart after `COMPARED` rounds, and the seconds that the engine may take."""


ALL = "VectorisedGrid, all cores"
"""As many threads as the engine has processes; the other ways have one."""


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--repeats", type=int, default=5, help="turns of all ways but the engine")
    options.add_argument("--networks", default="mlp,cnn")
    options.add_argument("--json", type=Path, help="write the figures here too")
    given = options.parse_args()
    os.environ.update(QUIET)  # Before flwr is imported, which reads them then.
    import torch

    import flwr.serverapp  # noqa: F401 - sets its logger's level as it is imported

    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    print(f"load before: {os.getloadavg()[0]:.2f} on {os.cpu_count()} cores")
    found = {network: measured(network, given.rounds, given.repeats) for network in given.networks.split(",")}
    print(f"load after: {os.getloadavg()[0]:.2f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


def measured(network: str, rounds: int, repeats: int) -> dict[str, Any]:
    """Return the seconds a round of each way, which are printed with their ratios."""
    import flower_engines_work as work

    from leakbench.bench.timing import in_turns, median, with_threads
    from leakbench.flower import InProcessGrid, VectorisedGrid

    digits = work.Digits()
    model = work.build(network)

    def by(grid: Any, number: int) -> Any:
        return {n: torch_of(a) for n, a in work.serve(grid, network, number, []).arrays.items()}

    def in_process(number: int) -> Any:
        return by(InProcessGrid(work.client_app(), work.COHORT), number)

    def vectorised(number: int) -> Any:
        return by(VectorisedGrid(model, digits, work.RATE, work.COHORT, 10), number)

    ways = {"plain loop": lambda n: plain(work, network, digits, n), "InProcessGrid": in_process, "VectorisedGrid": vectorised}
    ways[ALL] = lambda n: with_threads(os.cpu_count() or 1, lambda: vectorised(n))
    reference = ways["plain loop"](work.COMPARED)
    apart = {name: largest(reference, way(work.COMPARED)) for name, way in ways.items()}
    engine, weights = by_engine(network, rounds)
    apart["Flower's engine"] = largest(reference, weights)
    taken = in_turns({name: lambda way=way: way(rounds) for name, way in ways.items()}, repeats)  # type: ignore[misc]
    seconds = {name: median(taken, name) / rounds for name in ways}
    seconds["Flower's engine"] = statistics.median(engine["later"])
    ratio = statistics.median(t["VectorisedGrid"] / t["plain loop"] for t in taken)
    times, alone = (seconds["Flower's engine"] / seconds[name] for name in (ALL, "VectorisedGrid"))
    print(f"\n{network}: {work.COHORT} clients a round x {work.STEPS} steps of {work.BATCH}, {rounds} rounds, {repeats} turns")
    for name, value in seconds.items():
        over = value / seconds["plain loop"]
        print(f"  {name:25} {1000 * value:8.1f} ms a round   {over:6.2f} x plain   weights apart {apart[name]:.1e}")
    print(f"  engine: {engine['first']:.1f} s to the end of round 1, {engine['whole']:.1f} s in all for {rounds} rounds")
    print(f"  VectorisedGrid over the plain loop: {ratio:.2f} (aim <= .7: {'reached' if ratio <= 0.7 else 'missed'})")
    print(
        f"  Flower's engine over VectorisedGrid, steady state: {times:.1f} with all cores as the engine has, {alone:.1f} with one"
        f" (aim >= 5: {'reached' if times >= 5 else 'missed'})"
    )
    if max(apart.values()) > TOLERANCE:
        raise SystemExit(f"{network}: the ways do other work: {apart}")
    return {"seconds": seconds, "apart": apart, "engine": engine, "vectorised_over_plain": ratio, "engine_over_vectorised": times}


def plain(work: Any, network: str, digits: Any, rounds: int) -> Any:
    """Train round by round, one client after another, without Flower, and return the weights."""
    import torch

    model = work.build(network)
    held = dict(model.named_parameters())
    state = {n: p.detach().clone() for n, p in held.items()}
    for number in range(1, rounds + 1):
        total = {n: torch.zeros_like(p) for n, p in state.items()}
        for node in range(work.COHORT):
            with torch.no_grad():
                for n, p in held.items():
                    p.copy_(state[n])
            work.train(model, *digits(node, number))
            for n, p in held.items():
                total[n] += p.detach()
        state = {n: t / work.COHORT for n, t in total.items()}
    return state


def by_engine(network: str, rounds: int) -> tuple[dict[str, Any], Any]:
    """Run Flower's simulation in a process of its own, and return its seconds and weights."""
    from safetensors.torch import load_file

    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        paths = [str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "FLWR_HOME": folder, "PYTHONPATH": os.pathsep.join(paths)}
        words = [network, str(rounds), str(os.cpu_count()), str(out)]
        with (Path(folder) / "log").open("w+", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "flower_engines_work", *words],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                pass
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # Its own group alone: the processes that it started.
                    process.wait()
            if not out.is_file():
                log.seek(0)
                raise SystemExit(f"Flower's engine failed ({process.returncode}): {log.read()[-2000:]}")
        return json.loads(out.read_text(encoding="utf-8")), load_file(out.with_suffix(".safetensors"))


def torch_of(array: Any) -> Any:
    """Return one of Flower's arrays as a tensor."""
    import torch

    return torch.from_numpy(array.numpy())


def largest(one: Any, other: Any) -> float:
    """Return how far two sets of weights are apart at most."""
    return max(float((one[n] - other[n]).abs().max()) for n in one)


if __name__ == "__main__":
    main()
