"""The probe records, sets the start, reports a truth that contradicts the record, and never changes a training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from own_network import CLASSES, SHAPE, batch, build
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import leakbench
from leakbench.core.errors import InputError
from leakbench.external.assumptions import contradiction, distance_of_guess
from leakbench.external.attacker import AttackerOptions
from leakbench.external.training_probe import Probe

entropy = nn.functional.cross_entropy


def heard(size: int, observe: bool = True) -> Probe:
    """Return the probe's record of one step."""
    model, (x, y) = build(), batch(size)
    with leakbench.probe(model) as probe:
        if observe:
            probe.observe(x, y, entropy)
        entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    return probe


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_second_save_leaves_nothing_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    heard(4).save(tmp_path)
    assert len(names(tmp_path)) == 8
    heard(2).save(tmp_path)
    pair = ["example/00000.safetensors", "example/00001.safetensors"]
    assert names(tmp_path) == ["before.safetensors", *pair, "notes.txt", "truth.safetensors", "update.safetensors"]
    assert len(load_file(tmp_path / "truth.safetensors")["labels"]) == 2
    heard(2, observe=False).save(tmp_path)
    assert names(tmp_path) == ["before.safetensors", "notes.txt", "update.safetensors"]


@pytest.mark.parametrize(
    "name", ["before.safetensors", "truth.safetensors", "example/00007.safetensors", "example/x.npz"]
)
def test_a_save_replaces_no_file_of_another_program(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    if name.endswith(".npz"):
        (tmp_path / name).write_bytes(b"mine")
    else:
        save_file({"mine": torch.ones(2)}, tmp_path / name)
    before = (tmp_path / name).read_bytes()
    with pytest.raises(InputError, match=f"save: .*{name} is not of a probe and is not replaced"):
        heard(2).save(tmp_path)
    assert names(tmp_path) == [name] and (tmp_path / name).read_bytes() == before


def contradicted(train: Callable[[nn.Module, Tensor, Tensor], Any], observed: slice = slice(4)) -> tuple[str, str]:
    """Return the warnings of a probe and of `attack_update` after a step along the gradient that `train` leaves."""
    model, (x, y) = build(), batch(8)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with leakbench.probe(model) as probe:
        probe.observe(x[observed], y[observed], entropy)
        train(model, x[:4], y[:4])
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        probe.leak(attack="cpl", iterations=1)
    with warnings.catch_warnings(record=True) as again:
        warnings.simplefilter("always")
        given: dict[str, Any] = {"shape": SHAPE, "classes": CLASSES, "batch": 4, "attack": "cpl", "iterations": 1}
        truth = (x[observed][None], y[observed][None])
        leakbench.attack_update(build(), probe.gradient, before=before, truth=truth, **given)
    assert {w.filename for w in (*caught, *again)} <= {__file__}
    return "\n".join(str(w.message) for w in caught), "\n".join(str(w.message) for w in again)


def clipped(model: nn.Module, x: Tensor, y: Tensor) -> None:
    entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)


def undivided(model: nn.Module, x: Tensor, y: Tensor) -> None:
    for i in (0, 2):
        entropy(model(x[i : i + 2]), y[i : i + 2]).backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("train", "observed", "says"),
    [
        (lambda m, x, y: entropy(m(x), y).backward(), slice(4), ""),
        (
            lambda m, x, y: entropy(m(x), y, reduction="sum").backward(),
            slice(4),
            "is 4 times it (a sum instead of a mean",
        ),
        (undivided, slice(4), "the update is 2 times it (a sum instead of a mean"),
        (clipped, slice(4), "times it (a clip"),
        (lambda m, x, y: entropy(m(x), y).backward(), slice(4, 8), "was it changed, or are the weights"),
    ],
)
def test_a_truth_that_contradicts_the_record_causes_a_warning(train: Any, observed: slice, says: str) -> None:
    by_probe, by_update = contradicted(train, observed)
    assert by_probe == by_update
    assert bool(by_probe) == bool(says)
    assert says in by_probe and by_probe.startswith("type-1: the truth's own gradient differs" if says else "")


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert set(found) == set(wanted)
    for name, t in wanted.items():
        torch.testing.assert_close(found[name], t.detach(), atol=1e-6, rtol=0)


