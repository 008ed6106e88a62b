"""From the leaks of a Flower app to the trace of one leakage point and round, with the truth if it was observed."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.core.types import Clock
from leakbench.external.network import Normal, frozen, undo_normal
from leakbench.external.observation import UNROLLED
from leakbench.external.trace import Trace, Training
from leakbench.federated.optimizer import linear_steps
from leakbench.flower.leaks import FIRST, Leak, Named, read_leaks
from leakbench.storage.store import tensor_hash

__all__ = ["TrainingOptions", "trace_at"]

CURE = "pass --mean and --std as the app normalises them, or divide 8-bit pixels by 255 in the app"

SINGLE = ("example/", "sample/")
"""Prefixes of the gradients of single examples in a leak: from `observe`, and from Opacus."""

AT_ONCE = ("eps", "maximize")
"""Settings that change even the first step of SGD or Adam; momentum and averages begin with the second."""


@dataclass(frozen=True)
class TrainingOptions:
    """How the clients train, as options of the command line; None for what was recorded.

    Args:
        steps: Number of local steps.
        batch: Number of examples in a step.
        learning_rate: Learning rate.
        mode: `eval` or `train`, the mode of the normalisation layers.
    """

    steps: int | None = None
    batch: int | None = None
    learning_rate: float | None = None
    mode: str | None = None

    def training(self, probe: Leak | None) -> Training:
        """Return how one client trained; an option overrides the record.

        Args:
            probe: What `StepProbeMod` recorded of the client; None for nothing.

        Raises:
            InputError: With the name of the option, for what is neither given nor recorded.
        """
        header = {} if probe is None else probe.said
        sizes = _batch_sizes(probe)
        steps = self.steps or int(header.get("local-steps", "0"))
        steps = steps or _missing("local-iterations", "no optimizer of PyTorch stepped")
        batch = self.batch or next(filter(None, sizes), 0)
        batch = batch or _missing("batch", "the app does not call leakbench.flower.observe")
        rate = self.learning_rate or float(header.get("learning-rate", "0"))
        rate = rate or _missing("learning-rate", "no optimizer stepped")
        optimizer, notes = UNROLLED.get(header.get("optimizer", "SGD")), list[str]()
        if optimizer is None:
            notes.append(f"{header['optimizer']}'s steps are taken for SGD's")
        unusual: dict[str, Any] = json.loads(header.get("unusual", "{}"))
        if steps == 1 and optimizer == "sgd" and unusual.get("nesterov"):
            rate *= 1 + float(unusual["momentum"])  # Exact for a first step: the gradient plus momentum times it.
        ignored = [name for name in unusual if name != "weight_decay" and (steps > 1 or name in AT_ONCE)]
        if ignored:
            are = "is" if len(ignored) == 1 else "are"
            notes.append(f"{' and '.join(ignored)} {are} left out of the steps that are unrolled")
        rates: list[float] = json.loads(header.get("learning-rates", "[]"))
        if rates and self.learning_rate is None:
            notes.append(f"learning rates {', '.join(f'{one:g}' for one in rates)} are taken for {rate:g}")
        momentum, decay = _regular(header, unusual, optimizer)
        if (float(header.get("weight-decay", "0")) or "weight_decay" in unusual) and not decay:
            notes.append("weight decay is left out")
        if self.batch is None and len(set(sizes)) > 1:
            notes.append(f"batches of {sorted(set(sizes))} are taken for one step of all")
            length = linear_steps(Clock(0, 0, 1, steps, momentum=momentum), rate, steps).length
            steps, batch, rate = 1, sum(sizes), rate * length
        mode = self.mode or header.get("victim-mode", "eval")
        return Training(batch, steps, rate, optimizer or "sgd", mode, "\n".join(notes), momentum, decay)


def _regular(header: Mapping[str, str], unusual: Mapping[str, Any], optimizer: str | None) -> tuple[float, float]:
    """Return the momentum and the weight decay that are unrolled, 0 where the optimizer's groups or settings do not allow it."""
    read = {name: float(header.get(name, "0")) for name in ("momentum", "weight-decay")}
    momentum = (
        read["momentum"] if optimizer == "sgd" and not {"momentum", "nesterov", "dampening"} & set(unusual) else 0.0
    )
    return momentum, read["weight-decay"] if optimizer is not None and "weight_decay" not in unusual else 0.0


def _batch_sizes(probe: Leak | None) -> list[int]:
    return [] if probe is None else [len(a) for name, a in sorted(probe.arrays.items()) if name.startswith("labels/")]


