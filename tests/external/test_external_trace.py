"""A trace: the same training, recorded in files, by a probe and by a Flower tap, gives an attacker the same view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from own_network import CLASSES, SHAPE, batch, build
from torch import Tensor, nn

import leakbench
from leakbench.core.errors import InputError
from leakbench.external.attacker import AttackerOptions
from leakbench.external.trace import Trace, Training
from leakbench.flower.leaks import Leak, write_leak
from leakbench.flower.trace import TrainingOptions, trace_at
from leakbench.models import one_hot

RATE, STEPS, BATCH = 0.1, 2, 3


def numpy(tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {name: t.detach().clone().numpy() for name, t in tensors.items()}


def test_files_a_probe_and_a_flower_tap_give_one_view(tmp_path: Path) -> None:
    model, (x, y) = build(), batch(STEPS * BATCH)
    inputs, labels = x.reshape(STEPS, BATCH, *SHAPE), y.reshape(STEPS, BATCH)
    sent, optimizer = numpy(dict(model.state_dict())), torch.optim.SGD(model.parameters(), RATE)
    with leakbench.probe(model) as probe:
        for step in range(STEPS):
            probe.observe(inputs[step], labels[step], nn.functional.cross_entropy)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[step]), labels[step]).backward()
            optimizer.step()
    probed, _ = probe._points(AttackerOptions("cpl")(), None, None, 1, None)["type-1"]
    truth = (x[None], y[None])
    read = Trace(build(), [probe.update], SHAPE, CLASSES, Training(BATCH, STEPS, RATE), probe.before, truth=truth)
    shown = {f"inputs/{n}": one for n, one in enumerate(inputs)} | {f"labels/{n}": one for n, one in enumerate(labels)}
    header = {"optimizer": "SGD", "learning-rate": f"{RATE}", "local-steps": f"{STEPS}", "victim-mode": "eval"}
    write_leak(tmp_path, Leak("type-1", 1, 7, 0, numpy(dict(model.state_dict())), sent))
    write_leak(tmp_path, Leak("type-2", 1, 7, 0, numpy(shown), sent, header))
    tapped = trace_at(tmp_path, "type-1", 1, build(), SHAPE, CLASSES, TrainingOptions(), 10)
    write_leak(tmp_path, Leak("behind", 1, 7, 0, numpy(dict(model.state_dict())), sent))
    behind = trace_at(tmp_path, "behind", 1, build(), SHAPE, CLASSES, TrainingOptions(), 10)
    assert isinstance(tapped, Trace) and isinstance(behind, Trace)
    for trace in (probed, tapped, behind):
        assert trace.training == read.training and trace.view.knowledge == read.view.knowledge
        assert trace.view.clock == read.view.clock and trace.view.examples == STEPS * BATCH
        for name, update in read.view.update.items():
            assert torch.allclose(trace.view.update[name], update, atol=1e-6)
        assert trace.inputs is not None and torch.allclose(trace.inputs, x[None])
        assert trace.labels is not None and torch.equal(trace.labels, y[None])


@pytest.mark.parametrize("steps", [1, 3])
def test_the_truth_reproduces_an_update_of_local_steps(steps: int) -> None:
    """What training added to the weights is in the units in which a guess of the true examples responds."""
    model, (x, y) = build(), batch(steps * BATCH)
    sent, optimizer = numpy(dict(model.state_dict())), torch.optim.SGD(model.parameters(), RATE)
    for inputs, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    added = {name: p.detach() - torch.from_numpy(sent[name]) for name, p in model.named_parameters()}
    view = Trace(build(), [added], SHAPE, CLASSES, Training(BATCH, steps, RATE), sent).view
    guess = view.respond(x[None], one_hot(y[None], CLASSES))
    for name, update in view.update.items():
        assert torch.allclose(guess[name], update, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tap": "type-3"}, "tap: got 'type-3', expected one of type-2, type-1, type-0"),
        ({"tap": "type-2", "training": Training(2)}, "type-2 is one example's gradient"),
        ({"before": [{}, {}]}, "before: got 2 of 1 updates"),
        ({"truth": (torch.ones(1, 1, 8, 8), torch.tensor([CLASSES]))}, "truth: labels go from 10 to 10"),
        ({"truth": (torch.ones(1, 8, 8), torch.tensor([1, 2]))}, "truth: labels are"),
        ({"truth": (2 * torch.ones(1, 8, 8), torch.tensor([1]))}, "truth: inputs go from 2 to 2, expected numbers in"),
        ({"truth": (torch.ones(1, 8, 8, dtype=torch.uint8), torch.tensor([1]))}, "truth: inputs are of torch.uint8"),
        ({"classes": 0}, r"classes: got 0, expected 10: the model answers one input with \(1, 10\)"),
    ],
)
def test_a_trace_that_does_not_fit_is_refused(changes: dict[str, Any], says: str) -> None:
    model = build()
    trace = Trace(model, [dict(model.named_parameters())], SHAPE, **{"classes": CLASSES, **changes})
    with pytest.raises(InputError, match=says):
        _ = trace.inputs, trace.view