def apart(probe: Probe, tap: str = "type-1") -> float:
    """Return the relative difference between the leak and the update that the truth gives."""
    seen, _ = probe._points(AttackerOptions("cpl")(), None, None, 10, None)[tap]
    assert seen.inputs is not None and seen.labels is not None
    return float(distance_of_guess(seen.view, seen.inputs, seen.labels)[0].max())


def normed() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, CLASSES))


@pytest.mark.parametrize("training", [True, False])
def test_the_start_is_the_state_before_the_first_step(training: bool) -> None:
    """Not the weights at the start of the block; the end is after the last step."""
    model, (x, y) = normed().train(training), batch(4)
    sent = {name: t + (0.1 if t.is_floating_point() else 0) for name, t in model.state_dict().items()}
    with leakbench.probe(model) as probe:
        model.load_state_dict(sent)
        for i in (0, 2):
            model.zero_grad()
            probe.observe(x[i : i + 2], y[i : i + 2], entropy)
            entropy(model(x[i : i + 2]), y[i : i + 2]).backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        left = {name: p.detach().clone() for name, p in model.named_parameters()}
        model.load_state_dict(sent)
    same({name: probe.before[name] for name in left}, {name: sent[name] for name in left})
    same(probe.update, {name: p - sent[name] for name, p in left.items()})
    assert apart(probe) < 1e-3
    if not training:
        same(probe.before, sent)
        assert apart(probe, "type-2") < 1e-5


def test_buffers_are_the_sent_ones() -> None:
    """The forward pass of the first step has changed them by then."""
    model, (x, y) = normed(), batch(4)
    sent = {name: t.detach().clone() for name, t in model.state_dict().items()}
    with leakbench.probe(model) as probe:
        entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(model[1].running_mean, sent["1.running_mean"])
    same(probe.before, sent)


def test_within_the_block_the_record_contains_the_steps_so_far(tmp_path: Path) -> None:
    model, (x, y) = build(), batch(6)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leakbench.probe(model) as probe:
        with pytest.raises(InputError, match="probe: no optimizer of PyTorch stepped"):
            probe.save(tmp_path)
        for i in (0, 2, 4):
            optimizer.zero_grad()
            probe.observe(x[i : i + 2], y[i : i + 2], entropy)
            entropy(model(x[i : i + 2]), y[i : i + 2]).backward()
            optimizer.step()
            same(probe.update, {name: p - start[name] for name, p in model.named_parameters()})
            assert probe.steps == i // 2 + 1 and apart(probe) < 1e-3
            found = probe.leak(attack="cpl", iterations=1)["type-1"]
            assert found.summary is not None and found.summary["batch"] == i + 2
            probe.save(tmp_path)
            assert len(load_file(tmp_path / "truth.safetensors")["labels"]) == i + 2


@pytest.mark.parametrize("steps", [None, 1])
def test_a_batch_that_is_observed_after_its_step_is_refused(steps: int | None, tmp_path: Path) -> None:
    model, (x, y) = build(), batch(2)
    with leakbench.probe(model, steps=steps) as probe:
        entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        probe.observe(x, y, entropy)
    for act in (lambda: probe.leak(SHAPE, CLASSES), lambda: probe.save(tmp_path)):
        with pytest.raises(InputError, match=r"probe: a batch was observed after its step; call probe\.observe before"):
            act()
    assert not names(tmp_path)


@pytest.mark.parametrize("victims", [0, -1])
def test_victims_are_one_or_more(victims: int) -> None:
    with pytest.raises(InputError, match=f"victims: got {victims}, expected 1 or more"):
        heard(2).leak(victims=victims)


