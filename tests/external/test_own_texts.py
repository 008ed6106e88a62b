"""`leakbench attack --tokens` reads an update of your own language model."""

import dataclasses
import io
import json
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import nn

import leakbench
from leakbench import models
from leakbench.core.errors import InputError
from leakbench.data.find import load_dataset
from leakbench.data.vocabulary import Vocabulary
from leakbench.external import certificate
from leakbench.external.outcome import print_rows
from leakbench.models.language import LanguageModel
from tests.command_line import called

LENGTH = 32


def build() -> LanguageModel:
    library = pytest.importorskip("transformers")
    none = {"bos_token_id": None, "eos_token_id": None}
    config = library.GPT2Config(vocab_size=4096, n_positions=LENGTH, n_embd=64, n_layer=3, n_head=2, **none)
    torch.manual_seed(0)
    return LanguageModel(library.GPT2Model(config), classes=2, causal=True, padding=0, length=LENGTH)


@pytest.fixture(scope="module")
def recorded():
    """Return (network, {parameter: gradient}, (sentences (1, 1, T), labels (1, 1))) of a client with one sentence."""
    model, reviews = build().eval(), load_dataset("reviews")[2]
    x, y = reviews.train_inputs[:1], reviews.train_targets[:1]
    nn.functional.cross_entropy(model(x), y).backward()
    return model, {name: p.grad for name, p in model.named_parameters()}, (x[None], y[None])


def attacked(recorded, **given):
    model, update, truth = recorded
    known = {"shape": (LENGTH,), "classes": 2, "dataset": "reviews", "truth": truth, "attack": "dager"}
    return leakbench.attack_update(model, update, **(known | given))


def test_a_sentence_is_found_and_scored_as_in_a_run(recorded):
    found = attacked(recorded)
    row = found.rows.iloc[0]
    assert row["edit_distance"] == 0 and row["exact_match"] == 1 and row["null_edit_distance"] > 0.5
    assert found.sentences == ("effective but too tepid biopic",) and found.verdict == "reconstructs"
    assert row["identified"] == row["identified_by_reconstruction"] == 1
    console = Console(file=io.StringIO(), width=200)
    print_rows([found], console, verbose=True)
    assert f"success is an edit distance of at most {found.summary['eta']:.3g}" in console.file.getvalue()


@pytest.mark.parametrize("attack", ["dager", "token_likelihood"])
def test_an_update_of_zeros_has_no_sentence(recorded, attack):
    model, update, _ = recorded
    zeros = {name: torch.zeros_like(value) for name, value in update.items()}
    with pytest.warns(UserWarning, match="the update is zero everywhere"):
        assert not attacked((model, zeros, None), attack=attack).sentences


def test_the_worst_case_of_several_attacks_is_the_one_for_texts(recorded):
    assert set(attacked(recorded, attack="autoleak").searches) == {"dager"}


@pytest.mark.parametrize("attack", ["tag", "lamp", "lamp_l1_l2", "dager", "bag_of_words", "token_likelihood"])
def test_every_attack_of_texts_takes_an_update_of_ones_own(recorded, attack):
    """With the progress of searches, which a run does not have."""
    steps = {"iterations": 3} if attack in ("tag", "lamp", "lamp_l1_l2") else {}
    assert attacked(recorded, attack=attack, **steps).answer.inputs.shape == (1, 1, LENGTH)


def test_only_a_sentence_with_the_gradient_of_the_update_is_certified(recorded):
    assert attacked(recorded, truth=None).certified.tolist() == [True]
    model, update, _ = recorded
    # The attack does not read the bias.
    other = update | {"transformer.ln_f.bias": 1.01 * update["transformer.ln_f.bias"]}
    found = attacked((model, other, None), truth=None)
    assert found.sentences == ("effective but too tepid biopic",)
    assert found.certified.tolist() == [False] and not found.leaks
    assert str(found).startswith("NOT SCORED: 1 reconstruction") and "cannot be scored" in str(found)


@pytest.mark.parametrize(("members", "apart", "right"), [(1, 9.8e-4, True), (32, 9.8e-4, False), (32, 2e-5, True)])
def test_the_certificate_of_a_batch_of_weights_is_stricter(monkeypatch, members, apart, right):
    """Two swapped tokens of one of 32 sentences change the mean gradient by .00098, while the weights are rounded by as much."""
    monkeypatch.setattr(certificate, "distance_of_guess", lambda *_: (torch.tensor([apart]), None, None))
    monkeypatch.setattr(certificate, "rounding_of", lambda _: SimpleNamespace(share=torch.tensor([0.01])))
    view = SimpleNamespace(update={"w": torch.ones(1, 2)}, examples=members, knowledge=SimpleNamespace(reads="weights"))
    answer = SimpleNamespace(inputs=torch.ones(1, members, 4), labels=torch.zeros(1, members, dtype=torch.int64))
    assert certificate.certified(view, answer).tolist() == [right]


