"""Scale-MIA: bins of latents behind trained convolutions, their contents, the law of collisions, and the decoder."""

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.fit_store import FitStore
from leakbench.attack.learn.autoencoder import mirror_of
from leakbench.attack.methods.bins import read_bins
from leakbench.attack.methods.latent_rows import LatentRows
from leakbench.attack.servers.head import encoded, head_of
from leakbench.attack.servers.scale_mia import LatentBins, ScaleMia
from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.transform import Stations
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import sent_to_clients
from leakbench.federated.leakage import leak, rounded
from leakbench.federated.view import Knowledge, Public, View
from leakbench.models import build, one_hot, parameters

SHAPE, CLASSES, CLOCK, BINS = (1, 8, 8), 3, Clock(0, 0, 1, 1), 64
ANY = (-torch.inf, torch.inf)


def network_of(*widths: int) -> Network:
    layers: list[nn.Module] = [nn.Conv2d(1, 6, 4, stride=2, padding=1), nn.ReLU(), nn.Flatten()]
    sides = (96, *widths, CLASSES)
    for entering, leaving in itertools.pairwise(sides):
        layers += [nn.Linear(entering, leaving), nn.ReLU()]
    torch.manual_seed(0)
    model = nn.Sequential(*layers[:-1]).double().eval()
    return Network(model, parameters(model))


def pictures(*many: int, seed: int = 1) -> Tensor:
    """Return pictures of random brightness with random texture."""
    rng = torch.Generator().manual_seed(seed)
    mean = 0.1 + 0.6 * torch.rand(*many, 1, 1, 1, generator=rng)
    return (mean + 0.2 * torch.rand(*many, *SHAPE, generator=rng)).double()


PUBLIC = Public(pictures(2000, seed=2), torch.zeros(2000, dtype=torch.int64))
SERVER = ScaleMia(steps=300, learning_rate=0.01)


def sent(*widths: int) -> tuple[Network, LatentBins]:
    return SERVER(network_of(*widths), PUBLIC, Knowledge(), generator(0, "server"))


def view(
    network: Network, secret: object, x: Tensor, stations: Stations | None = None, reads: str = "gradient"
) -> View:
    """Return the view of V sums over K clients of B pictures (V, K, B, *s)."""
    y = one_hot(torch.arange(x.shape[2]).expand(*x.shape[:3]) % CLASSES, CLASSES).double()[:, :, None]
    update = leak("global", network, x[:, :, None], y, 0.01, stations or Stations(), CLOCK, None)
    if reads == "weights":
        update = rounded(update, {n: p.float() for n, p in network.parameters.items()}, 0.01)
    return View(
        "global", network, update, x.shape[2], SHAPE, CLASSES, 0.01, cohort=x.shape[1], secret=secret,
        knowledge=Knowledge(examples=x.shape[1] * x.shape[2], reads=reads), stations=stations or Stations(),
    )  # fmt: skip


def truth(network: Network, x: Tensor) -> Tensor:
    """Return the latents (V, M, d) of pictures (V, K, B, *s)."""
    return encoded(network, head_of("t", network), x.flatten(0, 2)).reshape(len(x), -1, 96)


def in_any_bin(view: View, latents: Tensor, within: float) -> Tensor:
    """Return (V, M): which latents some bin contains, relative to the deviation of public latents."""
    read = read_bins(view, view.secret.bins, "told", 0.01, ANY).contents
    apart = (latents[:, :, None] - read[:, None]).square().mean(3).sqrt()
    return apart.nan_to_num(nan=torch.inf).amin(2) < within * view.secret.latents.known.std()


def alone(latents: Tensor, secret: LatentBins) -> Tensor:
    """Return (V, M): which latents are alone in their bin, by the truth."""
    where = torch.bucketize(latents.mean(2), secret.bins.lower)
    return (where[:, :, None] == where[:, None]).sum(2) == 1


@pytest.mark.parametrize("later", [(), (20,), (20, 10)])
def test_exactly_the_latents_alone_in_their_bin_are_read(later):
    """By the truth, in double precision, for heads of two, three and four linear layers."""
    network, secret = sent(BINS, *later)
    x = pictures(4, 1, 12)
    latents = truth(network, x)
    expected = alone(latents, secret)
    assert expected.any()
    assert not expected.all()
    assert torch.equal(in_any_bin(view(network, secret, x), latents, 1e-7), expected)


