"""Gradient matching of texts: distances, embeddings, lengths, pairs of tokens, rearrangements, and small recoveries."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

from leakbench.attack import Attack
from leakbench.attack.embeddings import fitted_lengths, lengths
from leakbench.attack.evaluations import most_evaluations, with_evaluations
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.methods.lamp import Lamp, Rearranged, rearrangement
from leakbench.attack.needs import KINDS, PLAIN, TEXT, Needs, needs_of
from leakbench.attack.search.adam import AdamState
from leakbench.attack.slots.descent import AdamLinear, Terms
from leakbench.attack.slots.distance import Cosine, CosineByLayer, Tag
from leakbench.attack.slots.stop import limited
from leakbench.attack.slots.texts import EmbeddingLength, Embeddings, NormalEmbeddings
from leakbench.attack.text import Bigrams, WordEmbeddings
from leakbench.cell.resolve import plan_cell
from leakbench.core.answers import Reconstruction
from leakbench.core.errors import InputError
from leakbench.core.recipe import construct, resolve
from leakbench.core.request import Request
from leakbench.core.rng import generator, generators
from leakbench.core.types import Clock, Network
from leakbench.core.words import success
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.federated.view import Public, View
from leakbench.models import one_hot, parameters
from leakbench.models.initialise import initialise, narrow_normal
from leakbench.models.language import LanguageModel

TOKENS, LENGTH, WIDTH = 40, 6, 32
GPT = {"n_positions": LENGTH, "n_embd": WIDTH, "n_head": 2}
PLAIN_GPT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
BERT = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
PLAIN_BERT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SENTENCES = torch.tensor([[1.0, 7, 12, 30, 2, 0], [1, 9, 33, 5, 21, 2], [1, 2, 0, 0, 0, 0]])
LABELS = torch.tensor([0, 1, 1])


def network(kind: str = "bert", layers: int = 1) -> Network:
    if kind == "gpt":
        config = GPT2Config(vocab_size=TOKENS, n_layer=layers, **GPT, **PLAIN_GPT, bos_token_id=None, eos_token_id=None)
        transformer = GPT2Model._from_config(config, attn_implementation="eager")
    elif kind == "llama":
        config = LlamaConfig(vocab_size=TOKENS, max_position_embeddings=LENGTH, num_key_value_heads=2, **BERT)
        transformer = LlamaModel._from_config(config, attn_implementation="eager")
    else:
        config = BertConfig(vocab_size=TOKENS, max_position_embeddings=LENGTH, **BERT, **PLAIN_BERT)
        transformer = BertModel._from_config(config, attn_implementation="eager", add_pooling_layer=False)
    model = LanguageModel(transformer.eval(), 2, kind != "bert", 0, LENGTH)
    initialise(model, narrow_normal, generator(0, "weights"))
    return Network(model, parameters(model))


def view(
    kind: str = "bert", batch: int = 1, steps: int = 1, layers: int = 1, rate: float = 0.1, labels: Tensor = LABELS
) -> View:
    """Return a view of updates of the sentences, each of `batch` sentences a local iteration."""
    of, clock = network(kind, layers), Clock(0, 0, steps, 1)
    victims = len(SENTENCES) // (batch * steps)
    shape = (victims, 1, steps, batch)
    x, y = SENTENCES[: math.prod(shape)].reshape(*shape, LENGTH), labels[: math.prod(shape)].reshape(shape)
    update = leak("type-1", of, x, one_hot(y, 2).float(), rate, Stations(), clock, None)
    update = {n: u.detach() for n, u in update.items()}
    public = Public(SENTENCES.flip(0).repeat(4, 1), LABELS.flip(0).repeat(4))
    return View("type-1", of, update, batch, (LENGTH,), 2, rate, local_steps=steps, clock=clock, public=public)


def words_of(of: View) -> Tensor:
    return WordEmbeddings.of(of, "test").weight[0]


def test_the_distance_tag_on_known_numbers() -> None:
    """|r|^2 + alpha w |r|_1 with r of (1, -2) and (3, 0); w is 1 and 1/2, or 1 everywhere."""
    guess = {"a": torch.tensor([[1.0, 1.0]]), "b": torch.tensor([[4.0, 5.0]])}
    observed = {"a": torch.tensor([[0.0, 3.0]]), "b": torch.tensor([[1.0, 5.0]])}
    assert Tag(alpha=0.1)(guess, observed, None).item() == pytest.approx(5 + 0.3 + 9 + 0.1 * 0.5 * 3)
    assert Tag(alpha=0.1, falling=False)(guess, observed, None).item() == pytest.approx(5 + 0.3 + 9 + 0.3)
    assert Tag(alpha=0.0)(guess, observed, None).item() == pytest.approx(14.0)


def test_the_cosine_by_layer_is_the_mean_of_the_layers() -> None:
    guess = {"a": torch.tensor([[1.0, 0.0]]), "b": torch.tensor([[2.0, 2.0]]), "c": torch.tensor([[5.0]])}
    observed = {"a": torch.tensor([[0.0, 3.0]]), "b": torch.tensor([[1.0, 1.0]]), "c": torch.tensor([[0.0]])}
    # Orthogonal, parallel, and without a direction.
    assert CosineByLayer()(guess, observed, None).item() == pytest.approx((1 + 0 + 1) / 3, abs=1e-6)
    alone = {"b": guess["b"]}
    assert torch.equal(CosineByLayer()(alone, observed, None), Cosine()(alone, observed, None))


def test_a_layer_of_rounding_errors_has_no_direction() -> None:
    """The gradient of the keys' bias is zero but for rounding errors, which would weigh as much as any other layer."""
    observed = {"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor([[1e-9, -1e-9]]), "c": torch.tensor([[1e-9, 0.0]])}
    guess = {"a": torch.tensor([[2.0, 4.0]]), "b": torch.tensor([[-1e-9, 1e-9]]), "c": torch.tensor([[0.0, 3.0]])}
    assert CosineByLayer()(guess, observed, None).item() == pytest.approx((0 + 0 + 1) / 3, abs=1e-6)
    of = view()
    exact = (words_of(of)[SENTENCES.long()] * (SENTENCES != 0)[..., None])[:, None]
    reached = of.respond(exact, one_hot(LABELS, 2)[:, None].float())
    reached = {name: g for name, g in reached.items() if name not in Embeddings()(of).unreached}
    assert any("key.bias" in name for name in reached)
    assert CosineByLayer()(reached, of.update, of).max() < 1e-6


def test_the_learning_rate_rises_and_falls_linearly() -> None:
    search = AdamLinear(learning_rate=1.0, warmup=0.25)(torch.zeros(1, 2), Terms(8, 2, lambda points: points))
    assert isinstance(search, AdamState)
    assert search.rates == pytest.approx([1 / 3, 2 / 3, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


@pytest.mark.parametrize("by", ["cosine", "l2"])
def test_the_embeddings_of_a_sentence_are_decoded_to_its_tokens(by: str) -> None:
    of = view()
    there = (SENTENCES != 0)[..., None]
    exact = words_of(of)[SENTENCES.long()] * there
    space = Embeddings(nearest=by)(of)
    z = space.encode(exact[:, None])
    assert z.shape == (3, 1, LENGTH * WIDTH) and z[z != 0].square().mean().sqrt() == pytest.approx(1.0, rel=0.2)
    torch.testing.assert_close(space.decode(z), exact[:, None])
    assert torch.equal(space.answer(space.decode(z))[:, 0], SENTENCES)
    if by == "cosine":
        assert torch.equal(space.answer(7 * exact[:, None])[:, 0], SENTENCES)


def test_no_embedding_but_zeros_becomes_padding() -> None:
    of = view()
    near = words_of(of)[0].expand(3, 1, LENGTH, WIDTH)
    assert (Embeddings()(of).answer(near) != 0).all()


@pytest.mark.parametrize("kind", ["gpt", "bert", "llama"])
def test_embeddings_with_zeros_give_the_gradient_of_the_sentence(kind: str) -> None:
    """A guess of the true embeddings explains the whole gradient but that of the word embeddings, which it does not reach."""
    of = view(kind)
    exact = (words_of(of)[SENTENCES.long()] * (SENTENCES != 0)[..., None])[:, None]
    answer = of.respond(exact, one_hot(LABELS, 2)[:, None].float())
    (unreached,) = Embeddings()(of).unreached
    assert answer[unreached].count_nonzero() == 0 < of.update[unreached].count_nonzero()
    for name, observed in of.update.items():
        if name != unreached:
            torch.testing.assert_close(answer[name], observed, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_the_gradient_of_the_positions_shows_the_length(kind: str) -> None:
    assert lengths(view(kind)).tolist() == [[5], [6], [2]]
    assert lengths(view(kind, batch=3)).tolist() == [[6, 6, 6]]


@pytest.mark.parametrize(("kind", "labels"), [("gpt", [0, 1, 1]), ("bert", [1, 1, 1])])
def test_the_lengths_of_a_batch_are_fitted(kind: str, labels: list[int]) -> None:
    """Sentences of one label have no order. A single sentence has the exact length."""
    of = view(kind, batch=3, labels=torch.tensor(labels))
    found = fitted_lengths(of, generators(0, "lengths", [(0,)]))[0]
    assert sorted(found.tolist()) == [2, 5, 6]
    assert kind == "bert" or found[0] == 5
    alone, rngs = view(kind), generators(0, "lengths", [(v,) for v in range(3)])
    assert torch.equal(fitted_lengths(alone, rngs), lengths(alone))


def test_without_trained_positions_or_with_noise_the_length_is_the_longest_possible() -> None:
    assert lengths(view("llama")).tolist() == [[LENGTH]] * 3
    of = view()
    name = next(n for n in of.update if "position_embeddings" in n)
    noisy = dataclasses.replace(of, update={**of.update, name: of.update[name] + 1e-3})
    frozen = dataclasses.replace(of, update={n: u for n, u in of.update.items() if n != name})
    assert lengths(noisy).tolist() == lengths(frozen).tolist() == [[LENGTH]] * 3


@pytest.mark.parametrize("told", [True, False])
def test_the_length_is_found_behind_noise(told: bool) -> None:
    """The size of the noise is known, or read from the tokens that no sentence has."""
    of = view("gpt")
    std = 0.1 * float(of.update[of.network.model.position_weights[0]].square().mean(2).amax().sqrt())
    rng = torch.Generator().manual_seed(1)
    update = {n: u + std * torch.randn(u.shape, generator=rng) for n, u in of.update.items()}
    noisy = dataclasses.replace(of, update=update, noise=std if told else None)
    assert lengths(noisy).tolist() == [[LENGTH]] * 3
    assert fitted_lengths(noisy, generators(0, "lengths", [(v,) for v in range(3)])).tolist() == [[5], [6], [2]]


def test_a_start_has_the_scale_of_the_embeddings_and_no_token_after_the_end() -> None:
    of = view()
    start = NormalEmbeddings(scale=2.0)(of, generators(0, "start", [(v,) for v in range(3)]))
    assert start.shape == (3, 1, LENGTH, WIDTH)
    assert torch.equal((start != 0).all(-1)[:, 0], SENTENCES != 0)
    usual = words_of(of)[1:].square().mean().sqrt()
    assert start[start != 0].std() == pytest.approx(2 * usual.item(), rel=0.1)


def test_a_search_never_moves_a_place_without_a_token() -> None:
    method = limited(resolve("attacks", Attack, "tag")[1].method, 3)
    answer = method((view(),), generators(0, "attack", [(v,) for v in range(3)]))
    assert torch.equal(answer.inputs[:, 0] == 0, SENTENCES == 0)


def test_the_penalty_of_the_length_is_zero_at_the_usual_one() -> None:
    of = view()
    norms = torch.linalg.vector_norm(words_of(of)[1:], dim=1)
    inputs = torch.zeros(2, 1, LENGTH, WIDTH)
    inputs[0, 0, :2, 0] = norms.mean()
    inputs[1, 0, :3, 1] = 3 * norms.mean()
    inputs.requires_grad_()
    penalty = EmbeddingLength(weight=0.5)(inputs, of, torch.arange(2))
    torch.testing.assert_close(penalty, torch.tensor([0.0, 0.5 * 4]))
    penalty.sum().backward()
    assert inputs.grad is not None and inputs.grad.isfinite().all()


def pairs_of(*sentences: list[int], smoothing: float = 1.0) -> Bigrams:
    return Bigrams.of(torch.tensor(sentences).float(), 5, 0, smoothing)


def test_the_probabilities_of_pairs_on_two_sentences() -> None:
    """The pairs are 1 2, 2 3, 1 2, 2 2, the tokens 1 2 3 1 2 2, and padding is 0."""
    model = pairs_of([1, 2, 3, 0], [1, 2, 2, 0], smoothing=3.0)
    alone = torch.tensor([1, 3, 4, 2, 1]).double() / 11
    torch.testing.assert_close(model.alone.exp(), alone)
    every = model.after(torch.arange(5)[:, None], torch.arange(5)).exp()
    assert every[1, 2].item() == pytest.approx((2 + 3 * 4 / 11) / (2 + 3))
    assert every[2, 3].item() == pytest.approx((1 + 3 * 2 / 11) / (2 + 3))
    assert every[2, 1].item() == pytest.approx(3 * 3 / 11 / (2 + 3))
    # Token 4 never begins a pair, so that the shares of single tokens are left.
    torch.testing.assert_close(every[4], alone)
    torch.testing.assert_close(every.sum(1), torch.ones(5, dtype=torch.float64))
    assert pairs_of([1, 0]).after(torch.tensor([1]), torch.tensor([2])).exp().item() == pytest.approx(1 / 6)


def test_the_probability_of_a_sentence_is_that_of_its_first_token_and_of_its_pairs() -> None:
    model = pairs_of([1, 2, 3, 0], [1, 2, 2, 0])
    sentences = torch.tensor([[1.0, 2, 3, 0], [3, 0, 0, 0], [0, 0, 0, 0]])
    each = model.after(torch.tensor([1, 2]), torch.tensor([2, 3]))
    first = (torch.tensor([2, 0]).double() + 1 / 5).div(3).log()  # Both sentences begin with 1.
    found = model.log_probability(sentences)
    torch.testing.assert_close(found[:2], first + torch.stack([each.sum(), torch.zeros((), dtype=torch.float64)]))
    assert found[2] == -torch.inf
    torch.testing.assert_close(model.surprise(sentences), torch.tensor([-each.mean(), 0, 0], dtype=torch.float64))


def test_the_likeliest_sentence_is_the_best_of_all() -> None:
    model = pairs_of([1, 2, 3, 0], [2, 3, 1, 0], [1, 2, 2, 0])
    ratios = torch.randn(3, 5, generator=generator(0, "ratios"), dtype=torch.float64)
    every = torch.cartesian_prod(*[torch.arange(1, 4)] * 3)
    value = ratios[torch.arange(3), every].sum(1) + model.log_probability(every.float())
    found = model.likeliest(ratios, torch.arange(1, 4).expand(3, 3))
    assert torch.equal(found, every[value.argmax()])


def test_rearrangements_are_orders_of_their_kind() -> None:
    rng = generator(0, "orders")
    for kind in range(4):
        for count in (1, 2, 7):
            for _ in range(20):
                order = rearrangement(count, kind, rng)
                assert sorted(order) == list(range(count))
                moved = sum(place != token for place, token in enumerate(order))
                assert kind != 0 or moved in (0, 2)
                if kind == 1:  # Without one token, the others keep their order.
                    assert any(sorted(rest) == rest for rest in ([t for t in order if t != one] for one in order))
                if kind == 3:
                    assert order == [*range(order[0], count), *range(order[0])]


def test_a_rearrangement_moves_the_running_means_too() -> None:
    """Two places of width 2 are swapped after step 2; a third number of the point, a label, stays."""
    swapped = torch.tensor([[[1, 0]]])
    search = Rearranged(
        torch.zeros(1, 5),
        (0.1,),
        0,
        lambda points: points,
        (0.9, 0.999),
        1e-8,
        rearrange=lambda points, lanes, step: swapped,
        at=frozenset({2}),
        each=10,
        shape=torch.Size((1, 4)),
    )
    plain = AdamState(torch.zeros(1, 5), (0.1,), 0, lambda points: points, (0.9, 0.999), 1e-8)
    slope = torch.tensor([[1.0, -2.0, 3.0, 0.5, 4.0]])
    for _ in range(2):
        for one in (search, plain):
            one.step(lambda points, lanes: (points.sum(1), slope + points))
    for name in ("points", "first", "second"):
        assert torch.equal(getattr(search, name), getattr(plain, name)[:, [2, 3, 0, 1, 4]])
    assert search.evaluations.tolist() == [12] and plain.evaluations.tolist() == [2]


def lamp(limit: int, **moves: float) -> Lamp:
    parts = {
        "labels": "last_layer_counts",
        "space": "embeddings",
        "start": "normal_embeddings",
        "distance": "cosine_by_layer",
        "descent": "adam_linear",
        "stop": {"iterations": {"limit": limit}},
        **{"every": 2, "candidates": 8, "after": 0.0, **moves},
    }
    return construct(Lamp, parts)


def test_the_evaluations_of_rearrangements_count() -> None:
    method = lamp(5)
    assert most_evaluations(method) == 5 + 1 + 2 * 8
    answer = method((view(),), generators(0, "attack", [(v,) for v in range(3)]))
    assert answer.evaluations.tolist() == [5 + 1 + 2 * 8] * 3
    less = with_evaluations(method, 20, network().model, (LENGTH,))
    assert less.stop.limit == 4 and most_evaluations(less) == 4 + 1 + 8
    assert lamp(1, every=75, after=0.1).rearranged(400) == {75, 150, 225, 300, 375}
    assert lamp(1, every=75, after=0.5).rearranged(400) == {225, 300, 375}


def test_a_rearrangement_finds_the_order_of_known_tokens() -> None:
    """From the right embeddings in a wrong order, without a step, the right order is found; the ends of a sentence stay."""
    of = view("gpt")
    public = Public(torch.tensor([[1.0, 5, 9, 2, 0, 0], [1, 7, 2, 0, 0, 0]]), torch.tensor([0, 1]))
    of = dataclasses.replace(of.of(torch.tensor([1])), public=public)
    exact = words_of(of)[SENTENCES[1].long()][None, None]
    method = lamp(12, every=2, candidates=20)
    changed = dataclasses.replace(
        method, descent=AdamLinear(learning_rate=1e-12), start=_Fixed(exact[:, :, [0, 3, 2, 1, 4, 5]])
    )
    answer = changed((of,), generators(0, "attack", [(0,)]))
    assert torch.equal(answer.inputs[0, 0], SENTENCES[1])


@dataclasses.dataclass(frozen=True)
class _Fixed:
    """Start from fixed embeddings."""

    inputs: Tensor

    def __call__(self, of: View, rngs: object) -> Tensor:
        return self.inputs


def test_lamp_needs_adam() -> None:
    method = dataclasses.replace(lamp(2), descent=construct(GradientMatching, SLOW).descent)
    with pytest.raises(InputError, match="descent: got LbfgsDescent, expected adam or adam_linear"):
        method((view(),), generators(0, "attack", [(v,) for v in range(3)]))


SLOW = {
    "labels": "last_layer",
    "space": "embeddings",
    "start": "normal_embeddings",
    "distance": "tag",
    "descent": "lbfgs",
}


def test_tag_recovers_short_sentences_of_a_tiny_network() -> None:
    method = limited(resolve("attacks", Attack, "tag")[1].method, 150)
    method = dataclasses.replace(method, descent=AdamLinear(learning_rate=0.5))
    answer: Reconstruction = method((view("gpt", layers=2),), generators(0, "attack", [(v,) for v in range(3)]))
    assert (answer.inputs[:, 0] == SENTENCES).float().mean() >= 0.875
    assert torch.equal(answer.labels[:, 0], LABELS)
    assert answer.evaluations.tolist() == [151] * 3


@pytest.mark.parametrize("rate", [1e-4, 0.1])
def test_embeddings_explain_local_steps_but_for_the_word_embeddings_that_move(rate: float) -> None:
    """The first local step moves the embeddings of the tokens that the next one reads; a guess keeps them as they were sent."""
    of = view(steps=3, rate=rate)
    exact = (words_of(of)[SENTENCES.long()] * (SENTENCES != 0)[..., None])[None]
    answer = of.respond(exact, one_hot(LABELS, 2)[None].float())
    (unreached,) = Embeddings()(of).unreached
    names = [name for name in of.update if name != unreached]
    rest = torch.cat([(answer[name] - of.update[name]).flatten() for name in names])
    share = rest.norm() / torch.cat([of.update[name].flatten() for name in names]).norm()
    assert share < 1e-2 if rate < 0.1 else 0.05 < share < 1


def test_other_data_are_refused_by_each_part() -> None:
    model = torch.nn.Linear(5, 2)
    weights = {n: p.detach() for n, p in model.named_parameters()}
    of = View("type-1", Network(model, weights), {n: w[None] for n, w in weights.items()}, 1, (5,), 2, 0.1)
    rngs = generators(0, "attack", [(0,)])
    for refused in (
        lambda: Embeddings()(of),
        lambda: NormalEmbeddings()(of, rngs),
        lambda: EmbeddingLength(weight=1.0)(torch.zeros(1, 1, 5), of, torch.arange(1)),
        lambda: lengths(of),
    ):
        with pytest.raises(InputError, match=r"needs texts, got inputs of shape \(5,\)"):
            refused()


def test_the_kinds_of_an_attack_are_those_that_all_its_parts_can_read() -> None:
    assert needs_of(None).kinds == KINDS
    assert (Needs(kinds=PLAIN) | Needs(kinds=(TEXT,))).kinds == ()
    kinds = {name: resolve("attacks", Attack, name)[1].needs.kinds for name in ATTACKS}
    assert kinds == ATTACKS


ATTACKS = {
    "autoleak": PLAIN,
    "identification": KINDS,
    "tag": (TEXT,),
    "lamp": (TEXT,),
    "dager": (TEXT,),
    "cpl": PLAIN,
    "analytic_fc": PLAIN,
    "feature_inversion": PLAIN,
    "lmmse": PLAIN,
    "imprint": PLAIN,
    "scale_mia": ("image",),
    "seer": ("image",),
    "rows": PLAIN,
    "spear": PLAIN,
    "r_gap": PLAIN,
    "april": ("image",),
    "patch_embedding": ("image",),
    "cocktail_party": PLAIN,
    "fishing": PLAIN,
    "tableak": ("tabular",),
}


@pytest.mark.parametrize(
    ("attack", "dataset", "words"),
    [
        ("cpl", "reviews", "attack: 'cpl' needs pictures or tables, 'reviews' holds texts; try --attack tag"),
        ("tableak", "reviews", "attack: 'tableak' needs tables, 'reviews' holds texts; try --attack tag"),
        ("imprint", "reviews", "attack: 'imprint' needs pictures or tables, 'reviews' holds texts"),
        (
            "tag",
            "digits",
            "attack: 'tag' needs texts, 'digits' holds pictures; try --attack autoleak, or --dataset rev",
        ),
        ("lamp", "cancer", "attack: 'lamp' needs texts, 'cancer' holds tables"),
    ],
)
def test_an_attack_on_another_kind_of_data_is_refused_in_one_line(attack: str, dataset: str, words: str) -> None:
    with pytest.raises(InputError) as refused:
        plan_cell(Request(attack=attack, dataset=dataset, victims=2, candidates=4), None)
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("attack", "trainable", "missing"),
    [
        ("dager", "head", "the first two attention layers"),
        ("dager", "blocks:3", "the first two attention layers"),
        ("token_likelihood", "no_embeddings", "word and position embeddings"),
        ("token_likelihood", "lora:r=8", "word and position embeddings"),
        ("bag_of_words", "lora:r=8", "word embeddings"),
    ],
)
def test_an_attack_on_what_is_not_trained_is_refused(attack: str, trainable: str, missing: str) -> None:
    request = Request(attack=attack, dataset="reviews", trainable=trainable, victims=2, candidates=4)
    with pytest.raises(
        InputError, match=f"attack: '{attack}' reads the gradients of {missing}, which --trainable {trainable}"
    ):
        plan_cell(request, None)


@pytest.mark.parametrize(
    ("attack", "trainable"),
    [("dager", "lora:r=8"), ("dager", "blocks:4"), ("dager", "no_embeddings"), ("autoleak", "head"), ("tag", "head")],
)
def test_an_attack_on_what_is_trained_is_planned(attack: str, trainable: str) -> None:
    request = Request(attack=attack, dataset="reviews", trainable=trainable, victims=2, candidates=4)
    assert plan_cell(request, None).request.trainable == trainable


@pytest.mark.parametrize(
    ("dataset", "threshold", "words"),
    [
        ("reviews", "rmse<=0.1", "success: got 'rmse<=0.1', but 'reviews' holds texts, without an RMSE"),
        (
            "digits",
            "edit_distance<=0.1",
            "success: got 'edit_distance<=0.1', but 'digits' holds pictures, without an edit",
        ),
        ("digits", "exact", "but 'digits' holds pictures"),
    ],
)
def test_a_threshold_of_another_measure_is_refused(dataset: str, threshold: str, words: str) -> None:
    request = Request(attack="autoleak", dataset=dataset, victims=2, candidates=4, success=success(threshold))
    with pytest.raises(InputError, match=words):
        plan_cell(request, None)


@pytest.mark.parametrize(("threshold", "eta"), [("edit_distance<=0.1", 0.1), ("exact", 0.0)])
def test_a_threshold_of_texts_is_an_edit_distance(threshold: str, eta: float) -> None:
    cell = plan_cell(
        Request(attack="tag", dataset="reviews", victims=2, candidates=4, success=success(threshold)), None
    )
    assert cell.settings.success == eta
