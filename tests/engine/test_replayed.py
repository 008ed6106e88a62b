"""Replays give the same bits as the function, and functions that cannot be replayed are called as they are."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as f

from leakbench.core.errors import InputError
from leakbench.engine import replayed
from leakbench.engine.replayed import Arena, Replayed, Replays

MATRIX = torch.rand(6, 6, generator=torch.Generator().manual_seed(0))
KERNEL = torch.rand(4, 2, 3, 3, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed, "AFTER", 2)


def points(count: int, *shape: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, generator=generator) for _ in range(count)]


def padded(x: Tensor) -> Tensor:
    whole = x.new_zeros(8, 8)
    whole[1:7, 1:7] = x
    whole[::2] += 1
    return whole.as_strided((6, 6, 3, 3), (8, 1, 8, 1)).reshape(36, 9).cumsum(1)


def convolved(x: Tensor) -> Tensor:
    pictures = x[:, :4].reshape(1, 2, 3, 4)
    pooled, where = f.max_pool2d(f.conv2d(pictures, KERNEL, padding=1), 2, return_indices=True)
    return pooled + where


def factored(x: Tensor) -> Tensor:
    left, right = torch.linalg.qr(x + 6 * MATRIX)
    return left.abs() @ right.abs().sort(1).values


def by_parts(x: Tensor) -> Tensor:
    some = torch._foreach_mul([x[:2], x[2:]], [2.0, 3.0])
    torch._foreach_add_(some, 1.0)
    return torch.cat([t.flatten() for t in some]) + torch.stack(x.chunk(2)).amax(0).repeat(2, 1).flatten()


def reshaped(x: Tensor) -> Tensor:
    whole = x + 1
    before = whole * torch.arange(6)
    whole.unsqueeze_(0).transpose_(1, 2)
    return torch.cat([whole.squeeze_(0), before]) * whole.repeat(2, 1)


def started(x: Tensor) -> Tensor:
    total = MATRIX.clone()
    total += x
    total.mul_(2).sub_(torch.ones(6))
    rest = torch.empty(6, 6)
    rest.copy_(total[:, torch.tensor([5, 3, 1, 0, 2, 4])])
    return rest


def along(x: Tensor) -> Tensor:
    """Return a directional derivative, whose operations ask whether shapes are the same."""
    value, tangent = torch.func.jvp(lambda y: y.square().sin(), (x,), (torch.ones_like(x),))
    return value * 2 + tangent


PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "views": lambda x: x.mT.reshape(2, 3, 6).permute(2, 0, 1).flatten(1)[:, 1:] * 2,
    "the argument itself": lambda x: x,
    "a view of the argument": lambda x: x.mT[1:],
    "a constant": lambda x: MATRIX @ MATRIX,
    "constants once": lambda x: x * (MATRIX @ MATRIX.exp()),
    "memory that is filled": padded,
    "convolution and pool": convolved,
    "factors": factored,
    "several at once": by_parts,
    "a copy that is changed": started,
    "a choice by number": lambda x: torch.where(x > 0, x, x.exp()).clamp(max=2) / x.std(1, keepdim=True),
    "a mask": lambda x: x.masked_fill(x < 0, 3.0).softmax(1),
    "positions": lambda x: x[torch.arange(3)].index_select(1, torch.tensor([1, 1, 2])),
    "positions that depend on it": lambda x: x[x.argsort(0)[0], x.argmax(1)] + x.gather(0, x.argsort(0)).sum(),
    "other types": lambda x: (x.double() @ MATRIX.double()).float() + x.round().long(),
    "numbers without shape": lambda x: x.sum() * 2 + x[0, 0],
    "nothing": lambda x: x[:0].sum(0),
    "infinite and undefined": lambda x: x / (x - x) + x.log(),
    "a tensor whose shape changes": reshaped,
    "two of the same": lambda x: (x + 1) * (x + 1),
    "numbers of a constant": lambda x: x * float(MATRIX.numpy()[0, 0]) + torch.tensor(MATRIX.tolist()),
    "tangents": along,
    "an in-place function": lambda x: f.relu(x * 2, inplace=True).square(),
}


def outcome(function: Callable[[Tensor], Tensor], derived: bool) -> replayed.Function:
    def whole(x: Tensor) -> tuple[Tensor, ...]:
        if not derived:
            return (function(x),)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            value = function(leaf).float().square().sum()
            if not value.requires_grad:
                return (value.detach(),)
            return value.detach(), *torch.autograd.grad(value, leaf)

    return whole


def check(function: replayed.Function, shape: tuple[int, ...] = (6, 6)) -> Replayed:
    """Compare 6 calls with the function's own, after all of them, when nothing may have overwritten an earlier result."""
    some = Replayed(function, Arena())
    at = points(6, *shape)
    found = [some(x) for x in at]
    for x, results in zip(at, found, strict=True):
        for one, other in zip(results, function(x), strict=True):
            assert one.dtype == other.dtype
            assert not one.requires_grad
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    return some


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:FutureWarning")  # PyTorch's own, of `jvp`.
@pytest.mark.parametrize("derived", [False, True], ids=["value", "derivative"])
@pytest.mark.parametrize("name", PLAIN)
def test_replays_give_the_same_bits(name: str, derived: bool) -> None:
    assert check(outcome(PLAIN[name], derived)).replay is not None


