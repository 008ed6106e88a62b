"""The tokens that the sentences of a run contain, as the run folder stores them beside the reconstructions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.data.vocabulary import Vocabulary

__all__ = ["WORDS", "Words", "words_in", "words_of"]

WORDS = "tokens"
"""Name of the array with the tokens among the arrays of a run."""


@dataclass(frozen=True)
class Words:
    """Names of tokens.

    Args:
        names: {number: token}.
        special: Numbers of tokens that are not part of a text.
    """

    names: Mapping[int, str]
    special: frozenset[int]

    def content(self, sentence: NDArray[np.floating]) -> list[int]:
        """Return the tokens of a sentence (T,) without special ones and without those that have no name."""
        numbers = [int(number) for number in sentence]
        return [number for number in numbers if number in self.names and number not in self.special]


def words_of(vocabulary: Vocabulary, sentences: Mapping[str, Tensor]) -> Tensor:
    """Return the tokens of sentences {name: (..., T)} as UTF-8 of JSON, an array (n,) uint8."""
    numbers = sorted({int(n) for each in sentences.values() for n in each[each.isfinite()].tolist()})
    found = {"names": dict(zip(numbers, vocabulary.names(numbers), strict=True)), "special": sorted(vocabulary.special)}
    return torch.frombuffer(bytearray(json.dumps(found).encode()), dtype=torch.uint8)


def words_in(arrays: Mapping[str, NDArray[Any]]) -> Words | None:
    """Return the tokens among the arrays of a run; None for other data than texts.

    Raises:
        InputError: If the array is damaged.
    """
    if WORDS not in arrays:
        return None
    try:
        found = json.loads(arrays[WORDS].astype(np.uint8).tobytes())
        names = {int(number): str(token) for number, token in found["names"].items()}
        return Words(names, frozenset(int(number) for number in found["special"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"reconstructions.safetensors: {WORDS}: cannot be read: {error}") from None
