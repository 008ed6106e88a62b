"""From leaks on disk to what an attacker sees: the views of one tap and round, and the truth behind them where it was observed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from leakbench.errors import InputError
from leakbench.federated.view import Knowledge, View
from leakbench.flower.leaks import Leak, read_leaks
from leakbench.flower.training import Unknown, commonest, heard_of
from leakbench.own.seen import Seen, Training
from leakbench.types import Clock, Network, Parameters

__all__ = ["TAPS", "rounds_of", "seen_at"]

TAPS = ("type-2", "type-1", "type-0")


def rounds_of(folder: Path) -> list[int]:
    """Return the rounds in which anything leaked."""
    return sorted({leak.round for tap in TAPS for leak in read_leaks(folder, tap)})


def seen_at(
    folder: Path,
    tap: str,
    number: int,
    model: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    given: Unknown,
    victims: int,
) -> Seen | str:
    """Return what leaked at a tap in a round, from 1, of at most so many clients; or why there is nothing to attack.

    model: the app's network.  Raises InputError for a parameter that the model has and the app does not send, or of another shape.
    """
    probes = {leak.node: leak for leak in read_leaks(folder, "type-2") if leak.round == number}
    leaks = [_named(model, leak) for leak in read_leaks(folder, tap) if leak.round == number]
    if not leaks:
        return f"nothing leaked at {tap} in round {number}"
    for leak in leaks:
        _check(model, leak)
    if tap == "type-2":
        leaks = [leak for leak in leaks if _examples(leak)]
        if not leaks:
            said = next(iter(probes.values())).said.get("note", "")
            return said or "single examples' gradients were not shown: the app does not call leakbench.flower.observe"
    trained = [heard_of(probes.get(leak.node), given) for leak in leaks]
    training = commonest(trained)
    alike = [leak for leak, how in zip(leaks, trained, strict=True) if how == training][:victims]
    truth = [_truth(probes.get(leak.node), tap) for leak in alike]
    known = [(x, y) for x, y in truth if x is not None and y is not None]
    whole = len(known) == len(alike)
    view = _view(tap, number, model, alike, training, shape, classes)
    return Seen(
        view,
        _stacked([x for x, _ in known], view, shape) if whole else None,
        torch.stack([y for _, y in known]) if whole else None,
        training,
        sum(how != training for how in trained),
    )


def _stacked(inputs: Sequence[Tensor], view: View, shape: tuple[int, ...]) -> Tensor:
    stacked = torch.stack(list(inputs))
    if tuple(stacked.shape[2:]) != shape:
        raise InputError(f"shape: got {shape}, but the app trains on inputs of {tuple(stacked.shape[2:])}")
    if stacked.shape[1] != view.examples:
        raise InputError(f"batch: {view.examples} examples behind an update, but the app observed {stacked.shape[1]}")
    return stacked


def _view(
    tap: str,
    number: int,
    model: nn.Module,
    leaks: Sequence[Leak],
    training: Training,
    shape: tuple[int, ...],
    classes: int,
) -> View:
    alone = tap == "type-2"
    length = training.learning_rate * training.steps
    names = [name for name, _ in model.named_parameters()]
    shown = [_examples(leak) if alone else _gradient(names, leak, length) for leak in leaks]
    return View(
        tap=tap,
        network=_network(model, leaks),
        update={name: torch.stack([one[name] for one in shown]) for name in names if name in shown[0]},
        batch=training.batch,
        shape=shape,
        classes=classes,
        learning_rate=training.learning_rate,
        local_steps=training.steps,
        knowledge=Knowledge(
            examples=1 if alone else training.steps * training.batch, reads="gradient" if alone else "weights"
        ),
        clock=Clock(number - 1, 0, number, training.steps, client_optimizer=training.optimizer),
    )


def _network(model: nn.Module, leaks: Sequence[Leak]) -> Network:
    """Return the network as it was sent, with one set of parameters for all where all got the same."""
    model = copy.deepcopy(model)
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
        model.eval()  # PyTorch's own cannot be differentiated for several victims at once by their batches' statistics.
    names = [name for name, _ in model.named_parameters()]
    buffers = [name for name, _ in model.named_buffers() if name in leaks[0].sent]
    memory = {name: torch.from_numpy(leaks[0].sent[name]) for name in buffers}
    first = leaks[0].sent
    if all((leak.sent[name] == first[name]).all() for leak in leaks[1:] for name in names):
        return Network(model, {name: torch.from_numpy(first[name]) for name in names}, memory=memory)
    each = {name: torch.stack([torch.from_numpy(leak.sent[name]) for leak in leaks]) for name in names}
    return Network(model, each, shared=False, memory=memory)


def _gradient(names: Sequence[str], leak: Leak, length: float) -> Parameters:
    """Return one client's update in the units of a gradient, from the difference of weights as it was sent."""
    return {n: (torch.from_numpy(leak.sent[n]) - torch.from_numpy(leak.arrays[n])) / length for n in names}


def _examples(leak: Leak) -> Parameters:
    """Return the gradient of the first example of the first step; {} where none was shown. Else what Opacus left."""
    for kind in ("example/", "sample/"):
        found = {n.removeprefix(kind): torch.from_numpy(a[0]) for n, a in leak.arrays.items() if n.startswith(kind)}
        if found:
            return found
    return {}


def _truth(probe: Leak | None, tap: str) -> tuple[Tensor | None, Tensor | None]:
    """Return the observed (inputs (M, *s), labels (M,)) behind one client's leak, in the order of use."""
    if probe is None or "inputs/0" not in probe.arrays:
        return None, None
    steps = sum(name.startswith("inputs/") for name in probe.arrays)
    x, y = (
        torch.cat([torch.from_numpy(probe.arrays[f"{what}/{i}"]) for i in range(steps)])
        for what in ("inputs", "labels")
    )
    return (x[:1], y[:1]) if tap == "type-2" else (x, y)


def _named(model: nn.Module, leak: Leak) -> Leak:
    """Return the leak with the model's names where the app sends a list of arrays, which Flower numbers, of the whole state."""
    names = list(model.state_dict())
    if not leak.sent or set(leak.sent) != {str(i) for i in range(len(names))}:
        return leak
    sent = {name: leak.sent[str(i)] for i, name in enumerate(names)}
    arrays = leak.arrays
    if set(arrays) == set(leak.sent):
        arrays = {name: arrays[str(i)] for i, name in enumerate(names)}
    return dataclasses.replace(leak, sent=sent, arrays=arrays)


def _check(model: nn.Module, leak: Leak) -> None:
    """Raise InputError for a parameter of the model that was not sent, or has another shape."""
    shapes: Mapping[str, tuple[int, ...]] = {n: tuple(p.shape) for n, p in model.named_parameters()}
    for name, shape in shapes.items():
        got = leak.sent.get(name)
        if got is None:
            raise InputError(
                f"model: its parameter {name!r} {shape} is not among the arrays of the app, {list(leak.sent)}"
            )
        if got.shape != shape:
            raise InputError(f"model: its parameter {name!r} has the shape {shape}, the app sends {got.shape}")
