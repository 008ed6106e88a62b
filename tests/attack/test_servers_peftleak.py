"""PEFTLeak: adapters of a chosen frozen ViT show each patch that is alone in its bin, and tags group patches into pictures."""

import dataclasses

import pytest
import torch
from torch import Tensor

from leakbench.attack.methods.adapter_rows import AdapterRows, read_patches, read_pictures
from leakbench.attack.methods.adapter_rows import _Prior as Gaussian
from leakbench.attack.methods.rows import Rows
from leakbench.attack.servers.peftleak import PatchBins, PeftLeak, patches_of
from leakbench.cell import Request, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, Public, View
from leakbench.limits.reference import alone_patches
from leakbench.models import build, one_hot, parameters
from leakbench.models.trainable import with_trainable
from leakbench.models.vision_transformer import vision_transformer

SHAPE, CLASSES, CLOCK, POSITIONS = (3, 16, 16), 3, Clock(0, 0, 1, 1), 16


def honest(rank: int = 40, depth: int = 3, width: int = 96, shape: tuple[int, int, int] = SHAPE) -> Network:
    torch.manual_seed(0)
    model = vision_transformer("vit", shape, CLASSES, patch=4, width=width, depth=depth, heads=3).double().eval()
    model = with_trainable(model, f"adapters:r={rank}", generator(0, "adapters"), shape)
    return Network(model, parameters(model))


def pictures(*many: int, seed: int = 1) -> Tensor:
    """Return pictures of independent pixels around a mean of their own for each patch."""
    drawn = torch.Generator().manual_seed(seed)
    means = 0.2 + 0.6 * torch.rand(*many, 1, 4, 1, 4, 1, generator=drawn)
    noise = 0.2 * (torch.rand(*many, 3, 4, 4, 4, 4, generator=drawn) - 0.5)
    return (means + noise).reshape(*many, *SHAPE).double()


PUBLIC = Public(pictures(500, seed=2), torch.zeros(500, dtype=torch.int64))


def attacked(x: Tensor, stations: Stations | None = None, network: Network | None = None) -> View:
    """Return the view of V clients with B pictures each (V, B, *s), at type-1."""
    sent, bins = PeftLeak()(network or honest(), PUBLIC, Knowledge(), generator(0, "server"))
    victims, many = x.shape[:2]
    y = one_hot(torch.arange(many).expand(victims, -1) % CLASSES, CLASSES).double()[:, None, None]
    update = leak("type-1", sent, x[:, None, None], y, 0.1, stations or Stations(), CLOCK, None)
    return View("type-1", sent, update, many, SHAPE, CLASSES, 0.1, secret=bins, public=PUBLIC)


def alone(x: Tensor, bins: PatchBins) -> Tensor:
    """Return (V, B, P) bool, whether a patch is the only one in its bin."""
    content = (patches_of(x.flatten(0, 1), 4) - bins.middle) @ bins.basis[0]
    h = content + bins.gap * torch.arange(1, POSITIONS + 1)
    edges = torch.cat([bins.cutoffs[:, :-1].flatten(), bins.cutoffs[-1:, -1]])
    place = torch.searchsorted(edges, h).reshape(*x.shape[:2], -1)
    same = place[:, :, :, None, None] == place[:, None, None]
    return same.sum((3, 4)) == 1


def rebuilt(view: View) -> Tensor:
    return AdapterRows()((view,), generators(0, "v", [(v,) for v in range(view.victims)])).inputs


def test_one_picture_is_read_exactly():
    x = pictures(3, 1)
    answer = AdapterRows()((attacked(x),), generators(0, "v", [(0,), (1,), (2,)]))
    assert float((answer.inputs - x).abs().max()) < 1e-10
    assert answer.certainty.eq(POSITIONS).all()


