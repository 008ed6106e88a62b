"""The loss of next tokens: against the library's own, its accuracy, tied and own heads, and what does not go with it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from leakbench.cell import Request, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.task import task_of
from leakbench.core.types import Clock, Network
from leakbench.defense.transform import Stations
from leakbench.experiment.stage_train import fresh_network
from leakbench.federated.client import Examples, client_update, example_signal
from leakbench.federated.simulate import accuracy
from leakbench.models import build, one_hot, parameters
from leakbench.models.language import NextToken, NextTokens
from tests.command_line import called
from tests.transformer_folders import folder

LENGTH, TOKENS = 8, 300
CAUSAL = ("gpt2", "llama")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("folders")  # type: ignore[no-any-return]


def both(place: Path, kind: str, rule: str = "all") -> tuple[NextToken, nn.Module]:
    own = folder(kind, place / kind).double()
    rng = generator(0, "model")
    model = build(f"hf:{place / kind}", (LENGTH, TOKENS), 1, rng, trainable=rule, loss="next_token").double()
    assert isinstance(model, NextToken) and isinstance(task_of(model), NextTokens)
    return model, own


def sentences(*lanes: int) -> Tensor:
    inputs = torch.randint(1, TOKENS, (*lanes, LENGTH), generator=generator(1, "data")).double()
    inputs[..., 0, 5:] = 0
    return inputs


def theirs(own: nn.Module, x: Tensor) -> Tensor:
    """Return the loss of each sentence alone (n,), from the library's logits of the sentence without padding."""
    found = []
    for row in x.long():
        numbers = row[row != 0][None]
        found.append(nn.functional.cross_entropy(own(input_ids=numbers).logits[0, :-1], numbers[0, 1:]))
    return torch.stack(found)


@pytest.mark.parametrize("kind", CAUSAL)
def test_losses_and_gradients_are_those_of_the_library(kind, place):
    model, own = both(place, kind)
    assert (model.head is None) == (kind == "gpt2")  # GPT-2 ties its head to the embeddings, LLaMA does not.
    x = sentences(3)
    found = task_of(model).losses(model(x), x, x)
    assert torch.allclose(found, theirs(own, x), atol=1e-6)
    whole = x[1:2].long()  # The library's own loss is in single precision.
    assert torch.allclose(found[1], own(input_ids=whole, labels=whole).loss.double(), atol=1e-5)
    examples = Examples(
        x[None, None], one_hot(torch.zeros(1, 1, 3).long(), 1).double(), torch.ones(1, 1, 3).double(), 3
    )
    grads = example_signal(Network(model, parameters(model)), examples, 0).grads
    names = {f"transformer.{name}": p for name, p in own.base_model.named_parameters()}
    names |= {"head.weight": own.lm_head.weight}
    assert "classifier.weight" not in grads
    for i in range(3):
        own.zero_grad()
        theirs(own, x[i : i + 1]).sum().backward()
        for name, g in grads.items():
            assert torch.allclose(g[0, i], names[name].grad, atol=1e-6), name


def test_local_steps_are_those_of_plain_training(place):
    model, own = both(place, "gpt2")
    x = sentences(1, 3, 2)
    examples = Examples(x, torch.ones(1, 3, 2, 1).double(), torch.ones(1, 3, 2).double(), 2)
    start = Network(model, parameters(model))
    update = client_update(start, examples, 0.5, Stations(), Clock(0, 0, 1, 3), None).grads
    optimiser = torch.optim.SGD(own.parameters(), 0.5)
    for batch in x[0]:
        optimiser.zero_grad()
        theirs(own, batch).mean().backward()
        optimiser.step()
    for name, p in own.base_model.named_parameters():
        moved = p.detach() - start.parameters[f"transformer.{name}"]
        assert torch.allclose(update[f"transformer.{name}"][0, 0], moved, atol=1e-6), name


def test_accuracy_is_the_share_of_next_tokens(place):
    model, _ = both(place, "gpt2")
    x = sentences(70)
    with torch.no_grad():
        logits = model(x)
        right = asked = 0
        for row, answers in zip(x.long(), logits.argmax(-1), strict=True):
            many = int((row != 0).sum())
            right += int((answers[: many - 1] == row[1:many]).sum())
            asked += many - 1
        losses = task_of(model).losses(logits, x, x)
    found = accuracy(model, parameters(model), x, torch.zeros(70).long())
    assert found == (right / asked, pytest.approx(float(losses.mean())))
    nan = {name: p * torch.nan for name, p in parameters(model).items()}
    assert accuracy(model, nan, x, torch.zeros(70).long())[0] == 0


def test_a_sentence_of_one_token_has_no_loss_and_no_gradient(place):
    model, _ = both(place, "gpt2")
    x = torch.zeros(1, LENGTH).double()
    x[0, 0] = 3
    assert (
        float(task_of(model).losses(model(x), x, x).detach()) == 0 and task_of(model).answered(model(x), x, x)[1] == 0
    )


