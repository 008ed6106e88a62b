"""CENSOR's projections against their closed forms, its selection by the loss, and what its lengths tell an attacker."""

import dataclasses
import math

import pytest
import torch
from probes import facts_of, leaked

from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.slots.distance import Likelihood
from leakbench.core.errors import InputError
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Local, Network, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.censor import Censor, losses_after, orthogonal, released_angle, released_projection
from leakbench.defense.guess import ranks
from leakbench.defense.sign import Sign
from leakbench.defense.transform import Stations
from leakbench.federated.view import Public
from leakbench.models import build, parameters

NOW = Clock(0, 0, 1, 1)


def cosines(size: int, norm: float, project, trials: int = 2000) -> torch.Tensor:
    """Return the cosines between a gradient of `size` numbers and its projected directions."""
    rng = torch.Generator().manual_seed(0)
    g = torch.randn(trials, 1, size, generator=rng)
    g = norm * g / g.norm(dim=2, keepdim=True)
    sent = project(g, torch.randn(trials, 1, size, generator=rng))
    torch.testing.assert_close(sent.norm(dim=2), g.norm(dim=2))
    return ((sent * g).sum(2) / g.norm(dim=2).square()).flatten()


@pytest.mark.parametrize(
    ("size", "norm", "median"),
    [(100, 10.0, 0.50), (100, 100.0, 0.99), (10_000, 10.0, 0.06), (10_000, 100.0, 0.55), (10_000, 1.0, 0.0)],
)
def test_the_released_projection_is_not_orthogonal(size: int, norm: float, median: float) -> None:
    """It divides by the length and not by its square: a component c of r, about N(0, 1 / d), becomes c (1 - |g|)."""
    found = cosines(size, norm, released_projection).abs().median()
    assert float(found) == pytest.approx(median, abs=0.03)
    c = 0.6745 * (1 - norm) / math.sqrt(size)  # The median of |N(0, 1)| is .6745.
    assert float(found) == pytest.approx(abs(c) / math.sqrt(1 + c**2), abs=0.03)
    assert cosines(size, norm, orthogonal).abs().max() < 1e-5


def test_tensors_without_an_orthogonal_direction_are_zero() -> None:
    """A tensor of one number, and a gradient of zeros; the released code divides the latter by zero."""
    one, zeros = torch.full((1, 1, 1), 3.0), torch.zeros(1, 1, 4)
    assert orthogonal(one, torch.ones(1, 1, 1)).tolist() == [[[0.0]]]
    assert orthogonal(zeros, torch.ones(1, 1, 4)).tolist() == zeros.tolist()
    assert released_projection(zeros, torch.ones(1, 1, 4)).isnan().all()


def signal(norm: float = 1.0, lanes: int = 3) -> Signal:
    """Return gradients of batches of four examples at an MLP, scaled to one norm."""
    model = build("mlp_sigmoid", (1, 4, 4), 3, torch.Generator().manual_seed(0))
    network = Network(model, parameters(model))
    rng = torch.Generator().manual_seed(1)
    inputs = torch.rand(lanes, 4, 1, 4, 4, generator=rng)
    targets = torch.eye(3)[torch.randint(3, (lanes, 4), generator=rng)]
    leaves = {n: p.expand(lanes, *p.shape).clone().requires_grad_() for n, p in network.parameters.items()}
    local = Local(dataclasses.replace(network, parameters=leaves, shared=False), inputs, targets)
    still = {n: torch.zeros_like(p)[:, None] for n, p in leaves.items()}
    grads = dict(
        zip(leaves, torch.autograd.grad(losses_after(local, still, 0.0).sum(), list(leaves.values())), strict=True)
    )
    whole = torch.stack([g.flatten(1).square().sum(1) for g in grads.values()]).sum(0).sqrt()
    scaled = {n: norm * (g / whole.reshape(-1, *[1] * (g.dim() - 1)))[:, None] for n, g in grads.items()}
    return Signal(scaled, local=Local(network, inputs, targets), sensitivity=torch.ones(lanes))


