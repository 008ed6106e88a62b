"""A server that fishes: the examples that its last layer catches, the recovered gradient, and an attack on it."""

import dataclasses
import math

import pandas as pd
import pytest
import torch
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakbench.attack import Attack
from leakbench.attack.isolation import answered
from leakbench.attack.methods.analytic import AnalyticFc
from leakbench.attack.servers.catch import Catch
from leakbench.attack.servers.cut import likeliest_cut, once
from leakbench.attack.servers.fishing import Fishing
from leakbench.attack.servers.server import Isolates
from leakbench.core.answers import Ranking, Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network, Parameters
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, Public, View
from leakbench.models import build, one_hot, parameters
from leakbench.models.layers import entering, last_layer

SHAPE, CLASSES, CLOCK = (1, 6, 6), 4, Clock(0, 0, 1, 1)


def honest(kind: str = "sigmoid", dtype: torch.dtype = torch.float64) -> Network:
    """Return a small network: sigmoids or ReLUs before a last layer with a bias, or ReLUs before one without."""
    torch.manual_seed(0)
    act = nn.Sigmoid if kind == "sigmoid" else nn.ReLU
    last = nn.Linear(12, CLASSES, bias=kind != "unbiased")
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 12), act(), last).to(dtype).eval()
    return Network(model, parameters(model))


def pictures(*many: int, seed: int = 1) -> Tensor:
    return torch.rand(*many, *SHAPE, generator=torch.Generator().manual_seed(seed)).double()


PUBLIC = Public(pictures(800, seed=2), torch.arange(800) % CLASSES)
KNOWN = Knowledge(examples=8)


def fished(network: Network, **fields: object) -> tuple[Network, Catch]:
    return construct(Fishing, fields)(network, PUBLIC, KNOWN, generator(0, "s"))


def view(
    network: Network, secret: object, x: Tensor, y: Tensor, stations: Stations | None = None, tap: str = "type-1"
) -> View:
    """Return the view of V clients with one batch (V, B, *s) each."""
    stations = stations or Stations()
    targets = one_hot(y, CLASSES).to(x)[:, None, None]
    update = leak(tap, network, x[:, None, None], targets, 0.01, stations, CLOCK, None)
    return View(tap, network, update, x.shape[1], SHAPE, CLASSES, 0.01, secret=secret, public=PUBLIC)


def own(network: Network, x: Tensor, y: Tensor, stations: Stations | None = None) -> Parameters:
    """Return the gradient of single examples x (V, *s) of classes y (V,), as each alone would leak it."""
    return view(network, None, x[:, None], y[:, None], stations).update


def cosine(one: Parameters, other: Parameters) -> Tensor:
    a, b = (torch.cat([g.flatten(1) for g in grads.values()], 1).double() for grads in (one, other))
    return nn.functional.cosine_similarity(a, b)


def batch(victims: int, many: int, of: int, where: int = 2) -> tuple[Tensor, Tensor]:
    """Return batches in which only the example at `where` has the class."""
    y = (of + 1 + torch.arange(victims * many).reshape(victims, many) % (CLASSES - 1)) % CLASSES
    y[:, where] = of
    return pictures(victims, many, seed=5), y


def close(one: Parameters, other: Parameters, rtol: float = 1e-6) -> None:
    for name, g in one.items():
        torch.testing.assert_close(g, other[name], rtol=rtol, atol=rtol * float(other[name].abs().max()))


@pytest.mark.parametrize("kind", ["sigmoid", "relu", "unbiased"])
@pytest.mark.parametrize("of", [0, 3])
def test_the_gradient_of_a_single_example_of_a_class_is_recovered(kind, of):
    """With 32 examples, up to rounding, including the last layer's rows of other classes; the view responds with it."""
    network, catch = fished(honest(kind), of=of)
    x, y = batch(5, 32, of)
    alone, there = catch.isolated(view(network, catch, x, y))
    assert there.all()
    assert (alone.examples, alone.knowledge.examples, alone.noise) == (1, 1, None)
    assert alone.labels.tolist() == [[of]] * 5
    close(alone.update, own(network, x[:, 2], y[:, 2]))
    close(alone.respond(x[:, 2:3], one_hot(y[:, 2:3], CLASSES).double()), alone.update)
    raw, real = view(network, catch, x, y).update["3.weight"], own(network, x[:, 2], y[:, 2])["3.weight"]
    assert cosine({"": raw}, {"": real}).max() < 0.9  # The leaked last layer contains all examples.


