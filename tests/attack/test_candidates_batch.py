"""Candidates behind a noisy batch: the likelihood uses the others' covariance and the noise, as the full covariance does."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.rankings.candidates import Candidates
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.federated.view import Public, View
from leakbench.models import parameters
from leakbench.scoring.scores_rankings import membership

FEATURES, MEMBERS = 4, 3


def examples(many: int, seed: int) -> Public:
    """Return inputs that vary much more along one axis than along the others."""
    rng = generator(seed, "examples")
    inputs = torch.rand(many, FEATURES, generator=rng) * torch.tensor([1.0, 0.1, 0.1, 0.1])
    return Public(inputs, torch.randint(2, (many,), generator=rng))


def view_of(noise: float | None, k: int) -> View:
    model = nn.Linear(FEATURES, 2)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator(0, "weights")))
    network = Network(model, parameters(model))
    update = {n: p[None] for n, p in network.parameters.items()}
    public, shown = examples(256, 1), examples(k, 2)
    return View("type-1", network, update, MEMBERS, (FEATURES,), 2, 0.1, public=public, noise=noise, candidates=shown)


def gradients(view: View, some: Public) -> Tensor:
    one = replace(view, tap="type-2", update={})
    y = nn.functional.one_hot(some.labels, 2).float()[:, None]
    return torch.cat([g.flatten(1) for g in one.respond(some.inputs[:, None], y).values()], 1).detach()


def seen(view: View, victims: int) -> tuple[View, Tensor, Tensor]:
    """Return the view of batches of a candidate and two unknown others, with the view's noise; their updates; the members."""
    assert view.candidates is not None
    rng, own = generator(3, "batches"), torch.arange(victims) % len(view.candidates.labels)
    fellows = gradients(view, examples(2 * victims, 4)).reshape(victims, 2, -1).sum(1)
    y = (gradients(view, view.candidates)[own] + fellows) / MEMBERS
    y = y + (view.noise or 0.0) * torch.randn(y.shape, generator=rng)
    sizes = [u[0].numel() for u in view.update.values()]
    pieces = zip(view.update.items(), y.split(sizes, 1), strict=True)
    return replace(view, update={n: p.reshape(-1, *u.shape[1:]) for (n, u), p in pieces}), y, own


@pytest.mark.parametrize("noise", [0.02, 0.1, 1.0])
def test_the_score_is_the_likelihood_under_the_full_covariance(noise: float) -> None:
    """Differences between candidates agree up to one positive factor, in few enough directions for the public sample."""
    view, y, _ = seen(view_of(noise, 20), 30)
    assert view.candidates is not None and view.public is not None
    g, public = gradients(view, view.candidates).double(), gradients(view, view.public).double()
    centred = public - public.mean(0)
    fellows = (MEMBERS - 1) / MEMBERS**2
    covariance = fellows * centred.T @ centred / len(centred) + noise**2 * torch.eye(g.shape[1], dtype=torch.float64)
    left = y[:, None].double() - g / MEMBERS - (MEMBERS - 1) / MEMBERS * public.mean(0)
    density = -(left @ torch.linalg.inv(covariance) * left).sum(2)
    scores = Candidates()((view,), ()).scores.double()
    slow, fast = (t - t.mean(1, keepdim=True) for t in (density, scores))
    factor = (slow * fast).sum() / fast.square().sum()
    assert factor > 0
    torch.testing.assert_close(factor * fast, slow, rtol=0.01, atol=0.01 * float(slow.abs().max()))


def test_knowing_the_noise_improves_identification() -> None:
    """If the noise equals the spread of the other members along one axis, an attacker that models it identifies members better."""
    view, _, own = seen(view_of(0.1, 50), 3000)
    nobody = torch.zeros(3000, 50, dtype=torch.bool)
    aware, blind = (
        float(membership(Candidates()((v,), ()).scores, own, nobody)[0].mean())
        for v in (view, replace(view, noise=None))
    )
    assert aware > blind + 0.01
    assert aware > 0.52
