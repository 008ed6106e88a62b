"""What an attack on an external update assumes, in sentences, and whether the truth agrees with the update."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.core.request import BATCH
from leakbench.core.types import Parameters
from leakbench.external.attacker import Attacker, without_truth
from leakbench.external.network import input_normals, keeps_statistics, mode_of, normalisations
from leakbench.external.outcome import UNKNOWN, Outcome
from leakbench.external.trace import Trace
from leakbench.federated.view import Public, View
from leakbench.models import one_hot

__all__ = [
    "ALIKE",
    "assumptions",
    "contradiction",
    "distance_of_guess",
    "mode_lines",
    "overlap",
    "rounding_of",
    "warnings_of",
    "with_notes",
]

ALIKE = 1e-3
"""Share of an update's length up to which a gradient counts as the same; float32 weights of a small step differ by as much."""

ALIKE_BY_ADAM = 0.15
"""The same for steps of Adam, which are as long where a gradient is only rounding, as for a bias before a normalisation."""

ONCE, PARALLEL = 0.05, 0.99
"""Smallest difference of a length from 1 that is reported, and the cosine from which on only the length differs."""

ROUNDS = 8
"""Largest difference of an update in half precision, in units of its rounding; such a program rounds at every layer."""

TINY = 1e-300

TWICE, ENOUGH = 2.0, 100
"""Largest factor between noise and its standard deviation, and the smallest count of numbers for which it is checked."""

LONGEST = 1e18
"""Length of an update, as a gradient, up to which searches can square it."""

STATISTICS = {
    "proxy": "the public examples",
    "inferred": "the client's batch, solved from the running ones that it sent",
}

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

SINGLE = "float32"

DIFFERENT = 16
"""Number of different numbers that tells a type; signs, or a few levels, are numbers of any type."""


def assumptions(trace: Trace, attacker: Attacker) -> list[str]:
    """Return what the attack assumes of the update, the network and the attacker, one sentence each."""
    view, how, lines = trace.view, trace.training, list[str]()
    if view.knowledge.reads == "gradient":
        many = "one example" if view.examples == 1 else f"{view.examples} examples"
        lines.append(f"the update is the gradient of the mean {_loss(trace)} of {many}")
    else:
        rate = f"at learning rate {how.rate:g}"
        named = {"momentum": how.momentum, "weight decay": how.weight_decay}
        factors = "".join(f", {name} {factor:g}" for name, factor in named.items() if factor)
        lines.append(
            f"the update is the change of the weights by {how.steps} steps of {how.optimizer} with {how.batch} examples each"
            f" {rate}{factors}"
        )
    lines += [*_unreadable(view), *_half_precision(view)]
    if trace.before is None:
        lines.append("the weights are those of the model as it is built; --before gives others")
    lines += mode_lines(view.network.model)
    if attacker.statistics != BATCH:
        lines.append(
            f"a guess is compared with the statistics of batch normalisation of {STATISTICS[attacker.statistics]}"
        )
    for normal in input_normals(view.network.model):
        by = " and ".join(",".join(f"{n:g}" for n in numbers) for numbers in (normal.mean, normal.std))
        lines.append(f"inputs in [0, 1] are normalised by mean and deviation {by} before the network")
    if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p for m in view.network.model.modules()):
        lines.append("dropout was off, since its draws are unknown")
    frozen = [name for name, p in view.network.model.named_parameters() if name not in view.network.parameters]
    if frozen:
        lines.append(
            f"{len(frozen)} parameters, such as {frozen[0]}, do not require a gradient: they are not trained and leak nothing"
        )
    if attacker.defense is not None and attacker.attack.knows == "oblivious":
        lines.append("the attack does not know the defense, but identification does; with --knows defense both do")
    if attacker.data is None:
        lines.append("the attacker's public examples are synthetic; --dataset gives real ones")
        if attacker.success is None and trace.inputs is not None:
            lines.append(
                f"the success threshold, an RMSE of {attacker.eta:g}, is not calibrated; --dataset calibrates it, --success sets it"
            )
    lines += [*overlap(trace, attacker), *_repeated(trace)]
    if trace.inputs is None:
        lines.append(UNKNOWN)
    difference = _difference(trace, attacker)
    return lines + ([] if difference is None else [difference.line])


def _loss(trace: Trace) -> str:
    """Return the name of the loss in a sentence."""
    if trace.heads is None:
        return "cross-entropy"
    return "loss of the targets" if trace.heads.function is None else f"loss {trace.heads.name}"


def warnings_of(trace: Trace, attacker: Attacker) -> tuple[str, ...]:
    """Return those of the assumptions that change how the result is read."""
    return (*_unreadable(trace.view), *_repeated(trace), *contradiction(trace, attacker))


