"""Labels of a batch as counts, with repeats; and labels that the threat model grants."""

import dataclasses
import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakbench.attack.search.label_counts import label_counts, rounded
from leakbench.attack.slots.labels import LABELS, Given, LastLayer, LastLayerCounts, LastLayerCountsBothEnds
from leakbench.cell import Request, resolve_cell
from leakbench.cell.cell import hand_out
from leakbench.cli import main
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Network
from leakbench.data.find import load_dataset
from leakbench.defense.clip import ClipWhole
from leakbench.defense.transform import Stations
from leakbench.experiment.victims import Sent, draw_victims, truth, view_of
from leakbench.federated.leakage import leak
from leakbench.federated.view import Public, View
from leakbench.models import build, one_hot, parameters


def seen(model: nn.Module, x: Tensor, y: Tensor, classes: int, public: Public | None) -> View:
    """Return the leak of batches x (V, B, *s) with labels y (V, B)."""
    network = Network(model, parameters(model))
    targets = one_hot(y, classes).to(x)
    leaked = leak("type-1", network, x[:, None, None], targets[:, None, None], 0.1, Stations(), Clock(0, 0, 1, 1), None)
    update = {n: u.detach() for n, u in leaked.items()}
    return View("type-1", network, update, y.shape[1], tuple(x.shape[2:]), classes, 0.1, public=public)


@given(st.lists(st.floats(-2, 6), min_size=3, max_size=3), st.integers(1, 5))
@settings(max_examples=50, deadline=None)
def test_rounded_counts_are_the_nearest(wanted: list[float], total: int) -> None:
    """Integers from 0 that have the total as their sum, none nearer: compared with all of them."""
    real = torch.tensor([wanted], dtype=torch.float64)
    found = rounded(real, total)
    every = [c for c in itertools.product(range(total + 1), repeat=3) if sum(c) == total]
    distances = (torch.tensor(every, dtype=torch.float64) - real).square().sum(1)
    assert found.sum() == total
    assert found.min() >= 0
    assert float((found - real).square().sum()) == pytest.approx(float(distances.min()))


class Tempered(nn.Linear):
    """A layer whose output is divided by a negative temperature."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / -0.5


@pytest.mark.parametrize("kind", [nn.Linear, Tempered])
@pytest.mark.parametrize("bias", [True, False])
@given(seed=st.integers(0, 1000), batch=st.integers(1, 12))
@settings(max_examples=15, deadline=None)
def test_counts_are_exact_for_known_features(kind: type[nn.Linear], bias: bool, seed: int, batch: int) -> None:
    """Batches of one input, which is public too, under labels drawn with repeats: every count is right, at any weights."""
    rng = torch.Generator().manual_seed(seed)
    model = kind(6, 5, bias=bias).double()
    nn.init.normal_(model.weight, generator=rng)
    x = torch.rand(6, generator=rng, dtype=torch.float64)
    y = torch.randint(5, (4, batch), generator=rng)
    public = Public(x.expand(3, 6), torch.zeros(3, dtype=torch.int64))
    counts = label_counts(seen(model, x.expand(4, batch, 6), y, 5, public), ())
    assert torch.equal(counts, one_hot(y, 5).sum(1).long())


def test_with_a_bias_only_the_mean_probability_is_needed() -> None:
    """Inputs differ from the public ones, but E[p] - db by hand: the slow form, exact up to rounding."""
    rng = generator(0, "counts")
    model = nn.Linear(6, 3).double()
    x, y = torch.rand(5, 8, 6, generator=rng, dtype=torch.float64), torch.randint(3, (5, 8), generator=rng)
    public = Public(torch.rand(50, 6, generator=rng, dtype=torch.float64), torch.zeros(50, dtype=torch.int64))
    view = seen(model, x, y, 3, public)
    slow = [8 * (model(public.inputs).softmax(1).mean(0) - view.update["bias"][v]).detach() for v in range(5)]
    assert torch.equal(label_counts(view, ()), rounded(torch.stack(slow), 8))


@pytest.mark.parametrize("bias", [True, False])
def test_expected_gradients_of_public_examples_are_undefended(bias: bool) -> None:
    """The counts use the plain gradients of public examples, for any stations that the attacker knows."""
    model = nn.Linear(6, 3, bias=bias)
    nn.init.normal_(model.weight, generator=generator(0, "weights"))
    x = torch.rand(6, generator=generator(0, "input")).expand(2, 4, 6)
    view = seen(model, x, torch.tensor([[0, 0, 0, 2], [1, 1, 2, 2]]), 3, Public(x[0, :1], torch.tensor([0])))
    expected = [[3, 0, 1], [0, 2, 2]]
    assert label_counts(view, ()).tolist() == expected
    knowing = dataclasses.replace(view, stations=Stations(example=(ClipWhole(1e-3),), batch=(ClipWhole(1e-3),)))
    assert label_counts(knowing, ()).tolist() == expected


def test_without_a_bias_it_is_least_squares() -> None:
    """E[p h^T] - dW against the mean features, row by row, by torch's own solver."""
    rng = generator(1, "counts")
    model = nn.Linear(6, 3, bias=False).double()
    x, y = torch.rand(5, 8, 6, generator=rng, dtype=torch.float64), torch.randint(3, (5, 8), generator=rng)
    known = torch.rand(50, 6, generator=rng, dtype=torch.float64)
    view = seen(model, x, y, 3, Public(known, torch.zeros(50, dtype=torch.int64)))
    expected = (model(known).softmax(1)[:, :, None] * known[:, None]).mean(0).detach()
    slow = [
        [float(torch.linalg.lstsq(known.mean(0)[:, None], row[:, None]).solution) for row in expected - dw]
        for dw in view.update["weight"]
    ]
    assert torch.equal(label_counts(view, ()), rounded(8 * torch.tensor(slow), 8))


