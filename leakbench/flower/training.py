"""How the clients of an app train, as `StepProbeMod` heard it or as the command line says: what makes an update of gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from leakbench.errors import InputError
from leakbench.flower.leaks import Leak
from leakbench.own.seen import Training

__all__ = ["Unknown", "commonest", "heard_of"]

UNROLLED = {"SGD": "sgd", "DPOptimizer": "sgd", "Adam": "adam"}
"""{optimizer of PyTorch: how leakbench's clients step}."""


@dataclass(frozen=True)
class Unknown:
    """What the command line says of it; None: as it was heard."""

    steps: int | None = None
    batch: int | None = None
    learning_rate: float | None = None


def heard_of(probe: Leak | None, given: Unknown) -> Training:
    """Return how one client trained; what is given counts before what was heard.

    Raises InputError, which names the option, for what is neither.
    """
    said = {} if probe is None else probe.said
    sizes = [] if probe is None else [len(a) for name, a in sorted(probe.arrays.items()) if name.startswith("labels/")]
    steps = (
        given.steps
        or int(said.get("local-steps", "0"))
        or _missing("local-iterations", "no optimizer of PyTorch stepped")
    )
    batch = given.batch or (sizes[0] if sizes else _missing("batch", "the app does not call leakbench.flower.observe"))
    rate = (
        given.learning_rate
        or float(said.get("learning-rate", "0"))
        or _missing("learning-rate", "no optimizer stepped")
    )
    optimizer, notes = UNROLLED.get(said.get("optimizer", "SGD")), list[str]()
    if optimizer is None:
        notes.append(f"{said['optimizer']}'s steps are taken for SGD's")
    if steps > 1 and float(said.get("momentum", "0")):
        notes.append("momentum is left out of the steps that are unrolled")
    if float(said.get("weight-decay", "0")):
        notes.append("weight decay is left out")
    if given.batch is None and len(set(sizes)) > 1:
        notes.append(f"batches of {sorted(set(sizes))} are taken for one step of all")
        steps, batch, rate = 1, sum(sizes), rate * steps
    return Training(steps, batch, rate, optimizer or "sgd", "; ".join(notes))


def _missing(option: str, why: str) -> int:
    raise InputError(f"{option}: not known, since {why}; pass --{option}")


def commonest(several: Sequence[Training]) -> Training:
    """Return how most of several clients trained."""
    return Counter(several).most_common(1)[0][0]
