"""The choice among rows of a first layer: rows that explain themselves, rows that agree, and no combination of others."""

import dataclasses

import pytest
import torch
from torch import Tensor

from leakbench.attack.methods.explained import unexplained
from leakbench.attack.methods.rows import Rows
from leakbench.attack.search.independent import independent
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipWhole
from leakbench.defense.precode import Precode
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import one_hot, parameters
from tests.attack.test_servers_first_layer import CLASSES, SHAPE, honest, pictures, right, view

RNGS = generators(0, "v", [(v,) for v in range(4)])


def slow(vectors: Tensor, certainty: Tensor, many: int, sure: float, apart: float) -> Tensor:
    """Choose for one victim, by least squares on the vectors themselves."""
    chosen = torch.full_like(certainty, -torch.inf)
    taken: list[int] = []
    for row in certainty.argsort(descending=True).tolist():
        if len(taken) == many or not certainty[row].isfinite():
            break
        span, v = vectors[taken].T, vectors[row]
        beside = v - span @ torch.linalg.pinv(span, rtol=1e-9) @ v if taken else v
        if certainty[row] >= sure or beside.norm() > apart * v.norm():
            taken.append(row)
            chosen[row] = certainty[row]
    return chosen


@pytest.mark.parametrize(("many", "sure", "apart"), [(3, torch.inf, 0.1), (9, torch.inf, 0.1), (9, 6.0, 0.4)])
def test_the_choice_equals_that_of_least_squares(many, sure, apart):
    """Vectors in few dimensions, with exact combinations and a copy; certain rows are chosen in any span."""
    rng = generator(0, "vectors")
    vectors = torch.randn(4, 12, 7, generator=rng).double()
    vectors[:, 3], vectors[:, 5] = vectors[:, 0] + 2 * vectors[:, 1], vectors[:, 2]
    certainty = torch.stack([torch.randperm(12, generator=rng).double() for _ in range(4)])
    certainty[:, 7] = -torch.inf
    certainty[0], certainty[1, :6] = certainty[0].where(certainty[0] > 7, -torch.inf), 12 - torch.arange(6).double()
    found = independent(vectors @ vectors.mT, certainty, many, sure, apart)
    for v in range(4):
        expected = slow(vectors[v], certainty[v], many, sure, apart)
        assert torch.equal(found[v], expected)
    assert (found[1, 3] > 0) == (sure < 10 and many > 3)


def rows_of(shown: View) -> tuple[Tensor, Tensor]:
    """Return the content of each row (V, k, d), and whether it has a gradient (V, k)."""
    weight, bias = shown.update["1.weight"], shown.update["1.bias"]
    return (weight / bias[..., None]).nan_to_num(0.0, 0.0, 0.0), bias.abs() > 1e-6 * bias.abs().amax(1, keepdim=True)


def lit(shown: View, x: Tensor) -> Tensor:
    """Return (V, M, k): which examples activate which row."""
    sent = shown.network.parameters
    return x.flatten(2) @ sent["1.weight"].T + sent["1.bias"] > 0


def test_a_row_activated_by_one_example_explains_its_bias_and_a_mixture_does_not():
    """By the rows that the truth activates, in double precision; the gradient of the example's label, over M."""
    shown, x = view(honest(), 4)
    network = shown.network.model.double()
    sent = dataclasses.replace(shown.network, model=network, parameters=parameters(network))
    y = one_hot(torch.arange(4).expand(4, 1, 1, -1) % CLASSES, CLASSES).double()
    update = leak("type-1", sent, x.double()[:, None, None], y, 0.1, Stations(), Clock(0, 0, 1, 1), None)
    shown = dataclasses.replace(shown, network=sent, update=update)
    found, there = rows_of(shown)
    many = lit(shown, x.double()).sum(1)
    missed = unexplained(shown, "1.", found)
    assert (many == 1).any() and (missed[(many == 1) & there] < 1e-9).all()
    assert float((missed[(many > 1) & there] < 1e-3).double().mean()) < 0.01
    other = dataclasses.replace(shown, batch=5)
    assert (unexplained(other, "1.", found)[(many == 1) & there] > 1e-3).double().mean() > 0.98


def test_changed_gradients_explain_no_row():
    """A clip, or a sampling network."""
    shown, x = view(honest(), 4)
    y = one_hot(torch.arange(4).expand(4, 1, 1, -1) % CLASSES, CLASSES)
    clip = Stations(example=(ClipWhole(norm=1e-3),))
    clipped = leak("type-1", shown.network, x[:, None, None], y, 0.1, clip, Clock(0, 0, 1, 1), None)
    spoilt = dataclasses.replace(shown, update=clipped)
    assert (unexplained(spoilt, "1.", rows_of(spoilt)[0])[rows_of(spoilt)[1]] > 1e-3).double().mean() > 0.99
    samples = Precode(4)(honest().model, SHAPE, CLASSES, generator(0, "x"))
    drawing = dataclasses.replace(shown, network=Network(samples, parameters(samples)))
    assert (unexplained(drawing, "1.", rows_of(shown)[0]) == torch.inf).all()


