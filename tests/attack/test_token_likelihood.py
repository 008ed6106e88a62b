"""Likelihood of tokens: places from the gradients of embeddings, and known sentences under noise."""

import dataclasses
import itertools

import pytest
import torch

from leakbench.attack.embeddings import fitted_lengths
from leakbench.attack.methods.dager import Dager
from leakbench.attack.methods.token_likelihood import TokenLikelihood, exchanged
from leakbench.attack.methods.token_likelihood import _Rows as Rows
from leakbench.core.errors import InputError
from leakbench.core.types import Clock, Network
from leakbench.data.find import load_dataset
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Public, View
from leakbench.measure.metrics_texts import text_scores
from leakbench.models import build, one_hot, parameters
from leakbench.models.language import NextToken


def cost(owner, words, places):
    """The sum of |W_v - sum of its P_i|^2, less |W|^2."""
    left = words.clone()
    left.index_add_(0, owner, -places)
    return float(left.square().sum() - words.square().sum())


def test_moves_and_swaps_find_the_owners_with_the_least_cost_of_all():
    """Every assignment of 5 places to 3 tokens is compared."""
    rng = torch.Generator().manual_seed(1)
    places = torch.randn(5, 8, generator=rng, dtype=torch.float64) + 1
    true = torch.tensor([0, 1, 0, 2, 1])
    words = torch.zeros(3, 8, dtype=torch.float64).index_add_(0, true, places)
    words += 0.3 * torch.randn(3, 8, generator=rng, dtype=torch.float64)
    found = exchanged(torch.zeros(5, dtype=torch.int64), words @ places.T, places @ places.T)
    least = min(cost(torch.tensor(o), words, places) for o in itertools.product(range(3), repeat=5))
    assert cost(found, words, places) == pytest.approx(least)


@pytest.fixture(scope="module")
def reviews():
    return load_dataset("reviews")[2]


@pytest.mark.parametrize("method", [TokenLikelihood(gradients=10), Dager()])
def test_a_search_names_its_sentence_and_shows_that_it_goes_on(reviews, method):
    steps = []
    view = dataclasses.replace(view_of(reviews, 0.0)[0], tick=lambda step="", share=None: steps.append(step))
    method((view,), (torch.Generator().manual_seed(0),))
    assert [step for step in steps if step] == ["search of sentence 1 of 1"]
    assert steps.count("") > 2 and steps[-1] == ""


def view_of(data, std, model="gpt_tiny", batch=1):
    net = build(model, data.layout, 2, torch.Generator().manual_seed(0))
    network = Network(net, parameters(net))
    inputs, labels = data.train_inputs[:batch], data.train_targets[:batch]
    targets = one_hot(labels, 2)
    with torch.no_grad():
        update = leak(
            "type-1",
            network,
            inputs[None, None, None],
            targets[None, None, None],
            0.1,
            Stations(),
            Clock(0, 0, 1, 1),
            None,
        )
    rng = torch.Generator().manual_seed(3)
    update = {n: u + std * torch.randn(u.shape, generator=rng) for n, u in update.items()}
    public = Public(data.test_inputs, data.test_targets)
    view = View(
        tap="type-1",
        network=network,
        update=update,
        batch=batch,
        shape=data.shape,
        classes=2,
        learning_rate=0.1,
        vocabulary=data.vocabulary,
        public=public,
        noise=std or None,
    )
    return view, inputs, labels


def test_a_sentence_without_noise_is_exact_and_explains_its_gradient(reviews):
    view, inputs, labels = view_of(reviews, 0.0)
    answer = TokenLikelihood()((view,), (torch.Generator(),))
    assert torch.equal(answer.inputs[0], inputs) and torch.equal(answer.labels[0], labels)
    assert float(answer.certainty[0, 0]) > -1e-6


def test_a_sentence_is_exact_under_noise_that_hides_the_span(reviews):
    view, inputs, _ = view_of(reviews, 0.01)
    answer = TokenLikelihood()((view,), (torch.Generator(),))
    assert torch.equal(answer.inputs[0], inputs)


