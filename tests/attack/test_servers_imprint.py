"""A server that imprints: the content of its rows, the expected number of reconstructions, and the effect of defenses."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.methods.rows import Rows
from leakbench.attack.servers.imprint import Bins, Imprint, Imprinted, edges_of
from leakbench.attack.servers.server import Honest
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.precode import Precode
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, Public, View
from leakbench.models import one_hot, parameters

SHAPE, CLASSES, CLOCK = (1, 6, 6), 3, Clock(0, 0, 1, 1)


def honest() -> Network:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, CLASSES)).double().eval()
    return Network(model, parameters(model))


def pictures(*many: int, seed: int = 1) -> Tensor:
    """Return pictures of uniform brightness: values around a uniform mean."""
    generator_ = torch.Generator().manual_seed(seed)
    mean = 0.2 + 0.6 * torch.rand(*many, *[1] * len(SHAPE), generator=generator_)
    return (mean + 0.1 * (torch.rand(*many, *SHAPE, generator=generator_) - 0.5)).double()


PUBLIC = Public(pictures(2000, seed=2), torch.zeros(2000, dtype=torch.int64))


def sent(**fields: object) -> tuple[Network, Bins]:
    return construct(Imprint, fields)(honest(), PUBLIC, Knowledge(), torch.Generator().manual_seed(3))


def view(network: Network, secret: object, x: Tensor, stations: Stations | None = None, steps: int = 1) -> View:
    """Return the view of V clients with L * B pictures each (V, L * B, *s), at type-1."""
    victims, many = x.shape[:2]
    shaped = x.reshape(victims, 1, steps, many // steps, *SHAPE)
    y = one_hot(torch.arange(many).expand(victims, -1) % CLASSES, CLASSES).double()
    y = y.reshape(victims, 1, steps, many // steps, CLASSES)
    stations = stations or Stations()
    update = leak("type-1", network, shaped, y, 0.01, stations, CLOCK, None)
    return View("type-1", network, update, many // steps, SHAPE, CLASSES, 0.01, local_steps=steps, secret=secret)


def rngs(victims: int) -> tuple[torch.Generator, ...]:
    return generators(0, "v", [(v,) for v in range(victims)])


def recovered(answer: Tensor, truth: Tensor, within: float = 1e-6) -> Tensor:
    """Return (V, M): which truths (V, M, *s) equal a reconstruction."""
    apart = (truth[:, :, None] - answer[:, None]).flatten(3).square().mean(3).sqrt()
    return (apart.nan_to_num(nan=torch.inf) < within).any(2)


@pytest.mark.parametrize("form", ["sparse", "cumulative"])
@pytest.mark.parametrize("functional", ["mean", "random"])
@pytest.mark.parametrize("gain", [0.01, 100.0])
def test_exactly_the_examples_alone_in_their_bin_are_reconstructed(form, functional, gain):
    """By the bins of the truth, at any gain; two in one bin give one reconstruction that equals neither."""
    network, bins = sent(bins=20, form=form, functional=functional, gain=gain)
    x = pictures(6, 5)
    found = Rows()((view(network, bins, x),), rngs(6))
    where = torch.bucketize(x.flatten(2) @ bins.functional, torch.cat([bins.lower, bins.upper[-1:]]))
    alone = (where[:, :, None] == where[:, None]).sum(2) == 1
    assert alone.any()
    assert not alone.all()
    assert torch.equal(recovered(found.inputs, x), alone)
    many = torch.tensor([len(set(row)) for row in where.tolist()])
    answered = ~found.inputs.flatten(2).isnan().any(2)
    assert (
        answered.sum(1) <= many
    ).all()  # If the gradients of two point in different directions, the bin contains nothing that can be an input.
    assert torch.equal(answered, found.certainty.isfinite())
    assert (found.certainty[:, :-1] >= found.certainty[:, 1:]).all()


def test_bins_from_few_public_values_are_equally_likely():
    """With 300 values, each of 256 bins has about 1 / 256 of other such values, unlike quantiles of the values themselves."""
    rng = torch.Generator().manual_seed(7)
    known, others = (torch.randn(many, generator=rng, dtype=torch.float64) for many in (300, 200_000))
    inner = edges_of(known, 256)[1:-1]
    raw = known.quantile(torch.arange(1, 256).double() / 256)

    def collisions(edges: Tensor) -> float:
        shares = torch.bincount(torch.bucketize(others, edges), minlength=256).double() / len(others)
        return float(shares.square().sum() * 256)

    assert collisions(inner) < 1.1
    assert collisions(raw) > 1.5


@pytest.mark.parametrize("form", ["sparse", "cumulative"])
def test_one_shot_reconstructs_only_the_target(form):
    """One bin around the brightness of one picture, which contains a 64th of the public pictures."""
    x = pictures(12, 6)
    target = float(x[0, 0].mean())
    network, bins = sent(bins=64, form=form, target=target)
    assert len(bins.lower) == (2 if form == "cumulative" else 1)
    assert float(bins.lower[0]) < target < float(bins.upper[0])
    share = ((PUBLIC.inputs.flatten(1).mean(1) - target).abs() <= bins.upper[0] - target).double().mean()
    assert float(share) == pytest.approx(1 / 64, abs=1e-3)
    found = Rows()((view(network, bins, x),), rngs(12))
    inside = (x.flatten(2).mean(2) > bins.lower[0]) & (x.flatten(2).mean(2) < bins.upper[0])
    alone = inside & (inside.sum(1, keepdim=True) == 1)
    assert torch.equal(recovered(found.inputs, x) & inside, alone)
    assert bool(alone[0, 0])


@pytest.mark.parametrize(("bins", "many"), [(16, 4), (64, 8), (64, 32)])
def test_the_share_alone_in_a_bin_follows_the_law(bins, many):
    """(1 - 1 / k)^(n - 1) of n examples are alone in one of k equally likely bins: within four standard errors."""
    network, secret = sent(bins=bins)
    x = pictures(40, many, seed=bins + many)
    share = recovered(Rows()((view(network, secret, x),), rngs(40)).inputs, x).double().mean(1)
    expected = (1 - 1 / bins) ** (many - 1)
    assert abs(float(share.mean()) - expected) < 4 * float(share.std()) / 40**0.5 + 0.01


def test_the_network_behind_the_imprint_is_the_honest_one():
    """Its weights and names stay, its output hardly changes, and its memory is copied."""
    plain = honest()
    kept = {"3.memory": torch.ones(2)}
    network, bins = Imprint(bins=8, gain=1e-6)(
        dataclasses.replace(plain, memory=kept), PUBLIC, Knowledge(), torch.Generator()
    )
    assert isinstance(network.model, Imprinted)
    assert list(network.parameters)[-1] == "model.3.bias"
    for name, weights in plain.parameters.items():
        assert torch.equal(network.parameters[f"model.{name}"], weights)
    x = pictures(3)
    torch.testing.assert_close(network.model(x), plain.model(x), rtol=0, atol=1e-5)
    assert list(network.memory) == ["model.3.memory"]
    assert bins.layer == "rows"
    assert (Imprint().threat, Honest().threat) == ("malicious architecture", "honest")


def test_a_clip_by_layers_changes_the_quotient_but_not_the_reading_by_the_bin():
    """Weight and bias of a row are scaled separately; the middle of the bin gives the scale up to the bin's width."""
    network, bins = sent(bins=64, gain=100.0)
    x = pictures(8, 1)
    clipped = view(network, bins, x, Stations(example=(ClipLayers(norm=1e-3),)))
    assert not recovered(Rows()((clipped,), rngs(8)).inputs, x, 0.05).any()
    assert recovered(Rows(scale="bin")((clipped,), rngs(8)).inputs, x, 0.05).all()
    whole = view(network, bins, x, Stations(example=(ClipWhole(norm=1e-3),)))
    assert recovered(Rows()((whole,), rngs(8)).inputs, x).all()


