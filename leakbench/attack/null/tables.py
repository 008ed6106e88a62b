"""What a guess from public records alone gets of a table: TabLeak's random baseline, and the null attacker."""

from __future__ import annotations

import torch
from torch import Tensor

from leakbench.attack.null.pictures import NullAttack
from leakbench.data.columns import Columns
from leakbench.measure.metrics_tables import table_scores

__all__ = ["best_guesser", "random_records"]

JUDGES = 3000


def random_records(public: Tensor, columns: Columns, shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """Draw records (*shape, d), every feature by itself as in a random one of the public records (P, d).

    A category is drawn among the public records that know it, unless none does: what a victim leaves open is not counted, so that
    a draw of nothing could only be wrong, and the baseline would be too low.

    The random baseline of TabLeak's tables (Vero et al., ICML 2023; released code, `calculate_random_baseline` with
    `all_empirical`), whose data have no record with an unknown category. Their code draws from histograms of 100 bins and gives all
    records of a batch one and the same number; here every record draws its own from the values themselves. Raises ValueError
    where there is no public record.
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
    """Return which guesser of the null attacker has most features right, judged on public records (P, d) of classes (P,).

    Args:
        known_labels: (n,) of the n examples that were guessed; each guesser says the same of all examples of a class, so that its
            guess for one is its guess for the public records of that class. Records of classes that nobody guessed are left out.
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
