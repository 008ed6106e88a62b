"""A fully connected layer's gradient shows the span of a batch's features, its members, and their features."""

import dataclasses
import itertools
import math
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leakbench.attack import batch_features
from leakbench.attack.batch_features import decided, in_span, separable, separated, spanned
from leakbench.attack.clock import Until, WithinSeconds
from leakbench.attack.doubts import BUDGET
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.methods.feature_inversion import FeatureInversion
from leakbench.attack.methods.stage import Stage
from leakbench.attack.rankings.candidates import Candidates
from leakbench.attack.rankings.reconstructed import by_both
from leakbench.attack.slots.descent import LbfgsDescent
from leakbench.attack.slots.start import Constant
from leakbench.attack.slots.stop import Iterations
from leakbench.cell import Request
from leakbench.cell.behaviours import behaviours_of
from leakbench.cell.budget import plan
from leakbench.core.answers import Reconstruction
from leakbench.core.types import Clock, Generators, Network
from leakbench.defense.clip import ClipLayers, ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.separations import Separation, Separations
from leakbench.federated.view import Public, View
from leakbench.models import one_hot, parameters

V, FEATURES, NONE = 3, 20, Stations()


def generators() -> Generators:
    return tuple(torch.Generator().manual_seed(v) for v in range(V))


def examples(many: int, classes: int, seed: int) -> Public:
    rng = torch.Generator().manual_seed(seed)
    return Public(torch.rand(many, FEATURES, generator=rng), torch.randint(classes, (many,), generator=rng))


def perceptron(hidden: int = 24, classes: int = 2, activation: type[nn.Module] = nn.Sigmoid) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, hidden), activation(), nn.Linear(hidden, classes)).eval()


def view(
    model: nn.Module,
    batch: int,
    classes: int = 2,
    steps: int = 1,
    stations: Stations = NONE,
    learning_rate: float = 0.1,
    **changes,
) -> tuple[View, Public]:
    """Return the leak of batches that are the first examples of a list of candidates, victim by victim; and the list."""
    shown = examples(V * steps * batch + 40, classes, 2)
    count = V * steps * batch
    x, y = shown.inputs[:count], one_hot(shown.labels[:count], classes)
    grid = (V, 1, steps, batch)
    network = Network(model, parameters(model))
    update = leak(
        "type-1",
        network,
        x.reshape(*grid, FEATURES),
        y.reshape(*grid, classes),
        learning_rate,
        stations,
        Clock(0, 0, 1, 1),
        None,
    )
    found = View(
        "type-1", network, {n: u.detach() for n, u in update.items()}, batch, (FEATURES,), classes, learning_rate,
        local_steps=steps, stations=stations, public=examples(200, classes, 1), candidates=shown, **changes,
    )  # fmt: skip
    return found, shown


def ranked_first(scores: Tensor, members: int) -> bool:
    """Say whether exactly the victim's own examples have its highest scores."""
    first = scores.topk(members, dim=1).indices.sort(1).values
    return bool((first == torch.arange(V * members).reshape(V, members)).all())


SCALES = (
    Stations(),
    Stations(example=(ClipLayers(0.01),)),
    Stations(example=(ClipWhole(0.01),), client=(ClipWhole(0.001),)),
)


@pytest.mark.parametrize("stations", SCALES)
@pytest.mark.parametrize("steps", [1, 3])
def test_exactly_the_members_of_a_batch_are_in_the_span(stations: Stations, steps: int) -> None:
    """Scales of examples, tensors or clients do not matter; in the first layer this holds also over several local iterations."""
    leaked, shown = view(perceptron(), 4, steps=steps, stations=stations)
    layer = spanned(leaked)
    assert layer is not None and layer.name == "0."
    scores, sure = in_span(leaked, layer, shown, leaked.public)
    assert sure.all() and ranked_first(scores, 4 * steps)


