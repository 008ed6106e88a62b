"""What privacy costs: local iterations of Fed-CDP beside those without a defense, and beside those of Opacus."""

from __future__ import annotations

import warnings
from functools import partial
from importlib.util import find_spec

from leakbench.bench.figure import Figure, absent
from leakbench.bench.plain import local_training
from leakbench.bench.same import check_same, our_update
from leakbench.bench.size import Size
from leakbench.bench.task import BATCH, CLIP, RATE, SIGMA, Task, defense, fresh_model, task
from leakbench.bench.timing import in_turns, median

__all__ = ["alpha_over_dp", "dp_over_nonprivate", "dp_vs_opacus", "flat_over_nonprivate"]

CHECKED = 5
"""Local iterations over which a reference's update is compared with ours."""


def dp_over_nonprivate(size: Size) -> Figure:
    """Return `fed_cdp` over `none`."""
    return _over("fed_cdp", "none", size)


def alpha_over_dp(size: Size) -> Figure:
    """Return `fed_alpha_cdp` over `fed_cdp`."""
    return _over("fed_alpha_cdp", "fed_cdp", size)


def flat_over_nonprivate(size: Size) -> Figure:
    """Return `fed_cdp_flat`, one clip over all tensors, over `none`."""
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
    """Return a local iteration of Opacus, by the fastest of its ways in each repeat, over one of ours."""
    if find_spec("opacus") is None:
        return absent("Opacus is not installed: pip install 'leakbench[bench]'")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # Of each of its layers, by PyTorch.
        return _vs_opacus(size)


def _vs_opacus(size: Size) -> Figure:
    from leakbench.bench.opacus_loop import KINDS, opacus_step  # noqa: PLC0415

    made = task(size.few, size.steps)
    inputs, labels = made.held(0)
    arms = {}
    for kind in KINDS:
        _check_opacus(made, kind)
        model, step = opacus_step(kind, made.model, RATE, BATCH, CLIP, SIGMA)
        arms[kind] = partial(local_training, model, made.start, step, inputs, labels, BATCH, size.steps)
    ours = {"ours": partial(made.round, defense("fed_cdp"))}
    taken = in_turns({**arms, **ours}, size.repeats)
    each = {**dict.fromkeys(arms, 1000 / size.steps), "ours": 1000 / (size.few * size.steps)}
    return Figure(
        "times",
        "a client's local iteration with Opacus (the fastest way of each repeat; one client) over one of fed_cdp by our"
        f" engine ({size.few} clients)",
        tuple(min(t[kind] * each[kind] for kind in arms) / (t["ours"] * each["ours"]) for t in taken),
        {
            f"{arm if arm == 'ours' else f'Opacus, {arm}'}, ms an iteration": median(taken, arm) * ms
            for arm, ms in each.items()
        },
    )


def _check_opacus(made: Task, kind: str) -> None:
    from leakbench.bench.opacus_loop import opacus_step  # noqa: PLC0415

    inputs, labels = made.held(1)
    model, step = opacus_step(kind, fresh_model(), RATE, BATCH, CLIP, 0.0)
    theirs = local_training(model, made.start, step, inputs, labels, BATCH, CHECKED)
    name = "fed_cdp" if kind.startswith("layers") else "fed_cdp_flat"
    check_same(f"Opacus ({kind})", our_update(made, name, inputs, labels, CHECKED), theirs)