def with_notes(outcome: Outcome, trace: Trace, attacker: Attacker) -> Outcome:
    """Return the outcome with the assumptions of its attack, and with those that are warnings."""
    lines = [*filter(None, [attacker.adapted]), *assumptions(trace, attacker)]
    return dataclasses.replace(outcome, assumptions="\n".join(lines), warnings=warnings_of(trace, attacker))


def overlap(trace: Trace, attacker: Attacker) -> Iterator[str]:
    """Yield a sentence with the number of the dataset's public examples that are true inputs, if there are any."""
    data = attacker.data
    if data is None or data.shape != trace.shape:  # The attack refuses another shape.
        return
    public = Public(data.public_inputs, data.public_targets)
    _, removed = without_truth(public, trace.inputs)
    if removed:
        own = f"{removed} of the {len(public.labels)} public examples of {data.name!r}"
        yield f"{own} are true examples and left out, since an attacker has no private ones"


def mode_lines(model: nn.Module) -> Iterator[str]:
    """Yield the statistics that a network's batch and instance normalisations use."""
    names, mode = normalisations(model), mode_of(model)
    by_kind: dict[bool, list[str]] = {False: [], True: []}
    for name in names:
        by_kind[keeps_statistics(model.get_submodule(name))].append(name)
    for kind, found, own in (
        ("batch", by_kind[False], "its batch's statistics"),
        ("instance", by_kind[True], "each input's own statistics"),
    ):
        if found:
            which, other = (own, "eval") if mode == "train" else ("its running statistics", "train")
            yield f"{kind} normalisation ({found[0]}) computes by {which}; --victim-mode {other} has the other"


def _repeated(trace: Trace) -> Iterator[str]:
    """Yield a sentence if victims have equal examples."""
    if trace.inputs is None or len(trace.updates) < 2:
        return
    different, victims = len(torch.unique(trace.inputs.flatten(1), dim=0)), len(trace.updates)
    if different < victims:
        yield (
            f"only {different} of {victims} victims have different examples: victims that are equal are not independent, and the"
            " intervals of the rates are too narrow"
        )


def _unreadable(view: View) -> Iterator[str]:
    """Yield a sentence for updates of zeros, and one for updates that are too long for the distances of searches."""
    lengths = _lengths(view.update)
    if nothing := int((lengths == 0).sum()):
        which = "the update is" if view.victims == 1 else f"{nothing} of {view.victims} updates are"
        yield f"{which} zero everywhere, which leaks nothing about the examples"
    if (longest := float(lengths.max())) > LONGEST:
        yield (
            f"an update has the length {longest:.3g}, whose square overflows single precision: searches cannot measure a distance"
        )


@dataclass(frozen=True)
class _Rounding:
    """How the numbers of updates were rounded.

    Args:
        name: Name of the coarsest type that has all the numbers.
        unit: Largest relative error of one number, half the distance from 1 to the next number.
        share: Largest share of each update's length that rounding changes (V,).
    """

    name: str
    unit: float
    share: Tensor


def rounding_of(view: View) -> _Rounding:
    """Return the rounding of V updates: a gradient's own, or that of the weights for a difference of weights."""
    parameters = view.network.parameters
    of_gradient = view.knowledge.reads == "gradient"
    name = _type(view.update if of_gradient else parameters)
    unit = torch.finfo(HALVES.get(name, torch.float32)).eps / 2
    if of_gradient:
        return _Rounding(name, unit, torch.full((view.victims,), unit, dtype=torch.float64))
    each = {n: p[None] for n, p in parameters.items()} if view.network.shared else parameters
    added = _lengths(view.update) * view.learning_rate * view.local_steps
    # Every step rounds, in either direction.
    return _Rounding(name, unit, unit * _lengths(each) * view.local_steps**0.5 / added)


def _half_precision(view: View) -> Iterator[str]:
    """Yield a sentence if the update or the weights have numbers of half precision."""
    rounding = rounding_of(view)
    if rounding.name != SINGLE and view.knowledge.reads == "gradient":
        yield f"the update has numbers of {rounding.name}, each rounded by up to {rounding.unit:.2%}"
    elif rounding.name != SINGLE:
        share = float(rounding.share.median())
        yield f"the weights are numbers of {rounding.name}, which rounds the update by up to {share:.2g} of its length"


def _lengths(update: Parameters) -> Tensor:
    """Return the lengths (V,) of updates {p: (V, *p)} in double precision, so that no square overflows."""
    squares = [u.flatten(1).double().square().sum(1) for u in update.values()]
    return torch.stack(squares).sum(0).sqrt()


def _type(tensors: Parameters) -> str:
    """Return the name of the coarsest type that has all of the numbers."""
    for name, dtype in HALVES.items():
        if all(bool(torch.equal(t, t.to(dtype).to(t.dtype))) for t in tensors.values()):
            several = {abs(number) for t in islice(tensors.values(), 16) for number in t.flatten()[:1024].tolist()}
            return name if len(several) >= DIFFERENT else SINGLE
    return SINGLE


