"""Checks of files: every byte is compared with a published sha256 before it is used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from leakbench.core.errors import InputError
from leakbench.core.part import Inside, part
from leakbench.core.recipe import nested

__all__ = ["AFile", "Check", "File", "Sha256", "checked_bytes", "identity", "sha256_of", "within"]

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@part("file")
class File:
    """One file of a data set."""

    file: Annotated[Inside, Field(description="Name within the set's folder.")]
    sha256: Annotated[Sha256, Field(description="Hash of the content.")]


AFile = Annotated[File, nested(File)]
"""The type of a field with a File."""


@dataclass(frozen=True)
class Check:
    """The comparison of a file with its expected content.

    Args:
        file: Name within the set's folder.
        expected: Accepted sha256 values.
        got: The file's sha256; empty if it is missing; a message if it cannot be read.
    """

    file: str
    expected: tuple[str, ...]
    got: str

    @property
    def ok(self) -> bool:
        """Whether the content is accepted."""
        return self.got in self.expected


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's content in hexadecimal; raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def check_files(folder: Path | None, files: Iterable[File]) -> tuple[Check, ...]:
    """Compare each file in `folder` with its checksum; nothing is raised."""

    def found(file: File) -> str:
        path = within(folder) / file.file
        try:
            return sha256_of(path)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"cannot be read: {error.strerror}"

    return tuple(Check(f.file, (f.sha256,), found(f)) for f in files)


def checked_bytes(folder: Path | None, file: File) -> bytes:
    """Return the content of a file with the right checksum. Parse these bytes, since a second reading may differ.

    Raises:
        InputError: If the file is missing, cannot be read, or has another content.
    """
    path = within(folder) / file.file
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: missing; fetch it again with `leakbench data fetch`") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    got = hashlib.sha256(content).hexdigest()
    if got != file.sha256:
        raise InputError(
            f"{path}: {len(content):,} bytes with sha256 {got}, expected {file.sha256}: cut short or changed;"
            " delete it and fetch it again"
        )
    return content


def identity(files: Iterable[File]) -> str:
    """Return one sha256 over `<sha256>  <file>` lines in the order of the files' names."""
    lines = sorted((f.file, f.sha256) for f in files)
    return hashlib.sha256("".join(f"{sha}  {name}\n" for name, sha in lines).encode()).hexdigest()


def within(folder: Path | None) -> Path:
    """Return the folder of a set that is not embedded; raises InputError for None, if its recipe has no origin."""
    if folder is None:
        raise InputError("origin: missing from the recipe, expected the locations of the set's files")
    return folder