@settings(max_examples=25, deadline=None)
@given(labels=st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=12), of=st.integers(0, CLASSES - 1))
def test_layers_below_show_the_sum_over_the_class(labels, of):
    """For any batch; without an example of the class the gradient is zero, and nothing below the last layer changed."""
    network, catch = fished(honest(), of=of)
    y = torch.tensor(labels)[None]
    x = pictures(1, len(labels), seed=len(labels))
    alone, there = catch.isolated(view(network, catch, x, y))
    mine = y[0] == of
    assert bool(there) == bool(mine.any())
    if not mine.any():
        assert not alone.update["1.weight"].any()
        return
    each = own(network, x[0, mine], y[0, mine])
    close(alone.update, {name: g.sum(0, keepdim=True) for name, g in each.items()})
    assert float(-alone.update["3.bias"][0, of]) == pytest.approx(int(mine.sum()))


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_feature_catches_the_wrong_side_of_both_kinds(side):
    """By hand: class c below its threshold and the others above it, or the reverse; other examples change nothing below."""
    plain = honest()
    network, catch = fished(plain, of=1, by="feature")
    f = int(catch.row.abs().argmax())
    x, y = pictures(1, 64, seed=9), (torch.arange(64) % CLASSES)[None]
    h = entering(plain, "3.", x[0])[:, f]
    if (float(catch.row[f]) > 0) != (side > 0):
        flipped = {**network.parameters}
        flipped["3.weight"], flipped["3.bias"] = -flipped["3.weight"], -flipped["3.bias"]
        network = dataclasses.replace(network, parameters=flipped)
    weight, bias = network.parameters["3.weight"][1, f], network.parameters["3.bias"][1]
    positive = weight * h + bias > 0
    caught = (y[0] == 1) != positive
    assert caught.any() and not caught.all()
    each = own(network, x[0], y[0])["1.weight"].flatten(1).norm(dim=1)
    assert each[caught].min() > 1e6 * each[~caught].max()


def test_the_gradient_of_an_example_caught_by_a_feature_is_recovered():
    """If exactly one example of the class is caught: its gradient at the sent model, up to the scale that a search needs."""
    plain = honest()
    network, catch = fished(plain, of=1, by="feature", share=1.0)
    x, y = pictures(60, 8, seed=11), torch.ones(60, 8, dtype=torch.int64)
    h = entering(plain, "3.", x.flatten(0, 1)).reshape(60, 8, -1)
    caught = h @ network.parameters["3.weight"][1] + network.parameters["3.bias"][1] < 0
    one = caught.sum(1) == 1
    chance = float(one.double().mean())
    assert abs(chance - catch.chance) < 4 * (catch.chance * (1 - catch.chance) / 60) ** 0.5
    assert 0.3 < catch.chance < 0.45
    shown = view(network, catch, x, y)
    alone, there = catch.isolated(shown)
    assert torch.equal(there, caught.any(1))
    first = caught.int().argmax(1)
    mine = own(network, x[torch.arange(60), first], y[:, 0])
    below = {name: g / catch.scale if name.startswith("1.") else g for name, g in mine.items()}
    assert cosine({n: g[one] for n, g in alone.update.items()}, {n: g[one] for n, g in below.items()}).min() > 1 - 1e-6
    again = alone.respond(x[torch.arange(60), first][:, None], one_hot(y[:, :1], CLASSES).double())
    close({n: g[one] for n, g in again.items()}, {n: g[one] for n, g in below.items()}, 1e-5)
    exact, _ = catch.isolated(dataclasses.replace(shown, noise=1e-9))  # Noise depends on the sent length.
    close({n: g[one] for n, g in exact.update.items()}, {n: g[one] for n, g in mine.items()}, 1e-5)
    assert exact.noise == pytest.approx(8e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "lenet_cpl", "lenet_cpl_gelu", "mlp_relu", "convnet", "vit_tiny_patch8"])
