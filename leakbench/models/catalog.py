"""The table of networks, each with its builder and its default initialisation.

`build` returns a plain `torch.nn.Module`; the rest of leakbench calls it functionally with other parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from leakbench.core.behaviour import FIRST
from leakbench.core.errors import InputError
from leakbench.core.request import CLASS, NEXT_TOKEN, check_model
from leakbench.core.task import Heads
from leakbench.core.types import Parameters
from leakbench.models.cnn6 import cnn6
from leakbench.models.convnet import convnet
from leakbench.models.external import ExternalNetwork, first_weights
from leakbench.models.folder import NetworkFolder
from leakbench.models.initialise import (
    DEFAULT,
    Rule,
    fan_out,
    initialise,
    narrow_normal,
    rule_of,
    torch_default,
    truncated_normal,
    uniform,
    xavier,
)
from leakbench.models.language import LanguageModel, NextToken, bert_tiny, from_folder, gpt_tiny, gpt_wide
from leakbench.models.lenet import LENETS, lenet, lenet_batch_norm
from leakbench.models.references import shown
from leakbench.models.resnet import resnet18
from leakbench.models.segmentation import unet_tiny, unet_tiny_of
from leakbench.models.shapes import Shape, ShapeError
from leakbench.models.small import (
    WHITE,
    cnn,
    cnn_avg,
    cnn_fc,
    mlp,
    mlp_100,
    mlp_256,
    mlp_600,
    mlp_1000,
    mlp_relu,
    mlp_sigmoid,
)
from leakbench.models.trainable import ALL, with_trainable
from leakbench.models.vision_transformer import vision_transformer

__all__ = [
    "MODELS",
    "Architecture",
    "architecture",
    "build",
    "check_takes",
    "default_leak_model",
    "default_model",
    "one_hot",
    "parameters",
]


@dataclass(frozen=True)
class Architecture:
    """A network by name.

    Args:
        builder: (shape of one input, classes) -> module.
        init: Default initialisation; None if the builder draws the first weights, from PyTorch's own generator.
        behaviour: Version, raised when its outputs or its first weights change; see `leakbench.core.behaviour`.
        texts: Whether it takes texts, and not pictures or tables.
        heads: (shape of one input, heads) -> module, for a network with the outputs of several heads or with outputs for places.
    """

    builder: Callable[[Shape, int], nn.Module]
    init: Rule | None
    behaviour: int = FIRST
    texts: bool = False
    heads: Callable[[Shape, Heads], nn.Module] | None = None


def architecture(name: str, field: str = "model") -> Architecture:
    """Return the network of a name in `MODELS`, or the one of a folder, a library or a user's function.

    Args:
        name: A key of `MODELS`, `hf:FOLDER`, or a name that `leakbench.models.external` reads.
        field: The option that names the network, for messages.

    Raises:
        InputError: For another name.
    """
    folder = NetworkFolder.of(name)
    if folder is not None:
        return Architecture(partial(from_folder, folder), narrow_normal, texts=True)
    external = ExternalNetwork.of(name)
    if external is not None:
        return Architecture(partial(external.built, field=field), None)
    check_model(field, name)
    return MODELS[name]


def check_takes(name: str, shape: Shape, field: str = "model") -> None:
    """Raise InputError, naming the field, for a network of pictures or tables on texts, and for one of texts on other data.

    Args:
        name: A name that `architecture` accepts.
        shape: Shape of one input, (C, H, W), (F,), or (T, tokens) of a text.
        field: What named the network.
    """
    texts = architecture(name).texts
    if len(shape) == 2 and not texts:
        known = ", ".join(n for n, a in MODELS.items() if a.texts)
        raise InputError(
            f"{field}: {name!r} takes no texts, got a text of {shape[0]} tokens; expected one of {known}, or hf:FOLDER"
        )
    if len(shape) != 2 and texts:
        raise InputError(f"{field}: {name!r} takes texts (length, tokens), got shape {shape}; try --dataset reviews")


def build(
    name: str,
    shape: Shape,
    classes: int,
    rng: torch.Generator,
    init: str = DEFAULT,
    padding: int = 0,
    trainable: str = ALL,
    loss: str = CLASS,
    heads: Heads | None = None,
    field: str = "model",
) -> nn.Module:
    """Build a network in eval mode.

    A network with weights in a folder keeps them; its classifier is new, and is drawn. A network with weights of a file keeps all.

    Args:
        name: A name that `architecture` accepts.
        shape: Shape of one input, (C, H, W), (F,), or (T, tokens) of a text.
        classes: Number of classes.
        rng: Source of the first weights.
        init: Initialisation, see `leakbench.models.initialise.rule_of`; `default` is the network's own.
        padding: Number of the token that fills up a text.
        trainable: The parameters that are trained, see `leakbench.models.trainable`.
        loss: One of `leakbench.core.request.LOSSES`, or a function.
        heads: The outputs of the network; None for one for each class.
        field: The option that names the network, for messages.

    Raises:
        InputError: For an unknown name, initialisation or rule of trained parameters, or a shape that the network does not accept.
    """
    made = architecture(name, field)
    rule, folder = rule_of(init)[1] or made.init, NetworkFolder.of(name)
    check_takes(name, shape, field)
    external = ExternalNetwork.of(name)
    try:
        with nullcontext() if external is None else first_weights(rng):
            model = made.builder(shape, classes) if heads is None else _with_heads(made, shape, heads)
    except ShapeError as error:
        raise ShapeError(error.problem, field) from None
    if isinstance(model, LanguageModel):
        model.padding = padding
        if model.words.padding_idx is not None:  # Its row gets no gradient.
            model.words.padding_idx = padding
    if loss == NEXT_TOKEN:
        if not isinstance(model, LanguageModel):
            raise InputError(f"loss: next_token takes a network of texts, got {name!r}; try --dataset reviews")
        model = NextToken(model, name if folder is None else str(folder))
    if external is not None and rule is not None:
        external.check_init(model, init)
    if rule is None:
        return with_trainable(model, trainable, rng, shape, (field, shown(name))).eval()
    if folder is None or not folder.trained:
        initialise(model, rule, rng)
    elif isinstance(model, NextToken):
        if model.head is not None:
            folder.load_head(model.head)
    elif isinstance(model, LanguageModel):
        initialise(model.classifier, rule, rng)
    return with_trainable(model, trainable, rng, shape, (field, shown(name))).eval()


def _with_heads(made: Architecture, shape: Shape, heads: Heads) -> nn.Module:
    """Return a network with outputs for some heads, in one vector unless the network has its own outputs for each head."""
    if made.heads is not None:
        return made.heads(shape, heads)
    return made.builder(shape, heads.size)


def parameters(model: nn.Module) -> Parameters:
    """Return the model's trained parameters, detached, in the model's order; the others stay in the model."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def default_model(shape: Shape, heads: Heads | None = None) -> str:
    """Return the name of the network that the Fed-alphaCDP paper trains on data of this shape ("2 conv + 1 FC" for images).

    Targets with an answer for each place, such as masks, get `unet_tiny`.
    """
    if heads is not None and any(head.places for head in heads.heads):
        return "unet_tiny"
    if len(shape) == 2:
        return "gpt_tiny"
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= 10 else "mlp"