def test_losses_are_means_over_the_examples_that_count() -> None:
    """Against PyTorch's cross-entropy, at the moved weights; padding has weight 0."""
    before = signal()
    local = dataclasses.replace(before.local, weights=torch.tensor([[1.0, 1.0, 1.0, 0.0]]).expand(3, 4))
    losses = losses_after(local, before.grads, 0.5)
    for lane in range(3):
        moved = {n: p - 0.5 * before.grads[n][lane, 0] for n, p in local.network.parameters.items()}
        logits = torch.func.functional_call(local.network.model, moved, (local.inputs[lane, :3],))
        wanted = torch.nn.functional.cross_entropy(logits, local.targets[lane, :3])
        torch.testing.assert_close(losses[lane], wanted)


@pytest.mark.parametrize("projection", ["exact", "released"])
def test_the_trial_with_the_lowest_loss_is_sent(projection) -> None:
    """One trial after the other with the same draws, and the lowest of their losses."""
    before, rngs = signal(norm=3.0), lambda: generators(0, "noise", [(lane,) for lane in range(3)])
    part = Censor(trials=6, step=0.3, projection=projection)
    best = losses_after(before.local, part(before, NOW, rngs()).grads, 0.3)
    project = orthogonal if projection == "exact" else released_projection
    drawn, losses = rngs(), []
    for _ in range(6):
        draws = {
            n: torch.stack([torch.empty(g.shape[1:]).normal_(generator=r) for r in drawn])
            for n, g in before.grads.items()
        }
        sent = {n: project(g, draws[n]) for n, g in before.grads.items()}
        losses.append(losses_after(before.local, sent, 0.3))
    torch.testing.assert_close(best, torch.stack(losses).amin(0))


def sent_bare(norm: float, projection, lanes: int = 40) -> float:
    """Return the share of lanes whose private gradient is sent."""
    before = signal(norm, lanes)
    after = Censor(projection=projection)(before, NOW, generators(0, "noise", [(lane,) for lane in range(lanes)]))
    same = torch.stack([(g == before.grads[n]).flatten(1).all(1) for n, g in after.grads.items()]).all(0)
    return float(same.float().mean())


def test_the_released_code_sends_the_private_gradient_if_no_trial_is_better() -> None:
    """Steps of 1e-4 along a short direction change the loss by less than single precision shows."""
    assert sent_bare(1e-4, "released") > 0.5
    assert sent_bare(30.0, "released") == 0
    assert sent_bare(1e-4, "exact") == sent_bare(30.0, "exact") == 0


def test_the_released_selection_finds_directions_of_descent() -> None:
    """With a norm of 30, the direction that is sent has a positive component along the gradient in every lane."""
    before = signal(30.0, 40)
    after = {
        p: Censor(projection=p)(before, NOW, generators(0, "noise", [(lane,) for lane in range(40)]))
        for p in ("exact", "released")
    }
    along = {
        p: torch.stack([(g * before.grads[n]).flatten(1).sum(1) for n, g in a.grads.items()]).sum(0) / 900
        for p, a in after.items()
    }
    assert (along["released"] > 0.05).all()
    assert (along["exact"].abs() < 1e-5).all()


def test_it_acts_in_its_first_rounds_only() -> None:
    before, rngs = signal(), generators(0, "noise", [(lane,) for lane in range(3)])
    part = Censor(rounds=2)
    assert part(before, dataclasses.replace(NOW, round=2), rngs).grads is before.grads
    assert not torch.equal(
        part(before, dataclasses.replace(NOW, round=1), rngs).grads["1.weight"], before.grads["1.weight"]
    )


