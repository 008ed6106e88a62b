"""Copies of a user's objects, on which leakbench computes so that nothing of the user's changes."""

from __future__ import annotations

import copy
import copyreg
import io
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from leakbench.core.imported import failing_as

__all__ = ["copied", "differentiated", "protect", "unchanged", "working_copies"]

T = TypeVar("T")

LIBRARIES = ("torch", "torchvision", "timm", "leakbench")
"""Packages whose functions and classes keep no state of a training."""

CONTAINERS = (list, dict, set, deque, bytearray)

CHANGEABLE = (*CONTAINERS, Tensor, np.ndarray, torch.Generator, np.random.Generator, random.Random, nn.Module)
"""Types of variables and of attributes of a class that a network's code can change in place."""

WHOLE = (type, ModuleType, BuiltinFunctionType, CodeType, Tensor, torch.Generator)
"""Types of values that are not taken apart."""

PLAIN = nn.Module()
"""A module with the attributes of every module."""

BY_PARTS = {type(None), bool, int, float, complex, str, bytes, list, dict, set, frozenset, tuple}
"""Types that pickle takes apart without asking."""


def copied(model: T) -> T:
    """Return a copy of a module, or of several in a tuple, with the functions and objects that they hold.

    Unlike `copy.deepcopy`, it copies tensors of a graph, as kept activations, without the graph, variables of hooks, and
    attributes of a class that can be changed in place. What cannot be copied, as an open file, is shared.

    Raises:
        InputError: For a module that cannot be copied.
    """
    with failing_as("model: it cannot be copied"):
        file = io.BytesIO()
        copier = _Copier(file)
        copier.dump(model)
        file.seek(0)
        found: T = _Builder(file, copier.values).load()
    return found


