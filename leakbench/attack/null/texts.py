"""The baseline guess of sentences from public ones alone."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.null.pictures import NullAttack
from leakbench.data.vocabulary import Vocabulary
from leakbench.measure.metrics_texts import pairwise_edit_distance, without_special

__all__ = ["null_texts"]

COMMONEST, SINGLE = "commonest tokens", "single example"

CANDIDATES = 200
"""Largest number of public sentences among which the single one is chosen."""

JUDGES = 500
"""Largest number of public sentences on which guesses are compared."""


def null_texts(public: Tensor, victims: int, eta: float, vocabulary: Vocabulary, rng: torch.Generator) -> NullAttack:
    """Guess V sentences from public ones, with two constant guessers.

    The guessers are the `commonest tokens`, a sentence of median length with the most frequent token at each place, and the
    `single example` within `eta` of the most others. A sentence is not compared with itself.

    Args:
        public: Public sentences (P, T).
        victims: V; for batches, the number of sentences.
        eta: Largest edit distance of a success.
        vocabulary: The tokens.
        rng: Chooses the sentences on which guesses are compared.

    Raises:
        ValueError: If there are fewer than two public sentences.
    """
    if len(public) < 2:
        raise ValueError(f"public: got {len(public)} sentences, expected at least two to guess from")
    sample = public[torch.randperm(len(public), generator=rng)[:JUDGES]]
    guesses = {COMMONEST: _commonest(public, vocabulary)}
    left_out = {COMMONEST: pairwise_edit_distance(sample, guesses[COMMONEST][None], vocabulary)[:, 0]}
    apart = pairwise_edit_distance(sample, sample[:CANDIDATES], vocabulary)
    apart.fill_diagonal_(torch.nan)
    hits = (apart <= eta).sum(0)
    chosen = int(apart.nanmean(0).masked_fill(hits < hits.max(), torch.inf).argmin())
    guesses[SINGLE] = sample[chosen]
    left_out[SINGLE] = torch.cat([apart[:chosen, chosen], apart[chosen + 1 :, chosen]])
    success = {name: float((apart <= eta).double().mean()) for name, apart in left_out.items()}
    mean = {name: float(apart.mean()) for name, apart in left_out.items()}
    return NullAttack(
        {name: guess.expand(victims, -1) for name, guess in guesses.items()},
        success,
        mean,
        best_for_success=min(guesses, key=lambda name: (-success[name], mean[name])),
        best_for_rmse=min(guesses, key=lambda name: mean[name]),
    )


def _commonest(public: Tensor, vocabulary: Vocabulary) -> Tensor:
    """Return a sentence (T,) of median length with the most frequent token at each place."""
    tokens, lengths = without_special(public, vocabulary)
    guess = torch.full_like(public[0], float(vocabulary.padding))
    for place in range(int(lengths.median())):
        there = tokens[:, place][tokens[:, place] >= 0]
        guess[place] = float(there.mode().values)
    return guess
