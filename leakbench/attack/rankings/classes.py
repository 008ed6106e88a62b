"""Label inference: ranks all classes by the means of public gradients.

Noise hides the label last. Rules that read it from the last layer (iDLG, Zhao et al. 2020) use only some coordinates. The matched
filter uses all of them: it compares with the mean gradient of each class at the sent model, with the deterministic part of the
defense that the attacker knows. For two means in Gaussian noise, no test is better (Neyman and Pearson 1933).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.attack.looks import averaged
from leakbench.attack.needs import Needs
from leakbench.attack.public import public_of
from leakbench.attack.public_gradients import before_mask, fitting, flat, gradients_alone, numbers
from leakbench.attack.rankings.groups import Groups, explained, group_means
from leakbench.core.answers import Ranking
from leakbench.core.part import part
from leakbench.core.types import Generators
from leakbench.engine.saved import activations
from leakbench.federated.view import Public, View

__all__ = ["Classes"]

PUBLIC = 500
"""Largest number of public examples of the ranking."""

WORK = 500_000_000
"""Largest number of values of the public examples' gradients; the largest network gets 100 examples, or `TEXTS` sentences."""

LARGEST = 100_000_000
"""Largest number of values of the mean gradients of all classes for large pictures, 0.4 GB."""

TEXTS = 40
"""Number of public sentences: their gradients take seconds."""


@part("classes")
class Classes:
    """Rank the classes c by mean public gradients g_c and public shares p_c of the classes.

    For the gradient y of one example with known noise variance s^2, the score is log p_c + <y, g_c> / s^2 - |g_c|^2 / (2 s^2). It
    is the log-posterior if all examples of a class were equal. Without known noise, it is the cosine of y and g_c. For an update
    of M > 1 examples, it is the expected share of c among them, by the linear estimator with the least squared error (`_shares`).
    Observations of one release are averaged, which reduces their noise; the scores of other views are added. For large pictures,
    only the last parameters are compared, as many as fit into `LARGEST` values over all classes.
    """

    needs: ClassVar[Needs] = Needs(public=PUBLIC)

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Ranking:
        """Return scores (V, classes); -inf for classes without a public example.

        Args:
            views: Views of V victims.
            rngs: Not used.

        Raises:
            InputError: If a view has no public examples.
        """
        return Ranking(torch.stack([_scores(view) for view, _ in averaged(views)]).sum(0))


def _most(view: View) -> int:
    return TEXTS if view.vocabulary is not None else max(100, min(PUBLIC, WORK // numbers(view)))


def _scores(view: View) -> Tensor:
    first = _first_compared(view)
    public, observed = public_of(view, "classes", _most(view)), flat(view.update)[:, first:]
    bare = before_mask(view)
    gradients = _gradients(bare or view, public, first)
    groups = group_means(gradients(), public.labels, view.classes)
    if view.examples == 1:
        return explained(view, observed, groups, where_sent=bare is not None)
    return _shares(view, public, observed, groups, gradients).masked_fill(groups.shares == 0, -torch.inf)


def _first_compared(view: View) -> int:
    """Return the position of the first value of a gradient that is compared; 0 if the mean gradients of all classes fit.

    A malicious server's layers are compared as a whole.
    """
    room = LARGEST // view.classes
    if view.secret is not None or numbers(view) <= room or not activations(view.network, view.shape):
        return 0
    first = numbers(view)
    for update in reversed(list(view.update.values())):
        if numbers(view) - first + update[0].numel() > room:
            break
        first -= update[0].numel()
    return first


def _gradients(view: View, public: Public, first: int) -> Callable[[], Iterable[Tensor]]:
    """Return a function that yields the public examples' gradients (n, p) at each call; small ones of a batch are stored.

    Args:
        first: Position of the first value that is read.
    """
    if view.examples > 1 and fitting(view, 600_000_000) >= len(public.labels):
        stored = tuple(some[:, first:] for some in gradients_alone(view, public))
        return lambda: stored
    return lambda: (some[:, first:] for some in gradients_alone(view, public))


def _shares(
    view: View, public: Public, observed: Tensor, groups: Groups, gradients: Callable[[], Iterable[Tensor]]
) -> Tensor:
    """Return the expected share (V, classes) of each class among the M examples of an update.

    With d_c = g_c - sum_k p_k g_k, the projections t = (<y - sum_k p_k g_k, d_c>)_c of an update are W (share - p) + noise, where
    W is the Gram matrix of the d_c. The prior of the counts is multinomial; the shares have the covariance P = (diag p - p p^T) /
    M. The noise has the covariance N = s^2 W + T / M, where T is that of the projections of public examples around their class
    means. E[share] = p + P W (W P W + N)^-1 t is the linear estimator with the least squared error.
    """
    p, average = groups.shares, groups.shares @ groups.means
    apart = groups.means - average
    within = torch.cat([some @ apart.T for some in gradients()]) - (groups.means @ apart.T)[public.labels]
    projections, gram = ((observed - average) @ apart.T).double(), (apart @ apart.T).double()
    spread = (within.T @ within).double() / len(within)
    prior = (p.diag() - torch.outer(p, p)).double() / view.examples
    total = gram @ prior @ gram + (view.noise or 0.0) ** 2 * gram + spread / view.examples
    if not (total.isfinite().all() and projections.isfinite().all()):  # The model has diverged.
        return observed.new_full((len(observed), view.classes), torch.nan)
    gain = prior @ gram @ torch.linalg.pinv(total, hermitian=True)
    expected: Tensor = p + projections @ gain.T
    return expected.to(observed)
