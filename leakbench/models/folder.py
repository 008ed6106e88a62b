"""Networks in a folder of Hugging Face: their names, the identity of their files, and their weights.

`hf:FOLDER` is what a user writes. A cell has `hf:FOLDER@SHA256`, so that files that change during a run are noticed. The identity
of a cell has the hash alone, so that the same files in another place are the same network.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.core.hashes import checksum, content_hash

__all__ = ["FOLDER", "TOKENS", "TYPES", "NetworkFolder", "checksum_of"]

FOLDER = "hf:"
"""Start of the name of a network in a folder of Hugging Face, as `hf:path/to/gpt2`."""

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

TOKENS = ("tokenizer.json", "vocab.txt")
"""Files of a tokenizer, see `leakbench.data.vocabulary`."""

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")
"""Weights in formats that can run code, or that are not read."""

HEADS = ("lm_head.weight", "embed_out.weight")
"""Names of the layer that names the next token, if it is not tied to the embeddings."""

TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of weights; quantized ones need a scale, which is not read."""

FORMER = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
"""Ends of names in old files of BERT."""


@dataclass(frozen=True)
class NetworkFolder:
    """A folder with a network.

    Args:
        path: The folder.
        sha256: Hash of its files when the cell was planned; empty for a name that a user wrote.
    """

    path: Path
    sha256: str = ""

    @classmethod
    def of(cls, name: str) -> NetworkFolder | None:
        """Return the folder of a network's name, `hf:FOLDER` or `hf:FOLDER@SHA256`; None for another name."""
        if not name.startswith(FOLDER):
            return None
        path, _, sha256 = name.removeprefix(FOLDER).rpartition("@")
        if not (path and re.fullmatch("[0-9a-f]{64}", sha256)):
            path, sha256 = name.removeprefix(FOLDER), ""
        return cls(Path(path), sha256)

    def __str__(self) -> str:
        return f"{FOLDER}{self.path}"

    def pinned(self, field: str = "model") -> str:
        """Return the name with the hash of the files.

        Args:
            field: The option that names the network, for the message.

        Raises:
            InputError: For a folder without a network, or files that are not those of the hash.
        """
        return f"{self}@{self.check(field)}"

    def check(self, field: str = "model") -> str:
        """Return the hash of the files; raises InputError as `pinned` does."""
        try:
            if not self.path.is_dir():
                raise InputError(f"{field}: {str(self)!r}: no such folder; give a folder with a {CONFIG}")
            if not (self.path / CONFIG).is_file():
                raise InputError(f"{field}: {str(self)!r}: the folder has no {CONFIG}; give a folder of Hugging Face")
            found = content_hash({path.name: checksum_of(path) for path in self.files(field)})
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(f"{field}: {str(self)!r}: cannot be read: {error}") from None
        if self.sha256 not in ("", found):
            raise InputError(
                f"{field}: {str(self)!r}: its files have changed: sha256 {found[:8]}, expected {self.sha256[:8]}; start a new run"
            )
        return found

    def files(self, field: str = "model") -> tuple[Path, ...]:
        """Return the files that results depend on: the configuration, the weights and the tokenizer."""
        there = [path for name in (CONFIG, *TOKENS) if (path := self.path / name).is_file()]
        return (*there, *self._weights(field))

    def _weights(self, field: str) -> tuple[Path, ...]:
        if (self.path / WEIGHTS).is_file():
            return (self.path / WEIGHTS,)
        if (index := self.path / INDEX).is_file():
            try:
                parts = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InputError(f"{field}: {str(self)!r}: {INDEX} is not an index of weights") from None
            if not all(
                isinstance(part, str) and part == Path(part).name and (self.path / part).is_file() for part in parts
            ):
                raise InputError(f"{field}: {str(self)!r}: {INDEX} names files that are not in the folder")
            return tuple(self.path / part for part in parts)
        others = sorted(path.name for pattern in ("*.safetensors", *PICKLES) for path in self.path.glob(pattern))
        if others:
            raise InputError(f"{field}: {str(self)!r}: got the weights {others[0]}, expected {WEIGHTS}; convert them")
        return ()

    @property
    def trained(self) -> bool:
        """Whether the folder has weights; with a configuration alone, first weights are drawn."""
        return bool(self._weights("model"))

    def load_head(self, head: nn.Linear) -> None:
        """Read the weights of the layer that names the next token; raises InputError if the files have none of this shape."""
        found = [self._checked(name, tensor) for name, tensor in self.tensors().items() if name in HEADS]
        if not found or found[0].shape != head.weight.shape:
            got = str(tuple(found[0].shape)) if found else "none"
            raise InputError(
                f"loss: {str(self)!r}: the weights {HEADS[0]!r} of next tokens: got {got}, expected {tuple(head.weight.shape)}; "
                "try --loss class"
            )
        with torch.no_grad():
            head.weight.copy_(found[0])

    def load(self, model: nn.Module) -> None:
        """Read the weights of a transformer without a head into `model`, in its floating-point type.

        Raises:
            InputError: For a damaged file, or weights that are missing, not finite, or of another shape or type.
        """
        tensors = {_own_name(name, model): (name, tensor) for name, tensor in self.tensors().items()}
        for name, parameter in model.named_parameters():
            written, tensor = tensors.get(name, (name, None))
            if tensor is None or tensor.shape != parameter.shape:
                got = "none" if tensor is None else str(tuple(tensor.shape))
                raise InputError(
                    f"model: {str(self)!r}: weights {name!r}: got {got}, expected {tuple(parameter.shape)}"
                )
            with torch.no_grad():
                parameter.copy_(self._checked(written, tensor))

    def _checked(self, name: str, tensor: Tensor) -> Tensor:
        """Return a weight; raises InputError, which names its file, for a quantized one or one that is not finite."""
        if tensor.dtype not in TYPES:
            got, accepted = str(tensor.dtype).removeprefix("torch."), "float16, bfloat16, float32 or float64"
            raise InputError(
                f"model: {self._file_of(name)}: weights {name!r}: got {got}, expected {accepted}; convert them"
            )
        if not tensor.isfinite().all():
            raise InputError(
                f"model: {self._file_of(name)}: weights {name!r}: got NaN or infinity, expected finite numbers; save them again"
            )
        return tensor

    def _file_of(self, name: str) -> Path:
        """Return the last file with a weight, which is the one that `tensors` reads it from."""
        return next(path for path in reversed(self._weights("model")) if name in load_file(path))

    def tensors(self) -> dict[str, Tensor]:
        """Return all weights, under their names in the files."""
        found: dict[str, Tensor] = {}
        for path in self._weights("model"):
            try:
                found |= load_file(path)
            except (SafetensorError, OSError) as error:
                raise InputError(f"model: {path}: cannot be read: {' '.join(str(error).split())}") from None
        return found


def checksum_of(path: Path) -> str:
    """Return the sha256 of a file, which is cached while its size and its time of change are the same; raises OSError."""
    return _checksum(path, path.stat().st_size, path.stat().st_mtime_ns)


@lru_cache
def _checksum(path: Path, size: int, changed: int) -> str:
    """Return the sha256 of a file, which is cached for a size and a time of change."""
    return checksum(path)


def _own_name(name: str, model: nn.Module) -> str:
    """Return the name in a transformer without a head of a weight in a file."""
    prefix: Any = getattr(model, "base_model_prefix", "")
    name = name.removeprefix(f"{prefix}.") if prefix else name
    for former, now in FORMER.items():
        if name.endswith(former):
            return name.removesuffix(former) + now
    return name