@pytest.mark.parametrize("by", ["class", "feature"])
def test_in_single_precision_nothing_overflows(name, by):
    """Batches of 8 with one example of the class: finite, and equal to the example's own gradient. A threshold needs a bias."""
    shape = (3, 16, 16)
    model = build(name, shape, CLASSES, generator(0, "m"))
    plain = Network(model, parameters(model))
    x = torch.rand(70, *shape, generator=generator(0, "x"))
    public = Public(x[8:], torch.arange(62) % CLASSES)
    if name == "cnn" and by == "feature":
        with pytest.raises(InputError, match="the last layer has none"):
            Fishing(by=by)(plain, public, KNOWN, generator(0, "s"))
        return
    network, catch = Fishing(by=by)(plain, public, KNOWN, generator(0, "s"))
    y = torch.tensor([[1, 0, 2, 3, 1, 2, 3, 1]])
    targets = one_hot(y, CLASSES)[:, None, None]
    update = leak("type-1", network, x[None, None, None, :8], targets, 0.01, Stations(), CLOCK, None)
    assert all(u.isfinite().all() for u in update.values())
    if by == "class":
        shown = View("type-1", network, update, 8, shape, CLASSES, 0.01, secret=catch)
        alone, there = catch.isolated(shown)
        assert there.all()
        one = leak("type-1", network, x[None, None, None, 1:2], targets[:, :, :, 1:2], 0.01, Stations(), CLOCK, None)
        assert cosine(alone.update, one).min() > 0.9999


def test_the_threshold_is_the_best_of_all():
    """Against every feature, side and threshold, one by one."""
    known = torch.randn(40, 3, generator=generator(0, "h")).double()
    known[:, 2] = 0.5  # One has no threshold.
    mine = (known[:, 1] + 0.3 * known[:, 0] > 0.4).logical_xor(torch.arange(40) % 9 == 0)
    for share, many in ((0.3, 8), (1.0, 8), (0.1, 32)):
        cut = likeliest_cut(known, mine, share, many)
        best = -1.0
        for f in range(2):
            values = known[:, f].sort().values
            for middle in ((values[1:] + values[:-1]) / 2).tolist():
                for side in (1.0, -1.0):
                    positive = side * (known[:, f] - middle) > 0
                    own_, other = (mine & ~positive).sum() / mine.sum(), (~mine & positive).sum() / (~mine).sum()
                    best = max(best, float(once(share * float(own_), (1 - share) * float(other), many)))
        assert cut.chance == pytest.approx(best, rel=1e-5)
        positive = cut.side * known[:, cut.feature] / cut.deviation - cut.at > 0
        own_, other = (mine & ~positive).double().sum() / mine.sum(), (~mine & positive).double().sum() / (~mine).sum()
        assert cut.chance == pytest.approx(float(once(share * own_, (1 - share) * other, many)), rel=1e-5)


@pytest.mark.parametrize(("clip", "norm"), [(ClipWhole, 1e-2), (ClipLayers, 1e-2)])
def test_defenses_of_single_examples_keep_it_exact(clip, norm):
    """A clip of examples: the view has the clipped gradient, and responds with it."""
    network, catch = fished(honest(), of=2)
    x, y = batch(3, 16, 2)
    stations = Stations(example=(clip(norm=norm),))
    shown = dataclasses.replace(view(network, catch, x, y, stations), stations=stations)
    alone, there = catch.isolated(shown)
    assert there.all()
    close(alone.update, own(network, x[:, 2], y[:, 2], stations), 1e-5)
    close(alone.respond(x[:, 2:3], one_hot(y[:, 2:3], CLASSES).double()), alone.update, 1e-5)


def test_a_later_clip_keeps_the_direction_and_is_removed_from_the_view():
    """A clip of the batch or the client shortens all equally, and is removed from the operations that the view runs on a guess."""
    network, catch = fished(honest(), of=2)
    x, y = batch(3, 16, 2)
    for name in ("batch", "client"):
        stations = Stations(**{name: (ClipWhole(norm=1e-4),)})
        alone, _ = catch.isolated(dataclasses.replace(view(network, catch, x, y, stations), stations=stations))
        assert alone.stations == Stations()
        real = own(network, x[:, 2], y[:, 2])
        assert (cosine(alone.update, real) > 1 - 1e-9).all()
        assert (alone.update["1.weight"].norm() < real["1.weight"].norm() / 10).all()


