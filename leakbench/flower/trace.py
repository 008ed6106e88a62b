"""How the clients of an app train, as `StepProbeMod` heard it or as the command line says: what makes an update of gradients."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from leakbench.errors import InputError
from leakbench.external.network import Normal, unnormalised
from leakbench.external.observation import UNROLLED
from leakbench.external.trace import Seen, Trained, Training, leaked, truth_of
from leakbench.flower.leaks import Leak, Named, leaked_rounds, read_leaks
from leakbench.store import tensor_hash
from leakbench.types import Clock

__all__ = ["TAPS", "Unknown", "commonest", "fit", "heard_of", "rounds_of", "seen_at"]


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
