"""The probe in a training loop records autograd's gradients, in plain loops, Opacus and Lightning; it refuses steps that are not
sums of gradients."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from own_network import CLASSES, SHAPE, batch, build, gradient
from safetensors.torch import load_file
from torch import Tensor, nn

import leakbench
from leakbench.core.errors import InputError
from leakbench.external.assumptions import distance_of_guess
from leakbench.external.attacker import AttackerOptions
from leakbench.external.training_probe import Probe

entropy = nn.functional.cross_entropy


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert list(found) == list(wanted)
    for name, g in wanted.items():
        torch.testing.assert_close(found[name], g, atol=1e-6, rtol=0)


def explained(probe: Probe, tap: str = "type-1", normalise: tuple[float, float] | None = None) -> float:
    """Return the relative difference between the leak and the update that the truth gives."""
    seen, _ = probe._points(AttackerOptions("cpl")(), None, None, 10, normalise)[tap]
    assert seen.inputs is not None and seen.labels is not None
    return float(distance_of_guess(seen.view, seen.inputs, seen.labels)[0].max())


def test_gradients_equal_autograds_and_are_attacked() -> None:
    model, (x, y) = build(), batch(4)
    wanted, each = gradient(model, x, y), [gradient(model, x[i : i + 1], y[i : i + 1]) for i in range(4)]
    optimizer, other = torch.optim.SGD(model.parameters(), lr=0.1), nn.Linear(2, 2)
    with leakbench.probe(model) as probe:
        probe.observe(x, y, entropy)
        entropy(model(x), y).backward()
        other(torch.ones(1, 2)).sum().backward()
        torch.optim.SGD(other.parameters(), lr=1.0).step()
        optimizer.step()
    optimizer.step()
    assert probe.steps == 1
    same(probe.gradient, wanted)
    same(probe.update, {name: -0.1 * g for name, g in wanted.items()})
    for i in range(4):
        same({name: g[i] for name, g in probe.examples.items()}, each[i])
    found = probe.leak(attack="analytic_fc", success=0.05)
    assert found["type-2"].summary is not None and found["type-1"].summary is not None
    assert (found["type-2"].summary["asr"], found["type-2"].summary["victims"]) == (1.0, 4)
    assert found["type-1"].summary["batch"] == 4
    assert explained(probe) < 1e-5 and explained(probe, "type-2") < 1e-5


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_probe_is_the_same_without_the_callers_gradients(mode: Callable[[], Any]) -> None:
    """A validation loop may begin the probe, show the batch and attack; only the training needs gradients."""
    model, (x, y) = build(), batch(2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with mode(), leakbench.probe(model) as probe:
        probe.observe(x.clone(), y.clone(), entropy)
        with torch.inference_mode(False), torch.enable_grad():
            entropy(model(x), y).backward()
            optimizer.step()
    with mode():
        found = probe.leak(attack="analytic_fc", success=0.05)
    assert found["type-2"].summary is not None and found["type-2"].summary["asr"] == 1
    assert found["type-1"].summary is not None and explained(probe) < 1e-5 and explained(probe, "type-2") < 1e-5


def test_microbatches_of_one_step_are_one_batch() -> None:
    model, (x, y) = build(), batch(4)
    wanted, optimizer = gradient(model, x, y), torch.optim.SGD(model.parameters(), lr=0.1)
    with leakbench.probe(model) as probe:
        for i in (0, 2):
            probe.observe(x[i : i + 2], y[i : i + 2], entropy)
            (entropy(model(x[i : i + 2]), y[i : i + 2]) / 2).backward()
        optimizer.step()
    same(probe.gradient, wanted)
    assert explained(probe) < 1e-5
    summary = probe.leak(attack="analytic_fc", iterations=None)["type-1"].summary
    assert summary is not None and summary["batch"] == 4


@pytest.mark.filterwarnings("ignore:type-1")
def test_partly_observed_steps_have_no_truth() -> None:
    """As if each example's gradient is Opacus's, and `observe` is called on one of two physical batches."""
    model, (x, y) = build(), batch(4)
    each = [gradient(model, x[i : i + 1], y[i : i + 1]) for i in range(4)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leakbench.probe(model) as probe:
        probe.observe(x[:2], y[:2], entropy)
        entropy(model(x), y).backward()
        for name, p in model.named_parameters():
            p.grad_sample = torch.stack([g[name] for g in each])  # type: ignore[attr-defined]
        optimizer.step()
    found = probe.leak(attack="analytic_fc")["type-2"]
    assert found.summary is None and len(found.answer.inputs) == 4
    assert probe.leak(attack="analytic_fc", victims=2)["type-2"].summary is None


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, probe: Probe, steps: int) -> None:
    x, y = batch(2 * steps)
    for i in range(steps):
        optimizer.zero_grad()
        probe.observe(x[2 * i : 2 * i + 2], y[2 * i : 2 * i + 2], entropy)
        entropy(model(x[2 * i : 2 * i + 2]), y[2 * i : 2 * i + 2]).backward()
        optimizer.step()


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.SGD,
        torch.optim.Adam,
        partial(torch.optim.SGD, momentum=0.9),
        partial(torch.optim.SGD, momentum=0.5, weight_decay=0.1),
        partial(torch.optim.Adam, weight_decay=0.1),
    ],
)
def test_several_steps_are_unrolled(optimizer: Callable[..., torch.optim.Optimizer]) -> None:
    model = build()
    with leakbench.probe(model) as probe:
        loop(model, optimizer(model.parameters(), lr=0.01), probe, 3)
    assert probe.steps == 3
    assert explained(probe) < 2e-3


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "2 steps of SGD with nesterov True"),
        (
            lambda p: torch.optim.SGD([{"params": p[:2], "weight_decay": 0.1}, {"params": p[2:]}], lr=0.1),
            "2 steps of SGD with weight decay 0.1",
        ),
        (lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.9)), "2 steps of Adam with betas"),
        (lambda p: torch.optim.RMSprop(p, lr=0.1), "2 steps of RMSprop"),
        (
            lambda p: torch.optim.SGD([{"params": p[:2], "lr": 0.2}, {"params": p[2:]}], lr=0.1),
            "2 steps at learning rates 0.1, 0.2",
        ),
    ],
)
def test_steps_that_cannot_be_unrolled_are_refused_and_the_first_is_attacked(
    made: Callable[[list[nn.Parameter]], torch.optim.Optimizer], says: str
) -> None:
    model = build()
    with leakbench.probe(model) as probe:
        loop(model, made(list(model.parameters())), probe, 2)
    with pytest.raises(InputError, match=f"probe: {says}.* record one step"):
        probe.leak()
    model = build()
    with leakbench.probe(model, steps=1) as probe:
        loop(model, made(list(model.parameters())), probe, 2)
    assert probe.steps == 1 and len(probe.observed.inputs) == 1
    assert explained(probe) < 1e-5


def test_momentum_of_steps_before_the_probe_is_refused() -> None:
    """Its buffer holds gradients that the probe has not recorded."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with leakbench.probe(model) as before:
        loop(model, optimizer, before, 1)
    with leakbench.probe(model) as probe:
        loop(model, optimizer, probe, 2)
    with pytest.raises(InputError, match=r"2 steps of SGD with momentum 0\.9 from earlier steps"):
        probe.leak()


