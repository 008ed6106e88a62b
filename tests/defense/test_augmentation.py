"""Changes of a batch before its gradients: where they act, the ledger, ATS, and the attacker that undoes them."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from leakbench.attack.undo import augmented_public, undo
from leakbench.cell import Request, resolve_cell
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.cell import hand_out
from leakbench.cell.fit import check_inputs
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.core.recipe import acting, construct, describe, resolve
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Generators, Network
from leakbench.data.find import load_dataset
from leakbench.defense import Defense
from leakbench.defense.ats import Ats, contrast, shifted
from leakbench.defense.augmentation import Batch, applied, drawn
from leakbench.defense.transform import Stations
from leakbench.execute import execute
from leakbench.experiment.victims import Sent, draw_victims, truth, view_of
from leakbench.external.attacker import AttackerOptions
from leakbench.external.trace import Trace, Training
from leakbench.federated.client import Examples, augmented, client_update, example_signal, mean_update
from leakbench.federated.leakage import leak
from leakbench.federated.simulate import train
from leakbench.federated.view import Public
from leakbench.models import build, one_hot, parameters
from leakbench.storage.rows_file import read_rows
from leakbench.storage.store import open_run

CLOCK = Clock(0, 0, 1, 1)
CLASSES = 3


@dataclasses.dataclass(frozen=True)
class Turned:
    """Turn images upside down, or the draw of each says not to; for tests."""

    certain: bool = False

    by_example = True

    def __call__(self, batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
        if self.certain:
            return dataclasses.replace(batch, inputs=batch.inputs.flip(-2))
        if rngs is None:
            return batch
        numbers = drawn(batch, rngs, lambda n, rng: torch.rand(n, generator=rng))
        turned = (numbers < 0.5)[..., None, None, None]
        return dataclasses.replace(batch, inputs=torch.where(turned, batch.inputs.flip(-2), batch.inputs))


def batch_of(lanes: int, members: int, shape: tuple[int, ...] = (1, 8, 8), weights: Tensor | None = None) -> Batch:
    rng = generator(3, "batch")
    inputs = torch.rand(lanes, members, *shape, generator=rng)
    targets = one_hot(torch.randint(CLASSES, (lanes, members), generator=rng), CLASSES)
    return Batch(inputs, targets, torch.ones(lanes, members) if weights is None else weights)


def network() -> Network:
    model = build("mlp", (1, 8, 8), CLASSES, generator(0, "model"))
    return Network(model, parameters(model))


def examples(lanes: int = 2, steps: int = 2, members: int = 4) -> Examples:
    whole = batch_of(lanes, steps * members)
    split = [t.unflatten(1, (steps, members)) for t in (whole.inputs, whole.targets, whole.weights)]
    return Examples(*split, members)


def epsilon_of(defense: Defense) -> tuple[float | None, str]:
    cell = resolve_cell(Request(defense="none", attack="cpl", dataset="digits", victims=2, candidates=10), None)
    found = cell_epsilon(defense, cell.data, cell.settings, hand_out(cell), None, 1e-5)
    return found.valid, found.reason


# Where they act


def test_an_empty_list_of_inputs_is_not_part_of_an_identity() -> None:
    plain = resolve("defenses", Defense, "none")[1]
    assert "inputs" in describe(plain)
    assert "inputs" not in acting(describe(plain))
    assert acting(describe(dataclasses.replace(plain, inputs=(Turned(),))))["inputs"]


def test_a_leak_is_the_gradient_of_the_changed_examples() -> None:
    """At type-2, type-1 and after several local steps, as with examples that were changed by hand."""
    net, given = network(), examples(steps=1)
    by_hand = dataclasses.replace(given, inputs=given.inputs.flip(-2))
    stations = Stations(inputs=(Turned(certain=True),))
    x, y = given.inputs[:, None], given.targets[:, None]
    one = leak("type-2", net, x, y, 0.1, stations, CLOCK, None)
    for n, g in example_signal(net, by_hand, 0).grads.items():
        torch.testing.assert_close(one[n], g[:, 0])
    two = leak("type-1", net, x, y, 0.1, stations, CLOCK, None)
    other = mean_update(net, by_hand, 0.1, Stations(), CLOCK, None).grads
    assert all(torch.equal(two[n], g[:, 0]) for n, g in other.items())
    several = examples()
    turned = dataclasses.replace(several, inputs=several.inputs.flip(-2))
    sent, hand = (
        client_update(net, some, 0.1, s, CLOCK, None).grads for some, s in ((several, stations), (turned, Stations()))
    )
    assert all(torch.equal(sent[n], g) for n, g in hand.items())


def test_each_local_iteration_has_its_own_draws_and_they_run_once() -> None:
    given = examples(lanes=1, steps=8, members=1)
    stations = Stations(inputs=(Turned(),))
    after, left = augmented(given, stations, CLOCK, generators(0, "noise", [(0,)]))
    turned = (after.inputs != given.inputs).flatten(1).unflatten(1, (8, -1)).any(2)
    assert turned.any() and not turned.all()
    assert left.inputs == ()
    again, _ = augmented(after, left, CLOCK, generators(0, "noise", [(0,)]))
    assert again is after


def test_a_lane_draws_the_same_numbers_next_to_other_lanes_and_padding() -> None:
    """Without padding drawn, so that a client's examples do not depend on the other clients of a computation."""
    alone = batch_of(1, 3)
    padded = Batch(
        torch.cat([alone.inputs, torch.rand(1, 2, 1, 8, 8)], 1).repeat(2, 1, 1, 1, 1),
        torch.cat([alone.targets, alone.targets[:, :2]], 1).repeat(2, 1, 1),
        torch.tensor([[1.0, 1, 1, 0, 0], [1.0, 0, 1, 1, 0]]),
    )
    numbers = drawn(alone, generators(0, "x", [(0,)]), lambda n, rng: torch.rand(n, generator=rng))
    both = drawn(padded, generators(0, "x", [(0,), (0,)]), lambda n, rng: torch.rand(n, generator=rng))
    assert torch.equal(both[0, :3], numbers[0])
    assert torch.equal(both[1, [0, 2, 3]], numbers[0])
    assert not both[1, [1, 4]].any()


