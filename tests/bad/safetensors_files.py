"""Updates, weights and truths in .safetensors and .npz files that are wrong or hostile."""

from __future__ import annotations

import functools
import io
import json
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from tests.bad.case import Case, written

BUILD = """
import torch
from torch import nn

def build():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))
"""
FILES = "--before before.safetensors --truth truth.safetensors"
ATTACK = "attack --model network:build --shape 1,8,8 --classes 10 --attack cpl"

Arrays = dict[str, torch.Tensor]


@functools.cache
def _files() -> Mapping[str, bytes]:
    """Return a network's weights, one example's gradient, and the example."""
    scope: dict[str, Any] = {}
    exec(BUILD, scope)
    model, rng = scope["build"](), torch.Generator().manual_seed(2)
    x, y = torch.rand(1, 1, 8, 8, generator=rng), torch.randint(10, (1,), generator=rng)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(torch.nn.functional.cross_entropy(model(x), y), parameters)
    return {
        "before.safetensors": save({n: p.detach() for n, p in zip(names, parameters, strict=True)}),
        "update.safetensors": save(dict(zip(names, found, strict=True))),
        "truth.safetensors": save({"inputs": x, "labels": y}),
    }


def whole(folder: Path) -> None:
    """Write the three files and the module of the network."""
    written("network.py", BUILD)(folder)
    for name, content in _files().items():
        written(name, content)(folder)


def _raw(content: bytes, *says: str, name: str = "update") -> Case:
    file = f"{name}.safetensors"
    return Case(
        f"{ATTACK} {FILES} --update update.safetensors",
        (file if not says else says[0], *says[1:]),
        lambda folder: (whole(folder), written(file, content)(folder)),
    )


def _arrays(change: Callable[[Arrays], Arrays], *says: str, name: str = "update") -> Case:
    def write(folder: Path) -> None:
        whole(folder)
        written(f"{name}.safetensors", save(dict(change(load(_files()[f"{name}.safetensors"])))))(folder)

    return Case(f"{ATTACK} {FILES} --update update.safetensors", (name, *says), write)


def _other(name: str, content: bytes, *says: str) -> Case:
    return Case(f"{ATTACK} --update {name}", (name, *says), lambda f: (whole(f), written(name, content)(f)))


def _header(head: Any, body: bytes = b"", long: int | None = None) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(text) if long is None else long) + text + body


def _zipped(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return stream.getvalue()


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def _encrypted(content: bytes) -> bytes:
    """Return a zip whose members say that they are encrypted."""
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = content.find(mark)
        while place >= 0:
            content = content[: place + at] + b"\x01" + content[place + at + 1 :]
            place = content.find(mark, place + 1)
    return content


def _bias(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {"1.bias": change(arrays["1.bias"])}


F32 = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}

CASES = (
    _raw(b""),
    _raw(b"abc"),
    _raw(b"\0" * 8),
    _raw(_header(b"no JSON")),
    _raw(_header({}, long=2**63)),
    _raw(_header({}, long=10**9)),
    _raw(_header([])),
    _raw(_header({"a": 3})),
    _raw(_header({"a": F32}, b"\0" * 15)),
    _raw(_header({"a": F32}, b"\0" * 17)),
    _raw(_header({"a": F32, "b": {**F32, "data_offsets": [8, 24]}}, b"\0" * 24)),
    _raw(_header({"a": {**F32, "data_offsets": [16, 0]}}, b"\0" * 16)),
    _raw(_header({"a": {**F32, "dtype": "F33"}}, b"\0" * 16)),
    _raw(_header({"a": {**F32, "shape": [5]}}, b"\0" * 16)),
    _raw(_header({"a": {**F32, "shape": [2**62, 2**62]}}, b"\0" * 16)),
    _raw(_header({"a": {**F32, "shape": [-4]}}, b"\0" * 16)),
    _raw(_header(b'{"a":' * 10**4)),
    _raw(_files()["update.safetensors"][:-9]),
    _raw(_header({}), "update.safetensors", "no arrays"),
    _raw(b"abc", name="before"),
    _raw(b"abc", name="truth"),
    _arrays(lambda a: {n: t for n, t in a.items() if n != "1.bias"}, "1.bias", "missing"),
    _arrays(lambda a: a | {"extra": torch.ones(2)}, "extra"),
    _arrays(_bias(lambda t: t[:3].clone()), "1.bias", "(3,)", "(16,)"),
    _arrays(_bias(lambda t: t * torch.nan), "1.bias", "not finite"),
    _arrays(_bias(lambda t: t / 0), "1.bias", "not finite"),
    _arrays(_bias(lambda t: t.long()), "1.bias", "int64"),
    _arrays(_bias(lambda t: t > 0), "1.bias", "bool"),
    _arrays(_bias(lambda t: t.to(torch.complex64)), "1.bias", "complex"),
    _arrays(lambda a: {n: t for n, t in a.items() if n != "3.weight"}, "3.weight", name="before"),
    _arrays(lambda a: {"inputs": a["inputs"]}, "labels", name="truth"),
    _arrays(lambda a: a | {"inputs": a["inputs"] * 255}, "[0, 1]", name="truth"),
    _arrays(lambda a: a | {"inputs": a["inputs"] * torch.nan}, "inputs", name="truth"),
    _arrays(lambda a: a | {"labels": a["labels"] * 0 + 12}, "labels", "12", name="truth"),
    _arrays(lambda a: a | {"labels": a["labels"] * 0 - 1}, "labels", "-1", name="truth"),
    _arrays(lambda a: a | {"labels": a["labels"].float()}, "labels", "float32", name="truth"),
    _arrays(lambda a: a | {"inputs": a["inputs"][..., :7].clone()}, "inputs", "8", name="truth"),
    _other("u.npz", b"PK"),
    _other("u.npz", _zipped({})),
    _other("u.npz", _zipped({"a.txt": b"words"})),
    _other("u.npz", _zipped({"a.npy": b"\x93NUMPY"})),
    _other("u.npz", _zipped({"a.npy": _npy(np.array([{}], dtype=object))})),
    _other("u.npz", _zipped({"a.npy": _npy(np.array(["x"]))})),
    _other("u.npz", _zipped({"a.npy": _npy(np.zeros(200_000_000, np.uint8))}, zipfile.ZIP_DEFLATED)),
    _other("u.npz", _encrypted(_zipped({"a.npy": _npy(np.zeros(3))}))),
    _other("u.pt", b"PK", "pickle"),
    _other("u.npy", _npy(np.zeros(3)), "pickle"),
    _other("u.csv", b"1,2", "safetensors"),
    Case(f"{ATTACK} --update nowhere.safetensors", ("nowhere.safetensors",), whole),
)