def test_constants_and_unused_results_are_not_computed_again() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        x.exp().sum()
        return (x * (MATRIX @ MATRIX).exp(),)

    some = check(function)
    assert some.replay is not None
    assert len(some.replay.calls) == 1


def test_memory_is_used_again() -> None:
    """A chain of 20 results needs two blocks at a time, besides the argument's; a second function needs no more."""

    def chain(x: Tensor) -> tuple[Tensor, ...]:
        for _ in range(20):
            x = x.sin()
        return (x,)

    arena = Arena()
    some, other = Replayed(chain, arena), Replayed(lambda x: (x.cos().sin().cos(),), arena)
    for x in points(4, 100, 100):
        assert torch.equal(some(x)[0], chain(x)[0])
        assert torch.equal(other(x)[0], x.cos().sin().cos())
    assert some.replay is not None
    assert other.replay is not None
    assert [block.nbytes() for block in arena.blocks] == [40_000] * 3


def test_a_block_that_is_too_small_is_not_lent() -> None:
    def growing(x: Tensor) -> tuple[Tensor, ...]:
        for _ in range(4):
            x = torch.cat([x.sin(), x.cos()])
        return (x,)

    arena = Arena()
    some = Replayed(growing, arena)
    for x in points(4, 100):
        assert torch.equal(some(x)[0], growing(x)[0])
    assert some.replay is not None
    sizes = [block.nbytes() for block in arena.blocks]
    assert max(sizes) >= 4 * 1_600
    block = arena.lend(arena.blocks[:1], 2 * sizes[0], torch.device("cpu"))
    assert block.nbytes() >= 2 * sizes[0]
    assert len(arena.blocks) == len(sizes) + 1


def asserted(x: Tensor) -> Tensor:
    torch.ops.aten._assert_async(x.isfinite().all())
    return x