def trained(
    observe: Callable[[Probe, Tensor, Tensor], None] | None, model: nn.Module
) -> tuple[Probe | None, dict[str, Tensor]]:
    """Return the probe's record of two steps that draw random numbers, and the model's state after them."""
    x, y = batch(4)
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nullcontext() if observe is None else leakbench.probe(model) as probe:
        for _ in range(2):
            optimizer.zero_grad()
            if probe is not None and observe is not None:
                observe(probe, x, y)
            entropy(model(nn.functional.dropout(x)), y).backward()
            optimizer.step()
    return probe, {name: t.clone() for name, t in model.state_dict().items()}


def hard(logits: Tensor, y: Tensor) -> Tensor:
    """A loss that vmap does not support, since it reads a number."""
    loss = entropy(logits, y)
    return loss if loss.item() > 0 else 2 * loss


def instanced() -> nn.Module:
    torch.manual_seed(1)
    norm = nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Dropout(0.3), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, CLASSES))


class Counting(nn.Module):
    """A network that writes a buffer in every pass, as the spectral norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.net = build()
        self.register_buffer("passes", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.net(x)


def failing(logits: Tensor, y: Tensor) -> Tensor:
    raise RuntimeError("no loss of mine")


@pytest.mark.parametrize("made", [build, normed, instanced, Counting])
@pytest.mark.parametrize(
    "observe",
    [
        lambda probe, x, y: probe.observe(x, y, entropy),
        lambda probe, x, y: probe.observe(x, y, hard),
        lambda probe, x, y: probe.observe(x, y, failing),
        lambda probe, x, y: probe.observe(x[0], y[0], entropy),
        lambda probe, x, y: probe.observe(x.numpy(), y, entropy),
        lambda probe, x, y: probe.observe(x, y[:1], entropy),
        lambda probe, x, y: probe.observe({"x": x}, None, None),
    ],
)
def test_a_probe_does_not_change_the_training(made: Callable[[], nn.Module], observe: Any) -> None:
    """Weights, buffers and random numbers are the same for any observed batch."""
    _, wanted = trained(None, made())
    model = made()
    probe, found = trained(observe, model)
    assert all(torch.equal(t, wanted[name]) for name, t in found.items())
    assert probe is not None and probe.steps == 2


@pytest.mark.parametrize("made", [build, instanced, Counting])
def test_networks_that_write_buffers_have_example_gradients(made: Callable[[], nn.Module]) -> None:
    probe, _ = trained(lambda probe, x, y: probe.observe(x, y, entropy), made())
    assert probe is not None and (probe.observed.note, len(next(iter(probe.examples.values())))) == ("", 4)


@pytest.mark.parametrize(
    ("observe", "says"),
    [
        (
            lambda p, x, y: p.observe(x[0], y[0], entropy),
            r"got \(1, 8, 8\) and \(\), expected tensors \(B, \*s\) and \(B,\)",
        ),
        (lambda p, x, y: p.observe(x.numpy(), y, entropy), r"got ndarray and \(4\), expected tensors"),
        (lambda p, x, y: p.observe(x, y[:1], entropy), r"got \(4, 1, 8, 8\) and \(1\), expected tensors"),
    ],
)
def test_missing_observations_are_reported_after_the_training(observe: Any, says: str) -> None:
    probe, _ = trained(observe, build())
    assert probe is not None
    with pytest.raises(InputError, match=f"probe: observe could not show a batch: TypeError: {says}"):
        probe.leak(SHAPE, CLASSES)


@pytest.mark.parametrize("loss", [hard, failing])
def test_missing_example_gradients_are_explained(loss: Any) -> None:
    model, (x, y) = build(), batch(4)
    with leakbench.probe(model) as probe:
        probe.observe(x, y, loss)
        entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    with pytest.warns(
        UserWarning, match="type-2 is left out: single examples' gradients cannot be computed: RuntimeError"
    ):
        found = probe.leak(attack="cpl", iterations=1)
    assert list(found) == ["type-1"] and found["type-1"].summary is not None


def test_instance_normalisation_is_recorded_in_its_mode() -> None:
    model, (x, y) = instanced(), batch(4)
    model[2].p = 0.0
    each = []
    for i in range(4):
        model.zero_grad()
        entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        each.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    model.zero_grad()
    with leakbench.probe(model) as probe:
        probe.observe(x, y, entropy)
        entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert probe.heard.mode == "train"
    for i in range(4):
        same({name: g[i] for name, g in probe.examples.items()}, each[i])
    assert apart(probe) < 1e-5 and apart(probe, "type-2") < 1e-5


class Odd(torch.optim.SGD):
    """An optimizer whose learning rates are words."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            group["rate"], group["lr"] = group["lr"], "slow"

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["rate"] * p.grad)


