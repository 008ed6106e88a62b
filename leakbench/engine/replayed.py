"""A function whose operations are recorded once and then replayed in fixed memory.

A search evaluates the same function of a point some thousand times. One evaluation of one image calls some 600 operations of
PyTorch, of which 200 compute and the others only describe the same memory in another way. Python, autograd and the allocator of
memory take half of its time. A replay calls only the operations that compute and that depend on the point, each with memory in
which its result is written. It gives the same bits as the function.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["AFTER", "Arena", "Function", "Replayed", "Replays"]

Function: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]

AFTER = 16
"""Number of calls before the recording, which takes about as long as so many."""

MOST = 256 * 2**20
"""Largest number of bytes of all results of a recorded function. Beyond it, operations take much longer than the calls."""

SETS = 16
"""Largest number of sets of lanes whose calls are counted and recorded."""

ALIGNED = 64
"""Bytes to which PyTorch aligns memory."""

UNSET = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Operations that return memory as it is."""

CLEARED = frozenset({"zeros", "zeros_like", "new_zeros"})

COPIED = frozenset({"clone", "_to_copy"})


class Arena:
    """Memory that several replayed functions use in turn."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.blocks: list[torch.UntypedStorage] = []

    def lend(self, free: list[torch.UntypedStorage], size: int, device: torch.device) -> torch.UntypedStorage:
        """Return one of the blocks in `free`, which are this arena's, that has about the given size; else a new block."""
        least = max(1, -(-size // ALIGNED)) * ALIGNED
        fitting = [n for n, block in enumerate(free) if least <= block.nbytes() <= 2 * least and block.device == device]
        if fitting:
            # The last one that was used is the most likely to be in a cache.
            return free.pop(min(reversed(fitting), key=lambda n: free[n].nbytes()))
        block = torch.empty(least, dtype=torch.uint8, device=device).untyped_storage()
        self.blocks.append(block)
        return block


class Replayed:
    """A function of one tensor that gives the same results faster after some calls with the same shape.

    The function must depend on nothing that changes except its argument and given tensors. It is called as it is, each time, if it
    draws random numbers, if its operations depend on the numbers, if it changes other tensors, or if its results take much memory.
    The first replay is compared with the function, bit by bit.
    """

    def __init__(self, function: Function, arena: Arena, changing: tuple[Tensor, ...] = ()) -> None:
        """Prepare the function.

        Args:
            function: Takes a tensor and returns tensors.
            arena: Memory of the replays.
            changing: Other tensors that the function reads, whose numbers may change between calls.
        """
        self.function, self.arena, self.changing = function, arena, changing
        self.called = 0
        self.replay: _Replay | None = None

    def __call__(self, entering: Tensor) -> tuple[Tensor, ...]:
        """Return the results."""
        self.called += 1
        if self.replay is not None and self.called > AFTER + 1:
            return self.replay(entering)
        if self.called == AFTER:
            results, self.replay = _recorded(self.function, entering, self.changing, self.arena)
            return results
        results = self.function(entering)
        if self.replay is not None and not _same(results, self.replay(entering)):
            self.replay = None
        return results


def _same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True) for a, b in zip(some, others, strict=True))


@dataclass(frozen=True)
class _Call:
    """One call of an operation.

    Args:
        results: What it returned.
        written: The arguments that it changed.
    """

    operation: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    written: tuple[Tensor, ...]

    @cached_property
    def name(self) -> str:
        """Name of the operation without its overload."""
        return str(self.operation._schema.name.split("::")[1])

    @cached_property
    def given(self) -> list[Tensor]:
        """The tensors among its arguments."""
        return _tensors((self.args, self.kwargs))

    @cached_property
    def made(self) -> list[Tensor]:
        """The tensors among its results."""
        return _tensors(self.results)

    @cached_property
    def read(self) -> frozenset[int]:
        """The memory of its arguments."""
        return frozenset(map(_memory, self.given))

    @cached_property
    def left(self) -> frozenset[int]:
        """The memory of its results, and what it changed."""
        return frozenset(map(_memory, (*self.made, *self.written)))

    def repeatable(self, device: torch.device) -> bool:
        """Return whether it draws nothing, and memory, shape and strides describe its tensors, on the device, throughout."""
        moves = self.name in ("set_", "resize_", "resize_as_")
        draws = torch.Tag.nondeterministic_seeded in self.operation.tags
        # Results beside what it changes, such as batch normalisation's, would need memory of their own.
        both = bool(self.written) and self.left != frozenset(map(_memory, self.written))
        plain = all(_plain(t, device) for t in (*self.given, *self.made))
        return plain and not (moves or draws or both)

    @property
    def describes(self) -> bool:
        """Whether it only describes the memory of its arguments in another way."""
        return not self.written and self.left <= self.read


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records calls on a device, until one cannot be replayed or their results have more than `MOST` bytes."""

    supports_higher_order_operators = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.calls = device, list[_Call]()
        self.bytes, self.whole = 0, True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from importing its compiler, which takes more than a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the operation and record the call."""
        kwargs = kwargs or {}
        if not self.whole:
            return func(*args, **kwargs)
        given = _each(_alias, args), _each(_alias, kwargs)
        results = func(*args, **kwargs)
        if not isinstance(func, OpOverload):  # Such as `torch.cond`, which calls functions.
            self._give_up()
            return results
        call = _Call(func, *given, _each(_alias, results), tuple(_written(func, *given)))
        if not call.repeatable(self.device):
            self._give_up()
            return results
        if not call.describes:
            self.bytes += sum(t.untyped_storage().nbytes() for t in call.made)
        self.calls.append(call)
        if self.bytes > MOST:
            self._give_up()
        return results

    def _give_up(self) -> None:
        self.calls, self.whole = [], False


