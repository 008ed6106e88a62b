"""Candidates behind an imprint: the likelihood of bin contents equals dense densities, and the right candidate comes first."""

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from leakbench.attack.rankings.bins import FLOOR, in_bins, reads_bins
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.search.shrinkage import shrinkage_of
from leakbench.attack.servers.imprint import edges_of, imprinted
from leakbench.core.rng import generator
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.prune import PruneThreshold
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, Public, View
from leakbench.models import one_hot
from tests.attack.test_servers_imprint import CLASSES, CLOCK, PUBLIC, honest, pictures, sent, view

FEW = Public(PUBLIC.inputs[:300], PUBLIC.labels[:300])


def asked(shown: View, candidates: Tensor, noise: float | None = None) -> View:
    labels = torch.zeros(len(candidates), dtype=torch.int64)
    return dataclasses.replace(shown, public=FEW, candidates=Public(candidates, labels), noise=noise)


def noisy(shown: View, deviation: float) -> View:
    rng = generator(5, "noise")
    update = {n: u + deviation * torch.randn(u.shape, generator=rng).double() for n, u in shown.update.items()}
    return dataclasses.replace(shown, update=update)


def slow(read: Tensor, c: Tensor, functional: Tensor, tau: float) -> float:
    """Return the ratio of dense densities of a bin's content, both given w . x, in a basis of the complement of w."""
    public = FEW.inputs.flatten(1)
    prior = shrinkage_of(public)
    basis = torch.linalg.svd(functional[None])[2][1:]
    covariance = torch.cov(public.T, correction=0) + (prior.rest + tau**2) * torch.eye(36).double()
    w = functional / functional.norm()
    # The conditional distribution of a Gaussian given one direction.
    beside = basis @ covariance @ w / (w @ covariance @ w)
    mean = basis @ public.mean(0) + beside * (w @ (read - public.mean(0)))
    given = basis @ covariance @ basis.T - torch.outer(beside, beside) * (w @ covariance @ w)
    alone = MultivariateNormal(basis @ c, tau**2 * torch.eye(35).double())
    unknown = MultivariateNormal(mean, given)
    return float(alone.log_prob(basis @ read) - unknown.log_prob(basis @ read))


@pytest.mark.parametrize("form", ["sparse", "cumulative"])
@pytest.mark.parametrize("functional", ["mean", "random"])
@pytest.mark.parametrize("noise", [None, 1e-3, 0.3])
def test_the_score_is_the_ratio_of_dense_densities(form, functional, noise):
    """Bin by bin, for candidates with an example in their bin and for others; the difference of two rows has twice the variance."""
    network, bins = sent(bins=12, form=form, functional=functional, gain=100.0)
    x, c = pictures(2, 3), pictures(20, seed=9)
    shown = view(network, bins, x)
    shown = asked(shown if noise is None else noisy(shown, noise), c, noise)
    scores = in_bins(shown, bins, c)
    weight = shown.update["rows.weight"] * bins.signs[:, None]
    if form == "cumulative":
        weight = torch.cat([weight[:, :-1] - weight[:, 1:], weight[:, -1:]], 1)
    for v in range(2):
        for number, one in enumerate(c.flatten(1)):
            h = one @ bins.functional
            row = weight[v, int(((h >= bins.lower) & (h < bins.upper)).nonzero()[0, 0])]
            if noise is None and not row.any():
                assert scores[v, number] == -torch.inf
                continue
            scale = h / (row @ bins.functional)
            s = (noise or 0.0) * (2**0.5 if form == "cumulative" else 1.0)
            expected = slow(row * scale, one, bins.functional, max(FLOOR, float(abs(s * scale))))
            assert float(scores[v, number]) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("noise", [None, 2e-4])
