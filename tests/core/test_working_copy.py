"""Trainings of badly behaved networks are the same with and without leakbench, and their copies are independent."""

import copy
import gc
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import leakbench
from leakbench import canaries
from leakbench.core.errors import InputError
from leakbench.core.working_copy import copied, protect, unchanged, working_copies
from leakbench.external.observation import observe, observing

KEPT: list[Tensor] = []
WEIGHTS = torch.ones(16)


class Base(nn.Module):
    """Two linear layers around a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.o = nn.Linear(64, 16), nn.Linear(16, 10)

    def body(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.a(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.body(x))


class NormalisesInPlace(Base):
    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5).div_(0.25)
        return super().forward(x)


class MasksInPlace(Base):
    def forward(self, x: Tensor) -> Tensor:
        x[:, :, :2] = 0
        return super().forward(x)


class ClampsData(Base):
    def forward(self, x: Tensor) -> Tensor:
        x.data.clamp_(0.2, 0.6)
        return super().forward(x)


class KeepsGraph(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.body(x)
        self.every = [*getattr(self, "every", []), self.seen.sum()]
        return self.o(self.seen)


class CountsCalls(Base):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) / self.calls


class CountsInTheClass(Base):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        CountsInTheClass.calls += 1
        return super().forward(x) * (1 + CountsInTheClass.calls % 7)


class AverageInTheClass(Base):
    average = torch.zeros(16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        self.average.mul_(0.9).add_(h.mean(0).detach(), alpha=0.1)
        return self.o(h - self.average)


class KeepsAverage(Base):
    average = torch.zeros(16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        self.average = 0.9 * self.average + 0.1 * h.mean(0).detach()
        return self.o(h - self.average)


class Meter:
    """A plain object with a number and an array."""

    def __init__(self) -> None:
        self.count, self.total, self.lock = 0, np.zeros(16), threading.Lock()


class KeepsMeter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.meter, self.log = Meter(), {"steps": [0]}

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        self.meter.count += 1
        self.meter.total += 1.0
        self.log["steps"].append(len(self.log["steps"]))
        scale = self.meter.count + float(self.meter.total[0]) + len(self.log["steps"])
        return self.o(h) / scale


class KeepsInGlobal(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        KEPT.append(h.mean())
        WEIGHTS.mul_(0.9)
        return self.o(h * WEIGHTS) / len(KEPT)


class ChangesWeights(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.a.weight.data.clamp_(-0.05, 0.05)
        return super().forward(x)


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.r, self.o, self.h = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 10), None

    def forward(self, x: Tensor) -> Tensor:
        y, h = self.r(x[:, 0], self.h)
        self.h = tuple(t.detach() for t in h)
        return self.o(y[:, -1])


class LazyBuffer(Base):
    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if not hasattr(self, "scale"):
            self.register_buffer("scale", h.detach().mean(0))
        return self.o(h * self.scale)


class RefusesOne(Base):
    def forward(self, x: Tensor) -> Tensor:
        if len(x) < 2:
            raise ValueError("a batch of one")
        return super().forward(x)


class ReadsNumbers(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.largest = x.max().item()
        return super().forward(x) * self.largest


class DrawsEverywhere(Base):
    def __init__(self) -> None:
        super().__init__()
        self.own = (np.random.default_rng(0), random.Random(0), torch.Generator().manual_seed(0))

    def forward(self, x: Tensor) -> Tensor:
        numbers, plain, torch_ones = self.own
        factor = np.random.rand() + random.random() + numbers.random() + plain.random()
        noise = torch.rand(1, generator=torch_ones) + torch.rand(1)
        return super().forward(x) * factor + noise


class Disables(Base):
    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        self.eval()
        self.a.weight.requires_grad_(False)
        return found


def dropped() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, 10))


def spectral() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10)))


def old_spectral() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.utils.spectral_norm(nn.Linear(64, 10)))


def lazy() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(16), nn.Sigmoid(), nn.LazyLinear(10))


def hooked() -> nn.Module:
    model, kept = Base(), []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        kept.append(output)
        return output / len(kept)

    model.a.register_forward_hook(keep)
    return model


def replaced() -> nn.Module:
    """A method of the object itself, as libraries patch it."""
    model = Base()
    model.calls = [0]

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        self.calls.append(0)
        return self.o(self.body(x)) / len(self.calls)

    model.forward = forward.__get__(model)
    return model


KINDS: list[Callable[[], nn.Module]] = [
    *(NormalisesInPlace, MasksInPlace, ClampsData, KeepsGraph, CountsCalls, CountsInTheClass, AverageInTheClass),
    *(KeepsAverage, KeepsMeter, KeepsInGlobal, ChangesWeights, Stateful, LazyBuffer, RefusesOne, ReadsNumbers),
    *(DrawsEverywhere, Disables, dropped, spectral, old_spectral, lazy, hooked, replaced),
]


def reset() -> None:
    """Start the state outside of networks, which every training begins with."""
    KEPT.clear()
    WEIGHTS.fill_(1)
    CountsInTheClass.calls, AverageInTheClass.average = 0, torch.zeros(16)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


class CountingLoss:
    """A loss with a state, that changes its targets in place."""

    calls = 0

    def __call__(self, logits: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        y.add_(1).remainder_(10)
        return F.cross_entropy(logits, y) / self.calls


Between = Callable[[nn.Module, Any, Tensor, Tensor, Any], None]


def nothing(*_: Any) -> None:
    return None


def observes(model: nn.Module, probe: Any, x: Tensor, y: Tensor, loss: Any) -> None:
    probe.observe(x, y, loss)


def observes_in_flower(model: nn.Module, probe: Any, x: Tensor, y: Tensor, loss: Any) -> None:
    with observing():
        observe(x, y, model, loss)


def scores(model: nn.Module, probe: Any, x: Tensor, y: Tensor, loss: Any) -> None:
    ours = canaries.examples(torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(3)), classes=10, seed=0)
    with refused():
        ours.score(model)


def leaks(model: nn.Module, probe: Any, x: Tensor, y: Tensor, loss: Any) -> None:
    probe.observe(x, y, F.cross_entropy)
    with refused():
        probe.leak((1, 8, 8), 10, batch=4, attack="cpl", iterations=1, victims=1)


def attacks(model: nn.Module, probe: Any, x: Tensor, y: Tensor, loss: Any) -> None:
    update = {n: torch.zeros(p.shape) for n, p in model.named_parameters() if not nn.parameter.is_lazy(p)}
    truth = x[None].clone(), y[None].clone()
    with refused():
        leakbench.attack_update(
            model, update, shape=(1, 8, 8), classes=10, batch=4, attack="cpl", iterations=1, truth=truth
        )


@contextmanager
def refused() -> Iterator[None]:
    """Ignore an InputError, which a call in a training may raise."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with suppress(InputError):
            yield