def test_most_of_an_example_s_gradient_is_in_the_bins():
    network, secret = sent(BINS, 20)
    update = view(network, secret, pictures(20, 1, 1)).update
    energy = {n: float(u.square().sum()) for n, u in update.items()}
    assert energy["3.weight"] > 0.5 * sum(energy.values())
    # No class is silent: its examples have gradients of the same order as those of the others.
    y = one_hot(torch.arange(CLASSES)[:, None, None, None], CLASSES).double()
    same = pictures(1, 1, 1, 1).expand(CLASSES, -1, -1, -1, -1, -1, -1)
    lengths = leak("type-1", network, same, y, 0.01, Stations(), CLOCK, None)["3.weight"].flatten(1).norm(dim=1)
    assert float(lengths.min()) > 0.2 * float(lengths.max())


def test_a_sum_of_clients_follows_the_law_of_all_examples():
    network, secret = sent(BINS, 20)
    x = pictures(30, 4, 4, seed=9)
    view_ = view(network, secret, x)
    read = in_any_bin(view_, truth(network, x), 1e-7).double().mean(1)
    law = (1 - 1 / BINS) ** 15
    assert abs(float(read.mean()) - law) < 4 * float(read.std()) / 30**0.5 + 0.02


def test_the_reconstruction_is_the_decoded_latent():
    network, secret = sent(BINS, 20)
    x = pictures(3, 1, 5)
    latents = truth(network, x)
    found = LatentRows()((view(network, secret, x),), generators(0, "v", [(v,) for v in range(3)]))
    decoded = secret.latents.decode(latents, SHAPE)
    apart = (decoded[:, :, None] - found.inputs[:, None]).flatten(3).square().mean(3).sqrt().nan_to_num(nan=9).amin(2)
    assert torch.equal(apart < 1e-6, alone(latents, secret))
    # A decoder of 300 steps is already closer than the mean of all public pictures.
    missed = (decoded - x[:, 0]).square().mean()
    assert float(missed) < 0.5 * float((PUBLIC.inputs.mean(0) - x[:, 0]).square().mean())


def test_a_clip_keeps_the_quotient_and_the_middle_of_the_bin_survives_what_spoils_it():
    network, secret = sent(BINS, 20)
    x = pictures(4, 1, 6)
    latents = truth(network, x)
    expected = alone(latents, secret)
    blind = dataclasses.replace(view(network, secret, x, Stations(example=(ClipWhole(norm=0.1),))), stations=Stations())
    assert torch.equal(in_any_bin(blind, latents, 1e-6), expected)
    layers = view(network, secret, x, Stations(example=(ClipLayers(norm=0.1),)))
    oblivious = dataclasses.replace(layers, stations=Stations())
    # The outer bins have no upper or lower edge of their own, so that their middles are wrong.
    assert in_any_bin(layers, latents, 0.2)[expected].double().mean() > 0.9
    assert in_any_bin(oblivious, latents, 0.2).double().mean() < 0.3
    weights = view(network, secret, x, reads="weights")
    assert in_any_bin(weights, latents, 0.2)[expected].double().mean() > 0.9


def test_a_known_noise_is_denoised_with_public_latents():
    network, secret = sent(BINS, 20)
    x = pictures(8, 1, 1)
    noisy = Stations(example=(ClipWhole(norm=1.0),), batch=(GaussianNoise(multiplier=2e-3, to="sum"),))
    y = one_hot(torch.zeros(8, 1, 1, 1, dtype=torch.int64), CLASSES).double()
    lanes = generators(0, "noise", [(v,) for v in range(8)])
    update = leak("type-1", network, x[:, :, None], y, 0.01, noisy, CLOCK, lanes)
    told = View("type-1", network, update, 1, SHAPE, CLASSES, 0.01, secret=secret, stations=noisy, noise=2e-3)
    rngs = generators(0, "v", [(v,) for v in range(8)])
    decoded = secret.latents.decode(truth(network, x), SHAPE)
    errors = [
        (LatentRows(scale=scale)((seen,), rngs).inputs - decoded)
        .flatten(1)
        .square()
        .mean(1)
        .nan_to_num(nan=1.0)
        .median()
        for seen, scale in ((told, "told"), (dataclasses.replace(told, noise=None, stations=Stations()), "bias"))
    ]
    assert float(errors[0]) < 0.1**2
    assert float(errors[0]) < float(errors[1])