def test_the_likelihood_by_hand() -> None:
    """Lengths 5 and 4 of one tensor: (5 - 4)^2 / 2e-6; projection of (3, 4) on (0, 1) is 4, squared over 2e-6."""
    guess, seen = {"a": torch.tensor([[3.0, 4.0]])}, {"a": torch.tensor([[0.0, 4.0]])}
    torch.testing.assert_close(Censor().unlikelihood(guess, seen), torch.tensor([(1 + 16) / 2e-6]).clamp_max(9 / 2e-6))
    far = {"a": torch.tensor([[30.0, 0.0]])}
    torch.testing.assert_close(Censor().unlikelihood(far, seen), torch.tensor([26.0**2 / 2e-6]))
    at_45 = {"a": torch.tensor([[8.0**0.5, 8.0**0.5]])}  # Length 4, cosine^2 = 1/2, factor (1 - 4)^2 = 9.
    wanted = 2 / 2 * math.log(0.5 + 0.5 / 9) + math.log(9) / 2
    found = Censor(projection="released").unlikelihood(at_45, seen)
    torch.testing.assert_close(found, torch.tensor([wanted]), rtol=1e-3, atol=1e-3)


def test_the_released_law_is_a_density() -> None:
    """In the plane, its mean over all angles is 1, and the drawn directions fall into a cone as often as it says."""
    cosine = torch.linspace(0, 2 * math.pi, 20_001)[:-1].cos()
    density = (-released_angle(cosine, torch.full_like(cosine, 4.0), 2)).exp()
    assert float(density.mean()) == pytest.approx(1, abs=1e-4)
    drawn = cosines(2, 4.0, released_projection, 20_000)
    wanted = (density * (cosine.abs() > 0.9)).mean()
    assert float((drawn.abs() > 0.9).float().mean()) == pytest.approx(float(wanted), abs=0.015)


@pytest.mark.parametrize("projection", ["exact", "released"])
def test_the_lengths_identify_the_victim(projection) -> None:
    """Ten exact lengths are likeliest at the truth, whose label and image an ordinary comparison does not find."""
    view, inputs, targets = leaked({"batch": (Censor(projection=projection),)})
    assert ranks(view.stations)
    assert view.noise is None
    values = {
        name: Likelihood()(view.respond(guess, targets, by_what_leaked=True), view.update, view)
        for name, guess in (("truth", inputs), ("other", inputs.roll(1, 0)), ("grey", torch.full_like(inputs, 0.5)))
    }
    assert (values["truth"] < values["other"]).all()
    assert (values["truth"] < values["grey"]).all()
    many = torch.rand(50, *inputs.shape[2:], generator=torch.Generator().manual_seed(2))
    shown = Public(torch.cat([inputs[:, 0], many]), torch.cat([targets[:, 0].argmax(1), torch.arange(50) % 10]))
    scores = Candidates()((dataclasses.replace(view, candidates=shown),), generators(0, "r", [(0,), (1,), (2,)])).scores
    assert scores.argmax(1).tolist() == [0, 1, 2]
    twice = Candidates()(
        (dataclasses.replace(view, candidates=shown),) * 2, generators(0, "r", [(0,), (1,), (2,)])
    ).scores
    torch.testing.assert_close(twice, 2 * scores)
    assert not ranks(Stations(example=(Sign(),)))


def test_it_has_no_epsilon_and_needs_the_batch() -> None:
    federation = Federation(
        rounds=2, batch=5, examples_per_client=20, clients=30, clients_per_round=10, local_iterations=4
    )
    for part in (Censor(), Censor(projection="released", rounds=1)):
        facts = facts_of(Defense(title="t", cite="c", unit="example", batch=(part,)), federation)["batch"]
        assert "length of every tensor" in facts[0].reason
        assert facts[0].raw
    with pytest.raises(InputError, match="batch station"):
        Censor()(dataclasses.replace(signal(), local=None), NOW, None)
    with pytest.raises(ValueError, match="example: censor is at the example station"):
        Defense(title="t", cite="c", unit="example", example=(Censor(),))
    assert Censor()(signal(), NOW, None).sensitivity is None


@pytest.mark.parametrize(
    ("field", "value"), [("trials", 0), ("step", 0.0), ("step", math.nan), ("rounds", 0), ("projection", "x")]
)
def test_a_wrong_field_is_refused(field, value) -> None:
    with pytest.raises((InputError, ValueError), match=field):
        Censor(**{field: value})