def test_under_strong_noise_the_search_goes_on_and_the_answer_is_the_more_likely_one(reviews):
    """Each further gradient can only increase the likelihood, and the start is far from the most likely sentence."""
    view, inputs, labels = view_of(reviews, 0.3)
    few, more = (TokenLikelihood(gradients=many)((view,), (torch.Generator().manual_seed(0),)) for many in (1, 45))
    assert int(few.evaluations) <= 4 and 45 < int(more.evaluations) <= 95
    assert float(more.certainty[0, 0]) > float(few.certainty[0, 0])
    assert torch.equal(more.inputs[0, 0] == 0, inputs[0] == 0) and torch.equal(more.labels[0], labels)


def test_the_likelihood_of_tokens_given_the_places_is_that_of_their_rows():
    rng = torch.Generator().manual_seed(2)
    places, words = (torch.randn(n, 8, generator=rng, dtype=torch.float64) for n in (4, 6))
    rows = Rows(words, places, 0.5, 0, known=True)
    sentences = torch.tensor([[1, 2, 1], [3, 3, 3], [5, 4, 1]])
    left = words.repeat(3, 1, 1)
    for row, sentence in zip(left, sentences, strict=True):
        row.index_add_(0, sentence, -places[:3])
    expected = -left.square().sum((1, 2)) / (2 * 0.5**2)
    found = rows.likelihood(sentences)
    torch.testing.assert_close(found - found[0], expected - expected[0])


def test_what_is_not_finite_has_no_sentence(reviews):
    view, _, _ = view_of(reviews, 0.0)
    broken = {
        n: p * (torch.nan if n.endswith("h.2.mlp.c_fc.weight") else 1) for n, p in view.network.parameters.items()
    }
    update = {n: u * (torch.inf if "wpe" in n else 1) for n, u in view.update.items()}
    for change in ({"update": update}, {"network": dataclasses.replace(view.network, parameters=broken)}):
        answer = TokenLikelihood()((dataclasses.replace(view, **change),), (torch.Generator(),))
        assert answer.inputs.isnan().all() and (answer.labels == -1).all()


@pytest.mark.parametrize("std", [0.0, 1e-4])
def test_sentences_of_a_network_of_next_tokens(reviews, std):
    """Its head has the weights of the embeddings, so that every token has a gradient, and the last place has none."""
    net = NextToken(build("gpt_tiny", reviews.layout, 2, torch.Generator().manual_seed(0)), "gpt_tiny")
    network, inputs = Network(net, parameters(net)), reviews.train_inputs[:1]
    own = torch.ones(1, 1)
    with torch.no_grad():
        given = (inputs[None, None, None], own[None, None, None], 0.1, Stations(), Clock(0, 0, 1, 1), None)
        update = leak("type-1", network, *given)
    rng = torch.Generator().manual_seed(3)
    update = {n: u + std * torch.randn(u.shape, generator=rng) for n, u in update.items()}
    whole = view_of(reviews, 0.0)[0]
    view = dataclasses.replace(whole, network=network, update=update, classes=1, noise=std or None)
    assert int(fitted_lengths(view, (rng,))) == int((inputs != 0).sum())
    answer = TokenLikelihood(gradients=60)((view,), (rng,))
    assert float(text_scores(answer.inputs, inputs[None], reviews.vocabulary).token_accuracy) > 0.8


def test_a_sentence_without_places_of_its_own_has_no_evidence():
    rows = Rows(torch.randn(6, 8, dtype=torch.float64), torch.zeros(4, 8, dtype=torch.float64), 0.5, 0, known=True)
    evidence = rows.evidence()
    assert (evidence[:, 1:] == 0).all() and (evidence[:, 0] == -torch.inf).all()


def test_a_network_without_trained_embeddings_is_refused(reviews):
    view, _, _ = view_of(reviews, 0.0)
    update = {n: u for n, u in view.update.items() if "wte" not in n}
    with pytest.raises(InputError, match="reads the gradients of word and position embeddings"):
        TokenLikelihood()((dataclasses.replace(view, update=update),), (torch.Generator(),))
