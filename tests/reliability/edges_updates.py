"""`leakbench.attack_update` on degenerate updates, pictures and networks: a reconstruction with its scores, or one line."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

import leakbench
from leakbench.core.errors import InputError
from tests.reliability.edges_gradients import made
from tests.reliability.tally import Tally

__all__ = ["NETWORKS", "try_updates"]

SHAPE, CLASSES = (1, 8, 8), 10
ATTACKS = ("autoleak", "cpl", "inverting_gradients_short", "analytic_fc", "lmmse")
SHORT = ("of zeros", "of 1e25")
"""Updates that the ordinary suite tries in addition to the refused ones."""

LONG = ("autoleak", "cpl", "inverting_gradients_short")
"""Searches: two iterations are enough to try an edge."""


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, CLASSES)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        found: Tensor = self.head(torch.sigmoid(self.two(torch.sigmoid(self.one(x.flatten(1))))))
        return found


def _mlp(bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16, bias=bias), nn.Sigmoid(), nn.Linear(16, CLASSES, bias=bias))


def _convolved() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.Sigmoid(), nn.Conv2d(4, CLASSES, 3), nn.Flatten())


def _dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Sigmoid(), nn.Linear(16, CLASSES))


def _normed(**how: Any) -> nn.Module:
    norm = nn.BatchNorm2d(4, **how)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Sigmoid(), nn.Flatten(), nn.Linear(144, CLASSES))


def _dead() -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    nn.init.constant_(model[1].bias, -1e3)
    return model


NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a perceptron": (_mlp, ""),
    "without bias": (lambda: _mlp(False), ""),
    "without a linear layer": (_convolved, ""),
    "with tied weights": (Tied, ""),
    "with dropout, in eval mode": (_dropping, ""),
    "with dropout, in train mode": (_dropping, "train"),
    "with batch normalisation, in eval mode": (_normed, ""),
    "with batch normalisation, in train mode": (_normed, "train"),
    "with batch normalisation without statistics": (lambda: _normed(affine=False, track_running_stats=False), ""),
    "with batch normalisation without statistics, in train mode": (
        lambda: _normed(affine=False, track_running_stats=False),
        "train",
    ),
    "in half precision": (lambda: _mlp().half(), ""),
    "in bfloat16": (lambda: _mlp().bfloat16(), ""),
    "in double precision": (lambda: _mlp().double(), ""),
    "with one class": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 1)), ""),
    "of zeros": (lambda: _zeroed(_mlp()), ""),
    "of ReLUs that are all dead": (_dead, ""),
}
"""{what is unusual about a network: (its builder, the mode in which the client computed)}."""

EXPECTED = ("the truth's own gradient differs", "the update is zero everywhere", "an update has the length")
"""The beginning of the required warnings of these updates: most do not belong to their picture."""

REFUSED = {
    "with batch normalisation without statistics, in train mode": "victim-mode: ",
}
"""{network: the beginning of its error line}."""

OF_KIND = ("analytic_fc", "lmmse")
"""Attacks that name the networks they support."""


def _zeroed(model: nn.Module) -> nn.Module:
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


def gradient(model: nn.Module, x: Tensor, y: Tensor, mode: str) -> dict[str, Tensor]:
    """Return the gradient that a client with these examples sends."""
    model = copy.deepcopy(model).train(mode == "train")
    kind = next(model.parameters()).dtype
    nn.functional.cross_entropy(model(x.to(kind)), y).backward()
    return {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}


def try_updates(tally: Tally, full: bool) -> None:
    """Try networks, updates and pictures, each with five attacks; if not `full`, with one attack and a few updates."""
    torch.manual_seed(0)
    x, y = torch.rand(1, *SHAPE), torch.tensor([3])
    for said, (build, mode) in list(NETWORKS.items()) if full else list(NETWORKS.items())[:2]:
        torch.manual_seed(1)
        model = build()
        label = y.clamp_max(0) if "one class" in said else y
        classes = 1 if "one class" in said else CLASSES
        for attack in ATTACKS if full else ("cpl",):
            with tally.case(f"updates: {attack} on a network {said}"):
                sent = gradient(model, x, label, mode)
                _outcome(model, sent, x, label, attack, classes, mode or "eval", REFUSED.get(said, ""))
    torch.manual_seed(1)
    plain = _mlp()
    for said, (update, says) in _updates(plain, x, y).items():
        if not (full or says or said in SHORT):
            continue
        for attack in ATTACKS if full else ("cpl",):
            with tally.case(f"updates: {attack} on an update {said}"):
                _outcome(plain, update, x, y, attack, CLASSES, "eval", says)
    for value in (0.0, 0.5, 1.0) if full else (0.0,):
        pictured = torch.full((1, *SHAPE), value)
        for attack in ATTACKS if full else ("cpl",):
            with tally.case(f"updates: {attack} on a picture of {value} throughout"):
                _outcome(plain, gradient(plain, pictured, y, "eval"), pictured, y, attack, CLASSES, "eval", "")
    for batch in (2, 3) if full else ():
        for attack in ("autoleak", "cpl"):
            with tally.case(f"updates: {attack} on {batch} times the same picture"):
                same, labels = x.expand(batch, *SHAPE), y.expand(batch)
                _outcome(plain, gradient(plain, same, labels, "eval"), same, labels, attack, CLASSES, "eval", "")


def _updates(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, tuple[Mapping[str, Tensor], str]]:
    """Return {what is wrong with an update: (the update, the beginning of its error line)}."""
    real = gradient(model, x, y, "eval")
    shapes = {n: tuple(p.shape) for n, p in model.named_parameters()}
    bare = {kind: made(kind, shapes, ()) for kind in ("zero", "constant", "huge", "tiny", "nan", "infinite")}
    odd = {n: g.clone() for n, g in real.items()}
    odd["1.bias"][0] = math.nan
    return {
        "of zeros": (bare["zero"], ""),
        "that is constant": (bare["constant"], ""),
        "of 1e25": (bare["huge"], ""),
        "of 1e-25": (bare["tiny"], ""),
        "1e20 times too large": ({n: g * 1e20 for n, g in real.items()}, ""),
        "1e20 times too small": ({n: g * 1e-20 for n, g in real.items()}, ""),
        "of NaN": (bare["nan"], "update: '1.weight' has numbers that are not finite"),
        "of infinities": (bare["infinite"], "update: '1.weight' has numbers that are not finite"),
        "with one NaN": (odd, "update: '1.bias' has numbers that are not finite"),
        "in half precision": ({n: g.half() for n, g in real.items()}, ""),
        "in bfloat16": ({n: g.bfloat16() for n, g in real.items()}, ""),
        "in double precision": ({n: g.double() for n, g in real.items()}, ""),
        "of whole numbers": (
            {n: g.long() for n, g in real.items()},
            "update: '1.weight' has numbers of type torch.int64",
        ),
        "of complex numbers": ({n: g.cfloat() for n, g in real.items()}, "update: '1.weight' has complex numbers"),
    }


def _outcome(
    model: nn.Module, sent: Mapping[str, Tensor], x: Tensor, y: Tensor, attack: str, classes: int, mode: str, says: str
) -> None:
    """Raise if an attack neither returns numeric scores nor refuses as required."""
    try:
        with warnings.catch_warnings():
            for expected in EXPECTED:
                warnings.filterwarnings("ignore", f"type-1: {expected}")
            found = leakbench.attack_update(
                model, sent, shape=SHAPE, classes=classes, batch=len(x), truth=(x[None], y[None]), attack=attack,
                victim_mode=mode, iterations=2 if attack in LONG else None,
            )  # fmt: skip
    except InputError as error:
        text = str(error)
        of_kind = attack in OF_KIND and text.startswith(("attack: ", "labels: ", f"{attack}: "))
        last = text.startswith("labels: the last layer has") and not says
        if "\n" in text or not (text.startswith(says) if says else of_kind or last):
            raise AssertionError(f"refused in {text!r}") from None
        return
    if says:
        raise AssertionError(f"answered, expected a refusal that begins {says!r}")
    if found.rows is None or len(found.rows) != len(x):
        raise AssertionError("no row for each example")
    held = found.rows["rmse"].notna()
    if not (held == ~found.rows["failure"].astype(bool)).all() or (found.rows[~held]["failure_reason"] == "").any():
        raise AssertionError(f"rows {found.rows[['rmse', 'failure', 'failure_reason']].to_dict('list')}")
    if not found.rows[held]["rmse"].between(0, 1).all() or found.rows[~held]["success"].any():
        raise AssertionError(f"RMSE {found.rows['rmse'].tolist()}")
