"""Learning To Invert.

The published training step by step, a defense drawn for each example, and a network independent of victims.
"""

import dataclasses
import json
import math

import pytest
import torch
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.methods.learning_to_invert import Hashing, LearningToInvert
from leakbench.attack.public_gradients import flat, gradients_alone
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, resolve
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.transform import Stations
from leakbench.experiment.rehearsal import _short
from leakbench.federated.view import Public, View
from leakbench.models import one_hot, parameters

TINY = LearningToInvert(hidden=16, epochs=8, batch=10, learning_rate=1e-2)
NOISY = Stations(example=(GaussianNoise(0.1, to="each", uncalibrated=True),))


def view(noisy: bool = False, count: int = 40) -> View:
    """Return six victims and public examples of a linear network at random weights; adaptive attackers run the noise."""
    rng = generator(0, "view")
    model = nn.Sequential(nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 2))
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(generator=rng)
    x, y = torch.rand(count + 6, 5, generator=rng), torch.randint(2, (count + 6,), generator=rng)
    network = Network(model, parameters(model))
    found = View("type-2", network, {}, 1, (5,), 2, 0.1, public=Public(x[6:], y[6:]))
    update = found.respond(x[:6, None], one_hot(y[:6], 2)[:, None])
    drawn = {n: u + 0.1 * noisy * torch.randn(u.shape, generator=rng) for n, u in update.items()}
    return dataclasses.replace(found, update=drawn, stations=NOISY if noisy else Stations())


def weights_of(method: LearningToInvert, seen: View, seed: int = 0) -> Tensor:
    return torch.cat(
        [p.detach().flatten() for p in method.trained(seen, seen.public, generator(seed, "t")).net.parameters()]
    )


def test_training_follows_the_published_code() -> None:
    """Written out again with PyTorch's own loss and schedule: weights, shuffles and steps in the same order."""
    seen, rng = view(), generator(0, "t")
    assert seen.public is not None
    net = nn.Sequential(nn.Linear(34, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5), nn.Sigmoid())
    for layer in (net[0], net[2], net[4]):
        bound = 1 / math.sqrt(layer.in_features)
        nn.init.uniform_(layer.weight, -bound, bound, generator=rng)
        nn.init.uniform_(layer.bias, -bound, bound, generator=rng)
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    falling = torch.optim.lr_scheduler.MultiStepLR(optimiser, [6], gamma=0.1)
    every = torch.cat(list(gradients_alone(seen, seen.public)))
    assert every.shape == (40, 34)
    for _ in range(8):
        order = torch.randperm(40, generator=rng)
        for some in order.reshape(4, 10):
            optimiser.zero_grad()
            nn.functional.mse_loss(net(every[some]), seen.public.inputs[some]).backward()
            optimiser.step()
        falling.step()
    expected = torch.cat([p.detach().flatten() for p in net.parameters()])
    torch.testing.assert_close(weights_of(TINY, seen), expected, rtol=1e-4, atol=1e-5)


def test_the_recipe_is_as_published() -> None:
    method = resolve("attacks", Attack, "learning_to_invert")[1].method
    assert method == LearningToInvert()
    assert (method.hidden, method.epochs, method.batch, method.learning_rate, method.hashed) == (
        3000,
        200,
        256,
        1e-4,
        1.0,
    )


def test_the_result_depends_only_on_the_generator() -> None:
    seen = view(noisy=True)
    assert torch.equal(weights_of(TINY, seen), weights_of(TINY, seen))
    assert not torch.equal(weights_of(TINY, seen), weights_of(TINY, seen, seed=1))
    state = torch.random.get_rng_state()
    among = TINY((seen,), tuple(generator(v, "v") for v in range(6)))
    alone = TINY((dataclasses.replace(seen, update={n: u[4:5] for n, u in seen.update.items()}),), (generator(9, "v"),))
    assert torch.equal(state, torch.random.get_rng_state())
    torch.testing.assert_close(alone.inputs, among.inputs[4:5])
    assert among.fit is not None
    assert among.fit.public == 40
    assert ((among.inputs > 0) & (among.inputs < 1)).all()


def test_the_defense_is_drawn_separately_for_each_example() -> None:
    """On 400 equal examples: the noise's own deviation around the one gradient, different for all examples."""
    seen = view(noisy=True)
    assert seen.public is not None
    same = Public(seen.public.inputs[:1].expand(400, 5), seen.public.labels[:1].expand(400))
    rng = generator(0, "draws")
    first, second = (torch.cat(list(gradients_alone(seen, same, 150, rng))) for _ in range(2))
    plain = next(gradients_alone(seen, same, 1))
    assert float((first - plain).std()) == pytest.approx(0.1, rel=0.03)
    assert abs(float(torch.corrcoef(torch.stack([(first - plain)[0], (first - plain)[1]]))[0, 1])) < 0.6
    assert (first - second).abs().min() > 0