def test_a_rate_that_moves_is_refused() -> None:
    model = build()
    with leakbench.probe(model) as probe:
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1), probe, 1)
        loop(model, torch.optim.SGD(model.parameters(), lr=0.05), probe, 1)
    with pytest.raises(InputError, match=r"learning rates 0\.05, 0\.1"):
        probe.leak()


def test_hooks_are_removed_after_the_requested_steps() -> None:
    one, model = build(), build()
    with leakbench.probe(one) as alone:
        loop(one, torch.optim.SGD(one.parameters(), lr=0.1), alone, 2)
    with leakbench.probe(model, steps=2) as probe:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loop(model, optimizer, probe, 2)
        loop(model, optimizer, probe, 1)
    assert probe.steps == alone.steps == 2
    same(probe.update, alone.update)


def test_two_optimizers_of_one_step() -> None:
    model, (x, y) = build(), batch(2)
    wanted, parameters = gradient(model, x, y), list(model.parameters())
    several = [torch.optim.SGD(parameters[:2], lr=0.1), torch.optim.Adam(parameters[2:], lr=0.01)]
    with leakbench.probe(model) as probe:
        probe.observe(x, y, entropy)
        entropy(model(x), y).backward()
        for optimizer in several:
            optimizer.step()
    assert probe.steps == 1
    same(probe.gradient, wanted)


