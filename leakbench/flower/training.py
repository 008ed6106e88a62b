"""How the clients of an app train, as `StepProbeMod` heard it or as the command line says: what makes an update of gradients."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from leakbench.errors import InputError
from leakbench.flower.leaks import Leak
from leakbench.own.seen import Training
from leakbench.own.stepped import UNROLLED

__all__ = ["Unknown", "commonest", "heard_of"]

Kind = TypeVar("Kind", bound=Hashable)

AT_ONCE = ("eps", "maximize")
"""Settings by which even the first step of SGD or Adam is another; momentum's and the averages' begin with the second."""


@dataclass(frozen=True)
class Unknown:
    """What the command line says of it; None: as it was heard."""

    steps: int | None = None
    batch: int | None = None
    learning_rate: float | None = None
    mode: str | None = None


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
    unusual: dict[str, Any] = json.loads(said.get("unusual", "{}"))
    if steps == 1 and optimizer == "sgd" and unusual.get("nesterov"):
        rate *= 1 + float(unusual["momentum"])  # Of a first step exactly: the gradient and momentum times it.
    ignored = [name for name in unusual if name != "weight_decay" and (steps > 1 or name in AT_ONCE)]
    if ignored:
        are = "is" if len(ignored) == 1 else "are"
        notes.append(f"{' and '.join(ignored)} {are} left out of the steps that are unrolled")
    rates: list[float] = json.loads(said.get("learning-rates", "[]"))
    if rates and given.learning_rate is None:
        notes.append(f"learning rates {', '.join(f'{one:g}' for one in rates)} are taken for {rate:g}")
    if float(said.get("weight-decay", "0")) or "weight_decay" in unusual:
        notes.append("weight decay is left out")
    if given.batch is None and len(set(sizes)) > 1:
        notes.append(f"batches of {sorted(set(sizes))} are taken for one step of all")
        steps, batch, rate = 1, sum(sizes), rate * steps
    return Training(
        steps, batch, rate, optimizer or "sgd", "\n".join(notes), given.mode or said.get("victim-mode", "eval")
    )


def _missing(option: str, why: str) -> int:
    raise InputError(f"{option}: not known, since {why}; pass --{option}")


def commonest(several: Sequence[Kind]) -> Kind:
    """Return of what kind most of several clients are."""
    return Counter(several).most_common(1)[0][0]
