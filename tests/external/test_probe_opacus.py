"""A probe in trainings with Opacus: each example's gradient belongs to its own physical batch, or is left out with a reason."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import leakbench
from leakbench import canaries
from leakbench.core.errors import InputError
from leakbench.external.observation import private_gradients

pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def parameters(*sizes: int, listed: bool = False) -> dict[str, Tensor]:
    """Return two parameters with gradients of single examples as Opacus leaves them, numbered by example."""
    found: dict[str, Tensor] = {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(()))}
    for p in found.values():
        numbers = torch.arange(float(sum(sizes))).reshape(-1, *[1] * p.dim()).expand(-1, *p.shape)
        several = list(torch.split(numbers, list(sizes)))
        p.grad_sample = several if listed else several[0]  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("left", "observed", "first"),
    [
        ((3,), (3,), 0),
        ((2,), (3, 2), 3),
        ((1,), (2, 2, 1), 4),
        ((2, 2), (2, 2), 0),
        ((2, 2), (3, 2, 2), 3),
        ((3,), (), 0),
    ],
)
def test_gradients_belong_to_the_last_physical_batches(left: Any, observed: Any, first: int) -> None:
    found = private_gradients(parameters(*left, listed=len(left) > 1), [torch.zeros(n) for n in observed])
    assert found.first == first and found.note == ""
    assert found.examples["a"][:, 0].tolist() == found.examples["b"].tolist() == list(range(sum(left)))


@pytest.mark.parametrize(("left", "observed"), [(3, (2, 2)), (1, (2, 2)), (1, (2,))])
def test_gradients_of_no_whole_batches_are_left_out_with_a_reason(left: int, observed: Any) -> None:
    found = private_gradients(parameters(left), [torch.zeros(n) for n in observed])
    assert not found.examples and f"gradients of {left} examples" in found.note


def test_gradients_of_more_examples_than_were_observed_have_no_truth() -> None:
    found = private_gradients(parameters(3), [torch.zeros(2)])
    assert found.first is None and found.examples["a"].shape == (3, 2)


def test_gradients_that_opacus_did_not_leave_have_a_reason() -> None:
    some = parameters(3)
    some["b"].grad_sample = None  # type: ignore[attr-defined]
    assert not private_gradients(some, ()).examples and "ghost clipping" in private_gradients(some, ()).note
    some["b"].grad_sample = torch.zeros(2)  # type: ignore[attr-defined]
    assert "2 and 3 examples" in private_gradients(some, ()).note
    plain = private_gradients({"a": nn.Parameter(torch.zeros(2))}, ())
    assert not plain.examples and plain.note == ""


def data() -> tuple[Tensor, Tensor]:
    return torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(5)), torch.arange(5)


def private(noise: float = 0.0, **more: Any) -> tuple[Any, ...]:
    """Return a network, optimizer and loader of Opacus."""
    opacus = pytest.importorskip("opacus")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=5)
    settings = {"noise_multiplier": noise, "max_grad_norm": 1e6, "poisson_sampling": False} | more
    return opacus.PrivacyEngine().make_private(module=model, optimizer=optimizer, data_loader=loader, **settings)


def expected(model: nn.Module, before: dict[str, Tensor], x: Tensor, y: Tensor) -> list[dict[str, Tensor]]:
    """Return the gradients of single examples from one backward pass each."""
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
    plain.load_state_dict(before)
    found = []
    for one, label in zip(x, y, strict=True):
        plain.zero_grad()
        cross_entropy(plain(one[None]), label[None]).backward()
        found.append({n: p.grad.clone() for n, p in plain.named_parameters()})
    return found


def whole(optimizer: Any, loader: Any) -> Iterator[tuple[Tensor, Tensor, bool]]:
    for x, y in loader:
        optimizer.zero_grad()
        yield x, y, True


def virtual(optimizer: Any, loader: Any) -> Iterator[tuple[Tensor, Tensor, bool]]:
    from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: PLC0415

    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=3, optimizer=optimizer) as small:
        for x, y in small:
            optimizer.zero_grad()
            yield x, y, True


def accumulated(optimizer: Any, loader: Any) -> Iterator[tuple[Tensor, Tensor, bool]]:
    for x, y in loader:
        optimizer.zero_grad()
        yield x[:2], y[:2], False
        yield x[2:], y[2:], True


Batches = Callable[[Any, Any], Iterator[tuple[Tensor, Tensor, bool]]]


@pytest.mark.parametrize(("batches", "first"), [(whole, 0), (virtual, 3), (accumulated, 0)])
def test_the_gradients_and_the_truth_are_of_the_same_examples(batches: Batches, first: int) -> None:
    model, optimizer, loader = private()
    x, y = data()
    with leakbench.probe(model) as probe:
        for some, labels, last in batches(optimizer, loader):
            probe.observe(some, labels, cross_entropy)
            cross_entropy(model(some), labels).backward()
            if last:
                optimizer.step()
    each = expected(model, probe.before, x, y)[first:]
    for place, gradients in enumerate(each):
        for name, g in gradients.items():
            torch.testing.assert_close(probe.examples[name][place], g, rtol=1e-4, atol=1e-6)
    found = probe.leak(attack="analytic_fc")
    assert found["type-2"].summary["victims"] == len(each)
    assert found["type-2"].summary["asr"] == 1 and found["type-2"].summary["label_accuracy"] == 1


def test_ghost_clipping_leaves_type_2_out_with_a_reason() -> None:
    model, optimizer, criterion, loader = private(grad_sample_mode="ghost", criterion=nn.CrossEntropyLoss())
    with leakbench.probe(model) as probe:
        for x, y in loader:
            probe.observe(x, y, cross_entropy)
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        found = probe.leak(attack="cpl", iterations=1)
    assert "type-2" not in found
    assert any("type-2 is left out: Opacus left no gradients" in str(m.message) for m in messages)


def test_an_empty_poisson_batch_is_one_line_and_the_training_goes_on() -> None:
    model, optimizer, _ = private(noise=1.0)
    with leakbench.probe(model) as probe:
        x, y = data()[0][:0], data()[1][:0]
        probe.observe(x, y, cross_entropy)
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert probe.steps == 1
    with pytest.raises(InputError, match="probe: step 1 has an empty batch"):
        probe.leak()


@pytest.mark.parametrize("batches", [whole, virtual, accumulated])
@pytest.mark.parametrize("mode", ["hooks", "ghost", "ew"])
def test_a_private_training_is_the_same_with_and_without_a_probe_and_canaries(mode: str, batches: Batches) -> None:
    if mode == "ew" and batches is accumulated:
        pytest.skip("expanded weights refuse it")

    def run(probed: bool) -> list[Any]:
        more = {"criterion": nn.CrossEntropyLoss()} if mode == "ghost" else {}
        model, optimizer, *criterion, loader = private(noise=1.0, grad_sample_mode=mode, **more)
        loss = criterion[0] if criterion else cross_entropy
        ours = canaries.examples(
            torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(3)), classes=10, seed=0
        )
        if probed:
            ours.score(model)
        with leakbench.probe(model) as probe:
            for x, y, last in batches(optimizer, loader):
                if probed:
                    probe.observe(x, y, cross_entropy)
                loss(model(x), y).backward()
                if last:
                    optimizer.step()
                if probed:
                    ours.score(model)
        return [*(p.tolist() for p in model.parameters()), torch.get_rng_state().tolist()]

    assert run(True) == run(False)


def test_updates_with_the_names_of_opacus_are_read() -> None:
    model, _, loader = private()
    for x, y in loader:
        cross_entropy(model(x), y).backward()
    update = {n: p.grad for n, p in model.named_parameters()}
    assert all(n.startswith("_module.") for n in update)
    plain = model._module
    model.remove_hooks()
    found = leakbench.attack_update(
        plain,
        update,
        shape=(1, 8, 8),
        classes=10,
        batch=5,
        truth=(data()[0][None], data()[1][None]),
        attack="cpl",
        iterations=1,
    )
    assert found.summary["victims"] == 1