def test_the_mirror_gives_the_shape_of_the_inputs():
    for side in (8, 10, 11, 14, 28, 32):
        model = build("cnn_fc_1024", (3, side, side), 2, generator(0, "m"))
        head = head_of("t", Network(model, parameters(model)))
        latents = head.encoder(torch.zeros(2, 3, side, side))
        assert mirror_of(head.encoder, (3, side, side))(latents.flatten(1)).shape == (2, 3, side, side)


def test_stored_and_new_fits_are_bit_identical_and_other_public_data_give_others(tmp_path):
    def learn(folder, public=PUBLIC):
        return SERVER.learn(network_of(BINS, 20), public, Knowledge(), generator(0, "server"), FitStore(folder))

    first, again, new = learn(tmp_path), learn(tmp_path), learn(None)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    for other in (again, new):
        for name, parameter in first[0].parameters.items():
            assert torch.equal(parameter, other[0].parameters[name])
        for name, tensor in first[1].latents.decoder.state_dict().items():
            assert torch.equal(tensor, other[1].latents.decoder.state_dict()[name])
    other = learn(tmp_path, Public(pictures(2000, seed=3), PUBLIC.labels))
    assert not torch.equal(other[0].parameters["0.weight"], first[0].parameters["0.weight"])


@pytest.mark.parametrize(("server", "method"), [("scale_mia", "latent_rows"), ("seer", "projection")])
def test_a_server_learns_nothing_from_the_victims(server, method, monkeypatch):
    """What it sends and keeps is bit-identical if all examples of the clients are other ones."""
    monkeypatch.setenv("LEAKBENCH_FITS", "")
    fields = {"steps": 2} if server == "scale_mia" else {"steps": 2, "encoder_steps": 2}
    asked = Request(dataset="digits", attack=server, victims=2, leak_batch=8, train_rounds=0, taps=("type-1",),
                    leak_model="cnn_fc_1024")  # fmt: skip
    cell = prepare(asked, None)
    attack = construct(Attack, {"title": "t", "cite": "c", "server": {server: fields}, "method": method})
    cell = dataclasses.replace(cell, attack=attack)
    blank = dataclasses.replace(cell.data, train_inputs=torch.zeros_like(cell.data.train_inputs))
    honest = Network(*fresh_network(cell, False, 0))
    ours, others = (sent_to_clients(c, honest, "type-1") for c in (cell, dataclasses.replace(cell, data=blank)))
    assert all(torch.equal(p, others.network.parameters[n]) for n, p in ours.network.parameters.items())
    assert torch.equal(ours.secret.latents.known, others.secret.latents.known)


def test_wrong_input_is_refused():
    for name in ("cnn", "lenet_cpl", "convnet"):
        model = build(name, (1, 12, 12), CLASSES, generator(0, "m"))
        with pytest.raises(InputError, match="ends with at least two linear layers with biases"):
            SERVER(Network(model, parameters(model)), PUBLIC, Knowledge(), generator(0, "s"))
    model = build("mlp_256", SHAPE, CLASSES, generator(0, "m"))
    with pytest.raises(InputError, match="trains the convolutions before the first linear layer"):
        SERVER(Network(model, parameters(model)), PUBLIC, Knowledge(), generator(0, "s"))
    with pytest.raises(InputError, match="quantiles of public examples, got 1"):
        SERVER(network_of(BINS, 20), PUBLIC.first(1), Knowledge(), generator(0, "s"))
    honest = network_of(BINS, 20)
    with pytest.raises(InputError, match="give the attack a server: scale_mia"):
        LatentRows()((view(honest, None, pictures(1, 1, 2)),), generators(0, "v", [(0,)]))
