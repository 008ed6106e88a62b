"""Tries every slot and method of the attacks on degenerate leaks, guesses and public examples."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.isolation import answered
from leakbench.attack.needs import needs_of
from leakbench.attack.slots.descent import DESCENT
from leakbench.attack.slots.distance import DISTANCE
from leakbench.attack.slots.labels import LABELS
from leakbench.attack.slots.pooling import POOLING
from leakbench.attack.slots.priors import PRIOR
from leakbench.attack.slots.space import SPACE
from leakbench.attack.slots.start import START
from leakbench.attack.slots.stop import limited
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, names, resolve
from leakbench.core.rng import generators
from leakbench.core.types import Network
from leakbench.federated.view import Public, View
from leakbench.models import build, one_hot, parameters
from tests.reliability.edges_gradients import NOT_FINITE, made
from tests.reliability.edges_mechanisms import numbers, refused
from tests.reliability.tally import Tally

__all__ = ["try_attacks"]

VICTIMS, SHAPE, CLASSES = 3, (1, 8, 8), 10
AT = 1
"""The victim whose leak is degenerate; the others have plain gradients."""

FORMS: dict[str, dict[str, Any]] = {
    "constant": {"value": 0.5},
    "reconstructed": {"method": "lmmse"},
    "total_variation": {"weight": 1.0},
    "length": {"weight": 1.0},
    "embedding_length": {"weight": 1.0},
    "group_consistency": {"weight": 1.0},
    "batch_norm": {"weight": 1.0},
    "oracle_logits": {"weight": 1.0},
}
"""{part: its required fields}."""

SHORT = ("cpl", "analytic_fc", "identification")


def try_attacks(tally: Tally, full: bool) -> None:
    """Try the slots, then all methods of the catalog; three methods if not `full`."""
    _distances(tally)
    _priors(tally)
    _labels_and_starts(tally)
    _spaces(tally)
    for name in names("attacks") if full else SHORT:
        attack = resolve("attacks", Attack, name)[1]
        if "image" not in attack.needs.kinds or attack.server.threat != "honest":
            continue  # Attacks on tables or texts and malicious servers are tried through `leakbench run`.
        for batch in (1, 2) if full else (1,):
            _method(tally, name, attack, batch, full)
    if full:
        for slot in (DISTANCE.parts, PRIOR.parts, LABELS.parts, START.parts, SPACE.parts, POOLING.parts, DESCENT.parts):
            for name, cls in slot.items():
                for field in numbers(cls):
                    for value in (math.nan, math.inf, -math.inf, -1.0):
                        with tally.case(f"attacks: {name}.{field} = {value}"):
                            refused(
                                lambda c=cls, n=name, f=field, v=value: construct(c, {**FORMS.get(n, {}), f: v}), field
                            )


def view_of(model: nn.Module, kind: str, batch: int = 1, public: str = "plain") -> View:
    """Return the leak of three victims: one is degenerate, the others are plain gradients."""
    model = model.eval()
    rng = torch.Generator().manual_seed(0)
    network = Network(model, parameters(model))
    inputs, labels = (
        torch.rand(VICTIMS, batch, *SHAPE, generator=rng),
        torch.tensor([[0, 3], [1, 1], [2, 9]])[:, :batch],
    )
    if kind in PICTURES:
        inputs[AT] = PICTURES[kind]
    known = {"constant": torch.full((40, *SHAPE), 0.5)}.get(public, torch.rand(40, *SHAPE, generator=rng))
    told = Public(known, torch.zeros(40, dtype=torch.int64) if public == "one class" else torch.arange(40) % CLASSES)
    view = View("type-1", network, {n: p[None].expand(VICTIMS, *p.shape) for n, p in network.parameters.items()},
                batch, SHAPE, CLASSES, 0.1, public=told, labels=labels)  # fmt: skip
    targets = one_hot(labels, CLASSES)
    with torch.no_grad():
        logits = torch.stack([model(x) for x in inputs])
        leaked = {n: u.detach() for n, u in view.respond(inputs, targets).items()}
    if kind not in PICTURES and kind != "plain":
        shapes = {n: tuple(u.shape[1:]) for n, u in leaked.items()}
        for n, u in made(kind, shapes, (1,)).items():
            leaked[n] = leaked[n].clone()
            leaked[n][AT] = u[0]
    shown = Public(torch.cat([inputs[:, 0], known[:7]]), torch.cat([labels[:, 0], told.labels[:7]]))
    return dataclasses.replace(view, update=leaked, logits=logits, candidates=shown)


PICTURES = {"black": 0.0, "white": 1.0, "grey": 0.5}
"""{kind of a constant picture: its value}."""

LEAKS = ("zero", "constant", "huge", "tiny", *NOT_FINITE, *PICTURES)


def normed() -> nn.Module:
    """A network whose batch normalisation has its own statistics."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, CLASSES))


