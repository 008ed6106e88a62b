"""Scores that compare a reconstructed sentence with the truth, on tokens without special ones such as [CLS] and padding.

A sentence with a token that is negative or not finite counts as missing: all its scores are NaN.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from leakbench.core.extras import need
from leakbench.data.vocabulary import Vocabulary

__all__ = ["TextScores", "edit_distance", "match_texts", "pairwise_edit_distance", "text_scores", "without_special"]

NOTHING = -1
"""Fills up a sentence whose special tokens were left out."""

PAIRS = 200_000
"""Number of pairs whose distances are computed at once."""


@dataclass(frozen=True)
class TextScores:
    """Scores (V, M), float64, NaN without a reconstruction.

    Args:
        edit_distance: Levenshtein distance of the tokens, divided by the length of the longer sentence; 0 for equal ones, 1 for
            two sentences without tokens.
        rouge_1: F-measure of common words (Lin, 2004), of the decoded texts, by the library `rouge-score`; see `Words`.
        rouge_2: The same of pairs of neighbouring words.
        rouge_l: The same of the longest common subsequence.
        token_accuracy: Share of the true tokens that are at their place.
        token_recall: Share of the true tokens that are in the reconstruction, each as often as it occurs there.
        token_precision: Share of the reconstructed tokens that are in the truth, likewise.
        exact_match: 1 for equal tokens, else 0, also for two sentences without tokens.
    """

    edit_distance: Tensor
    rouge_1: Tensor
    rouge_2: Tensor
    rouge_l: Tensor
    token_accuracy: Tensor
    token_recall: Tensor
    token_precision: Tensor
    exact_match: Tensor
    length_right: Tensor


def without_special(tokens: Tensor, vocabulary: Vocabulary) -> tuple[Tensor, Tensor]:
    """Return (tokens (n, T) int64 without special ones, moved to the front; their numbers (n,)) of sentences (n, T)."""
    numbers = tokens.nan_to_num(nan=NOTHING, posinf=NOTHING, neginf=NOTHING).long()
    kept = (numbers >= 0) & ~torch.isin(numbers, torch.tensor(sorted(vocabulary.special), device=numbers.device))
    order = kept.long().argsort(dim=1, descending=True, stable=True)
    moved = numbers.masked_fill(~kept, NOTHING).gather(1, order)
    return moved, kept.sum(1)


def _missing(tokens: Tensor) -> Tensor:
    """Return which sentences (n, T) have a token that is negative or not finite, (n,) bool."""
    return ~(tokens.isfinite() & (tokens >= 0)).all(1)


def edit_distance(a: Tensor, b: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the edit distances (n,) in [0, 1] of the sentences (n, T) of two lists, float64; NaN where one is missing."""
    missing = _missing(a) | _missing(b)
    found = _levenshtein(*without_special(a.cpu(), vocabulary), *without_special(b.cpu(), vocabulary))
    return found.to(a.device).masked_fill(missing, torch.nan)


