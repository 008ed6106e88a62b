"""From leaks on disk to what an attacker sees: the views of one tap and round, and the truth behind them where it was observed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from leakbench.errors import InputError
from leakbench.flower.leaks import Leak, Named, leaked_rounds, read_leaks
from leakbench.flower.training import Unknown, commonest, heard_of
from leakbench.flower.unfit import fit
from leakbench.own.leak import Trained, leaked, truth_of
from leakbench.own.normalised import Normal, unnormalised
from leakbench.own.seen import Seen, Training
from leakbench.store import tensor_hash
from leakbench.types import Clock

__all__ = ["TAPS", "rounds_of", "seen_at"]

TAPS = ("type-2", "type-1", "type-0")

CURE = "pass --mean and --std as the app normalises them, or divide 8-bit pixels by 255 in the app"
"""What helps where the app trains on other inputs."""


def rounds_of(folder: Path) -> list[int]:
    """Return the rounds in which anything leaked."""
    return sorted({number for tap in TAPS for number in leaked_rounds(folder, tap)})


def seen_at(
    folder: Path,
    tap: str,
    number: int,
    model: nn.Module,
    shape: tuple[int, ...],
    classes: int,
    given: Unknown,
    victims: int,
    normal: Normal | None = None,
) -> Seen | str:
    """Return what leaked at a tap in a round, from 1, of at most so many clients; or why there is nothing to attack.

    Args:
        model: The app's network.
        normal: What the app does to inputs in [0, 1] before it feeds them to the network. Raises InputError for a batch that
            `observe` could not show, for a parameter that the model has and the app does not send, or of another shape, for
            inputs that are not in [0, 1] and labels that are no class, and for what else `leakbench.own.leak.leaked` refuses.
    """
    probes = {leak.node: leak for leak in read_leaks(folder, "type-2", number)}
    leaks = [_named(model, leak) for leak in read_leaks(folder, tap, number)]
    if not leaks:
        return f"nothing leaked at {tap} in round {number}"
    for leak in leaks:
        _check(model, leak)
        if leak.node in probes and "fault" in probes[leak.node].said:
            raise InputError(f"observe: it could not show a batch: {probes[leak.node].said['fault']}")
    leaks, notes = fit(model, leaks, probes, given)
    if not leaks:
        return "\n".join(notes)
    if tap == "type-2":
        leaks = [leak for leak in leaks if _examples(leak)]
        if not leaks:
            said = next(iter(probes.values())).said.get("note", "")
            return said or "single examples' gradients were not shown: the app does not call leakbench.flower.observe"
    trained = [heard_of(probes.get(leak.node), given) for leak in leaks]
    # What is not trained, as running statistics, is one for all who are attacked side by side.
    kinds = [(how, _untrained(model, leak)) for leak, how in zip(leaks, trained, strict=True)]
    common = commonest(kinds)
    alike = [leak for leak, kind in zip(leaks, kinds, strict=True) if kind == common][:victims]
    training = common[0]
    truth = _truths([probes.get(leak.node) for leak in alike], tap, shape, classes, training, normal)
    left_out = sum(kind != common for kind in kinds)
    if training.note and tap != "type-2":  # Which no optimizer has passed.
        notes = [training.note, *notes]
    training = dataclasses.replace(training, note="\n".join(notes))
    return _seen(tap, number, model, alike, training, shape, classes, truth, left_out, normal)


def _seen(
    tap: str,
    number: int,
    model: nn.Module,
    leaks: Sequence[Leak],
    how: Training,
    shape: tuple[int, ...],
    classes: int,
    truth: tuple[Tensor, Tensor] | None,
    left_out: int,
    normal: Normal | None,
) -> Seen:
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    befores = [_tensors(leak.sent, model.state_dict()) for leak in leaks]
    if all(torch.equal(array, other[name]) for other in befores[1:] for name, array in befores[0].items()):
        befores = befores[:1]
    if tap == "type-2":
        shown = [_examples(leak) for leak in leaks]
        model = _frozen(model, [name for name in names if name not in shown[0]])
        updates = [{name: one[name] for name in names if name in one} for one in shown]
        found = leaked(model, updates, shape, classes, Trained(mode=how.mode), befores, tap, truth, normal)
    else:
        updates = [_added(names, leak) for leak in leaks]
        done = Trained(how.batch, how.steps, how.learning_rate, how.optimizer, how.mode)
        found = leaked(model, updates, shape, classes, done, befores, "type-1", truth, normal)
    view = dataclasses.replace(
        found.view,
        tap=tap,
        batch=how.batch,
        learning_rate=how.learning_rate,
        local_steps=how.steps,
        clock=Clock(number - 1, 0, number, how.steps, client_optimizer=how.optimizer),
    )
    return dataclasses.replace(found, view=view, training=how, left_out=left_out)


def _tensors(arrays: Named, names: Iterable[str]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(arrays[name]) for name in names if name in arrays}


def _added(names: Sequence[str], leak: Leak) -> dict[str, Tensor]:
    """Return what one client's training added to the weights."""
    before, after = _tensors(leak.sent, names), _tensors(leak.arrays, names)
    return {name: after[name] - before[name] for name in names}