def test_optimizers_with_batches_of_their_own_are_two_steps() -> None:
    model, (x, y) = build(), batch(4)
    names, parameters = zip(*model.named_parameters(), strict=True)
    with leakbench.probe(model) as probe:
        for part, some in ((slice(2), slice(1)), (slice(2, None), slice(1, None))):
            probe.observe(x[some], y[some], entropy)
            entropy(model(x[some]), y[some]).backward()
            torch.optim.SGD(parameters[part], lr=0.1).step()
    assert [(step.batch, step.names) for step in probe.heard.steps] == [(1, {*names[:2]}), (3, {*names[2:]})]


def test_a_closure_is_recorded_once() -> None:
    model, (x, y) = build(), batch(2)
    wanted, optimizer = gradient(model, x, y), torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = entropy(model(x), y)
        loss.backward()
        return loss

    for how in (lambda: optimizer.step(closure), lambda: optimizer.step(closure=closure)):
        with leakbench.probe(model) as probe:
            how()
        assert probe.steps == 1
    model = build()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    with leakbench.probe(model) as probe:
        optimizer.step(closure)
    same(probe.gradient, wanted)


def test_batch_normalisation_in_train_mode_is_kept() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, CLASSES))
    model[1].running_mean += 0.5
    with leakbench.probe(model) as probe:
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1), probe, 1)
    assert probe.heard.mode == "train" and not probe.examples
    assert explained(probe) < 1e-5
    assert model.training


@pytest.mark.slow
def test_normalised_inputs_must_be_declared() -> None:
    model, (x, y) = build(), batch(2)
    fed = (x - 0.5) / 0.25
    with leakbench.probe(model) as probe:
        probe.observe(fed, y, entropy)
        entropy(model(fed), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    with pytest.raises(InputError, match=r"probe: inputs go from -.* pass normalise=\(mean, std\)"):
        probe.leak()
    assert explained(probe, normalise=(0.5, 0.25)) < 1e-5
    summary = probe.leak(normalise=(0.5, 0.25), success=0.05)["type-2"].summary
    assert summary is not None and summary["asr"] == 1.0


def test_the_record_is_saved_and_read_back(tmp_path: Path) -> None:
    model = build()
    with leakbench.probe(model) as probe:
        loop(model, torch.optim.SGD(model.parameters(), lr=0.1), probe, 1)
    probe.save(tmp_path)
    same(load_file(tmp_path / "update.safetensors"), dict(sorted(probe.gradient.items())))
    one = load_file(tmp_path / "example" / "00001.safetensors")
    same(one, {name: g[1] for name, g in sorted(probe.examples.items())})
    assert tuple(load_file(tmp_path / "truth.safetensors")["inputs"].shape) == (2, *SHAPE)
    found = probe.leak(attack="analytic_fc", out=tmp_path / "out")
    rows = leakbench.read(tmp_path / "out")
    assert list(rows["tap"].unique()) == ["type-2", "type-1"] and found["type-2"].rows is not None
    with pytest.raises(InputError, match="batch: got 3, but 2 examples were observed in a step"):
        probe.leak(batch=3)
    assert '<h2 id="gallery">Originals and reconstructions' in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_an_empty_record_is_reported() -> None:
    with leakbench.probe(build()) as probe:
        pass
    with pytest.raises(InputError, match="probe: no optimizer of PyTorch stepped"):
        probe.leak(SHAPE, CLASSES)
    model, (x, y) = build(), batch(4)
    with leakbench.probe(model) as probe:
        entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    with pytest.raises(InputError, match="probe: recorded batch sizes: none"):
        probe.leak(SHAPE, CLASSES)
    told = probe.leak(SHAPE, CLASSES, batch=4, attack="cpl", iterations=1)["type-1"]
    assert told.summary is None and tuple(told.answer.inputs.shape) == (1, 4, *SHAPE)
    with pytest.raises(InputError, match="batch: got 0, expected 1 or more"):
        probe.leak(SHAPE, CLASSES, batch=0)
    with pytest.raises(InputError, match="probe: the shape of inputs and the classes are not known"):
        probe.leak()
    with pytest.raises(InputError, match="steps: got 0"), leakbench.probe(model, steps=0):
        pass


@pytest.mark.filterwarnings(
    "ignore:Full backward hook",
    "ignore:Secure RNG",
    "ignore:.*poisson_sampling",
    "ignore:type-1. the truth's own gradient",
)
def test_example_gradients_equal_those_of_opacus() -> None:
    """`observe`'s second pass may not disturb them; the following steps use the clipped and noisy gradient."""
    opacus = pytest.importorskip("opacus")
    model, (x, y) = build(), batch(4)
    each = [gradient(model, x[i : i + 1], y[i : i + 1]) for i in range(4)]
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    wrapped, optimizer, loader = opacus.PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=data,
        noise_multiplier=0.0,
        max_grad_norm=0.5,
        poisson_sampling=False,
    )
    with leakbench.probe(wrapped) as probe:
        for inputs, labels in loader:
            optimizer.zero_grad()
            probe.observe(inputs, labels, entropy)
            entropy(wrapped(inputs), labels).backward()
            optimizer.step()
    for i in range(4):
        same({name: g[i] for name, g in probe.examples.items()}, each[i])
    norms = [torch.stack([g.norm() for g in one.values()]).norm() for one in each]
    clipped = {
        n: sum(one[n] * (0.5 / norm).clamp(max=1) for one, norm in zip(each, norms, strict=True)) / 4 for n in each[0]
    }
    for name, g in clipped.items():
        torch.testing.assert_close(probe.gradient[name], g, atol=1e-6, rtol=0)
    summary = probe.leak(attack="analytic_fc", success=0.05)["type-2"].summary
    assert summary is not None and summary["asr"] == 1.0