def test_a_change_of_weights_is_certified(recorded):
    model, update, _ = recorded
    change = {name: (p.detach() - update[name]) - p.detach() for name, p in model.named_parameters()}
    found = attacked((model, change, None), truth=None, learning_rate=1.0)
    assert found.certified.tolist() == [True] and found.leaks and found.verdict is None


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"dataset": "digits"}, "dataset: got 'digits', expected texts"),
        ({"dataset": None}, "dataset: got nothing, expected texts"),
        ({"attack": "cpl"}, "needs pictures or tables, 'reviews' holds texts"),
        ({"shape": (16,)}, "truth: inputs have the shape"),
        ({"shape": (16,), "truth": None}, "tokens: got 16, 'reviews' has sentences of 32"),
    ],
)
def test_what_does_not_fit_is_refused(recorded, given, says):
    with pytest.raises(InputError, match=says):
        attacked(recorded, **given)


@pytest.mark.parametrize(
    ("change", "says"),
    [(0.5, "inputs are not whole"), (4096.0, "from 40.* to .*, expected numbers of tokens from 0 to 4095")],
)
def test_a_truth_of_other_numbers_is_refused(recorded, change, says):
    x, y = recorded[2]
    with pytest.raises(InputError, match=says):
        attacked(recorded, truth=(x + change, y))


def test_another_padding_than_the_vocabularys_is_refused(recorded):
    model, update, _ = recorded
    other = LanguageModel(model.transformer, classes=2, causal=True, padding=7, length=LENGTH)
    with pytest.raises(InputError, match=r"^model: padding: got token 7, expected 0, which fills up .* 'reviews'"):
        attacked((other, update, None))


def test_a_truth_of_padding_alone_is_refused(recorded):
    x, y = recorded[2]
    with pytest.raises(InputError, match=r"^truth: inputs\[0, 0\]: got 0 alone, which is padding"):
        attacked(recorded, truth=(torch.zeros_like(x), y))


def test_texts_for_another_network_are_refused():
    model = nn.Sequential(nn.Linear(LENGTH, 2))
    update = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    with pytest.raises(InputError, match="'reviews' holds texts, but the network is not a language model"):
        leakbench.attack_update(model, update, shape=(LENGTH,), classes=2, dataset="reviews")


def test_the_command_prints_sentences_and_the_page_shows_them(recorded, tmp_path, monkeypatch, capsys):
    model, update, _ = recorded
    monkeypatch.chdir(tmp_path)
    save_file(dict(model.state_dict()), "before.safetensors")
    save_file(update, "update.safetensors")
    words = ["attack", "--model", "tests.external.test_own_texts:build", "--before", "before.safetensors"]
    words += ["--update", "update.safetensors", "--classes", "2", "--dataset", "reviews", "--attack", "dager"]
    code, printed, said = called(monkeypatch, capsys, *words, "--tokens", str(LENGTH), "--out", "found")
    assert code == 0, said
    assert "found: effective but too tepid biopic" in printed and "Not tried" not in printed
    assert printed.startswith("RECONSTRUCTED, certified: the gradient of this sentence equals the update.")
    assert "notes." in printed and "reasons of the verdicts" not in printed
    page = (tmp_path / "found" / "report.html").read_text()
    assert "RECONSTRUCTED, certified: the gradient of the sentences below" in page and "##ic" in page
    assert "Each token of a reconstruction is" not in page
    code, printed, _ = called(monkeypatch, capsys, *words, "--tokens", str(LENGTH), "--json")
    found = json.loads(printed)
    assert found["sentences"] == ["effective but too tepid biopic"] and found["certified"] == [True]
    for wrong, says in (
        (["--tokens", "32", "--shape", "32"], "got --tokens too; give one of --shape or --tokens"),
        ([], "got none; give one of --shape or --tokens"),
        (["--tokens", "32", "--mean", ".5", "--std", ".5"], "mean: tokens are not normalised"),
    ):
        code, _, said = called(monkeypatch, capsys, *words, *wrong)
        assert code == 2 and says in said and said.count("\n") == 1