def test_a_step_that_cannot_be_recorded_is_still_made() -> None:
    model, (x, y) = build(), batch(2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with leakbench.probe(model) as probe:
        entropy(model(x), y).backward()
        Odd(model.parameters()).step()
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    with pytest.raises(
        InputError, match=r"probe: a step could not be heard: ValueError: .*'slow'; the training went on"
    ):
        probe.leak(SHAPE, CLASSES)


def test_labels_of_ones_and_zeros_are_classes() -> None:
    def shown(labels: Tensor) -> Probe:
        model, (x, _) = build(), batch(4)
        with leakbench.probe(model) as probe:
            probe.observe(x, labels, entropy)
            entropy(model(x), labels).backward()
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        return probe

    y = batch(4)[1]
    alone = nn.functional.one_hot(y, CLASSES).float()
    probe = shown(alone)
    found = probe.leak(attack="analytic_fc", success=0.05)["type-2"].summary
    assert found is not None and found["asr"] == 1.0 and apart(probe) < 1e-5
    assert torch.equal(probe.observed.labels[0], y)
    with pytest.raises(InputError, match=r"truth: labels are \(4, 10\) of torch.float32, expected whole numbers"):
        shown(0.9 * alone + 0.01).leak()


def test_labels_of_ones_and_zeros_of_two_classes_are_classes() -> None:
    y, model = torch.tensor([0, 1, 1]), nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with leakbench.probe(model) as probe:
        probe.observe(torch.rand(3, 1, 2, 2), nn.functional.one_hot(y, 2).float(), entropy)
    assert torch.equal(probe.observed.labels[0], y)


def test_a_lazy_network_is_recorded_once_it_has_shapes() -> None:
    torch.manual_seed(1)
    model, (x, y) = nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.Sigmoid(), nn.Linear(16, CLASSES)), batch(2)
    with leakbench.probe(model) as probe:
        model(x)
        probe.observe(x, y, entropy)
        entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert apart(probe) < 1e-5


@pytest.mark.parametrize("loss", [entropy, lambda logits, y: entropy(logits, (y + 1) % CLASSES)])
def test_steps_of_adam_from_rounding_contradict_nothing(loss: Any) -> None:
    """A bias before a batch normalisation has only rounding as its gradient, which Adam turns into a step; another loss does."""
    model, (x, y) = normed(), batch(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    with leakbench.probe(model) as probe:
        for i in (0, 2, 4):
            optimizer.zero_grad()
            probe.observe(x[i : i + 2], y[i : i + 2], entropy)
            loss(model(x[i : i + 2]), y[i : i + 2]).backward()
            optimizer.step()
    seen, knowing = probe._points(AttackerOptions("cpl")(), None, None, 10, None)["type-1"]
    assert apart(probe) > 1e-3
    assert bool(list(contradiction(seen, knowing))) == (loss is not entropy)
