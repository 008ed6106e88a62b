"""A function whose operations are recorded once and then replayed in fixed memory.

A search evaluates the same function of a point some thousand times. One evaluation of one image calls some 600 operations of
PyTorch. Of these, 200 compute; the others only describe the same memory in another way. Python, autograd and the allocator of
memory take half of its time. A replay calls only the operations that compute and that depend on the point, each with memory in
which its result is written. It gives the same bits as the function.

The function is repeated once in a while, to find out whether it depends on something else than the point.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from threading import Lock
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from leakbench.core.errors import InputError

__all__ = ["AFTER", "TRIED", "Arena", "Function", "Replayed", "Replays", "pays"]

Function: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]

AFTER = 16
"""Number of calls until the recording, which takes about as long as half of them."""

MOST = 256 * 2**20
"""Largest number of bytes of all results of a recorded function. Beyond it, operations take much longer than the calls."""

SETS = 16
"""Largest number of sets of lanes whose calls are counted and recorded. As long as these take turns, others are evaluated."""

IN_TURN = 4 * SETS
"""Number of calls within which a set of lanes that takes turns is called again."""

ALIGNED = 64
"""Bytes to which PyTorch aligns memory."""

COPIES = frozenset({"clone", "_to_copy"})
"""Operations that are replayed as copies, since their overloads with `out` allocate memory."""

OF_SHAPES = frozenset({"_assert_tensor_metadata", "_has_same_storage_numel", "is_same_size", "result_type"})
"""Operations without tensors as results that depend on shapes and types, not on numbers."""

TRIED = 3
"""Number of calls after the recording whose replays are compared with the function."""

EVERY = 256
"""Number of calls after which another replay is compared."""

ROUNDING = 1e-4
"""Largest difference of two results that is rounding, as a share of their largest number."""

READS = frozenset({"apply_", "data_ptr", "map2_", "map_", "numpy", "tolist"})
"""Methods in C that read a tensor's numbers, or let Python read them, without an operation."""

HANDS_OVER = frozenset({"_to_dlpack", "_to_dlpack_versioned"})
"""Functions in C that give a tensor's memory to others."""

READS_LISTS = frozenset({"as_tensor", "asarray", "new_tensor", "tensor"})
"""Functions in C that read the numbers of tensors in a list without an operation."""

ANOTHER_PATH = frozenset(
    {
        *(torch.prod, Tensor.prod, torch.cumprod, Tensor.cumprod, Tensor.cumprod_),
        *(torch.quantile, Tensor.quantile, torch.nanquantile, Tensor.nanquantile),
    }
)
"""Functions whose derivatives PyTorch computes in another way under a recorder."""


def pays(calls: int) -> bool:
    """Return whether replays save time in so many calls of a function."""
    return calls >= 4 * AFTER


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
    draws random numbers, if numbers decide which operations it calls, if it changes other tensors, if its results take much
    memory, or if one of the first `TRIED` replays differs in a bit. Calls 32, 64, 128 and so on, and every 256th call, are compared
    too.
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

    def __call__(self, point: Tensor) -> tuple[Tensor, ...]:
        """Return the results.

        Raises:
            InputError: If a replay after the first ones differs by more than rounding.
        """
        self.called += 1
        if self.called == AFTER:
            drawn, self.replay = _recorded(self.function, point, self.changing, self.arena)
            # Under a recorder, an operation may choose another algorithm, whose last bits differ.
            return self.function(point) if drawn is None else drawn
        replay = self.replay
        if replay is None or not replay.takes(point):
            return self.function(point)
        first = self.called <= AFTER + TRIED
        if first or self.called.bit_count() == 1 or self.called % EVERY == 0:
            results = self.function(point)
            apart = _apart(replay, point, results)
            # Without a value, the replay failed.
            if apart is None:
                self.replay = None
                return results
            if apart > ROUNDING and not first:
                raise InputError(
                    f"attack: evaluation {self.called} of a search differs from its replay, so that the function that is searched"
                    " depends on something else than its arguments, or numbers decide what it computes; add --engine reference,"
                    " which replays nothing"
                )
            if apart > 0:
                self.replay = None
            return results
        try:
            # While another thread uses the memory, the function itself is faster than waiting.
            return replay(point, wait=False) or self.function(point)
        except Exception:
            # Such as an operation that refuses some numbers; the function's own errors occur again.
            self.replay = None
            return self.function(point)