def pairwise_edit_distance(a: Tensor, b: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the edit distances (n, k) of every pair of sentences (n, T) and (k, T), float64."""
    rows = max(1, PAIRS // max(1, len(b)))
    every = []
    for some in torch.split(a, rows):
        left, right = some.repeat_interleave(len(b), 0), b.repeat(len(some), 1)
        every.append(edit_distance(left, right, vocabulary).reshape(len(some), len(b)))
    return torch.cat(every)


def _levenshtein(a: Tensor, many: Tensor, b: Tensor, others: Tensor) -> Tensor:
    """Return the distances (n,) of tokens (n, T) of lengths (n,), divided by the longer length.

    The distance of two empty ones is 1, since an original without tokens has nothing that an attack could reconstruct.
    All pairs are computed at once, row by row of the usual table. Small whole numbers make this several times faster.
    """
    longest, wide = int(many.max()), int(others.max())
    first, second = a[:, :longest].numpy().astype(np.int32), b[:, :wide].numpy().astype(np.int32)
    lengths, places = many.numpy(), np.arange(wide + 1, dtype=np.int16)
    row = np.repeat(places[None], len(a), 0)
    last = np.take_along_axis(row, others.numpy()[:, None], 1)[:, 0].copy()
    for i in range(1, longest + 1):
        best = np.empty_like(row)
        best[:, 0] = i
        np.minimum(row[:, :-1] + (first[:, i - 1, None] != second), row[:, 1:] + 1, out=best[:, 1:], casting="unsafe")
        # Insertions after the best place before: min over k of best[k] + (j - k).
        row = np.minimum.accumulate(best - places, axis=1) + places
        ended = lengths == i
        last[ended] = np.take_along_axis(row[ended], others.numpy()[ended, None], 1)[:, 0]
    longer = torch.maximum(many, others)
    return (torch.from_numpy(last).double() / longer.clamp_min(1)).masked_fill(longer == 0, 1.0)


def match_texts(answer: Tensor, truth: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the order (V, M) int64 in which `answer[v, order[v, m]]` is the answer for `truth[v, m]`.

    One answer goes to one truth, at the least total edit distance (Hungarian method); both (V, M, T). No answer (NaN) costs more
    than the worst one.
    """
    victims, members = truth.shape[:2]
    left = truth[:, :, None].expand(-1, -1, members, -1).flatten(0, 2)
    right = answer[:, None].expand(-1, members, -1, -1).flatten(0, 2)
    cost = edit_distance(right, left, vocabulary).nan_to_num(nan=2.0).reshape(victims, members, members)
    orders = [torch.as_tensor(linear_sum_assignment(each)[1]) for each in cost.cpu().numpy()]
    return torch.stack(orders).to(truth.device)


def text_scores(answer: Tensor, truth: Tensor, vocabulary: Vocabulary) -> TextScores:
    """Return the scores of reconstructions (V, M, T), each at the place of its truth (V, M, T)."""
    if answer.shape != truth.shape:
        raise ValueError(f"answer: got shape {tuple(answer.shape)}, expected {tuple(truth.shape)}")
    shape = truth.shape[:2]
    given, true = answer.flatten(0, 1).cpu(), truth.flatten(0, 1).cpu()
    missing = _missing(given)
    found, many = without_special(given, vocabulary)
    real, others = without_special(true, vocabulary)
    common = _common(found, real)
    right = ((found == real) & (real != NOTHING)).sum(1)
    exact = (found == real).all(1) & (others > 0)
    whole = others.clamp_min(1)
    columns = [
        _levenshtein(found, many, real, others),
        *_rouge(vocabulary.decode(given), vocabulary.decode(true)),
        right / whole,
        common / whole,
        common / many.clamp_min(1),
        exact,
        _lengths(given, vocabulary) == _lengths(true, vocabulary),
    ]
    return TextScores(*(c.double().masked_fill(missing, torch.nan).reshape(shape) for c in columns))


def _lengths(sentences: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return the numbers (n,) of the tokens of sentences (n, T) that are no padding; NaN for a sentence without a token."""
    counts = (sentences != vocabulary.padding).sum(1).double()
    return counts.masked_fill(without_special(sentences, vocabulary)[1] == 0, torch.nan)


def _common(a: Tensor, b: Tensor) -> Tensor:
    """Return how many tokens (n,) two lists of sentences (n, T) have in common, each as often as in the one with fewer of it."""
    counts = []
    for mine, other in zip(a.tolist(), b.tolist(), strict=True):
        left = [token for token in other if token != NOTHING]
        shared = 0
        for token in mine:
            if token in left:
                left.remove(token)
                shared += 1
        counts.append(shared)
    return torch.tensor(counts)


def _rouge(answers: list[str], truths: list[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the F-measures of ROUGE-1, ROUGE-2 and ROUGE-L, each (n,)."""
    kinds = ("rouge1", "rouge2", "rougeL")
    scorer = need("rouge_score.rouge_scorer", "scores of texts").RougeScorer(list(kinds), tokenizer=Words())
    each = [scorer.score(true, answer) for answer, true in zip(answers, truths, strict=True)]
    first, second, longest = (torch.tensor([found[kind].fmeasure for found in each]) for kind in kinds)
    return first, second, longest


UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""Starts of the Unicode names of the letters of scripts without spaces between words."""


class Words:
    """The words of a text in any script, in lower case, for `rouge-score`, whose own tokenizer knows only a to z and 0 to 9.

    A word consists of letters, their marks, and decimal digits. A letter of a script without spaces between words is a word.
    """

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text."""
        return "".join(map(_spaced, text.lower())).split()


@cache
def _spaced(character: str) -> str:
    """Return a character of a word, with spaces if it is a word of its own; a space for any other character."""
    kind = unicodedata.category(character)
    if kind[0] not in "LM" and kind != "Nd":
        return " "
    alone = kind[0] == "L" and unicodedata.name(character, "").startswith(UNSPACED)
    return f" {character}" if alone else character
