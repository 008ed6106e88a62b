"""The cost of each defense relative to `none`: milliseconds and memory of one client's local iteration, measured in turns.

    python benchmarks/defense_cost.py [--dataset mnist] [--clients 10] [--iterations 20] [--repeats 3] [NAME ...]

Each defense trains one round of so many clients; `none` is timed right before each, so that both meet the same machine, and the
ratio is the median over the repeats. Memory is the peak of a separate process above that of `none`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import time

from leakbench.cell import Cell, Request, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.recipe import names
from leakbench.reproduce.cost import one_round


def seconds(cell: Cell) -> float:
    """Return the seconds of one round of training, without the test of its accuracy."""
    work = one_round(cell)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def peak(cell: Cell) -> float:
    """Return the peak memory in MiB of a process that trains one round."""

    def measure(pipe: multiprocessing.connection.Connection) -> None:
        seconds(cell)
        pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=measure, args=(there,))
    process.start()
    found = here.recv()
    process.join()
    return float(found)


def main() -> None:
    """Print a table."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("names", nargs="*")
    asked.add_argument("--dataset", default="mnist")
    asked.add_argument("--model")
    for name, default in (("clients", 10), ("iterations", 20), ("repeats", 3)):
        asked.add_argument(f"--{name}", type=int, default=default)
    given = asked.parse_args()

    def cell_of(defense: str) -> Cell:
        federation = {"clients": 100, "clients_per_round": given.clients, "local_iterations": given.iterations}
        return resolve_cell(
            Request(defense=defense, dataset=given.dataset, model=given.model, train_rounds=1, **federation), None
        )

    plain = cell_of("none")
    seconds(plain)
    print(
        f"{given.dataset}, {plain.settings.model}, batch {plain.settings.federation.batch}, {given.clients} clients as lanes"
    )
    print(f"{'defense':<36}{'ms':>8}{'none ms':>9}{'ratio':>7}{'MiB more':>10}")
    for name in given.names or names("defenses"):
        try:
            cell = cell_of(name)
        except InputError as error:
            print(f"{name:<36}{error}")
            continue
        pairs = [(seconds(plain), seconds(cell)) for _ in range(given.repeats)]
        each = 1000 / (given.clients * given.iterations)
        none, own = (statistics.median(p[i] for p in pairs) * each for i in (0, 1))
        ratio = statistics.median(own / plain_ for plain_, own in pairs)
        print(f"{name:<36}{own:>8.2f}{none:>9.2f}{ratio:>7.2f}{peak(cell) - peak(plain):>10.0f}", flush=True)


if __name__ == "__main__":
    main()
