"""A whole Flower deployment on this machine's loopback, watched by leakbench: what leaks from two clients, bare and defended.

    python examples/flower/deploy.py

Starts a SuperLink and two SuperNodes, runs the app beside this file twice, without a defense and with one, and ends what it
started. No network is needed. It prints figures and exits with 1 where one of these does not hold:

- what arrives at the server (type-0) is to the bit what left the client (type-1);
- the bare updates, each of one example, are rebuilt (ASR at least .9), the defended ones are not;
- the same app on `InProcessGrid` trains the same weights to 1e-6.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

APP = Path(__file__).resolve().parent / "app"
CLIENTS = 2
DEFENSE = "fed_sdp_client_valid"
"""A clip at 4 and noise of 6 times that on each client's update."""

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}


def main() -> None:
    """Deploy, run, attack, compare."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=5, help="rounds of each run, with two victims each [default: 5]")
    options.add_argument("--keep", type=Path, help="a folder to keep leaks and logs in")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = given.keep.resolve() if given.keep else Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        os.environ.update(QUIET, FLWR_HOME=str(home / "flwr"))  # Before flwr is imported, which reads them then.
        began = time.monotonic()
        with deployed(home) as link:
            for defense in ("none", DEFENSE):
                print(f"deployment, defense {defense}: {rounds_of_app(link, home, defense, given.rounds):.1f} s", flush=True)
        print(f"deployment ended after {time.monotonic() - began:.1f} s")
        sys.exit(0 if all([check(home / defense, defense, given.rounds) for defense in ("none", DEFENSE)]) else 1)


@contextmanager
def deployed(home: Path) -> Iterator[str]:
    """Yield the name of a SuperLink with two SuperNodes; at the end they are told to end, nodes first."""
    port, *others = free_ports(1 + CLIENTS)
    (home / "flwr").mkdir(exist_ok=True)
    address = f"127.0.0.1:{port}"
    config = f'[superlink]\ndefault="lb"\n[superlink.lb]\naddress="{address}"\ninsecure=true\n'
    (home / "flwr" / "config.toml").write_text(config, encoding="utf-8")
    local = ("--insecure", "--host", "127.0.0.1", "--port")
    link = started(home, "superlink", "flower-superlink", *local, str(port), "--disable-runtime-dependency-installation")
    processes = [link]
    try:
        wait_for(lambda: healthy(f"http://{address}/health"), 60, "the SuperLink", home)
        for i, own in enumerate(others):
            node = f"partition-id={i} num-partitions={CLIENTS}"
            where = ("--superlink", address, "--node-config", node)
            processes.append(started(home, f"supernode{i}", "flower-supernode", *local, str(own), *where))
        yield "lb"
    finally:
        for process in reversed(processes):
            end(process)


def started(home: Path, name: str, program: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a program of Flower's that lies beside this Python, in a group of its own, logging into a file."""
    log = (home / f"{name}.log").open("wb")
    command = [str(Path(sys.executable).with_name(program)), *words]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and after 15 s end its group, which holds only what it started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def rounds_of_app(link: str, home: Path, defense: str, rounds: int) -> float:
    """Run the app with a defense to its end and return the seconds; its taps write into a folder of the defense's name."""
    folder = home / defense
    folder.mkdir(exist_ok=True)
    config = f'num-server-rounds={rounds} defense="{defense}" tap-dir="{folder}"'
    began = time.monotonic()
    before = {run["run-id"] for run in runs(link)}
    flwr("run", str(APP), link, "--run-config", config)

    def finished() -> bool:
        [mine] = [run for run in runs(link) if run["run-id"] not in before] or [{"status": ""}]
        if mine["status"].startswith("finished") and mine["status"] != "finished:completed":
            raise SystemExit(f"the app ended as {mine['status']}:\n{(home / 'superlink.log').read_text()[-3000:]}")
        return bool(mine["status"] == "finished:completed")

    wait_for(finished, 60 + 60 * rounds, f"the app with the defense {defense}", home)
    return time.monotonic() - began


def runs(link: str) -> list[dict[str, Any]]:
    """Return what the SuperLink knows of its runs; how one ended stands only there, not in an exit code."""
    said = json.loads(flwr("list", link, "--format", "json"))
    found: list[dict[str, Any]] = said["runs"]
    return found