@pytest.mark.parametrize("many", [12, 20])
def test_every_example_in_a_row_is_reconstructed(many):
    """In an honest layer an example is alone in only one or two rows: no mixture replaces it."""
    shown, x = view(honest(), many)
    found, there = rows_of(shown)
    held = right(x, found.where(there[..., None], torch.nan).reshape(4, -1, *SHAPE))
    answered = right(x, Rows()((shown,), RNGS).inputs)
    assert 0.05 < float(held.double().mean()) <= 1 - (many - 12) / 100
    assert torch.equal(answered, held)


def test_a_combination_of_reconstructions_is_rejected():
    """Under a clip, where only rows that agree are certain: no other reconstruction is in the span of earlier ones."""
    shown, x = view(honest(), 8)
    y = one_hot(torch.arange(8).expand(4, 1, 1, -1) % CLASSES, CLASSES)
    stations = Stations(example=(ClipWhole(norm=1e-3),))
    update = leak("type-1", shown.network, x[:, None, None], y, 0.1, stations, Clock(0, 0, 1, 1), None)
    found = Rows()((dataclasses.replace(shown, update=update),), RNGS)
    for v in range(4):
        answers = found.inputs[v].flatten(1)
        sure = found.certainty[v] >= 2
        for n in range(1, 8):
            if found.certainty[v, n].isfinite() and not sure[n]:
                span = answers[:n].T
                beside = answers[n] - span @ torch.linalg.lstsq(span, answers[n, :, None]).solution[:, 0]
                assert beside.norm() > 0.09 * answers[n].norm()


def planted(many: int, rows: Tensor) -> View:
    """Return a view of this many examples whose first layer's gradient has exactly these rows (n, d)."""
    shown, _ = view(honest(), many, 1)
    layer = {name: torch.zeros_like(shown.update[f"1.{name}"]) for name in ("weight", "bias")}
    layer["weight"][0, : len(rows)], layer["bias"][0, : len(rows)] = rows, 1.0
    return dataclasses.replace(shown, update={**shown.update, **{f"1.{n}": u for n, u in layer.items()}})


def given(shown: View) -> int:
    return int(Rows()((shown,), RNGS[:1]).certainty.isfinite().sum())


def test_spans_are_ignored_with_more_examples_than_half_the_values():
    """With 100 values and 51 examples all places are filled while there are rows that can be inputs; with 50 they are not."""
    share = torch.linspace(0.1, 1, 60)[:, None]
    rows = share * pictures(seed=3).flatten() + (1 - share) * 0.2
    assert given(planted(51, rows)) == 51
    assert given(planted(50, rows)) == 2


def test_rows_that_agree_are_chosen_in_any_span():
    """Half of each of two others: a reconstruction if it appears twice, otherwise not."""
    one, other = pictures(2, seed=5).flatten(1)
    assert given(planted(4, torch.stack([one, one, other, other, (one + other) / 2]))) == 2
    assert given(planted(4, torch.stack([one, one, other, other, *2 * [(one + other) / 2]]))) == 3


def test_explained_rows_come_first_then_agreeing_ones_then_by_residual():
    shown, _ = view(honest(), 20)
    read, missed = Rows()._first(shown), unexplained(shown, "1.", rows_of(shown)[0])
    some = read.certainty.isfinite()
    explained = some & (missed < 1e-3)
    rest = some & ~explained
    assert explained.any() and rest.any()
    assert read.certainty[explained].min() > 1000 > read.certainty[rest].max()
    lone = rest & (read.certainty < 2)
    torch.testing.assert_close(read.certainty[lone], 1 + 0.5 / (1 + missed[lone]))


def test_with_known_noise_rows_are_ranked_by_size():
    """Behind noise nothing is explained or in a span: among rows without agreement the largest come first."""
    shown, _ = view(honest(), 20)
    read, held = Rows()._first(dataclasses.replace(shown, noise=1e-12)), rows_of(shown)[0]
    size = shown.update["1.weight"].norm(dim=2)
    share = size / size.amax(1, keepdim=True)
    some = read.certainty.isfinite()
    assert (some.sum(1) > 20).all()
    for v, row in some.nonzero().tolist():
        same = (held[v] - held[v, row]).square().mean(1).sqrt() < 1e-3
        assert float(read.certainty[v, row]) == pytest.approx(
            int(same.sum()) + float(share[v][same].max()) / 2, abs=0.01
        )