def train(kind: Callable[[], nn.Module], between: Between, steps: int = 3) -> list[Any]:
    """Return everything that a training leaves."""
    reset()
    model, loss, draw = kind(), CountingLoss(), torch.Generator().manual_seed(1)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leakbench.probe(model) if between is not nothing else nullcontext() as probe, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(steps):
            x, y = torch.rand(4, 1, 8, 8, generator=draw), torch.arange(4)
            between(model, probe, x, y, loss)
            optimizer.zero_grad()
            found = loss(model(x), y)
            if step != 1 and between is not nothing:
                between(model, probe, x.clone(), torch.arange(4), loss)  # Between forward and backward pass.
            found.backward()
            optimizer.step()
    numbers = [loss.calls, len(KEPT), WEIGHTS.tolist(), CountsInTheClass.calls, AverageInTheClass.average.tolist()]
    state = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    weights = {n: (t.tolist(), t.requires_grad) for n, t in [*model.named_parameters(), *model.named_buffers()]}
    modes = [module.training for module in model.modules()]
    attributes = [sorted(vars(module)) for module in model.modules()]
    plain = [{n: v for n, v in vars(m).items() if isinstance(v, int | float | bool)} for m in model.modules()]
    return [weights, numbers, state, modes, attributes, plain, torch.is_grad_enabled()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_training_is_the_same_with_and_without_a_probe_and_canaries(kind: Callable[[], nn.Module]) -> None:
    expected = train(kind, nothing)
    for between in (observes, observes_in_flower, scores):
        assert train(kind, between) == expected, between.__name__


@pytest.mark.slow
@pytest.mark.parametrize("between", [leaks, attacks])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_training_is_the_same_with_and_without_attacks(kind: Callable[[], nn.Module], between: Between) -> None:
    assert train(kind, nothing, 2) == train(kind, between, 2)


def test_a_copy_holds_numbers_instead_of_a_graph_and_is_independent() -> None:
    model = KeepsGraph()
    model(torch.rand(2, 1, 8, 8))
    own = copied(model)
    assert own.seen.grad_fn is None and torch.equal(own.seen, model.seen) and model.seen.grad_fn is not None
    own.a.weight.data.zero_()
    own.every.clear()
    assert bool(model.a.weight.any()) and len(model.every) == 1
    with pytest.raises(RuntimeError):
        copy.deepcopy(model)


def test_a_copy_has_no_gradients_of_the_training() -> None:
    model = Base()
    model.scale = torch.ones(3, requires_grad=True)  # A tensor, unlike a parameter, is copied with its gradient.
    (model.scale.sum() + model.a.weight.sum()).backward()
    own = copied(model)
    assert own.scale.requires_grad and own.scale.grad is None and own.a.weight.grad is None
    assert model.scale.grad is not None and model.a.weight.grad is not None


def test_a_copied_function_has_its_default_arguments() -> None:
    model, calls = Base(), [0]

    def doubled(module: nn.Module, inputs: Any, output: Tensor, factor: float = 2.0, *, more: float = 1.0) -> Tensor:
        calls[0] += 1
        return output * factor + more

    x = torch.rand(2, 1, 8, 8)
    plain = model(x)
    model.register_forward_hook(doubled)
    assert torch.equal(copied(model)(x), 2 * plain + 1)
    assert calls == [0]


def test_a_copy_has_the_attributes_of_the_latest_class() -> None:
    class First(Base):
        sizes = [1]  # noqa: RUF012 - a list of the class, as a user writes it

    class Second(First):
        sizes = [2]  # noqa: RUF012

    own = copied(Second())
    assert own.sizes == [2] and own.sizes is not Second.sizes


def test_a_copy_keeps_ties_cycles_aliases_and_shares_what_cannot_be_copied() -> None:
    model = Base()
    model.o = nn.Linear(16, 16)
    model.again, model.owner, model.lock = model.a, [model], threading.Lock()
    model.large = torch.zeros(4)
    model.view = model.large[:2]
    own = copied(model)
    assert own.again is own.a and own.owner[0] is own and own.lock is model.lock
    own.large.add_(1)
    assert own.view.tolist() == [1, 1] and model.view.tolist() == [0, 0]


def test_a_loss_that_holds_the_model_gets_the_copy() -> None:
    model, seen = Base(), []

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        model.calls = model.calls + 1 if hasattr(model, "calls") else 1
        seen.append(model)
        return F.cross_entropy(logits, y)

    with working_copies(model, loss) as (own, own_loss):
        own_loss(own(torch.zeros(2, 1, 8, 8)), torch.arange(2))
        assert own.calls == 1
    assert not hasattr(model, "calls") and not seen


def test_an_object_that_frees_a_resource_is_shared() -> None:
    freed = []

    class Handle:
        def __del__(self) -> None:
            freed.append(1)

    model = Base()
    model.handle = Handle()
    assert copied(model).handle is model.handle and not freed


def test_a_module_that_cannot_be_copied_is_one_line() -> None:
    class Refuses(Base):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("not\ncopied")

    with pytest.raises(InputError, match="model: it cannot be copied: TypeError: not"), working_copies(Refuses()):
        pass


def test_a_copy_is_freed() -> None:
    own = copied(KeepsMeter())
    place = weakref.ref(own)
    del own
    gc.collect()
    assert place() is None


@pytest.mark.parametrize("kind", [NormalisesInPlace, MasksInPlace, ClampsData])
def test_a_protected_network_keeps_its_input(kind: Callable[[], nn.Module]) -> None:
    model, x = kind(), torch.rand(2, 1, 8, 8)
    expected = model(x.clone())
    protect(model, x)
    given = x.clone()
    assert torch.equal(model(given), expected) and torch.equal(given, x)


@pytest.mark.parametrize("kind", [CountsCalls, KeepsAverage, AverageInTheClass, LazyBuffer, KeepsGraph])
def test_a_protected_network_computes_the_same_again(kind: Callable[[], nn.Module]) -> None:
    reset()
    model, x = copied(kind()), torch.rand(2, 1, 8, 8)
    protect(model, x)
    before = sorted(vars(model))
    first = model(x)
    assert torch.equal(first, model(x)) and torch.equal(first, copied(model)(x)) and sorted(vars(model)) == before


class ClampsInPlace(Base):
    """A network that changes only inputs outside [0, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp_(0, 1))


def test_a_network_that_changes_only_some_inputs_keeps_all_of_them() -> None:
    model = ClampsInPlace()
    protect(model, torch.rand(2, 1, 8, 8))
    given = 3 * torch.rand(2, 1, 8, 8) - 1
    before = given.clone()
    model(given)
    assert torch.equal(given, before)


def test_a_protected_network_is_restored_after_a_call_that_fails() -> None:
    model, x = CountsCalls(), torch.rand(2, 1, 8, 8)
    protect(model, x)
    expected = model(x)
    with pytest.raises(RuntimeError):
        model(torch.rand(2, 1, 9, 9))
    assert model.calls == 0 and torch.equal(model(x), expected)


class FillsInPlace(Base):
    """A network with a buffer and a list that each call changes in place; both enter the output."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.sums: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        self.sums.append(1.0)
        return super().forward(x) * self.count * len(self.sums)


def test_a_protected_network_keeps_buffers_and_lists_that_it_changes_in_place() -> None:
    model, x = FillsInPlace(), torch.rand(2, 1, 8, 8)
    protect(model, x)
    first = model(x)
    assert model.count.tolist() == [0] and model.sums == []
    assert torch.equal(first, model(x))


def test_a_network_that_changes_nothing_gets_no_hook() -> None:
    model = Base()
    protect(model, torch.rand(1, 1, 8, 8))
    assert not model._forward_pre_hooks and not model._forward_hooks


def test_an_attribute_that_a_network_adds_to_its_class_is_removed() -> None:
    class AddsToTheClass(Base):
        def forward(self, x: Tensor) -> Tensor:
            type(self).latest = x.sum()  # type: ignore[attr-defined]
            return super().forward(x)

    model = AddsToTheClass()
    with unchanged(model):
        copied(model)(torch.rand(2, 1, 8, 8))
    assert not hasattr(AddsToTheClass, "latest")


def test_the_states_of_the_process_are_restored_after_an_error() -> None:
    reset()
    expected = torch.rand(1), np.random.rand(), random.random()
    reset()
    with pytest.raises(KeyError), unchanged():
        torch.rand(3), np.random.rand(3), random.random()
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        raise KeyError
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    assert (torch.rand(1), np.random.rand(), random.random()) == expected


def test_autocast_gives_a_training_gradients_after_scores() -> None:
    model, x = Base(), torch.rand(4, 1, 8, 8)
    ours = canaries.examples(torch.rand(12, 1, 8, 8), classes=10, seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        ours.score(model)
        F.cross_entropy(model(x), torch.arange(4)).backward()
    assert model.a.weight.grad is not None


@pytest.mark.parametrize("where", ["named_parameters", "state_dict", "named_modules", "modules", "parameters"])
def test_a_model_that_fails_within_the_probe_trains_on(where: str) -> None:
    def run(probed: bool) -> Tensor:
        reset()
        model = Base()
        parameters = list(model.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.1)

        def fails(*_: Any, **__: Any) -> Any:
            raise RuntimeError("broken")

        if probed:
            setattr(model, where, fails)
        with leakbench.probe(model) if probed else nullcontext() as probe:
            x, y = torch.ones(2, 1, 8, 8), torch.arange(2)
            if probed:
                probe.observe(x, y, F.cross_entropy)
                probe.observe(None, y, F.cross_entropy)
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if probed:
            with pytest.raises(InputError, match="probe: "):
                probe.leak()
        return parameters[0].detach().clone()

    assert torch.equal(run(True), run(False))


def test_canaries_that_fail_in_a_step_let_the_training_end() -> None:
    model = Base()
    ours = canaries.gradients(model, 10, seed=0)
    optimizer, steps = torch.optim.SGD(model.parameters(), lr=0.1), []
    with pytest.raises(InputError, match="canaries: a step could not be scored"), leakbench.probe(model, canaries=ours):
        ours.stepped = None
        for _ in range(2):
            F.cross_entropy(model(torch.ones(2, 1, 8, 8)), torch.arange(2)).backward()
            optimizer.step()
            steps.append(1)
    assert len(steps) == 2