def after_steps(rate: float, steps: int, momentum: float = 0.0) -> tuple[View, Tensor, nn.Module]:
    """Return the update of clients with one input under random labels (V, 12), which is public too, after some steps."""
    rng = generator(2, "ends")
    model = nn.Linear(6, 5).double()
    nn.init.normal_(model.weight, generator=rng)
    nn.init.zeros_(model.bias)
    x, y = torch.rand(6, generator=rng, dtype=torch.float64), torch.randint(5, (20, 12), generator=rng)
    network, clock = Network(model, parameters(model)), Clock(0, 0, 1, steps, momentum=momentum)
    inputs, targets = x.expand(20, 1, steps, 12, 6), one_hot(y, 5).double()[:, None, None].expand(-1, -1, steps, -1, -1)
    update = leak("type-1", network, inputs, targets, rate, Stations(), clock, None)
    public = Public(x.expand(3, 6), torch.zeros(3, dtype=torch.int64))
    view = View(
        "type-1", network, update, 12, (6,), 5, rate, local_steps=steps, epochs=steps, clock=clock, public=public
    )
    return view, y, model


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_both_ends_are_the_sent_and_the_returned_model(momentum: float) -> None:
    """The mean of the public probabilities of both, less the gradient of the bias, by hand."""
    view, _, model = after_steps(0.3, 4, momentum)
    x, at = view.public.inputs, view.network.parameters  # type: ignore[union-attr]
    scale = 4.0 if not momentum else 4 + 3 * 0.5 + 2 * 0.25 + 0.125
    slow = []
    for victim in range(20):
        end = {n: at[n] - 0.3 * scale * view.update[n][victim] for n in at}
        ends = [torch.func.functional_call(model, w, (x,)).softmax(1).mean(0) for w in (at, end)]
        slow.append(12 * (sum(ends) / 2 - view.update["bias"][victim]))
    assert torch.equal(label_counts(view, (), both_ends=True), rounded(torch.stack(slow), 12))


def test_without_a_bias_the_features_of_both_ends_are_used() -> None:
    """Least squares with the means of E[p h^T] and of E[h] at the sent and at the returned model, by hand."""
    rng, rate, steps = generator(5, "ends"), 4.0, 5
    model = nn.Sequential(nn.Linear(6, 4), nn.Sigmoid(), nn.Linear(4, 5, bias=False)).double()
    for weights in model.parameters():
        nn.init.normal_(weights, generator=rng)
    x, y = torch.rand(6, generator=rng, dtype=torch.float64), torch.randint(5, (20, 12), generator=rng)
    network, clock = Network(model, {n: p.detach() for n, p in parameters(model).items()}), Clock(0, 0, 1, steps)
    inputs, targets = x.expand(20, 1, steps, 12, 6), one_hot(y, 5).double()[:, None, None].expand(-1, -1, steps, -1, -1)
    update = leak("type-1", network, inputs, targets, rate, Stations(), clock, None)
    known = torch.rand(30, 6, generator=rng, dtype=torch.float64)
    public = Public(known, torch.zeros(30, dtype=torch.int64))
    view = View(
        "type-1", network, update, 12, (6,), 5, rate, local_steps=steps, epochs=steps, clock=clock, public=public
    )
    slow, of_sent = [], []
    for victim in range(20):
        at = network.parameters
        end = {n: at[n] - rate * steps * update[n][victim] for n in at}
        slopes, expected = [], []
        for w in (at, end):
            h = torch.sigmoid(known @ w["0.weight"].T + w["0.bias"])
            p = (h @ w["2.weight"].T).softmax(1)
            slopes.append(h.mean(0))
            expected.append((p[:, :, None] * h[:, None]).mean(0))
        rest = sum(expected) / 2 - update["2.weight"][victim]
        for slope, counts in ((sum(slopes) / 2, slow), (slopes[0], of_sent)):
            counts.append(12 * rest @ slope / slope.square().sum())
    assert torch.equal(label_counts(view, (), both_ends=True), rounded(torch.stack(slow), 12))
    assert not torch.equal(rounded(torch.stack(slow), 12), rounded(torch.stack(of_sent), 12))