def flwr(*words: str) -> str:
    """Call Flower's command line and return what it prints."""
    command = [str(Path(sys.executable).with_name("flwr")), *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(f"flwr {words[0]} failed ({done.returncode}): {done.stdout[-1000:]} {done.stderr[-1000:]}")
    return done.stdout


def check(folder: Path, defense: str, rounds: int) -> bool:
    """Print what leaked in a run and say whether it is as it should be."""
    import numpy as np
    from safetensors.numpy import load_file

    from leakbench.flower.leaks import read_leaks

    arrived, left = ({(leak.round, leak.node): leak for leak in read_leaks(folder, tap)} for tap in ("type-0", "type-1"))
    same = arrived.keys() == left.keys() and len(left) == CLIENTS * rounds
    same = same and all(
        np.array_equal(bits(array), bits(left[key].arrays[name]))
        for key, leak in arrived.items()
        for name, array in leak.arrays.items()
    )
    print(f"{defense}: {len(arrived)} updates at type-0, {len(left)} at type-1, equal to the bit: {same}")
    shares = {tap: success_rate(folder, tap, rounds, defense) for tap in ("type-1", "type-0")}
    rebuilt = all(share >= 0.9 for share in shares.values())
    stopped = all(share <= 0.1 for share in shares.values())
    print(f"{defense}: ASR of autoleak, one example an update: {', '.join(f'{t} {s:.2f}' for t, s in shares.items())}")
    ours, theirs = in_process(folder, defense, rounds), load_file(folder / "final.safetensors")
    apart = max(float(np.abs(ours[name] - theirs[name]).max()) for name in theirs)
    print(f"{defense}: largest difference of the weights to InProcessGrid's after {rounds} rounds: {apart:.1e}")
    return same and (rebuilt if defense == "none" else stopped) and apart <= 1e-6


def bits(array: Any) -> Any:
    """Return an array's bytes, so that NaN and the two zeros are told apart."""
    import numpy as np

    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)


def success_rate(folder: Path, tap: str, rounds: int, defense: str) -> float:
    """Return the share of the victims of all rounds whom `autoleak` rebuilds; it knows the defense."""
    from leakbench.attack import Attack
    from leakbench.data.find import load_dataset
    from leakbench.defense import Defense
    from leakbench.flower.attacked import Attacker, attack_seen
    from leakbench.flower.seen import seen_at
    from leakbench.flower.training import Unknown
    from leakbench.recipe import resolve

    sys.path.insert(0, str(APP))
    from digits_app.task import build

    told = None if defense == "none" else resolve("defenses", Defense, defense)[1]
    attacker = Attacker(resolve("attacks", Attack, "autoleak")[1], told, load_dataset("digits")[2])
    shares = []
    for number in range(1, rounds + 1):
        seen = seen_at(folder, tap, number, build(), (1, 8, 8), 10, Unknown(), CLIENTS)
        if isinstance(seen, str):
            raise SystemExit(seen)
        outcome = attack_seen(seen, attacker)
        assert outcome.summary is not None
        shares.append(float(outcome.summary["asr"]))
    return sum(shares) / len(shares)


def in_process(folder: Path, defense: str, rounds: int) -> Any:
    """Return the weights that the same app trains without an engine."""
    from safetensors.numpy import load_file

    from leakbench.flower.app import load_flower_app, run_tapped

    app, again = load_flower_app(APP), folder / "in_process"
    config = app.configured(rounds, {"defense": defense, "tap-dir": str(again)})
    again.mkdir(exist_ok=True)
    run_tapped(app, config, CLIENTS, again)
    return load_file(again / "final.safetensors")


def healthy(address: str) -> bool:
    """Say whether a server answers."""
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_for(there: Any, seconds: float, what: str, home: Path) -> None:
    """Wait until something is there; end with the SuperLink's log where it does not come."""
    until = time.monotonic() + seconds
    while not there():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not come within {seconds:.0f} s:\n{(home / 'superlink.log').read_text()[-3000:]}")
        time.sleep(0.5)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on now."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in held]
    for one in held:
        one.close()
    return ports


if __name__ == "__main__":
    main()
