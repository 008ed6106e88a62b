"""Labels: which class does the victim's example belong to? A Ranking of all classes, by the means of public gradients.

The label is the last thing that noise hides. Rules that read it off the last layer (iDLG, Zhao et al. 2020) use a few of the
coordinates; the matched filter uses all of them, each class by its mean gradient at the model that was sent, with the
deterministic part of the defense that the attacker knows (Neyman and Pearson 1933: for two means in Gaussian noise no test is
better).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

import torch
from torch import Tensor

from leakbench.answers import Ranking
from leakbench.attack.looks import averaged
from leakbench.attack.needs import Needs
from leakbench.attack.public import public_of
from leakbench.attack.public_gradients import before_mask, fitting, flat, gradients_alone, numbers
from leakbench.attack.rankings.groups import Groups, explained, group_means
from leakbench.federated.view import Public, View
from leakbench.part import part
from leakbench.types import Generators

__all__ = ["Classes"]

PUBLIC = 500
"""How many public examples the ranking goes by at most."""

WORK = 500_000_000
"""Of how many numbers their gradients may be, all together; 100 examples are taken of the largest network."""


@part("classes")
class Classes:
    """Rank the classes c by public mean gradients g_c and public shares p_c of the classes.

    One example behind the gradient y, noise of variance s^2 known: log p_c + <y, g_c> / s^2 - |g_c|^2 / (2 s^2), the posterior
    were all examples of a class alike; without a known noise the cosine of y and g_c. Behind an update of M > 1 examples the
    expected share of c among them, by the linear estimator of least squared error (`_shares`). Looks at one release count as
    their mean, whose noise is less; other views add.
    """

    needs: ClassVar[Needs] = Needs(public=PUBLIC)

    def __call__(self, views: tuple[View, ...], rngs: Generators) -> Ranking:
        """Return scores (V, classes), -inf for classes without a public example; rngs are not drawn from.

        Raises InputError where a view has no public examples.
        """
        return Ranking(torch.stack([_scores(view) for view, _ in averaged(views)]).sum(0))


def _most(view: View) -> int:
    return max(100, min(PUBLIC, WORK // numbers(view)))


def _scores(view: View) -> Tensor:
    public, observed = public_of(view, "classes", _most(view)), flat(view.update)
    bare = before_mask(view)
    gradients = _gradients(bare or view, public)
    found = group_means(gradients(), public.labels, view.classes)
    if view.examples == 1:
        return explained(view, observed, found, where_sent=bare is not None)
    return _shares(view, public, observed, found, gradients).masked_fill(found.shares == 0, -torch.inf)


def _gradients(view: View, public: Public) -> Callable[[], Iterable[Tensor]]:
    """Return what walks through the public examples' gradients (n, p), again at each call; small ones of a batch are kept."""
    if view.examples > 1 and fitting(view, 600_000_000) >= len(public.labels):
        held = tuple(gradients_alone(view, public))
        return lambda: held
    return lambda: gradients_alone(view, public)


def _shares(
    view: View, public: Public, observed: Tensor, found: Groups, gradients: Callable[[], Iterable[Tensor]]
) -> Tensor:
    """Return (V, classes): the expected share of each class among the M examples behind an update.

    With d_c = g_c - sum_k p_k g_k the projections t = (<y - sum_k p_k g_k, d_c>)_c of an update are W (share - p) + noise, W the
    Gram matrix of the d_c. The counts are multinomial a priori, covariance P = (diag p - p p^T) / M of the shares; the noise
    has covariance N = s^2 W + T / M, T that of the projections of public examples around their class means. Then E[share] is
    p + P W (W P W + N)^-1 t, the linear estimator of least squared error.
    """
    p, average = found.shares, found.shares @ found.means
    apart = found.means - average
    within = torch.cat([some @ apart.T for some in gradients()]) - (found.means @ apart.T)[public.labels]
    seen, gram = ((observed - average) @ apart.T).double(), (apart @ apart.T).double()
    spread = (within.T @ within).double() / len(within)
    prior = (p.diag() - torch.outer(p, p)).double() / view.examples
    total = gram @ prior @ gram + (view.noise or 0.0) ** 2 * gram + spread / view.examples
    if not (total.isfinite().all() and seen.isfinite().all()):  # A model that has diverged tells no class.
        return observed.new_full((len(observed), view.classes), torch.nan)
    gain = prior @ gram @ torch.linalg.pinv(total, hermitian=True)
    expected: Tensor = p + seen @ gain.T
    return expected.to(observed)