@contextmanager
def differentiated() -> Iterator[None]:
    """Record gradients inside the block, also for a caller in `torch.no_grad` or `torch.inference_mode`."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def working_copies(*given: Any) -> Iterator[tuple[Any, ...]]:
    """Yield copies of a model, a loss and so on, to compute with inside the block; nothing of the user's changes.

    Raises:
        InputError: As `copied`.
    """
    with unchanged(*given):
        yield copied(given)


@contextmanager
def unchanged(*given: Any) -> Iterator[None]:
    """Restore after the block what copies of models and the user's training have in common.

    These are the attributes of the modules' classes, the random states of PyTorch, NumPy and Python, the gradient mode and the
    default type.
    """
    classes = {c for one in given if isinstance(one, nn.Module) for m in one.modules() for c in _classes(m)}
    before = [(c, dict(vars(c))) for c in classes]
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    grad, dtype, cache = torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_cache_enabled()
    # Autocast would give the training weights that were cast without a graph here.
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(cache)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        if on_gpu:
            torch.cuda.set_rng_state_all(on_gpu)
        for kind, attributes in before:
            for name in vars(kind).keys() - attributes.keys():
                delattr(kind, name)
            for name, value in attributes.items():
                if vars(kind).get(name) is not value:
                    setattr(kind, name, value)


def protect(model: nn.Module, x: Tensor) -> None:
    """Add hooks to a network, where a forward pass of x (n, *s) needs them, so that no call changes its input or its attributes.

    The network then computes the same for the same input, with the attributes and buffers that it has now. Objects of a user's own
    class within an attribute are not restored.
    """
    trial, entered = copied((model,))[0], x.clone()
    version, state = entered._version, _state(trial)
    with torch.no_grad(), unchanged(trial):
        trial(entered)
    if entered._version != version or not torch.equal(entered, x):
        model.register_forward_pre_hook(_clone_inputs)
    if _state(trial) != state:
        saved = _SavedState()
        model.register_forward_pre_hook(saved.save)
        model.register_forward_hook(saved.restore, always_call=True)


def _clone_inputs(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(one.clone() if isinstance(one, Tensor) else one for one in inputs)


def _state(model: nn.Module) -> list[Any]:
    """Return what differs after a change of an attribute or a buffer of the modules that a user wrote."""
    values = [(m, n, v) for m in model.modules() if _classes(m) for n, v in (vars(m) | m._buffers).items()]
    return [
        (name, id(v), v._version if isinstance(v, Tensor) else len(v) if isinstance(v, CONTAINERS) else 0)
        for _, name, v in values
    ]


@dataclass
class _SavedState:
    """Attributes and buffers of the modules that a user wrote, as each call of the network found them.

    Args:
        calls: Of each call that has not ended, (module, attributes, buffers).
    """

    calls: list[list[tuple[nn.Module, dict[str, Any], dict[str, Any]]]] = field(default_factory=list)

    def save(self, model: nn.Module, inputs: Any) -> None:
        """Let a call work on copies of tensors and containers, as a hook before it."""
        self.calls.append([(m, dict(vars(m)), dict(m._buffers)) for m in model.modules() if _classes(m)])
        for module, attributes, buffers in self.calls[-1]:
            for name, value in attributes.items():
                if isinstance(value, (Tensor, *CONTAINERS)) and name not in vars(PLAIN):
                    vars(module)[name] = value.clone() if isinstance(value, Tensor) else copy.copy(value)
            module._buffers.update({n: None if b is None else b.clone() for n, b in buffers.items()})

    def restore(self, model: nn.Module, inputs: Any, output: Any) -> None:
        """Restore the attributes and buffers, as a hook after the call."""
        for module, attributes, buffers in self.calls.pop():
            for name in vars(module).keys() - attributes.keys():
                del vars(module)[name]
            vars(module).update(attributes)
            for name in module._buffers.keys() - buffers.keys():
                del module._buffers[name]
            module._buffers.update(buffers)


class _Copier(pickle.Pickler):
    """Takes objects apart; `values` are what the copy has as a whole: shared values, and copies of tensors and arrays."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.values: list[Any] = []
        self._places: dict[int, int | None] = {}
        self._reduced: dict[int, Any] = {}
        self._alive: list[Any] = []  # The keys above are ids.
        self._memo: dict[int, Any] = {}
        self._worlds: dict[int, dict[str, Any]] = {}

    def persistent_id(self, value: Any) -> int | None:
        """Return the place of a value that is copied or shared as a whole; None for one that is taken apart."""
        if id(value) in self._places:
            return self._places[id(value)]
        return None if type(value) in BY_PARTS else self._place(value)

    def reducer_override(self, value: Any) -> Any:
        """Return how a value is built from its parts."""
        return self._reduced.get(id(value), NotImplemented)

    def _place(self, value: Any) -> int | None:
        self._alive.append(value)
        reduced = self._parts(value)
        if reduced is None:
            return self._share(value, self._whole(value))
        self._reduced[id(value)], self._places[id(value)] = reduced, None
        return None

    def _whole(self, value: Any) -> Any:
        """Return a copy of a value that is not taken apart; the value itself if it is shared."""
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, torch.Generator):
            return value.clone_state()
        if isinstance(value, np.ndarray) and not isinstance(value, np.memmap):
            return value.copy()
        if isinstance(value, type) or not hasattr(type(value), "__deepcopy__"):
            return value
        try:
            return copy.deepcopy(value, self._memo)
        except Exception:
            if isinstance(value, nn.Module):
                raise
            return value

    def _parts(self, value: Any) -> Any:
        """Return how a value is built from its parts, as `object.__reduce__` does; None for one that is not taken apart."""
        special: dict[type, Callable[[Any], Any]] = {
            FunctionType: self._function,
            CellType: _of_cell,
            MethodType: _of_method,
        }
        if type(value) in special:
            return special[type(value)](value)
        if isinstance(value, nn.Module) and is_parametrized(value):  # Its class refuses to be pickled.
            return self._module(value, (copyreg.__newobj__, (type(value),), dict(vars(value))))  # type: ignore[attr-defined]
        array = isinstance(value, np.ndarray) and not value.dtype.hasobject
        # A copy of an object with `__del__` would free what the original uses.
        if array or isinstance(value, WHOLE) or any(hasattr(type(value), n) for n in ("__deepcopy__", "__del__")):
            return None
        try:
            reduced = value.__reduce_ex__(5)
        except Exception:
            if isinstance(value, nn.Module):
                raise
            return None
        if isinstance(value, nn.Module):
            return self._module(value, reduced)
        return None if isinstance(reduced, str) else reduced

    def _share(self, value: Any, found: Any) -> int:
        self.values.append(found)
        self._alive.append(value)
        place = self._places[id(value)] = len(self.values) - 1
        return place

    def _tensor(self, value: Tensor) -> Tensor:
        try:
            found = copy.deepcopy(value if value.is_leaf else value.detach(), self._memo)
        except Exception:  # A tensor that outlived its transform has no numbers left.
            return value
        # Accumulated gradients belong to the training.
        if found.is_leaf and found.grad is not None:
            found.grad = None
        return found

    def _module(self, module: nn.Module, reduced: Any) -> Any:
        """Return the parts of a module, with what its class has in common with other modules."""
        build, args, state, *more = (*reduced, None)[:3] if len(reduced) < 3 else reduced
        if not isinstance(state, dict):
            return reduced
        common: dict[str, Any] = {
            name: value
            for kind in reversed(_classes(module))
            for name, value in vars(kind).items()
            if isinstance(value, CHANGEABLE) and not name.startswith("__")
        }
        forward = getattr(type(module), "forward", None)
        if isinstance(forward, FunctionType) and self._variables(forward):
            common["forward"] = MethodType(forward, module)
        return (build, args, {**common, **state}, *more)

    def _variables(self, function: FunctionType) -> dict[str, Any]:
        """Return the global variables that a function uses and that can be changed in place."""
        everything = function.__globals__
        if str(everything.get("__name__")).partition(".")[0] in LIBRARIES:
            return {}
        known = {n: everything[n] for n in function.__code__.co_names if n in everything}
        return {n: value for n, value in known.items() if isinstance(value, CHANGEABLE)}

    def _function(self, function: FunctionType) -> Any:
        """Return the parts of a function with variables of its own; None for one that has none, which is shared."""
        everything, variables = function.__globals__, self._variables(function)
        library = str(everything.get("__name__")).partition(".")[0] in LIBRARIES
        if library or not (function.__closure__ or variables):
            return None
        if id(everything) not in self._worlds:
            world = self._worlds[id(everything)] = dict(everything)
            self._share(world, world)
        args = (function.__code__, self._worlds[id(everything)], function.__name__, None, function.__closure__)
        names = ("__qualname__", "__doc__", "__defaults__", "__kwdefaults__")
        state = ({name: getattr(function, name) for name in names}, vars(function), variables)
        return FunctionType, args, state, None, None, _finish


class _Builder(pickle.Unpickler):
    """Builds the copy."""

    def __init__(self, file: io.BytesIO, values: list[Any]) -> None:
        super().__init__(file)
        self._values = values

    def persistent_load(self, pid: int) -> Any:
        """Return a value that was copied or shared as a whole."""
        return self._values[pid]


def _classes(module: nn.Module) -> list[type]:
    """Return the classes of a module that a user wrote, those that override others first."""
    return [c for c in type(module).__mro__ if c is not object and c.__module__.partition(".")[0] not in LIBRARIES]


def _of_method(method: MethodType) -> Any:
    return MethodType, (method.__func__, method.__self__)


def _of_cell(cell: CellType) -> Any:
    """Return the parts of a variable of a function around another one."""
    try:
        return CellType, (), (cell.cell_contents,), None, None, _fill
    except ValueError:  # Not assigned yet.
        return CellType, ()


def _fill(cell: CellType, contents: tuple[Any]) -> None:
    cell.cell_contents = contents[0]


def _finish(function: FunctionType, state: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    about, attributes, variables = state
    for name, value in about.items():
        setattr(function, name, value)
    vars(function).update(attributes)
    function.__globals__.update(variables)
