"""Frozen parameters: which are trained, that the others keep their values, and the gradients of LoRA in closed form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from leakbench.cell import Request, hand_out, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Network
from leakbench.defense import Defense
from leakbench.defense.transform import Stations
from leakbench.engine.chain import chain_of
from leakbench.experiment.stage_train import fresh_network
from leakbench.federated.client import Examples, client_update, example_signal
from leakbench.federated.leakage import leak
from leakbench.federated.simulate import train
from leakbench.models import build, one_hot, parameters
from leakbench.models.gates import gated_biases
from leakbench.models.language import LanguageModel
from leakbench.models.trainable import trainable_of, with_trainable
from tests.command_line import called
from tests.transformer_folders import KINDS, folder

LENGTH, TOKENS, CLASSES = 8, 300, 3
RULES = ("head", "no_embeddings", "blocks:1", "lora:r=2")
PLAIN = Defense(title="t", cite="c", unit="example")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    path: Path = tmp_path_factory.mktemp("folders")
    for kind in KINDS:
        folder(kind, path / kind)
    return path


def network(place: Path, kind: str, rule: str, dtype: torch.dtype = torch.float64) -> Network:
    shape, rng = (LENGTH, TOKENS), generator(0, "model")
    model = build(f"hf:{place / kind}", shape, CLASSES, rng, trainable=rule).to(dtype)
    return Network(model, parameters(model))


def sentences(*lanes: int) -> tuple[Tensor, Tensor]:
    rng = generator(1, "data")
    inputs = torch.randint(1, TOKENS, (*lanes, LENGTH), generator=rng).double()
    inputs[..., -2:] = 0
    return inputs, one_hot(torch.randint(CLASSES, lanes, generator=rng), CLASSES).double()


def base(name: str) -> str:
    return name.replace(".base_layer", "")


# Rules


def test_rules_have_a_standard_form_and_others_are_refused():
    assert [str(trainable_of(text)) for text in ("all", "blocks:02", "lora:r=8")] == ["all", "blocks:2", "lora:r=8"]
    for text in (
        "",
        "lora",
        "lora:8",
        "lora:r=0",
        "lora:r=-1",
        "blocks:",
        "blocks:0",
        "blocks:1.5",
        "heads",
        "lora:r=²",
    ):
        with pytest.raises(
            InputError, match=r"^trainable: got .*expected all, head, no_embeddings, blocks:N, lora:r=N or adapters:r=N"
        ):
            trainable_of(text)


@pytest.mark.parametrize("kind", KINDS)
def test_each_rule_trains_what_it_says_and_changes_no_first_weight(kind, place):
    whole = network(place, kind, "all").parameters
    head = {"classifier.weight", "classifier.bias"}
    last = {n for n in whole if any(f".{blocks}.1." in n for blocks in ("h", "layer", "layers"))}
    assert last
    embeddings = {n for n in whole if any(part in n for part in ("wte", "wpe", "embed_tokens", "_embeddings."))}
    expected = {"head": head, "blocks:1": head | last, "no_embeddings": set(whole) - embeddings}
    for rule, names in expected.items():
        found = network(place, kind, rule)
        assert set(found.parameters) == names and set(found.frozen) == set(whole) - names
        assert all(torch.equal(p, whole[n]) for n, p in (found.parameters | found.frozen).items())
    lora = network(place, kind, "lora:r=2")
    assert {n for n in lora.parameters if "lora_" not in n} == head
    added = [n for n in lora.parameters if "lora_A" in n]
    assert len(added) == (2 if kind == "gpt2" else 4)
    assert all(torch.equal(p, whole[base(n)]) for n, p in (lora.parameters | lora.frozen).items() if "lora_" not in n)


def test_what_a_network_does_not_have_is_refused(place):
    for rule, message in (
        ("blocks:1", "--model cnn has no blocks"),
        ("no_embeddings", "the network has no embeddings"),
    ):
        with pytest.raises(InputError, match=f"^trainable: got '{rule}', .*{message}"):
            build("cnn", (1, 12, 12), 2, torch.Generator(), trainable=rule)
    with pytest.raises(InputError, match=r"--model hf:\S+ has 2 blocks; expected at most that"):
        network(place, "gpt2", "blocks:3")


# Gradients


@pytest.mark.parametrize("rule", ["head", "no_embeddings", "blocks:1"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_are_those_of_the_whole_network(kind, rule, place):
    inputs, targets = sentences(2, 1, 2)
    examples = Examples(inputs, targets, torch.ones(2, 1, 2).double(), 2)
    some, whole = (example_signal(network(place, kind, each), examples, 0).grads for each in (rule, "all"))
    assert set(some) < set(whole)
    assert all(torch.allclose(some[n], whole[n], atol=1e-12) for n in some)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradients_of_lora_at_the_first_weights(kind, place):
    """dA = 0 and dB = dW^T A^T = delta^T X A^T, whose rank is at most r; see the module."""
    inputs, targets = sentences(1, 1, 2)
    examples = Examples(inputs, targets, torch.ones(1, 1, 2).double(), 2)
    lora, plain = network(place, kind, "lora:r=2"), network(place, kind, "all")
    assert torch.equal(lora.model(inputs[0, 0]), plain.model(inputs[0, 0]))
    found, whole = (example_signal(each, examples, 0).grads for each in (lora, plain))
    ranks = []
    for name in [n for n in found if "lora_A" in n]:
        other = name.replace("lora_A", "lora_B")
        weight = whole[name.replace(".lora_A.default", "")]  # dW (out, in), or (in, out) in GPT-2
        weight = weight.mT if kind == "gpt2" else weight
        assert not found[name].any() and found[other].abs().sum() > 0
        assert torch.allclose(found[other], weight @ lora.parameters[name].T, atol=1e-12)
        ranks.append([int(torch.linalg.matrix_rank(each[0, 0])) for each in (found[other], weight)])
    # The last block of a network that reads one token has fewer.
    assert max(rank for rank, _ in ranks) == 2 < max(rank for _, rank in ranks)


@pytest.mark.parametrize("kind", KINDS)
def test_lora_begins_with_a_linear_layer_and_zeros(kind, place):
    """A is uniform within 1 / sqrt(its inputs); neither it nor the library moves the global generator."""
    model = network(place, kind, "all").model
    state = torch.get_rng_state()
    found = with_trainable(model.train(), "lora:r=2", generator(0, "lora"), ())
    assert torch.equal(torch.get_rng_state(), state) and not found.training
    for name, p in parameters(found).items():
        if "lora_A" in name:
            bound = p.shape[1] ** -0.5
            assert p.shape[0] == 2 and 0.9 * bound < float(p.max()) <= bound and -bound <= float(p.min()) < -0.9 * bound
        assert "lora_B" not in name or not p.any()


def test_after_a_step_the_gradient_of_a_is_in_the_span_of_the_inputs(place):
    inputs, targets = sentences(1, 1, 1)
    found = network(place, "bert", "lora:r=2")
    state = {n: p + 0.1 if "lora_B" in n else p for n, p in found.parameters.items()}
    examples = Examples(inputs, targets, torch.ones(1, 1, 1).double(), 1)
    grads = example_signal(Network(found.model, state), examples, 0).grads
    entered: list[Tensor] = []
    layer = found.model.get_submodule("transformer.encoder.layer.0.attention.self.query")
    handle = layer.register_forward_pre_hook(lambda _, given: entered.append(given[0][0]))
    found.model(inputs[0, 0])
    handle.remove()
    da = grads["transformer.encoder.layer.0.attention.self.query.lora_A.default.weight"][0, 0]
    rows = entered[0][: LENGTH - 2]  # Padding has no effect on the loss.
    assert da.abs().sum() > 0 and torch.linalg.matrix_rank(da) <= 2
    assert torch.linalg.matrix_rank(torch.cat([rows, da])) == torch.linalg.matrix_rank(rows)


@pytest.mark.parametrize("rule", RULES)
def test_local_steps_are_those_of_plain_training(rule, place):
    start = network(place, "gpt2", rule)
    inputs, targets = sentences(1, 3, 2)
    examples = Examples(inputs, targets, torch.ones(1, 3, 2).double(), 2)
    update = client_update(start, examples, 0.5, Stations(), Clock(0, 0, 1, 3), None).grads
    twin = network(place, "gpt2", rule).model
    optimiser = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], 0.5)
    for x, y in zip(inputs[0], targets[0], strict=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(twin(x), y).backward()
        optimiser.step()
    trained = parameters(twin)
    assert trained.keys() == update.keys()
    assert all(torch.allclose(update[n][0, 0], trained[n] - p, atol=1e-12) for n, p in start.parameters.items())
    observed = leak("type-1", start, inputs[:, None], targets[:, None], 0.5, Stations(), Clock(0, 0, 1, 3), None)
    assert all(torch.allclose(observed[n][0], (start.parameters[n] - trained[n]) / 1.5, atol=1e-12) for n in observed)


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_the_head_of_a_network_of_pictures(name):
    shape = (1, 12, 12)
    whole, head = (build(name, shape, CLASSES, generator(0, "model"), trainable=t) for t in ("all", "head"))
    assert chain_of(whole) is not None and chain_of(head) is None  # A chain computes all gradients.
    x = torch.rand(1, 1, 3, *shape, generator=generator(0, "x"))
    y = one_hot(torch.tensor([[[0, 1, 2]]]), CLASSES)
    some, all_of = (
        example_signal(Network(model, parameters(model)), Examples(x, y, torch.ones(1, 1, 3), 3), 0).grads
        for model in (head, whole)
    )
    assert set(some) == set(list(all_of)[-len(some) :]) and all(
        torch.allclose(some[n], all_of[n], atol=1e-6) for n in some
    )
    assert set(gated_biases(head, shape)) == set(gated_biases(whole, shape))


# Training


@pytest.mark.parametrize("rule", RULES)
def test_training_moves_only_what_is_trained(rule, place):
    asked = Request(
        dataset="reviews",
        model=f"hf:{place / 'bert'}",
        trainable=rule,
        attack="identification",
        protocol="live",
        victims=2,
        candidates=5,
        taps=("type-1",),
        train_rounds=2,
        clients=4,
        clients_per_round=2,
        local_iterations=1,
        batch=2,
        learning_rate=1.0,
    )
    cell = resolve_cell(asked, None)
    assert cell.settings.trainable == rule
    (model, start), (twin, again) = (fresh_network(cell, trained=True) for _ in range(2))
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    before = {n: p.clone() for n, p in model.named_parameters()}
    s = cell.settings
    rounds = list(train(Network(model, start), cell.data, hand_out(cell), s.federation, PLAIN, s.seed))
    last = rounds[-1]
    assert set(last.parameters) == set(start) == set(again)
    moved = {n for n, p in last.parameters.items() if not torch.equal(p, start[n])}
    assert "classifier.weight" in moved and all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    for name, p in last.parameters.items():
        twin.get_parameter(name).data.copy_(p)
    with torch.no_grad():
        logits = twin(cell.data.test_inputs)
    right = (logits.argmax(1) == cell.data.test_targets).float().mean()
    assert float(right) == pytest.approx(last.accuracy)
    assert isinstance(model, LanguageModel)


def test_the_rule_is_part_of_the_identity(place):
    def hashed(rule: str) -> str:
        return resolve_cell(Request(dataset="digits", attack="identification", trainable=rule), None).hash

    assert (
        hashed("all") == resolve_cell(Request(dataset="digits", attack="identification"), None).hash != hashed("head")
    )


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_a_run_keeps_only_trained_parameters(rule, place, tmp_path, monkeypatch, capsys):
    from safetensors import safe_open  # noqa: PLC0415

    words = ["run", "--dataset", "reviews", "--model", f"hf:{place / 'llama'}", "--attack", "identification"]
    words += [
        "--victims",
        "2",
        "--candidates",
        "5",
        "--train-rounds",
        "1",
        "--clients",
        "4",
        "--clients-per-round",
        "2",
    ]
    words += ["--local-iterations", "2", "--batch", "2", "--taps", "type-2,type-1", "--protocol", "live"]
    words += ["--leak-rounds", "0,last", "--trainable", rule, "--quiet", "--out", str(tmp_path / "run")]
    assert called(monkeypatch, capsys, *words)[0] == 0
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["summary"]["trainable"] == manifest["settings"]["trainable"] == rule
    with safe_open(tmp_path / "run" / "model.safetensors", framework="pt") as file:
        names = {name.removeprefix("model.") for name in file.keys() if name.startswith("model.")}  # noqa: SIM118
    assert names == set(network(place, "llama", rule).parameters)
