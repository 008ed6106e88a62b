"""GradDefense's slices against a greedy loop, its sensitivities against autograd, and the attacker that knows it."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import facts_of, leaked

from leakbench.attack.slots.distance import Likelihood
from leakbench.core.errors import InputError
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Local, Network, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.graddefense import FLOOR, GradDefense, noise_alone, sensitivities, slice_numbers
from leakbench.models import build, parameters

NOW = Clock(0, 0, 1, 1)


def filled(sensitivity: list[float], sizes: list[int], slices: int) -> list[int]:
    """Fill the slices atom by atom: an atom that brings a slice to its share begins the next one."""
    atom = math.gcd(*sizes)
    atoms = [s / (n // atom) for s, n in zip(sensitivity, sizes, strict=True) for _ in range(n // atom)]
    starts, start = [0], 0
    for _ in range(slices - 1):
        full = 0.0
        for place in range(start, len(atoms)):
            full += atoms[place]
            if full >= sum(sensitivity) / slices:
                start = place
                break
        starts.append(start)
    return [max(n for n, s in enumerate(starts) if s <= place) for place in range(len(atoms)) for _ in range(atom)]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=5), st.integers(1, 3), st.integers(1, 7), st.integers(0, 10_000)
)
def test_slices_equal_a_greedy_loop(counts, atom, slices, seed):
    """For random sizes and sensitivities, of which an atom may have more than the share of a slice."""
    sizes = [atom * c for c in counts]
    rows = torch.rand(2, len(sizes), generator=torch.Generator().manual_seed(seed)).double() + 0.01
    numbers = slice_numbers(rows, sizes, slices)
    assert numbers.shape == (2, sum(sizes))
    for lane in range(2):
        assert numbers[lane].tolist() == filled(rows[lane].tolist(), sizes, slices)


def signal(members: int = 3) -> Signal:
    model = build("mlp_sigmoid", (1, 4, 4), 3, torch.Generator().manual_seed(0))
    network = Network(model, parameters(model))
    rng = torch.Generator().manual_seed(1)
    grads = {n: torch.randn(2, members, *p.shape, generator=rng) for n, p in network.parameters.items()}
    targets = torch.eye(3)[torch.randint(3, (2, 3), generator=rng)]
    return Signal(
        grads, sensitivity=torch.ones(2), local=Local(network, torch.rand(2, 3, 1, 4, 4, generator=rng), targets)
    )


def test_sensitivities_equal_second_derivatives():
    local = signal().local
    found = sensitivities(local)
    for lane in range(2):
        norms = []
        for x, y in zip(local.inputs[lane], local.targets[lane], strict=True):
            at = x[None].clone().requires_grad_()
            weights = {n: p.clone().requires_grad_() for n, p in local.network.parameters.items()}
            logits = torch.func.functional_call(local.network.model, weights, (at,))
            loss = torch.nn.functional.cross_entropy(logits, y[None])
            each = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            norms.append([float(torch.autograd.grad(g.sum(), at, retain_graph=True)[0].norm()) for g in each])
        torch.testing.assert_close(found[lane], torch.tensor(norms).mean(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip", [False, True])
def test_noise_is_on_the_chosen_slices_alone(clip):
    """5 of 10 slices, the same for all members of a lane; the clip leaves nothing of a slice."""
    before = signal()
    after = GradDefense(noise=0.01, clip=clip)(before, NOW, generators(0, "noise", [(0,), (1,)]))
    sizes = [g[0, 0].numel() for g in before.grads.values()]
    numbers = slice_numbers(sensitivities(before.local), sizes, 10)
    old, new = (torch.cat([g.flatten(2) for g in s.grads.values()], 2) for s in (before, after))
    changed = new != old
    for lane in range(2):
        assert torch.equal(changed[lane, 0], changed[lane, 2])
        shares = [
            float(changed[lane, 0][numbers[lane] == n].float().mean()) for n in range(10) if (numbers[lane] == n).any()
        ]
        assert set(shares) == {0.0, 1.0}
        assert sum(shares) <= 5
    rest = new[changed] if clip else (new - old)[changed]
    assert float(rest.std()) == pytest.approx(0.01, rel=0.1)
    assert after.sensitivity is None


def test_all_slices_and_no_draws():
    before = signal()
    after = GradDefense(noise=0.5, slices=4, perturbed=4)(before, NOW, generators(0, "noise", [(0,), (1,)]))
    assert all((after.grads[n] != g).all() for n, g in before.grads.items())
    assert GradDefense(noise=0.5)(before, NOW, None).grads is before.grads


def test_the_likelihood_by_hand():
    """Two coordinates, each with noise half of the time."""
    guess, seen = {"a": torch.tensor([[0.2, 0.5]])}, {"a": torch.tensor([[0.2, 0.501]])}
    wide = math.hypot(FLOOR, 0.1)
    plain = [0.5, 0.5 * math.exp(-0.5)]
    noisy = [0.5 * FLOOR / wide * math.exp(-((a / wide) ** 2) / 2) for a in (0.0, 0.001)]
    wanted = -sum(math.log(p + q) for p, q in zip(plain, noisy, strict=True))
    found = GradDefense(noise=0.1).unlikelihood(guess, seen)
    torch.testing.assert_close(found, torch.tensor([wanted]), rtol=1e-3, atol=1e-4)
    everywhere = GradDefense(noise=0.1, slices=2, perturbed=2).unlikelihood(guess, seen)
    assert everywhere.isfinite().all()


def test_an_attacker_ignores_what_looks_like_noise():
    """Runs of 50: only the third is noise of that size, and its neighbours may hold an end of the slice."""
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 6, 50, generator=rng) * torch.tensor([0.3, 0.03, 0.1, 0.3, 0.3, 0.03])[:, None]
    seen = {"a": rows[:, :3].flatten(1), "b": rows[:, 3:].reshape(1, 15, 10)}
    alone = noise_alone(seen, 0.1)
    found = torch.cat([alone["a"], alone["b"].flatten(1)], 1).reshape(6, 50)
    assert found.all(1).tolist() == [False, True, True, True, False, False]
    assert torch.equal(found.all(1), found.any(1))
    guess = {n: u + 0.002 for n, u in seen.items()}
    unlikelihood = GradDefense(noise=0.1, clip=True).unlikelihood(guess, seen)
    torch.testing.assert_close(unlikelihood, torch.tensor([150 * 2.0]), rtol=1e-3, atol=0)


@pytest.mark.parametrize("clip", [False, True])
def test_the_likelihood_finds_the_truth(clip):
    view, inputs, targets = leaked({"batch": (GradDefense(noise=0.01, clip=clip),)})
    assert view.noise is None
    values = {}
    for name, guess in (("truth", inputs), ("other", inputs.roll(1, 0)), ("grey", torch.full_like(inputs, 0.5))):
        leaf = guess.clone().requires_grad_()
        values[name] = Likelihood()(view.respond(leaf, targets, by_what_leaked=True), view.update, view)
        (into,) = torch.autograd.grad(values[name].sum(), leaf)
        assert into.isfinite().all()
    assert (values["truth"] < values["grey"]).all()
    assert (values["truth"] < values["other"]).all()


def test_it_has_no_epsilon_and_needs_examples():
    federation = Federation(
        rounds=2, batch=5, examples_per_client=20, clients=30, clients_per_round=10, local_iterations=4
    )
    facts = facts_of(Defense(title="t", cite="c", unit="example", batch=(GradDefense(noise=1.0),)), federation)["batch"]
    assert "other slices are sent" in facts[0].reason
    assert facts[0].raw
    with pytest.raises(InputError, match="example or the batch station"):
        GradDefense(noise=1.0)(dataclasses.replace(signal(), local=None), NOW, None)


@pytest.mark.parametrize(
    "fields", [{"noise": 0.0}, {"noise": math.nan}, {"slices": 0}, {"perturbed": 0}, {"perturbed": 11}]
)
def test_a_wrong_field_is_refused(fields):
    with pytest.raises((InputError, ValueError), match=next(iter(fields))):
        GradDefense(**{"noise": 1.0, **fields})
