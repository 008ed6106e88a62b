"""Compression of updates as a defense: random rounding, top-k with error feedback, and random learning rates."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.cell import Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import plan
from leakbench.cell.cell import hand_out
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Network, Signal
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.feedback import TopKFeedback
from leakbench.defense.guess import on_a_guess, unlikelihood
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.prune import PruneThreshold
from leakbench.defense.quantize import Qsgd
from leakbench.defense.rate import FittedRate, RandomRate
from leakbench.defense.transform import Stations, Transform
from leakbench.federated.leakage import leak
from leakbench.models import build, parameters

NOW = Clock(0, 0, 1, 1)


def signal(lanes: int = 1, members: int = 1, seed: int = 3) -> Signal:
    """Return tensors `a` (3, 4) and `b` (8): 20 coordinates."""
    rng = torch.Generator().manual_seed(seed)
    a, b = torch.randn(lanes, members, 3, 4, generator=rng), torch.randn(lanes, members, 8, generator=rng)
    return Signal({"a": a, "b": b}, sensitivity=torch.full((lanes,), 2.0))


def flat(signal: Signal) -> torch.Tensor:
    return torch.cat([g.flatten(2) for g in signal.grads.values()], 2)


def drawing(lanes: int = 1, seed: int = 0):
    return generators(seed, "noise", [(lane,) for lane in range(lanes)])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 20), st.integers(1, 25), st.sampled_from(["length", "largest"]))
def test_every_coordinate_becomes_one_of_the_two_levels_next_to_it(seed, levels, bucket, scale):
    """By hand: |v| s / |bucket| lies between the two; the sign stays."""
    before = signal(lanes=2, members=2, seed=seed)
    after = Qsgd(levels=levels, bucket=bucket, scale=scale)(before, NOW, drawing(2, seed))
    for old, new in zip(flat(before).flatten(0, 1), flat(after).flatten(0, 1), strict=True):
        for start in range(0, 20, bucket):
            v, q = old[start : start + bucket], new[start : start + bucket]
            unit = (v.norm() if scale == "length" else v.abs().max()) / levels
            level = q / unit
            torch.testing.assert_close(level, level.round(), atol=1e-4, rtol=0)
            assert ((q - v).abs() <= unit * (1 + 1e-5)).all()
            assert (q * v >= 0).all()
            assert level.abs().max() <= levels * (1 + 1e-5)


def test_rounding_keeps_the_mean_and_has_the_variance_of_two_levels():
    """For a = |v| s / |bucket| with the fraction f, the variance is f (1 - f) units squared. 20,000 members of one lane."""
    v = torch.tensor([0.3, -0.1, 0.05, 0.0, 0.9])
    many = Signal({"a": v.expand(1, 20_000, 5)})
    drawn = Qsgd(levels=4, bucket=5)(many, NOW, drawing()).grads["a"][0]
    unit = v.norm() / 4
    f = (v.abs() / unit).frac()
    deviation = unit * (f * (1 - f)).sqrt()
    assert ((drawn.mean(0) - v).abs() <= 5 * deviation / math.sqrt(20_000) + 1e-6).all()
    torch.testing.assert_close(drawn.std(0), deviation, rtol=0.03, atol=1e-4)


def test_the_added_variance_is_within_the_papers_bound():
    """Lemma 3.1: E|Q(v) - v|^2 <= min(n / s^2, sqrt(n) / s) |v|^2."""
    v = torch.randn(512, generator=torch.Generator().manual_seed(0))
    many = Signal({"a": v.expand(1, 200, 512)})
    for levels in (1, 4, 16):
        drawn = Qsgd(levels=levels)(many, NOW, drawing()).grads["a"][0]
        added = (drawn - v).square().sum(1).mean() / v.square().sum()
        assert 0 < added <= min(512 / levels**2, math.sqrt(512) / levels)


def test_rounding_draws_by_lane_and_its_mean_has_a_derivative():
    both, part = signal(lanes=2), Qsgd(levels=3, bucket=7)
    alone = Signal({n: g[1:] for n, g in both.grads.items()})
    together = flat(part(both, NOW, drawing(2)))
    assert torch.equal(together[1:], flat(part(alone, NOW, generators(0, "noise", [(1,)]))))
    leaf = torch.tensor([[[1.0, -2.0]]], requires_grad=True)
    still = part(Signal({"a": leaf}), NOW, None)
    assert torch.equal(still.grads["a"], leaf)
    assert torch.autograd.grad(still.grads["a"].sum(), leaf)[0].tolist() == [[[1.0, 1.0]]]
    assert part(Signal({"a": torch.zeros(1, 1, 9)}), NOW, drawing()).grads["a"].eq(0).all()


def test_an_attacker_weighs_each_bucket_by_its_levels():
    """Units .5 and 2 in buckets of 3; a bucket of zeros counts nothing. 3 ((0.25 / .5)^2 + (1 / 2)^2) = 1.5."""
    part = Qsgd(levels=4, bucket=3)
    seen = {"a": torch.tensor([[0.5, -1.0, 0.0, 2.0]]), "b": torch.tensor([[0.0, -6.0, 0.0, 0.0, 0.0]])}
    guess = {"a": torch.tensor([[0.5, -1.25, 0.0, 3.0]]), "b": torch.tensor([[0.0, -6.0, 9.0, 9.0, 9.0]])}
    stations = Stations(client=(part,))
    torch.testing.assert_close(unlikelihood(stations, guess, seen), torch.tensor([1.5]))
    assert unlikelihood(stations, guess, {n: -0.3 * u for n, u in seen.items()}) is not None
    assert (
        unlikelihood(stations, guess, {**seen, "a": torch.tensor([[0.5, -1.2, 0.0, 2.0]])}) is None
    )  # A mean of several.


def test_an_attacker_expects_smaller_errors_where_most_coordinates_became_zero():
    """A mean level of 1 / 10 is the variance in squared units of 2: 5 (1 / 2)^2 = 1.25 for an error of 1."""
    seen = {"a": torch.tensor([[2.0] + [0.0] * 9])}
    guess = {"a": torch.tensor([[1.0] + [0.0] * 9])}
    found = unlikelihood(Stations(client=(Qsgd(levels=4, bucket=10),)), guess, seen)
    torch.testing.assert_close(found, torch.tensor([1.25]))


@pytest.mark.parametrize("levels", [2, 200])
def test_the_law_of_rounding_has_its_expected_value_at_the_truth(levels):
    """About d / 2 for d = 100,000 coordinates, of which most are below the first level or above it."""
    v = {"a": 3 * torch.rand(1, 100_000, generator=torch.Generator().manual_seed(1))}
    part = Qsgd(levels=levels, bucket=500)
    seen = {n: g[:, 0] for n, g in part(Signal({n: g[:, None] for n, g in v.items()}), NOW, drawing()).grads.items()}
    assert float(unlikelihood(Stations(client=(part,)), v, seen)) == pytest.approx(50_000, rel=0.15)


def test_held_back_coordinates_are_sent_later():
    """Top 1 of 4 by hand: 4; then 3 + 1 = 4 of the second coordinate; then 2 + 1 + 1 = 4 of the third."""
    part, grads = TopKFeedback(share=0.25), [[4.0, 3.0, 2.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, -0.5]]
    sent, memory = [], {"another": torch.ones(1, 1, 2)}
    for step, g in enumerate(grads):
        after = part(Signal({"a": torch.tensor([[g]])}, memory=memory), Clock(0, step, 1, 3), None)
        sent.append(after.grads["a"].flatten().tolist())
        memory = after.memory
        if step < 2:
            whole = torch.tensor(grads[: step + 1]).sum(0) - torch.tensor(sent).sum(0)
            torch.testing.assert_close(memory["held_back.a"].flatten(), whole)
    assert sent == [[4.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 0.0], [0.0, 0.0, 4.0, 0.0]]
    assert set(memory) == {"another"}  # Nothing is sent to the server.


def test_a_round_starts_without_a_memory():
    """A client must not get what others held back, which the server would average."""
    g = signal()
    left = {f"held_back.{n}": torch.full_like(x, 100.0) for n, x in g.grads.items()}
    part = TopKFeedback(share=0.2)
    one, other = (part(dataclasses.replace(g, memory=m), Clock(3, 0, 9, 2), None) for m in ({}, left))
    assert torch.equal(flat(one), flat(other))
    assert torch.equal(flat(one), flat(PruneThreshold(share=0.8)(g, NOW, None)))


def round_of(stations, steps, rngs=None):
    """Return the leaked update, in units of a gradient, of `steps` local iterations with one example each."""
    model = build("mlp_sigmoid", (1, 8, 8), 10, torch.Generator().manual_seed(0))
    x = torch.rand(1, 1, steps, 1, 1, 8, 8, generator=torch.Generator().manual_seed(4))
    y = torch.eye(10)[torch.arange(steps) % 10].reshape(1, 1, steps, 1, 10)
    network = Network(model, parameters(model))
    return leak("type-1", network, x, y, 1.0, stations, Clock(0, 0, 1, steps), rngs)


def cosine(one, other):
    a, b = (torch.cat([u.flatten() for u in x.values()]) for x in (one, other))
    return float(a @ b / (a.norm() * b.norm()))


def test_feedback_shows_more_of_an_update_than_pruning():
    """With one local iteration they are the same; over ten, what is held back comes out."""
    with_memory, without = (Stations(batch=(part,)) for part in (TopKFeedback(share=0.05), PruneThreshold(share=0.95)))
    one, other = round_of(with_memory, 1), round_of(without, 1)
    assert all(torch.equal(g, other[n]) for n, g in one.items())
    plain = round_of(Stations(), 10)
    assert cosine(round_of(with_memory, 10), plain) > cosine(round_of(without, 10), plain) + 0.02


def test_a_rate_is_drawn_once_a_round_and_uniform():
    """4,000 lanes: mean 1, variance spread^2 / 3; the second local iteration has the factor of the first."""
    part, ones = RandomRate(spread=0.5), Signal({"a": torch.ones(4000, 1, 3)})
    first = part(ones, Clock(0, 0, 2, 3), drawing(4000))
    factors = first.grads["a"][:, 0, 0]
    assert torch.equal(first.grads["a"], factors[:, None, None].expand(-1, 1, 3))
    assert float(factors.min()) >= 0.5
    assert float(factors.max()) <= 1.5
    assert float(factors.mean()) == pytest.approx(1.0, abs=0.02)
    assert float(factors.var()) == pytest.approx(0.25 / 3, rel=0.05)
    second = part(dataclasses.replace(ones, memory=first.memory), Clock(0, 1, 2, 3), drawing(4000, 1))
    assert torch.equal(second.grads["a"], first.grads["a"])
    last = part(dataclasses.replace(ones, memory=second.memory), Clock(0, 2, 2, 3), drawing(4000, 2))
    assert torch.equal(last.grads["a"], first.grads["a"])
    assert not last.memory
    again = part(dataclasses.replace(ones, memory=first.memory), Clock(1, 0, 2, 3), drawing(4000, 3))
    assert not torch.equal(again.grads["a"], first.grads["a"])
    assert torch.equal(part(ones, NOW, None).grads["a"], ones.grads["a"])


def test_one_step_at_another_rate_has_the_direction_of_the_gradient():
    """So a cosine does not see the factor, and the fitted factor undoes it."""
    plain, part = round_of(Stations(), 1), RandomRate(spread=0.9)
    seen = round_of(Stations(batch=(part,)), 1, drawing())
    assert cosine(seen, plain) == pytest.approx(1.0, abs=1e-6)
    name = next(iter(plain))
    assert float((seen[name].norm() / plain[name].norm() - 1).abs()) > 0.01
    guessed = on_a_guess(Stations(batch=(part,)), seen)
    assert guessed.batch == (FittedRate(seen, 0.9),)
    for n, g in round_of(guessed, 1).items():
        torch.testing.assert_close(g, seen[n], rtol=1e-4, atol=1e-7)


def test_a_fitted_factor_stays_within_the_spread():
    """<g, u> / |g|^2 would be 4 and -1."""
    seen = {"a": torch.tensor([[4.0, 0.0], [-1.0, 0.0]])}
    after = FittedRate(seen, 0.5)(Signal({"a": torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]])}), NOW, None)
    assert after.grads["a"].flatten(1).tolist() == [[1.5, 0.0], [0.5, 0.0]]


@pytest.mark.parametrize(
    ("part", "fields", "name"),
    [
        (Qsgd, {"levels": 0}, "levels"),
        (Qsgd, {"levels": 4, "bucket": 0}, "bucket"),
        (Qsgd, {"levels": 4, "scale": "median"}, "scale"),
        (TopKFeedback, {"share": 0.0}, "share"),
        (TopKFeedback, {"share": 1.1}, "share"),
        (RandomRate, {"spread": 1.5}, "spread"),
    ],
)
def test_wrong_numbers_are_refused(part, fields, name):
    with pytest.raises(InputError, match=f"^{name}: [^\n]*$"):
        construct(part, fields)


@pytest.mark.parametrize("part", [TopKFeedback(share=0.1), RandomRate(spread=1.0)])
@pytest.mark.parametrize("steps", [1, 4])
def test_what_is_forgotten_before_the_update_is_sent_costs_a_client_no_epsilon(part: Transform, steps: int) -> None:
    """The memory of one local iteration reaches the next one, and not the server."""
    noise = (ClipWhole(norm=1.0), GaussianNoise(multiplier=2.0, to="each"))
    cell = plan(Request(dataset="digits", local_iterations=steps), None)

    def valid(*batch: Transform) -> float | None:
        defense = Defense(title="t", cite="c", unit="client", batch=batch, client=noise)
        return cell_epsilon(defense, cell.data, cell.settings, hand_out(cell), None, 1e-5).valid

    assert valid(part) == valid() is not None