@pytest.mark.filterwarnings("ignore")
def test_a_step_of_lightning_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes gradients within the optimizer's step, by a closure."""
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    x, y = batch(4)

    class Module(lightning.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = build()
            self.heard: Probe | None = None

        def forward(self, inputs: Tensor) -> Tensor:
            return self.net(inputs)

        def training_step(self, pair: tuple[Tensor, Tensor], place: int) -> Tensor:
            if self.heard is not None:
                self.heard.observe(*pair, entropy)
            return entropy(self(pair[0]), pair[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.1, weight_decay=0.1)

    module = Module()
    wanted = {f"net.{name}": g for name, g in gradient(module.net, x, y).items()}
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    with leakbench.probe(module, steps=1) as probe:
        module.heard = probe
        lightning.Trainer(max_steps=3, max_epochs=3, accelerator="cpu", **quiet).fit(module, data)
    assert probe.steps == 1
    same(probe.gradient, wanted)
    assert explained(probe) < 1e-5


def test_lightning_is_recorded() -> None:
    pytest.importorskip("lightning")
    script = Path(__file__).parents[2] / "examples" / "own_update" / "lightning_probe.py"
    told = subprocess.run(
        [sys.executable, "-W", "ignore", script], capture_output=True, text=True, check=True, cwd=script.parent
    )
    points = [line for line in told.stdout.splitlines() if line.startswith("type-")]
    assert points == ["type-2: ASR 1.00, baseline 0.25", "type-1: ASR 1.00, baseline 0.25"]


def test_a_network_that_changes_its_input_leaves_the_record_as_it_is() -> None:
    """The classes are found by running the network on an observed input, which is also the truth of the attack."""

    class Negates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(64, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x.neg_().add_(1).flatten(1))

    torch.manual_seed(0)
    model, x = Negates(), torch.rand(1, 1, 8, 8)
    before = x.clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leakbench.probe(model) as probe:
        probe.observe(x.clone(), torch.tensor([3]), entropy)
        entropy(model(x), torch.tensor([3])).backward()
        optimizer.step()
    assert probe._sizes(model, None, None) == ((1, 8, 8), 10)
    assert torch.equal(probe.observed.inputs[0], before)


def test_the_first_use_leaves_the_random_numbers_of_python_as_they_are() -> None:
    script = "import random, leakbench; random.seed(1); leakbench.probe; print(random.random())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) == random.Random(1).random()
