"""DAGER finds the sentences of a batch exactly or none of them, and the bag of words finds their tokens."""

import dataclasses

import pytest
import torch
from torch import Tensor

from leakbench.attack.embeddings import embedded
from leakbench.attack.methods.bag_of_words import BagOfWords
from leakbench.attack.methods.dager import Dager, _least, _onto_shares, possible_of
from leakbench.attack.spans import HIDDEN, Span, entering_of, layer_of, probes_of, span_of
from leakbench.core.errors import InputError
from leakbench.core.types import Clock, Network
from leakbench.data.vocabulary import Vocabulary
from leakbench.defense.clip import ClipWhole
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import View
from leakbench.models import build, one_hot, parameters
from leakbench.models.language import LanguageModel

WORDS = [chr(97 + i // 10) + chr(97 + i % 10) for i in range(60)]
VOCABULARY = Vocabulary.of_word_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])
LENGTH, CLASSES, BEGIN, END = 12, 2, 2, 3


def sentence(*words: int) -> Tensor:
    """Return a sentence (T,) of words between special tokens."""
    row = torch.zeros(LENGTH)
    row[: len(words) + 2] = torch.tensor([BEGIN, *(w + 4 for w in words), END]).float()
    return row


def sentences(many: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, LENGTH - 1, (many,), generator=rng).tolist()
    return torch.stack([sentence(*torch.randint(60, (n,), generator=rng).tolist()) for n in lengths])


def network(name: str = "gpt_tiny") -> Network:
    model = build(name, (LENGTH, VOCABULARY.size), CLASSES, torch.Generator().manual_seed(0))
    return Network(model, parameters(model))


def view(
    x: Tensor,
    name: str = "gpt_tiny",
    stations: Stations | None = None,
    noise: float = 0.0,
    labels: Tensor | None = None,
    steps: int = 1,
    rate: float = 0.1,
) -> View:
    """Return the view of one victim with examples (M, T), divided among local steps."""
    net = network(name)
    labels = torch.arange(len(x)) % CLASSES if labels is None else labels
    batch, clock = len(x) // steps, Clock(0, 0, steps, 1)
    inputs = x.reshape(1, 1, steps, batch, LENGTH)
    targets = one_hot(labels, CLASSES).reshape(1, 1, steps, batch, CLASSES)
    update = leak("type-1", net, inputs, targets, rate, stations or Stations(), clock, None)
    update = {n: u.detach() for n, u in update.items()}
    rng = torch.Generator().manual_seed(5)
    update = {n: u + noise * torch.randn(u.shape, generator=rng) for n, u in update.items()} if noise else update
    return View(
        "type-1", net, update, batch, (LENGTH,), CLASSES, rate, local_steps=steps, clock=clock, vocabulary=VOCABULARY
    )


def found(shown: View, **settings: float) -> Tensor:
    """Return the answer (M, T) of the one victim."""
    return Dager(**settings)((shown,), (torch.Generator().manual_seed(0),)).inputs[0]


def rows(x: Tensor) -> list[list[float]]:
    return sorted(x.tolist())


def language(shown: View) -> LanguageModel:
    assert isinstance(shown.network.model, LanguageModel)
    return shown.network.model


def rank_of(x: Tensor) -> int:
    """Return the rank of token + position over the places of sentences: tokens + positions - groups that share one."""
    group: dict[tuple[str, int], tuple[str, int]] = {}

    def top(key: tuple[str, int]) -> tuple[str, int]:
        while group.setdefault(key, key) != key:
            key = group[key]
        return key

    for row in x.long().tolist():
        for place, token in enumerate(row):
            if token:
                group[top(("token", token))] = top(("place", place))
    return len(group) - len({top(key) for key in group})


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
@pytest.mark.parametrize("many", [1, 2, 4, 8])
def test_the_rank_of_the_gradient_is_that_of_the_tokens_and_positions(name, many):
    shown = view(sentences(many, seed=many), name)
    layer = layer_of(shown.update, probes_of(language(shown), tuple(shown.update))[0], 0.15)
    assert layer is not None
    assert layer.spans[0].rank == rank_of(sentences(many, seed=many))


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
def test_the_spans_have_the_inputs_of_the_batch_and_of_no_other_sentence(name):
    x, other = sentences(2), sentences(2, seed=9)
    shown = view(x, name)
    model = language(shown)
    for groups in ({}, {"groups": HIDDEN}):
        for probes in probes_of(model, tuple(shown.update), **groups)[:2]:
            layer = layer_of(shown.update, probes, 0.15)
            assert layer is not None
            inside = layer.distance(entering_of(model, shown.network.parameters, probes, x))[x != 0]
            outside = layer.distance(entering_of(model, shown.network.parameters, probes, other))[other != 0]
            assert inside.max() < 0.5
            assert outside[1:].median() > 5


