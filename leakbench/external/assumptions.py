"""In which numbers an update was computed: those of half precision round by parts of a hundred, which no attack undoes."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from leakbench.errors import InputError
from leakbench.external.attacker import Attacker, told, without_truth
from leakbench.external.network import keeps, normals, norms, trains
from leakbench.external.outcome import UNKNOWN, Outcome
from leakbench.external.trace import Seen
from leakbench.federated.view import Public, View
from leakbench.models import one_hot
from leakbench.types import Parameters

__all__ = [
    "Rounded",
    "assumed",
    "contradicted",
    "explains",
    "lengths",
    "normalisation",
    "overlap",
    "rounded",
    "warned",
    "with_notes",
]


HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}

TOLD_BY = 16
"""Of how many different numbers it is told; signs, or a few levels, are numbers of any type."""

SINGLE = "float32"


@dataclass(frozen=True)
class Rounded:
    """What rounding explains.

    Args:
        name: Of the type whose numbers all are.
        unit: Half the distance of 1 to the next number, by which each is off at most. share (V,): by how much of its length
            rounding changes an update at most.
    """

    name: str
    unit: float
    share: Tensor

    @property
    def half(self) -> bool:
        """Whether the numbers are of half precision."""
        return self.name != SINGLE


def rounded(view: View) -> Rounded:
    """Return what rounding explains of V updates: of a gradient its own, of a difference of weights that of the weights."""
    of_gradient = view.knowledge.reads == "gradient"
    name = _type(view.update if of_gradient else view.network.parameters)
    unit = torch.finfo(HALVES.get(name, torch.float32)).eps / 2
    if of_gradient:
        return Rounded(name, unit, torch.full((view.victims,), unit, dtype=torch.float64))
    parameters = view.network.parameters
    each = {n: p[None] for n, p in parameters.items()} if view.network.shared else parameters
    added = lengths(view.update) * view.learning_rate * view.local_steps
    # Every step rounds, in either direction.
    return Rounded(name, unit, unit * lengths(each) * view.local_steps**0.5 / added)


def lengths(update: Parameters) -> Tensor:
    """Return the lengths (V,) of updates {p: (V, *p)}, in double precision, in which no square of a float32 overflows."""
    squares = [u.flatten(1).double().square().sum(1) for u in update.values()]
    return torch.stack(squares).sum(0).sqrt()


def _type(tensors: Parameters) -> str:
    """Return the name of the coarsest type that has all of the numbers."""
    for name, dtype in HALVES.items():
        if all(bool(torch.equal(t, t.to(dtype).to(t.dtype))) for t in tensors.values()):
            several = {abs(number) for t in islice(tensors.values(), 16) for number in t.flatten()[:1024].tolist()}
            return name if len(several) >= TOLD_BY else SINGLE
    return SINGLE


ALIKE = 1e-3
"""Up to which share of an update's length a gradient counts as the same; float32 weights of a small step differ by as much."""

ALIKE_BY_ADAM = 0.15
"""The same of Adam's steps, which are as long where a gradient is nothing but its rounding, as a bias's before a normalisation."""

ONCE, PARALLEL = 0.05, 0.99
"""By how much a length may differ before it is said, and the cosine from which on nothing but the length does."""

ROUNDS = 8
"""How many times the rounding of half precision an update may be off; who computes in it rounds at every layer."""

TINY = 1e-300

TWICE, ENOUGH = 2.0, 100
"""By how many times noise may be longer or shorter than its deviation has it, over so many numbers at least, where chance has no
part in it."""

LONGEST = 1e18
"""Of an update, as a gradient, that searches can square."""