@pytest.mark.slow
def test_it_learns_and_beats_the_public_mean() -> None:
    """A tenth of the public mean's squared error; tried on the public examples themselves."""
    seen = view(count=200)
    assert seen.public is not None
    inverter = dataclasses.replace(TINY, hidden=64, epochs=60).trained(seen, seen.public, generator(0, "t"))
    x = seen.public.inputs
    found = inverter(torch.cat(list(gradients_alone(seen, seen.public))))
    assert (found - x).square().mean() < 0.1 * (x.mean(0) - x).square().mean()


@pytest.mark.long
def test_learning_with_noise_improves_reconstructions_under_noise() -> None:
    noisy = view(noisy=True, count=150)
    method = dataclasses.replace(TINY, hidden=64, epochs=40)
    aware, oblivious = (
        method.trained(v, v.public, generator(0, "t")) for v in (noisy, dataclasses.replace(noisy, stations=Stations()))
    )
    assert noisy.public is not None
    rng = generator(1, "fresh")
    error = {True: 0.0, False: 0.0}
    for _ in range(3):
        gradients = torch.cat(list(gradients_alone(noisy, noisy.public, rng=rng)))
        for told, inverter in ((True, aware), (False, oblivious)):
            error[told] += float((inverter(gradients) - noisy.public.inputs).square().mean())
    assert error[True] < 0.8 * error[False]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), share=st.floats(0.05, 0.99))
def test_hashing_sums_each_number_into_one_bin(seed: int, share: float) -> None:
    size = math.ceil(share * 30)
    bins = torch.randint(size, (30,), generator=generator(seed, "bins"))
    gradients = torch.randn(4, 30, generator=generator(seed, "g"), dtype=torch.float64)
    expected = torch.zeros(4, size, dtype=torch.float64)
    for position, to in enumerate(bins.tolist()):
        expected[:, to] += gradients[:, position]
    torch.testing.assert_close(Hashing(size, bins)(gradients), expected)
    assert torch.equal(Hashing(30, None)(gradients), gradients)


@pytest.mark.parametrize(("share", "size"), [(1.0, 34), (0.5, 17), (0.01, 1)])
def test_a_hashed_gradient_is_as_long_as_its_share(share: float, size: int) -> None:
    inverter = dataclasses.replace(TINY, hashed=share).trained(view(), view().public, generator(0, "t"))
    assert inverter.net[0].in_features == inverter.hashing.size == size
    assert inverter(flat(view().update)).shape == (6, 5)


def test_a_diverged_model_gives_no_answer() -> None:
    seen = view()
    seen.network.parameters["0.weight"][:] = torch.nan
    assert TINY((seen,), ()).inputs.isnan().all()


def test_unsuitable_inputs_are_refused() -> None:
    seen = view()
    for views, said in (
        ((seen, seen), "one look at one round, got several"),
        ((dataclasses.replace(seen, tap="type-1", batch=2),), "reads what one example leaks, got 2"),
        ((dataclasses.replace(seen, public=None),), "public"),
    ):
        with pytest.raises(InputError, match=said) as error:
            TINY(views, ())
        assert "\n" not in str(error.value)
    for fields, word in (
        ({"hashed": 0.0}, "hashed"),
        ({"hashed": 1.5}, "hashed"),
        ({"hidden": 0}, "hidden"),
        ({"epochs": 0}, "epochs"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"seed": -1}, "seed"),
        ({"layers": 3}, "unknown field 'layers'"),
    ):
        with pytest.raises(InputError, match=word):
            construct(Attack, {"title": "a", "cite": "b", "method": {"learning_to_invert": fields}})


def test_it_is_rehearsed_for_one_epoch() -> None:
    assert _short(TINY) == dataclasses.replace(TINY, epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "defense"),
    [(("--protocol", "paper"), "noise_gaussian_as_released"), (("--protocol", "live", "--clients", "6"), "none")],
)
def test_from_the_command_line(protocol, defense, tmp_path, monkeypatch, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "title: mine\ncite: none\nknows: defense\nmethod:\n  learning_to_invert:\n"
        "    {hidden: 64, epochs: 15, hashed: 0.1, batch: 64, learning_rate: 0.003}\n"
    )
    options = "--quiet --json --dataset digits --taps type-2 --victims 4 --candidates 9 --train-rounds 0"
    line = [
        "run",
        *options.split(),
        "--attack",
        str(path),
        "--defense",
        defense,
        *protocol,
        "--out",
        str(tmp_path / "run"),
    ]
    code, out, _ = called(monkeypatch, capsys, *line)
    assert code == 0
    [shown] = json.loads(out)["taps"].values()
    assert shown["failures"] == 0
    assert shown["rmse"] < 0.3  # The public mean has .27.
