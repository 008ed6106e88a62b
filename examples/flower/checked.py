"""Checks of `deploy.py` on leaked updates: bits, attacks, and the weights of the same app without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from leakbench.attack import Attack
from leakbench.core.imported import import_function
from leakbench.core.recipe import resolve
from leakbench.data.find import load_dataset
from leakbench.defense import Defense
from leakbench.external.attack import attack_trace
from leakbench.external.attacker import Attacker
from leakbench.flower.app import load_flower_app, run_tapped
from leakbench.flower.leaks import read_leaks
from leakbench.flower.trace import TrainingOptions, trace_at

APP = Path(__file__).resolve().parent / "app"
CLIENTS = 2


def check(folder: Path, defense: str, rounds: int) -> bool:
    """Print the leaked updates of a run, and return whether they are as expected."""
    arrived, left = (
        {(leak.round, leak.node): leak for leak in read_leaks(folder, tap)} for tap in ("type-0", "type-1")
    )
    same = arrived.keys() == left.keys() and len(left) == CLIENTS * rounds
    same = same and all(
        np.array_equal(bits(array), bits(left[key].arrays[name]))
        for key, leak in arrived.items()
        for name, array in leak.arrays.items()
    )
    print(f"{defense}: {len(arrived)} updates at type-0, {len(left)} at type-1, bit-identical: {same}")
    # The same bits leak the same: one attack answers for both.
    taps = {"type-1 and type-0": "type-1"} if same else {"type-1": "type-1", "type-0": "type-0"}
    shares = {called: success_rate(folder, tap, rounds, defense) for called, tap in taps.items()}
    rebuilt = all(share >= 0.9 for share in shares.values())
    stopped = all(share <= 0.1 for share in shares.values())
    print(f"{defense}: ASR of autoleak, one example an update: {', '.join(f'{t} {s:.2f}' for t, s in shares.items())}")
    ours, theirs = in_process(folder, defense, rounds), load_file(folder / "final.safetensors")
    apart = max(float(np.abs(ours[name] - theirs[name]).max()) for name in theirs)
    print(f"{defense}: largest difference of the weights to InProcessGrid's after {rounds} rounds: {apart:.1e}")
    return same and (rebuilt if defense == "none" else stopped) and apart <= 1e-6


def bits(array: Any) -> Any:
    """Return an array's bytes, so that NaN and the two zeros are told apart."""
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def success_rate(folder: Path, tap: str, rounds: int, defense: str) -> float:
    """Return the share of the victims of all rounds whom `autoleak` rebuilds; it knows the defense."""
    build = import_function("model", "digits_app.task:build", str(APP))
    told = None if defense == "none" else resolve("defenses", Defense, defense)[1]
    attacker = Attacker(resolve("attacks", Attack, "autoleak")[1], told, load_dataset("digits")[2])
    shares = []
    for number in range(1, rounds + 1):
        trace = trace_at(folder, tap, number, build(), (1, 8, 8), 10, TrainingOptions(), CLIENTS)
        if isinstance(trace, str):
            raise SystemExit(trace)
        outcome = attack_trace(trace, attacker)
        assert outcome.summary is not None
        shares.append(float(outcome.summary["asr"]))
    return sum(shares) / len(shares)


def in_process(folder: Path, defense: str, rounds: int) -> Any:
    """Return the weights that the same app trains without an engine."""
    app, again = load_flower_app(APP), folder / "in_process"
    config = app.configured(rounds, {"defense": defense, "tap-dir": str(again)})
    again.mkdir(exist_ok=True)
    run_tapped(app, config, CLIENTS, again)
    return load_file(again / "final.safetensors")
