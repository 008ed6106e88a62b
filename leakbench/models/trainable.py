"""Which parameters of a network are trained; the others keep their first values, and are not part of any update.

The classifier, which is the last fully connected layer, is always trained, except where it is tied to frozen embeddings.

LoRA (Hu et al., ICLR 2022) adds B A x to a frozen projection W x, with A (r, d) drawn at random and B (o, r) zero at first. X holds
the projection's inputs, one token a row, and delta the derivatives of the loss by its outputs. The gradients of a batch are

    dB = delta^T (X A^T)     dA = B^T delta^T X

At the first weights dA is zero, since B is, and dB has rank r at most: of each token only the r numbers A x act on the update.
Later dA is not zero; it has rank r at most, and its rows are in the span of the inputs.

An adapter (Houlsby et al., ICML 2019) adds U relu(D y + b) + c to the output y of a frozen layer. With Y and delta the outputs and
the derivatives of all tokens, one a row, and H = relu(Y D^T + b), the gradients of a batch are

    dU = delta^T H     dD = G^T Y     db = G^T 1     with G = (delta U) where H > 0, else 0

Every row of dD is a combination of the tokens' outputs Y. A row that only one token activates is this output times its db.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from leakbench.core.errors import InputError
from leakbench.core.extras import need
from leakbench.core.words import ALL, Trainable, trainable_of
from leakbench.models.language import LanguageModel, NextToken
from leakbench.models.layers import last_layer
from leakbench.models.side_modules import add_adapters, add_lora

__all__ = ["ALL", "trainable_of", "with_trainable"]

LORA = "lora_"
"""Start of the names of the matrices that the library `peft` adds."""

PROJECTIONS = {"gpt2": ("c_attn",), "gpt_neox": ("query_key_value",), "llama": ("q_proj", "v_proj")}
PROJECTIONS |= dict.fromkeys(("mistral", "qwen2"), PROJECTIONS["llama"])
PROJECTIONS |= dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra"), ("query", "value"))
"""{kind of transformer: the projections with LoRA}, query and value, or the one that computes query, key and value together."""


def with_trainable(
    model: nn.Module,
    text: str,
    rng: torch.Generator,
    shape: tuple[int, ...],
    named: tuple[str, str] | None = None,
) -> nn.Module:
    """Freeze the parameters that a rule does not train, and return the model.

    Args:
        model: A network at its first weights.
        text: The rule, see `trainable_of`.
        rng: Source of the first weights of LoRA and adapters.
        shape: Shape of one input, with which the last layer is found.
        named: The option that names the network, and its name, for messages; None if there is none.

    Raises:
        InputError: For an unknown rule, or a network without the parts that it names.
    """
    rule = trainable_of(text)
    if rule.name == ALL:
        return model
    if rule.name == "no_embeddings":
        embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding)]
        if not embeddings:
            raise InputError(f"trainable: got {text!r}, but the network has no embeddings; expected all or head")
        for module in embeddings:
            module.requires_grad_(False)
        return model
    last = ("head." if model.head is not None else "") if isinstance(model, NextToken) else last_layer(model, shape)
    if last is None or (not last and rule.name == "head"):
        raise InputError(f"trainable: got {text!r}, but the network has no separate last layer; expected all")
    model.requires_grad_(False)
    if rule.name == "adapters" and not add_adapters(model, rule.number, rng):
        raise InputError(f"trainable: got {text!r}, which takes a transformer; expected head, lora:r=N, or vit_tiny")
    if rule.name == "lora":
        if isinstance(model, LanguageModel):
            _add_lora(model, rule, rng)
        elif not add_lora(model, rule.number, rng, (last or "").removesuffix(".")):
            raise InputError(f"trainable: got {text!r}, but the network has no layer for LoRA; expected all or head")
    if rule.name == "blocks":
        _train_last_blocks(model, rule, "the network" if named is None else f"--{named[0]} {named[1]}")
    if not isinstance(model, NextToken) or last:  # A head that is tied to frozen embeddings is frozen.
        model.get_submodule(last.removesuffix(".")).requires_grad_()
    return model


def _train_last_blocks(model: nn.Module, rule: Trainable, network: str) -> None:
    """Train the last blocks; raises InputError, which names the network, if it has none or too few."""
    if isinstance(model, LanguageModel):
        lists = [module for module in model.transformer.modules() if isinstance(module, nn.ModuleList)]
        blocks = list(lists[0])  # The outermost list of a transformer has its blocks.
    else:
        blocks = _blocks(model)
    if not blocks:
        raise InputError(
            f"trainable: got {str(rule)!r}, but {network} has no blocks, as a ViT or a ResNet has; expected all or head, or"
            " a network with blocks for both --model and --leak-model, such as vit_tiny"
        )
    if rule.number > len(blocks):
        raise InputError(f"trainable: got {str(rule)!r}, but {network} has {len(blocks)} blocks; expected at most that")
    for block in blocks[-rule.number :]:
        block.requires_grad_()


def _blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a network of pictures: modules whose class is so named, without those inside a block."""
    blocks: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in blocks)
        if name and not inside and type(module).__name__.endswith(("Block", "Bottleneck")):
            blocks[name] = module
    return list(blocks.values())


def _add_lora(model: LanguageModel, rule: Trainable, rng: torch.Generator) -> None:
    """Add B A x to the projections, with B zero and A drawn as PyTorch draws a linear layer; both are trained."""
    library: Any = need("peft", "trainable: lora")
    kind = str(model.transformer.config.model_type)  # type: ignore[union-attr]
    options = {"target_modules": list(PROJECTIONS[kind]), "fan_in_fan_out": kind == "gpt2"}
    config = library.LoraConfig(r=rule.number, lora_alpha=rule.number, lora_dropout=0.0, bias="none", **options)
    with torch.random.fork_rng(devices=[]):  # The library draws from the global generator; these are drawn again.
        library.inject_adapter_in_model(config, model.transformer)
    model.requires_grad_(False)
    for name, parameter in model.transformer.named_parameters():
        if LORA in name:
            parameter.requires_grad_()
            with torch.no_grad():
                bound = 1 / math.sqrt(parameter.shape[1])
                parameter.uniform_(-bound, bound, generator=rng) if "lora_A" in name else parameter.zero_()
    model.eval()
