"""The types of a card's fields: shares with intervals, hashes, names that are no paths, sentences of one line."""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

__all__ = ["Amount", "Chance", "Hash", "Link", "Name", "Sentence", "Share", "Spread"]

LONGEST = 2000


def _name(text: str) -> str:
    """Refuse names that are not in the catalog, so that a card cannot leave its folder."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,99}", text):
        raise ValueError("expected small letters, digits and _, as the catalog's names are")
    return text


def _hash(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError("expected a sha256 of 64 digits")
    return text


def _sentence(text: str) -> str:
    if len(text) > LONGEST or not text.isprintable():
        raise ValueError(f"expected one printable line of at most {LONGEST} characters")
    return text


def _link(text: str) -> str:
    if text and not re.fullmatch(r"https://[\w./:%()-]+", text):
        raise ValueError("expected an https:// address, or nothing")
    return text


def _inside(share: tuple[float, float, float]) -> tuple[float, float, float]:
    value, low, high = share
    if not low <= value <= high:
        raise ValueError("expected [value, low, high] with low <= value <= high")
    return share


def _spread(spread: tuple[float, float | None, float | None]) -> tuple[float, float | None, float | None]:
    value, low, high = spread
    if (low is not None and low > value) or (high is not None and high < value):
        raise ValueError("expected [value, low, high] with low <= value <= high")
    return spread


Chance = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Share: TypeAlias = Annotated[tuple[Chance, Chance, Chance], AfterValidator(_inside)]
"""[a share, and its 95 % interval]."""

Spread: TypeAlias = Annotated[tuple[Amount, Amount | None, Amount | None], AfterValidator(_spread)]
"""[a median, and its 95 % interval], an end of which is None where failures reach it."""

Name: TypeAlias = Annotated[str, AfterValidator(_name)]
Hash: TypeAlias = Annotated[str, AfterValidator(_hash)]
Sentence: TypeAlias = Annotated[str, AfterValidator(_sentence)]
Link: TypeAlias = Annotated[str, AfterValidator(_link)]