def _untrained(model: nn.Module, leak: Leak) -> str:
    """Return by what one client's buffers, and its parameters that are not trained, are told from others'."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    return tensor_hash(_tensors(leak.sent, [name for name in model.state_dict() if name not in trained]))


def _frozen(model: nn.Module, names: Sequence[str]) -> nn.Module:
    """Return a network in which these parameters too are not trained, of which the clients showed no gradient."""
    if not names or len(names) == sum(p.requires_grad for p in model.parameters()):
        return model
    model = copy.deepcopy(model)
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def _examples(leak: Leak) -> dict[str, Tensor]:
    """Return the gradient of the first example of the first step; {} where none was shown. Else what Opacus left."""
    for kind in ("example/", "sample/"):
        found = {
            n.removeprefix(kind): torch.from_numpy(a[0])
            for n, a in leak.arrays.items()
            if n.startswith(kind) and len(a)
        }
        if found:
            return found
    return {}


def _truths(
    probes: Sequence[Leak | None], tap: str, shape: tuple[int, ...], classes: int, how: Training, normal: Normal | None
) -> tuple[Tensor, Tensor] | None:
    """Return the observed inputs (V, M, *s) and labels (V, M) behind the clients' leaks; None where not all were observed.

    Raises InputError for another shape or number of them than is attacked, for inputs out of [0, 1] and labels that are no class.
    """
    each = [_truth(probe, tap) for probe in probes]
    known = [pair for pair in each if pair is not None]
    if len(known) < len(each):
        return None
    examples = 1 if tap == "type-2" else how.batch * how.steps
    for x, y in known:
        if tuple(x.shape[1:]) != shape:
            raise InputError(f"shape: got {shape}, but the app trains on inputs of {tuple(x.shape[1:])}")
        if len(x) != examples or len(y) != examples:
            raise InputError(f"batch: {examples} examples behind an update, but the app observed {len(x)}")
    inputs, labels = (torch.stack(both) for both in zip(*known, strict=True))
    undone = unnormalised(inputs.flatten(0, 1).float(), normal, "mean", CURE).reshape(inputs.shape)
    return truth_of({"inputs": undone, "labels": labels}, len(known), examples, shape, classes)


def _truth(probe: Leak | None, tap: str) -> tuple[Tensor, Tensor] | None:
    """Return the observed (inputs (M, *s), labels (M,)) behind one client's leak, in the order of use."""
    if probe is None or "inputs/0" not in probe.arrays:
        return None
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
    """Raise InputError for a parameter of the model that was not sent, or did not come back, or has another shape."""
    shapes: Mapping[str, tuple[int, ...]] = {n: tuple(p.shape) for n, p in model.named_parameters()}
    ways = [("the app sends", leak.sent)] + ([] if leak.tap == "type-2" else [("a client answers with", leak.arrays)])
    for way, arrays in ways:
        for name, shape in shapes.items():
            if name not in arrays:
                raise InputError(
                    f"model: its parameter {name!r} {shape} is not among the arrays that {way}, {list(arrays)}"
                )
            if arrays[name].shape != shape:
                raise InputError(f"model: its parameter {name!r} has the shape {shape}, {way} {arrays[name].shape}")