def assumed(seen: Seen, attacker: Attacker, sent: bool) -> list[str]:
    """Return what the attack assumes of the update, the network and the attacker, a sentence each; see `explains` for the last.

    Args:
        sent: Whether the weights from before the update were given.
    """
    view, how, lines = seen.view, seen.training, list[str]()
    if view.knowledge.reads == "gradient":
        many = "one example" if view.examples == 1 else f"{view.examples} examples"
        lines.append(f"the update is the gradient of the mean cross-entropy of {many}")
    else:
        rate = f"at learning rate {how.learning_rate:g}"
        lines.append(
            f"the update is the change of the weights by {how.steps} steps of {how.optimizer} with {how.batch} examples each {rate}"
        )
    lines += _numbers(view)
    if not sent:
        lines.append("the weights are those of the model as it is built; --before gives others")
    lines += normalisation(view.network.model)
    for normal in normals(view.network.model):
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
        if attacker.success is None and seen.inputs is not None:
            lines.append(
                f"the success threshold, an RMSE of {attacker.eta:g}, is not calibrated; --dataset calibrates it, --success sets it"
            )
    lines += filter(None, [overlap(seen, attacker), _repeated(seen)])
    if seen.inputs is None:
        lines.append(UNKNOWN)
    differs = _apart(seen, attacker)
    return lines + ([] if differs is None else [differs.line])


def overlap(seen: Seen, attacker: Attacker) -> str:
    """Return in a sentence how many of the public examples are the truth's own; nothing where none is, or no data set is named."""
    data = attacker.data
    if data is None or data.shape != seen.view.shape:  # The attack refuses another shape.
        return ""
    public = Public(data.public_inputs, data.public_targets)
    _, left_out = without_truth(public, seen.inputs)
    own = f"{left_out} of the {len(public.labels)} public examples of {data.name!r}"
    return f"{own} are true examples and left out, since an attacker has no private ones" if left_out else ""


def normalisation(model: nn.Module) -> list[str]:
    """Return by which statistics batches, and instances whose running ones are kept, are normalised."""
    lines, training = list[str](), trains(model)
    names = norms(model)
    of_instances = [name for name in names if keeps(model.get_submodule(name))]
    of_batches = [name for name in names if name not in of_instances]
    kinds = (("batch", of_batches, "its batch's statistics"), ("instance", of_instances, "each input's own statistics"))
    for kind, found, own in kinds:
        if found:
            which, other = (own, "eval") if training else ("its running statistics", "train")
            lines.append(f"{kind} normalisation ({found[0]}) computes by {which}; --victim-mode {other} has the other")
    return lines


def warned(seen: Seen, attacker: Attacker) -> tuple[str, ...]:
    """Return the sentences of `assumed` that change how the result is read."""
    return (*_unreadable(seen.view), *filter(None, [_repeated(seen), contradicted(seen, attacker)]))


def with_notes(outcome: Outcome, seen: Seen, attacker: Attacker, notes: str) -> Outcome:
    """Return the outcome with the notes, a sentence a line, and with those among them that are warnings."""
    return dataclasses.replace(outcome, assumptions=notes, warnings=warned(seen, attacker))


def _repeated(seen: Seen) -> str:
    """Return in a sentence that victims have equal examples; empty where all differ or the truth is unknown."""
    if seen.inputs is None or seen.view.victims < 2:
        return ""
    different, victims = len(torch.unique(seen.inputs.flatten(1), dim=0)), seen.view.victims
    if different == victims:
        return ""
    return (
        f"only {different} of {victims} victims have different examples: victims that are equal are not independent, and the"
        " intervals of the rates are too narrow"
    )


def _unreadable(view: View) -> list[str]:
    """Return a sentence for updates of zeros, and one for updates that are too long for the distances of searches."""
    lines = list[str]()
    nothing = int((lengths(view.update) == 0).sum())
    if nothing:
        which = "the update is" if view.victims == 1 else f"{nothing} of {view.victims} updates are"
        lines.append(f"{which} zero everywhere, which leaks nothing about the examples")
    longest = float(lengths(view.update).max())
    if longest > LONGEST:
        lines.append(
            f"an update has the length {longest:.3g}, whose square overflows single precision: searches cannot measure a distance"
        )
    return lines


def _numbers(view: View) -> list[str]:
    """Return what is to be said of updates of zeros, of long ones, and of numbers of half precision."""
    lines = _unreadable(view)
    type_ = rounded(view)
    if type_.half and view.knowledge.reads == "gradient":
        lines.append(f"the update has numbers of {type_.name}, each rounded by up to {type_.unit:.2%}")
    elif type_.half:
        share = float(type_.share.median())
        lines.append(
            f"the weights are numbers of {type_.name}, which rounds the update by up to {share:.2g} of its length"
        )
    return lines


def contradicted(seen: Seen, attacker: Attacker) -> str:
    """Return in a sentence how the truth's own gradient differs from the updates; nothing where it is the same, and where there
    is no truth or no update.
    """
    found = _apart(seen, attacker)
    return "" if found is None or found.explained else found.line


