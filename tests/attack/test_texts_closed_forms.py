"""What attacks of texts compute on their way, in closed form: noise, floors, shares, lengths, orders, nearest tokens, spans."""

from __future__ import annotations

import dataclasses
import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from leakbench.attack.embeddings import Embedded, embedded, fitted_lengths, lengths, noise_on_words
from leakbench.attack.methods.gradient_matching import Points
from leakbench.attack.methods.lamp import KINDS, _Candidates
from leakbench.attack.spans import NOISY_MARGIN, Span, span_of
from leakbench.attack.text import Bigrams, WordEmbeddings
from leakbench.core.rng import generator
from leakbench.federated.view import Public, View
from leakbench.models import one_hot
from tests.attack.test_attack_texts import LABELS, LENGTH, SENTENCES, WIDTH, lamp, view


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "normal"), dtype=torch.float64)


# Embeddings

MODEL = SimpleNamespace(word_weights="w", position_weights=("p", 1), padding=0)


def shown(words: Tensor, places: Tensor | None = None, noise: float | None = None) -> View:
    """Return a view of one victim with sentences of up to 4 tokens, whose first place has the number 1."""
    update = {"w": words[None]} | ({} if places is None else {"p": places[None]})
    return View("type-1", None, update, 1, (4,), 2, 0.1, noise=noise)


def evidence(words: Tensor, places: Tensor | None = None, noise: float | None = None) -> Embedded:
    found = embedded(shown(words, places, noise), MODEL)
    assert found is not None
    return found


def test_noise_is_the_known_one_or_that_of_the_median_row() -> None:
    words = torch.stack([normal(20, 5), 3 * normal(20, 5, seed=1)]).float()
    two = View("type-1", None, {"w": words}, 1, (4,), 2, 0.1)
    assert noise_on_words(dataclasses.replace(two, noise=0.25), "w").tolist() == [0.25, 0.25]
    medians = [sorted(each.abs().flatten().tolist())[49] for each in words]
    assert noise_on_words(two, "w").tolist() == pytest.approx([each / 0.6745 for each in medians])
    assert noise_on_words(two, "other").tolist() == [0.0, 0.0]
    assert noise_on_words(two, "w").dtype == torch.float64


def test_tokens_are_ordered_by_the_length_of_their_rows_without_padding() -> None:
    words = torch.zeros(6, 8)
    for token, length in ((0, 9.0), (1, 2.0), (3, 5.0), (4, 2.0), (5, 3.0)):
        words[token, token] = length
    found = evidence(words)
    assert found.tokens.tolist() == [3, 5, 1, 4] and found.lengths.tolist() == [5.0, 3.0, 2.0, 2.0]
    assert found.places is None and found.reach is None
    assert embedded(shown(words.masked_fill(words == 3, torch.nan)), MODEL) is None


def test_known_noise_gives_the_length_of_the_longest_row_without_a_token() -> None:
    """A row of d numbers has about s sqrt(d), and the longest of n rows s sqrt(2 log n) more."""
    std, tokens, width = 0.2, 50, 9
    floor = std * (math.sqrt(width) + math.sqrt(2 * math.log(tokens)))
    words, places = torch.zeros(tokens, width), torch.zeros(6, width)
    words[7, 0], words[8, 1] = 0.999 * floor, 1.001 * floor
    places[1, 2], places[2, 3], places[3, 4], places[4, 5] = 1.001 * floor, 9.0, 0.999 * floor, 9.0
    found = evidence(words, places, std)
    assert found.tokens.tolist() == [8] and found.reach == 2
    exact = evidence(words, places)
    assert exact.tokens.tolist() == [8, 7] and exact.reach == 4


def test_the_shares_of_tokens_in_places_are_their_coefficients() -> None:
    """Place 0 has token 2, place 1 tokens 2 and 5 half each, place 2 token 5; the numbers of places begin with 1."""
    words = torch.zeros(6, 8, dtype=torch.float64)
    words[[2, 5]] = normal(2, 8) * torch.tensor([[10.0], [0.1]])
    places = torch.zeros(7, 8, dtype=torch.float64)
    places[1], places[2], places[3] = words[2], (words[2] + words[5]) / 2, words[5]
    places[0] = places[5] = 99.0  # No place of a sentence.
    found = evidence(words, places)
    assert found.tokens.tolist() == [2, 5] and found.reach == 3
    expected = torch.tensor([[1, 0.5, 0, 0], [0, 0.5, 1, 0]], dtype=torch.float64)
    torch.testing.assert_close(found.places, expected)
    many = normal(9, 8)
    assert evidence(many, places).places is None, "eight tokens span all eight dimensions"
    assert evidence(many[:8], places).places is not None
    assert evidence(0 * words, places).places is None