STRANGE: dict[str, Callable[[Tensor], Tensor]] = {
    "a number that decides": lambda x: x * 2 if bool(x[0, 0] > 0) else x.exp(),
    "a number read as such": lambda x: x * float(x.sum()),
    "a comparison": lambda x: x if torch.equal(x, x.abs()) else -x,
    "a mask that selects": lambda x: x[x > 0],
    "positions of what is true": lambda x: (x > 0).nonzero().float(),
    "distinct numbers": lambda x: x.round().unique(),
    "a list": lambda x: torch.tensor(x.tolist()) * 2,
    "an array": lambda x: torch.from_numpy(x.numpy(force=True).copy()) * 2,
    "a tensor that gets other memory": lambda x: torch.empty(0).set_(x + 1) * 2,
    "complex numbers": lambda x: torch.view_as_real(torch.fft.fft(x).conj().resolve_conj()),
    "results and a change": lambda x: torch.ops.aten._native_batch_norm_legit(
        x, None, None, torch.zeros(6), torch.ones(6), True, 0.1, 1e-5
    )[0],
    "running statistics": lambda x: f.batch_norm(x, torch.zeros(6), torch.ones(6), training=True),
    "an operation that can fail": torch.linalg.inv,
    "an assertion": lambda x: asserted(x) * 2,
    "an array that decides": lambda x: x * 2 if x.detach().numpy()[0, 0] > 0.5 else x.exp(),
    "a list that decides": lambda x: x * 2 if x.detach().tolist()[0][0] > 0.5 else x.exp(),
    "NumPy's view that decides": lambda x: x * 2 if np.asarray(x.detach()).max() > 2.5 else x.exp(),
    "a capsule that decides": lambda x: x * 2 if np.from_dlpack(x.detach()).max() > 2.5 else x.exp(),
    "a tensor of numbers that decides": lambda x: (
        x * 2 if bool(torch.tensor([n.floor() for n in x[0]]).max() > 0) else x
    ),
    "a new tensor of numbers": lambda x: x * x.new_tensor([n.floor() for n in x[0]]),
    "printed numbers that decide": lambda x: x * 2 if "-" in repr(x) else x,
    "nested tensors": lambda x: torch.nested.nested_tensor([x[0], x[1][:3]]).to_padded_tensor(0.0),
    "sparse numbers": lambda x: (x.relu().to_sparse() * 2).to_dense(),
    "a sparse constant": lambda x: x * torch.eye(6).to_sparse().to_dense(),
    "a list given by name": lambda x: x * torch.tensor(data=[n.floor() for n in x[0]]),
    "an object given by name": lambda x: x * torch.asarray(obj=[n.floor() for n in x[0]]),
    "a list as a tensor": lambda x: x * torch.as_tensor([n.floor() for n in x[0]]),
    "a list as an array": lambda x: x * torch.asarray([n.floor() for n in x[0]]),
    "an address that decides": lambda x: x * 2 if ctypes.c_float.from_address(x.data_ptr()).value < 50 else x,
    "bytes that select": lambda x: x[(x > -50).to(torch.uint8)],
    "a negated view": lambda x: torch._neg_view(x) * 2,
    "a conjugate result": lambda x: torch.view_as_complex(x.reshape(6, 3, 2)).conj(),
    "another size": lambda x: (x + 1).resize_(3, 12) * 2,
    "the size of another": lambda x: (x + 1).resize_as_(torch.ones(3, 12)) * 2,
    "symmetric eigenvalues": lambda x: torch.linalg.eigh(x + x.mT)[0],
    "eigenvalues": lambda x: torch.linalg.eig(x)[0].real * 1,
    "singular values": lambda x: torch.linalg.svd(x)[1],
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning", "ignore:indexing with dtype")
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")
@pytest.mark.parametrize("name", STRANGE)
def test_a_function_that_cannot_be_replayed_is_called_as_it_is(name: str) -> None:
    """Its operations show it, without a comparison."""
    function = outcome(STRANGE[name], False)
    assert replayed._recorded(function, points(1, 6, 6)[0], (), Arena())[1] is None
    some = check(function)
    assert some.called == 6
    assert some.replay is None


@pytest.mark.parametrize("function", [torch.linalg.svdvals, lambda x: torch.linalg.eigvalsh(x + x.mT)])
def test_operations_with_another_algorithm_under_a_recorder_are_not_replayed(
    function: Callable[[Tensor], Tensor],
) -> None:
    assert check(lambda x: (function(x),)).replay is None


def ties(count: int) -> list[Tensor]:
    return [x.mul(2).round() for x in points(count, 6, 6)]


@pytest.mark.parametrize(
    "function",
    [
        torch.prod,
        lambda x: x.prod(0),
        lambda x: torch.cumprod(x, 0),
        lambda x: x.cumprod(1),
        lambda x: torch.quantile(x, 0.5),
        lambda x: x.quantile(0.3, dim=1),
        lambda x: torch.nanquantile(x, 0.5, dim=0),
        lambda x: x.nanquantile(0.7),
    ],
)
def test_functions_with_another_derivative_under_a_recorder_are_not_replayed(
    function: Callable[[Tensor], Tensor],
) -> None:
    """With equal numbers, they divide a derivative among them in another way."""
    whole = outcome(function, True)
    some = Replayed(whole, Arena())
    for x in ties(6):
        for one, other in zip(some(x), whole(x), strict=True):
            assert torch.equal(one, other)
    assert some.replay is None


class Reading(torch.autograd.Function):
    """The identity, whose derivative reads numbers in one of several ways."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, read: Callable[[Tensor], Any]) -> Tensor:
        ctx.read = read
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] * ctx.read(grads[0].detach()), None


READ_IN_A_DERIVATIVE: dict[str, Callable[[Tensor], Any]] = {
    "a tensor of numbers": lambda g: torch.tensor([n.floor() for n in g[0]]),
    "numbers as a tensor": lambda g: torch.as_tensor([n.floor() for n in g[0]]),
    "numbers as an array": lambda g: torch.asarray([n.floor() for n in g[0]]),
    "a new tensor": lambda g: g.new_tensor([n.floor() for n in g[0]]),
    "tolist": lambda g: g.tolist()[0][0],
    "numpy": lambda g: float(g.numpy()[0, 0]),
    "a view of NumPy": lambda g: float(np.asarray(g)[0, 0]),
    "dlpack": lambda g: float(np.from_dlpack(g)[0, 0]),
    "a capsule": lambda g: float(torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(g)).numpy()[0, 0]),
    "apply_": lambda g: float(g.clone().apply_(lambda n: n + 1).sum()),
    "map_": lambda g: float(g.clone().map_(g, lambda n, m: n + m).sum()),
    "map2_": lambda g: float(g.clone().map2_(g, g, lambda n, m, k: n + m + k).sum()),
}


@pytest.mark.parametrize("name", READ_IN_A_DERIVATIVE)
def test_a_derivative_or_a_hook_that_reads_numbers_is_not_replayed(name: str) -> None:
    read = READ_IN_A_DERIVATIVE[name]

    def hooked(x: Tensor) -> Tensor:
        doubled = x * 2
        if doubled.requires_grad:
            doubled.register_hook(lambda g: g * read(g.detach()))
        return doubled.square()

    for function in (outcome(lambda x: Reading.apply(x, read).square(), True), outcome(hooked, True)):
        assert replayed._recorded(function, points(1, 6, 6)[0], (), Arena())[1] is None
        assert check(function).replay is None
    assert sys.getprofile() is None


def test_nothing_is_recorded_under_a_profiler_which_keeps_its_hook() -> None:
    sys.setprofile(hook := lambda frame, event, what: None)
    try:
        some = check(lambda x: (x * 2,))
        assert sys.getprofile() is hook
    finally:
        sys.setprofile(None)
    assert some.replay is None
    assert check(lambda x: (x * 2,)).replay is not None


def test_a_tensor_as_a_tensor_is_replayed() -> None:
    assert check(lambda x: (torch.as_tensor(x) * torch.tensor([1.0, 2.0])[1],)).replay is not None


def test_a_replay_with_another_number_of_results_is_given_up() -> None:
    called = list[int]()

    def function(x: Tensor) -> tuple[Tensor, ...]:
        called.append(1)
        return (x * 2,) if len(called) == 2 else (x * 2, x + 1)

    some = Replayed(function, Arena())
    for x in points(6, 3):
        some(x)
    assert some.replay is None


def test_a_replay_that_fails_later_is_given_up() -> None:
    """Tensors of inference mode cannot be changed outside of it."""
    some, at = Replayed(lambda x: (x * 2 + 1,), Arena()), points(8, 3)
    with torch.inference_mode():
        for x in at[:6]:
            some(x)
    assert some.replay is not None
    for x in at[6:]:
        assert torch.equal(some(x)[0], x * 2 + 1)
    assert some.replay is None


def test_threads_look_lanes_up_one_after_the_other() -> None:
    replays, held = Replays(), list[bool]()

    class Watched(dict[tuple[int, ...], tuple[Replayed, int]]):
        def pop(self, *args: Any) -> Any:
            held.append(replays.lock.locked())
            return super().pop(*args)

        def __setitem__(self, *args: Any) -> None:
            held.append(replays.lock.locked())
            super().__setitem__(*args)

    replays.functions = Watched()
    for n in (1, 2, 1):
        replays(torch.tensor([n]), lambda x: (x,))
    assert held == [True] * 6


def test_a_replay_that_fails_where_it_is_compared_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call 8 is compared, and call 7 is not."""
    for call in (7, 8):
        some, at = Replayed(lambda x: (x * 2,), Arena()), points(9, 3)
        for x in at[: call - 1]:
            some(x)
        assert some.replay is not None
        with monkeypatch.context() as failing:
            failing.setattr(torch.Tensor, "copy_", None)
            assert torch.equal(some(at[call])[0], at[call] * 2)
        assert some.replay is None


def test_random_numbers_are_drawn_each_time() -> None:
    for function in (
        lambda x: (x + torch.rand(6),),
        lambda x: (f.dropout(x),),
        lambda x: (x * 0 + x.new(6).normal_(),),
    ):
        torch.manual_seed(3)
        plain = [function(x) for x in points(6, 6)]
        torch.manual_seed(3)
        some = Replayed(function, Arena())
        for one, x in zip(plain, points(6, 6), strict=True):
            assert torch.equal(one[0], some(x)[0])
        assert some.replay is None


@pytest.mark.parametrize("part", [lambda t: t, lambda t: t.view(-1), lambda t: t[0]])
def test_a_function_that_changes_another_tensor_is_called_each_time(part: Callable[[Tensor], Tensor]) -> None:
    counted = torch.zeros(2, 3)
    some = Replayed(lambda x: (x + part(counted).add_(1).max(),), Arena())
    found = [float(some(torch.ones(()))[0]) for _ in range(6)]
    assert found == [2 + n for n in range(6)]


def test_a_function_of_something_else_is_found_at_the_first_replay() -> None:
    factors = iter((1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))
    some = Replayed(lambda x: (x * next(factors),), Arena())
    # The second call is recorded, and then made again as it is.
    assert [float(some(torch.ones(()))[0]) for _ in range(6)] == [1, 3, 4, 5, 6, 7]
    assert some.replay is None


def test_a_function_of_something_that_changes_later_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls 3, 4, 5, 8, 12, 16 and 24 are compared: a change is found at the next of them."""
    monkeypatch.setattr(replayed, "EVERY", 12)
    for change, found in ((10, 12), (14, 16), (18, 24)):
        factor = [1.0]
        some = Replayed(lambda x, factor=factor: (x * factor[0],), Arena())
        for n, x in enumerate(points(found - 1, 3), 1):
            factor[0] = 1.0 if n < change else 2.0
            assert torch.equal(some(x)[0], x)
        with pytest.raises(InputError, match=f"evaluation {found} of a search differs from its replay"):
            some(torch.ones(3))


@pytest.mark.parametrize("later", [lambda x: (x * 1.001,), lambda x: (x[None],), lambda x: (x, x)])
def test_a_small_difference_or_another_form_ends_with_an_error(later: replayed.Function) -> None:
    now: list[replayed.Function] = [lambda x: (x * 1.0,)]

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return now[0](x)

    some = Replayed(function, Arena())
    for x in points(7, 3):
        some(x)
    now[0] = later
    with pytest.raises(InputError, match="evaluation 8 of a search differs"):
        some(torch.ones(3))


def test_an_argument_that_is_part_of_what_the_function_reads() -> None:
    whole = torch.rand(3, 4, generator=torch.Generator().manual_seed(5))
    some = Replayed(lambda x: (x * whole[1],), Arena())
    for x in points(6, 4):
        whole[0] = x
        assert torch.equal(some(whole[0])[0], x * whole[1])
    assert some.replay is not None


def test_a_search_of_few_evaluations_is_not_worth_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed, "AFTER", 16)
    assert replayed.pays(64)
    assert not replayed.pays(63)


def test_a_block_of_another_device_or_much_too_large_is_not_lent() -> None:
    arena, cpu = Arena(), torch.device("cpu")
    block = arena.lend([], 6_400, cpu)
    assert arena.lend([block], 3_200, cpu) is block
    assert arena.lend([block], 3_100, cpu) is not block
    assert arena.lend([block], 6_400, torch.device("meta")).device.type == "meta"


def test_a_late_difference_of_rounding_ends_the_replays_and_not_the_search() -> None:
    factor = [1.0]
    some = Replayed(lambda x: (x * factor[0],), Arena())
    for n, x in enumerate(points(12, 3), 1):
        factor[0] = 1.0 if n < 7 else 1 + 2**-20
        assert torch.equal(some(x)[0], x * (factor[0] if n > 7 else 1.0))
    assert some.replay is None


def test_only_points_like_the_recorded_one_are_replayed() -> None:
    called = []

    def function(x: Tensor) -> tuple[Tensor, ...]:
        called.append(x.shape)
        return (x * 2,)

    some = Replayed(function, Arena())
    for x in points(7, 4, 4):
        some(x)
    assert len(called) == 6  # Two calls, one recording, and calls 3, 4 and 5 compared.
    for other in (torch.ones(3, 4), torch.ones(4, 4).double(), torch.rand(4, 4).mT, torch.ones(4, 4).requires_grad_()):
        before = len(called)
        found = some(other)[0]
        assert len(called) == before + 1
        assert found.dtype == other.dtype
        assert torch.equal(found, other * 2)


def test_a_replay_that_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: replayed._Replay, point: Tensor, wait: bool = True) -> Any:
        raise RuntimeError("not in this memory")

    monkeypatch.setattr(replayed._Replay, "__call__", fails)
    assert check(lambda x: (x * 2,)).replay is None


def test_an_error_of_an_operation_is_raised_at_each_call() -> None:
    some = Replayed(lambda x: (torch.linalg.cholesky(x),), Arena())
    for _ in range(6):
        some(torch.eye(3))
    with pytest.raises(torch.linalg.LinAlgError):
        some(-torch.eye(3))


def test_a_function_is_called_while_another_thread_uses_the_memory() -> None:
    called, some = list[int](), Replayed(lambda x: (called.append(1), x * 2)[1:], Arena())
    for x in points(8, 3):
        some(x)
    before = len(called)
    assert torch.equal(some(torch.ones(3))[0], torch.full((3,), 2.0))
    assert len(called) == before
    with some.arena.lock:
        assert torch.equal(some(torch.ones(3))[0], torch.full((3,), 2.0))
    assert len(called) == before + 1


def test_tensors_that_change_are_read_each_time() -> None:
    sharpness = torch.tensor([1.0, 2.0])
    some = Replayed(lambda x: (x * sharpness[0] + sharpness[1].exp(),), Arena(), (sharpness,))
    for n, x in enumerate(points(6, 3)):
        sharpness.fill_(n)
        assert torch.equal(some(x)[0], x * n + torch.tensor(float(n)).exp())
    assert some.replay is not None


def test_a_function_with_large_results_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for most, kept in ((4 * 3 * 100, True), (4 * 3 * 100 - 1, False)):
        monkeypatch.setattr(replayed, "MOST", most)
        arena = Arena()
        some = Replayed(lambda x: (x.sin().cos().exp(),), arena)
        for x in points(4, 100):
            some(x)
        assert (some.replay is not None) == kept
        assert bool(arena.blocks) == kept


def test_an_error_of_the_function_is_its_own() -> None:
    def fails(x: Tensor) -> tuple[Tensor, ...]:
        if some.called == 2:
            raise MemoryError
        return (x * 2,)

    some = Replayed(fails, Arena())
    some(torch.ones(1))
    with pytest.raises(MemoryError):
        some(torch.ones(1))
    assert torch.equal(some(torch.ones(1))[0], torch.tensor([2.0]))
    # The recorder is gone after an error.
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def test_an_operation_that_fails_only_while_it_is_recorded_is_called_as_it_is() -> None:
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack

    def shy(x: Tensor) -> tuple[Tensor, ...]:
        if modes():
            raise RuntimeError("not under a mode")
        return (x * 2,)

    assert check(shy).replay is None


@pytest.mark.slow  # It imports PyTorch's compiler.
def test_functions_as_arguments_of_operations_are_not_replayed() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.cond(x.sum() > 0, lambda y: y * 2, torch.exp, (x,)),)

    assert replayed._recorded(function, points(1, 3)[0], (), Arena())[1] is None
    assert check(function).replay is None


def test_threads_share_an_arena_in_turn() -> None:
    arena, wrong = Arena(), list[int]()

    def work(seed: int) -> None:
        some = Replayed(lambda x: (x.sin().cos().mul(seed).exp(),), arena)
        for n, x in enumerate(points(200, 50)):
            if not torch.equal(some(x)[0], x.sin().cos().mul(seed).exp()):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_each_set_of_lanes_has_its_own_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed, "SETS", 2)
    monkeypatch.setattr(replayed, "IN_TURN", 4)
    replays = Replays()

    def of(*lanes: int) -> Replayed:
        chosen = torch.tensor(lanes)
        return replays(chosen, lambda x: (x * chosen[:, None],))

    for x in points(4, 2, 3):
        assert torch.equal(of(1, 2)(x)[0], x * torch.tensor([[1.0], [2.0]]))
        assert torch.equal(of(3, 4)(x)[0], x * torch.tensor([[3.0], [4.0]]))
    assert of(1, 2).replay is not None
    assert of(3, 4).replay is not None
    # While both take turns, others are evaluated.
    kept = of(1, 2), of(3, 4)
    for _ in range(4):
        assert of(5) is not of(5)
        assert (of(1, 2), of(3, 4)) == kept
    # Lanes that are not called any more make room.
    for _ in range(4):
        of(1, 2)
    assert of(5) is of(5)
    assert of(1, 2) is kept[0]
    assert of(3, 4) is not kept[1]


def test_most_of_many_sets_of_lanes_in_turn_are_replayed() -> None:
    """Twenty sets in turn: sixteen are replayed, where the one that waited longest would give way to each next one."""
    replays, evaluated = Replays(), list[int]()

    def function(x: Tensor) -> tuple[Tensor, ...]:
        evaluated.append(1)
        return (x * 2,)

    for _ in range(40):
        for lane in range(20):
            replays(torch.tensor([lane]), function)(torch.ones(3))
    assert len(evaluated) < 20 * 40 / 2
