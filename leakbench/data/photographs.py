"""Photographs of any size and kind as squares of 8-bit colours, for the formats that read folders of pictures."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.untrusted import CONTROLS
from leakbench.data.cache import Cache
from leakbench.data.checks import identity_of, sha256_of
from leakbench.data.dataset import Dataset, everyone
from leakbench.data.pictures import MOST_PIXELS, Pixels, unit
from leakbench.engine.memory import memory_of

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "PICTURES",
    "Pinned",
    "Side",
    "accepted_listing",
    "dataset_of",
    "listing_of",
    "pictures_in",
    "read_content",
    "shown",
    "squares",
    "unknown_pictures",
    "visible",
]

Side = Annotated[int, Field(ge=8, le=224, description="Height and width of the pictures, in pixels.")]
Pinned = Annotated[
    str,
    Field(
        pattern="^([0-9a-f]{64})?$",
        description="Accepted content: the sha256 that `leakbench data verify` prints; empty to accept any content.",
    ),
]

PICTURES = (".jpg", ".jpeg", ".png")
"""Endings of the names of pictures, in small letters."""

BYTES_PER_VALUE = 9
"""Largest number of bytes of memory for one value of a pixel: the 8-bit value and a copy, float32, and three masks."""

WHITE = (255, 255, 255, 255)


def visible(folder: Path) -> list[Path]:
    """Return the files and folders in a folder by name, without hidden ones (`.name`); links are followed.

    Raises:
        InputError: For a folder that cannot be read.
    """
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror}") from None


def pictures_in(folder: Path) -> list[Path]:
    """Return the pictures directly in a folder by name, also links to files.

    Raises:
        InputError: For a folder that cannot be read, and for a picture that is not a file, such as a link to an endless device.
    """
    found = [path for path in visible(folder) if path.suffix.lower() in PICTURES and not path.is_dir()]
    for path in found:
        if path.exists() and not path.is_file():
            raise InputError(f"{shown(path)}: is not a file or a link to one; remove it")
    return found


def listing_of(root: Path, paths: Sequence[Path]) -> str:
    """Return the sha256 over the sorted lines `<sha256>  <path below root>` of files.

    Raises:
        InputError: For a file that cannot be read.
    """
    lines = []
    for path in paths:
        try:
            lines.append((path.relative_to(root).as_posix(), sha256_of(path)))
        except OSError as error:
            raise InputError(f"{shown(path)}: cannot be read: {error.strerror}") from None
    return identity_of(lines)


def accepted_listing(root: Path, paths: Sequence[Path], pinned: str) -> str:
    """Return `listing_of` files; raises InputError if it is not the pinned one. An empty `pinned` accepts any content."""
    listing = listing_of(root, paths)
    if pinned not in ("", listing):
        raise InputError(
            f"{root}: sha256: the files in use have the listing sha256 {listing}, expected {pinned}: some are missing or"
            " changed; restore them, or correct the recipe"
        )
    return listing


def shown(path: Path | str) -> str:
    """Return a path as text for messages and names of classes: bytes that are not UTF-8, and controls, become U+FFFD."""
    return CONTROLS.sub("\ufffd", str(path).encode(errors="surrogateescape").decode(errors="replace"))


def read_content(listing: str, how: str, *chosen: Tensor) -> str:
    """Return the identity of read data: their files, and what was read of them.

    Args:
        listing: sha256 of the files.
        how: Settings that change the inputs, such as `32 x 32`.
        chosen: Labels, and the examples of each split.
    """
    read = hashlib.sha256(b"".join(each.contiguous().numpy().tobytes() for each in chosen)).hexdigest()
    return f"{listing}, {how}, {read}"


def squares(paths: Sequence[Path], side: int, cache: Cache, key: str, crop: int | None = None) -> Pixels:
    """Return photographs as squares of 8-bit colours.

    A photograph is turned upright by its EXIF orientation. Its largest centred square is resized to `side` x `side` (bicubic,
    with antialiasing). Grey, 16-bit, palette and CMYK pictures become RGB; transparent pixels become white.

    Args:
        paths: The n files.
        side: Height and width of the result.
        cache: Stores the result.
        key: Start of the name in the cache; it identifies the content of the files.
        crop: Height and width of a centred square that is taken first; None for the largest one.

    Returns:
        (n, 3, side, side).

    Raises:
        InputError: For a file that is not a JPEG or PNG, and for more pictures than fit in memory.
    """
    _check_memory(len(paths), side)

    def decoded() -> dict[str, Pixels]:
        pixels = np.empty((len(paths), 3, side, side), np.uint8)
        for i, path in enumerate(paths):
            pixels[i] = _square(path, side, crop)
        return {"pixels": pixels}

    # A listing does not depend on the order of the files, but the pixels do.
    order = hashlib.sha256("\n".join("/".join(path.parts[-3:]) for path in paths).encode(errors="surrogateescape"))
    return cache(f"{key}-{order.hexdigest()[:16]}-{crop or 'whole'}-{side}", decoded)["pixels"]


def unknown_pictures(train: Pixels, test: Pixels) -> Tensor | None:
    """Return the test pictures that are not training pictures too, (p,) int64; None for all of them.

    Copies of a picture may be in both splits, and an attacker must not know a victim.

    Raises:
        InputError: If no test picture is left.
    """
    known = {picture.tobytes() for picture in train}
    apart = [i for i, picture in enumerate(test) if picture.tobytes() not in known]
    if not apart:
        raise InputError(
            "every test picture is a training picture too, expected others, which an attacker may know; add some"
        )
    return None if len(apart) == len(test) else torch.tensor(apart)


def dataset_of(
    root: Path, pixels: tuple[Pixels, Pixels], labels: tuple[Tensor, Tensor], names: tuple[str, ...], content: str
) -> Dataset:
    """Return (training, test) pictures (n, C, H, W) with labels (n,) as a data set; public are its `unknown_pictures`."""
    try:
        public = unknown_pictures(*pixels)
    except InputError as error:
        raise InputError(f"{root}: {error}") from None
    halves = (unit(pixels[0]), labels[0], unit(pixels[1]), labels[1])
    return Dataset("", "image", *halves, names, everyone(labels[0]), content, public=public)


def _check_memory(count: int, side: int) -> None:
    needed, memory = BYTES_PER_VALUE * count * 3 * side * side, memory_of(torch.device("cpu"))
    if needed > memory:
        raise InputError(
            f"side: {count:,} pictures of {side} x {side} need about {needed / 1e9:.1f} GB of memory, expected at most the"
            f" {memory / 1e9:.1f} GB of this machine; lower `side`, or use fewer pictures"
        )


def _square(path: Path, side: int, crop: int | None) -> Pixels:
    from PIL import Image, ImageOps  # noqa: PLC0415

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of damaged EXIF data, which then do not turn the picture.
            with Image.open(path, formats=("JPEG", "PNG")) as photograph:
                wide, tall = photograph.size
                if wide * tall > MOST_PIXELS:
                    raise ValueError(f"of {wide} x {tall} pixels, expected at most {MOST_PIXELS:,}")
                upright = ImageOps.exif_transpose(_colours(photograph))
        wide, tall = upright.size
        edge = min(wide, tall) if crop is None else crop
        if min(wide, tall) < edge:
            raise ValueError(f"of {wide} x {tall} pixels, the crop has {edge} x {edge}")
        left, top = (wide - edge) // 2, (tall - edge) // 2
        centre = upright.crop((left, top, left + edge, top + edge))
        small = centre.resize((side, side), Image.Resampling.BICUBIC)
    except MemoryError:
        raise
    except Exception as error:  # A damaged picture may raise any error.
        raise InputError(f"{shown(path)}: not a readable picture: {error}") from None
    return np.ascontiguousarray(np.asarray(small).transpose(2, 0, 1))


def _colours(photograph: Image) -> Image:
    """Return a picture of any mode as RGB."""
    from PIL import Image  # noqa: PLC0415

    if photograph.mode.startswith("I"):  # 16-bit grey, which Pillow would cut off at 255.
        values = np.asarray(photograph).astype(np.int64).clip(0, 65535)
        grey = Image.fromarray(((values + 128) // 257).astype(np.uint8))
        grey.info = photograph.info
        return grey.convert("RGB")
    if photograph.mode in ("RGBA", "LA", "PA") or "transparency" in photograph.info:
        layer = photograph.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, WHITE), layer).convert("RGB")
    return photograph.convert("RGB")
