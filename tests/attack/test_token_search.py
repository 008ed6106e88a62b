"""Likelihood of tokens in closed form: the evidence of rows, the owners of places, and each rule of the search."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from leakbench.attack.methods import token_likelihood
from leakbench.attack.methods.token_likelihood import TINY, TokenLikelihood, _cost, _settled, exchanged
from leakbench.attack.methods.token_likelihood import _Rows as Rows
from leakbench.attack.text import Bigrams
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.federated.view import View
from leakbench.models import one_hot
from tests.attack.test_attack_texts import LABELS, LENGTH, SENTENCES, TOKENS, network, view

PRIOR = Bigrams.of(torch.tensor([[1.0, 2, 3, 0], [2, 4, 1, 0], [3, 3, 0, 0]]), 5, 0, 1.0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed, "normal"), dtype=torch.float64)


# Rows


def test_the_evidence_of_a_place_leaves_out_the_other_places_of_its_token() -> None:
    """W_v is the sum of the places of v. The evidence of v at place i is <W_v - the other places of v, P_i> / s^2."""
    places, owner, std = normal(4, 9), torch.tensor([2, 1, 2, 4]), 0.5
    words = torch.zeros(6, 9, dtype=torch.float64).index_add_(0, owner, places)
    words[0] = 7.0  # The row of the padding is not evidence for any place.
    expected = torch.full((4, 6), -torch.inf, dtype=torch.float64)
    for place in range(4):
        for token in range(1, 6):
            others = [other for other in range(4) if other != place and owner[other] == token]
            expected[place, token] = (words[token] - places[others].sum(0)) @ places[place] / std**2
    torch.testing.assert_close(Rows(words, places, std, 0, known=True).evidence(), expected)
    # The noise on an observed place has the same variance as the noise on the row of its token.
    torch.testing.assert_close(Rows(words, places, std, 0).evidence(), expected / 2)


def test_a_token_whose_places_almost_cancel_has_evidence_behind_stronger_rows() -> None:
    """The row of token 2 is shorter than three rows of noise."""
    places = torch.zeros(3, 8, dtype=torch.float64)
    places[0, 0], places[1, 1], places[2, 1], places[2, 2] = 9.0, 4.0, -4.0, 0.1
    words = torch.zeros(8, 8, dtype=torch.float64)
    words[1], words[2] = places[0], places[1] + places[2]
    words[3:6, 3:6] = 0.2 * torch.eye(3)
    evidence = Rows(words, places, 1.0, 0, known=True).evidence()
    assert evidence[1, 2].item() == pytest.approx(16.0) and evidence[2, 2].item() == pytest.approx(16.01)
    assert evidence.argmax(1).tolist() == [1, 2, 2]


def test_the_evidence_of_observed_places_is_half_of_that_of_known_places() -> None:
    known = Rows(normal(6, 8), normal(4, 8, seed=1), 0.5, 0, known=True)
    found = dataclasses.replace(known, known=False).evidence()
    torch.testing.assert_close(found, known.evidence() / 2)


def test_the_likeliest_tokens_of_each_place_form_the_first_sentence_of_a_batch() -> None:
    words = torch.tensor([[9.0, 9, 9, 9], [3, 5, 1, 0], [5, 3, 2, 0], [2, 2, 7, 0], [1, 1, 6, 0]]).double()
    rows = Rows(words, torch.eye(3, 4, dtype=torch.float64), 10.0, 0, known=True)
    assert torch.equal(rows.spread(2, 2), torch.tensor([[2.0, 1, 0], [1, 2, 0]]))
    assert torch.equal(rows.spread(2, 3), torch.tensor([[2.0, 1, 3], [1, 2, 4]]))


def rows_of(words: Tensor, places: Tensor, noise: float | None) -> Rows:
    """Return the rows of a network whose first place has the number 2."""
    model = SimpleNamespace(word_weights="w", position_weights=("p", 2), padding=3)
    update = {"w": words[None], "p": places[None]}
    return Rows.of(View("type-1", None, update, 1, (4,), 2, 0.1, noise=noise), model)


def test_rows_have_the_known_noise_else_the_estimated_one_and_at_least_rounding_errors() -> None:
    words, places = normal(50, 6).float(), normal(7, 6, seed=1).float()
    known = rows_of(words, places, 0.3)
    assert known.std == 0.3 and known.padding == 3 and not known.known
    assert torch.equal(known.words, words.double()) and torch.equal(known.places, places[2:6].double())
    median = words.abs().flatten().median().item()
    assert rows_of(words, places, None).std == pytest.approx(median / 0.6745, rel=1e-6)
    exact = torch.zeros(50, 6)
    exact[:3] = words[:3]
    assert rows_of(exact, places, None).std == pytest.approx(float(exact.abs().max()) * 1e-6)
    assert rows_of(exact, places, 1e-12).std == pytest.approx(float(exact.abs().max()) * 1e-6)
    assert 0 < rows_of(0 * exact, places, None).std < 1e-30


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_the_places_of_the_true_sentence_with_its_label_are_the_observed_ones(kind: str) -> None:
    of = view(kind).of(torch.tensor([1]))
    rows = Rows.of(of, of.network.model)
    at = rows.at(of, SENTENCES[1], int(LABELS[1]))
    assert at.known and torch.equal(at.words, rows.words) and at.std == rows.std
    torch.testing.assert_close(at.places, rows.places, rtol=1e-4, atol=1e-7)
    assert at.places.shape == (LENGTH, 32)
    other = rows.at(of, SENTENCES[1], 1 - int(LABELS[1])).places
    assert (other - rows.places).norm() > 0.5 * rows.places.norm()


def test_the_places_of_a_network_begin_with_its_first_number(monkeypatch) -> None:
    """The label is the second of two, and the first place has the number 2."""
    model = SimpleNamespace(word_weights="w", position_weights=("p", 2), padding=0)
    places = normal(1, 9, 6)
    targets = []

    class Shown(SimpleNamespace):
        def respond(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
            targets.append(labels.tolist())
            return {"w": torch.zeros(1, 5, 6), "p": places}

    monkeypatch.setattr(token_likelihood, "language_model", lambda *_: model)
    of = Shown(shape=(4,), classes=2, update={}, like=torch.zeros(1, 5, 6))
    rows = Rows(normal(5, 6), normal(4, 6, seed=1), 1.0, 0)
    assert torch.equal(rows.at(of, torch.ones(4), 1).places, places[0, 2:6])
    assert targets == [[[[0.0, 1.0]]]]


def test_a_network_with_only_one_trained_embedding_is_refused() -> None:
    of = view("gpt")
    model = of.network.model
    for name in (model.word_weights, model.position_weights[0]):
        kept = dataclasses.replace(of, update={n: u for n, u in of.update.items() if n != name})
        with pytest.raises(InputError, match="reads the gradients of word and position embeddings"):
            Rows.of(kept, model)


# Owners of places


def problem(seed: int, places: int = 5, tokens: int = 3, width: int = 4) -> tuple[Tensor, Tensor]:
    """Return (products, gram) of places with a common part, whose tokens have rows with noise."""
    rng = generator(seed, "places")
    p = torch.randn(places, width, generator=rng, dtype=torch.float64) + 1
    true = torch.randint(tokens, (places,), generator=rng)
    words = torch.zeros(tokens, width, dtype=torch.float64).index_add_(0, true, p)
    words += torch.randn(tokens, width, generator=rng, dtype=torch.float64)
    return words @ p.T, p @ p.T


def costs_of(owners: list[tuple[int, ...]], products: Tensor, gram: Tensor) -> Tensor:
    """The sum of |W_v - sum of its P_i|^2, less |W|^2, by its definition."""
    every = torch.tensor(owners)
    same = (every[:, :, None] == every[:, None, :]).double()
    return (same * gram).sum((1, 2)) - 2 * products[every, torch.arange(every.shape[1])].sum(1)


def test_after_the_best_moves_and_swaps_no_other_one_decreases_the_cost() -> None:
    for seed in range(20):
        products, gram = problem(seed, 6, 3)
        start = torch.randint(3, (6,), generator=generator(seed, "start"))
        found = tuple(_settled(start.clone(), products, gram).tolist())
        moves = [(*found[:i], v, *found[i + 1 :]) for i in range(6) for v in range(3)]
        swaps = []
        for i, j in itertools.combinations(range(6), 2):
            other = list(found)
            other[i], other[j] = other[j], other[i]
            swaps.append(tuple(other))
        before, at, *others = costs_of([tuple(start.tolist()), found, *moves, *swaps], products, gram).tolist()
        assert at <= before and min(others) >= at - 2 * len(found) * TINY * float(gram.diagonal().max())


def test_each_step_is_the_best_move_or_swap() -> None:
    """With a few places, one step at a time is followed by comparing all moves and swaps."""
    for seed in range(20):
        products, gram = problem(seed, 4, 3)
        at = (0, 0, 1, 2)
        while True:
            near = [(*at[:i], v, *at[i + 1 :]) for i in range(4) for v in range(3)]
            for i, j in itertools.combinations(range(4), 2):
                other = list(at)
                other[i], other[j] = other[j], other[i]
                near.append(tuple(other))
            costs = costs_of([at, *near], products, gram)
            if float(costs[1:].min()) >= float(costs[0]) - 1e-7:
                break
            at = near[int(costs[1:].argmin())]
        assert _settled(torch.tensor([0, 0, 1, 2]), products, gram).tolist() == list(at)


@pytest.mark.parametrize("seed", [2, 19, 25, 31, 38, 48, 49, 52, 59, 195])
def test_disturbed_starts_find_the_least_cost_where_moves_and_swaps_alone_do_not(seed: int) -> None:
    products, gram = problem(seed, 6, 3)
    least = float(costs_of(list(itertools.product(range(3), repeat=6)), products, gram).min())
    start = torch.zeros(6, dtype=torch.int64)
    found = exchanged(start, products, gram)
    assert not start.any()  # The start is not changed.
    assert _cost(found, products, gram) == pytest.approx(least)
    assert _cost(_settled(start, products, gram), products, gram) > least + 1e-9


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_evidence_behind_noise_is_that_of_the_owners_with_the_least_cost(seed: int) -> None:
    """Least squares alone would give a place to another token."""
    rng = generator(seed, "e")
    places = torch.randn(5, 6, generator=rng, dtype=torch.float64) + 1
    true = torch.randint(1, 4, (5,), generator=rng)
    words = torch.zeros(4, 6, dtype=torch.float64).index_add_(0, true, places)
    words[1:] += 0.7 * torch.randn(3, 6, generator=rng, dtype=torch.float64)
    products, gram = words @ places.T, places @ places.T
    every = list(itertools.product(range(1, 4), repeat=5))
    best = torch.tensor(every[int(costs_of(every, products, gram).argmin())])
    assert not torch.equal(torch.linalg.solve(gram, products[1:].T).argmax(1) + 1, best)
    others = (best[:, None] == torch.arange(1, 4)).double()  # (place, token)
    together = gram @ others - gram.diagonal()[:, None] * others
    found = Rows(words, places, 1.0, 0, known=True).evidence()
    torch.testing.assert_close(found[:, 1:], products[1:].T - together)
    assert (found[:, 0] == -torch.inf).all()


# Changes of a sentence


def changes(sentence: list[int], length: int, tokens: int, rows: Rows) -> list[list[int]]:
    found = TokenLikelihood(tokens=tokens)._changed(torch.tensor(sentence).float(), length, rows, PRIOR)
    return found.long().tolist()


@pytest.mark.parametrize("tokens", [2, 4])
def test_the_changes_are_all_exchanges_moves_and_swaps_the_likeliest_first(tokens: int) -> None:
    rows = Rows(normal(5, 6), normal(5, 6, seed=1), 2.0, 0, known=True)
    sentence, length = [1, 2, 4, 3, 0], 4
    options = (rows.evidence() + PRIOR.alone).topk(tokens, dim=1).indices.tolist()
    expected = set()
    for i in range(length):
        for token in options[i]:
            expected.add((*sentence[:i], token, *sentence[i + 1 :]))
        rest = sentence[:i] + sentence[i + 1 : length]
        for j in range(length):
            expected.add((*rest[:j], sentence[i], *rest[j:], 0))
            other = list(sentence)
            other[i], other[j] = other[j], other[i]
            expected.add(tuple(other))
    expected.discard(tuple(sentence))
    found = changes(sentence, length, tokens, rows)
    assert len(found) == len(expected) and {tuple(each) for each in found} == expected
    every = torch.tensor(found)
    value = rows.likelihood(every[:, :length]) + PRIOR.log_probability(every.float())
    assert (value.diff() <= 1e-9).all() and float(value[0] - value[-1]) > 1


# The search


class Steps:
    """Rows whose evidence, at the places of the n-th sentence, names the n-th of some sentences."""

    padding, std = 0, 1.0

    def __init__(self, guesses: list[list[int]], calls: list[tuple[list[int], int]]) -> None:
        self.guesses, self.calls = guesses, calls
        self.words = torch.zeros(5, 2, dtype=torch.float64)

    def evidence(self) -> Tensor:
        found = torch.zeros(4, 5, dtype=torch.float64)
        found[torch.arange(3), torch.tensor(self.guesses[0])] = 1e3
        return found

    def at(self, view: object, sentence: Tensor, label: int) -> Steps:
        self.calls.append((sentence.long().tolist(), label))
        return Steps(self.guesses[1:] or self.guesses, self.calls)


def search(
    monkeypatch: pytest.MonkeyPatch,
    value: dict[tuple[int, ...], float],
    changed: list[list[int]],
    guesses: list[list[int]] | None = None,
    numbers: int = 2,
    label: int = 1,
    **settings: int,
) -> tuple[list[int], int, int, list[tuple[list[int], int]]]:
    """Search from guesses (of 3 tokens and a padding); return (sentence, label, gradients, sentences whose places are used).

    Args:
        value: Log-posteriors of sentences with the right label; other labels have 1e3 less.
        changed: The changes of every sentence.
        guesses: The most likely sentence at first, at the places of the first, and so on.
        numbers: p, the number of coordinates of the gradient.
        label: The right label.
        settings: Settings of the method.
    """
    calls: list[tuple[list[int], int]] = []
    rows = Steps([g[:3] for g in guesses or [list(next(iter(value)))]], calls)

    def values(self: object, of: object, by: object, prior: object, sentences: Tensor, labels: Tensor) -> Tensor:
        each = [value[tuple(s)] for s in sentences.long().tolist()]
        return torch.tensor(each, dtype=torch.float64) - 1e3 * (labels != label)

    monkeypatch.setattr(TokenLikelihood, "_values", values)
    monkeypatch.setattr(TokenLikelihood, "_changed", lambda *_: torch.tensor(changed).reshape(-1, 4).float())
    of = SimpleNamespace(shape=(4,), classes=2, update={"w": torch.zeros(1, numbers)})
    flat = Bigrams.of(torch.zeros(1, 4), 5, 0)
    found = TokenLikelihood(**settings)._searched(of, rows, flat, 3)
    return found.sentence.long().tolist(), found.label, found.gradients, calls


A, B, C = [1, 1, 1, 0], [2, 1, 1, 0], [3, 1, 1, 0]


def test_the_start_is_read_again_at_its_own_places_while_that_is_better(monkeypatch) -> None:
    """Each guess costs a gradient for each of two labels, and one for its places."""
    value = {tuple(A): 1.0, tuple(B): 2.0, tuple(C): 1.5}
    assert search(monkeypatch, value, [], [A, B, C]) == (B, 1, 9, [(A, 1), (B, 1)])
    assert search(monkeypatch, value, [], [A, B, C], label=0)[:2] == (B, 0)
    # The same value again is not better.
    assert search(monkeypatch, {**value, tuple(B): 1.0}, [], [A, B, C]) == (A, 1, 6, [(A, 1)])


def test_nothing_is_searched_without_a_finite_start(monkeypatch) -> None:
    assert search(monkeypatch, {tuple(A): math.nan}, [C], [A])[1:] == (-1, 3, [])


def test_the_tokens_to_choose_from_are_the_likeliest_of_evidence_and_frequency(monkeypatch) -> None:
    """The evidence for token 1 is slightly more, and token 3 is the most frequent."""
    evidence = torch.zeros(4, 5, dtype=torch.float64)
    evidence[:, 1] = 0.01
    rows = Steps([[1, 1, 1]], [])
    monkeypatch.setattr(rows, "evidence", lambda: evidence)
    monkeypatch.setattr(TokenLikelihood, "_values", lambda *_: torch.tensor([0.0, 1.0]))
    monkeypatch.setattr(TokenLikelihood, "_changed", lambda *_: torch.zeros(0, 4))
    of = SimpleNamespace(shape=(4,), classes=2, update={"w": torch.zeros(1, 2)})
    assert TokenLikelihood(tokens=1, gradients=1)._searched(of, rows, PRIOR, 3).sentence.tolist() == [3, 3, 3, 0]
    assert TokenLikelihood(tokens=1, gradients=1)._searched(of, rows, PRIOR, 2).sentence.tolist() == [3, 3, 0, 0]


def test_no_gradient_is_computed_once_the_limit_is_reached(monkeypatch) -> None:
    value = {tuple(A): 1.0, tuple(B): 2.0, tuple(C): 3.0}
    assert search(monkeypatch, value, [C], [A, B], gradients=3)[:3] == (A, 1, 3)
    assert search(monkeypatch, value, [C], [A, B], gradients=4)[:3] == (B, 1, 6)
    # The last guess fills the limit, and no change is tried.
    assert search(monkeypatch, value, [C], [A, A], gradients=6)[:3] == (A, 1, 6)
    assert search(monkeypatch, value, [C], [A, A], gradients=7)[:3] == (C, 1, 9)


def test_improvements_at_different_places_are_made_together(monkeypatch) -> None:
    """Places 0, 1 and 2 are improved by 3, 2 and 1; the second best change of place 0 is left out."""
    one, two, three, worse, other = [2, 1, 1, 0], [1, 2, 1, 0], [1, 1, 2, 0], [1, 1, 3, 0], [3, 1, 1, 0]
    value = {tuple(A): 1.0, (2, 1, 1, 0): 4.0, (1, 2, 1, 0): 3.0, (1, 1, 2, 0): 2.0, (1, 1, 3, 0): 0.5}
    value |= {(3, 1, 1, 0): 2.5, (2, 2, 2, 0): 7.0}
    found = search(monkeypatch, value, [worse, three, other, two, one], [A], changes=5, gradients=12)
    # Two readings of the start, five changes, the joint one, and the places of the new sentence.
    assert found == ([2, 2, 2, 0], 1, 13, [(A, 1), ([2, 2, 2, 0], 1)])
    # A joint change that is as good is made, a worse one is not.
    for joint, best in ((4.0, [2, 2, 2, 0]), (3.9, one)):
        found = search(monkeypatch, {**value, (2, 2, 2, 0): joint}, [three, two, one], [A], gradients=10)
        assert found == (best, 1, 11, [(A, 1), (best, 1)])


def test_changes_that_overlap_are_not_joined(monkeypatch) -> None:
    """A swap of the first two places, and exchanges of the second and of the third."""
    start, swap, second, third, joint = [1, 2, 3, 0], [2, 1, 3, 0], [1, 4, 3, 0], [1, 2, 4, 0], [2, 1, 4, 0]
    value = {tuple(start): 0.0, tuple(swap): 3.0, tuple(second): 2.0, tuple(third): 1.0, tuple(joint): 5.0}
    assert search(monkeypatch, value, [second, third, swap], gradients=10)[:3] == (joint, 1, 11)


def test_a_change_joins_only_places_that_no_joined_change_has(monkeypatch) -> None:
    """The second exchange of place 1 follows one that is joined already."""
    best, one, other, joint = [2, 1, 1, 0], [1, 2, 1, 0], [1, 3, 1, 0], [2, 2, 1, 0]
    value = {tuple(A): 0.0, tuple(best): 3.0, tuple(one): 2.0, tuple(other): 1.0, tuple(joint): 5.0}
    assert search(monkeypatch, value, [other, one, best], gradients=10)[:3] == (joint, 1, 11)


def test_after_an_improvement_the_changes_of_the_new_sentence_are_tried_from_the_first(monkeypatch) -> None:
    """C is tried again after B, and then nothing is left."""
    value = {tuple(A): 1.0, tuple(B): 2.0, tuple(C): 0.9}
    found = search(monkeypatch, value, [C, B], changes=1)
    # Two readings, C, B, its joint change and its places; then C and B again, without an improvement.
    assert found == (B, 1, 6 + 1 + 3 + 2, [(A, 1), (B, 1)])


@pytest.mark.parametrize(
    ("start", "most"),
    # With p = 2 numbers, the true sentence has about -1, and 2 sqrt(2 p) = 4 more at most.
    [(-1.0, 4.0), (-11.0, 14.0), (5.0, 4.0)],
)
def test_the_search_stops_where_changes_cost_more_than_the_true_sentence_could_gain(monkeypatch, start, most) -> None:
    for loss, stops in ((most - 0.1, False), (most + 0.1, True)):
        value = {tuple(A): start, tuple(B): start - loss, tuple(C): start + 1}
        found = search(monkeypatch, value, [B, C], changes=1, gradients=9)
        assert found[0] == (A if stops else C)
    # The number of coordinates counts: 8 have -4, and 2 sqrt(16) = 8 more.
    for loss, stops in ((11.9, False), (12.1, True)):
        value = {tuple(A): -8.0, tuple(B): -8.0 - loss, tuple(C): 0.0}
        assert search(monkeypatch, value, [B, C], numbers=8, changes=1, gradients=9)[0] == (A if stops else C)


def test_the_most_likely_change_of_a_round_decides_whether_the_search_stops(monkeypatch) -> None:
    value = {tuple(A): -1.0, tuple(B): -100.0, tuple(C): -2.0, (4, 1, 1, 0): 0.0}
    assert search(monkeypatch, value, [B, C, [4, 1, 1, 0]], changes=2, gradients=10)[0] == [4, 1, 1, 0]


def test_the_value_of_a_sentence_is_its_log_posterior() -> None:
    of = view("gpt").of(torch.tensor([0]))
    std = 0.5
    rows = dataclasses.replace(Rows.of(of, of.network.model), std=std)
    prior = Bigrams.of(SENTENCES, TOKENS, 0)
    labels = torch.tensor([0, 1, 0])
    found = TokenLikelihood()._values(of, rows.std, prior, SENTENCES, labels)
    for number, (sentence, label) in enumerate(zip(SENTENCES, labels, strict=True)):
        response = of.respond(sentence[None, None], one_hot(label[None, None], 2).float())
        distance = sum(float((u - response[n]).double().square().sum()) for n, u in of.update.items())
        expected = -distance / (2 * std**2) + float(prior.log_probability(sentence[None]))
        assert float(found[number]) == pytest.approx(expected, rel=1e-5)


# The method


def test_a_tiny_sentence_is_exact_and_an_update_of_zeros_has_no_answer() -> None:
    of = view("gpt")
    update = {n: u.clone() for n, u in of.update.items()}
    for u in update.values():
        u[2] = 0.0
    answer = TokenLikelihood()((dataclasses.replace(of, update=update),), (torch.Generator(),) * 3)
    assert torch.equal(answer.inputs[:2, 0], SENTENCES[:2]) and torch.equal(answer.labels[:2, 0], LABELS[:2])
    assert answer.inputs[2].isnan().all() and answer.labels[2].tolist() == [-1]
    assert int(answer.evaluations[2]) == 1 < int(answer.evaluations[0])


def test_the_tokens_of_a_batch_are_read_together_without_a_search() -> None:
    of = view("gpt", batch=3)
    answer = TokenLikelihood()((of,), (torch.Generator().manual_seed(0),))
    rows = Rows.of(of, of.network.model)
    assert torch.equal(answer.inputs[0], rows.spread(3, LENGTH))
    assert answer.evaluations.tolist() == [1] and (answer.labels == -1).all()


def test_both_embeddings_must_be_trained_and_public_sentences_given() -> None:
    of, method = view("gpt"), TokenLikelihood()
    model = network("gpt").model
    word, place = model.word_weights, model.position_weights[0]
    assert method.missing(model, [word, place]) == ""
    assert method.missing(model, [word]) == method.missing(model, [place]) == "word and position embeddings"
    assert method.missing(network("llama").model, [word]) == "word and position embeddings"
    assert method.applies(of)
    assert not method.applies(dataclasses.replace(of, public=None))
    assert not method.applies(dataclasses.replace(of, update={word: of.update[word]}))