def test_the_present_candidate_comes_first(noise):
    """Some other candidates share its bin, and some are in bins of its batch; each victim is alone in its bin."""
    network, bins = sent(bins=64, gain=100.0)
    x = pictures(8, 3, seed=4)
    where = torch.bucketize(x.flatten(2) @ bins.functional, bins.lower)
    alone = (where == where[:, :1]).sum(1) == 1
    near = (x[:, 0] + 0.5 * (pictures(8, seed=6) - pictures(8, seed=7))).clamp(0, 1)
    candidates = torch.cat([x[:, 0], near, pictures(100, seed=8)])
    shown = view(network, bins, x)
    shown = asked(shown if noise is None else noisy(shown, noise), candidates, noise)
    first = Candidates()((shown,), ()).scores.argmax(1)
    assert alone.sum() >= 6
    assert torch.equal(first[alone], torch.arange(8)[alone])


def test_bins_of_pure_noise_favour_no_candidate():
    """Pure noise: scores are near zero in every bin; a candidate outside of a one-shot bin has zero."""
    network, bins = sent(bins=64)
    c = pictures(50, seed=9)
    shown = view(network, bins, pictures(4, 3))
    drowned = noisy(dataclasses.replace(shown, update={n: 0 * u for n, u in shown.update.items()}), 1.0)
    assert in_bins(asked(drowned, c, 1.0), bins, c).abs().max() < 1
    once, single = sent(bins=64, target=0.5)
    scores = in_bins(asked(view(once, single, pictures(4, 3)), c), single, c)
    h = c.flatten(1) @ single.functional
    outside = (h < single.lower[0]) | (h >= single.upper[0])
    assert outside.any() and (scores[:, outside] == 0).all()


def test_observations_count_as_their_less_noisy_mean():
    network, bins = sent(bins=64, gain=100.0)
    c = pictures(20, seed=9)
    looks = tuple(asked(noisy(view(network, bins, pictures(4, 3)), 0.1), c, 0.1) for _ in range(4))
    assert all(torch.equal(looks[0].update[n], u) for n, u in looks[1].update.items())
    once = dataclasses.replace(looks[0], noise=0.05)
    torch.testing.assert_close(Candidates()(looks, ()).scores, in_bins(once, bins, c))


def test_the_best_client_counts_if_clients_have_separate_bins():
    functional = torch.full((36,), 1 / 36).double()
    edges = edges_of(PUBLIC.inputs.flatten(1) @ functional, 32)
    network, bins = imprinted(honest(), functional, edges, 1.0, False, 2)
    x = pictures(3, 2, 1, seed=4)
    y = one_hot(torch.zeros(3, 2, 1, 1, dtype=torch.int64), CLASSES).double()
    update = leak("type-0", network, x[:, :, None], y, 0.01, Stations(), CLOCK, None)
    shown = View("type-0", network, update, 1, (1, 6, 6), CLASSES, 0.01, cohort=2, secret=bins)
    candidates = torch.cat([x[:, 0, 0], x[:, 1, 0], pictures(30, seed=8)])
    scores = in_bins(asked(shown, candidates, 1e-6), bins, candidates)
    for v in range(3):
        assert set(scores[v].topk(2).indices.tolist()) == {v, v + 3}


def test_the_bin_likelihood_is_used_only_for_batches():
    """With known noise or without a defense; not after pruning, other weights, unknown noise or local steps."""
    network, bins = sent(bins=16)
    shown = view(network, bins, pictures(2, 3))
    noise = Stations(example=(ClipWhole(norm=1.0),), batch=(GaussianNoise(multiplier=0.1, to="sum"),))
    told = dataclasses.replace(shown, stations=noise, noise=0.03)
    prune = Stations(client=(PruneThreshold(share=0.5),))
    assert reads_bins(shown) and reads_bins(told)
    for other in (
        dataclasses.replace(shown, secret=None),
        dataclasses.replace(shown, batch=1),
        dataclasses.replace(shown, tap="type-2"),
        dataclasses.replace(told, noise=None),
        dataclasses.replace(shown, stations=prune),
        dataclasses.replace(shown, unknown="a noise"),
        dataclasses.replace(shown, batch=1, local_steps=3),
        dataclasses.replace(shown, knowledge=Knowledge(reads="weights")),
    ):
        assert not reads_bins(other)
