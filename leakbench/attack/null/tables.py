"""Baselines for tables from public records alone: TabLeak's random baseline, and the best baseline guess."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.null.pictures import NullAttack
from leakbench.data.columns import Columns
from leakbench.measure.metrics_tables import table_scores

__all__ = ["best_guesser", "random_records"]

JUDGES = 3000
"""Largest number of public records on which guesses are compared."""


def random_records(public: Tensor, columns: Columns, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Draw random records; each feature comes from its own randomly drawn public record.

    This is the random baseline of TabLeak's tables (Vero et al., ICML 2023; released code, `calculate_random_baseline` with
    `all_empirical`). A category is drawn only from records in which it is known, unless it is unknown in all: unknown values of a
    victim do not count, so an unknown draw could only be wrong and would lower the baseline. TabLeak's data have no unknown
    categories. TabLeak's code draws from histograms of 100 bins and gives all records of a batch the same number. Here, every
    record has its own draw from the values themselves.

    Args:
        public: Public records (P, d).
        columns: The layout of the table.
        shape: Shape of the records to draw.
        rng: The generator.

    Returns:
        (*shape, d).

    Raises:
        ValueError: Without public records.
    """
    if not len(public):
        raise ValueError("public: got no record, expected at least one to draw from")
    each = []
    for f in columns.features:
        values = public[:, f.start : f.stop]
        known = values[(values > 0).any(1)] if f.values else values
        pool = known if len(known) else values
        each.append(pool[torch.randint(len(pool), shape, generator=rng).to(public.device)])
    order = torch.cat([torch.arange(f.start, f.stop) for f in columns.features]).argsort()
    return torch.cat(each, -1)[..., order.to(public.device)]


def best_guesser(null: NullAttack, public: Tensor, targets: Tensor, known_labels: Tensor, columns: Columns) -> str:
    """Return the guesser with the most correct features on public records.

    A guesser has one guess for all examples of a class, so its guess for a victim is also its guess for the public records of the
    victim's class. Records of other classes are left out.

    Args:
        null: The guesses.
        public: Public records (P, d).
        targets: Their classes (P,).
        known_labels: Labels (n,) of the n guessed examples.
        columns: The layout of the table.
    """

    public, targets = public[:JUDGES], targets[:JUDGES]
    scores = {}
    for name, guesses in null.guesses.items():
        right = []
        for label in torch.unique(known_labels):
            own = public[targets == label.to(targets)]
            guess = guesses[(known_labels == label).nonzero()[0, 0]]
            if len(own):
                right.append(
                    table_scores(guess.to(own).expand_as(own)[:, None], own[:, None], columns).feature_accuracy
                )
        scores[name] = float(torch.cat(right).mean()) if right else 0.0
    return max(scores, key=lambda name: scores[name])