def test_a_span_is_found_below_rounding_errors_and_not_in_noise():
    rng = torch.Generator().manual_seed(0)
    left, right = torch.randn(40, 7, generator=rng), torch.randn(7, 90, generator=rng)
    exact = (left * torch.logspace(0, -3, 7)) @ right  # float32
    span = span_of([exact])
    assert span is not None
    assert span.rank == 7
    assert span.share(left.T, 0.15).max() < 1
    assert span.share(torch.randn(50, 40, generator=rng), 0.15).min() > 1
    noise = torch.randn(40, 90, generator=rng)
    assert span_of([exact + 1e-2 * noise]) is None
    assert span_of([noise]) is None
    assert span_of([torch.zeros(40, 90)]) is None
    assert span_of([torch.full((40, 90), torch.nan)]) is None


@pytest.mark.parametrize("seed", range(3))
def test_known_noise_gives_the_rank_and_the_angles(seed):
    """Singular values t of the signal are found from the edge s (sqrt(d) + sqrt(k)) on, where t^4 = d k s^4."""
    rows, columns, std = 120, 360, 0.01
    rng = torch.Generator().manual_seed(seed)
    shape = {"generator": rng, "dtype": torch.float64}
    left = torch.linalg.qr(torch.randn(rows, 6, **shape))[0]
    right = torch.linalg.qr(torch.randn(columns, 6, **shape))[0]
    least = (rows * columns) ** 0.25 * std
    sizes = least * torch.tensor([20.0, 8.0, 4.0, 2.0, 0.5, 0.2], dtype=torch.float64)
    span = span_of([(left * sizes) @ right.T + std * torch.randn(rows, columns, **shape)], std)
    assert span is not None
    assert span.rank == 4
    cosines = (span.basis * left[:, :4]).sum(0).abs()
    assert torch.allclose(span.tilts, (1 / cosines.square() - 1).sqrt(), rtol=0.25)
    inside, unrelated = left[:, :3].T, torch.randn(50, rows, **shape)
    assert span.share(inside, 0.9).max() < 1 < span.share(unrelated, 0.9).min()


def test_noise_alone_has_no_span():
    rng = torch.Generator().manual_seed(0)
    assert all(span_of([0.1 * torch.randn(60, 200, generator=rng)], 0.1) is None for _ in range(50))


@pytest.mark.parametrize(("name", "noise"), [("gpt_tiny", 1e-6), ("gpt_tiny", 1e-5), ("bert_tiny", 1e-6)])
def test_an_attacker_that_knows_the_noise_finds_sentences_in_it(name, noise):
    x = sentences(1)
    shown = view(x, name, noise=noise)
    assert found(shown).isnan().all()
    assert rows(found(dataclasses.replace(shown, noise=noise))) == rows(x)


def test_small_columns_count_as_much_as_large_ones():
    """Rounding errors of the large columns would cover the seventh direction, which only small ones have."""
    rng = torch.Generator().manual_seed(0)
    left, right = torch.randn(40, 7, generator=rng), torch.randn(7, 90, generator=rng)
    right[6, :60] = 0
    right[:, 60:] *= 1e-7
    span = span_of([left @ right])
    assert span is not None
    assert span.rank == 7


def test_a_hyperplane_is_no_span():
    """Outputs of layer normalisation are in the hyperplane of mean zero, whatever the sentence."""
    wide = torch.randn(30, 200, generator=torch.Generator().manual_seed(0)).double()
    assert span_of([wide - wide.mean(0)]) is None


