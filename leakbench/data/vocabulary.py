"""The tokens of a text, and their numbers: a tokenizer of the library `tokenizers`, which the extra `text` installs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from leakbench.core.errors import InputError, check_file
from leakbench.core.extras import need
from leakbench.models.folder import FOLDER, TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Vocabulary", "pieces"]

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
"""Word pieces that a vocabulary of BERT must have."""

UNKNOWN = ("[UNK]", "<unk>")
"""Names of the token of an unknown word."""

PADS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "<|end_of_text|>", "</s>")
"""Names of the token that fills up a sentence, in the order of preference."""


UNREAD = ("vocab.json", "merges.txt", "*.model", "*.tiktoken", "tekken.json", "tokenizer_config.json")
"""Files of tokenizers in formats that are not read, or without the tokens."""


def _lower_case(path: Path, field: str) -> bool:
    """Return `do_lower_case` of a configuration of a tokenizer; true without one, as the library `transformers` assumes.

    Raises:
        InputError: If the file is no JSON, or the value is neither true nor false.
    """
    if not path.is_file():
        return True
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("do_lower_case", True)
    except (ValueError, AttributeError) as error:
        raise InputError(f"{field}: {path}: cannot be read: {error}") from None
    if not isinstance(found, bool):
        raise InputError(f"{field}: {path}: do_lower_case: got {found!r}, expected true or false")
    return found


def pieces(content: bytes) -> tuple[str, ...]:
    """Return the word pieces of a file with one a line; raises UnicodeDecodeError for other text than UTF-8."""
    # Not `splitlines`, which also splits at characters that are tokens of some vocabularies.
    lines = content.decode("utf-8-sig").replace("\r\n", "\n").split("\n")
    return tuple(lines if lines[-1] else lines[:-1])


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a data set.

    Args:
        json: The tokenizer as the library `tokenizers` writes it.
    """

    json: str

    @classmethod
    def of_word_pieces(cls, tokens: Sequence[str], lower: bool = True, where: str = "vocabulary") -> Vocabulary:
        """Return the vocabulary of BERT's WordPiece with these tokens; a sentence is between [CLS] and [SEP].

        Args:
            tokens: The word pieces, in the order of the lines of a file.
            lower: Whether letters become lower case.
            where: The field and the file, for messages.

        Raises:
            InputError: If a special token is missing, or a word piece is there twice.
        """
        library = need("tokenizers", "dataset")
        if lacking := [name for name in SPECIAL if name not in tokens]:
            raise InputError(f"{where}: lacks {', '.join(lacking)}, expected word pieces with {', '.join(SPECIAL)}")
        lines: dict[str, int] = {}
        for line, token in enumerate(tokens, 1):
            if (first := lines.setdefault(token, line)) < line:
                raise InputError(
                    f"{where}: has the word piece {token!r} in lines {first} and {line}, expected each once"
                )
        found = library.BertWordPieceTokenizer({token: i for i, token in enumerate(tokens)}, lowercase=lower)
        return cls(found.to_str())

    @classmethod
    def of_folder(cls, folder: Path) -> Vocabulary | None:
        """Return the vocabulary in a folder of Hugging Face, `tokenizer.json` or `vocab.txt`; None without one.

        Raises:
            InputError: For a broken file, or weights with a tokenizer in other files only: they were trained with other tokens than
                those of a data set.
        """
        need("tokenizers", "model")
        for name in TOKENS:
            if (folder / name).is_file():
                return cls.of_file(folder / name, "model")
        unread = sorted(path.name for pattern in UNREAD for path in folder.glob(pattern))
        if unread and any(folder.glob("*.safetensors")):
            raise InputError(
                f"model: '{FOLDER}{folder}': got the tokenizer {', '.join(unread)}, expected tokenizer.json or vocab.txt for these"
                f" weights; save it with AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
            )
        return None

    @classmethod
    def of_file(cls, path: Path, field: str = "vocabulary") -> Vocabulary:
        """Return the vocabulary in a file: a `.json` of the library `tokenizers`, or the word pieces of BERT, one a line.

        Word pieces have lower case, unless a `tokenizer_config.json` in the same folder says that they have not.

        Args:
            path: The file.
            field: The option that names it, for messages.

        Raises:
            InputError: For a missing or broken file.
        """
        library = need("tokenizers", field)
        check_file(field, path)
        try:
            if path.suffix == ".json":
                return cls(library.Tokenizer.from_file(str(path)).to_str())
            words = pieces(path.read_bytes())
        except Exception as error:  # The library raises plain exceptions.
            raise InputError(f"{field}: {path}: cannot be read: {error}") from None
        lower = _lower_case(path.with_name("tokenizer_config.json"), field)
        return cls.of_word_pieces(words, lower, f"{field}: {path}")

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer without padding and truncation."""
        found: Tokenizer = need("tokenizers", "dataset").Tokenizer.from_str(self.json)
        found.no_padding()
        found.no_truncation()
        return found

    @cached_property
    def content(self) -> str:
        """Sha256 of the tokenizer."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    @cached_property
    def size(self) -> int:
        """Number of tokens."""
        return 1 + max(self.tokenizer.get_vocab().values())

    @cached_property
    def padding(self) -> int:
        """Number of the token that fills up a sentence.

        Raises:
            InputError: If the vocabulary has no token for it.
        """
        for name in PADS:
            if (found := self.tokenizer.token_to_id(name)) is not None:
                return int(found)
        raise InputError(f"vocabulary: has no token that fills up a sentence, expected one of {', '.join(PADS)}")

    @cached_property
    def special(self) -> frozenset[int]:
        """Numbers of the tokens that are not part of a text, such as [CLS]; an unknown word is part of it."""
        added = self.tokenizer.get_added_tokens_decoder()
        named = {number for number, token in added.items() if token.special and token.content not in UNKNOWN}
        return frozenset({self.padding, *named})

    def is_empty(self, tokens: Tensor) -> Tensor:
        """Return which of the sentences (n, T) have no token but special ones, (n,) bool."""
        special = torch.tensor(sorted(self.special), device=tokens.device)
        return torch.isin(tokens.long(), special).all(1)

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """Return the tokens (n, length) of texts as float32, filled up with `padding`.

        A longer text loses its middle tokens before a last special token, such as [SEP].
        """
        rows = torch.full((len(texts), length), float(self.padding))
        for row, found in zip(rows, self.tokenizer.encode_batch(list(texts)), strict=True):
            ids = list(found.ids)
            if len(ids) > length:
                ids = [*ids[: length - 1], ids[-1]] if ids[-1] in self.special else ids[:length]
            row[: len(ids)] = torch.tensor(ids, dtype=torch.float32)
        return rows

    def decode(self, ids: Tensor) -> list[str]:
        """Return the texts of tokens (n, T) without special tokens; numbers outside the vocabulary, and NaN, are no tokens."""
        kept = [[int(i) for i in row if 0 <= i < self.size] for row in ids.tolist()]
        return [str(text) for text in self.tokenizer.decode_batch(kept, skip_special_tokens=True)]

    def first_other(self, other: Vocabulary) -> tuple[int, str, str] | None:
        """Return the first number at which two vocabularies differ with the token of each; None if all tokens are equal."""
        every = range(max(self.size, other.size))
        pairs = zip(every, self.names(every), other.names(every), strict=True)
        return next((found for found in pairs if found[1] != found[2]), None)

    def names(self, ids: Sequence[int]) -> list[str]:
        """Return the tokens with these numbers, as the vocabulary writes them; empty for numbers outside the vocabulary."""
        return [(self.tokenizer.id_to_token(int(i)) or "") if 0 <= i < self.size else "" for i in ids]
