"""The cocktail party attack separates independent signals, with their sign and length, and reports what it cannot separate."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack.methods.cocktail_party import CocktailParty, _likeliest, _loss, _nearest, _orthogonal
from leakbench.core.errors import InputError
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipWhole
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import one_hot, parameters

SHAPE, CLASSES, V = (1, 24, 24), 10, 2


def pictures(many: int) -> Tensor:
    """Return (V, M, *SHAPE): each of its own grey, with independent Laplacian noise of deviation 0.1, cut to [0, 1]."""
    rng = torch.Generator().manual_seed(many)
    grey = 0.3 + 0.4 * torch.rand(V, many, 1, 1, 1, generator=rng)
    size = torch.rand(V, many, *SHAPE, generator=rng).clamp_min(1e-6).log()
    sign = torch.randint(2, size.shape, generator=rng) * 2 - 1
    return (grey + 0.07 * size * sign).clamp(0, 1).double()


def view(many: int, stations: Stations | None = None, stripe: bool = False) -> tuple[View, Tensor]:
    """Return the leak of batches at a sigmoid network, whose derivatives are not sparse."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(576, 80), nn.Sigmoid(), nn.Linear(80, CLASSES)).double()
    x, rng = pictures(many), torch.Generator().manual_seed(9)
    if stripe:
        x[..., :12] = x[..., :12] * 0.4
        x[..., 12:] = 0.6 + x[..., 12:] * 0.4
    y = one_hot(torch.randint(CLASSES, (V, 1, 1, many), generator=rng), CLASSES).double()
    network = Network(layers, parameters(layers))
    update = leak("type-1", network, x[:, None, None], y, 0.1, stations or Stations(), Clock(0, 0, 1, 1), None)
    return View("type-1", network, update, many, SHAPE, CLASSES, 0.1), x


def rngs() -> tuple[torch.Generator, ...]:
    return generators(0, "v", [(v,) for v in range(V)])


def worst(inputs: Tensor, truth: Tensor) -> float:
    """Return the largest root mean square distance of an example from its nearest reconstruction."""
    apart = (inputs[:, :, None] - truth[:, None]).flatten(3).square().mean(3).sqrt()
    return float(apart.amin(1).amax())


@pytest.mark.parametrize("many", [1, 2, 6])
def test_batches_are_separated_behind_a_sigmoid(many: int) -> None:
    """Each example is within 0.1 of a reconstruction with the right sign and length; one example is exact."""
    shown, x = view(many)
    answer = CocktailParty()((shown,), rngs())
    assert worst(answer.inputs, x) < (1e-6 if many == 1 else 0.1)
    assert (answer.certainty > 0.8).all()
    again = CocktailParty()((shown,), rngs())
    assert torch.equal(answer.inputs, again.inputs)


def test_differences_do_not_see_what_all_pictures_have_in_common() -> None:
    """The same bright stripe in all pictures makes their values dependent, but few of their differences."""
    shown, x = view(4, stripe=True)
    values, differences = (CocktailParty(signal=s)((shown,), rngs()).inputs for s in ("values", "differences"))
    assert worst(differences, x) < worst(values, x) / 2


def test_a_clip_of_each_example_changes_the_mixture_alone() -> None:
    shown, x = view(4, Stations(example=(ClipWhole(norm=1e-3),)))
    assert worst(CocktailParty()((shown,), rngs()).inputs, x) < 0.05


def test_noise_spoils_it() -> None:
    shown, x = view(4)

    def error(share: float) -> float:
        rng = torch.Generator().manual_seed(3)
        noise = {
            n: u.square().mean().sqrt() * torch.randn(u.shape, generator=rng).double() for n, u in shown.update.items()
        }
        update = {n: u + share * noise[n] for n, u in shown.update.items()}
        return worst(CocktailParty()((dataclasses.replace(shown, update=update),), rngs()).inputs, x)

    assert error(1e-4) < 0.1
    assert error(1.0) > 0.2


def test_dependent_examples_and_updates_that_are_not_finite_have_no_reconstruction() -> None:
    """A batch with fewer different examples than its size; one victim with NaN."""
    shown, _ = view(4)
    fewer, _ = view(3)
    answer = CocktailParty()((dataclasses.replace(shown, update=fewer.update),), rngs())
    assert answer.inputs.isnan().all()
    assert (answer.certainty == -torch.inf).all()
    update = {n: u.clone() for n, u in shown.update.items()}
    update["1.weight"][0, 0, 0] = torch.nan
    answer = CocktailParty()((dataclasses.replace(shown, update=update),), rngs())
    assert answer.inputs[0].isnan().all() and answer.inputs[1].isfinite().all()


def test_unsuitable_networks_and_batches_are_refused() -> None:
    shown, _ = view(1)
    convolved = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(968, CLASSES)).double()
    network = Network(convolved, parameters(convolved))
    with pytest.raises(InputError, match="cocktail_party separates the gradient of a biased linear first layer"):
        CocktailParty()((dataclasses.replace(shown, network=network),), rngs())
    with pytest.raises(InputError, match="got 80 examples, expected fewer than the 80"):
        CocktailParty()((dataclasses.replace(shown, batch=80),), rngs())


def test_both_searches_separate_known_mixtures() -> None:
    """FastICA finds an orthogonal mixture of Laplacian signals; the likelihood also one that is not orthogonal."""
    rng = torch.Generator().manual_seed(0)
    sources = torch.rand(4, 20_000, generator=rng).double().log() * (
        torch.randint(2, (4, 20_000), generator=rng) * 2 - 1
    )
    turn = _nearest(torch.randn(4, 4, generator=rng).double())
    found = (_orthogonal(turn @ (sources / sources.square().mean(1, keepdim=True).sqrt()), 100, rng) @ turn).abs()
    assert found.amax(1).min() > 0.99 and found.amax(0).min() > 0.99
    mix = torch.eye(4).double() + 0.3 * torch.rand(4, 4, generator=rng).double()
    mixed = mix @ sources
    total = _likeliest(mixed, 100)
    gain = (total @ mix).abs()
    gain = gain / gain.amax(1, keepdim=True)
    assert (gain - torch.eye(4).double()).abs().max() < 0.05
    # No small change of T is likelier.
    base = _loss(total, mixed)
    for _ in range(5):
        near = total + 1e-3 * torch.randn(4, 4, generator=rng).double() * total.abs().mean()
        assert _loss(near, mixed) >= base
