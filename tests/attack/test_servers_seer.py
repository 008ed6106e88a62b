"""SEER: a network and a secret projection, trained together, with which a batch's gradient is that of its bright example."""

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.fit_store import FitStore
from leakbench.attack.methods.projection import Projected
from leakbench.attack.servers.seer import Projection, Seer, derivatives
from leakbench.core.errors import InputError
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipLayers
from leakbench.defense.refuse import RefuseConspicuous
from leakbench.defense.transform import Stations
from leakbench.experiment.conspicuous import seen_of
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, Public, View
from leakbench.models import one_hot, parameters

SHAPE, CLASSES, CLOCK, MANY = (1, 6, 6), 4, Clock(0, 0, 1, 1), 16
SERVER = Seer(steps=150, batch=128)


def honest() -> Network:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(36, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, CLASSES)
    )
    return Network(model.eval(), parameters(model))


def pictures(*many: int, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    mean = 0.1 + 0.5 * torch.rand(*many, 1, 1, 1, generator=rng)
    return mean + 0.3 * torch.rand(*many, *SHAPE, generator=rng)


PUBLIC = Public(pictures(3000, seed=2), torch.arange(3000) % CLASSES)


@pytest.fixture(scope="module")
def learned() -> tuple[Network, Projection]:
    return SERVER(honest(), PUBLIC, Knowledge(examples=MANY), generator(0, "server"))


def view(network: Network, secret: object, x: Tensor, stations: Stations | None = None, told: bool = False) -> View:
    """Return the view of V batches of M pictures (V, M, *s)."""
    y = one_hot(torch.arange(x.shape[1]).expand(len(x), -1) % CLASSES, CLASSES)
    update = leak("type-1", network, x[:, None, None], y[:, None, None], 0.1, stations or Stations(), CLOCK, None)
    known = stations if told and stations else Stations()
    return View("type-1", network, update, x.shape[1], SHAPE, CLASSES, 0.1, secret=secret, stations=known)


def answered(seen: View, **fields: float) -> Tensor:
    return Projected(**fields)((seen,), generators(0, "v", [(v,) for v in range(seen.victims)])).inputs


def errors(answer: Tensor, x: Tensor) -> Tensor:
    """Return (V, M), the RMSE of the one answer from each picture; infinite without an answer."""
    return (answer[:, :1] - x).flatten(2).square().mean(2).sqrt().nan_to_num(nan=torch.inf)


def test_derivatives_are_those_of_autograd_and_the_projection_weighs_the_examples():
    network = honest()
    layers = [network.model[n].double() for n in (1, 3, 5)]
    z = pictures(7, seed=3).double().flatten(1)
    y = one_hot(torch.arange(7) % CLASSES, CLASSES).double()
    first = layers[0](z).detach().requires_grad_()
    logits = layers[2](layers[1](first.relu()).relu())
    torch.nn.functional.cross_entropy(logits, y, reduction="sum").backward()
    for soft in (False, True):  # The forward pass is the same; only its derivative differs.
        found, answer = derivatives(layers, z, y, soft=soft)
        torch.testing.assert_close(found.detach(), first.grad)
        torch.testing.assert_close(answer.detach(), logits.detach())
    u = torch.randn(48, generator=torch.Generator().manual_seed(4)).double()
    double = Network(network.model.double(), {n: p.double() for n, p in network.parameters.items()})
    x = z.reshape(1, 1, 1, 7, *SHAPE)
    update = leak("type-1", double, x, y[None, None, None], 0.1, Stations(), CLOCK, None)
    weights = first.grad @ u
    torch.testing.assert_close(torch.einsum("k,kd->d", u, update["1.weight"][0]), weights @ z / 7)


def test_the_bright_example_of_a_batch_is_reconstructed(learned):
    """With the trained secret; a random projection of the same gradients reconstructs next to nothing."""
    network, secret = learned
    x = pictures(300, MANY, seed=5)
    above = x.flatten(2).mean(2) > secret.above
    answer = answered(view(network, secret, x))
    close = errors(answer, x) < 0.07
    single = above.sum(1) == 1
    assert abs(float(single.double().mean()) - secret.chance) < 0.1
    assert float((close & above).any(1)[single].double().mean()) > 0.6
    blind = torch.randn(48, generator=torch.Generator().manual_seed(1))
    other = Projection(secret.layer, blind / blind.norm(), secret.above, secret.middle, secret.chance, secret.latents)
    random = errors(answered(view(network, other, x)), x) < 0.07
    assert float(random.any(1)[single].double().mean()) < 0.2


def test_an_update_gives_at_most_one_answer(learned):
    answer = answered(view(*learned, pictures(20, MANY, seed=6)))
    assert answer[:, 1:].isnan().all()
    assert not answer[:, 0].isnan().all()
    dark = view(*learned, 0.2 * pictures(20, MANY, seed=6))
    assert answered(dark).flatten(2).isnan().all(2).double().mean() > 0.9


def test_a_layer_wise_clip_spoils_the_quotient_and_not_the_usual_mean(learned):
    x = pictures(100, 1, seed=7)
    bright = x[x.flatten(2).mean(2)[:, 0] > learned[1].above]
    assert len(bright) > 3
    clip = Stations(example=(ClipLayers(norm=1e-3),))
    told = errors(answered(view(*learned, bright, clip, told=True)), bright)
    blind = errors(answered(view(*learned, bright, clip)), bright)
    assert float(told.median()) < 0.1 < float(blind.median())


def test_clients_that_compare_gradients_do_not_refuse(learned):
    x = pictures(MANY, seed=8)
    seen = seen_of(learned[0], x, torch.arange(MANY) % CLASSES)
    limits = RefuseConspicuous()
    assert seen["d_snr"] < limits.d_snr
    assert seen["rows_alike"] < limits.rows_alike
    assert seen["loss"] < 3


def test_training_is_deterministic_and_stored(tmp_path):
    brief = Seer(steps=3)
    given = (PUBLIC, Knowledge(examples=MANY))
    first, again, new = (
        brief.learn(honest(), *given, generator(0, "server"), FitStore(folder)) for folder in (tmp_path, tmp_path, None)
    )
    for network, secret in (again, new):
        assert torch.equal(secret.weights, first[1].weights)
        assert all(torch.equal(p, network.parameters[n]) for n, p in first[0].parameters.items())
    other = brief(honest(), *given, generator(1, "server"))
    assert not torch.equal(other[1].weights, first[1].weights)
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


def test_wrong_input_is_refused(learned):
    alike = Public(PUBLIC.inputs[:4], PUBLIC.labels[:4])
    with pytest.raises(InputError, match="1 of 4 public examples have the property"):
        SERVER(honest(), alike, Knowledge(examples=MANY), generator(0, "s"))
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))
    with pytest.raises(InputError, match="ends with at least two linear layers"):
        SERVER(Network(model, parameters(model)), PUBLIC, Knowledge(), generator(0, "s"))
    with pytest.raises(InputError, match="give the attack a server: seer"):
        answered(view(honest(), None, pictures(1, 2, seed=1)))