# Lengths


def responding(view: View, directions: Tensor, padding: float = 0.0) -> object:
    """Return a response whose row of each place is the sum of the directions of the labels of sentences that are there."""
    name = view.network.model.position_weights[0]

    def respond(self: View, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        there = (inputs != padding).to(directions)
        assert (there.diff(dim=2) <= 0).all(), "no place without a token before one with a token"
        return {name: torch.einsum("vmt,vmc,cd->vtd", there, targets.to(directions), directions)}

    return respond


def fitted(
    monkeypatch: pytest.MonkeyPatch,
    true: list[list[int]],
    labels: list[list[int]],
    directions: Tensor,
    noise: float | None = None,
    moved: Tensor | None = None,
    classes: int = 2,
    knows_labels: bool = True,
) -> Tensor:
    """Fit the lengths of V victims of M sentences whose rows of places are sums of directions.

    Args:
        true: Lengths (V, M) of the sentences.
        labels: Labels (V, M).
        directions: (classes, d).
        noise: Known noise.
        moved: (V, T, d), added to the observed rows.
        classes: Number of classes.
        knows_labels: Whether the attacker has the labels.
    """
    of = view("gpt", batch=3)
    model = of.network.model
    name = model.position_weights[0]
    there = (torch.arange(LENGTH) < torch.tensor(true)[..., None]).double()
    rows = torch.einsum("vmt,vmd->vtd", there, directions[torch.tensor(labels)])
    update = {name: rows if moved is None else rows + moved}
    update[model.word_weights] = torch.zeros(len(true), 40, directions.shape[1], dtype=torch.float64)
    sizes = {"batch": len(true[0]), "noise": noise, "classes": classes}
    sizes |= {"labels": torch.tensor(labels)} if knows_labels else {}
    of = dataclasses.replace(of, update=update, **sizes)
    monkeypatch.setattr(View, "respond", responding(of, directions))
    rngs = tuple(generator(v, "rng") for v in range(len(true)))
    return fitted_lengths(of, rngs)


ORTHOGONAL = torch.eye(2, 4, dtype=torch.float64)


def test_the_lengths_of_two_victims_of_two_sentences_are_fitted_by_their_labels(monkeypatch) -> None:
    true = [[2, 5], [6, 1]]
    assert fitted(monkeypatch, true, [[0, 1], [1, 0]], ORTHOGONAL).tolist() == true
    assert fitted(monkeypatch, true, [[0, 1], [1, 0]], ORTHOGONAL, noise=0.1).tolist() == true


def test_a_sentence_is_not_longer_than_the_longest_of_its_update(monkeypatch) -> None:
    """One victim has shorter sentences than the other; beyond its longest one, nothing is observed."""
    assert fitted(monkeypatch, [[2, 3], [6, 1]], [[0, 1], [0, 1]], ORTHOGONAL).tolist() == [[2, 3], [6, 1]]
    # The same with rows that no lengths explain exactly.
    moved = torch.zeros(2, LENGTH, 4, dtype=torch.float64)
    moved[:, :2, 2] = 0.1
    found = fitted(monkeypatch, [[2, 3], [6, 1]], [[0, 1], [0, 1]], ORTHOGONAL, moved=moved)
    assert found.tolist() == [[2, 3], [6, 1]]


def test_a_second_sweep_corrects_lengths_that_the_first_one_chose_before_the_others(monkeypatch) -> None:
    """With one sweep, the first sentence has 3 tokens, since the others were taken for longer than they are."""
    directions = torch.tensor([[1.0, 0.0], [0.5, 1.0], [-0.5, 1.0]]).double()
    found = fitted(monkeypatch, [[5, 3, 6]], [[0, 1, 2]], directions, noise=0.1, classes=3)
    assert found.tolist() == [[5, 3, 6]]


def test_behind_noise_the_sum_of_squares_decides_and_without_it_relative_differences(monkeypatch) -> None:
    """A tenth of the direction at the places without a token is more like a token than like nothing, relative to its size."""
    moved = (0.1 * ORTHOGONAL[0]).expand(1, LENGTH, -1)
    assert fitted(monkeypatch, [[2]], [[0]], ORTHOGONAL, noise=0.1, moved=moved).tolist() == [[2]]
    found = fitted(monkeypatch, [[2, 2]], [[0, 0]], ORTHOGONAL, moved=moved)
    assert found.amax(1).tolist() == [LENGTH]


@pytest.mark.parametrize("noise", [None, 0.1])
def test_with_the_loss_of_next_tokens_the_last_token_follows_the_last_place(monkeypatch, noise: float | None) -> None:
    """The longest of the sentences has places with a gradient before its last token; nothing is fitted."""
    found = fitted(monkeypatch, [[2, 4]], [[0, 0]], ORTHOGONAL[:1], noise=noise, classes=1, knows_labels=False)
    assert found.tolist() == [[5, 5]]
    longest = fitted(monkeypatch, [[LENGTH, 1]], [[0, 0]], ORTHOGONAL[:1], noise=noise, classes=1, knows_labels=False)
    assert longest.tolist() == [[LENGTH, LENGTH]]


def test_no_place_or_more_places_than_a_sentence_has_give_its_largest_length() -> None:
    of = view("gpt").of(torch.tensor([0]))
    name = of.network.model.position_weights[0]
    for rows, length in ((0, LENGTH), (3, 3), (LENGTH, LENGTH), (LENGTH + 2, LENGTH)):
        places = torch.zeros(1, LENGTH + 2, WIDTH)
        places[:, :rows] = 1.0
        assert lengths(dataclasses.replace(of, update={**of.update, name: places})).tolist() == [[length]]


# Rearrangements


def candidates(ends: tuple[bool, bool], **others: object) -> _Candidates:
    fields = {"points": None, "value": None, "lamp": lamp(2, candidates=400), "words": None, "model": None}
    return _Candidates(**{**fields, "ends": ends, "seeds": (), "victims": 1, "together": 2, **others})


@pytest.mark.parametrize("ends", [(False, False), (True, False), (False, True), (True, True)])
def test_candidates_rearrange_one_sentence_between_its_ends(ends: tuple[bool, bool]) -> None:
    """Sentences of 5, 4 and 1 tokens at 6 places. All orders of up to three free places are tried."""
    counts, same = [5, 4, 1], list(range(6))
    words, points = WordEmbeddings("w", torch.zeros(1, 1, 2), 0), SimpleNamespace(shape=torch.Size((3, 12)))
    orders = candidates(ends, words=words, points=points, seeds=(7,))._orders(counts, 0, 2).tolist()
    assert len(orders) == 400 and orders[0] == [same] * 3
    begin, end = map(int, ends)
    tried: list[set[tuple[int, ...]]] = [set(), set(), set()]
    for number, order in enumerate(orders):
        changed = [sentence for sentence in range(3) if order[sentence] != same]
        assert len(changed) <= 1
        for sentence in changed:
            moved = order[sentence]
            assert sorted(moved) == same
            fixed = [*range(begin), *range(counts[sentence] - end, 6)]
            assert [moved[place] for place in fixed] == fixed
            tried[sentence].add(tuple(moved))
            if number % KINDS == 0:
                assert sum(place != token for place, token in enumerate(moved)) == 2
            if number % KINDS == 3:
                free = moved[begin : counts[sentence] - end]
                assert sum(a > b for a, b in pairwise(free)) == 1
    assert not tried[2]
    free = 4 - begin - end
    assert len(tried[0]) > len(tried[1]) >= min(math.factorial(free) - 1, 5)


def test_an_end_stays_only_if_all_public_sentences_share_it() -> None:
    of = view()
    for sentences, ends in (
        ([[1.0, 5, 2, 0, 0, 0], [1, 7, 9, 2, 0, 0], [1, 2, 0, 0, 0, 0]], (True, True)),
        ([[1.0, 5, 2, 0, 0, 0], [1, 7, 9, 3, 0, 0], [1, 2, 0, 0, 0, 0]], (True, False)),
        ([[1.0, 5, 2, 0, 0, 0], [4, 7, 9, 2, 0, 0], [1, 2, 0, 0, 0, 0]], (False, True)),
        ([[1.0, 5, 2, 0, 0, 0], [4, 7, 9, 5, 0, 0], [1, 2, 0, 0, 0, 0]], (False, False)),
    ):
        shown = dataclasses.replace(of, public=Public(torch.tensor(sentences), torch.tensor([0, 1, 1])))
        assert _Candidates.of(shown, None, None, lamp(2), (0,)).ends == ends


@pytest.mark.parametrize(("perplexity", "first"), [(0.9, 1), (1.1, 2)])
def test_the_perplexity_counts_relative_to_the_present_distance(monkeypatch, perplexity: float, first: int) -> None:
    """The swap has 1 + c times the distance of the present order, where c is what the pairs of tokens become likelier.

    The second lane has the tokens in the other order, and 100 times the distances.
    """
    model = Bigrams.of(torch.tensor([[2.0, 1], [2, 1], [1, 3]]), 4, 0)
    gain = float(model.surprise(torch.tensor([1, 2])) - model.surprise(torch.tensor([2, 1])))
    assert gain > 0
    same, swapped = torch.tensor([[0, 1]]), torch.tensor([[1, 0]])
    orders = torch.stack([same, swapped, swapped])
    distances = {(4, (1, 2)): 5.0, (4, (2, 1)): 5.0 * (1 + gain), (9, (1, 2)): 500.0, (9, (2, 1)): 400.0}
    tries: list[list[int]] = []

    def value(z: Tensor, _: Tensor, lanes: Tensor) -> Tensor:
        tries.append(lanes.tolist())
        tokens = [tuple(z.reshape(2, 4).argmax(1).tolist()) for z in z]
        return torch.tensor([distances[lane, each] for lane, each in zip(lanes.tolist(), tokens, strict=True)])

    # The victim of the second lane received other embeddings, in which the same point is the tokens in the other order.
    weight = torch.stack([torch.eye(4), torch.eye(4)[[0, 2, 1, 3]]])
    chosen = candidates(
        (False, False),
        points=SimpleNamespace(
            shape=torch.Size((1, 8)), inputs=lambda z: z.reshape(-1, 1, 2, 4), split=lambda z, lanes: (z, lanes)
        ),
        value=value,
        lamp=lamp(2, perplexity=perplexity),
        words=WordEmbeddings("w", weight, 0),
        model=model,
        seeds=tuple(range(10)),
        victims=2,
    )
    monkeypatch.setattr(_Candidates, "_orders", lambda *_: orders)
    both = torch.eye(4)[torch.tensor([[1, 2], [1, 2]])].reshape(2, 8)
    found = chosen(both, torch.tensor([4, 9]), 2)
    better = perplexity * gain < (500.0 - 400.0) / 500.0
    assert found.tolist() == [[[0, 1]] if first == 1 else [[1, 0]], [[1, 0]] if better else [[0, 1]]]
    assert tries == [[4, 4], [4, 9], [9, 9]]  # Two at once, in the order of the lanes.


@pytest.mark.parametrize(("share", "swaps"), [(0.45, True), (0.55, False)])
def test_the_perplexity_is_the_mean_over_the_sentences_of_a_batch(monkeypatch, share: float, swaps: bool) -> None:
    """A swap in one of two sentences makes their mean likelier by half of the gain."""
    model = Bigrams.of(torch.tensor([[2.0, 1], [2, 1], [1, 3]]), 4, 0)
    gain = float(model.surprise(torch.tensor([1, 2])) - model.surprise(torch.tensor([2, 1])))
    chosen = candidates(
        (False, False),
        points=SimpleNamespace(
            shape=torch.Size((2, 8)), inputs=lambda z: z.reshape(-1, 2, 2, 4), split=lambda z, lanes: (z, lanes)
        ),
        value=lambda z, targets, lanes: torch.tensor([1.0, 1.0 + share * gain]),
        lamp=lamp(2, perplexity=1.0),
        words=WordEmbeddings("w", torch.eye(4)[None], 0),
        model=model,
        seeds=(0,),
    )
    same, swapped = [[0, 1], [0, 1]], [[1, 0], [0, 1]]
    monkeypatch.setattr(_Candidates, "_orders", lambda *_: torch.tensor([same, swapped]))
    point = torch.eye(4)[torch.tensor([[1, 2], [1, 2]])].reshape(1, 16)
    assert chosen(point, torch.tensor([0]), 2).tolist() == [swapped if swaps else same]


def test_rearrangements_of_some_lanes_are_judged_by_their_own_victims() -> None:
    """The second and the first victim, from the right embeddings in a wrong order, with labels of their own."""
    of, method = view("gpt"), lamp(4, candidates=60, perplexity=0.0, distance="tag")
    space = method.space(of)
    wrong = torch.stack([SENTENCES[0][[0, 2, 1, 3, 4, 5]], SENTENCES[1][[0, 3, 2, 1, 4, 5]], SENTENCES[2]]).long()
    z = space.encode((WordEmbeddings.of(of, "test").weight[0][wrong] * (wrong != 0)[..., None])[:, None])
    points = Points(space, z.shape[1:], one_hot(LABELS, 2).float()[:, None], joint=False)
    chosen = _Candidates.of(of, points, method._value((of,), points), method, (3, 4, 5))
    for together in (1, 7, chosen.together):
        orders = dataclasses.replace(chosen, together=together)(points.joined(z)[[1, 0]], torch.tensor([1, 0]), 2)
        assert torch.equal(wrong[[1, 0]].gather(1, orders[:, 0]), SENTENCES[[1, 0]].long())


def test_fewer_candidates_of_batches_are_judged_at_once() -> None:
    one, three = (_Candidates.of(view("gpt", batch=batch), None, None, lamp(2), (0,)).together for batch in (1, 3))
    assert three == one // 3


def test_a_distance_that_is_not_finite_is_never_chosen(monkeypatch) -> None:
    points = SimpleNamespace(
        shape=torch.Size((1, 8)), inputs=lambda z: z.reshape(-1, 1, 2, 4), split=lambda z, lanes: (z, lanes)
    )
    chosen = candidates(
        (False, False),
        points=points,
        value=lambda z, targets, lanes: torch.tensor([5.0, torch.nan]),
        words=WordEmbeddings("w", torch.eye(4)[None], 0),
        model=Bigrams.of(torch.tensor([[2.0, 1], [2, 1], [1, 3]]), 4, 0),
        seeds=(0,),
    )
    monkeypatch.setattr(_Candidates, "_orders", lambda *_: torch.tensor([[[0, 1]], [[1, 0]]]))
    assert chosen(torch.eye(4)[[1, 2]].reshape(1, 8), torch.tensor([0]), 2).tolist() == [[[0, 1]]]


def test_lanes_and_steps_draw_candidates_of_their_own() -> None:
    words, points = WordEmbeddings("w", torch.zeros(1, 1, 2), 0), SimpleNamespace(shape=torch.Size((1, 20)))
    draws = candidates((False, False), words=words, points=points, seeds=(7, 8, 7))
    drawn = [draws._orders([10], lane, step) for lane, step in ((0, 75), (1, 75), (2, 75), (0, 150))]
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[3])


