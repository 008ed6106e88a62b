"""Outpost against a slow reference, its released code against no defense, and the attacker that knows it."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from probes import facts_of, leaked

from leakbench.attack.slots.distance import Likelihood
from leakbench.core.errors import InputError
from leakbench.core.rng import generators, normal
from leakbench.core.types import Clock, Local, Network, Signal
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.guess import on_a_guess
from leakbench.defense.outpost import FLOOR, Outpost, OutpostGuess, noisy_columns, weight_risks
from leakbench.defense.transform import Stations

NOW = Clock(0, 0, 1, 1)
SHAPES = {"weight": (6, 5, 2), "bias": (6,), "last": (3, 30)}


def signal(lanes: int = 2, members: int = 3, spread: float = 0.3) -> Signal:
    """Return random gradients at weights of variance `spread` squared; each lane and member has other ones."""
    rng = torch.Generator().manual_seed(1)
    weights = {n: spread * torch.randn(*s, generator=rng) for n, s in SHAPES.items()}
    grads = {n: torch.randn(lanes, members, *s, generator=rng) for n, s in SHAPES.items()}
    network = Network(torch.nn.Identity(), weights)
    return Signal(grads, local=Local(network, torch.zeros(lanes, members, 1), torch.zeros(lanes, members, 2)))


@pytest.mark.parametrize(("share", "pruned"), [(0.4, 0.8), (0.37, 0.55), (1.0, 0.0), (0.0, 1.0)])
def test_a_perturbation_equals_a_slow_reference(share: float, pruned: float) -> None:
    """NumPy's percentiles, tensor by tensor and member by member, with the same draws."""
    before, part = signal(), Outpost(noise=0.7, share=share, pruned=pruned, decay=0.0)
    after = part(before, NOW, generators(0, "noise", [(0,), (1,)])).grads
    rngs = generators(0, "noise", [(0,), (1,)])
    normal(torch.empty(2, 3), rngs, 3)  # The draws that decide whether a member is perturbed.
    draws = {n: normal(g, rngs, 3) for n, g in before.grads.items()}
    for lane in range(2):
        for member in range(3):
            g = {n: x[lane, member].double().numpy() for n, x in before.grads.items()}
            information = {n: np.square(x).mean(0) for n, x in g.items()}
            least = np.percentile(np.concatenate([np.ravel(i) for i in information.values()]), 100 * (1 - share))
            for n, x in g.items():
                small = np.abs(x) < np.percentile(np.abs(x), 100 * pruned) - 1e-9
                std = 0.7 * np.var(before.local.network.parameters[n].double().numpy(), ddof=1)
                noise = draws[n][lane, member].numpy() * std * (information[n] >= least - 1e-9)
                np.testing.assert_allclose(after[n][lane, member], np.where(small, 0, x) + noise, atol=1e-5)


def test_weights_of_a_wide_spread_give_noise_of_the_base() -> None:
    """The variance counts up to 1, and a tensor of one number has none."""
    network = signal(spread=3.0).local.network
    assert all(r.tolist() == [[1.0]] for r in weight_risks(network).values())
    alone = dataclasses.replace(network, parameters={"one": torch.ones(1)})
    assert weight_risks(alone)["one"].tolist() == [[0.0]]
    lanes = dataclasses.replace(network, parameters={"two": torch.tensor([[0.0, 1.0], [0.0, 0.2]])}, shared=False)
    torch.testing.assert_close(weight_risks(lanes)["two"], torch.tensor([[0.5], [0.02]]))


@pytest.mark.parametrize("iteration", [0, 7, 99])
def test_a_perturbation_becomes_rare(iteration: int) -> None:
    """Probability 1 / (1 + i / 8) in local iteration i = 1, 2, ...; the other members are sent unchanged."""
    before = signal(members=3000)
    after = Outpost()(before, dataclasses.replace(NOW, local_iteration=iteration), generators(0, "n", [(0,), (1,)]))
    same = torch.stack([(g == before.grads[n]).flatten(2).all(2) for n, g in after.grads.items()]).all(0)
    wanted = 1 - 1 / (1 + 0.125 * (iteration + 1))
    assert float(same.float().mean()) == pytest.approx(wanted, abs=0.03)  # More than 4 standard errors.