def test_every_patch_that_is_alone_in_its_bin_is_read_exactly():
    x = pictures(4, 4)
    view = attacked(x)
    patches, single = read_patches(view, view.secret, 0.02), alone(x, view.secret)
    for v in range(len(x)):
        values, place = patches.values[v, patches.possible[v]], patches.place[v, patches.possible[v]]
        found = {(int(p), tuple((value * 1e6).round().tolist())) for p, value in zip(place, values, strict=True)}
        true = (patches_of(x[v], 4) * 1e6).round()
        wanted = {(p, tuple(true[b, p].tolist())) for b in range(4) for p in range(POSITIONS) if single[v, b, p]}
        assert wanted and wanted <= found
    assert abs(float(single.double().mean()) - alone_patches(view.secret, 4)) < 0.1


@pytest.mark.parametrize(("rank", "shared_out"), [(40, (11, 7)), (17, (16, 3)), (9, (8, 1))])
def test_the_law_of_patches_equals_that_of_balls_in_bins(rank, shared_out):
    """3 adapters of r rows have 3 (r - 1) bins for 16 positions: 117 as 11 x 7 + 5 x 8, 48 as 16 x 3, 24 as 8 x 1 + 8 x 2."""
    _, bins = PeftLeak()(honest(rank), PUBLIC, Knowledge(), generator(0, "server"))
    many, least = shared_out
    sizes = torch.tensor([least] * many + [least + 1] * (POSITIONS - many))
    drawn = (torch.rand(20000, 4, POSITIONS, generator=generator(0, "balls")) * sizes).floor()
    single = ((drawn[:, :, None] == drawn[:, None]).sum(2) == 1).double().mean((1, 2))
    assert abs(float(single.mean()) - alone_patches(bins, 4)) < 4 * float(single.std()) / 20000**0.5 + 1e-12
    assert alone_patches(bins, 1) == 1


def test_known_noise_is_allowed_for_and_removed():
    """Noise of 1/300 of the coordinate that is one: the oblivious reading accepts few patches, the adaptive one most."""
    x = pictures(4, 1)
    view = attacked(x)
    size = patch_scale(view)
    noise = size / 300
    rng = generator(0, "noise")
    update = {n: u + noise * torch.randn(u.shape, generator=rng).to(u) for n, u in view.update.items()}
    blind = dataclasses.replace(view, update=update)
    told = dataclasses.replace(blind, noise=noise)
    read = [read_patches(seen, view.secret, 0.02) for seen in (blind, told)]
    assert read[0].possible.sum() < 0.5 * read[1].possible.sum()
    own = patches_of(x.flatten(0, 1), 4)
    place = read[1].place[0].expand_as(read[1].possible)
    for v in range(len(x)):
        good = read[1].possible[v]
        assert good.sum() >= 12
        apart = read[1].values[v, good] - own[v, place[v, good]]
        # The stated deviation is that of the error.
        ratio = apart / read[1].noise[v, good, None]
        assert 0.7 < float(ratio.std()) < 1.4
    errors = [float((rebuilt(seen) - x).square().mean(3).sqrt().nan_to_num(nan=1.0).mean()) for seen in (blind, told)]
    assert errors[1] < 0.5 * errors[0]


def test_known_noise_widens_the_bins():
    """Noise of 1/30 moves the content of some patches out of their bins, and within five deviations of them."""
    view = attacked(pictures(4, 1))
    noise, rng = patch_scale(view) / 30, generator(0, "noise")
    update = {n: u + noise * torch.randn(u.shape, generator=rng).to(u) for n, u in view.update.items()}
    told = dataclasses.replace(view, update=update, noise=noise)
    assert read_patches(told, view.secret, 0.0).possible.sum(1).tolist() == [POSITIONS] * 4