def test_training_uses_changed_examples() -> None:
    """A round of training with examples turned by the defense is one with turned data."""
    cell = resolve_cell(Request(defense="none", attack="cpl", dataset="digits", victims=2, candidates=10), None)
    net = build(cell.settings.model, cell.data.shape, cell.data.classes, generator(0, "model"))
    turned = dataclasses.replace(cell.data, train_inputs=cell.data.train_inputs.flip(-2))
    results = [
        next(train(Network(net, parameters(net)), data, hand_out(cell), cell.settings.federation, defense, 0))
        for data, defense in (
            (cell.data, dataclasses.replace(cell.defense, inputs=(Turned(True),))),
            (turned, cell.defense),
        )
    ]
    assert all(torch.equal(results[0].parameters[n], p) for n, p in results[1].parameters.items())


def test_the_truth_is_the_original_and_what_leaks_is_not(tmp_path: Path) -> None:
    path = tmp_path / "turned.yaml"
    path.write_text(
        "title: t\ncite: t\nunit: example\ninputs: [{ats: {policies: [[[translate_x, 0.3]]]}}]\n", encoding="utf-8"
    )
    request = Request(
        defense=str(path), attack="whitened_public", dataset="digits", victims=3, candidates=10, taps=("type-2",)
    )
    cell = resolve_cell(request, None)
    victims = draw_victims(cell, "type-2", 0, hand_out(cell))
    real = cell.data.train_inputs[victims.indices[:, 0, 0, 0]]
    assert torch.equal(truth(cell, "type-2", victims)[0][:, 0], real)
    model = build(cell.settings.leak_model, cell.data.shape, cell.data.classes, generator(0, "model"))
    sent = Sent(Network(model, parameters(model)))
    view = view_of(cell, "type-2", 0, victims, torch.arange(3), sent)
    assert view.stations.inputs == ()  # The attacker reconstructs what leaked, and undoes it afterwards.
    targets = one_hot(cell.data.train_targets[victims.indices[:, 0, 0, 0]], cell.data.classes)[:, None]
    for inputs, equal in ((real, False), (shifted(real, 0.3, -1), None), (shifted(real, -0.3, -1), None)):
        far = [(view.respond(inputs[:, None], targets)[n] - u).flatten(1).norm(dim=1) for n, u in view.update.items()]
        distances = torch.stack(far).norm(dim=0)
        if equal is False:
            assert (distances > 1e-3).all()
            nearest = torch.full_like(distances, math.inf)
        else:
            nearest = torch.minimum(nearest, distances)
    assert (nearest < 1e-6).all()
    assert view.public is not None
    assert not torch.equal(
        view.public.inputs,
        view_of(
            dataclasses.replace(cell, attack=dataclasses.replace(cell.attack, knows="oblivious")),
            "type-2",
            0,
            victims,
            torch.arange(3),
            sent,
        ).public.inputs,
    )


