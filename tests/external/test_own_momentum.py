"""External updates of clients with momentum and weight decay, and what a Flower app records of them."""

import json
from typing import Any

import pytest
import torch
from own_network import CLASSES, SHAPE, batch, build
from torch import nn

from leakbench.core.errors import InputError
from leakbench.external.observation import unrolled_settings, unusual_settings
from leakbench.external.trace import Trace, Training
from leakbench.flower.leaks import Leak
from leakbench.flower.trace import TrainingOptions

RATE = 0.05


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"weight_decay": 0.2}, {"momentum": 0.5, "weight_decay": 0.2}])
def test_the_truth_explains_an_update(steps: int, settings: dict[str, float]) -> None:
    """The truth gives the update of torch's SGD; for one step the update is the gradient, whatever the settings."""
    model, (x, y) = build(), batch(2 * steps)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, **settings)  # type: ignore[arg-type]
    gradients: dict[str, torch.Tensor] = {}
    for i in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[2 * i : 2 * i + 2]), y[2 * i : 2 * i + 2]).backward()  # type: ignore[no-untyped-call]
        gradients = gradients or {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
    added = {n: p.detach() - before[n] for n, p in model.named_parameters()}
    seen = Trace(build(), [added], SHAPE, CLASSES, Training(2, steps, RATE, **settings), before).view  # type: ignore[arg-type]
    assert seen.of_gradients
    answer = seen.respond(x[None], nn.functional.one_hot(y, CLASSES).float()[None])
    for name, g in answer.items():
        torch.testing.assert_close(g, seen.update[name], rtol=1e-3, atol=2e-5)
        if steps == 1:
            torch.testing.assert_close(seen.update[name][0], gradients[name], rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"momentum": 1.0}, "momentum: got 1, expected a number at least 0 and below 1"),
        ({"momentum": 0.9, "optimizer": "adam"}, "momentum: got 0.9 with adam"),
        ({"weight_decay": -1.0}, "weight-decay: got -1, expected 0"),
        ({"momentum": 0.9, "learning_rate": None}, "momentum: a gradient is of no optimizer"),
        ({"weight_decay": 0.1, "learning_rate": None}, "weight-decay: a gradient is of no optimizer"),
    ],
)
def test_wrong_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as error:
        Training(**{"learning_rate": 0.1} | fields)
    assert str(error.value).startswith(message)


def recorded(settings: dict[str, Any], optimizer: str = "SGD", groups: bool = False) -> Training:
    """Return the training that is read from a record of three steps with an optimizer."""
    weights = [nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))]
    several = [{"params": weights[:1], **settings}, {"params": weights[1:]}] if groups else weights
    made = getattr(torch.optim, optimizer)(several, lr=0.1, **({} if groups else settings))
    group = made.param_groups[0]
    said = {"optimizer": optimizer, "local-steps": "3", "learning-rate": "0.1"}
    said |= {n.replace("_", "-"): str(float(group[n])) for n in ("momentum", "weight_decay") if n in group}
    unusual = unusual_settings(made)
    leak = Leak("type-1", 1, 0, 0, {}, {}, said | ({"unusual": json.dumps(unusual)} if unusual else {}))
    return TrainingOptions(batch=2).training(leak)


@pytest.mark.parametrize(
    ("settings", "optimizer", "momentum", "decay", "note"),
    [
        ({"momentum": 0.9, "weight_decay": 0.1}, "SGD", 0.9, 0.1, ""),
        ({"weight_decay": 0.1}, "Adam", 0.0, 0.1, ""),
        (
            {"momentum": 0.9, "nesterov": True},
            "SGD",
            0.0,
            0.0,
            "momentum and nesterov are left out of the steps that are unrolled",
        ),
        (
            {"momentum": 0.9, "dampening": 0.5},
            "SGD",
            0.0,
            0.0,
            "momentum and dampening are left out of the steps that are unrolled",
        ),
        ({"weight_decay": 0.1}, "AdamW", 0.0, 0.0, "AdamW's steps are taken for SGD's\nweight decay is left out"),
    ],
)
def test_a_flower_record_gives_what_is_unrolled(
    settings: dict[str, Any], optimizer: str, momentum: float, decay: float, note: str
) -> None:
    found = recorded(settings, optimizer)
    assert (found.momentum, found.weight_decay, found.note) == (momentum, decay, note)


def test_settings_of_one_group_are_left_out() -> None:
    found = recorded({"weight_decay": 0.1}, groups=True)
    assert (found.weight_decay, found.note) == (0.0, "weight decay is left out")


def test_settings_that_groups_share_are_unrolled() -> None:
    shared = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    assert unrolled_settings(shared) == {"momentum": 0.9, "weight_decay": 0.0}
    assert unrolled_settings(torch.optim.RMSprop([nn.Parameter(torch.zeros(1))], momentum=0.9)) == {}