def test_trained_parts_with_a_tied_and_an_own_head(place):
    with pytest.raises(InputError, match="trainable: got 'head', but the network has no separate last layer"):
        both(place, "gpt2", "head")
    assert set(parameters(both(place, "llama", "head")[0])) == {"head.weight"}
    for kind in CAUSAL:
        lora = parameters(both(place, kind, "lora:r=2")[0])
        assert {n for n in lora if "lora_" not in n} == ({"head.weight"} if kind == "llama" else set())


def asked(model: str, **fields: object) -> Request:
    few = {"victims": 2, "candidates": 5, "train_rounds": 0, "taps": ("type-1",), "attack": "identification"}
    few |= {"dataset": "reviews", "loss": "next_token", "networks": 1, "leak_model": model}
    return Request(model=model, **{**few, **fields})  # type: ignore[arg-type]


def test_the_data_then_have_no_classes():
    cell, plain = (resolve_cell(asked("gpt_tiny", loss=loss), None) for loss in ("next_token", "class"))
    assert cell.data.class_names == ("text",) and not cell.data.train_targets.any()
    assert torch.equal(cell.data.train_inputs, plain.data.train_inputs) and cell.hash != plain.hash
    tokens = cell.data.test_inputs[:, 1:].flatten()
    assert torch.equal(cell.data.answers, tokens[tokens != 0].long())
    assert torch.equal(plain.data.answers, plain.data.test_targets)
    model = fresh_network(cell, trained=True)[0]
    assert isinstance(model, NextToken) and model.head is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "bert_tiny"}, "takes a causal network, 'bert_tiny' is an encoder"),
        ({"dataset": "digits", "model": None, "leak_model": None}, "next_token takes texts, 'digits' has none"),
        (
            {"loss": "next_tokens"},
            "got 'next_tokens', expected class or next_token or squared or package.module:function; did",
        ),
        ({"defense": "soteria"}, "has no classes, which the defense 'soteria' reads"),
        ({"defense": "precode"}, "has no classes, which the defense 'precode' reads"),
        ({"attack": "tag"}, "has no classes, and 'tag' takes a layer of classes"),
        ({"attack": "lamp_l1_l2"}, "has no classes, and 'lamp_l1_l2' takes a layer of classes"),
    ],
)
def test_what_reads_classes_is_refused(fields, message):
    with pytest.raises(InputError, match=f"^loss: .*{message}"):
        resolve_cell(dataclasses.replace(asked("gpt_tiny"), **fields), None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"leak_model": "cnn"}, "leak-model: 'cnn' takes no texts, got a text of 32 tokens"),
        ({"dataset": "digits", "leak_model": "gpt_tiny", "model": None}, "leak-model: 'gpt_tiny' takes texts"),
    ],
)
def test_the_message_about_a_leaking_network_of_other_data_names_its_option(fields, message):
    with pytest.raises(InputError, match=f"^{message}"):
        resolve_cell(dataclasses.replace(asked("gpt_tiny"), **{"loss": "class"} | fields), None)


def test_a_guess_of_embeddings_is_refused(place):
    model, _ = both(place, "gpt2")
    x = torch.zeros(1, LENGTH, 32).double()
    with pytest.raises(InputError, match="a guess of embeddings"):
        task_of(model).losses(model(x), x, x)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAUSAL)
def test_training_learns_and_a_run_says_so(kind, place, tmp_path, monkeypatch, capsys):
    folder(kind, place / kind)
    words = ["run", "--dataset", "reviews", "--model", f"hf:{place / kind}", "--attack", "identification"]
    words += [
        "--victims",
        "2",
        "--candidates",
        "5",
        "--train-rounds",
        "4",
        "--learning-rate",
        "0.5",
        "--loss",
        "next_token",
    ]
    words += ["--local-iterations", "10", "--taps", "type-1", "--protocol", "live", "--quiet", "--out", str(tmp_path)]
    assert called(monkeypatch, capsys, *words)[0] == 0
    summary = json.loads((tmp_path / "manifest.json").read_text(encoding="utf-8"))["summary"]
    assert summary["loss"] == "next_token" and 0 < summary["chance"] < 0.2
    import pandas as pd  # noqa: PLC0415

    losses = pd.read_parquet(tmp_path / "rounds.parquet")["loss"]
    assert losses.is_monotonic_decreasing and losses.iloc[-1] < 5.7  # log(291) = 5.67 at random weights


def test_a_network_of_pictures_takes_no_texts():
    with pytest.raises(InputError, match="'mlp' takes no texts, got a text of 32 tokens; expected one of gpt_tiny"):
        resolve_cell(dataclasses.replace(asked("gpt_tiny"), loss="class", leak_model="mlp"), None)