def _apart(replay: _Replay, point: Tensor, results: tuple[Tensor, ...]) -> float | None:
    """Return the largest difference of a replay from the results, as a share of the largest number; None if it fails."""
    try:
        found = replay(point)
    except Exception:
        # An operation may refuse some numbers, or not take the memory of a block.
        return None
    if len(found) != len(results):
        return math.inf
    return max(map(_difference, results, found), default=0.0)


def _difference(one: Tensor, other: Tensor) -> float:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return math.inf
    if torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True):
        return 0.0
    size = float(one.abs().max())
    found = float((one.double() - other.double()).abs().max())
    return found / size if math.isfinite(found) and math.isfinite(size) and size > 0 else math.inf


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
    def inputs(self) -> list[Tensor]:
        """The tensors among its arguments."""
        return _tensors((self.args, self.kwargs))

    @cached_property
    def outputs(self) -> list[Tensor]:
        """The tensors among its results."""
        return _tensors(self.results)

    @cached_property
    def read(self) -> frozenset[int]:
        """The memory of its arguments."""
        return frozenset(map(_memory, self.inputs))

    @cached_property
    def set(self) -> frozenset[int]:
        """The memory of its results, and what it changed."""
        return frozenset(map(_memory, (*self.outputs, *self.written)))

    def repeatable(self, device: torch.device) -> bool:
        """Return whether memory, shape and strides describe its tensors, on the device, throughout."""
        moves = self.name in ("set_", "resize_", "resize_as_")
        # Under a recorder they also compute vectors, by another algorithm.
        other = self.name in ("_linalg_svd", "_linalg_eigh", "linalg_eig")
        # More results than what it changes, such as batch normalisation's, would need other memory.
        more = bool(self.written) and self.set != frozenset(map(_memory, self.written))
        plain = all(_plain(t, device) for t in (*self.inputs, *self.outputs))
        return plain and not (moves or other or more)

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers."""
        return torch.Tag.nondeterministic_seeded in self.operation.tags

    @property
    def updates_statistics(self) -> bool:
        """Whether it is a batch normalisation that changes the running mean, which its schema does not say."""
        taken = _by_name(self.operation, self.args, self.kwargs)
        training = taken.get("training", taken.get("train", False))
        return bool(training) and isinstance(taken.get("running_mean"), Tensor) and "backward" not in self.name

    @property
    def describes(self) -> bool:
        """Whether it only describes the memory of its arguments in another way."""
        return not self.written and bool(self.outputs) and self.set <= self.read

    @property
    def decides(self) -> bool:
        """Whether the numbers of its arguments can change which operations follow, the shape of its result, or raise an error."""
        if self.name == "index":  # With positions, the shape of the result is theirs; a mask counts what is true.
            return any(t.dtype in (torch.bool, torch.uint8) for t in self.inputs[1:])
        if not self.outputs and not self.written:
            return self.name not in OF_SHAPES
        return torch.Tag.dynamic_output_shape in self.operation.tags


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records calls on a device, until one cannot be replayed or their results have more than `MOST` bytes.

    Attributes:
        read: The memory that Python read, see `_Reader`.
        made: The memory of the calls' results.
        lasting: Whether a call drew random numbers or changed other memory, so that the function cannot be called again.
    """

    supports_higher_order_operators = True

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.calls = device, list[_Call]()
        self.bytes, self.whole, self.lasting = 0, True, False
        self.made, self.read = set[int](), set[int]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from importing its compiler, which takes more than a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the operation and record the call."""
        kwargs = kwargs or {}
        given = _each(_alias, args), _each(_alias, kwargs)
        results = func(*args, **kwargs)
        if not isinstance(func, OpOverload):  # Such as `torch.cond`, which calls functions.
            self.give_up()
            return results
        call = _Call(func, *given, _each(_alias, results), tuple(_written(func, *given)))
        self.lasting |= call.draws or call.updates_statistics or not self.made.issuperset(_memories(call.written))
        self.made |= _memories(call.outputs) - _memories(call.inputs)
        if not self.whole:
            return results
        if not call.repeatable(self.device):
            self.give_up()
            return results
        if not call.describes:
            self.bytes += sum(t.untyped_storage().nbytes() for t in call.outputs)
        self.calls.append(call)
        if self.bytes > MOST:
            self.give_up()
        return results

    def give_up(self) -> None:
        """Record nothing more, and forget what was recorded."""
        self.calls, self.whole = [], False


class _Reader(TorchFunctionMode):
    """Tells a recorder which memory Python reads without an operation, and which functions cannot be recorded.

    Derivatives and hooks run without this mode, so that Python's own hook of calls sees what they call in C, without arguments.
    """

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __enter__(self) -> Self:
        """Begin to read."""
        super().__enter__()  # type: ignore[no-untyped-call]
        sys.setprofile(self._called)
        return self

    def __exit__(self, *raised: Any) -> None:
        """End."""
        sys.setprofile(None)
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def _called(self, frame: Any, event: str, function: Any) -> None:
        if event != "c_call":
            return
        if function.__name__ in READS:
            self._reads(getattr(function, "__self__", None))
        alone = frame.f_code is not _Reader.__torch_function__.__code__ and not torch._C._len_torch_function_stack()
        if function.__name__ in HANDS_OVER or (function.__name__ in READS_LISTS and alone):
            self.recorder.give_up()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function."""
        if getattr(func, "__name__", "") in READS_LISTS:
            self._reads([a for a in (*args, *(kwargs or {}).values()) if not isinstance(a, Tensor)])
        if func in ANOTHER_PATH:
            self.recorder.give_up()
        return func(*args, **(kwargs or {}))

    def _reads(self, tree: Any) -> None:
        # What cannot be replayed anyway, such as a tensor of `vmap`, has no memory to name.
        self.recorder.read |= _memories(_tensors(tree))