def test_the_distance_from_a_span_is_that_of_the_projection():
    basis = torch.linalg.qr(torch.randn(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    span = Span(basis, torch.full((4,), 1e-3, dtype=torch.float64))
    x = torch.randn(6, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    unit = x / x.norm(dim=1, keepdim=True)
    expected = unit - unit @ basis @ basis.T
    assert torch.allclose(span.outside(x), expected)
    allowed = span.room * 0.15
    assert (
        torch.allclose(span.share(x, 0.15) * allowed, expected.norm(dim=1), rtol=1e-6)
        or (span.share(x, 0.15) > 1).all()
    )


@pytest.mark.parametrize(
    ("name", "many"), [("gpt_tiny", 1), ("gpt_tiny", 2), ("gpt_tiny", 8), ("bert_tiny", 1), ("bert_tiny", 3)]
)
def test_batches_are_found_exactly(name, many):
    x = sentences(many, seed=many)
    labels = torch.arange(many) % CLASSES
    answer = Dager()((view(x, name, labels=labels),), (torch.Generator().manual_seed(0),))
    assert rows(answer.inputs[0]) == rows(x)
    truth = {tuple(row): int(label) for row, label in zip(x.tolist(), labels, strict=True)}
    assert [truth[tuple(row)] for row in answer.inputs[0].tolist()] == answer.labels[0].tolist()
    # The certainty is minus the squared distance from the observed gradient: rounding errors.
    assert (answer.certainty > -1e-9).all()


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
def test_double_precision_finds_the_same(name):
    x = sentences(2)
    assert rows(found(view(x, name).to(torch.float64)).float()) == rows(x)


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
@pytest.mark.parametrize(
    "x",
    [
        sentence(7)[None],
        sentence(*range(LENGTH - 2))[None],
        torch.stack([sentence(1, 2, 3), sentence(1, 2, 3)]),
        torch.stack([sentence(1, 2, 3), sentence(1, 2, 3), sentence(4, 5, 6, 7)]),
        sentence(8, 8, 8, 8, 8)[None],
        torch.stack([sentence(1, 2, 3, 4), sentence(1, 2, 9, 4)]),
        torch.stack([sentence(1), sentence(2), sentence(*range(20, 30))]),
    ],
    ids=["one word", "full", "equal", "two equal", "one word often", "one word apart", "short and full"],
)
def test_odd_batches_are_found(name, x):
    assert rows(found(view(x, name))) == rows(x)


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
def test_a_lone_token_is_found(name):
    x = torch.zeros(1, LENGTH)
    x[0, 0] = 9
    assert rows(found(view(x, name))) == rows(x)


def test_a_prefix_of_another_sentence_is_found_by_what_the_other_lacks():
    """The shorter sentence's tokens are all in the longer one, up to its end."""
    x = torch.stack([sentence(1, 2, 3), sentence(1, 2, 3, 4, 5)])
    assert rows(found(view(x))) == rows(x)


def test_local_steps_move_an_input_along_a_line():
    basis = torch.eye(8, dtype=torch.float64)[:, :3]
    span = Span(basis, torch.full((3,), 1e-12, dtype=torch.float64))
    first, last = torch.eye(8, dtype=torch.float64)[[0, 0]]
    first, last = first.clone(), last.clone()
    first[5], last[5] = -0.1, 0.1  # The line meets the span in its middle.
    assert float(span.share(first[None], 0.15)) > 1
    assert float(span.share(first[None], 0.15, last[None])) < 1e-9
    # Half the length of the line (.2, of an input of length 1.005) is allowed beside it.
    for aside, inside in ((0.098, True), (0.102, False)):
        first[6] = last[6] = aside
        assert (float(span.share(first[None], 0.9, last[None])) < 1) == inside
    # Behind its ends there is no line.
    first[6] = last[6] = 0.0
    first[5], last[5] = 0.3, 0.4
    assert float(span.share(first[None], 0.9, last[None])) > 1


@pytest.mark.parametrize("steps", [2, 5])
def test_local_steps_do_not_stop_it(steps):
    x = sentences(steps)
    assert rows(found(view(x, steps=steps, rate=1e-3))) == rows(x)


def test_a_clip_does_not_stop_it():
    x = sentences(2)
    assert rows(found(view(x, stations=Stations(client=(ClipWhole(norm=1e-3),))))) == rows(x)


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
@pytest.mark.parametrize("noise", [1e-3, 1.0])
def test_noise_leaves_no_answer(name, noise):
    answer = Dager()((view(sentences(2), name, noise=noise),), (torch.Generator().manual_seed(0),))
    assert answer.inputs.isnan().all()
    assert (answer.labels == -1).all()
    assert (answer.certainty == -torch.inf).all()


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
@pytest.mark.parametrize("how", ["sign", "prune", "nan"])
def test_broken_gradients_leave_no_answer(name, how):
    shown = view(sentences(2), name)
    broken = {
        "sign": torch.sign,
        "prune": lambda u: u.masked_fill(u.abs() < u.abs().median(), 0.0),
        "nan": lambda u: torch.full_like(u, torch.nan),
    }[how]
    shown = dataclasses.replace(shown, update={n: broken(u) for n, u in shown.update.items()})
    assert found(shown).isnan().all()


def test_more_tokens_than_dimensions_leave_no_answer():
    x = torch.randint(4, 64, (30, LENGTH), generator=torch.Generator().manual_seed(0)).float()
    assert found(view(x)).isnan().all()


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
def test_a_search_without_effort_ends(name):
    assert found(view(sentences(3), name), effort=20).isnan().all()


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
def test_frozen_embeddings_are_not_needed(name):
    x = sentences(2)
    shown = view(x, name)
    frozen = {n: u for n, u in shown.update.items() if "wte" not in n and "wpe" not in n and "embeddings" not in n}
    shown = dataclasses.replace(shown, update=frozen)
    assert embedded(shown, language(shown)) is None
    assert rows(found(view(x, name), embeddings=False)) == rows(x)


def test_other_networks_are_refused():
    model = build("mlp", (8,), CLASSES, torch.Generator().manual_seed(0))
    net = Network(model, parameters(model))
    shown = View("type-1", net, {n: p[None] for n, p in net.parameters.items()}, 1, (8,), CLASSES, 0.1)
    with pytest.raises(InputError, match="'dager' reads language models"):
        found(shown)


def test_least_squares_over_shares_match_a_slow_search():
    rng = torch.Generator().manual_seed(0)
    there = torch.tensor([[True, True, True], [True, False, False], [True, True, False]])
    move = torch.randn(9, 5, dtype=torch.float64, generator=rng)
    move[~there.flatten()] = 0
    now = torch.randn(5, dtype=torch.float64, generator=rng)
    shares = _least(move @ move.T, move @ now, there, there.double() / there.sum(1, keepdim=True))
    assert torch.allclose(shares.sum(1), torch.ones(3, dtype=torch.float64))
    assert (shares[~there] == 0).all()
    least = min(
        float(
            (now + move[0] * a + move[1] * b + move[2] * (1 - a - b) + move[3] + move[6] * c + move[7] * (1 - c))
            .square()
            .sum()
        )
        for a in torch.linspace(0, 1, 21).tolist()
        for b in torch.linspace(0, 1 - a, 21).tolist()
        for c in torch.linspace(0, 1, 21).tolist()
    )
    assert float((now + shares.flatten() @ move).square().sum()) <= least + 1e-9


def test_shares_are_the_nearest_ones():
    there = torch.tensor([[True, True, False], [True, True, True]])
    values = torch.tensor([[0.5, 0.1, 9.0], [2.0, 0.0, -1.0]])
    assert torch.allclose(_onto_shares(values, there), torch.tensor([[0.7, 0.3, 0.0], [1.0, 0.0, 0.0]]))


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
def test_possible_tokens_are_the_same_with_and_without_the_embeddings(name):
    x = sentences(1)
    shown = view(x, name)
    model = language(shown)
    layer = layer_of(shown.update, probes_of(model, tuple(shown.update))[0], 0.15)
    assert layer is not None
    each = [possible_of(shown, model, layer, LENGTH, e) for e in (None, embedded(shown, model))]
    assert torch.equal(*each)
    expected = {(int(token), place) for place, token in enumerate(x[0]) if token}
    assert {(int(token), int(place)) for token, place in each[0].nonzero()} == expected


def bag(shown: View) -> Tensor:
    return BagOfWords()((shown,), (torch.Generator().manual_seed(0),)).inputs[0]


def tokens(x: Tensor) -> set[int]:
    return set(x[x.isfinite()].long().tolist()) - {0}


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
@pytest.mark.parametrize("many", [1, 4])
def test_the_bag_of_words_has_the_tokens_of_the_batch(name, many):
    x = sentences(many, seed=3)
    assert tokens(bag(view(x, name))) == tokens(x)


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
def test_the_positions_put_words_that_occur_once_in_order(name):
    x = sentence(9, 3, 50, 21, 7, 40)[None]
    assert rows(bag(view(x, name))) == rows(x)


def test_the_bag_of_words_reads_what_is_above_known_noise():
    x = sentences(1)
    silent = view(x)
    strongest = float(silent.update["transformer.wte.weight"].norm(dim=2).max())
    noise = strongest / 400
    shown = dataclasses.replace(view(x, noise=noise), noise=noise)
    answer = bag(shown)
    assert tokens(answer)
    assert tokens(answer) <= tokens(x)
    # Without knowing the noise, every token has a gradient.
    assert not tokens(bag(dataclasses.replace(shown, noise=None))) <= tokens(x)


def test_the_bag_of_words_needs_trained_embeddings():
    shown = view(sentences(1))
    evidence = embedded(shown, language(shown))
    assert evidence is not None
    assert set(evidence.tokens.tolist()) == tokens(sentences(1))
    assert evidence.reach == int((sentences(1) != 0).sum())
    kept = {n: u for n, u in shown.update.items() if "wte" not in n}
    assert embedded(dataclasses.replace(shown, update=kept), language(shown)) is None