def test_both_ends_count_what_the_sent_model_miscounts() -> None:
    """Steps move the probabilities towards the labels, which the sent model alone takes for fewer labels."""
    view, y, _ = after_steps(0.5, 5)
    true = y.sort(1).values
    sent, both = (
        (part(view, ()).targets.argmax(-1) == true).float().mean()
        for part in (LastLayerCounts(), LastLayerCountsBothEnds())
    )
    assert sent < 0.85
    assert both > 0.95


def test_for_one_step_the_returned_model_is_not_used() -> None:
    view, _, _ = after_steps(0.5, 1)
    assert torch.equal(label_counts(view, (), both_ends=True), label_counts(view, ()))


def test_repeats_among_faces_at_random_weights() -> None:
    """Sixteen batches of eight digits with repeats are all right; the lowest rows alone miscount some."""
    data = load_dataset("digits")[2]
    model = build("lenet_cpl", data.shape, data.classes, generator(0, "leak model"))
    chosen = torch.randint(len(data.train_targets), (16, 8), generator=generator(0, "chosen"))
    x, y = data.train_inputs[chosen], data.train_targets[chosen]
    view = seen(model, x, y, data.classes, Public(data.test_inputs[:200], data.test_targets[:200]))
    true = y.sort(1).values
    assert torch.equal(LastLayerCounts()(view, ()).targets.argmax(-1), true)
    assert (LastLayer()(view, ()).targets.argmax(-1) != true).any(1).any()
    del view.update[list(view.update)[-1]]  # The last bias.
    right = (LastLayerCounts()(view, ()).targets.argmax(-1) == true).all(1)
    assert right.float().mean() >= 0.9


def test_wrong_input_is_refused() -> None:
    model = nn.Linear(6, 3)
    x, y = torch.rand(2, 4, 6), torch.zeros(2, 4, dtype=torch.int64)
    with pytest.raises(InputError, match=r"public.*last_layer_counts"):
        label_counts(seen(model, x, y, 3, None), ())
    of = seen(model, x, y, 3, Public(x[0], y[0]))
    with pytest.raises(InputError, match="shows the true labels"):
        Given()(of, ())
    with pytest.raises(InputError, match="unknown field"):
        construct(LABELS.parts["given"], {"order": "sorted"})


RECIPE = (
    "title: mine\ncite: me\nmethod:\n  gradient_matching:\n    labels: {labels}\n    start: uniform\n"
    "    distance: squared_l2\n    descent: lbfgs\n"
)


@pytest.mark.parametrize("tap", ["type-2", "type-1"])
@pytest.mark.parametrize("labels", ["given", "last_layer"])
def test_labels_are_shown_only_to_an_attack_that_is_granted_them(tap: str, labels: str, tmp_path: Path) -> None:
    """The true labels of exactly these victims, in order of use; otherwise none, and the knowledge says which."""
    (tmp_path / "mine.yaml").write_text(RECIPE.format(labels=labels))
    asked = Request(attack=str(tmp_path / "mine.yaml"), dataset="digits", victims=4, train_rounds=0, candidates=9)
    cell = resolve_cell(asked, None)
    model = build(cell.settings.leak_model, cell.data.shape, cell.data.classes, generator(0, "leak model"))
    victims, lanes = draw_victims(cell, tap, 0, hand_out(cell)), torch.tensor([1, 3])
    view = view_of(cell, tap, 0, victims, lanes, Sent(Network(model, parameters(model))))
    if labels == "last_layer":
        assert view.labels is None
        assert view.knowledge.labels == "not given"
        return
    true = truth(cell, tap, victims)[1][lanes]
    assert view.labels is not None
    assert torch.equal(view.labels, true)
    assert torch.equal(Given()(view, ()).targets.argmax(-1), true)
    assert view.knowledge.labels == "given"


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["digits", "cancer"])
@pytest.mark.parametrize("labels", ["given", "last_layer_counts"])
def test_from_the_command_line(
    dataset: str, labels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All labels of undefended batches are right, and the table says whether they were given."""
    (tmp_path / "mine.yaml").write_text(RECIPE.format(labels=labels))
    line = f"leakbench run --quiet --json --dataset {dataset} --attack {tmp_path / 'mine.yaml'} --iterations 1"
    more = f"--victims 3 --networks 1 --leak-batch 4 --candidates 9 --taps type-1 --train-rounds 0 --out {tmp_path / 'run'}"
    monkeypatch.setattr("sys.argv", [*line.split(), *more.split()])
    main()
    summary = json.loads(capsys.readouterr().out)
    assert summary["knowledge"]["labels"] == ("given" if labels == "given" else "not given")
    assert summary["taps"]["type-1"]["label_accuracy"] >= (1.0 if labels == "given" else 0.9)