def network_for(name: str) -> nn.Module:
    """Return the kind of network that an attack of the catalog needs."""
    if name in ("see_through", "inverting_gradients_batch_norm"):
        return normed()
    kind = {"spear": "mlp_relu", "rows": "mlp_relu", "analytic_fc": "mlp_relu", "cocktail_party": "mlp_relu"}.get(
        name, "mlp_sigmoid"
    )
    return build(kind, SHAPE, CLASSES, torch.Generator().manual_seed(0))


def _method(tally: Tally, name: str, attack: Attack, batch: int, full: bool) -> None:
    model, method = network_for(name), _briefly(limited(attack.method, 2) or attack.method)
    plain: Any = None
    for kind in ("plain", *LEAKS) if full else ("plain", "zero", "nan", "black"):
        said = f"attacks: {name}, a batch of {batch}, {kind} leak"
        with tally.case(said):
            view = view_of(model, kind, batch)
            try:
                found = answered(method, (view,), generators(0, "attack", [(v,) for v in range(VICTIMS)]))
            except InputError as error:
                if "\n" in str(error):
                    raise AssertionError(f"refused in {str(error)!r}, expected one line") from None
                if kind not in ("plain",) and not isinstance(plain, InputError):
                    raise AssertionError(f"refused, and a plain leak is not: {error}") from None
                plain = error if kind == "plain" else plain
                continue
            plain = found if kind == "plain" else plain
            _answer(found, plain, kind, batch, name in ("rows", "spear", "cocktail_party"))


def _briefly(part: Any) -> Any:
    """Return a part with every learning part in it limited to 16 hidden units and two epochs."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return tuple(_briefly(inner) for inner in part) if isinstance(part, tuple) else part
    small = {"hidden": 16, "latent": 4, "epochs": 2, "draws": 4000}
    fields = {f.name: small.get(f.name, _briefly(getattr(part, f.name))) for f in dataclasses.fields(part) if f.init}
    return dataclasses.replace(part, **fields)  # type: ignore[type-var]


def _answer(found: Reconstruction | Ranking, plain: Any, kind: str, batch: int, rows: bool) -> None:
    """Raise if a reconstruction has another shape or is partly finite, or if the other victims' reconstructions change."""
    if isinstance(found, Ranking):
        if found.scores.shape[0] != VICTIMS or (kind in NOT_FINITE and bool(found.scores[AT].isfinite().all())):
            raise AssertionError(f"scores {tuple(found.scores.shape)} of a leak that is not finite")
        if not bool(found.scores[[0, 2]].isfinite().all()):
            raise AssertionError("the other victims have no scores")
        return
    if found.inputs.shape != (VICTIMS, batch, *SHAPE) or found.labels.shape != (VICTIMS, batch):
        raise AssertionError(f"answers of {tuple(found.inputs.shape)} and {tuple(found.labels.shape)}")
    held = found.inputs.isfinite().flatten(2)
    if not torch.equal(held.all(2), held.any(2)):
        raise AssertionError("an answer is a number here and none there")
    if bool((found.labels < -1).any()) or bool((found.labels >= CLASSES).any()):
        raise AssertionError(f"labels {found.labels.tolist()}")
    whole = held.all(2)
    if bool((found.certainty.isnan() & whole).any()):
        raise AssertionError("a certainty of an answer is NaN")
    if kind in NOT_FINITE and (bool(whole[AT].any()) or bool(found.certainty[AT].ne(-torch.inf).any())):
        raise AssertionError("an answer to what is not finite")
    beside = plain.inputs.isfinite().flatten(2).all(2)[[0, 2]]
    if not torch.equal(whole[[0, 2]], beside):
        raise AssertionError("the other victims' reconstructions changed")
    # The rows alone show nothing of black pictures, whose rows are zero, and cannot separate pictures that are parallel.
    if kind in PICTURES and not rows and not torch.equal(whole[AT], plain.inputs.isfinite().flatten(2).all(2)[AT]):
        raise AssertionError("a constant picture has no answer where another has one")