def test_an_attack_reconstructs_only_the_caught_example():
    """The closed form of a first layer, for one example: exact; NaN for the others, and if nothing was caught."""
    network, catch = fished(honest(), of=0)
    x, y = batch(4, 8, 0)
    y[1, 2] = 3  # No example of the class.
    found = answered(AnalyticFc(), (view(network, catch, x, y),), generators(0, "v", [(v,) for v in range(4)]))
    assert isinstance(found, Reconstruction)
    some = torch.tensor([True, False, True, True])
    torch.testing.assert_close(found.inputs[some, 0], x[some, 2], rtol=0, atol=1e-6)
    assert found.inputs[:, 1:].isnan().all() and found.inputs[1].isnan().all()
    assert torch.equal(found.certainty.isfinite(), ~found.inputs.flatten(2).isnan().any(2))
    assert (found.certainty[:, 1:] == -math.inf).all()
    assert found.labels[:, 0].tolist() == [0, -1, 0, 0]
    assert (found.labels[:, 1:] == -1).all()
    assert found.steps.tolist() == found.evaluations.tolist() == [1, 0, 1, 1]
    assert found.iterates.shape == (1, 4, 8, *SHAPE)
    assert found.trajectory.shape == (1, 4) and found.spent.shape == (1, 4)
    nobody = answered(AnalyticFc(), (view(network, catch, x, (y + 1).clamp(1, 3)),), generators(0, "v", [(0,)] * 4))
    assert nobody.inputs.shape == x.shape and nobody.inputs.isnan().all()


def test_a_row_of_a_ten_thousandth_of_the_largest_caught_no_example():
    """Underflow is not exactly zero: row c counts from 1e-4 of the largest other row's length on, for any batch size."""
    network, catch = fished(honest(), of=1)
    x, y = batch(3, 8, 1)
    shown = view(network, catch, x, y)
    weight = shown.update["3.weight"]
    largest = weight[:, [0, 2, 3]].norm(dim=2).amax(1)
    for share, there in ((0.99e-4, False), (1.01e-4, True)):
        rows = weight.clone()
        rows[:, 1] *= (share * largest / weight[:, 1].norm(dim=1))[:, None]
        _, found = catch.isolated(dataclasses.replace(shown, update={**shown.update, "3.weight": rows}))
        assert (found == there).all()


def test_victims_missing_in_one_view_have_no_reconstruction():
    """Two releases; the first caught nothing of victim 1, the second nothing of victim 2."""
    network, catch = fished(honest(), of=0)
    x, y = batch(4, 8, 0)
    first, second = y.clone(), y.clone()
    first[1, 2] = second[2, 2] = 3
    views = tuple(view(network, catch, x, labels) for labels in (first, second))
    found = answered(AnalyticFc(), views, generators(0, "v", [(v,) for v in range(4)]))
    assert isinstance(found, Reconstruction)
    assert found.certainty[:, 0].isfinite().tolist() == [True, False, False, True]
    assert found.steps.tolist() == [1, 0, 0, 1]
    torch.testing.assert_close(found.inputs[[0, 3], 0], x[[0, 3], 2], rtol=0, atol=1e-6)


def test_several_examples_of_the_class_give_their_mean():
    network, catch = fished(honest(), of=0)
    x, y = batch(3, 8, 0)
    y[:, 5] = 0
    found = answered(AnalyticFc(), (view(network, catch, x, y),), generators(0, "v", [(v,) for v in range(3)]))
    low, high = torch.minimum(x[:, 2], x[:, 5]), torch.maximum(x[:, 2], x[:, 5])
    assert ((found.inputs[:, 0] >= low - 1e-6) & (found.inputs[:, 0] <= high + 1e-6)).double().mean() > 0.9