def _missing(option: str, why: str) -> int:
    raise InputError(f"{option}: not known, since {why}; pass --{option}")


def trace_at(
    folder: Path,
    tap: str,
    number: int,
    model: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    options: TrainingOptions,
    victims: int,
    normal: Normal | None = None,
) -> Trace | str:
    """Return the trace of a leakage point in a round, or the reason why nothing can be attacked there.

    Clients that trained in the most frequent way are attacked together; the others are left out.

    Args:
        folder: Folder of the leaks.
        tap: The leakage point.
        number: The round, from 1.
        model: The app's network.
        shape: Shape of one input.
        classes: Number of classes.
        options: How the clients train, where it is given.
        victims: Largest number of clients.
        normal: The app's normalisation of inputs in [0, 1].

    Raises:
        InputError: For a batch that `observe` could not record, a parameter of the model that is missing in a message or
            has another shape, and everything that `Trace.to_view` refuses.
    """
    probes = {leak.node: leak for leak in read_leaks(folder, "type-2", number)}
    leaks = [_with_names(model, leak) for leak in read_leaks(folder, tap, number)]
    if not leaks:
        return f"nothing leaked at {tap} in round {number}"
    for leak in leaks:
        _check(model, leak)
        if leak.node in probes and "fault" in probes[leak.node].said:
            raise InputError(f"observe: it could not show a batch: {probes[leak.node].said['fault']}")
    leaks, notes = _attackable(model, leaks, probes, options)
    if not leaks:
        return "\n".join(notes)
    if tap == "type-2":
        leaks = [leak for leak in leaks if _example(leak)]
        if not leaks:
            note = next(iter(probes.values())).said.get("note", "")
            return note or "single examples' gradients were not shown: the app does not call leakbench.flower.observe"
    # Untrained arrays, such as running statistics, must be equal for clients that are attacked together.
    kinds = [(options.training(probes.get(leak.node)), _untrained(model, leak)) for leak in leaks]
    [(common, count)] = Counter(kinds).most_common(1)
    alike = [leak for leak, kind in zip(leaks, kinds, strict=True) if kind == common][:victims]
    training = common[0]
    examples = 1 if tap == "type-2" else training.batch * training.steps
    truth = _truth([probes.get(leak.node) for leak in alike], tap, shape, examples, normal)
    if training.note and tap != "type-2":  # A gradient at type-2 has not passed the optimizer.
        notes = [training.note, *notes]
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    befores = [_tensors(leak.sent, model.state_dict()) for leak in alike]
    if all(torch.equal(array, other[name]) for other in befores[1:] for name, array in befores[0].items()):
        befores = befores[:1]
    updates = [_example(leak) if tap == "type-2" else _added(names, leak) for leak in alike]
    if tap == "type-2":
        model = frozen(model, [name for name in names if name not in updates[0]])
        updates = [{name: update[name] for name in names if name in update} for update in updates]
    return Trace(
        model,
        updates,
        shape,
        classes,
        dataclasses.replace(training, note="\n".join(notes)),
        befores,
        tap,
        truth,
        normal,
        reads="gradient" if tap == "type-2" else "weights",
        round=number,
        left_out=len(kinds) - count,
    )


def _attackable(
    model: nn.Module, leaks: Sequence[Leak], probes: Mapping[int, Leak], options: TrainingOptions
) -> tuple[list[Leak], list[str]]:
    """Return the leaks that can be attacked, and in sentences how many are left out and why."""
    stepped = any(int(probe.said.get("local-steps", "0")) for probe in probes.values())
    names = set(model.state_dict())
    reasons = {
        leak.node: _no_training(probes.get(leak.node), stepped and options.steps is None)
        or _infinite(names, leak, probes.get(leak.node))
        for leak in leaks
    }
    many = Counter(filter(None, reasons.values()))
    notes = [f"{count} of {len(leaks)} clients left out: {reason}" for reason, count in many.items()]
    return [leak for leak in leaks if not reasons[leak.node]], notes


def _no_training(probe: Leak | None, steps_expected: bool) -> str:
    """Return why a client did not train, if other clients' steps were recorded; empty if it did."""
    if probe is None:
        return ""
    if steps_expected and not int(probe.said.get("local-steps", "0")):
        return "no step was heard of them"
    sizes = _batch_sizes(probe)
    return "their batches are empty" if sizes and not sum(sizes) else ""