def contradiction(trace: Trace, attacker: Attacker) -> Iterator[str]:
    """Yield how the truth's own gradient differs from the updates, if neither noise nor rounding explains it."""
    found = _difference(trace, attacker)
    if found is not None and not found.explained:
        yield found.line


@dataclass(frozen=True)
class _Difference:
    """A difference of the truth's own gradient from the updates.

    Args:
        line: The difference in a sentence.
        explained: Whether noise or the rounding of the numbers explains it.
    """

    line: str
    explained: bool


def _difference(trace: Trace, attacker: Attacker) -> _Difference | None:
    """Return the difference; None for an equal update or an unknown truth."""
    if trace.inputs is None or trace.labels is None or trace.targets is None:
        return None
    view = attacker.informed_view(trace)  # The defense was applied, whether or not the attack knows it.
    try:
        apart, times, cosine = distance_of_guess(
            view, trace.inputs, trace.labels if trace.heads is None else trace.targets
        )
    except InputError:
        return None  # The defense makes a choice that depends on more than a guess.
    apart = torch.where(apart.isfinite(), apart, 0.0)  # An update of zeros has its own sentence.
    other = "" if view.noise is None else _other_noise(view, apart)
    return _Difference(other, False) if other else _in_words(view, apart, times, cosine)


def _in_words(view: View, apart: Tensor, times: Tensor, cosine: Tensor) -> _Difference | None:
    """Return what `distance_of_guess` found (V,) in words; None if the updates are the truth's own."""
    rounding = rounding_of(view)
    behind = " behind that defense" if view.knowledge.defense else ""
    begin = f"the truth's own gradient{behind} differs from the update by"
    alike = ALIKE if view.clock.client_optimizer == "sgd" else ALIKE_BY_ADAM
    odd = apart > (rounding.share * (1 if rounding.name == SINGLE else ROUNDS)).clamp_min(alike)
    if not bool(odd.any()):
        line = f"{begin} {float(apart.max()):.2g} of its length, as numbers of {rounding.name} make it"
        return _Difference(line, True) if float(apart.max()) > ALIKE else None
    differs, length, parallel = (float(t[odd].median()) for t in (apart, times, cosine))
    many = int(odd.sum())
    line = f"{begin} {differs:.2g} of its length" + (
        f", of {many} of {view.victims} updates" if many < len(odd) else ""
    )
    if parallel >= PARALLEL and abs(length - 1) > ONCE:
        why = "a sum instead of a mean" if length > 1 else "a clip"
        return _Difference(f"{line}: the update is {length:.3g} times it ({why}, another batch or rate?)", False)
    if view.noise is not None:
        return _Difference(f"{line}, as noise makes it", True)
    why = "was it changed, or are the weights, the mode, the batch or the learning rate not as given?"
    return _Difference(f"{line}: {why}", False)


def _other_noise(view: View, apart: Tensor) -> str:
    """Return a sentence if the updates (V,) are nearer to the truth's own, or farther, than the defense's noise makes them."""
    numbers = sum(u[0].numel() for u in view.update.values())
    lengths = _lengths(view.update)
    expected = (view.noise or 0.0) * math.sqrt(numbers) / lengths.clamp_min(TINY)
    ratio = float((apart / expected.clamp_min(TINY)).median())
    silent = bool((lengths == 0).any())  # An update of zeros has its own sentence.
    if silent or float(expected.median()) <= ALIKE or numbers < ENOUGH or 1 / TWICE <= ratio <= TWICE:
        return ""
    return (
        f"the truth's own gradient behind that defense differs from the update by {float(apart.median()):.2g} of its length, where"
        f" its noise makes it {float(expected.median()):.2g}: was it applied, with these numbers, and to this batch?"
    )


def distance_of_guess(view: View, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compare V updates u with the updates r that given examples cause.

    Args:
        view: The view.
        inputs: Inputs (V, M, *s) in the order of use.
        targets: Labels (V, M), or targets (V, M, k) of a network that does not name classes.

    Returns:
        |u - r| / |u| (V,), infinite for an update of zeros if r is not zero; <u, r> / <r, r> (V,); the cosine (V,).
    """
    whole = targets if targets.is_floating_point() else one_hot(targets, view.classes)
    with torch.no_grad():
        answered = view.respond(inputs.float(), whole)
    # In double precision, in which no square of a float32 overflows.
    r, u = (torch.cat([p[n].flatten(1) for n in view.update], 1).double() for p in (answered, view.update))
    between, of_u, of_r, product = (u - r).norm(dim=1), u.norm(dim=1), r.norm(dim=1), (u * r).sum(1)
    apart = torch.where(between == 0, between, between / of_u)
    return apart, product / of_r.square().clamp_min(TINY), product / (of_u * of_r).clamp_min(TINY)