def test_an_attacker_that_knows_a_clip_by_layers_reads_by_the_bin():
    network, bins = sent(bins=64, gain=100.0)
    x = pictures(8, 1)
    stations = Stations(example=(ClipLayers(norm=1e-3),))
    clipped = view(network, bins, x, stations)
    assert not recovered(Rows()((clipped,), rngs(8)).inputs, x, 0.05).any()
    assert recovered(Rows()((dataclasses.replace(clipped, stations=stations),), rngs(8)).inputs, x, 0.05).all()
    weights = dataclasses.replace(clipped, knowledge=Knowledge(reads="weights"))
    assert recovered(Rows()((weights,), rngs(8)).inputs, x, 0.05).all()


def test_an_attacker_that_knows_the_noise_uses_the_posterior_mean():
    """It is closer than without knowledge of the noise. In pure noise it reconstructs nothing."""
    network, bins = sent(bins=32, gain=100.0)
    x = pictures(20, 2)
    stations = Stations(example=(ClipWhole(norm=1.0),), batch=(GaussianNoise(multiplier=0.004, to="sum"),))
    y = one_hot(torch.arange(2).expand(20, -1), CLASSES).double()[:, None, None]
    lanes = generators(0, "noise", [(v,) for v in range(20)])
    update = leak("type-1", network, x[:, None, None], y, 0.01, stations, CLOCK, lanes)
    blind = View("type-1", network, update, 2, SHAPE, CLASSES, 0.01, secret=bins, public=PUBLIC)
    told = dataclasses.replace(blind, stations=stations, noise=0.002)

    def error(shown: View) -> float:
        found = Rows()((shown,), rngs(20)).inputs
        apart = (x[:, :, None] - found[:, None]).flatten(3).square().mean(3).sqrt()
        return float(apart.nan_to_num(nan=1.0).amin(2).median())

    assert error(told) < 0.9 * error(blind)
    answered = ~Rows()((blind,), rngs(20)).inputs.flatten(2).isnan().any(2)
    # Without knowledge the attacker estimates the noise from empty bins, and its reconstructions stay noisy.
    assert answered.double().mean() > 0.8
    drowned = dataclasses.replace(
        told, noise=10.0, update={n: 10 * torch.randn(u.shape).double() for n, u in update.items()}
    )
    assert Rows()((drowned,), rngs(20)).inputs.isnan().all()