@pytest.mark.parametrize("learning_rate", [0.1, 2.0])
def test_the_span_of_several_steps_shows_the_examples_of_the_first_step(learning_rate: float) -> None:
    """The layers before it change from step to step, but the first step's features are at the sent weights."""
    torch.manual_seed(1)
    front = (nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 2, 3, padding=1), nn.Sigmoid(), nn.Flatten())
    model = nn.Sequential(*front, nn.Linear(2 * FEATURES, 24), nn.Sigmoid(), nn.Linear(24, 2)).eval()
    steps, batch = 3, 4
    leaked, shown = view(model, batch, steps=steps, learning_rate=learning_rate)
    layer = spanned(leaked)
    assert layer is not None and layer.name == "4." and layer.names
    scores, sure = in_span(leaked, layer, shown, leaked.public)
    assert sure.all()
    own = scores.reshape(V, -1)[:, : V * steps * batch].reshape(V, V, steps, batch)
    strangers = torch.stack([scores[v][torch.arange(len(shown.labels)) // (steps * batch) != v] for v in range(V)])
    for v in range(V):
        assert (own[v, v, 0] > 8).all()  # Minus the logarithm of a share below 1e-3.
        assert own[v, v, 0].min() > strangers[v].max()
    ranked = Candidates()((leaked,), generators()).scores.argmax(1)
    assert torch.equal(ranked // (steps * batch), torch.arange(V)) and (ranked % (steps * batch) < batch).all()


@pytest.mark.parametrize(("batch", "hidden"), [(2, 32), (1, 24), (1, 20)])
def test_several_epochs_have_features_at_the_weights_of_each_step(batch: int, hidden: int) -> None:
    """Four examples in six epochs are 24 inputs of a layer behind a trained one, and four of a first layer."""
    torch.manual_seed(1)
    front = (nn.Unflatten(1, (1, FEATURES)), nn.Conv1d(1, 2, 3, padding=1), nn.Sigmoid(), nn.Flatten())
    model = nn.Sequential(*front, nn.Linear(2 * FEATURES, hidden), nn.Sigmoid(), nn.Linear(hidden, 2)).eval().double()
    many, epochs = 4, 6
    shown = examples(V * many + 40, 2, 2)
    shown = dataclasses.replace(shown, inputs=shown.inputs.double())
    once = (V, many // batch, batch)
    x, y = shown.inputs[: V * many].reshape(*once, FEATURES), one_hot(shown.labels[: V * many], 2).double()
    used = (torch.cat([t] * epochs, 1)[:, None] for t in (x, y.reshape(*once, 2)))
    public = dataclasses.replace(examples(200, 2, 1), inputs=examples(200, 2, 1).inputs.double())

    def leaked(model: nn.Module, steps: int, epochs: int, *batches: Tensor) -> View:
        network = Network(model, parameters(model))
        update = leak("type-1", network, *batches, 2.0, NONE, Clock(0, 0, 1, steps), None)
        return View(
            "type-1", network, {n: u.detach() for n, u in update.items()}, batch, (FEATURES,), 2, 2.0,
            local_steps=steps, epochs=epochs, public=public, candidates=shown,
        )  # fmt: skip

    steps = epochs * many // batch
    view = leaked(model, steps, epochs, *used)
    layer = spanned(view)
    assert view.examples == many
    assert (layer is None) == (hidden < many * epochs)
    if layer is not None:
        scores, sure = in_span(view, layer, shown, public)
        own = scores.reshape(V, -1)[:, : V * many].reshape(V, V, many)
        assert sure.all() and all(bool((own[v, v, :batch] > 8).all()) for v in range(V))
        assert all(own[v, v, :batch].min() > scores[v, V * many :].max() for v in range(V))


def test_a_first_layer_shows_the_examples_of_all_epochs() -> None:
    """Its inputs do not change, so that four outputs are enough for four examples in six epochs; also behind frozen layers."""
    for front in (nn.Identity(), nn.Linear(FEATURES, FEATURES)):
        model = nn.Sequential(front.requires_grad_(False), *perceptron(hidden=4))
        one, shown = view(model, 4)
        network, six = one.network, [torch.cat([t] * 6, 2) for t in batches_of(shown)]
        update = leak("type-1", network, *six, 0.1, NONE, Clock(0, 0, 1, 6), None)
        seen = dataclasses.replace(one, update=update, local_steps=6, epochs=6)
        layer = spanned(seen)
        assert layer is not None and layer.name == "1." and not layer.names
        scores, sure = in_span(seen, layer, shown, seen.public)
        assert sure.all() and ranked_first(scores, 4)


def batches_of(shown: Public) -> tuple[Tensor, Tensor]:
    """Return the inputs and targets (V, 1, 1, 4, ...) of the first examples."""
    count = V * 4
    return shown.inputs[:count].reshape(V, 1, 1, 4, -1), one_hot(shown.labels[:count], 2).reshape(V, 1, 1, 4, 2)


def test_candidates_in_the_span_are_ranked_first() -> None:
    """With a batch of twelve and two classes, a likelihood that models the other examples as Gaussian finds few."""
    leaked, _ = view(perceptron(), 12)
    assert ranked_first(Candidates()((leaked,), generators()).scores, 12)


def test_candidates_outside_the_span_leave_the_likelihood_to_decide() -> None:
    leaked, _ = view(perceptron(), 4)
    strangers = examples(30, 2, 7)
    _, sure = in_span(leaked, spanned(leaked), strangers, leaked.public)
    assert not sure.any()
    others = dataclasses.replace(leaked, candidates=strangers)
    expected = Candidates()._gradients(others, strangers)
    assert torch.equal(Candidates()((others,), generators()).scores, expected)


def test_a_black_candidate_is_in_every_span_and_is_ignored() -> None:
    leaked, shown = view(perceptron(), 4)
    stranger, member = V * 4 + 3, 1
    inputs = shown.inputs.clone()
    inputs[stranger] = 0.0
    scores, sure = in_span(leaked, spanned(leaked), Public(inputs, shown.labels), leaked.public)
    assert sure.all() and ranked_first(scores, 4)
    inputs[member] = 0.0
    _, unsure = in_span(leaked, spanned(leaked), Public(inputs[[member, stranger]], shown.labels[:2]), leaked.public)
    assert not unsure.any()


def of_axes(public: Tensor, candidates: Tensor) -> tuple[Tensor, bool]:
    """Return the scores (k,) of candidates, and whether the smallest share decides, for a span of the first two of six axes."""
    network = Network(model := nn.Sequential(nn.Linear(6, 4)).eval(), parameters(model))
    update = {
        "0.weight": torch.eye(4, 6)[None] * torch.tensor([1.0, 1.0, 0.0, 0.0])[:, None],
        "0.bias": torch.zeros(1, 4),
    }
    leaked = View("type-1", network, update, 2, (6,), 4, 0.1)
    layer = spanned(leaked)
    assert layer is not None
    scores, sure = in_span(leaked, layer, *(Public(x, torch.zeros(len(x))) for x in (candidates, public)))
    return scores[0], bool(sure[0])


def at_share(share: float) -> Tensor:
    """Return features (1, 6) of length one with a share outside the first two axes."""
    return torch.tensor([[(1 - share**2) ** 0.5, 0, share, 0, 0, 0]])


@pytest.mark.parametrize(("share", "decides"), [(0.09, True), (0.11, False), (0.3, False)])
def test_a_candidate_is_a_member_at_a_tenth_of_the_share_of_strangers(share: float, decides: bool) -> None:
    scores, sure = of_axes(at_share(1.0).expand(100, -1), at_share(share))
    assert scores.tolist() == pytest.approx([-math.log(share)], rel=1e-4) and sure == decides


@pytest.mark.parametrize(("share", "decides"), [(0.019, True), (0.05, False)])
def test_few_strangers_near_the_span_make_the_limit_smaller(share: float, decides: bool) -> None:
    """Three of the 100 shares are .2, so their 1 % quantile is .2, and the limit is .02."""
    public = torch.cat([at_share(0.2).expand(3, -1), at_share(1.0).expand(97, -1)])
    assert of_axes(public, at_share(share))[1] == decides


@pytest.mark.parametrize(("length", "counts"), [(0.01, True), (0.0011, True), (0.0009, False)])
def test_features_say_nothing_below_a_thousandth_of_the_usual_length(length: float, counts: bool) -> None:
    scores, sure = of_axes(at_share(1.0).expand(100, -1), length * at_share(0.0))
    assert sure == counts and scores.tolist() == pytest.approx([-math.log(1e-12) if counts else 0.0])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_an_update_without_numbers_or_of_zeros_shows_nothing(value: float) -> None:
    """As from a training that diverged."""
    leaked, shown = view(perceptron(), 4)
    blank = dataclasses.replace(leaked, update={n: torch.full_like(u, value) for n, u in leaked.update.items()})
    assert not in_span(blank, spanned(blank), shown, blank.public)[1].any()
    assert not decided(blank, shown).any()
    entered, cotangents, *_ = separated(blank, separable(blank), generators())
    assert entered.isnan().all() and cotangents.isnan().all()


def test_equal_examples_are_not_separated() -> None:
    """Only the sum of their derivatives shows, so the gradient has fewer directions than there are examples."""
    model = perceptron(activation=nn.ReLU)
    leaked, shown = view(model, 4)
    x, y = shown.inputs[: V * 4].clone(), shown.labels[: V * 4].clone()
    x[1::4], y[1::4] = x[0::4], y[0::4]
    update = leaked.respond(x.reshape(V, 4, FEATURES), one_hot(y, 2).reshape(V, 4, 2))
    equal = dataclasses.replace(leaked, update={n: u.detach() for n, u in update.items()})
    assert separated(equal, separable(equal), generators())[0].isnan().all()


def test_a_reconstruction_does_not_overrule_the_span() -> None:
    leaked, shown = view(perceptron(), 4)
    assert decided(leaked, shown).all()
    likely = Candidates()((leaked,), generators())
    others = torch.arange(V * 4, V * 4 + 4).expand(V, -1)
    none = torch.zeros(V, dtype=torch.int64)
    answer = Reconstruction(
        inputs=shown.inputs[others],
        labels=shown.labels[others],
        certainty=torch.zeros(V, 4),
        trajectory=torch.zeros(1, V),
        steps=none,
        evaluations=none,
        iterates=shown.inputs[others][None],
        snapshots=(0,),
        spent=none[None],
    )
    found = by_both((leaked,), likely, shown, leaked.public.inputs, answer)
    assert torch.equal(found["identified"].scores, likely.scores)
    assert not torch.equal(found["identified_by_reconstruction"].scores.argmax(1), likely.scores.argmax(1))


@pytest.mark.parametrize(
    ("batch", "change"),
    [
        (4, {"noise": 0.1}),
        (4, {"unknown": "it is secret"}),
        (4, {"secret": "the sent model was changed"}),
        (4, {"clock": Clock(0, 0, 1, 1, client_optimizer="adam")}),
        (4, {"stations": Stations(example=(GaussianNoise(multiplier=1.0, to="each"),))}),
        (20, {}),
        (25, {}),
    ],
)
def test_noise_adam_and_batches_larger_than_the_layer_supports_show_nothing(batch: int, change) -> None:
    leaked, _ = view(perceptron(), batch)
    assert spanned(dataclasses.replace(leaked, **change)) is None


@pytest.mark.parametrize(
    ("batch", "steps", "stations", "apart"),
    [(8, 1, NONE, True), (9, 1, NONE, False), (2, 3, NONE, False), (6, 1, SCALES[1], False)],
)
def test_a_hidden_layer_is_separated_for_eight_examples_of_one_step_without_a_defense(
    batch: int, steps: int, stations: Stations, apart: bool
) -> None:
    """The layer shows the span in each case."""
    leaked, _ = view(perceptron(), batch, steps=steps, stations=stations)
    assert spanned(leaked) is not None and separable(leaked) == (spanned(leaked) if apart else None)


def test_a_last_layer_separates_fewer_examples_than_classes() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(FEATURES, 5)).eval()
    assert spanned(view(model, 4, 5)[0]) is not None and spanned(view(model, 5, 5)[0]) is None


class Shared(nn.Module):
    """A network that uses one weight twice: in two layers, or in one layer that runs twice."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.again, self.last = (nn.Linear(FEATURES, FEATURES) for _ in range(3))
        if tied:
            self.again.weight = self.first.weight
        else:
            self.again = self.first

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(self.again(self.first(x).sigmoid()).sigmoid())
        return answer


@pytest.mark.parametrize("tied", [True, False])
def test_a_weight_that_is_used_twice_shows_no_span_and_separates_nothing(tied: bool) -> None:
    """The layer behind it does show one: exactly the members are in its span."""
    leaked, shown = view(Shared(tied), 4, FEATURES)
    layer = spanned(leaked)
    assert layer is not None and layer.name == "last." and separable(leaked) == layer
    scores, sure = in_span(leaked, layer, shown, leaked.public)
    assert sure.all() and ranked_first(scores, 4)


@pytest.mark.slow
@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh])
def test_the_inputs_of_a_hidden_layer_are_separated_for_more_examples_than_classes(activation: type[nn.Module]) -> None:
    leaked, shown = view(perceptron(activation=activation), 5)
    layer = separable(leaked)
    entered, cotangents, labels, _ = separated(leaked, layer, generators())
    truth = shown.inputs[: V * 5].reshape(V, 5, FEATURES)
    apart, whose = torch.cdist(entered, truth).min(2)
    assert apart.max() < 1e-3 and (whose.sort(1).values == torch.arange(5)).all()
    assert torch.equal(labels, shown.labels[: V * 5].reshape(V, 5).gather(1, whose))
    # The layer's input has derivatives that give the layers before it their gradients.
    weight = leaked.network.parameters["0.weight"]
    for lane in range(V):
        x = truth[lane, whose[lane]].requires_grad_()
        loss = nn.functional.cross_entropy(leaked.network.model(x), labels[lane], reduction="sum")
        assert torch.allclose(cotangents[lane], torch.autograd.grad(loss, x)[0], atol=1e-3 * float(weight.abs().max()))


@pytest.mark.slow
def test_features_are_nan_if_the_equations_have_no_solution() -> None:
    leaked = view(perceptron(), 3)[0].of(torch.tensor([0]))
    broken = {n: u + (0.3 * u.std() if n == "2.bias" else 0.0) for n, u in leaked.update.items()}
    entered, cotangents, *_ = separated(dataclasses.replace(leaked, update=broken), separable(leaked), generators()[:1])
    assert entered.isnan().all() and cotangents.isnan().all()


def test_feature_inversion_reconstructs_a_batch_of_two_classes() -> None:
    leaked, shown = view(perceptron(), 4)
    method = FeatureInversion(start=Constant(0.5, 0.02), descent=LbfgsDescent(), stop=Iterations(30))
    answer = method((leaked,), generators())
    apart, whose = torch.cdist(answer.inputs, shown.inputs[: V * 4].reshape(V, 4, FEATURES)).min(2)
    assert apart.max() < 1e-2 and (whose.sort(1).values == torch.arange(4)).all()


def ensemble() -> AutoLeak:
    """Return two stages that both read a batch; neither can reconstruct it in so few iterations."""
    stage = Stage(FeatureInversion(start=Constant(0.5, 0.02), descent=LbfgsDescent(), stop=Iterations(2)))
    return AutoLeak((stage, stage), broken=1e-25, twins=1)


@pytest.fixture
def separations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by one for each batch that is separated."""
    found, original = [], batch_features._separated

    def counted(*given: Any) -> Separation:
        found.append(1)
        return original(*given)

    monkeypatch.setattr(batch_features, "_separated", counted)
    return found


def test_a_limit_on_seconds_and_all_stages_share_one_separation(separations: list[int]) -> None:
    """The separation of the victims and of the group of public examples with which the attack checks itself."""
    leaked, _ = view(perceptron(), 4)
    found = WithinSeconds(ensemble(), 1e6, lambda *_: None, time.perf_counter)((leaked,), generators())
    assert len(separations) == V + 1 and not found.doubts[BUDGET].any()


def test_without_a_limit_only_separations_without_draws_are_shared(separations: list[int]) -> None:
    """The starts at the last layer do not draw; at another layer the second stage draws its own starts, as before."""
    torch.manual_seed(1)
    last, _ = view(nn.Sequential(nn.Linear(FEATURES, 8)).eval(), 3, 8)
    assert separable(last).last
    own = generators()
    first = separated(dataclasses.replace(last, separations=(kept := Separations())), separable(last), own)
    states = [rng.get_state() for rng in own]
    again = separated(dataclasses.replace(last, separations=kept), separable(last), own)
    fresh = separated(last, separable(last), generators())
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(first, again, fresh, strict=True))
    assert len(separations) == 2 * V and all(torch.equal(r.get_state(), s) for r, s in zip(own, states, strict=True))
    separations.clear()
    leaked, _ = view(perceptron(), 4)
    kept = Separations()
    for _ in range(2):
        separated(dataclasses.replace(leaked, separations=kept), separable(leaked), generators())
    assert len(separations) == 2 * V and not kept.kept


def test_the_separation_of_a_victim_does_not_depend_on_the_others() -> None:
    leaked, _ = view(perceptron(), 4)
    kept = Separations(every=True)
    whole = separated(dataclasses.replace(leaked, separations=kept), separable(leaked), generators())
    few = dataclasses.replace(leaked.of(torch.tensor([2, 0])), separations=kept)
    some = separated(few, separable(few), generators()[:2])
    assert all(torch.equal(a[[2, 0]], b) for a, b in zip(whole, some, strict=True))


@pytest.mark.slow
def test_a_limit_on_seconds_stops_the_separation_and_keeps_finished_victims() -> None:
    """Each victim has an equal share; a victim whose search is stopped has no features and a doubt."""
    leaked, _ = view(perceptron(), 4)
    layer, ticks = separable(leaked), itertools.count()
    free = separated(leaked, layer, generators())
    sums = []
    for end in (*range(1, 60, 7), 10**9):
        ticks = itertools.count()
        entered, _, _, cut = separated(leaked, layer, generators(), Until(lambda now=ticks: float(next(now)), end))
        assert torch.equal(entered.isnan().flatten(1).any(1), cut)
        # A stopped search may have solved the equations already, less exactly than without a limit.
        torch.testing.assert_close(entered[~cut], free[0][~cut], atol=0.05, rtol=0)
        assert next(ticks) <= end + 3 * V
        sums.append(int(cut.sum()))
    assert sums[0] == V and sums[-1] == 0 and sums == sorted(sums, reverse=True)


def test_a_batch_that_is_not_separated_in_time_is_a_doubt() -> None:
    leaked, _ = view(perceptron(), 4)
    found = WithinSeconds(ensemble(), 1e-9, lambda *_: None, time.perf_counter)((leaked,), generators())
    assert found.doubts[BUDGET].all()


@pytest.mark.parametrize(
    ("settings", "together"),
    [
        ({"leak_batch": 2}, True),
        ({"leak_batch": 2, "taps": ("type-2",)}, False),
        ({"leak_batch": 1}, False),
        ({"leak_batch": 1, "protocol": "live", "train_rounds": 1, "local_iterations": 2, "networks": 1}, True),
        ({"leak_batch": 2, "victims": 1, "networks": 1}, False),
    ],
)
def test_only_cells_in_which_several_examples_leak_together_depend_on_how_batches_are_read(settings, together) -> None:
    request = Request(defense="none", attack="cpl", dataset="digits", victims=settings.pop("victims", 5), **settings)
    cell = plan(request)
    assert ("batches" in behaviours_of(cell)) == together
