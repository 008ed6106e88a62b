"""Checks that the parts of a cell fit together, so that errors appear before minutes of work."""

from __future__ import annotations

import torch

from leakbench.attack import Attack
from leakbench.attack.needs import IMAGE, TABULAR, TEXT, ReadsParameters
from leakbench.attack.servers.fishing import fished
from leakbench.attack.servers.peftleak import PeftLeak
from leakbench.attack.servers.server import lies
from leakbench.cell.network import probe
from leakbench.cell.settings import Settings
from leakbench.cell.victim_mode import check_mode
from leakbench.core.errors import InputError
from leakbench.core.request import BATCH, CLASS
from leakbench.core.types import Clock, Network
from leakbench.data.dataset import Dataset
from leakbench.defense import Defense, facts_at
from leakbench.defense.augmentation import Batch, applied
from leakbench.defense.transform import RunsNetwork, name_of
from leakbench.federated.view import alone_by
from leakbench.models.language import LanguageModel
from leakbench.models.references import shown

__all__ = ["check_alone", "check_class", "check_fit", "check_kind", "check_loss", "check_statistics", "check_trained"]

MOST_INDICES = 100_000_000

WORDS = {IMAGE: "pictures", TABULAR: "tables", TEXT: "texts"}
"""{kind of data: its name in messages}."""

DATASETS = {IMAGE: "digits", TABULAR: "adult", TEXT: "reviews"}
ATTACKS = {IMAGE: "autoleak", TABULAR: "autoleak", TEXT: "tag"}


def check_fit(s: Settings, data: Dataset, defense: Defense) -> None:
    """Raise InputError for numbers and parts that do not fit together."""
    f = s.federation
    if s.candidates < s.victims <= len(data.victims):
        raise InputError(
            f"candidates: got {s.candidates}, fewer than the {s.victims} victims, which are among the candidates; give"
            f" --candidates {s.victims} or more, or at most --victims {s.candidates}"
        )
    if f.local_iterations * f.batch > MOST_INDICES:
        raise InputError(
            f"local-iterations: {f.local_iterations} of batch {f.batch} are more than {MOST_INDICES} examples; give fewer"
            " --local-iterations, or a smaller --batch"
        )
    if f.clients * f.examples_per_client > MOST_INDICES:
        raise InputError(
            f"clients: {f.clients} clients of {f.examples_per_client} examples are more than {MOST_INDICES} indices; give fewer"
            " --clients or --examples-per-client"
        )
    kept = [name_of(t) for t in defense.server if getattr(t, "over_rounds", False)]
    if s.join_rounds and kept and {"type-0", "global"} & set(s.taps):
        raise InputError(
            f"join-rounds: {kept[0]} correlates the noise of all rounds, and the noise of each leak is drawn by itself; leave it"
            " out, or --taps type-1"
        )
    networks = {shown(name): probe(defense, data, s, name) for name in (s.model, s.leaking)}
    check_mode(s.victim_mode, {n: p.network.model for n, p in networks.items()}, shown(s.leaking), s.taps, defense)
    check_inputs(defense, data)
    for seen in networks.values():
        facts_at(defense, seen, defense.clock(f, 0))
    if s.protocol == "live":
        needed = s.victims * (f.clients_per_round if any(map(defense.shows_sum, s.taps)) else 1)
        if needed > f.clients:
            whose = "" if needed == s.victims else f" ({needed // s.victims} in the sum of each victim)"
            raise InputError(
                f"victims: {s.victims} need {needed} clients in the live protocol{whose}, there are {f.clients}; fewer"
                f" --victims, or --clients {needed}"
            )
        if s.leak_batch > f.examples_per_client:
            raise InputError(
                f"leak-batch: got {s.leak_batch}, more than the {f.examples_per_client} examples that a client holds; give a"
                " smaller --leak-batch, or more --examples-per-client"
            )


def check_inputs(defense: Defense, data: Dataset) -> None:
    """Raise InputError if the defense changes inputs and cannot change those of the data."""
    tokens = data.kind == TEXT
    inputs = torch.zeros(1, 2, *data.shape, dtype=torch.int64 if tokens else torch.float32)
    applied(defense.inputs, Batch(inputs, torch.zeros(1, 2, data.outputs), torch.ones(1, 2)), Clock(0, 0, 1, 1), None)


def check_kind(attack: Attack, data: Dataset, names: tuple[str, str]) -> None:
    """Raise InputError if an attack cannot read data of this kind.

    Args:
        names: Name of the attack and name of the data set.
    """
    kinds = attack.needs.kinds
    if data.kind in kinds:
        return
    if not kinds:
        raise InputError(
            f"attack: {names[0]!r} has parts for different kinds of data; expected parts with a common kind, such as the space"
            " `embeddings` with the start `normal_embeddings`"
        )
    needed = " or ".join(WORDS[kind] for kind in kinds)
    raise InputError(
        f"attack: {names[0]!r} needs {needed}, {names[1]!r} holds {WORDS[data.kind]}; try --attack {ATTACKS[data.kind]}, or"
        f" --dataset {DATASETS[kinds[0]]}"
    )