@pytest.mark.parametrize(
    ("part", "dataset", "message"),
    [
        ({"ats": {"policies": [[["contrast", 0.1]]]}}, "adult", "ats: got inputs of shape"),
        ({"ats": {"policies": [[["contrast", 0.1]]]}}, "reviews", "got the tokens of texts"),
    ],
)
def test_data_of_another_kind_are_refused(part: dict[str, object], dataset: str, message: str) -> None:
    defense = construct(Defense, {"title": "t", "cite": "t", "unit": "example", "inputs": [part]})
    data = dataclasses.make_dataclass("Data", ["kind", "shape", "outputs"])(
        *{"adult": ("tabular", (12,), 2), "reviews": ("text", (9,), 2)}[dataset]
    )
    with pytest.raises(InputError, match=message):
        check_inputs(defense, data)


# The ledger


def with_inputs(name: str, *inputs: object) -> Defense:
    return dataclasses.replace(resolve("defenses", Defense, name)[1], inputs=inputs)


@dataclasses.dataclass(frozen=True)
class Averaged:
    """Mix every example with the first one, and state that it does not; for tests."""

    by_example = True

    def __call__(self, batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
        return dataclasses.replace(batch, inputs=(batch.inputs + batch.inputs[:, :1]) / 2)


def test_an_epsilon_of_one_example_stays_only_if_it_is_in_one_member() -> None:
    plain, _ = epsilon_of(with_inputs("fed_cdp_valid"))
    assert plain is not None
    assert epsilon_of(with_inputs("fed_cdp_valid", Ats(((("contrast", 0.3),),))))[0] == plain
    for change in (Averaged(), Unstated()):
        valid, reason = epsilon_of(with_inputs("fed_cdp_valid", change))
        assert valid is None
        assert "puts one example into several members" in reason


@dataclasses.dataclass(frozen=True)
class Unstated:
    """A change that does not state `by_example`; for tests."""

    def __call__(self, batch: Batch, clock: Clock, rngs: Generators | None) -> Batch:
        return batch


def test_an_epsilon_of_a_client_does_not_depend_on_its_inputs() -> None:
    plain, _ = epsilon_of(with_inputs("fed_sdp_client_valid"))
    assert plain is not None
    assert epsilon_of(with_inputs("fed_sdp_client_valid", Averaged()))[0] == plain


# ATS


def test_operations_are_those_of_pillow() -> None:
    """Translations are exact; contrast differs by the rounding to 8 bits."""
    pixels = np.random.default_rng(0).integers(0, 256, (13, 21, 3), dtype=np.uint8)
    picture, inputs = Image.fromarray(pixels), torch.from_numpy(pixels).permute(2, 0, 1)[None, None] / 255
    for share in (0.4531722054380665, -0.4531722054380665, 0.1007, -0.151, 0.0):
        across = picture.transform((21, 13), Image.Transform.AFFINE, (1, 0, share * 21, 0, 1, 0), fillcolor=(0, 0, 0))
        down = picture.transform((21, 13), Image.Transform.AFFINE, (1, 0, 0, 0, 1, share * 13), fillcolor=(0, 0, 0))
        for axis, theirs in ((-1, across), (-2, down)):
            ours = (shifted(inputs, share, axis)[0, 0].permute(1, 2, 0) * 255).round().to(torch.uint8)
            assert np.array_equal(ours.numpy(), np.asarray(theirs)), (share, axis)
    for factor in (0.5, 4 / 3, 2 / 3):
        theirs = np.asarray(ImageEnhance.Contrast(picture).enhance(factor)) / 255
        ours = contrast(inputs, torch.full((1, 1, 1, 1, 1), factor))[0, 0].permute(1, 2, 0)
        assert np.abs(ours.numpy() - theirs).max() < 2.1 / 255


def test_the_recipe_has_the_published_sizes() -> None:
    """Sizes at positions 9, 6, 2, 3 and 7 of ten equal steps up to 150 / 331, and up to 0.5 for contrast."""
    ats = resolve("defenses", Defense, "ats")[1].inputs[0]
    moves, contrasts = np.linspace(0, 150 / 331, 10), np.linspace(0, 0.5, 10)
    first = (("translate_x", moves[9]), ("contrast", contrasts[6]), ("translate_y", moves[2]))
    second = (("translate_y", moves[3]), ("contrast", contrasts[7]), ("contrast", contrasts[7]))
    for ours, theirs in zip(ats.policies, (first, second), strict=True):
        assert [name for name, _ in ours] == [name for name, _ in theirs]
        np.testing.assert_allclose([size for _, size in ours], [size for _, size in theirs], rtol=1e-12)
    assert len(ats.outcomes()) == 16


def test_every_draw_is_one_of_the_outcomes_and_all_come_up() -> None:
    ats = Ats(((("translate_x", 0.3), ("contrast", 0.5)), (("translate_y", 0.2),)))
    batch = batch_of(1, 200)
    after = ats(batch, CLOCK, generators(0, "noise", [(0,)]))
    outcomes = [outcome(batch, CLOCK, None).inputs for outcome in ats.outcomes()]
    assert len(outcomes) == 6
    matches = torch.stack([torch.isclose(after.inputs, o, atol=1e-6).flatten(2).all(2)[0] for o in outcomes])
    assert (matches.sum(0) == 1).all()
    share = matches.double().mean(1)
    assert ((share[:4] - 1 / 8).abs() < 0.08).all()  # Two policies equally often, then each direction.
    assert ((share[4:] - 1 / 4).abs() < 0.1).all()
    assert torch.equal(ats(batch, CLOCK, None).inputs, batch.inputs)
    assert torch.equal(after.targets, batch.targets)


# The attacker that undoes it


def test_the_attacker_moves_images_back() -> None:
    """Reconstructed exactly where the policy left pixels, and better than by the mean elsewhere."""
    data = load_dataset("digits", None)[2]
    public = Public(data.test_inputs, data.test_targets)
    ats = Ats(((("translate_x", 0.3), ("contrast", 0.3)),))
    real = data.train_inputs[:40]
    batch = Batch(real[None], torch.zeros(1, 40, data.classes), torch.ones(1, 40))
    seen = applied((ats,), batch, CLOCK, generators(5, "noise", [(0,)])).inputs[0]
    back = undo((ats,), public, data.classes, CLOCK, generator(0, "undo"))(seen)

    def rmse(guess: Tensor) -> float:
        return float((guess - real).flatten(1).square().mean(1).sqrt().median())

    assert rmse(back) < 0.14
    assert rmse(back) < 0.5 * rmse(seen)
    assert rmse(back) < 0.7 * rmse(public.inputs.mean(0).expand_as(real))
    assert back.min() >= 0 and back.max() <= 1


def test_public_examples_are_changed_like_the_victims() -> None:
    data = load_dataset("digits", None)[2]
    public = Public(data.test_inputs[:50], data.test_targets[:50])
    after = augmented_public((Ats(((("translate_x", 0.3),),)),), public, data.classes, CLOCK, generator(0, "public"))
    assert torch.equal(after.labels, public.labels)
    moved = torch.stack([shifted(public.inputs, s, -1) for s in (0.3, -0.3)])
    assert ((after.inputs == moved).flatten(2).all(2).sum(0) >= 1).all()


def test_a_missing_reconstruction_stays_missing() -> None:
    data = load_dataset("digits", None)[2]
    ats = Ats(((("translate_x", 0.3),),))
    back = undo((ats,), Public(data.test_inputs, data.test_targets), data.classes, CLOCK, generator(0, "undo"))
    some = torch.stack([data.train_inputs[0], torch.full_like(data.train_inputs[0], math.nan)])
    assert back(some)[0].isfinite().all() and back(some)[1].isnan().all()


def test_a_run_undoes_the_augmentation_only_for_an_attacker_that_knows_it(tmp_path: Path) -> None:
    """The rows compare with the originals: the adaptive attacker is closer to them than the oblivious one."""
    medians = {}
    for knows in ("oblivious", "defense"):
        cell = resolve_cell(
            Request(
                defense="ats",
                attack="whitened_public",
                dataset="digits",
                iterations=15,
                victims=6,
                networks=1,
                candidates=10,
                taps=("type-2",),
                train_rounds=0,
                knows=knows,
            ),
            None,
        )
        with open_run(tmp_path / knows, {"hash": cell.hash, "cell": cell.names, "command": "test"}) as run:
            execute(cell, run, Reporter(quiet=True))
        medians[knows] = read_rows(tmp_path / knows / "rows.parquet")["rmse"].median()
    assert medians["defense"] < 0.7 * medians["oblivious"]


def test_an_update_of_ones_own_behind_random_changes_is_refused() -> None:
    attacker = AttackerOptions("cpl", defense="ats", knows="defense")()
    model = build("mlp", (1, 8, 8), 10, torch.Generator().manual_seed(0))
    sent = {n: torch.ones_like(p) for n, p in model.named_parameters()}
    with pytest.raises(InputError, match=r"defense: ats changes examples at random, which is not undone"):
        attacker.view(Trace(model, [sent], (1, 8, 8), 10, Training(), None, "type-1", None))