def _infinite(names: set[str], leak: Leak, probe: Leak | None) -> str:
    """Return where a client's numbers are not finite; empty if all are."""
    sent = {n: a for n, a in leak.sent.items() if n in names and np.issubdtype(a.dtype, np.floating)}
    shown = {n: a for n, a in (probe.arrays if probe is not None else {}).items() if n.startswith("inputs/")}
    if leak.tap == "type-2":
        kind, update = "the gradients", {n: a for n, a in leak.arrays.items() if n.startswith(SINGLE)}
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            kind, update = "the update", {n: leak.arrays[n] - sent[n] for n in sent if n in leak.arrays}
    for where, arrays in (("the weights that were sent", sent), ("the observed inputs", shown), (kind, update)):
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                return f"numbers that are not finite, in {where} ({name})"
    return ""


def _tensors(arrays: Named, names: Iterable[str]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(arrays[name]) for name in names if name in arrays}


def _added(names: Sequence[str], leak: Leak) -> dict[str, Tensor]:
    """Return what one client's training added to the weights."""
    before, after = _tensors(leak.sent, names), _tensors(leak.arrays, names)
    return {name: after[name] - before[name] for name in names}


def _untrained(model: nn.Module, leak: Leak) -> str:
    """Return the hash of one client's buffers and untrained parameters."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    return tensor_hash(_tensors(leak.sent, [name for name in model.state_dict() if name not in trained]))


def _example(leak: Leak) -> dict[str, Tensor]:
    """Return the gradient of the first example of the first step, from `observe` or else from Opacus; {} for neither."""
    for prefix in SINGLE:
        arrays = {n.removeprefix(prefix): a for n, a in leak.arrays.items() if n.startswith(prefix) and len(a)}
        if arrays:
            return {name: torch.from_numpy(a)[0] for name, a in arrays.items()}
    return {}


def _truth(
    probes: Sequence[Leak | None], tap: str, shape: tuple[int, ...], examples: int, normal: Normal | None
) -> tuple[Tensor, Tensor] | None:
    """Return the observed inputs (V, M, *s) in [0, 1] and labels (V, M); None if a client observed nothing."""
    if any(probe is None or "inputs/0" not in probe.arrays for probe in probes):
        return None
    if tap == "type-2" and any(probe is not None and probe.said.get(FIRST) == "unknown" for probe in probes):
        return None
    pairs = [_observed(probe, tap) for probe in probes if probe is not None]
    for x, y in pairs:
        if tuple(x.shape[1:]) != shape:
            raise InputError(f"shape: got {shape}, but the app trains on inputs of {tuple(x.shape[1:])}")
        if len(x) != examples or len(y) != examples:
            raise InputError(f"batch: {examples} examples behind an update, but the app observed {len(x)}")
    inputs, labels = (torch.stack(both) for both in zip(*pairs, strict=True))
    return undo_normal(inputs.flatten(0, 1).float(), normal, "mean", CURE).reshape(inputs.shape), labels


def _observed(probe: Leak, tap: str) -> tuple[Tensor, Tensor]:
    """Return one client's observed inputs (M, *s) and labels (M,), in the order of use."""
    steps = sum(name.startswith("inputs/") for name in probe.arrays)
    x, y = (
        torch.cat([torch.from_numpy(probe.arrays[f"{kind}/{step}"]) for step in range(steps)])
        for kind in ("inputs", "labels")
    )
    if tap != "type-2":
        return x, y
    own = any(name.startswith(SINGLE[0]) for name in probe.arrays)
    first = 0 if own else int(probe.said.get(FIRST, "0"))
    return x[first : first + 1], y[first : first + 1]


def _with_names(model: nn.Module, leak: Leak) -> Leak:
    """Return the leak with the model's names if the app sends its whole state as a list of arrays, which Flower numbers."""
    names = {str(i): name for i, name in enumerate(model.state_dict())}
    if not leak.sent or set(leak.sent) != set(names):
        return leak
    arrays = leak.arrays
    if set(arrays) == set(names):
        arrays = {name: arrays[i] for i, name in names.items()}
    return dataclasses.replace(leak, sent={name: leak.sent[i] for i, name in names.items()}, arrays=arrays)


def _check(model: nn.Module, leak: Leak) -> None:
    """Check that every parameter of the model was sent and came back, in its shape."""
    ways = [("the app sends", leak.sent)] + ([] if leak.tap == "type-2" else [("a client answers with", leak.arrays)])
    for way, arrays in ways:
        for name, p in model.named_parameters():
            shape = tuple(p.shape)
            if name not in arrays:
                raise InputError(
                    f"model: its parameter {name!r} {shape} is not among the arrays that {way}, {list(arrays)}"
                )
            if arrays[name].shape != shape:
                raise InputError(f"model: its parameter {name!r} has the shape {shape}, {way} {arrays[name].shape}")