@dataclass(frozen=True)
class _Apart:
    """line: how the truth's own gradient differs from updates.  explained: whether the type of their numbers accounts for it."""

    line: str
    explained: bool


def _apart(seen: Seen, attacker: Attacker) -> _Apart | None:
    if seen.inputs is None or seen.labels is None:
        return None
    # Behind the defense that was applied, whether or not the attack is told of it.
    view = told(seen, dataclasses.replace(attacker, attack=dataclasses.replace(attacker.attack, knows="defense")))
    try:
        apart, times, cosine = explains(view, seen.inputs, seen.labels)
    except InputError:
        return None  # A defense that makes its choice on more than a guess shows.
    apart = torch.where(apart.isfinite(), apart, 0.0)  # Of an update that is zero, which is said.
    other = "" if view.noise is None else _other_noise(view, apart)
    return _Apart(other, False) if other else _explained(view, apart, times, cosine)


def _explained(view: View, apart: Tensor, times: Tensor, cosine: Tensor) -> _Apart | None:
    """Return what `explains` found (V,) in words; None where nothing is apart."""
    type_ = rounded(view)
    behind = " behind that defense" if view.knowledge.defense else ""
    said = f"the truth's own gradient{behind} differs from the update by"
    alike = ALIKE if view.clock.client_optimizer == "sgd" else ALIKE_BY_ADAM
    odd = apart > (type_.share * (ROUNDS if type_.half else 1)).clamp_min(alike)
    if not bool(odd.any()):
        line = f"{said} {float(apart.max()):.2g} of its length, as numbers of {type_.name} make it"
        return _Apart(line, True) if float(apart.max()) > ALIKE else None
    differs, length, parallel = (float(t[odd].median()) for t in (apart, times, cosine))
    many = int(odd.sum())
    line = f"{said} {differs:.2g} of its length" + (f", of {many} of {view.victims} updates" if many < len(odd) else "")
    if parallel >= PARALLEL and abs(length - 1) > ONCE:
        why = "a sum instead of a mean" if length > 1 else "a clip"
        return _Apart(f"{line}: the update is {length:.3g} times it ({why}, another batch or rate?)", False)
    if view.noise is not None:
        return _Apart(f"{line}, as noise makes it", True)
    why = "was it changed, or are the weights, the mode, the batch or the learning rate not as given?"
    return _Apart(f"{line}: {why}", False)


def _other_noise(view: View, apart: Tensor) -> str:
    """Return in a sentence that the updates (V,) lie nearer to the truth's own, or farther from it, than the noise of the defense
    would have them; nothing where it fits.
    """
    numbers = sum(u[0].numel() for u in view.update.values())
    expected = (view.noise or 0.0) * math.sqrt(numbers) / lengths(view.update).clamp_min(TINY)
    ratio = float((apart / expected.clamp_min(TINY)).median())
    silent = bool((lengths(view.update) == 0).any())  # Which is said beside it.
    if silent or float(expected.median()) <= ALIKE or numbers < ENOUGH or 1 / TWICE <= ratio <= TWICE:
        return ""
    return (
        f"the truth's own gradient behind that defense differs from the update by {float(apart.median()):.2g} of its length, where"
        f" its noise makes it {float(expected.median()):.2g}: was it applied, with these numbers, and to this batch?"
    )


def explains(view: View, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, each (V,), |u - r| / |u|, <u, r> / <r, r> and the cosine of updates u and what the inputs answer, r.

    inputs (V, M, *s), labels (V, M), in the order of use. The first is infinite for an update that is zero where r is not.
    """
    with torch.no_grad():
        answered = view.respond(inputs.float(), one_hot(labels, view.classes))
    # In double precision, in which no square of a float32 overflows.
    r, u = (torch.cat([p[n].flatten(1) for n in view.update], 1).double() for p in (answered, view.update))
    between, of_u, of_r, product = (u - r).norm(dim=1), u.norm(dim=1), r.norm(dim=1), (u * r).sum(1)
    apart = torch.where(between == 0, between, between / of_u)
    return apart, product / of_r.square().clamp_min(TINY), product / (of_u * of_r).clamp_min(TINY)