def test_each_lane_has_the_embeddings_of_its_victim() -> None:
    weight = torch.arange(3.0)[:, None, None].expand(3, 4, 2)
    each = candidates((True, True), words=WordEmbeddings("w", weight, 0), victims=3)
    assert each._weights(torch.arange(6)).flatten(1).mean(1).tolist() == [0, 1, 2, 0, 1, 2]
    one = candidates((True, True), words=WordEmbeddings("w", weight[:1], 0), victims=3)
    assert one._weights(torch.tensor([2])).shape == (1, 4, 2)


# Tokens and pairs


def test_the_nearest_token_by_direction_and_by_distance() -> None:
    """Padding is nearest to the first embedding, and never chosen; each victim has embeddings of its own."""
    first = torch.tensor([[1.0, 1.0], [4.0, 4.0], [1.0, 0.5], [0.0, 9.0]])
    words = WordEmbeddings("w", torch.stack([first, first[[0, 2, 1, 3]]]), 0)
    asked = torch.tensor([[1.0, 1.1], [0.0, 0.0], [0.0, 1.0], [0.9, 0.6]]).expand(2, 1, 4, 2)
    assert words.nearest(asked)[:, 0].tolist() == [[1, 0, 3, 2], [2, 0, 3, 1]]
    assert words.nearest(asked, by="l2")[:, 0].tolist() == [[2, 0, 2, 2], [1, 0, 1, 1]]


