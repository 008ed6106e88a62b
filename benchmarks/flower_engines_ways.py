"""The ways that `flower_engines.py` compares, timed in turns; Flower's own engine in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks import flower_engines_work as work
from benchmarks.speed.timing import median
from leakbench.flower import InProcessGrid, VectorisedGrid
from leakbench.reproduce.cost import in_turns, with_threads

TOLERANCE, LIMIT = 1e-5, 600
"""How far weights may be apart after `COMPARED` rounds, and the seconds that the engine may take."""

ALL = "VectorisedGrid, all cores"
"""As many threads as the engine has processes; the other ways have one."""


def measured(network: str, rounds: int, repeats: int) -> dict[str, Any]:
    """Return the seconds a round of each way, which are printed with their ratios."""
    digits = work.Digits()
    model = work.build(network)

    def by(grid: Any, number: int) -> Any:
        return {n: torch_of(a) for n, a in work.serve(grid, network, number, []).arrays.items()}

    def in_process(number: int) -> Any:
        return by(InProcessGrid(work.client_app(), work.COHORT), number)

    def vectorised(number: int) -> Any:
        return by(VectorisedGrid(model, digits, work.RATE, work.COHORT, 10), number)

    ways = {
        "plain loop": lambda n: plain(work, network, digits, n),
        "InProcessGrid": in_process,
        "VectorisedGrid": vectorised,
    }
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
    print(
        f"\n{network}: {work.COHORT} clients a round x {work.STEPS} steps of {work.BATCH}, {rounds} rounds, {repeats} turns"
    )
    for name, value in seconds.items():
        over = value / seconds["plain loop"]
        print(f"  {name:25} {1000 * value:8.1f} ms a round   {over:6.2f} x plain   weights apart {apart[name]:.1e}")
    print(
        f"  engine: {engine['first']:.1f} s to the end of round 1, {engine['whole']:.1f} s in all for {rounds} rounds"
    )
    print(f"  VectorisedGrid over the plain loop: {ratio:.2f} (aim <= .7: {'reached' if ratio <= 0.7 else 'missed'})")
    print(
        f"  Flower's engine over VectorisedGrid, steady state: {times:.1f} with all cores as the engine has, {alone:.1f} with one"
        f" (aim >= 5: {'reached' if times >= 5 else 'missed'})"
    )
    if max(apart.values()) > TOLERANCE:
        raise SystemExit(f"{network}: the ways do other work: {apart}")
    return {
        "seconds": seconds,
        "apart": apart,
        "engine": engine,
        "vectorised_over_plain": ratio,
        "engine_over_vectorised": times,
    }


def plain(work: Any, network: str, digits: Any, rounds: int) -> Any:
    """Train round by round, one client after another, without Flower, and return the weights."""
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
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        paths = [str(here), str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "FLWR_HOME": folder, "PYTHONPATH": os.pathsep.join(paths)}
        words = [network, str(rounds), str(os.cpu_count()), str(out)]
        with (Path(folder) / "log").open("w+", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.flower_engines_work", *words],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LIMIT)
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
    return torch.from_numpy(array.numpy())


def largest(one: Any, other: Any) -> float:
    """Return how far two sets of weights are apart at most."""
    return max(float((one[n] - other[n]).abs().max()) for n in one)
