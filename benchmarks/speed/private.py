"""The cost of privacy: local iterations of Fed-CDP compared with those without a defense, and with those of Opacus."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

from benchmarks.speed.figure import Figure, absent
from benchmarks.speed.plain import local_training
from benchmarks.speed.size import Size
from benchmarks.speed.task import BATCH, defense, task
from benchmarks.speed.timing import either_way, least, median, one_thread_each
from benchmarks.speed.ways import WAYS, check_way, private_step, without_hook_warnings
from leakbench.reproduce.cost import in_turns

__all__ = ["alpha_over_dp", "dp_over_nonprivate", "dp_vs_opacus", "flat_over_nonprivate"]


def dp_over_nonprivate(size: Size) -> Figure:
    """Return the ratio of `fed_cdp` to `none`."""
    return _over("fed_cdp", "none", size)


def alpha_over_dp(size: Size) -> Figure:
    """Return the ratio of `fed_alpha_cdp` to `fed_cdp`."""
    return _over("fed_alpha_cdp", "fed_cdp", size)


def flat_over_nonprivate(size: Size) -> Figure:
    """Return the ratio of `fed_cdp_flat`, one clip over all tensors, to `none`."""
    return _over("fed_cdp_flat", "none", size)


def _over(name: str, base: str, size: Size) -> Figure:
    made = task(size.few, size.steps)
    arms = {base: partial(made.round, defense(base)), name: partial(made.round, defense(name))}
    taken = in_turns(arms, size.repeats)
    each = 1000 / (size.few * size.steps)
    return Figure(
        "times",
        f"a local iteration of {name} over one of {base}, both by our engine; {size.few} clients x {size.steps}",
        tuple(t[name] / t[base] for t in taken),
        {f"{arm}, ms an iteration": median(taken, arm) * each for arm in arms},
    )


def dp_vs_opacus(size: Size) -> Figure:
    """Return the ratio of a local iteration of Opacus, by its fastest way in each repeat, to one of leakbench."""
    if find_spec("opacus") is None:
        return absent("Opacus is not installed: pip install 'leakbench[bench]'")
    with without_hook_warnings():
        return _vs_opacus(size)


def _vs_opacus(size: Size) -> Figure:
    made = task(size.few, size.steps)
    inputs, labels = made.held(0)
    arms = {}
    for kind in WAYS[1:]:
        check_way(made, kind)
        model, step = private_step(kind, made.model)
        arms[kind] = partial(local_training, model, made.start, step, inputs, labels, BATCH, size.steps)
    ways = either_way({**arms, "ours": partial(made.round, defense("fed_cdp"))})
    taken = in_turns(ways, size.repeats)
    each = {arm: 1000 / (size.steps * (size.few if arm.startswith("ours") else 1)) for arm in ways}
    return Figure(
        "times",
        "a client's local iteration with Opacus (the fastest way of each repeat, with our threads or with one; one client) over one"
        f" of fed_cdp by our engine ({size.few} clients)",
        tuple(least(t, arms) * size.few / t["ours"] for t in taken),
        {f"{arm}, ms an iteration": median(taken, arm) * ms for arm, ms in each.items()}
        | one_thread_each(taken, list(arms), "ours", 1 / size.few),
    )
