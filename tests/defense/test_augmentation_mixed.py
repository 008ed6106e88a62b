"""Mixed and copied examples: mixup, InstaHide and OASIS, their ledger, and what an attacker that knows them reads."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

import leakbench
from leakbench.attack.methods import rows
from leakbench.attack.methods.rows import Rows
from leakbench.attack.servers.imprint import Imprint
from leakbench.attack.slots.labels import LastLayer, LastLayerSoft
from leakbench.attack.undo import one_of_each, undo
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.data.find import load_dataset
from leakbench.data.recipe import Federation
from leakbench.defense import FactProbe, facts_at
from leakbench.defense.ats import Ats
from leakbench.defense.augmentation import Augmentation, Batch, copies_of
from leakbench.defense.mixup import InstaHide, Mixup, mixed
from leakbench.defense.oasis import Oasis
from leakbench.defense.transform import Stations
from leakbench.federated.client import Examples, mean_update
from leakbench.federated.leakage import leak
from leakbench.federated.view import Knowledge, Public, View
from leakbench.models import build, one_hot, parameters
from tests.defense.test_augmentation import CLASSES, CLOCK, batch_of, epsilon_of, network, with_inputs


def basis(lanes: int, members: int, padding: int = 0) -> Batch:
    """Return a batch whose inputs show the weights: member i is the i-th unit vector; padding is in the first places."""
    count = members + padding
    weights = torch.ones(lanes, count)
    weights[:, :padding] = 0
    return Batch(
        torch.eye(count).expand(lanes, -1, -1).clone(), torch.eye(count).expand(lanes, -1, -1).clone(), weights
    )


# mixup and InstaHide


def test_a_mix_has_the_weights_of_its_inputs_in_its_label() -> None:
    """The weights add up to 1, and no real example is mixed with padding."""
    for part_ in (Mixup(0.4), InstaHide(signs=False)):
        batch = basis(3, 6, padding=2)
        after = part_(batch, CLOCK, generators(0, "noise", [(0,), (1,), (2,)]))
        torch.testing.assert_close(after.inputs, after.targets)
        real = after.inputs[:, 2:]
        torch.testing.assert_close(real.sum(2), torch.ones(3, 6))
        assert not real[:, :, :2].any()
        assert torch.equal(after.weights, batch.weights)
        assert torch.equal(part_(batch, CLOCK, None).inputs, batch.inputs)


def test_each_example_is_a_partner_once() -> None:
    """mixup: the weights that example j has in other members add up to the second weights of one permutation."""
    after = Mixup()(basis(1, 9), CLOCK, generators(1, "noise", [(0,)])).inputs[0]
    others = after - torch.diag(after.diagonal())
    assert ((others > 0).sum(0) <= 1).all() and ((others > 0).sum(1) <= 1).all()
    assert (others > 0).sum() >= 6


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_weights_of_mixup_are_of_the_beta_distribution(alpha: float) -> None:
    """Kolmogorov-Smirnov on members that are not mixed with themselves."""
    after = Mixup(alpha)(basis(1, 1500), CLOCK, generators(2, "noise", [(0,)])).inputs[0]
    own = after.diagonal()[(after > 0).sum(1) == 2].double().numpy()
    assert stats.kstest(own, stats.beta(alpha, alpha).cdf).pvalue > 0.01


def test_weights_of_instahide_are_sizes_of_normal_numbers_below_the_largest() -> None:
    """Against a plain loop with another generator: the same quantiles, and none above `most`."""
    ours = InstaHide()._weights(4000, generator(0, "weights"))
    rng, plain = torch.Generator().manual_seed(1), list[Tensor]()
    while len(plain) < 4000:
        sizes = torch.randn(4, generator=rng, dtype=torch.float64).abs()
        if sizes.max() / sizes.sum() <= 0.65:
            plain.append(sizes / sizes.sum())
    assert float(ours.max()) <= 0.65
    torch.testing.assert_close(ours.sum(1), torch.ones(4000, dtype=torch.float64))
    assert stats.ks_2samp(ours[:, 0].numpy(), torch.stack(plain)[:, 0].numpy()).pvalue > 0.01


def test_signs_flip_half_of_the_values_around_one_half_and_hide_nothing_else() -> None:
    batch = batch_of(2, 5)
    rngs = [(0,), (1,)]
    mix = InstaHide(signs=False)(batch, CLOCK, generators(0, "noise", rngs)).inputs
    hidden = InstaHide()(batch, CLOCK, generators(0, "noise", rngs)).inputs
    flipped = ~torch.isclose(hidden, mix)
    torch.testing.assert_close(torch.where(flipped, 1 - hidden, hidden), mix)
    assert abs(float(flipped.double().mean()) - 0.5) < 0.05
    shown = InstaHide().shown(hidden.flatten(0, 1))
    torch.testing.assert_close(shown, InstaHide().shown(mix.flatten(0, 1)))
    assert shown.min() >= 0.5


def test_impossible_weights_are_refused() -> None:
    with pytest.raises(InputError, match=r"most: got 0.25, expected at least 1.2 / 4"):
        construct(InstaHide, {"examples": 4, "most": 0.25})


def test_mixing_is_linear_and_has_a_slow_reference() -> None:
    batch, rng = batch_of(2, 4), generator(0, "reference")
    weights, partners = torch.rand(2, 4, 3, generator=rng), torch.randint(4, (2, 4, 2), generator=rng)
    after = mixed(batch, weights, partners)
    for lane in range(2):
        for i in range(4):
            members = [i, *partners[lane, i].tolist()]
            slow = sum(w * batch.inputs[lane, j] for w, j in zip(weights[lane, i], members, strict=True))
            torch.testing.assert_close(after.inputs[lane, i], slow)


@pytest.mark.parametrize("change", [Mixup(), InstaHide(), InstaHide(signs=False), Oasis()])
def test_no_epsilon_of_one_example_behind_mixes_and_copies(change: object) -> None:
    valid, reason = epsilon_of(with_inputs("fed_cdp_valid", change))
    assert valid is None
    assert "puts one example into several members of a batch" in reason


def test_one_example_changes_more_than_one_clipped_gradient() -> None:
    """Why: with a clip of every member at C, leaving out one image moves the sum of a batch with copies by more than C."""
    net, batch = network(), batch_of(1, 6)
    defense = with_inputs("fed_cdp_valid")
    bound = facts_at(defense, FactProbe(net, (1, 8, 8), CLASSES, _federation()), CLOCK)["example"][0].norm
    sums = []
    for kept in (1.0, 0.0):
        weights = torch.cat([torch.full((1, 1), kept), batch.weights[:, 1:]], 1)
        given = Examples(50 * batch.inputs[:, None], batch.targets[:, None], weights[:, None], 1)
        stations = Stations(example=defense.example[:1], inputs=(Oasis(),))
        sums.append(mean_update(net, given, 0.1, stations, CLOCK, None).grads)
    apart = math.sqrt(sum(float((sums[0][n] - sums[1][n]).square().sum()) for n in sums[0]))
    assert 4 * apart > 1.5 * bound  # The divisor is the number of copies.


def _federation() -> Federation:
    return Federation(clients=2, clients_per_round=1, rounds=1, local_iterations=1, batch=4, examples_per_client=8)


# OASIS


def test_copies_follow_the_originals_with_their_labels_and_padding() -> None:
    batch = batch_of(2, 3, weights=torch.tensor([[1.0, 1, 0], [1, 0, 0]]))
    after = Oasis()(batch, CLOCK, None)
    assert after.inputs.shape == (2, 12, 1, 8, 8)
    for place, turns in enumerate((0, 1, 2, 3)):
        some = slice(3 * place, 3 * place + 3)
        assert torch.equal(after.inputs[:, some], torch.rot90(batch.inputs, turns, (-2, -1)))
        assert torch.equal(after.targets[:, some], batch.targets)
        assert torch.equal(after.weights[:, some], batch.weights)
    flips = Oasis(("flip_horizontal", "flip_vertical"))(batch, CLOCK, None).inputs
    assert torch.equal(flips[:, 3:6], batch.inputs.flip(-1)) and torch.equal(flips[:, 6:], batch.inputs.flip(-2))


def test_the_gradient_is_the_mean_over_originals_and_copies() -> None:
    """Also of a batch with padding: the divisor is the number of copies times the expected size of the batch."""
    net = network()
    batch = batch_of(1, 3, weights=torch.tensor([[1.0, 1, 0]]))
    given = Examples(batch.inputs[:, None], batch.targets[:, None], batch.weights[:, None], 5)
    ours = mean_update(net, given, 0.1, Stations(inputs=(Oasis(),)), CLOCK, None).grads
    total = {n: torch.zeros_like(p) for n, p in net.parameters.items()}
    for i in range(2):
        for turns in range(4):
            x = torch.rot90(batch.inputs[0, i], turns, (-2, -1))[None, None, None, None]
            one = leak("type-2", net, x, batch.targets[:, None, None, i : i + 1], 0.1, Stations(), CLOCK, None)
            total = {n: t + one[n][0] for n, t in total.items()}
    for n, g in ours.items():
        torch.testing.assert_close(g[0, 0], total[n] / 20, atol=1e-6, rtol=1e-4)


def test_wide_images_cannot_be_turned_by_90_degrees() -> None:
    batch = batch_of(1, 2, (1, 4, 6))
    with pytest.raises(InputError, match=r"oasis: rotate_90 got images of 4 x 6"):
        Oasis()(batch, CLOCK, None)
    assert Oasis(("rotate_180",))(batch, CLOCK, None).inputs.shape[1] == 4


def test_at_type_2_the_original_leaks() -> None:
    net, batch = network(), batch_of(2, 3)
    x, y = batch.inputs[:, None, None], batch.targets[:, None, None]
    bare, oasis = (leak("type-2", net, x, y, 0.1, Stations(inputs=i), CLOCK, None) for i in ((), (Oasis(),)))
    for n, g in bare.items():
        torch.testing.assert_close(oasis[n], g)


def test_copies_need_a_network_that_has_not_drawn_yet() -> None:
    batch = batch_of(1, 3)
    given = Examples(batch.inputs[:, None], batch.targets[:, None], batch.weights[:, None], 3, torch.zeros(1, 1, 3, 4))
    with pytest.raises(InputError, match="draws its numbers for each example once"):
        mean_update(network(), given, 0.1, Stations(inputs=(Oasis(),)), CLOCK, None)


# Soft labels


def soft_view(targets: Tensor) -> tuple[View, Network]:
    model = build("lenet_cpl", (1, 8, 8), CLASSES, generator(0, "model"))
    net = Network(model, parameters(model))
    x = torch.rand(len(targets), 1, 1, 1, 1, 8, 8, generator=generator(0, "x"))
    update = leak("type-2", net, x, targets[:, None, None, None], 0.1, Stations(), Clock(0, 0, 1, 1), None)
    public = Public(torch.rand(50, 1, 8, 8, generator=generator(0, "public")), torch.zeros(50, dtype=torch.int64))
    return View("type-2", net, update, 1, (1, 8, 8), CLASSES, 0.1, public=public), net


def test_soft_labels_are_read_from_the_bias() -> None:
    targets = torch.tensor([[0.7, 0.3, 0.0], [0.0, 0.55, 0.45], [1.0, 0.0, 0.0]])
    view, _ = soft_view(targets)
    guess = LastLayerSoft()(view, generators(0, "labels", [(i,) for i in range(3)])).targets[:, 0]
    torch.testing.assert_close(guess, targets, atol=0.02, rtol=0)
    hard = LastLayer()(view, generators(0, "labels", [(i,) for i in range(3)])).targets[:, 0]
    assert (hard - targets)[:2].abs().amax(1).min() > 0.25


def test_soft_labels_need_one_example() -> None:
    view, _ = soft_view(one_hot(torch.tensor([0, 1]), CLASSES))
    with pytest.raises(InputError, match="last_layer_soft reads one example"):
        LastLayerSoft()(dataclasses.replace(view, tap="type-1", batch=2), generators(0, "x", [(0,), (1,)]))


# One original for the copies of each image


def test_the_possible_originals_of_every_copy_include_the_original() -> None:
    batch = batch_of(1, 5)
    for oasis in (Oasis(), Oasis(("rotate_90", "flip_vertical"))):
        copies = oasis(batch, CLOCK, None).inputs[0].unflatten(0, (oasis.copies, 5))
        for members in copies:
            options = oasis.originals(members).unflatten(0, (5, oasis.copies))
            assert (options == batch.inputs[0][:, None]).flatten(2).all(2).any(1).all()


def test_one_upright_image_stays_of_four_copies() -> None:
    """The most certain ones first; a missing reconstruction ends the list."""
    data = load_dataset("digits", None)[2]
    real, public = data.train_inputs[:6], Public(data.test_inputs, data.test_targets)
    batch = Batch(real[None], torch.zeros(1, 6, 10), torch.ones(1, 6))
    members = Oasis()(batch, CLOCK, None).inputs.flatten(2)
    order = torch.randperm(24, generator=generator(0, "order"))
    contents = torch.cat([members[:, order], members[:, :1] * torch.nan], 1)
    certainty = torch.cat([-torch.arange(24.0), torch.tensor([-math.inf])])[None]
    found, sure = one_of_each((Oasis(),), contents, certainty, 8, public)
    given = sure[0].isfinite()
    assert (found[0].isfinite().all(1) == given).all()
    assert (sure[0, given].diff() < 0).all()
    nearest = (real.flatten(1)[:, None] - found[0, given]).square().mean(2).amin(1)
    assert (nearest < 1e-10).sum() >= 5  # A Gaussian prior may take one image for upside down.


def test_an_attacker_that_knows_of_copies_reads_all_their_rows() -> None:
    """An imprint along a random direction: the oblivious attacker returns rotated copies, the adaptive one most originals."""
    server = Imprint(bins=512, functional="random")
    data = load_dataset("digits", None)[2]
    public = Public(data.test_inputs, data.test_targets)
    model = build("mlp", data.shape, data.classes, generator(0, "model"))
    sent, bins = server(Network(model, parameters(model)), public, Knowledge(), generator(0, "server"))
    x, y = data.train_inputs[:4], one_hot(data.train_targets[:4], data.classes)
    stations = Stations(inputs=(Oasis(),))
    update = leak("type-1", sent, x[None, None, None], y[None, None, None], 0.1, stations, CLOCK, None)
    view = View("type-1", sent, update, 4, data.shape, data.classes, 0.1, public=public, secret=bins)
    told = dataclasses.replace(view, stations=stations, knowledge=Knowledge(defense=True))

    def right(some: View) -> int:
        answer = Rows()((some,), generators(0, "attack", [(0,)])).inputs[0]
        return int(((answer[:, None] - x).flatten(2).square().mean(2).sqrt() < 0.01).any(0).sum())

    assert right(told) >= 3
    assert right(view) < right(told)


# The attacker that undoes a mix


def test_a_mix_with_a_large_weight_is_undone_by_its_own_weight() -> None:
    """The likely weight follows from the mix itself, so that nothing is taken from a mix that shows its example."""
    data = load_dataset("digits", None)[2]
    public = Public(data.test_inputs, data.test_targets)
    back = undo((Mixup(),), public, data.classes, CLOCK, generator(0, "undo"))
    real, others = data.train_inputs[:60], data.train_inputs[60:120]

    def rmse(own: float, undoing: bool = True) -> float:
        mix = own * real + (1 - own) * others
        guess = back(mix) if undoing else mix
        return float((guess - real).flatten(1).square().mean(1).sqrt().median())

    assert rmse(1.0) < 0.03
    for own in (0.7, 0.8):
        assert rmse(own) < 0.97 * rmse(own, undoing=False)


# Edges


@pytest.mark.parametrize(
    "change",
    [
        Ats(((("translate_x", 0.99), ("contrast", 0.0), ("translate_y", 0.0)),)),
        Mixup(1e-3),
        Mixup(1e3),
        InstaHide(2, 0.6),
        Oasis(),
    ],
)
def test_clients_without_examples_and_batches_of_one(change: Augmentation) -> None:
    """Empty Poisson batches, one example, and images of one pixel: finite results of the right shape."""
    for members, shape in ((1, (1, 1, 1)), (3, (3, 4, 4))):
        for real in (0, 1, members):
            batch = batch_of(2, members, shape, (torch.arange(members) < real).float().expand(2, members))
            for rngs in (generators(0, "noise", [(0,), (1,)]), None):
                after = change(batch, CLOCK, rngs)
                copies = copies_of((change,))
                assert after.inputs.shape == (2, copies * members, *shape)
                assert after.targets.shape == (2, copies * members, CLASSES)
                assert after.inputs.isfinite().all() and after.targets.isfinite().all()
                assert torch.equal(after.weights, batch.weights.repeat(1, copies))
    alone = batch_of(1, 1)
    if isinstance(change, Mixup):
        torch.testing.assert_close(change(alone, CLOCK, generators(0, "noise", [(0,)])).inputs, alone.inputs)


@pytest.mark.parametrize("change", [Ats(((("translate_y", 0.2), ("contrast", 0.4)),)), Mixup(), InstaHide(), Oasis()])
def test_a_guess_can_be_differentiated_through_every_change(change: Augmentation) -> None:
    batch = batch_of(1, 3)
    inputs = batch.inputs.clone().requires_grad_()
    after = change(dataclasses.replace(batch, inputs=inputs), CLOCK, generators(0, "noise", [(0,)]))
    (back,) = torch.autograd.grad(after.inputs.square().sum(), inputs)
    assert back.isfinite().all() and back.any()


def test_at_type_2_no_copy_is_in_the_gradient_that_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There the original leaks alone, so that the attacker that knows of copies reads it as it is."""

    def chosen(*given: object) -> None:
        raise AssertionError("one of several copies was chosen")

    monkeypatch.setattr(rows, "one_of_each", chosen)
    asked = {
        "dataset": "digits",
        "attack": "imprint",
        "victims": 3,
        "candidates": 10,
        "train_rounds": 0,
        "leak_model": "mlp",
    }
    found = [
        leakbench.run(
            defense=name, knows="defense", taps=["type-2"], pictures=False, out=tmp_path / name, quiet=True, **asked
        )
        for name in ("oasis", "none")
    ]
    shown = [result.summary["taps"]["type-2"]["rmse"] for result in found]
    assert shown[0] == shown[1]
