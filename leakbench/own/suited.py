"""The strongest attack on networks that it was not made on: labels that it cannot read there are counted or searched."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.slots.labels import Joint, LastLayer, LastLayerCounts
from leakbench.own.attacker import Attacker
from leakbench.own.modes import in_mode
from leakbench.own.ordered import ran
from leakbench.own.seen import Seen

__all__ = ["suited"]

SEARCHED = "no trained layer ends the network with a row for each class: autoleak searches labels with the inputs"
COUNTED = "features of the last layer can be negative: autoleak counts labels by public examples, not by their signs"


def suited(attacker: Attacker, seen: Seen) -> tuple[Attacker, str]:
    """Return the attacker that reads labels as this network lets it, and a sentence where that is not as its recipe does.

    Of other attacks than `autoleak`, which are published ones, nothing is changed.
    """
    view, method = seen.view, attacker.attack.method
    if not isinstance(method, AutoLeak):
        return attacker, ""
    matrices = [p for p in view.update.values() if p.dim() > 2]
    x = torch.rand(4, *view.shape, generator=torch.Generator().manual_seed(0))
    found = ran(in_mode(view.network.model, "eval"), x)
    labels: Any
    if not matrices or matrices[-1].shape[1] != view.classes or not found.answers:
        labels, said = Joint(), SEARCHED
    elif found.signed:
        labels, said = LastLayerCounts(), COUNTED
    else:
        return attacker, ""
    changed = dataclasses.replace(attacker.attack, method=_with(method, labels))
    return dataclasses.replace(attacker, attack=changed), said


def _with(part: Any, labels: Any) -> Any:
    """Return a part with other labels in place of those that are read off the last layer, however deep they lie."""
    if isinstance(part, LastLayer | LastLayerCounts):
        return labels
    if isinstance(part, tuple):
        return tuple(_with(inner, labels) for inner in part)
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return part
    changed = {f.name: _with(getattr(part, f.name), labels) for f in dataclasses.fields(part) if f.init}
    return dataclasses.replace(part, **changed)
