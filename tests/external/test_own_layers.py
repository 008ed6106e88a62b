"""Every layer of `torch.nn` in a network of the user's own: each command works, or refuses it in one line before a search."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leakbench
from leakbench.attack.methods import gradient_matching
from leakbench.core.errors import InputError
from tests.torch_nn_layers import CLASSES, LAYERS, NAMES, ODD, SHAPE, network

EXAMPLES = torch.rand(10, *SHAPE, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10)


def attack(name: str, folder: Path) -> None:
    model = network(name).eval()
    x, y = EXAMPLES[:1], LABELS[3:4]
    nn.functional.cross_entropy(model(x), y).backward()
    update = {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in model.named_parameters()}
    found = leakbench.attack_update(
        model, update, shape=SHAPE, classes=CLASSES, truth=(x[None], y[None]), attack="idlg", iterations=2
    )
    assert found.summary is not None


def mode(name: str) -> dict[str, Any]:
    """Return the mode of batch normalisation, which has no default."""
    return {"victim_mode": "eval"} if "BatchNorm" in name or name.startswith("norm") else {}


def run(name: str, folder: Path) -> None:
    options: dict[str, Any] = {"train_rounds": 0, "victims": 1, "candidates": 2, "taps": "type-2", "iterations": 2}
    options |= mode(name)
    leakbench.run(
        leak_model=f"tests.torch_nn_layers:{name}",
        dataset="digits",
        attack="idlg",
        out=folder / name,
        quiet=True,
        **options,
    )


def probe(name: str, folder: Path) -> None:
    model = network(name).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leakbench.probe(model) as record:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(EXAMPLES[:2]), LABELS[:2]).backward()
        record.observe(EXAMPLES[:2], LABELS[:2], nn.functional.cross_entropy)
        optimizer.step()
    record.leak(classes=CLASSES, attack="idlg", iterations=2)


def canaries(name: str, folder: Path) -> None:
    model = network(name)
    examples = leakbench.canaries.examples(EXAMPLES, classes=CLASSES, seed=0)
    examples.score(model)
    gradients = leakbench.canaries.gradients(model, 10, seed=0)
    gradients.join({n: p[None].detach() for n, p in model.named_parameters()})
    gradients.score({n: p.detach() for n, p in model.named_parameters()})


def audit(name: str, folder: Path) -> None:
    network, options = f"tests.torch_nn_layers:{name}", mode(name)
    leakbench.audit(
        "fed_sdp_client_valid", dataset="digits", model=network, trials=100, train_rounds=1, quiet=True, **options
    )


COMMANDS: dict[str, Callable[[str, Path], None]] = {
    command.__name__: command for command in (attack, run, probe, canaries, audit)
}


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield a list that grows with each search."""
    begun: list[str] = []
    descend = gradient_matching.descend

    def counted(*given: Any) -> Any:
        begun.append("search")
        return descend(*given)

    monkeypatch.setattr(gradient_matching, "descend", counted)
    yield begun


def outcome(command: str, name: str, folder: Path, searches: list[str]) -> str:
    """Return `works`, or the line of a refusal; raises AssertionError for a refusal after a search began."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            COMMANDS[command](name, folder)
        except InputError as error:
            assert not searches, f"{command} refuses {name} after a search: {error}"
            return str(error)
    return "works"


GRADIENTS = {"attack", "run", "probe", "audit"}

REFUSED = {
    **dict.fromkeys(("CrossMapLRN2d", "EmbeddingBag", "FractionalMaxPool2d", "FractionalMaxPool3d"), GRADIENTS),
    **{f"LazyInstanceNorm{d}d": {"run", "audit"} for d in (1, 2, 3)},
    **dict.fromkeys(("scripted", "traced"), GRADIENTS),
    "complex": set(COMMANDS),
    "norm_without_statistics": {"run", "probe", "audit"},
}
"""{network: commands that refuse it}."""

QUICK = ["GRU", "LSTMCell", "BatchNorm1d", "MultiheadAttention", "Conv2d", *ODD]


@pytest.mark.parametrize("name", QUICK)
def test_unusual_networks_are_attacked_or_refused_before_a_search(
    name: str, tmp_path: Path, searches: list[str]
) -> None:
    found = outcome("attack", name, tmp_path, searches)
    assert (found != "works") == ("attack" in REFUSED.get(name, ())), found


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", NAMES)
def test_each_layer_works_or_is_refused_before_a_search(
    name: str, command: str, tmp_path: Path, searches: list[str]
) -> None:
    found = outcome(command, name, tmp_path, searches)
    assert (found != "works") == (command in REFUSED.get(name, ())), found


def test_the_table_has_every_layer_of_torch() -> None:
    assert len(LAYERS) >= 130
