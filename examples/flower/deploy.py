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
import contextlib
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
        # Flower's programs start each other by name, also where this Python's environment is not the active one.
        path = os.pathsep.join([str(Path(sys.executable).parent), *filter(None, [os.environ.get("PATH")])])
        os.environ.update(QUIET, FLWR_HOME=str(home / "flwr"), PATH=path)  # Before flwr is imported, which reads them.
        began = time.monotonic()
        with deployed(home) as link:
            for defense in ("none", DEFENSE):
                print(
                    f"deployment, defense {defense}: {rounds_of_app(link, home, defense, given.rounds):.1f} s",
                    flush=True,
                )
        print(f"deployment ended after {time.monotonic() - began:.1f} s")
        from checked import check  # noqa: PLC0415

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
    link = started(
        home, "superlink", "flower-superlink", *local, str(port), "--disable-runtime-dependency-installation"
    )
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
    return subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and after 15 s end its group, which holds only what it started."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
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
            raise SystemExit(
                f"{what} did not come within {seconds:.0f} s:\n{(home / 'superlink.log').read_text()[-3000:]}"
            )
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
