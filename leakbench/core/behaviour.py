"""Behaviour versions: which numbers a piece of leakbench computes, as a whole number that rises when they change.

A part declares its version in one line, without an annotation, so that it is not a field:

    @part
    class ClipWhole:
        behaviour = 2

What many cells share (the engine, the training, the metrics, ...) has its version in `SHARED` below; a network has a field in
`leakbench.models.catalog.MODELS`. A version is part of the identity of the cells that use the piece, so that rows measured with
an earlier one are known to be stale. Version 1 is left out of every hash and file: identities from before there were versions
stay as they are. Code that is moved, renamed or made faster keeps its version.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = [
    "FIRST",
    "NAME",
    "SHARED",
    "behaviour_of",
    "check_behaviour",
    "identity_name",
    "part_name",
    "raised",
    "versions_of_parts",
]

FIRST = 1
"""The version of a piece that declares none."""

SHARED = {
    "accounting": 2,  # leakbench.privacy: epsilons
    "baseline guess": 1,  # leakbench.attack.null: the best guess without a gradient
    "batches": 2,  # leakbench.attack.batch_features: what is read of a batch
    "bounds": 1,  # leakbench.limits: bounds on any attack
    "closed forms": 2,  # leakbench.attack.methods.autoleak: the closed forms that run before the stages on transformers
    "engine": 1,  # leakbench.engine: gradients, and the noise that is added to them
    "intervals": 1,  # leakbench.measure.statistics
    "leakage": 1,  # leakbench.federated.leakage: what leaks, and which victims are drawn
    "local steps": 2,  # leakbench.attack.batch_features: what is read of an update of several local steps
    "metrics": 1,  # leakbench.measure.metrics: scores of a reconstruction, the threshold of success
    "rankings": 2,  # leakbench.scoring.rankings: scores of a ranking, its candidates; a part that ranks has its own version
    "recognition": 1,  # leakbench.measure.recognised: the rule of recognition
    "training": 1,  # leakbench.federated.simulate: the weights in which a training ends
    "verdicts": 1,  # leakbench.summary.verdict: the rules of verdicts
}
"""{piece that cells share: its version}; which cells use it says `leakbench.cell.behaviours`."""

NAME = "part_name"
"""Attribute of a class that `leakbench.core.part.part` was given a name for."""

FORMER = {
    "claim.none": "NoClaim",
    "claim.moments": "MomentsClaim",
    "claim.composition": "CompositionClaim",
    "claim.geyer": "GeyerClaim",
    "claim.flower": "FlowerClaim",
    "claim.nbafl": "NbaflClaim",
    "descent.lbfgs": "LbfgsDescent",
    "descent.adam": "AdamDescent",
    "method.autoleak": "AutoLeak",
    "priors.batch_norm": "BatchNormStatistics",
    "server.trap": "TrapWeights",
    "start.lmmse": "LmmseStart",
    "transform.adaclip": "AdaClip",
    "transform.adaclip_released": "AdaClipReleased",
}
"""{name of a part: its name in identities}, for names other than the part's name in one word with capitals.

Rows, cards and run folders were published with these, so that they stay as they are; a new part needs no entry.
"""


def part_name(cls: type[Any]) -> str | None:
    """Return the name that a class was made a part with, as `transform.clip_whole`; None for another class."""
    name = vars(cls).get(NAME)
    return name if isinstance(name, str) else None


def identity_name(cls: type[Any]) -> str:
    """Return what identities call a class: by the name of the part, as `ClipWhole` of `transform.clip_whole`.

    A class without a name is called as it is in Python.
    """
    name = part_name(cls)
    if name is None:
        return cls.__name__
    return FORMER.get(name) or "".join(word.capitalize() for word in name.rpartition(".")[2].split("_"))


def behaviour_of(cls: type[Any]) -> int:
    """Return the behaviour version of a part's class."""
    return int(getattr(cls, "behaviour", FIRST))


def check_behaviour(cls: type[Any]) -> None:
    """Raise TypeError for a class whose behaviour version is not a whole number of at least 1, or is a field of its instances."""
    version = getattr(cls, "behaviour", FIRST)
    if "behaviour" in {f.name for f in dataclasses.fields(cls)}:
        raise TypeError(
            f"{cls.__qualname__}: behaviour: got a field, expected a line without annotation: behaviour = 2"
        )
    if type(version) is not int or version < FIRST:
        raise TypeError(f"{cls.__qualname__}: behaviour: got {version!r}, expected a whole number >= {FIRST}")


def versions_of_parts(value: Any) -> dict[str, int]:
    """Return {name in identities: behaviour version} of a part or recipe and of every part that its fields contain."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {identity_name(type(value)): behaviour_of(type(value))}
        return found | versions_of_parts([getattr(value, f.name) for f in dataclasses.fields(value)])
    if isinstance(value, Mapping):
        return versions_of_parts(list(value.values()))
    found = {}
    for each in value if isinstance(value, tuple | list) else ():
        found |= versions_of_parts(each)
    return found


def raised(versions: Mapping[str, int]) -> dict[str, int]:
    """Return the versions above the first, sorted by name: what hashes and files contain."""
    return {name: version for name, version in sorted(versions.items()) if version > FIRST}