def default_leak_model(shape: Shape, heads: Heads | None = None) -> str:
    """Return the name of the network that leaks in the `paper` protocol: the sigmoid LeNet or MLP, `gpt_tiny` or `unet_tiny`."""
    if heads is not None and any(head.places for head in heads.heads):
        return "unet_tiny"
    return {3: "lenet_cpl", 2: "gpt_tiny"}.get(len(shape), "mlp_sigmoid")


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Return float targets (..., classes) for integer labels (...)."""
    return nn.functional.one_hot(labels, classes).float()


HALF = uniform(0.5)

MODELS: dict[str, Architecture] = {
    "cnn": Architecture(cnn, xavier),
    **{
        name: Architecture(partial(cnn_avg, name, activation=activation, standardised=data), truncated_normal)
        for data in ("", *WHITE)
        for name, activation in (
            ("_".join(filter(None, ("cnn_avg_relu", data))), nn.ReLU),
            ("_".join(filter(None, ("cnn_avg_gelu", data))), nn.GELU),
        )
    },
    **{
        name: Architecture(partial(cnn_fc, name, rows=rows), torch_default)
        for name, rows in (("cnn_fc_1024", 1024), ("cnn_fc_2048", 2048))
    },
    "cnn6": Architecture(cnn6, torch_default),
    "mlp": Architecture(mlp, xavier),
    "mlp_100": Architecture(mlp_100, torch_default),
    "mlp_256": Architecture(mlp_256, xavier),
    "mlp_600": Architecture(mlp_600, truncated_normal),
    "mlp_1000": Architecture(mlp_1000, torch_default),
    "mlp_relu": Architecture(mlp_relu, torch_default),
    "mlp_sigmoid": Architecture(mlp_sigmoid, HALF),
    **{
        name: Architecture(partial(lenet, name), HALF if activation is nn.Sigmoid else torch_default)
        for name, (_, activation) in LENETS.items()
    },
    **{
        name: Architecture(partial(lenet_batch_norm, name, activation=activation), torch_default)
        for name, activation in (("lenet_dlg_relu_batch_norm", nn.ReLU), ("lenet_dlg_gelu_batch_norm", nn.GELU))
    },
    "convnet": Architecture(partial(convnet, "convnet", norm=True), torch_default),
    "convnet_no_norm": Architecture(partial(convnet, "convnet_no_norm", norm=False), torch_default),
    "resnet18_batch_norm": Architecture(partial(resnet18, "resnet18_batch_norm", norm="batch"), fan_out),
    "resnet18_group_norm": Architecture(partial(resnet18, "resnet18_group_norm", norm="group"), fan_out),
    "gpt_tiny": Architecture(gpt_tiny, narrow_normal, texts=True),
    "gpt_wide": Architecture(gpt_wide, narrow_normal, texts=True),
    "bert_tiny": Architecture(bert_tiny, narrow_normal, texts=True),
    "unet_tiny": Architecture(unet_tiny, torch_default, heads=unet_tiny_of),
    "vit_tiny": Architecture(partial(vision_transformer, "vit_tiny", patch=4), narrow_normal),
    "vit_tiny_patch8": Architecture(partial(vision_transformer, "vit_tiny_patch8", patch=8), narrow_normal),
    "vit_tiny_april": Architecture(partial(vision_transformer, "vit_tiny_april", patch=4, plain=True), narrow_normal),
}
