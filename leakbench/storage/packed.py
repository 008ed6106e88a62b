"""Limits for untrusted compressed data, since a small file can unpack to a thousand times its size."""

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
"""Largest number of unpacked bytes of one file."""
FOLD, SLACK = 200, 1 << 24
"""Largest compression of ordinary data, and the number of unpacked bytes that every file may have."""
MOST_CELLS = 200_000_000
"""Largest number of rows times columns of a table."""


def most_of(size: int) -> int:
    """Return the largest number of unpacked bytes of a file of `size` bytes."""
    return min(LARGEST, SLACK + FOLD * size)


def ungzipped(packed: bytes) -> bytes:
    """Return unpacked gzip data.

    Raises:
        ValueError: For more bytes than the limit.
        EOFError: For truncated data; also zlib.error for other data.
    """
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
    """Raise ValueError for a .npz with arrays of objects, or arrays whose headers state more bytes than the limit."""
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
    """Raise ValueError for a .parquet whose metadata state more values or bytes than the limit."""
    with pq.ParquetFile(path) as file:
        check_table(file)


def check_table(file: pq.ParquetFile) -> None:
    """Raise ValueError for an open .parquet file as `check_parquet` does."""
    held: pa.FileMetaData = file.metadata
    cells = held.num_rows * max(1, held.num_columns)
    size = sum(held.row_group(n).total_byte_size for n in range(held.num_row_groups))
    if cells > MOST_CELLS or size > LARGEST:
        raise ValueError(f"{cells:,} values in {size:,} bytes, expected at most {MOST_CELLS:,} in {LARGEST:,}")
