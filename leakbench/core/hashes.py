"""Hashes of plain data, tensors and files (sha256)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # Other hashes do not need PyTorch.
    from torch import Tensor

__all__ = ["checksum", "content_hash", "tensor_hash"]


def content_hash(value: Any) -> str:
    """Return the sha256 of plain data as canonical JSON: the identity of a cell."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def tensor_hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of named tensors: of their names, types, shapes and bytes, independent of their order."""
    import torch  # noqa: PLC0415

    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def checksum(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