def test_local_steps_change_the_rows_little():
    """Two steps of four pictures each, sparse rows: seven of eight are reconstructed to .05."""
    network, bins = sent(bins=64, gain=0.01)
    x = pictures(6, 8)
    found = Rows(tolerance=0.05)((view(network, bins, x, steps=2),), rngs(6)).inputs
    assert recovered(found, x, 0.05).double().mean() > 0.85


def test_a_sampling_network_gets_draws_through_the_imprint():
    network = honest()
    model = Precode(4)(network.model.float(), SHAPE, CLASSES, generator(0, "x")).double()
    behind, bins = Imprint(bins=16)(Network(model, parameters(model)), PUBLIC, Knowledge(), torch.Generator())
    assert behind.draws == 4
    x = pictures(3, 1)
    y = one_hot(torch.zeros(3, 1, dtype=torch.int64), CLASSES).double()[:, None, None]
    draws = torch.randn(3, 1, 1, 4).double()
    update = leak("type-1", behind, x[:, None, None], y, 0.1, Stations(), CLOCK, None, draws)
    shown = View("type-1", behind, update, 1, SHAPE, CLASSES, 0.1, secret=bins)
    assert recovered(Rows()((shown,), rngs(3)).inputs, x).all()


def test_wrong_input_is_refused():
    plain = honest()
    with pytest.raises(InputError, match="this network has neither"):
        Rows()((view(plain, None, pictures(2, 1)),), rngs(2))
    with pytest.raises(InputError, match="quantiles of public examples, got 1"):
        Imprint()(plain, Public(PUBLIC.inputs[:1], PUBLIC.labels[:1]), Knowledge(), torch.Generator())
    with pytest.raises(InputError, match="got 1, expected two"):
        Imprint(public=1)(plain, PUBLIC, Knowledge(), torch.Generator())
    for many in (PUBLIC.inputs[:1].expand(9, *SHAPE), torch.full((9, *SHAPE), torch.nan)):
        with pytest.raises(InputError, match="not finite, or all alike"):
            Imprint()(plain, Public(many, PUBLIC.labels[:9]), Knowledge(), torch.Generator())
    with pytest.raises(InputError, match="bins"):
        construct(Imprint, {"bins": 0})
    recipe = {"title": "t", "cite": "c", "method": "rows", "server": {"imprint": {"public": 33}}}
    assert construct(Attack, recipe).needs.public == 33
    assert construct(Attack, {**recipe, "knows": "defense"}).needs.public == Rows().public
