"""Language models with a linear classifier: the transformers of Hugging Face, which the extra `text` installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.core.extras import need
from leakbench.core.task import with_task
from leakbench.models.folder import NetworkFolder
from leakbench.models.shapes import Shape

__all__ = ["LIBRARY", "LanguageModel", "NextToken", "bert_tiny", "from_folder", "gpt_tiny", "gpt_wide"]

LIBRARY = "transformers"
"""The package that builds the networks of texts."""


class LanguageModel(nn.Module):
    """A transformer and a linear classifier of one of its outputs.

    The classifier reads the output at the last token of a causal transformer, which only sees the tokens before, and at the first
    token, such as [CLS], of any other.

    Args:
        transformer: A model of the library `transformers` without a head; its attention becomes the plain one, `eager`, which can
            be differentiated twice.
        classes: Number of classes.
        causal: Whether a token sees only the tokens before it.
        padding: Number of the token that fills up a sentence; no token sees it.
        length: Number of tokens of an example.

    Raises:
        InputError: For a configuration that asks for another attention, such as a sliding window shorter than an example.
    """

    def __init__(self, transformer: nn.Module, classes: int, causal: bool, padding: int, length: int) -> None:
        super().__init__()
        _check_attention(f"transformer: {type(transformer).__name__}", transformer.config, causal, length)
        if hasattr(transformer, "set_attn_implementation"):
            transformer.set_attn_implementation("eager")  # type: ignore[operator]
        self.transformer = transformer
        self.causal, self.padding, self.length = causal, padding, length
        self.tokens, self.width = self.words.num_embeddings, self.words.embedding_dim
        self.classifier = nn.Linear(int(transformer.config.hidden_size), classes)  # type: ignore[union-attr, arg-type]

    @property
    def words(self) -> nn.Embedding:
        """The embeddings of tokens."""
        found: nn.Embedding = self.transformer.get_input_embeddings()  # type: ignore[operator]
        return found

    @property
    def word_weights(self) -> str:
        """Name of the weights (tokens, width) of the embeddings of tokens."""
        words = self.words
        return next(f"{name}.weight" for name, module in self.named_modules() if module is words)

    @property
    def position_weights(self) -> tuple[str, int] | None:
        """Name of the weights (places, width) of the embeddings of positions, and their row of the first position.

        None for a network without them, such as LLaMA. Some networks count on after the number of their padding token.
        """
        words = self.words
        for name, module in self.named_modules():
            # Embeddings of kinds of sentences have fewer rows than a sentence has tokens.
            if isinstance(module, nn.Embedding) and module is not words and module.num_embeddings >= self.length:
                return f"{name}.weight", 0 if module.padding_idx is None else module.padding_idx + 1
        return None

    def forward(self, x: Tensor, places: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        """Return the logits (n, classes) of tokens (n, T), or of embeddings (n, T, width), zeros where there is no token.

        Args:
            x: The tokens or embeddings.
            places: Position (n, T) of each token; None for 0 to T - 1.
            seen: (n, T, T) bool, which tokens a token sees; None for all tokens but padding, of a causal network those before it.
        """
        there, outputs = self.read(x, places, seen)
        where = there.sum(1) - 1 if self.causal else torch.zeros_like(there[:, 0], dtype=torch.int64)
        # A product instead of an index, since `torch.func.vmap` has no index by the values of a tensor.
        chosen = (torch.arange(there.shape[1], device=x.device) == where[:, None]).to(outputs)
        out: Tensor = self.classifier((outputs * chosen[..., None]).sum(1))
        return out

    def read(self, x: Tensor, places: Tensor | None = None, seen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (which places hold a token (n, T) bool, the transformer's outputs (n, T, width)) of the same input."""
        if x.dim() == 2:
            numbers = x.long()
            there = numbers != self.padding
            entered = self.words(numbers)
        else:
            # A guess of an attack shows by zeros which places hold no token, for each sentence of a batch.
            there, entered = (x != 0).any(-1), x
        length = there.shape[1]
        if seen is None:
            seen = there[:, None, :].expand(-1, length, length)
            if self.causal:
                seen = seen & seen.new_ones(length, length).tril()
        # A mask with four axes is added to the scores as it is. The library would decide on the values of one with two axes.
        hidden = torch.zeros(seen.shape, dtype=entered.dtype, device=x.device)
        hidden = hidden.masked_fill(~seen, torch.finfo(entered.dtype).min)[:, None]
        placed = {} if places is None else {"position_ids": places}
        return there, self.transformer(inputs_embeds=entered, attention_mask=hidden, **placed).last_hidden_state


