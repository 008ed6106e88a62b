"""Checks of files: every byte is compared with a published sha256 before it is used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Protocol

from pydantic import Field

from leakbench.core.errors import InputError
from leakbench.core.part import Inside, part
from leakbench.core.recipe import nested

__all__ = [
    "AFile",
    "AnMd5File",
    "Check",
    "Checked",
    "File",
    "Md5File",
    "Sha256",
    "check_files",
    "checked_bytes",
    "identity",
    "identity_of",
    "lines_of",
    "sha256_of",
    "within",
]

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Checked(Protocol):
    """A file with a published checksum."""

    algorithm: ClassVar[str]

    @property
    def file(self) -> str:
        """Name within the set's folder."""

    @property
    def checksum(self) -> str:
        """Checksum of the content by `algorithm`, in hexadecimal."""


@part("file")
class File:
    """One file of a data set."""

    algorithm: ClassVar[str] = "sha256"

    file: Annotated[Inside, Field(description="Name within the set's folder.")]
    sha256: Annotated[Sha256, Field(description="Hash of the content.")]

    @property
    def checksum(self) -> str:
        """The sha256."""
        return self.sha256


@part("md5_file")
class Md5File:
    """One file of a data set whose source publishes only an MD5.

    An MD5 finds damage. It does not stop an attacker that prepares two files with the same MD5. So a format with such files reads
    nothing that can run code, and the identity of its data is computed from the sha256 of the files that were read.
    """

    algorithm: ClassVar[str] = "md5"

    file: Annotated[Inside, Field(description="Name within the set's folder.")]
    md5: Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="MD5 of the content.")]

    @property
    def checksum(self) -> str:
        """The MD5."""
        return self.md5


AFile = Annotated[File, nested(File)]
"""The type of a field with a File."""

AnMd5File = Annotated[Md5File, nested(Md5File)]
"""The type of a field with an Md5File."""


@dataclass(frozen=True)
class Check:
    """The comparison of a file with its expected content.

    Args:
        file: Name within the set's folder.
        expected: Accepted checksums, or the expected number of files; empty if nothing is expected, so that nothing is compared.
        got: The file's checksum, or the number of files; empty if it is missing; a message if it cannot be read.
    """

    file: str
    expected: tuple[str, ...]
    got: str

    @property
    def ok(self) -> bool:
        """Whether the content is accepted, or nothing is expected."""
        return not self.expected or self.got in self.expected


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's content in hexadecimal; raises OSError."""
    return _checksum_of(path, "sha256")


def _checksum_of(path: Path, algorithm: str) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def check_files(folder: Path | None, files: Iterable[Checked]) -> tuple[Check, ...]:
    """Compare each file in `folder` with its checksum; nothing is raised."""

    def found(file: Checked) -> str:
        path = within(folder) / file.file
        try:
            return _checksum_of(path, file.algorithm)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"cannot be read: {error.strerror}"

    return tuple(Check(f.file, (f.checksum,), found(f)) for f in files)


def checked_bytes(folder: Path | None, file: Checked) -> bytes:
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
    got = hashlib.new(file.algorithm, content).hexdigest()
    if got != file.checksum:
        raise InputError(
            f"{path}: {len(content):,} bytes with {file.algorithm} {got}, expected {file.checksum}: cut short or changed;"
            " delete it and fetch it again"
        )
    return content


def identity(files: Iterable[File]) -> str:
    """Return one sha256 over `<sha256>  <file>` lines in the order of the files' names."""
    return identity_of((f.file, f.sha256) for f in files)


def identity_of(files: Iterable[tuple[str, str]]) -> str:
    """Return the same sha256 of files given as (name, sha256). A name that is not UTF-8 counts with its own bytes."""
    lines = "".join(f"{sha}  {name}\n" for name, sha in sorted(files))
    return hashlib.sha256(lines.encode(errors="surrogateescape")).hexdigest()


def lines_of(content: bytes, where: Path) -> list[str]:
    """Return the lines of a file's content; raises InputError for another encoding than UTF-8."""
    try:
        return content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not text in UTF-8: {error}") from None


def within(folder: Path | None) -> Path:
    """Return the folder of a set that is not embedded; raises InputError for None, if its recipe has no origin."""
    if folder is None:
        raise InputError("origin: missing from the recipe, expected the locations of the set's files")
    return folder