def released_since_2024(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Perturb in the way of the released loop: the result goes to the name of the loop."""
    for place, gradient in enumerate(gradients):
        gradient = gradient * 0 + place + 1.0  # noqa: PLW2901
    return gradients


def test_the_released_code_sends_the_private_gradient() -> None:
    """A loop that assigns to its own variable changes nothing; the recipe's leak is bit-identical to that of no defense."""
    before = [torch.ones(3), torch.full((2, 2), -4.0)]
    assert all(torch.equal(a, b) for a, b in zip(released_since_2024(list(before)), before, strict=True))
    plain, released, perturbed = (leaked({"batch": b})[0] for b in ((), (Outpost(discarded=True),), (Outpost(),)))
    for name, update in plain.update.items():
        assert torch.equal(released.update[name], update)
        assert not torch.equal(perturbed.update[name], update)


def test_an_attacker_sees_what_was_pruned_and_what_is_noisy() -> None:
    """At the truth, the guess equals the leak in all columns without noise, and the noisy ones differ by noise."""
    view, inputs, targets = leaked({"batch": (Outpost(decay=0.0),)})
    guess, noisy = view.respond(inputs, targets, by_what_leaked=True), noisy_columns(view.update)
    assert any(n.any() for n in noisy.values())
    for name, update in view.update.items():
        apart = (guess[name] - update).masked_fill(noisy[name], 0)
        assert apart.abs().max() < 1e-5
        rest = (guess[name] - update)[noisy[name].expand_as(update)]
        if len(rest) > 1000:
            std = 0.8 * float(view.network.parameters[name].var())
            assert float(rest.std()) == pytest.approx(std, rel=0.1)


def test_the_likelihood_finds_the_truth() -> None:
    view, inputs, targets = leaked({"batch": (Outpost(decay=0.0),)})
    assert view.noise is None
    values = {}
    for name, guess in (("truth", inputs), ("other", inputs.roll(1, 0)), ("grey", torch.full_like(inputs, 0.5))):
        leaf = guess.clone().requires_grad_()
        values[name] = Likelihood()(view.respond(leaf, targets, by_what_leaked=True), view.update, view)
        (into,) = torch.autograd.grad(values[name].sum(), leaf)
        assert into.isfinite().all()
        assert into.flatten(1).norm(dim=1).gt(0).all()
    assert (values["truth"] < values["grey"]).all()
    assert (values["truth"] < values["other"]).all()


def test_the_likelihood_by_hand() -> None:
    """A pruned column is exact, of deviation .001; a column without a zero has the deviation of its median, over .6745."""
    seen = {"a": torch.tensor([[[0.0, 0.2], [0.5, -0.1], [0.0, 0.4]]])}
    assert noisy_columns(seen)["a"].tolist() == [[[False, True]]]
    guess = {"a": torch.tensor([[[0.0, 0.1], [0.501, 0.0], [0.0, 0.4]]])}
    wanted = ((0.001 / FLOOR) ** 2 + (0.1**2 + 0.1**2) / (0.2 / 0.6745) ** 2) / 2
    torch.testing.assert_close(Outpost().unlikelihood(guess, seen), torch.tensor([wanted]), rtol=1e-3, atol=0)


def test_a_gradient_that_was_not_perturbed_is_compared_as_it_is() -> None:
    """It has no zeros. Next to a perturbed lane, it is exact too."""
    whole, zeros = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 2.0]])
    assert Outpost().unlikelihood({"a": whole}, {"a": whole}) is None
    both = {"a": torch.cat([whole, zeros])}
    guess = OutpostGuess(0.5, both)(Signal({"a": torch.tensor([[[0.3, 0.2]], [[0.3, 0.2]]])}), NOW, None).grads["a"]
    torch.testing.assert_close(guess, torch.tensor([[[0.3, 0.2]], [[0.0, 0.2]]]))
    found = Outpost().unlikelihood({"a": guess[:, 0]}, both)
    torch.testing.assert_close(found, torch.tensor([(0.7**2 + 1.8**2) / 2e-6, 1.8**2 / 2e-6]))


def test_it_has_no_epsilon_and_needs_weights() -> None:
    federation = Federation(
        rounds=2, batch=5, examples_per_client=20, clients=30, clients_per_round=10, local_iterations=4
    )
    for part, reason in ((Outpost(), "read off the private gradient"), (Outpost(discarded=True), "discarded")):
        facts = facts_of(Defense(title="t", cite="c", unit="example", batch=(part,)), federation)["batch"]
        assert reason in facts[0].reason
        assert facts[0].raw
    with pytest.raises(InputError, match="example or the batch station"):
        Outpost()(dataclasses.replace(signal(), local=None), NOW, None)
    assert on_a_guess(Stations(batch=(Outpost(discarded=True),)), {}).batch == (Outpost(discarded=True),)


@pytest.mark.parametrize("field", ["noise", "decay", "share", "pruned"])
def test_a_wrong_number_is_refused(field: str) -> None:
    for value in (-0.1, math.nan, math.inf):
        with pytest.raises((InputError, ValueError), match=field):
            Outpost(**{field: value})