def test_honest_servers_and_rankings_get_the_unchanged_views():
    """The views are unchanged if the secret isolates no example, or if the method ranks candidates."""
    network, catch = fished(honest(), of=0)
    assert isinstance(catch, Isolates) and not isinstance(None, Isolates)
    x, y = batch(2, 4, 0)
    shown = view(network, None, x, y)
    seen: list[tuple[View, ...]] = []

    @dataclasses.dataclass
    class Watches:
        needs: object

        def __call__(self, views, rngs):
            seen.append(views)
            return Ranking(torch.zeros(2, 3))

    recipe = construct(Attack, {"title": "t", "cite": "c", "method": "candidates"})
    answered(Watches(AnalyticFc()), (shown,), generators(0, "v", [(0,), (1,)]))
    assert seen[-1][0] is shown
    lying = view(network, catch, x, y)
    answered(Watches(recipe.needs), (lying,), generators(0, "v", [(0,), (1,)]))
    assert seen[-1][0] is lying


class Negated(nn.Module):
    def forward(self, logits):
        return -logits


def test_wrong_input_is_refused():
    plain, rng = honest(), generator(0, "s")
    with pytest.raises(InputError, match="of: got 4, expected a class below 4"):
        Fishing(of=4)(plain, PUBLIC, KNOWN, rng)
    with pytest.raises(InputError, match="of"):
        construct(Fishing, {"of": -1})
    with pytest.raises(InputError, match="share"):
        construct(Fishing, {"share": 0.0})
    with pytest.raises(InputError, match="by"):
        construct(Fishing, {"by": "luck"})
    with pytest.raises(InputError, match="got one kind alone"):
        Fishing(by="feature")(plain, Public(PUBLIC.inputs, PUBLIC.labels * 0 + 1), KNOWN, rng)
    convolved = nn.Sequential(nn.Conv2d(1, 2, 6), nn.Flatten())
    with pytest.raises(InputError, match="rewrites the last linear layer"):
        Fishing()(Network(convolved, parameters(convolved)), PUBLIC, KNOWN, rng)
    negated = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), Negated())
    with pytest.raises(InputError, match="rewrites the last linear layer"):
        Fishing()(Network(negated, parameters(negated)), PUBLIC, KNOWN, rng)
    dark = Public(PUBLIC.inputs * 0 - 1e9, PUBLIC.labels)
    with pytest.raises(InputError, match="have to sum to more than zero"):
        Fishing()(honest("unbiased"), Public(dark.inputs[:0], dark.labels[:0]), KNOWN, rng)
    assert last_layer(convolved, SHAPE) is None
    assert (Fishing().threat, Fishing(public=33).needs.public) == ("malicious parameters", 33)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["fishing", "fishing_feature"])
def test_fishing_runs_from_the_command_line(recipe, tmp_path, monkeypatch, capsys):
    asked = "--dataset digits --leak-batch 8 --victims 3 --iterations 2 --train-rounds 0 --taps type-1 --candidates 8 --quiet"
    code, out, err = called(
        monkeypatch, capsys, "run", "-v", "--attack", recipe, *asked.split(), "--out", str(tmp_path / "run")
    )
    assert (code, err) == (0, "")
    rows = pd.read_parquet(tmp_path / "run" / "rows.parquet")
    assert len(rows) == 24
    assert (rows.groupby("victim")["failure"].sum() >= 7).all()  # At most one reconstruction for each batch.
    assert "malicious parameters" in out


@pytest.mark.slow
def test_fishing_runs_at_a_trained_model(tmp_path, monkeypatch, capsys):
    """In the live protocol too, after two rounds, where the rehearsed model before training may catch no example."""
    asked = "--dataset digits --protocol live --leak-rounds last --local-iterations 1 --leak-batch 8 --victims 3 --iterations 2"
    federation = "--train-rounds 2 --clients 6 --clients-per-round 3 --batch 8 --taps type-1 --candidates 8 --quiet"
    words = f"run --attack fishing --model mlp_relu {asked} {federation} --out {tmp_path / 'run'}"
    code, _, err = called(monkeypatch, capsys, *words.split())
    assert (code, err) == (0, "")
    assert len(pd.read_parquet(tmp_path / "run" / "rows.parquet")) == 24