def _written(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    if not operation._schema.is_mutable or torch.Tag.inplace_view in operation.tags:
        return
    given = dict(zip((argument.name for argument in operation._schema.arguments), args, strict=False)) | kwargs
    for argument in operation._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(given.get(argument.name))


def _tensors(tree: Any) -> list[Tensor]:
    """Return the tensors in nested lists, tuples and dictionaries; much faster than `torch.utils._pytree`."""
    found = list[Tensor]()
    _each(found.append, tree)
    return found


def _each(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Return the same lists, tuples and dictionaries with the function's results in place of the tensors."""
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, dict):
        return {name: _each(function, branch) for name, branch in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)([_each(function, branch) for branch in tree])
    return tree


def _alias(tensor: Tensor) -> Tensor:
    """Return the tensor as it is now, since operations such as `squeeze_` change its shape, and without derivatives."""
    return tensor.detach() if _known(tensor) else tensor


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _recorded(
    function: Function, entering: Tensor, changing: tuple[Tensor, ...], arena: Arena
) -> tuple[tuple[Tensor, ...], _Replay | None]:
    """Return the function's results and its replay; None if it cannot be replayed."""
    own = entering.detach().clone()
    try:
        with _Recorder(entering.device) as recorder:
            results = function(own)
    except Exception:
        # Some operations fail under a recorder alone, such as `flex_attention`. The function's own errors occur again.
        return function(entering), None
    calls = _needed(recorder.calls, (own, *changing), results) if recorder.whole else None
    return results, None if calls is None else _Replay.of(calls, own, results, arena)


def _needed(calls: Sequence[_Call], entering: Sequence[Tensor], results: Sequence[Tensor]) -> list[_Call] | None:
    """Return the calls that a replay repeats, in order; None if the function cannot be replayed."""
    made = {memory for call in calls if not call.describes for memory in call.left - call.read}
    changed = {_memory(t) for call in calls for t in call.written}
    if changed - made:
        return None
    # What is changed is made anew in each replay, so that it counts as dependent from its start.
    dependent, repeated = {*map(_memory, entering), *changed}, []
    for call in calls:
        if not (call.read | call.left) & dependent:
            continue
        if call.read & dependent and _decides(call):
            return None
        if not call.describes:
            dependent |= call.left
            repeated.append(call)
    needed, kept = {_memory(t) for t in results}, []
    for call in reversed(repeated):
        if call.left & needed:
            needed |= call.read
            kept.append(call)
    return kept[::-1]


def _plain(tensor: Tensor, device: torch.device) -> bool:
    return _known(tensor) and tensor.device == device and not tensor.is_conj() and not tensor.is_neg()


def _known(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def _decides(call: _Call) -> bool:
    """Return whether the numbers of the call's arguments can change which operations follow, or the shape of its result."""
    if call.name == "index":  # With positions, the shape of the result is theirs; a mask counts what is true.
        return any(t.dtype in (torch.bool, torch.uint8) for t in call.given[1:])
    tags = call.operation.tags
    return torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags


@dataclass(frozen=True)
class _Replay:
    """The calls of a function in fixed memory.

    Args:
        calls: Functions with their arguments and keyword arguments.
        entering: The memory of the function's argument.
        results: The memory of its results.
        arena: The owner of the memory.
    """

    calls: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...]
    entering: Tensor
    results: tuple[Tensor, ...]
    arena: Arena

    @classmethod
    def of(cls, calls: Sequence[_Call], entering: Tensor, results: Sequence[Tensor], arena: Arena) -> _Replay:
        """Place the results of the calls in the arena's memory."""
        place = _Placed(_blocks(calls, entering, results, arena))
        repeated = (_repeated(call, place) for call in calls)
        return cls(
            tuple(call for call in repeated if call is not None), place(entering), tuple(map(place, results)), arena
        )

    def __call__(self, entering: Tensor) -> tuple[Tensor, ...]:
        """Return the results of the function."""
        with self.arena.lock, torch.no_grad():
            self.entering.copy_(entering)
            for function, args, kwargs in self.calls:
                function(*args, **kwargs)
            return tuple(result.clone() for result in self.results)


def _blocks(
    calls: Sequence[_Call], entering: Tensor, results: Sequence[Tensor], arena: Arena
) -> dict[int, torch.UntypedStorage]:
    """Return the block of the arena for each memory that a replay writes; those that are not needed at the same time share one."""
    first, last = {_memory(entering): -1}, {_memory(entering): len(calls)}
    sizes = {_memory(t): t.untyped_storage().nbytes() for t in (entering, *(t for call in calls for t in call.made))}
    for number, call in enumerate(calls):
        for memory in call.left - call.read:
            first.setdefault(memory, number)
        last |= dict.fromkeys(call.read | call.left, number)
    last |= dict.fromkeys((_memory(t) for t in (entering, *results)), len(calls))
    begin, end = _by_number(first), _by_number({memory: last[memory] for memory in first})
    free, blocks = list(arena.blocks), dict[int, torch.UntypedStorage]()
    for number in range(-1, len(calls)):
        for memory in begin.get(number, ()):
            blocks[memory] = arena.lend(free, sizes[memory], entering.device)
        free += [blocks[memory] for memory in end.get(number, ())]
    return blocks


def _by_number(numbers: dict[int, int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for memory, number in numbers.items():
        found.setdefault(number, []).append(memory)
    return found


@dataclass(frozen=True)
class _Placed:
    """Maps recorded tensors to the same in the blocks; others stay."""

    blocks: dict[int, torch.UntypedStorage]

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return the tensor in its block."""
        block = self.blocks.get(_memory(tensor))
        if block is None:
            return tensor.detach()
        shape = (tensor.storage_offset(), tensor.size(), tensor.stride())
        return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(block, *shape)


def _repeated(call: _Call, place: _Placed) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None:
    """Return what writes the call's results into their memory; None if nothing is to be written."""
    args, kwargs, results = _each(place, call.args), _each(place, call.kwargs), _each(place, call.results)
    run = call.operation.op
    if call.written:
        return run, args, kwargs
    if call.name in UNSET:
        return None
    if call.name in CLEARED:
        return results.zero_, (), {}
    if call.name in COPIED:
        return results.copy_, (args[0],), {}
    leaves = _tensors(results)
    writing = _writing(call.operation)
    if writing is not None and len(writing[1]) == len(leaves):
        return writing[0].op, args, kwargs | dict(zip(writing[1], leaves, strict=True))

    def copied() -> None:
        for to, result in zip(leaves, _tensors(run(*args, **kwargs)), strict=True):
            to.copy_(result)

    return copied, (), {}


@cache
def _writing(operation: OpOverload) -> tuple[OpOverload, tuple[str, ...]] | None:
    """Return the overload that writes its results into given tensors, and the names of their arguments; None without one.

    An overload without a kernel for processors only copies the results.
    """
    packet = operation.overloadpacket
    taken = [(argument.name, str(argument.type)) for argument in operation._schema.arguments]
    for name in packet.overloads():
        other = getattr(packet, name)
        arguments = other._schema.arguments
        out = tuple(argument.name for argument in arguments if argument.is_out)
        if out and [(a.name, str(a.type)) for a in arguments if not a.is_out] == taken:
            computes = torch._C._dispatch_has_kernel_for_dispatch_key(other.name(), "CPU")
            return (other, out) if computes else None
    return None


class Replays:
    """The replays of one function for several sets of lanes, which run one after the other.

    Args:
        changing: As for `Replayed`.
    """

    def __init__(self, changing: tuple[Tensor, ...] = ()) -> None:
        self.changing, self.arena = changing, Arena()
        self.functions: OrderedDict[tuple[int, ...], Replayed] = OrderedDict()

    def __call__(self, lanes: Tensor, function: Function) -> Replayed:
        """Return the function of points in the given lanes (v,), always the same function for the same lanes."""
        key = tuple(lanes.tolist())
        found = self.functions.setdefault(key, Replayed(function, self.arena, self.changing))
        self.functions.move_to_end(key)
        while len(self.functions) > SETS:
            self.functions.popitem(last=False)
        return found