def _distances(tally: Tally) -> None:
    shapes = {"a": (4, 3), "b": (4,)}
    view = view_of(network_for(""), "plain")
    for name, cls in DISTANCE.parts.items():
        distance = construct(cls, {})
        for kind in ("plain", "zero", "constant", "tiny"):
            with tally.case(f"attacks: {name} of what is the same, {kind}"):
                guess = {n: g.requires_grad_() for n, g in made(kind, shapes, (2,)).items()}
                found = distance(guess, {n: g.detach() for n, g in guess.items()}, view)
                orthogonal = name in ("cosine", "cosine_by_layer") and kind in (
                    "zero",
                    "tiny",
                )  # Zero length: no direction.
                _equal(found, torch.full((2,), 1.0 if orthogonal else 0.0), 1e-6)
                slopes = torch.autograd.grad(found.sum(), list(guess.values()))
                _equal(torch.stack([s.abs().max() for s in slopes]).clamp_max(1e30).isfinite().float(), torch.ones(2))
        for kind in NOT_FINITE:
            with tally.case(f"attacks: {name} of a guess that is {kind}"):
                guess = made("plain", shapes, (2,))
                for n, g in made(kind, shapes, (1,)).items():
                    guess[n][:1] = g
                found = distance(guess, made("constant", shapes, (2,)), view)
                if bool(found[0].isfinite()) or not bool(found[1].isfinite()):
                    raise AssertionError(f"distances {found.tolist()}, expected the first alone not to be a number")


def _priors(tally: Tally) -> None:
    bare, with_norm = view_of(network_for(""), "plain"), view_of(normed(), "plain")
    victims = torch.arange(VICTIMS)
    for name, cls in PRIOR.parts.items():
        if name == "epochs_agree":  # It reads updates of several epochs: tests/federated/test_epochs.py.
            continue
        prior = construct(cls, FORMS[name])
        if "image" not in needs_of(prior).kinds:
            continue
        view = with_norm if name == "batch_norm" else bare
        for value in (0.0, 0.5, 1.0):
            with tally.case(f"attacks: {name} of pictures of {value} throughout"):
                inputs = torch.full((VICTIMS, 1, *SHAPE), value, requires_grad=True)
                found = prior(inputs, view, victims)
                [slope] = torch.autograd.grad(found.sum(), inputs, allow_unused=True)
                stated = {"total_variation": 0.0, "group_consistency": 0.0, "length": 8 * value}.get(name)
                if stated is not None:
                    _equal(found, torch.full((VICTIMS,), stated))
                if not bool(found.isfinite().all()) or (slope is not None and not bool(slope.isfinite().all())):
                    raise AssertionError(f"penalty {found.tolist()}, or its derivative, is not finite")
        for value in (math.nan, math.inf):
            with tally.case(f"attacks: {name} of a picture of {value}"):
                inputs = torch.full((VICTIMS, 1, *SHAPE), 0.5)
                inputs[AT] = value
                found = prior(inputs, view, victims)
                saturates = name == "oracle_logits" and value == math.inf  # For a network with sigmoids.
                if bool(found[AT].isfinite()) and not saturates:
                    raise AssertionError(f"penalty {float(found[AT])}, expected no number")
                if not bool(found[[0, 2]].isfinite().all()):
                    raise AssertionError("the other victims have no penalty")
        if name in ("total_variation", "length"):
            with tally.case(f"attacks: {name}, standardised by public pictures that are all the same"):
                same = view_of(network_for(""), "plain", public="constant")
                found = construct(cls, {**FORMS[name], "standardised": True})(
                    torch.rand(VICTIMS, 1, *SHAPE), same, victims
                )
                if not bool(found.isfinite().all()):
                    raise AssertionError(f"penalty {found.tolist()}")