def test_the_variance_outside_the_leading_components_is_that_of_the_others(monkeypatch):
    """Three leading eigenvalues of the covariance of 30 pictures are in the directions, and the rest is noise."""
    monkeypatch.setattr("leakbench.attack.methods.adapter_rows.LEADING", 3)
    known = PUBLIC.inputs[:30, :, :4, :4]
    prior = Gaussian.of(known)
    values, vectors = torch.linalg.eigh(torch.cov(known.flatten(1).mT, correction=0))
    torch.testing.assert_close(prior.noise, values[:-3].sum() / 48 + 1e-6)
    leading = vectors[:, -3:] * values[-3:] @ vectors[:, -3:].mT
    torch.testing.assert_close(prior.directions @ prior.directions.mT, leading, rtol=0, atol=1e-10)


def test_a_picture_is_its_posterior_mean_under_the_gaussian_of_public_pictures():
    """As by the covariance of the whole Gaussian; missing pixels, exact ones, and ones with noise of several sizes."""
    prior = Gaussian.of(PUBLIC.inputs[:30, :, :4, :4])
    covariance = prior.directions @ prior.directions.mT + prior.noise * torch.eye(48)
    x = PUBLIC.inputs[40, :, :4, :4].flatten()
    noise = torch.tensor([0.0, 0.02, 0.3, torch.inf]).double().repeat(12)
    known = noise.isfinite()
    read = x.where(known, torch.nan)
    shown = covariance[:, known]
    gain = shown @ torch.linalg.inv(shown[known] + noise[known].square().diag())
    expected = prior.mean + gain @ (x - prior.mean)[known]
    answer = prior(read, noise.where(known, 0.0))
    torch.testing.assert_close(answer, expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(answer[noise == 0], x[noise == 0])


def patch_scale(view: View) -> float:
    """Return the median of the coordinate that is one, over the bins with a patch."""
    weight = torch.stack([view.update[f"{name}.weight"] for name in view.secret.layers], 1)
    one = (weight[:, :, :-1] - weight[:, :, 1:])[..., view.secret.layout.one].abs()
    return float(one[one > 1e-3 * one.max()].median())


def test_the_tag_puts_patches_of_one_picture_together():
    x = pictures(3, 4)
    view = attacked(x)
    found, single = rebuilt(view), alone(x, view.secret)
    for v in range(len(x)):
        for b in range(4):
            places = single[v, b].nonzero()[:, 0]
            own = patches_of(x[v, b][None], 4)[0, places]
            apart = (patches_of(found[v], 4)[:, places] - own).abs().amax((1, 2))
            assert float(apart.min()) < 1e-9  # One picture of the answer has all patches that were alone.


def test_the_patches_that_were_read_are_marked_in_the_pictures():
    """The marked patches are exact, and others are filled in; the certainty of a picture is their number."""
    x = pictures(3, 4)
    view = attacked(x)
    found, read = read_pictures(view, view.secret, AdapterRows())
    answer = AdapterRows()((view,), generators(0, "v", [(v,) for v in range(3)]))
    marked = patches_of(read.flatten(0, 1).double(), 4)
    assert (marked.min(2).values == marked.max(2).values).all() and 0 < float(marked.mean()) < 1
    assert torch.equal(answer.certainty, marked[..., 0].sum(1).reshape(3, 4).to(answer.certainty))
    torch.testing.assert_close(answer.inputs, found, rtol=0, atol=0, equal_nan=True)
    apart = (patches_of(found.flatten(0, 1), 4)[:, None] - patches_of(x.flatten(0, 1), 4)[None]).abs().amax(3).amin(1)
    assert (apart[marked[..., 0] == 1] < 1e-9).double().mean() > 0.9
    assert (apart[marked[..., 0] == 0] > 1e-3).all()


def test_the_architecture_is_that_of_the_client_and_the_honest_network_is_unchanged():
    network = honest()
    before = {name: p.clone() for name, p in network.model.named_parameters()}
    sent, _ = PeftLeak()(network, PUBLIC, Knowledge(), generator(0, "server"))
    assert {n: p.shape for n, p in sent.parameters.items()} == {n: p.shape for n, p in network.parameters.items()}
    assert all(torch.equal(p, before[name]) for name, p in network.model.named_parameters())
    assert set(sent.frozen) == set(network.frozen) and PeftLeak().threat == "malicious parameters"


@pytest.mark.parametrize("clip", [ClipWhole(norm=1e-3), ClipLayers(norm=1e-4)])
def test_a_clip_changes_nothing(clip):
    """A bin is divided by its own coordinate that is one, which a clip scales alike."""
    x = pictures(2, 1)
    assert float((rebuilt(attacked(x, Stations(batch=(clip,)))) - x).abs().max()) < 1e-8


def test_in_single_precision_patches_have_few_errors():
    network = honest()
    model = network.model.float()
    public = Public(PUBLIC.inputs.float(), PUBLIC.labels)
    sent, bins = PeftLeak()(Network(model, parameters(model)), public, Knowledge(), generator(0, "server"))
    x, y = pictures(2, 1).float(), one_hot(torch.zeros(2, 1, 1, 1, dtype=torch.int64), CLASSES)
    update = leak("type-1", sent, x[:, None, None], y, 0.1, Stations(), CLOCK, None)
    view = View("type-1", sent, update, 1, SHAPE, CLASSES, 0.1, secret=bins, public=public)
    assert float((rebuilt(view) - x).abs().max()) < 1e-3


def test_a_patch_with_too_many_values_keeps_its_leading_components():
    """Width 72 leaves 72 - 16 - 8 = 48 coordinates, width 60 leaves 36 of 48."""
    x = pictures(1, 1)
    exact, short = (attacked(x, network=honest(width=width)) for width in (72, 60))
    assert (exact.secret.layout.content, short.secret.layout.content) == (48, 36)
    assert float((rebuilt(exact) - x).abs().max()) < 1e-10
    middle, basis = short.secret.middle, short.secret.basis
    projected = (patches_of(x[0], 4) - middle) @ basis.mT @ basis + middle
    assert torch.allclose(patches_of(rebuilt(short)[0], 4), projected.clamp(0, 1), atol=1e-9)


def test_wrong_networks_are_refused():
    torch.manual_seed(0)
    head = with_trainable(
        vision_transformer("vit", SHAPE, CLASSES, patch=4, width=96, depth=3), "head", generator(0, "h"), SHAPE
    )
    cnn = build("cnn", SHAPE, CLASSES, generator(0, "m"))
    for model in (head, cnn):
        with pytest.raises(InputError, match=r"--trainable adapters:r=64"):
            PeftLeak()(Network(model, parameters(model)), PUBLIC, Knowledge(), generator(0, "server"))
    # 16 positions need 16 bins, 3 adapters of r rows have 3 (r - 1).
    attacked(pictures(1, 1), network=honest(rank=7))
    with pytest.raises(InputError, match=r"3 adapters of 6 rows have 15 bins for 16 patches; .*adapters:r=7 or more"):
        attacked(pictures(1, 1), network=honest(rank=6))
    with pytest.raises(InputError, match="has 16 patches, and a head of 8 numbers"):
        attacked(pictures(1, 1), network=honest(width=24))
    with pytest.raises(InputError, match="got 1, expected two"):
        PeftLeak()(honest(), PUBLIC.first(1), Knowledge(), generator(0, "server"))


def test_each_method_reads_its_own_server():
    view = attacked(pictures(1, 1))
    with pytest.raises(InputError, match="give the attack a server: peftleak"):
        AdapterRows()((dataclasses.replace(view, secret=None),), generators(0, "v", [(0,)]))
    with pytest.raises(InputError, match="this network has neither"):
        Rows()((view,), generators(0, "v", [(0,)]))


def test_a_run_needs_adapters():
    request = Request(attack="peftleak", dataset="digits", victims=2, candidates=4, train_rounds=0)
    with pytest.raises(InputError, match=r"^peftleak: it reads the adapters of a vision transformer"):
        resolve_cell(request, None)
