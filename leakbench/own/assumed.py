"""What an attack on somebody's update takes for granted, in sentences, and whether the truth bears it out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from leakbench.errors import InputError
from leakbench.federated.view import View
from leakbench.models import one_hot
from leakbench.own.attacked import Attacker, told
from leakbench.own.modes import norms, trains
from leakbench.own.normalised import normals
from leakbench.own.seen import Seen

__all__ = ["assumed", "explains"]

ALIKE = 1e-3
"""Up to which share of an update's length a gradient counts as the same; float32 weights of a small step differ by as much."""

ONCE, PARALLEL = 0.05, 0.99
"""By how much a length may differ before it is said, and the cosine from which on nothing but the length does."""


def assumed(seen: Seen, attacker: Attacker, sent: bool) -> list[str]:
    """Return what the attack assumes of the update, the network and the attacker, a sentence each; see `explains` for the last.

    sent: whether the weights from before the update were given.
    """
    view, how, lines = seen.view, seen.training, list[str]()
    if view.knowledge.reads == "gradient":
        many = "one example" if view.examples == 1 else f"{view.examples} examples"
        lines.append(f"the update is taken for the gradient of the mean cross-entropy of {many}")
    else:
        rate = f"at learning rate {how.learning_rate:g}"
        lines.append(
            f"the update is taken for what {how.steps} steps of {how.optimizer} with {how.batch} examples each {rate} added"
        )
    if not sent:
        lines.append("the network's weights are those with which the model is built; --before has others")
    found = norms(view.network.model)
    if found:
        which = "its batch's statistics" if trains(view.network.model) else "its running statistics"
        other = "eval" if trains(view.network.model) else "train"
        lines.append(f"batch normalisation ({found[0]}) computes by {which}; --victim-mode {other} has the other")
    for normal in normals(view.network.model):
        by = " and ".join(",".join(f"{n:g}" for n in numbers) for numbers in (normal.mean, normal.std))
        lines.append(f"inputs in [0, 1] are normalised by mean and deviation {by} before the network")
    if any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p for m in view.network.model.modules()):
        lines.append("dropout is taken to be off; what it drew nobody knows")
    frozen = [name for name, p in view.network.model.named_parameters() if name not in view.network.parameters]
    if frozen:
        lines.append(
            f"{len(frozen)} parameters do not require a gradient, as {frozen[0]}: they are not trained and show nothing"
        )
    if attacker.defense is not None and attacker.attack.knows == "oblivious":
        lines.append("the attack does not know of the defense; --knows defense tells it, identification is told anyway")
    if attacker.data is None:
        lines.append("public examples are made up; --dataset has real ones")
        if attacker.success is None and seen.inputs is not None:
            lines.append(
                f"success is an RMSE of at most {attacker.eta:g}, calibrated on nothing; --success or --dataset"
            )
    if seen.inputs is None:
        lines.append("no truth was given, so that nothing is scored")
    return lines + ([] if seen.inputs is None else _borne_out(seen, attacker))


def _borne_out(seen: Seen, attacker: Attacker) -> list[str]:
    """Return in a sentence how the truth's own gradient differs from the update; nothing where it is the same."""
    assert seen.inputs is not None and seen.labels is not None
    view = told(seen, attacker)
    try:
        apart, times, cosine = explains(view, seen.inputs, seen.labels)
    except InputError:
        return []  # A defense that makes its choice on more than a guess shows.
    differs, length = float(apart.median()), float(times.median())
    if differs <= ALIKE:
        return []
    behind = " behind that defense" if view.knowledge.defense else ""
    line = f"the truth's own gradient{behind} differs from the update by {differs:.2g} of its length"
    if float(cosine.median()) >= PARALLEL and abs(length - 1) > ONCE:
        return [f"{line}: the update is {length:.3g} times it (a sum in the stead of a mean, another batch or rate?)"]
    if view.noise is not None:
        return [f"{line}, as noise makes it"]
    return [f"{line}: was something done to it, or are the weights, the mode, the batch or the rate others than said?"]


def explains(view: View, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, each (V,), |u - r| / |u|, <u, r> / <r, r> and the cosine of updates u and what the inputs answer, r.

    inputs (V, M, *s), labels (V, M), in the order of use.
    """
    with torch.no_grad():
        answered = view.respond(inputs.float(), one_hot(labels, view.classes))
    r, u = (torch.cat([p[n].flatten(1) for n in view.update], 1) for p in (answered, view.update))
    of_u, of_r, product = u.norm(dim=1).clamp_min(1e-30), r.norm(dim=1).clamp_min(1e-30), (u * r).sum(1)
    return (u - r).norm(dim=1) / of_u, product / of_r**2, product / (of_u * of_r)