class NextToken(LanguageModel):
    """A causal transformer that is trained to name the next token of each token of a text, and has no classes.

    Its task is `NextTokens`. The logits are products of the outputs and the word
    embeddings, as in GPT-2, or with a matrix of their own, as in LLaMA.

    Args:
        model: The same network with a classifier, which is left out.
        name: Name of the network, for messages.

    Raises:
        InputError: For a network whose tokens see the tokens after them.
    """

    def __init__(self, model: LanguageModel, name: str) -> None:
        if not model.causal:
            raise InputError(
                f"loss: next_token takes a causal network, {name!r} is an encoder; try gpt_tiny, or --loss class"
            )
        super().__init__(model.transformer, 1, causal=True, padding=model.padding, length=model.length)
        del self.classifier
        tied = self.transformer.config.tie_word_embeddings  # type: ignore[union-attr]
        self.head = None if tied else nn.Linear(self.width, self.tokens, bias=False)
        with_task(self, NextTokens(self.padding))

    def forward(self, x: Tensor, places: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        """Return the logits (n, T, number of tokens) of the token after each token of x (n, T)."""
        outputs = self.read(x, places, seen)[1]
        if self.head is not None:
            return self.head(outputs)  # type: ignore[no-any-return]
        return outputs @ self.words.weight.mT


@dataclass(frozen=True)
class NextTokens:
    """The task of naming the token that follows each token of a text, see `leakbench.core.task.Task`.

    Args:
        padding: Number of the token that fills up a text.
    """

    padding: int

    def losses(self, outputs: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy (n,) of the tokens after the first one, without padding.

        Args:
            outputs: (n, T, tokens), the logits.
            inputs: (n, T), the tokens.
            targets: Not used.

        Raises:
            InputError: For inputs that are embeddings, which have no next tokens.
        """
        following, there = self._following(inputs)
        found = outputs[:, :-1].log_softmax(-1).gather(2, following[..., None])[..., 0]
        return -(found * there).sum(1) / there.sum(1).clamp_min(1)

    def answered(self, outputs: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return (number of next tokens that have the largest logit, number of next tokens), (n,) each."""
        following, there = self._following(inputs)
        finite = outputs[:, :-1].isfinite().all(-1)  # The argmax of NaN would count as an answer.
        right = (outputs[:, :-1].argmax(-1) == following) & finite & there
        return right.sum(1), there.sum(1)

    def _following(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens after the first one, and which of them are not padding."""
        if inputs.dim() != 2:
            raise InputError("loss: next_token: got a guess of embeddings, which have no next tokens; try --loss class")
        following = inputs[:, 1:].long()
        return following, following != self.padding


def gpt_tiny(shape: Shape, classes: int) -> nn.Module:
    """GPT-2's decoder with 4 blocks of width 256 and 4 heads, without dropout (Radford et al., 2019)."""
    return _gpt("gpt_tiny", shape, classes, blocks=4, width=256, heads=4)


def gpt_wide(shape: Shape, classes: int) -> nn.Module:
    """GPT-2's decoder with 4 blocks of the width and the heads of its smallest release, 768 and 12, without dropout."""
    return _gpt("gpt_wide", shape, classes, blocks=4, width=768, heads=12)


def _gpt(name: str, shape: Shape, classes: int, blocks: int, width: int, heads: int) -> nn.Module:
    length, tokens = text(name, shape)
    library = need(LIBRARY, f"model: {name}")
    config = library.GPT2Config(
        vocab_size=tokens,
        n_positions=length,
        n_embd=width,
        n_layer=blocks,
        n_head=heads,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        **_NO_ENDS,
    )
    return LanguageModel(_empty(library.GPT2Model, config), classes, causal=True, padding=0, length=length)


def bert_tiny(shape: Shape, classes: int) -> nn.Module:
    """BERT's encoder with 4 blocks of width 256 and 4 heads, without dropout (Devlin et al., NAACL 2019)."""
    length, tokens = text("bert_tiny", shape)
    library = need(LIBRARY, "model: bert_tiny")
    config = library.BertConfig(
        vocab_size=tokens,
        max_position_embeddings=length,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    transformer = _empty(library.BertModel, config, add_pooling_layer=False)
    return LanguageModel(transformer, classes, causal=False, padding=0, length=length)


_NO_ENDS: dict[str, None] = {"bos_token_id": None, "eos_token_id": None}
"""The numbers of tokens that begin and end a text, which only writing texts needs."""


def text(name: str, shape: Shape) -> tuple[int, int]:
    """Return (length, number of tokens) of texts; raises InputError for other data, naming the network."""
    if len(shape) != 2:
        raise InputError(f"model: {name!r} takes texts (length, tokens), got shape {shape}; try --dataset reviews")
    return shape[0], shape[1]


def _empty(kind: Any, config: Any, **options: Any) -> nn.Module:
    """Build a transformer without drawing from PyTorch's global generator; `initialise` draws its weights."""
    with torch.random.fork_rng(devices=[]):
        built: nn.Module = kind._from_config(config, attn_implementation="eager", **options)
    return built.eval()


@contextmanager
def _quiet(library: Any) -> Iterator[None]:
    """Keep the library from printing advice, such as on the tokens that begin a text."""
    before = library.logging.get_verbosity()
    library.logging.set_verbosity_error()
    try:
        yield
    finally:
        library.logging.set_verbosity(before)


CAUSAL = ("gpt2", "llama", "mistral", "qwen2", "gpt_neox")
"""Kinds of causal transformers, as their `config.json` names them."""

ENCODERS = ("bert", "roberta", "xlm-roberta", "electra")

AFTER_PADDING = ("roberta", "xlm-roberta")
"""Kinds whose first position is after the number of their padding token."""


def _check_attention(where: str, config: Any, causal: bool, length: int) -> None:
    """Raise InputError, which names the network, for a configuration whose attention `LanguageModel.read` would change.

    Args:
        where: The network, for the message.
        config: The configuration of the transformer.
        causal: Whether a token sees only the tokens before it.
        length: Number of tokens of an example.
    """
    window, positions = (getattr(config, name, None) for name in ("sliding_window", "position_embedding_type"))
    # Qwen2 names the layers with a window; Mistral has it in all of them.
    if not any("sliding" in kind for kind in getattr(config, "layer_types", None) or ("sliding_attention",)):
        window = None
    layers = getattr(config, "num_hidden_layers", 1)
    wrong = (
        ("num_hidden_layers", layers, "at least 1", layers < 1),
        ("sliding_window", window, f"none, or at least the {length} tokens of a text", (window or length) < length),
        ("is_decoder", True, "false for an encoder", not causal and getattr(config, "is_decoder", False)),
        ("is_causal", False, "true for a causal network", causal and not getattr(config, "is_causal", True)),
        ("position_embedding_type", positions, "'absolute'", positions not in (None, "absolute")),
    )
    for field, got, accepted, is_wrong in wrong:
        if is_wrong:
            raise InputError(
                f"{where}: config.json: {field}: got {got!r}, expected {accepted}; take a network with plain attention"
            )


def from_folder(folder: NetworkFolder, shape: Shape, classes: int, padding: int = 0) -> LanguageModel:
    """Return the network in a folder of Hugging Face, with a new classifier.

    Weights are read from `*.safetensors` only. A folder with nothing but `config.json` gives the architecture at first weights.

    Args:
        folder: Contains `config.json`.
        shape: (length, number of tokens).
        classes: Number of classes.
        padding: Number of the token that fills up a sentence.

    Raises:
        InputError: If the folder has no such network, one of fewer places or tokens or with another attention, or other files
            than those of its hash.
    """
    name = str(folder)
    length, tokens = text(name, shape)
    library = need(LIBRARY, f"model: {name}")
    folder.check()
    try:
        with _quiet(library):
            config = library.AutoConfig.from_pretrained(folder.path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # The library raises errors of many kinds.
        raise InputError(f"model: {name!r}: config.json cannot be read: {' '.join(str(error).split())}") from None
    kind = config.model_type
    if kind not in (*CAUSAL, *ENCODERS):
        raise InputError(
            f"model: {name!r}: got a network of kind {kind!r}, expected one of {', '.join((*CAUSAL, *ENCODERS))}"
        )
    if getattr(config, "quantization_config", None):
        raise InputError(
            f"model: {name!r}: config.json: quantization_config: got quantized weights, expected none; save the network without it"
        )
    places = config.max_position_embeddings - ((config.pad_token_id or 0) + 1 if kind in AFTER_PADDING else 0)
    for what, least, got in (("places", length, places), ("tokens", tokens, config.vocab_size)):
        if got < least:
            raise InputError(f"model: {name!r}: has {got} {what}, the data set needs {least}")
    for field in config.to_dict():
        if field.endswith(("_pdrop", "_dropout", "_dropout_prob")) and isinstance(getattr(config, field), float):
            setattr(config, field, 0.0)
    _check_attention(f"model: {name!r}", config, kind in CAUSAL, length)
    config.use_cache = False  # A cache serves the writing of texts.
    options = {"add_pooling_layer": False} if kind in ("bert", *AFTER_PADDING) else {}
    try:
        transformer = _empty(library.AutoModel._model_mapping[type(config)], config, **options)
    except Exception as error:  # The library raises errors of many kinds.
        raise InputError(f"model: {name!r}: config.json: {' '.join(str(error).split())}") from None
    if folder.trained:
        folder.load(transformer)
    return LanguageModel(transformer, classes, kind in CAUSAL, padding, length)