def check_alone(s: Settings, attack: Attack, defense: Defense, name: str) -> None:
    """Raise InputError if an attack on the update of one example gets the update of several examples or clients."""
    if not attack.needs.alone:
        return
    steps = s.federation.local_iterations if s.protocol == "live" else 1
    for tap in s.taps:
        cohort = defense.clock(s.federation, 0).cohort if defense.shows_sum(tap) else 1
        behind = 1 if tap == "type-2" else cohort * steps * s.leak_batch
        if behind > 1:
            raise InputError(
                f"attack: {name!r} reads what one example leaks, {tap} shows {behind} (try {alone_by(behind, s.leak_batch)})"
            )


def check_statistics(s: Settings, attack: Attack, defense: Defense, name: str) -> None:
    """Raise InputError for statistics of the attacker that do not fit the rest of a cell.

    Args:
        name: Name of the attack.
    """
    if s.statistics == BATCH:
        return
    if s.victim_mode != "train":
        raise InputError(
            f"statistics: got {s.statistics!r}, but victims in eval mode use the statistics that the server sent; leave it out, or"
            " --victim-mode train"
        )
    if s.statistics == "running":
        return
    if not attack.needs.statistics:
        raise InputError(
            f"statistics: got {s.statistics!r}, but {name!r} has no prior of batch normalization that reads them; try --attack"
            " inverting_gradients_batch_norm"
        )
    if s.statistics != "proxy" and defense.inputs:
        raise InputError(
            f"statistics: got {s.statistics!r}, but the defense changes the examples before they are normalised, and those are not"
            " the victim's; expected batch, running or proxy"
        )
    steps = s.federation.local_iterations if s.protocol == "live" else 1
    summed = [tap for tap in s.taps if defense.shows_sum(tap) and defense.clock(s.federation, 0).cohort > 1]
    if s.statistics != "proxy" and (steps > 1 or summed):
        what = f"{steps} local iterations" if steps > 1 else f"several clients at {summed[0]}"
        raise InputError(
            f"statistics: got {s.statistics!r}, which are those of one batch, but an update has {what}; expected batch, running or"
            " proxy"
        )


def check_loss(s: Settings, attack: Attack, defense: Defense, names: dict[str, str]) -> None:
    """Raise InputError for a part that reads classes, if networks do not answer with the class.

    Args:
        names: {`attack` or `defense`: its name}.
    """
    if s.loss == CLASS:
        return
    loss = s.loss.partition("@")[0]
    runs = any(isinstance(t, RunsNetwork) for t in (*defense.example, *defense.batch, *defense.client))
    if runs or defense.network or defense.inputs:
        raise InputError(f"loss: {loss} has no classes, which the defense {names['defense']!r} reads; try --loss class")
    needs = attack.needs
    if needs.labels or needs.logits or needs.classes or lies(attack.server):
        what = "the true labels" if needs.labels else "the true logits" if needs.logits else "a layer of classes"
        raise InputError(f"loss: {loss} has no classes, and {names['attack']!r} takes {what}; try --loss class")


def check_trained(s: Settings, attack: Attack, network: Network, name: str) -> None:
    """Raise InputError for an attack that reads the gradients of parameters that are not trained.

    Args:
        network: The network that leaks.
        name: Name of the attack.
    """
    method, model = attack.method, network.model
    if isinstance(attack.server, PeftLeak):
        attack.server.check(network)
    if isinstance(method, ReadsParameters) and isinstance(model, LanguageModel):
        missing = method.missing(model, tuple(network.parameters))
        if missing:
            raise InputError(
                f"attack: {name!r} reads the gradients of {missing}, which --trainable {s.trainable} leaves out or {s.leaking} does"
                f" not have; try another attack, such as identification{'' if s.trainable == 'all' else ', or --trainable all'}"
            )


def check_class(s: Settings, data: Dataset, attack: Attack, names: tuple[str, str]) -> None:
    """Raise InputError if a server fishes for a class without examples to attack.

    Args:
        names: Name of the attack and name of the data set.
    """
    wanted = fished(attack.server)
    targets = data.train_targets[data.victims] if s.protocol == "paper" else data.train_targets
    if wanted is None or wanted >= data.classes or bool((targets == wanted).any()):
        return
    there = sorted(set(targets.tolist()))
    raise InputError(
        f"attack: {names[0]!r} fishes for class {wanted}, and {names[1]!r} has no example of it to attack; expected one of"
        f" {', '.join(map(str, there[:10]))}{', ...' if len(there) > 10 else ''}, in a recipe of your own (server: {{fishing: {{of:"
        f" {there[0]}}}}}), or another --dataset"
    )
