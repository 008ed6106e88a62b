"""Compressed data from strangers: what a few bytes may unpack to has a limit, since a thousandfold is easily made."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["check_npz", "check_parquet", "check_table", "ungzipped"]

LARGEST = 1 << 30
"""Bytes of one file."""
FOLD, SLACK = 200, 1 << 24
"""By how much data compress that are not made for it, and what a small file may unpack to in any case."""
MOST_CELLS = 200_000_000
"""Rows times columns of a table."""


def most_of(size: int) -> int:
    """Return how many bytes a file of `size` may unpack to."""
    return min(LARGEST, SLACK + FOLD * size)


def ungzipped(packed: bytes) -> bytes:
    """Return what gzip packed; raises ValueError for more than it should be, EOFError and zlib.error for what is no whole gzip."""
    most, found, left = most_of(len(packed)), bytearray(), packed
    while left:
        stream = zlib.decompressobj(wbits=31)
        found += stream.decompress(left, most + 1 - len(found))
        if len(found) > most:
            raise ValueError(f"{len(packed):,} bytes unpack to more than {most:,}")
        if not stream.eof:
            raise EOFError("it ends in the middle")
        left = stream.unused_data.lstrip(b"\0")
    return bytes(found)


def check_npz(path: Path) -> None:
    """Raise ValueError for a .npz whose arrays, as their heads have them, are more than it should hold, or of objects."""
    most, size = most_of(path.stat().st_size), 0
    with zipfile.ZipFile(path) as file:
        for entry in file.infolist():
            size += entry.file_size
            with file.open(entry) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, kind = read(stream)
            if kind.hasobject:
                raise ValueError(f"{entry.filename[:40]!r} holds objects")
            if math.prod(shape) * kind.itemsize > entry.file_size:
                raise ValueError(f"{entry.filename[:40]!r} holds less than its head says")
    if size > most:
        raise ValueError(f"unpacks to {size:,} bytes, expected at most {most:,}")


def check_parquet(path: Path) -> None:
    """Raise ValueError for a .parquet that says it holds more than a table of rows does."""
    with pq.ParquetFile(path) as file:
        check_table(file)


def check_table(file: pq.ParquetFile) -> None:
    """Likewise, of one that is open."""
    held: pa.FileMetaData = file.metadata
    cells = held.num_rows * max(1, held.num_columns)
    size = sum(held.row_group(n).total_byte_size for n in range(held.num_row_groups))
    if cells > MOST_CELLS or size > LARGEST:
        raise ValueError(f"{cells:,} values in {size:,} bytes, expected at most {MOST_CELLS:,} in {LARGEST:,}")
