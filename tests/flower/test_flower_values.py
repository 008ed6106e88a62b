"""Values of Flower clients: which example a gradient of Opacus belongs to, scalars, empty batches, and types NumPy lacks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'leakbench[flower]'")

from leakbench.external.observation import observe, observing
from leakbench.flower.leaks import FIRST, Leak, write_leak
from leakbench.flower.mods import _arrays, _header, _recording
from leakbench.flower.trace import TrainingOptions, trace_at


class Scaled(nn.Module):
    """A linear layer and a temperature, a parameter without an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.temperature = nn.Linear(4, 3), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) / self.temperature


def recorded(folder: Path, model: nn.Module, batches: list[int], left: int | None) -> None:
    """Write the leak of a client whose one step had these physical batches, with gradients of the last `left` examples."""
    sent = {n: t.numpy().copy() for n, t in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(4.0 * sum(batches)).reshape(-1, 4) / 100
    y = torch.arange(sum(batches)) % 3
    with observing() as observed, _recording(1, observed) as steps:
        for some, labels in zip(x.split(batches), y.split(batches), strict=True):
            loss = None if left else nn.functional.cross_entropy
            observe(some, labels, Hooked(model) if left else model, loss)
            (nn.functional.cross_entropy(model(some), labels, reduction="sum") / len(x)).backward()
        if left:
            for p in model.parameters():
                p.grad_sample = torch.ones(left, *p.shape)  # type: ignore[attr-defined]
        optimizer.step()
    header = _header(observed, steps)
    write_leak(folder, Leak("type-2", 1, 0, 0, _arrays(observed, steps, sent), sent, header))


class Hooked(nn.Module):
    """Looks like the wrapper of Opacus."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._module = inner

    def disable_hooks(self) -> None:
        return None


def trace(folder: Path, model: nn.Module) -> Any:
    return trace_at(folder, "type-2", 1, model, (4,), 3, TrainingOptions(), 1)


def test_a_gradient_of_opacus_has_the_truth_of_its_own_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Scaled()
    recorded(tmp_path, model, [3, 2], 2)
    found = trace(tmp_path, model)
    assert found.inputs.flatten().tolist() == pytest.approx([0.12, 0.13, 0.14, 0.15])
    assert found.updates[0]["temperature"].shape == () and found.view.update["temperature"].shape[0] == 1


def test_gradients_of_no_whole_batch_are_left_out_with_the_reason(tmp_path: Path) -> None:
    model = Scaled()
    recorded(tmp_path, model, [3, 2], 4)
    assert "gradients of 4 examples" in trace(tmp_path, model)


def test_a_gradient_of_observe_has_the_first_example(tmp_path: Path) -> None:
    model = Scaled()
    recorded(tmp_path, model, [3, 2], None)
    assert trace(tmp_path, model).inputs.flatten().tolist() == pytest.approx([0, 0.01, 0.02, 0.03])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_gradients_of_other_types_and_sparse_ones_are_written(kind: torch.dtype, tmp_path: Path) -> None:
    model = nn.Sequential(nn.EmbeddingBag(5, 4, sparse=kind == torch.float32), nn.Linear(4, 3)).to(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with observing() as observed, _recording(1, observed) as steps:
        model(torch.tensor([[1, 2]])).sum().backward()
        optimizer.step()
    arrays = _arrays(observed, steps, {n: p.detach().float().numpy() for n, p in model.named_parameters()})
    assert arrays["step0/0.weight"].shape == (5, 4) and not observed.fault and FIRST not in _header(observed, steps)


def test_a_record_that_fails_does_not_end_the_training() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    optimizer.param_groups[0]["dampening"] = object()
    with observing() as observed, _recording(1, observed):
        parameter.sum().backward()
        optimizer.step()
    assert parameter.tolist() == [0.5, 0.5]
