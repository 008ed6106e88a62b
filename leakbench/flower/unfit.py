"""Clients that cannot be attacked beside the others: they are left out, which is said, and the others attacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from leakbench.flower.leaks import Leak
from leakbench.flower.training import Unknown

__all__ = ["fit"]

SINGLE = ("example/", "sample/")
"""How the gradients of single examples are called in a leak."""


def fit(
    model: nn.Module, leaks: Sequence[Leak], probes: Mapping[int, Leak], given: Unknown
) -> tuple[list[Leak], list[str]]:
    """Return the leaks of one tap and round that can be attacked, and in sentences how many are left out and why.

    Args:
        model: The app's network, whose state has to be finite.
        probes: {node: what was heard of its training}.
        given: How clients train, as the command line says.
    """
    some_stepped = any(int(probe.said.get("local-steps", "0")) for probe in probes.values())
    names = set(model.state_dict())
    reasons = {
        leak.node: _unfit(probes.get(leak.node), given, some_stepped) or _infinite(names, leak, probes.get(leak.node))
        for leak in leaks
    }
    many = Counter(filter(None, reasons.values()))
    notes = [f"{count} of {len(leaks)} clients left out: {reason}" for reason, count in many.items()]
    return [leak for leak in leaks if not reasons[leak.node]], notes


def _unfit(probe: Leak | None, given: Unknown, some_stepped: bool) -> str:
    """Return why a client is not attacked; empty where it is."""
    if probe is None:
        return ""
    if some_stepped and given.steps is None and not int(probe.said.get("local-steps", "0")):
        return "no step was heard of them"  # Of none at all, the app steps by something else than PyTorch's optimizers.
    sizes = [len(array) for name, array in probe.arrays.items() if name.startswith("labels/")]
    if sizes and not sum(sizes):
        return "their batches are empty"
    return ""


def _infinite(names: set[str], leak: Leak, probe: Leak | None) -> str:
    """Return where the numbers of one client are not finite; empty where all are."""
    sent = {n: a for n, a in leak.sent.items() if n in names and np.issubdtype(a.dtype, np.floating)}
    shown = {n: a for n, a in (probe.arrays if probe is not None else {}).items() if n.startswith("inputs/")}
    if leak.tap == "type-2":
        what, left = "the gradients", {n: a for n, a in leak.arrays.items() if n.startswith(SINGLE)}
    else:
        what = "the update"
        with np.errstate(over="ignore", invalid="ignore"):
            left = {name: leak.arrays[name] - sent[name] for name in sent if name in leak.arrays}
    for where, arrays in (("the weights that were sent", sent), ("the observed inputs", shown), (what, left)):
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                return f"numbers that are not finite, in {where} ({name})"
    return ""