def _written(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    if not operation._schema.is_mutable or torch.Tag.inplace_view in operation.tags:
        return
    taken = _by_name(operation, args, kwargs)
    for argument in operation._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(taken.get(argument.name))


def _by_name(operation: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip((argument.name for argument in operation._schema.arguments), args, strict=False)) | kwargs


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


def _memories(tensors: Iterable[Tensor]) -> set[int]:
    return {_memory(t) for t in tensors if _known(t)}


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _recorded(
    function: Function, point: Tensor, changing: tuple[Tensor, ...], arena: Arena
) -> tuple[tuple[Tensor, ...] | None, _Replay | None]:
    """Return the function's results if it cannot be called again, and its replay if it has one."""
    if sys.getprofile() is not None:  # A profiler needs the hook of `_Reader`.
        return None, None
    own = point.detach().clone()
    recorder = _Recorder(point.device)
    try:
        with recorder, _Reader(recorder):
            results = function(own)
    except Exception:
        # Some operations fail under a recorder alone, such as `flex_attention`. The function's own errors occur again.
        return None, None
    if recorder.lasting:
        return results, None
    if not (recorder.whole and all(_plain(t, point.device) for t in results)):
        return None, None
    calls = _needed(recorder, (own, *changing), results)
    return None, None if calls is None else _Replay.of(calls, own, results, arena)


def _needed(recorder: _Recorder, points: Sequence[Tensor], results: Sequence[Tensor]) -> list[_Call] | None:
    """Return the calls that a replay repeats, in order; None if the function cannot be replayed."""
    calls = recorder.calls
    changed = {_memory(t) for call in calls for t in call.written}
    # What is changed is made again in each replay, so that it counts as dependent from its start.
    dependent, repeated = {*map(_memory, points), *changed}, []
    for call in calls:
        if not (call.read | call.set) & dependent:
            continue
        if call.read & dependent and call.decides:
            return None
        if not call.describes:
            dependent |= call.set
            repeated.append(call)
    if recorder.read & dependent:
        return None
    needed, kept = {_memory(t) for t in results}, []
    for call in reversed(repeated):
        if call.set & needed:
            needed |= call.read
            kept.append(call)
    return kept[::-1]


def _plain(tensor: Tensor, device: torch.device) -> bool:
    return _known(tensor) and tensor.device == device and not tensor.is_conj() and not tensor.is_neg()


def _known(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and not tensor.is_nested


@dataclass(frozen=True)
class _Replay:
    """The calls of a function in fixed memory.

    Args:
        calls: Functions with their arguments and keyword arguments.
        point: The memory of the function's argument.
        results: The memory of its results.
        arena: The owner of the memory.
    """

    calls: tuple[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], ...]
    point: Tensor
    results: tuple[Tensor, ...]
    arena: Arena

    @classmethod
    def of(cls, calls: Sequence[_Call], point: Tensor, results: Sequence[Tensor], arena: Arena) -> _Replay:
        """Place the results of the calls in the arena's memory."""
        place = _Placed(_blocks(calls, point, results, arena))
        return cls(tuple(_repeated(call, place) for call in calls), place(point), tuple(map(place, results)), arena)

    def takes(self, point: Tensor) -> bool:
        """Return whether the calls were recorded for such a point."""
        return _form(point) == _form(self.point) and not point.requires_grad

    def __call__(self, point: Tensor, wait: bool = True) -> tuple[Tensor, ...]:
        """Return the results of the function; () if it does not `wait` for a thread that uses the memory."""
        if not self.arena.lock.acquire(blocking=wait):
            return ()
        try:
            with torch.no_grad():
                self.point.copy_(point)
                for function, args, kwargs in self.calls:
                    function(*args, **kwargs)
                return tuple(result.clone() for result in self.results)
        finally:
            self.arena.lock.release()


def _form(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _blocks(
    calls: Sequence[_Call], point: Tensor, results: Sequence[Tensor], arena: Arena
) -> dict[int, torch.UntypedStorage]:
    """Return the block of the arena for each memory that a replay writes; those that are not needed at the same time share one."""
    first, last = {_memory(point): -1}, {_memory(point): len(calls)}
    sizes = {_memory(t): t.untyped_storage().nbytes() for t in (point, *(t for call in calls for t in call.outputs))}
    for number, call in enumerate(calls):
        for memory in call.set - call.read:
            first.setdefault(memory, number)
        last |= dict.fromkeys(call.read | call.set, number)
    last |= dict.fromkeys((_memory(t) for t in (point, *results)), len(calls))
    begin, end = _by_number(first), _by_number({memory: last[memory] for memory in first})
    free, blocks = list(arena.blocks), dict[int, torch.UntypedStorage]()
    for number in range(-1, len(calls)):
        for memory in begin.get(number, ()):
            blocks[memory] = arena.lend(free, sizes[memory], point.device)
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


def _repeated(call: _Call, place: _Placed) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return what writes the call's results into their memory."""
    args, kwargs, results = _each(place, call.args), _each(place, call.kwargs), _each(place, call.results)
    run = call.operation.op
    if call.written:
        return run, args, kwargs
    if call.name in COPIES:
        return results.copy_, (args[0],), {}
    leaves = _tensors(results)
    writing = _writing(call.operation)
    if writing is not None and len(writing[1]) == len(leaves):
        return writing[0].op, args, kwargs | dict(zip(writing[1], leaves, strict=True))
    if isinstance(results, Tensor):
        return lambda: results.copy_(run(*args, **kwargs)), (), {}

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
        self.changing, self.arena, self.lock = changing, Arena(), Lock()
        # With the number of their last call, the oldest one first.
        self.functions: dict[tuple[int, ...], tuple[Replayed, int]] = {}
        self.calls = 0

    def __call__(self, lanes: Tensor, function: Function) -> Replayed:
        """Return the function of points in the given lanes (v,), the same function for the same lanes."""
        key = tuple(lanes.tolist())
        with self.lock:
            self.calls += 1
            found, _ = self.functions.pop(key, (None, 0))
            if found is None:
                found = Replayed(function, self.arena, self.changing)
                if len(self.functions) == SETS:
                    oldest, (_, last) = next(iter(self.functions.items()))
                    if self.calls - last < IN_TURN:
                        return found
                    del self.functions[oldest]
            self.functions[key] = found, self.calls
            return found