def _labels_and_starts(tally: Tally) -> None:
    rngs = [(v,) for v in range(VICTIMS)]
    for kind in ("plain", "zero", "constant", "huge", "tiny"):
        for batch in (1, 2):
            view = view_of(network_for(""), kind, batch)
            for name, cls in LABELS.parts.items():
                with tally.case(f"attacks: labels by {name} of a batch of {batch}, {kind} leak"):
                    if name == "last_layer_soft" and batch > 1:  # Its soft label is that of one example alone.
                        refused(
                            lambda c=cls, v=view: construct(c, {})(v, generators(0, "attack", rngs)), "last_layer_soft"
                        )
                        continue
                    found = construct(cls, {})(view, generators(0, "attack", rngs))
                    if found.targets.shape != (VICTIMS, batch, CLASSES) or not bool(found.targets.isfinite().all()):
                        raise AssertionError(f"{tuple(found.targets.shape)}, or not finite")
                    if not found.joint and not torch.allclose(found.targets.sum(2), torch.ones(VICTIMS, batch)):
                        raise AssertionError("not one label each")
    for public in ("plain", "constant", "one class"):
        view = view_of(network_for(""), "plain", public=public)
        for name, cls in START.parts.items():
            with tally.case(f"attacks: start {name}, public examples: {public}"):
                try:
                    found = construct(cls, FORMS.get(name, {}))(view, generators(0, "attack", rngs))
                except InputError as error:
                    others = {"standard_uniform": "needs a table", "normal_embeddings": "needs texts"}
                    other = name in others and others[name] in str(error)
                    alike = name == "surrogate" and public == "one class" and "another one" in str(error)
                    if not (other or alike) or "\n" in str(error):
                        raise
                    continue
                if found.shape != (VICTIMS, 1, *SHAPE) or not bool(found.isfinite().all()):
                    raise AssertionError(f"{tuple(found.shape)}, or not finite")


def _spaces(tally: Tally) -> None:
    for public in ("plain", "constant", "one class"):
        view = view_of(network_for(""), "plain", public=public)
        for name in ("pixels", "standardised", "whitened"):
            with tally.case(f"attacks: space {name}, public examples: {public}"):
                space = construct(SPACE.parts[name], {})(view)
                x = torch.full((VICTIMS, 1, *SHAPE), 0.5)
                there = space.encode(x)
                _equal(space.decode(there), x, 1e-4)
                energy = space.energy(there, one_hot(torch.zeros(VICTIMS, 1, dtype=torch.int64), CLASSES))
                if not bool(energy.isfinite().all()):
                    raise AssertionError("an energy that is not finite")


def _equal(found: Tensor, expected: Tensor, within: float = 1e-5) -> None:
    if found.shape != expected.shape or not torch.allclose(found.detach(), expected, atol=within, rtol=1e-5):
        raise AssertionError(f"got {found.flatten()[:4].tolist()}, expected {expected.flatten()[:4].tolist()}")
