"""Tiny networks in folders of Hugging Face, with the tokenizers that their kinds have."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from leakbench.data.texts import embedded_words

KINDS = ("gpt2", "bert", "llama")
PLACES = 40
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
TEXTS = ("a truly fine movie", "a bad movie , truly bad", "the plot is thin and the cast is fine")


def byte_pairs() -> Tokenizer:
    """Return a small tokenizer of byte pairs, as GPT-2 has."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer, found.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    options = {"special_tokens": ["<|endoftext|>"], "show_progress": False, "initial_alphabet": letters}
    found.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, **options))
    return found


def transformer(kind: str, tokens: int = 300) -> PreTrainedModel:
    """Return a network with its head, always at the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if kind == "gpt2":
            return GPT2LMHeadModel(GPT2Config(vocab_size=tokens, n_positions=PLACES, n_embd=32, n_layer=2, n_head=2))
        if kind == "llama":
            return LlamaForCausalLM(LlamaConfig(vocab_size=tokens, max_position_embeddings=PLACES, **SIZES))
        config = BertConfig(vocab_size=len(embedded_words()), max_position_embeddings=PLACES, **SIZES)
        return BertForSequenceClassification(config)


def folder(kind: str, path: Path, tokens: int = 300) -> PreTrainedModel:
    """Write a network and its tokenizer into a folder, and return the network."""
    model = transformer(kind, tokens).eval()
    with contextlib.redirect_stderr(io.StringIO()):  # The library prints its progress.
        model.save_pretrained(path)
    if kind == "bert":
        (path / "vocab.txt").write_text("".join(f"{word}\n" for word in embedded_words()), encoding="utf-8")
    else:
        byte_pairs().save(str(path / "tokenizer.json"))
    return model
