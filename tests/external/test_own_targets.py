"""Updates of networks with other targets than classes: masks and classes together, labels, numbers, and a user's own loss."""

import re
from pathlib import Path

import pytest
import torch
from command_line import called
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn

import leakbench
from leakbench.core.errors import InputError


class TwoHeads(nn.Module):
    """A network with a mask of the picture and a class, as (mask (n, 1, 8, 8), logits (n, 3))."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 6, 3, padding=1)
        self.mask = nn.Conv2d(6, 1, 1)
        self.name = nn.Linear(6 * 64, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of both heads."""
        features = torch.sigmoid(self.body(x))
        return self.mask(features), self.name(features.flatten(1))


def own_loss(outputs: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    """Return a weighted sum of two losses of PyTorch, their mean over the batch."""
    mask, named = outputs
    return 2 * nn.functional.binary_cross_entropy_with_logits(mask, targets[0]) + nn.functional.cross_entropy(
        named, targets[1]
    )


def two_headed(batch: int = 1) -> tuple[nn.Module, dict[str, Tensor], Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    model = TwoHeads()
    for p in model.parameters():
        nn.init.normal_(p, 0, 0.3, generator=rng)
    x = torch.tensor(load_digits().images[:batch]).float()[:, None] / 16
    mask, label = (x > 0.5).float(), torch.arange(batch) % 3
    loss = own_loss(model(x), (mask, nn.functional.one_hot(label, 3).float()))
    loss.backward()  # type: ignore[no-untyped-call]
    targets = torch.cat([mask.flatten(1), nn.functional.one_hot(label, 3).float()], 1)
    return model, {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, x, targets


def test_a_network_with_a_mask_and_a_class_is_attacked_with_its_own_loss() -> None:
    model, update, x, targets = two_headed()
    outcome = leakbench.attack_update(
        model,
        update,
        shape=(1, 8, 8),
        targets="labels:1x8x8,classes:3",
        loss=own_loss,
        truth=(x, targets),
        attack="whitened_public",
        iterations=40,
        success=0.05,
        dataset="digits",
    )
    assert outcome.summary["asr"] == 1 and outcome.summary["rmse"] < 0.05
    assert outcome.summary["label_accuracy"] is None
    assert outcome.summary["target_error"] < 0.1
    # Without public targets, the baseline is no label and the first class: the first is wrong where the mask is 1.
    wrong = float((targets[:, :64] > 0).float().mean())
    assert outcome.summary["null_target_error"] == pytest.approx(wrong / 2)
    assert "the gradient of the mean loss own_loss of one example" in outcome.assumptions
    assert outcome.answer.targets is not None and outcome.answer.targets.shape == (1, 1, 67)
    assert "differs" not in outcome.lines  # The gradient of the truth is the update.


def test_the_command_reads_targets_and_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    rng = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Sigmoid(), nn.Linear(12, 2))
    x, y = torch.rand(1, 1, 4, 4, generator=rng), torch.tensor([[0.3, 0.8]])
    nn.functional.mse_loss(model(x), y).backward()
    save_file(dict(model.state_dict()), tmp_path / "before.safetensors")
    save_file({n: p.grad for n, p in model.named_parameters()}, tmp_path / "update.safetensors")
    save_file({"inputs": x, "targets": y}, tmp_path / "truth.safetensors")
    body = "return nn.Sequential(nn.Flatten(), nn.Linear(16, 12), nn.Sigmoid(), nn.Linear(12, 2))"
    (tmp_path / "numbers_model.py").write_text(f"from torch import nn\n\n\ndef build():\n    {body}\n")
    monkeypatch.chdir(tmp_path)
    words = [
        "attack",
        "--model",
        "numbers_model:build",
        "--before",
        "before.safetensors",
        "--update",
        "update.safetensors",
    ]
    words += ["--truth", "truth.safetensors", "--shape", "1,4,4", "--targets", "numbers:2", "--out", "found"]
    code, out, err = called(monkeypatch, capsys, *words)
    assert code == 0, err
    assert "RECONSTRUCTS: 1 of 1" in out
    _, every, _ = called(monkeypatch, capsys, *words[:-1], "again", "-v")
    assert re.search(r"target +baseline", every)  # The heads of two columns are written in two lines.
    found = load_file(tmp_path / "found" / "reconstructions.safetensors")
    torch.testing.assert_close(found["type-1.round1.targets"][0], y, rtol=0, atol=1e-4)
    torch.testing.assert_close(found["type-1.round1.reconstruction"][0], x, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "classes: got none; give one of classes and targets"),
        ({"classes": 3, "targets": "classes:3"}, "classes: got targets too; give one of classes and targets"),
        ({"targets": "labels"}, "targets: got 'labels', expected KIND:WIDTH"),
        ({"targets": "colours:3"}, "targets: got 'colours:3', expected KIND:WIDTH"),
        (
            {"targets": "labels:1x8x8,classes:4"},
            r"model: its outputs for one example have the shapes \[\(1, 8, 8\), \(3,\)\]",
        ),
        ({"classes": 3, "loss": own_loss}, "loss: got a function without targets"),
        (
            {"targets": "labels:1x8x8,classes:3", "truth": (torch.zeros(1, 1, 1, 8, 8), torch.zeros(1, 1, 4))},
            r"truth: targets have the shape .* \(1, 1, 67\): 64 of labels 1 and 3 of classes 2, a class as a one-hot vector",
        ),
    ],
)
def test_wrong_targets_are_refused(fields, message) -> None:  # type: ignore[no-untyped-def]
    model, update, _, _ = two_headed()
    with pytest.raises(InputError, match=message):
        leakbench.attack_update(model, update, shape=(1, 8, 8), **fields)