def test_the_usual_length_of_an_embedding_leaves_out_the_padding() -> None:
    words = WordEmbeddings("w", torch.tensor([[[100.0, 100.0], [3.0, 0.0], [0.0, 1.0]]]), 0)
    assert words.deviation == pytest.approx(math.sqrt(10 / 4))


def test_pairs_and_first_tokens_leave_out_padding_also_at_the_beginning() -> None:
    """The second sentence begins with padding, so that it has no first token, and 1 follows none."""
    model = Bigrams.of(torch.tensor([[1.0, 2, 0], [0, 1, 2]]), 3, 0, 1.0)
    torch.testing.assert_close(model.first.exp(), torch.tensor([1 / 3, 4 / 3, 1 / 3]).double() / 2)
    assert model.pairs.tolist() == [1 * 3 + 2]
    assert model.back_off.exp().tolist() == pytest.approx([1.0, 1 / 3, 1.0])


# Spans


def spectrum(values: list[float], rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return a matrix (rows, columns) with known singular values, and its left singular vectors."""
    left = torch.linalg.qr(normal(rows, len(values)))[0]
    right = torch.linalg.qr(normal(columns, len(values), seed=1))[0]
    return (left * torch.tensor(values, dtype=torch.float64)) @ right.T, left


@pytest.mark.parametrize(("rows", "columns"), [(20, 45), (40, 16)])
def test_the_angles_of_a_noisy_span_are_those_of_the_observed_singular_values(rows: int, columns: int) -> None:
    """From t, the observed value y and the angle are computed by the formulas of Benaych-Georges and Nadakuditi."""
    noise, c = 0.3, rows / columns
    signal = [40.0, 6.0, 4.0]
    seen = [math.sqrt((1 + t**2) * (c + t**2)) / t for t in signal]
    sines = [math.sqrt(c * (1 + t**2) / (t**2 * (t**2 + c))) for t in signal]
    whole, left = spectrum([y * noise * math.sqrt(columns) for y in seen], rows, columns)
    span = span_of([whole], noise)
    assert span is not None and span.rank == 3 and span.margin == NOISY_MARGIN
    torch.testing.assert_close((span.basis * left).sum(0).abs(), torch.ones(3, dtype=torch.float64))
    assert span.tilts.tolist() == pytest.approx([s / math.sqrt(1 - s**2) for s in sines])


def test_a_singular_value_is_signal_three_deviations_above_the_largest_one_of_noise() -> None:
    """Johnstone (2001): the largest squared singular value of noise alone has the mean m and the deviation q, about."""
    rows, columns, noise = 20, 45, 0.3
    m = (math.sqrt(rows) + math.sqrt(columns)) ** 2
    q = (math.sqrt(rows) + math.sqrt(columns)) * (1 / math.sqrt(rows) + 1 / math.sqrt(columns)) ** (1 / 3)
    edge = noise * math.sqrt(m + 3 * q)
    span = span_of([spectrum([9 * edge, 1.001 * edge, 0.999 * edge], rows, columns)[0]], noise)
    assert span is not None and span.rank == 2
    assert span_of([spectrum([0.999 * edge, 0.5 * edge], rows, columns)[0]], noise) is None


def ranks(many: int) -> Span | None:
    return span_of([spectrum([1e3 + k for k in range(many)], 8, 30)[0]], 1e-3)


def test_a_noisy_span_of_all_dimensions_but_one_is_none() -> None:
    assert ranks(7) is None and ranks(8) is None
    span = ranks(6)
    assert span is not None and span.rank == 6


def test_rounding_errors_turn_a_noisy_span_at_least() -> None:
    """The errors of single precision are a share of the largest singular value."""
    span = span_of([spectrum([1e6, 1e2], 20, 45)[0]], 1e-9)
    assert span is not None
    eps = torch.finfo(torch.float32).eps
    assert span.tilts.tolist() == pytest.approx([eps, eps * 1e4])
