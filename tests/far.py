"""A fake second device, to find operations on tensors of two devices without a GPU: far tensors are CPU tensors under another name.

It uses the name of PyTorch's device `meta`, whose tensors have no numbers; far tensors have numbers. An operation on a far tensor
and a CPU tensor raises, as with CUDA. Single numbers and indices are excepted, which CUDA also takes from the CPU. NumPy refuses
far tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["FAR", "Elsewhere"]

FAR = torch.device("meta")

INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")
"""Operations that take indices of the CPU on every device."""


class Far(torch.Tensor):
    """A tensor on the fake device; near: the same tensor on the CPU."""

    near: torch.Tensor

    @staticmethod
    def __new__(cls, near: torch.Tensor) -> Far:
        layout = {"strides": near.stride(), "storage_offset": near.storage_offset(), "dtype": near.dtype}
        found = torch.Tensor._make_wrapper_subclass(cls, near.size(), device=FAR, **layout)
        found.near = near
        return found

    def tolist(self) -> Any:
        return self.near.tolist()

    def new_tensor(self, data: Any, **_: Any) -> torch.Tensor:
        return torch.tensor(data, dtype=self.dtype).to(FAR)

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a far tensor to numpy; use Tensor.cpu() first")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})


class Elsewhere(TorchDispatchMode):
    """While this mode is active, tensors put on the device `FAR` are far tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {})


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    name = func.overloadpacket.__name__
    if _mixed(name, args, given):
        where = ", ".join(f"{'far' if isinstance(x, Far) else 'cpu'} {tuple(x.shape)}" for x in given)
        raise RuntimeError(f"{func}: tensors of two devices: {where}")
    far, asked = any(isinstance(x, Far) for x in given), kwargs.get("device")
    if asked is not None:
        far, kwargs = torch.device(asked) == FAR, {**kwargs, "device": torch.device("cpu")}
    near: Callable[[Any], Any] = lambda x: x.near if isinstance(x, Far) else x  # noqa: E731
    done = func(*tree_map(near, args), **tree_map(near, kwargs))
    if name.endswith("_"):
        return args[0]
    if not far:
        return done
    same = {id(x.near): x for x in given if isinstance(x, Far)}
    return tree_map(lambda x: same[id(x)] if id(x) in same else Far(x) if isinstance(x, torch.Tensor) else x, done)


def _mixed(name: str, args: Any, given: list[torch.Tensor]) -> bool:
    if name in ("copy_", "_to_copy"):
        return False
    if name in INDEXED:
        whole = [args[0], *(x for x in args[2:3] if isinstance(x, torch.Tensor) and x.dim())]
        indices = [] if isinstance(args[0], Far) else [i for i in args[1] if i is not None]
        given = [*whole, *indices]
    several = [isinstance(x, Far) for x in given if isinstance(x, Far) or x.dim()]
    return len(set(several)) > 1
