"""Public functions refuse an argument of a wrong type in one line that names it, before they do anything."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leakbench
from leakbench import canaries, flower, frameworks
from leakbench.core.errors import InputError
from leakbench.core.typed import typed_arguments
from leakbench.external.training_probe import Probe


class Odd:
    """A value of a type that no argument has."""

    def __repr__(self) -> str:
        return "odd"


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 2))


def result() -> leakbench.Result:
    return object.__new__(leakbench.Result)


def gradients() -> canaries.GradientCanaries:
    return canaries.gradients(model(), 10, seed=0)


def examples() -> canaries.ExampleCanaries:
    return canaries.examples(torch.zeros(10, 4), classes=2, seed=0)


CALLS: dict[str, tuple[Callable[[], Callable[..., Any]], dict[str, Any]]] = {
    "run": (lambda: leakbench.run, {}),
    "epsilon": (lambda: leakbench.epsilon, {}),
    "audit": (lambda: leakbench.audit, {}),
    "sweep": (lambda: leakbench.sweep, {"grid": {"given": {"victims": 1}}}),
    "compare": (lambda: leakbench.compare, {"a": "a", "b": "b"}),
    "read": (lambda: leakbench.read, {"folder": "none"}),
    "probe": (lambda: leakbench.probe, {"model": model()}),
    "Result.open": (lambda: leakbench.Result.open, {"folder": "none"}),
    "Result.figure": (lambda: partial(leakbench.Result.figure, result()), {}),
    "Result.save": (lambda: partial(leakbench.Result.save, result()), {"path": "none"}),
    "Probe.leak": (lambda: Probe(model()).leak, {}),
    "Probe.save": (lambda: Probe(model()).save, {"folder": "none"}),
    "attack_update": (lambda: leakbench.attack_update, {"model": model(), "update": {}, "shape": (4,), "classes": 2}),
    "canaries.audit": (lambda: canaries.audit, {"scores": [0.0] * 10, "included": [True, False] * 5}),
    "canaries.gradients": (lambda: canaries.gradients, {"model": model()}),
    "canaries.examples": (lambda: canaries.examples, {"inputs": torch.zeros(10, 4), "classes": 2}),
    "GradientCanaries.join": (lambda: gradients().join, {"grads": {}}),
    "GradientCanaries.score": (lambda: gradients().score, {"released": {}}),
    "GradientCanaries.audit": (lambda: gradients().audit, {}),
    "ExampleCanaries.score": (lambda: examples().score, {"model": model()}),
    "ExampleCanaries.audit": (lambda: examples().audit, {}),
    "nvflare_function": (lambda: frameworks.nvflare_function, {"build": model}),
    "pfl_function": (lambda: frameworks.pfl_function, {"build": model}),
    "UpdateTapFilter": (lambda: frameworks.UpdateTapFilter, {"folder": "none"}),
    "DefenseMod": (lambda: flower.DefenseMod, {"recipe": "none"}),
    "CanaryMod": (lambda: flower.CanaryMod, {"canaries": None, "first": 0}),
    "UpdateTapMod": (lambda: flower.UpdateTapMod, {"sink": "none"}),
    "StepProbeMod": (lambda: flower.StepProbeMod, {"sink": "none"}),
    "InProcessGrid": (lambda: flower.InProcessGrid, {"client_app": None, "clients": 1}),
    "VectorisedGrid": (
        lambda: flower.VectorisedGrid,
        {"model": model(), "batches": print, "learning_rate": 0.1, "clients": 1, "classes": 2},
    ),
    "TapGrid": (lambda: flower.TapGrid, {"grid": None, "sink": "none"}),
    "ProbeStrategy": (lambda: flower.ProbeStrategy, {"strategy": None, "probe": "none"}),
    "attach": (lambda: flower.attach, {"app": None}),
}
"""{public function: what returns it, and arguments without which it cannot be called}."""

FREE = {"self", "fields", "federation", "included", "mods"}
"""Arguments behind `**`, whose names are checked elsewhere, and those of any type."""


@pytest.mark.parametrize("name", CALLS)
def test_an_argument_of_a_wrong_type_is_named(name: str) -> None:
    find, needed = CALLS[name]
    if name == "UpdateTapFilter":
        pytest.importorskip("nvflare")
    if name.endswith(("Mod", "Grid", "Strategy")) or name == "attach":
        pytest.importorskip("flwr")
    function = find()
    arguments = [each for each in inspect.signature(function).parameters if each not in FREE]
    if not any(each.kind is each.VAR_KEYWORD for each in inspect.signature(function).parameters.values()):
        with pytest.raises(InputError, match=r"^unknown field 'tpa'"):
            function(**needed | {"tpa": 1})
    # Objects of a framework are not made here; these arguments come after the others.
    made = [each for each, value in needed.items() if value is None]
    for argument in arguments:
        if made and argument not in made:
            continue
        with pytest.raises(InputError, match=rf"^{argument}: got odd of type Odd, expected ") as refused:
            function(**needed | {argument: Odd()})
        assert "\n" not in str(refused.value)


def test_every_public_function_is_in_the_table() -> None:
    assert {*leakbench.__all__} - {"Result", "__version__", "canaries"} <= {*CALLS}
    assert {*flower.__all__} - {"observe"} <= {*CALLS}  # `observe` never ends a training: it notes what is wrong.
    assert {*frameworks.__all__} <= {*CALLS}
    assert {"canaries.audit", "canaries.gradients", "canaries.examples"} <= {*CALLS}


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (int, [1, np.int64(3), np.uint8(3)], [1.0, True, "1", None, np.float64(1)]),
        (float, [1, 0.5, np.float32(2), np.int64(3)], [True, "1", None, 1j]),
        (bool, [True, False], [1, 0, "yes", None]),
        (str, ["a"], [b"a", 1, None, Path("a")]),
        (str | Path | None, ["a", Path("a"), None], [1, b"a", ["a"]]),
        (tuple[int, ...], [(1, 2), [1, 2], (), (np.int64(1),), np.zeros(2, int)], ["12", 3, (1.5,), ("1",), None]),
        (dict[str, int], [{}, {"a": 1}, {"a": None}], [[("a", 1)], "a", None]),
        (Callable[..., Any], [print, Path, lambda: None], ["print", 3, None]),
        (nn.Module, [nn.ReLU()], [nn.ReLU, "relu", None]),
    ],
)
def test_values_are_accepted_by_their_type(kind: Any, accepted: list[Any], refused: list[Any]) -> None:
    def function(value: Any) -> Any:
        return value

    function.__annotations__ = {"value": kind}
    checked = typed_arguments(function)
    for value in accepted:
        assert checked(value) is value  # Unchanged, not converted.
    for value in refused:
        with pytest.raises(InputError, match=r"^value: got .* of type \w+, expected "):
            checked(value)
    for call in (checked, lambda: checked(1, 2)):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(InputError, match=r"^unknown field 'vlaue'; did you mean 'value'"):
        checked(vlaue=accepted[0])