SENTENCE = "a moving and funny film about two brothers"


def written(name: str, model: nn.Module, words: Vocabulary) -> list[str]:
    """Write the files of a client with one sentence, and return the options that name them."""
    x, y = words.encode([SENTENCE], LENGTH), torch.tensor([1])
    gradient = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    named = dict(zip((n for n, _ in model.named_parameters()), gradient, strict=True))
    save_file({n: p.detach() for n, p in model.named_parameters()}, f"{name}_before.safetensors")
    save_file(named, f"{name}_update.safetensors")
    save_file({"inputs": x[None], "labels": y[None]}, f"{name}_truth.safetensors")
    files = ["--before", f"{name}_before.safetensors", "--update", f"{name}_update.safetensors"]
    return ["attack", *files, "--tokens", str(LENGTH), "--classes", "2", "--attack", "dager", "--dataset", "reviews"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder of Hugging Face with a small GPT-2 at random weights and its own byte-level tokenizer."""
    monkeypatch.chdir(tmp_path)
    library, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<|endoftext|>"], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator(load_dataset("reviews")[2].sentences[0], trainer)
    none = {"bos_token_id": None, "eos_token_id": None}
    config = library.GPT2Config(vocab_size=600, n_positions=LENGTH, n_embd=64, n_layer=3, n_head=2, **none)
    torch.manual_seed(0)
    library.GPT2Model(config).save_pretrained("gpt")
    tokenizer.save("gpt/tokenizer.json")
    return tmp_path / "gpt"


def test_a_network_of_a_folder_is_attacked_in_the_folders_tokens(folder, monkeypatch, capsys):
    words = Vocabulary.of_folder(folder)
    model = models.build(
        f"hf:{folder}", (LENGTH, words.size), 2, torch.Generator().manual_seed(5), padding=words.padding
    )
    options = [*written("client", model, words), "--model", f"hf:{folder}"]
    code, printed, said = called(monkeypatch, capsys, *options, "--out", "found")
    assert code == 0, said
    assert printed.startswith("RECONSTRUCTED, certified") and f"found: {SENTENCE}\n" in printed
    page = (folder.parent / "found" / "report.html").read_text()
    assert ">Ġand<" in page and ">and<" not in page
    truth = ["--truth", "client_truth.safetensors", "--json"]
    code, printed, said = called(monkeypatch, capsys, *options, *truth)
    measured = json.loads(printed)["measured"]
    assert measured["exact_match"] == 1.0 and measured["null_edit_distance"] > 0.3, said
    without = [word for word in options if word not in ("--before", "client_before.safetensors")]
    code, _, said = called(monkeypatch, capsys, *without)
    assert code == 2 and said.count("\n") == 1
    assert said.endswith("before: got none, expected the weights of 'hf:" + f"{folder}' that the client received\n")


def test_a_vocabulary_of_other_tokens_than_the_folders_is_refused(folder, monkeypatch, capsys):
    words = Vocabulary.of_folder(folder)
    model = models.build(f"hf:{folder}", (LENGTH, 600), 2, torch.Generator().manual_seed(5), padding=words.padding)
    options = [*written("client", model, words), "--model", f"hf:{folder}", "--vocabulary", "mine.json"]
    text = (folder / "tokenizer.json").read_text()
    (folder.parent / "mine.json").write_text(text)
    code, printed, said = called(monkeypatch, capsys, *options)
    assert code == 0 and f"found: {SENTENCE}\n" in printed, said
    assert words.names([7]) == ["'"]
    changed = json.loads(text)
    numbers = changed["model"]["vocab"]
    numbers["'"], numbers["("] = numbers["("], numbers["'"]
    (folder.parent / "mine.json").write_text(json.dumps(changed))
    code, _, said = called(monkeypatch, capsys, *options)
    assert code == 2 and said.count("\n") == 1
    assert f"vocabulary: mine.json: token 7 is '(', in 'hf:{folder}' \"'\"; leave out --vocabulary" in said
    (folder / "tokenizer.json").rename(folder / "other.model")
    code, _, said = called(monkeypatch, capsys, *options)
    assert code == 0, said


def test_a_sentence_without_a_word_is_printed_as_such(recorded):
    found = dataclasses.replace(attacked(recorded, truth=None), sentences=("",))
    assert "\nfound: (no word)" in str(found)


def test_a_network_of_the_catalog_is_built_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = models.build("gpt_tiny", (LENGTH, 4096), 2, torch.Generator().manual_seed(5))
    options = written("client", model, load_dataset("reviews")[2].vocabulary)
    code, printed, said = called(monkeypatch, capsys, *options, "--model", "gpt_tiny")
    assert code == 0, said
    assert printed.startswith("RECONSTRUCTED, certified") and f"found: {SENTENCE}\n" in printed


def test_a_network_of_pictures_is_built_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = models.build("mlp_sigmoid", (1, 8, 8), 10, torch.Generator().manual_seed(5))
    torch.nn.functional.cross_entropy(model(torch.rand(1, 1, 8, 8)), torch.tensor([3])).backward()
    save_file({n: p.detach() for n, p in model.named_parameters()}, "before.safetensors")
    save_file({n: p.grad for n, p in model.named_parameters()}, "update.safetensors")
    files = ["--before", "before.safetensors", "--update", "update.safetensors"]
    options = ["attack", *files, "--shape", "1,8,8", "--classes", "10", "--model", "mlp_sigmoid"]
    code, printed, said = called(monkeypatch, capsys, *options, "--iterations", "1")
    assert code == 0 and printed.startswith("NOT SCORED: 1 reconstruction"), said


def own_words(path) -> Vocabulary:
    """Return the vocabulary of a file with the words of the embedded one in another order."""
    known = load_dataset("reviews")[2].vocabulary
    first, *others = known.names(range(known.size))
    path.write_text("\n".join([first, *reversed(others)]) + "\n")
    return Vocabulary.of_file(path)


def test_tokens_are_shown_in_ones_own_vocabulary(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, model = own_words(tmp_path / "mine.txt"), build().eval()
    options = [*written("client", model, words), "--model", "tests.external.test_own_texts:build"]
    code, printed, said = called(monkeypatch, capsys, *options, "--vocabulary", "mine.txt")
    assert code == 0, said
    assert printed.startswith("RECONSTRUCTED, certified") and f"found: {SENTENCE}\n" in printed
    code, printed, _ = called(monkeypatch, capsys, *options)
    assert printed.startswith("RECONSTRUCTED, certified") and SENTENCE not in printed
    update, before = (load_file(f"client_{name}.safetensors") for name in ("update", "before"))
    known = {"shape": (LENGTH,), "classes": 2, "before": before, "dataset": "reviews", "attack": "dager"}
    assert leakbench.attack_update(model, update, **known, vocabulary="mine.txt").sentences == (SENTENCE,)
    (tmp_path / "more.txt").write_text((tmp_path / "mine.txt").read_text() + "another piece\n")
    first, second, *others = (tmp_path / "mine.txt").read_text().splitlines()
    (tmp_path / "other.txt").write_text("\n".join([second, first, *others]))
    with pytest.raises(InputError, match=r"^vocabulary: only for language models, got Sequential"):
        leakbench.attack_update(nn.Sequential(nn.Linear(2, 2)), {}, shape=(2,), classes=2, vocabulary="mine.txt")
    for wrong, says in (
        (["--vocabulary", "none.txt"], "vocabulary: no file 'none.txt'"),
        (["--vocabulary", "client_update.safetensors"], "vocabulary: client_update.safetensors: cannot be read"),
        (
            ["--vocabulary", "more.txt"],
            "vocabulary: more.txt: has 4097 tokens, the network only 4096; give the network's own",
        ),
        (
            ["--vocabulary", "other.txt"],
            "vocabulary: other.txt: fills up sentences with token 1, the network with 0; give",
        ),
        (
            ["--model", "mlp_sigmoid", "--vocabulary", "mine.txt"],
            "vocabulary: only for language models, got mlp_sigmoid",
        ),
        (
            ["--model", "tests.own_network:build", "--vocabulary", "mine.txt"],
            "vocabulary: only for language models, got tests",
        ),
        (["--vocabulary", "mine.txt", "--dataset", "digits"], "dataset: got 'digits', expected texts"),
        (["--model", "gpt_tinny"], "model: unknown name 'gpt_tinny'; did you mean 'gpt_tiny'?"),
        (["--model", "gpt_tiny", "--dataset", "digits"], "dataset: got 'digits', expected texts"),
        (["--model", "gpt_tiny"], "update: 'transformer.wte.weight' has the shape (4096, 64), the model's"),
        (["--model", "hf:nowhere"], "model: 'hf:nowhere': no such folder"),
    ):
        code, _, said = called(monkeypatch, capsys, *options, *wrong)
        assert code == 2 and says in said and said.count("\n") == 1
