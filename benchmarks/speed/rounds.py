"""A whole private round: compared with a plain loop without privacy, with its arithmetic and with Flower; and its memory."""

from __future__ import annotations

import statistics
from functools import partial

from torch import nn

from benchmarks.speed.figure import Figure, absent
from benchmarks.speed.flower import flower_rounds, missing
from benchmarks.speed.operations import ceiling, gradient_operations, layer_products
from benchmarks.speed.peak import peak_of_a_round
from benchmarks.speed.plain import Step, local_training, plain_step
from benchmarks.speed.size import Size
from benchmarks.speed.task import (
    BATCH,
    CHECKED,
    CLASSES,
    RATE,
    SHAPE,
    BenchTask,
    check_same,
    defense,
    fresh_model,
    our_update,
    task,
)
from benchmarks.speed.timing import either_way, least, median, one_thread_each
from benchmarks.speed.ways import check_way, fastest_way
from leakbench.core.types import Parameters
from leakbench.reproduce.cost import Arms, in_turns, seconds

__all__ = ["flop_efficiency", "peak_memory_mb", "round_vs_flower", "round_vs_plain"]


def round_vs_plain(size: Size) -> Figure:
    """Return the ratio of a round of plain PyTorch without privacy to leakbench's private round."""
    made = task(size.clients, size.iterations)
    model = fresh_model()
    step = plain_step(model, RATE)
    inputs, labels = made.held(0)
    theirs = local_training(model, made.start, step, inputs, labels, BATCH, CHECKED)
    check_same("the plain loop", our_update(made, (), inputs, labels, CHECKED), theirs)
    small, mechanism = task(2, CHECKED), defense("fed_cdp")
    plain_round(small, model, step)
    small.round(mechanism)  # Both run once before the measurement.
    arms: Arms = either_way({"plain": partial(plain_round, made, model, step), "ours": partial(made.round, mechanism)})
    taken = in_turns(arms, size.repeats, warm=False)
    return Figure(
        "times",
        f"a round of {size.clients} clients x {size.iterations} iterations by a plain, not private torch.optim.SGD loop, with"
        " our threads or with one, whichever is faster, over our round of fed_cdp",
        tuple(least(t, ["plain"]) / t["ours"] for t in taken),
        {f"{arm}, s a round": median(taken, arm) for arm in arms} | one_thread_each(taken, ["plain"], "ours"),
    )


def plain_round(made: BenchTask, model: nn.Module, step: Step, batch: int = BATCH) -> Parameters:
    """Train one client after another and return the mean update."""
    total: Parameters = {}
    federation = made.federation
    for client in range(federation.clients_per_round):
        inputs, labels = made.held(client)
        own = local_training(model, made.start, step, inputs, labels, batch, federation.local_iterations)
        total = {n: total[n] + u for n, u in own.items()} if total else own
    return {n: u / federation.clients_per_round for n, u in total.items()}


def flop_efficiency(size: Size) -> Figure:
    """Return the share of a private round's time that its arithmetic takes at the ceiling of this machine."""
    made = task(size.clients, size.iterations)
    operations = gradient_operations(layer_products(made.model, SHAPE, CLASSES))
    operations *= size.clients * size.iterations * BATCH
    mechanism = defense("fed_cdp")
    made.round(mechanism)
    tops, taken = [], []
    for _ in range(size.repeats):
        tops.append(ceiling())
        taken.append(seconds(lambda: made.round(mechanism)))
    return Figure(
        "share",
        f"the arithmetic of a round of fed_cdp, {size.clients} clients x {size.iterations}, as plain layers count it (our engine"
        " leaves out a fifth, the places that a pool leaves over), at the ceiling of a large product, over the time it took",
        tuple(operations / top / took for top, took in zip(tops, taken, strict=True)),
        {
            "GFLOP a round": operations / 1e9,
            "ceiling, GFLOP/s": statistics.median(tops) / 1e9,
            "ours, s a round": statistics.median(taken),
        },
    )


def round_vs_flower(size: Size) -> Figure:
    """Return the ratio of a round of Flower's simulation, after the start of its engine, to leakbench's for the same work."""
    if reason := missing():
        return absent(reason)
    clients, iterations = size.flower
    made = task(clients, iterations)
    way = fastest_way(made)
    check_way(made, way)
    ours, whole = [], partial(made.round, defense("fed_cdp"))
    whole()
    ours.append(seconds(whole))
    found = flower_rounds(clients, iterations, size.flower_rounds, way)
    if isinstance(found, str):
        return absent(found)
    ours += [seconds(whole) for _ in range(max(1, size.repeats - 1))]
    middle = statistics.median(ours)
    return Figure(
        "times",
        f"a round of {clients} clients x {iterations} private iterations in Flower's simulation (Ray, one core a client, as many at"
        f" once as we have threads, inside each {way}), from its second round on, over our round of fed_cdp",
        tuple(s / middle for s in found.later),
        {
            "Flower, s a round": statistics.median(found.later),
            "Flower, s of its start and first round": found.first,
            f"Flower, s a round over {size.flower_rounds}, start included": found.whole / size.flower_rounds,
            "ours, s a round": middle,
            "times, start included": found.whole / size.flower_rounds / middle,
        },
    )


def peak_memory_mb(size: Size) -> Figure:
    """Return the peak resident memory of a process that runs only one round of Fed-CDP."""
    iterations = size.iterations
    values = tuple(peak_of_a_round(100, iterations) for _ in range(size.rarely))
    return Figure(
        "MiB",
        f"peak resident memory of a process that trains one round of fed_cdp, 100 of 1,000 clients x {iterations}, on"
        " 60,000 pictures of 28 x 28",
        values,
    )
