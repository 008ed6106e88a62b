"""Every layer of `torch.nn`, each between two linear layers: `NETWORKS` has the network of each class by its name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune

SHAPE, CLASSES, WIDTH = (1, 8, 8), 10, 64

ROWS, PICTURE, VOLUME, VECTOR = (8, 8), (4, 4, 4), (2, 4, 2, 4), (64,)
"""Shapes of what enters a layer, without the batch."""

NO_LAYERS = {
    "Module": "the base class",
    "Container": "an old name of the base class",
    "ParameterDict": "a container of parameters, without forward",
    "ParameterList": "a container of parameters, without forward",
    "ModuleDict": "a container of modules, without forward",
    "RNNBase": "a base class, without forward",
    "RNNCellBase": "a base class, without forward",
    "DataParallel": "a wrapper, `parallel` below",
}
"""{class of torch.nn that is no layer: why}; losses are left out as well."""


class Between(nn.Module):
    """Linear layer, one layer of `torch.nn`, linear layer.

    Args:
        layer: The layer.
        shape: Shape of what enters it, without the batch.
        call: (layer, entering (n, *shape)) -> tensor; None to call it.
    """

    def __init__(self, layer: nn.Module, shape: tuple[int, ...], call: Callable[[Any, Tensor], Any] | None) -> None:
        super().__init__()
        self.a, self.layer, self.shape, self.call = nn.Linear(WIDTH, WIDTH), layer, shape, call
        modes = layer.training
        with torch.no_grad():
            wide = self.features(torch.rand(2, *SHAPE)).shape[1]
        layer.train(modes)
        self.o = nn.Linear(wide, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        z = torch.sigmoid(self.a(x.flatten(1))).reshape(len(x), *self.shape)
        z = self.layer(z) if self.call is None else self.call(self.layer, z)
        return (z[0] if isinstance(z, tuple) else z).reshape(len(x), -1)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.features(x))


def _tokens(layer: Any, z: Tensor) -> Tensor:
    """Return embeddings of numbers, which have no derivative by the input, added to the input."""
    return layer((z * 7).long().clamp(0, 7)).flatten(1) + z.flatten(1).mean(1, keepdim=True)


def _unpool(layer: Any, z: Tensor) -> Tensor:
    pool = {1: nn.functional.max_pool1d, 2: nn.functional.max_pool2d, 3: nn.functional.max_pool3d}[z.dim() - 2]
    return layer(*pool(z, 2, return_indices=True))


def _two(layer: Any, z: Tensor) -> Tensor:
    return layer(z, z.flip(1))


SIZES: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...], Callable[[Any, Tensor], Any] | None]] = {
    **{f"{p}Pool{d}d": ((2,), {}, s, None) for p in ("Avg", "Max") for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))},
    **{
        f"Adaptive{p}Pool{d}d": ((2,), {}, s, None)
        for p in ("Avg", "Max")
        for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))
    },
    **{f"LPPool{d}d": ((2, 2), {}, s, None) for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))},
    **{f"MaxUnpool{d}d": ((2,), {}, s, _unpool) for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))},
    **{f"FractionalMaxPool{d}d": ((2,), {"output_size": 2}, s, None) for d, s in ((2, PICTURE), (3, (1, 4, 4, 4)))},
    **{
        f"Conv{t}{d}d": ((s[0], 4, 2), {}, s, None)
        for t in ("", "Transpose")
        for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))
    },
    **{
        f"LazyConv{t}{d}d": ((4, 2), {}, s, None)
        for t in ("", "Transpose")
        for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))
    },
    **{
        f"{k}{d}d": ((s[0],), {}, s, None)
        for k in ("BatchNorm", "InstanceNorm")
        for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))
    },
    **{
        f"Lazy{k}{d}d": ((), {}, s, None)
        for k in ("BatchNorm", "InstanceNorm")
        for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))
    },
    **{
        f"{k}Pad{d}d": ((1,), {}, s, None)
        for k in ("Circular", "Reflection", "Replication", "Zero")
        for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))
    },
    **{f"ConstantPad{d}d": ((1, 0.5), {}, s, None) for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))},
    **{f"Dropout{d}d": ((), {}, s, None) for d, s in ((1, ROWS), (2, PICTURE), (3, VOLUME))},
    "ReflectionPad3d": ((1,), {}, VOLUME, None),
    "AdaptiveLogSoftmaxWithLoss": ((64, 12, (4, 8)), {}, VECTOR, lambda layer, z: layer.log_prob(z)),
    "Bilinear": ((64, 64, 12), {}, VECTOR, _two),
    "ChannelShuffle": ((2,), {}, PICTURE, None),
    "CosineSimilarity": ((), {}, ROWS, _two),
    "PairwiseDistance": ((), {}, ROWS, _two),
    "Embedding": ((8, 4), {}, VECTOR, _tokens),
    "EmbeddingBag": ((8, 4), {}, VECTOR, _tokens),
    "CrossMapLRN2d": ((2,), {}, PICTURE, None),
    "Flatten": ((), {}, PICTURE, None),
    "Fold": (((4, 4), (2, 2)), {"stride": 2}, (16, 4), None),
    "Unfold": ((2,), {}, PICTURE, None),
    "GLU": ((), {}, VECTOR, None),
    "GroupNorm": ((2, 4), {}, PICTURE, None),
    "LayerNorm": ((64,), {}, VECTOR, None),
    "RMSNorm": ((64,), {}, VECTOR, None),
    "LocalResponseNorm": ((2,), {}, PICTURE, None),
    "Linear": ((64, 12), {}, VECTOR, None),
    "LazyLinear": ((12,), {}, VECTOR, None),
    **{k: ((8, 6), {"batch_first": True}, ROWS, None) for k in ("RNN", "GRU", "LSTM")},
    **{k: ((64, 6), {}, VECTOR, None) for k in ("RNNCell", "GRUCell", "LSTMCell")},
    "MultiheadAttention": ((8, 2), {"batch_first": True}, ROWS, lambda layer, z: layer(z, z, z)[0]),
    "Transformer": ((8, 2, 1, 1, 8), {"batch_first": True}, ROWS, lambda layer, z: layer(z, z)),
    "TransformerEncoderLayer": ((8, 2, 8), {"batch_first": True}, ROWS, None),
    "TransformerDecoderLayer": ((8, 2, 8), {"batch_first": True}, ROWS, lambda layer, z: layer(z, z)),
    "ModuleList": ((), {}, VECTOR, lambda layer, z: layer[1](torch.sigmoid(layer[0](z)))),
    "SyncBatchNorm": ((4,), {}, PICTURE, None),
    "PixelShuffle": ((2,), {}, PICTURE, None),
    "PixelUnshuffle": ((2,), {}, PICTURE, None),
    "Softmax2d": ((), {}, PICTURE, None),
    "Threshold": ((0.5, 0.1), {}, VECTOR, None),
    "Unflatten": ((1, (8, 8)), {}, VECTOR, None),
    "Upsample": ((), {"scale_factor": 2}, PICTURE, None),
    "UpsamplingBilinear2d": ((), {"scale_factor": 2}, PICTURE, None),
    "UpsamplingNearest2d": ((), {"scale_factor": 2}, PICTURE, None),
    **{k: ((), {"dim": 1}, VECTOR, None) for k in ("LogSoftmax", "Softmax", "Softmin")},
}
"""{class: (its arguments, its named arguments, the shape of what enters, how it is called)}; the others take no argument."""


def _layer(name: str) -> nn.Module:
    kind = getattr(nn, name)
    if name in ("Sequential", "ModuleList"):
        return (
            kind([nn.Linear(64, 12), nn.Linear(12, 6)]) if name == "ModuleList" else kind(nn.Linear(64, 12), nn.Tanh())
        )
    if name in ("TransformerEncoder", "TransformerDecoder"):
        args, named, *_ = SIZES[f"{name}Layer"]
        return kind(getattr(nn, f"{name}Layer")(*args, **named), 1)
    args, named, *_ = SIZES.get(name, ((), {}))
    return kind(*args, **named)


def network(name: str) -> nn.Module:
    """Return the network of a class of `torch.nn`, always at the same weights."""
    if name in ODD:
        torch.manual_seed(0)
        return ODD[name]()
    plain = "TransformerEncoderLayer" if name == "TransformerEncoder" else "TransformerDecoderLayer"
    *_, shape, call = SIZES.get(
        plain if name in ("TransformerEncoder", "TransformerDecoder") else name, ((), {}, VECTOR, None)
    )
    torch.manual_seed(0)
    return Between(_layer(name), shape, call)


class Cosine(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.w = nn.Linear(64, 16), nn.Parameter(torch.randn(CLASSES, 16))

    def forward(self, x: Tensor) -> Tensor:
        features = nn.functional.normalize(torch.relu(self.a(x.flatten(1))))
        return 10 * nn.functional.linear(features, nn.functional.normalize(self.w))


class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.temperature = nn.Linear(64, CLASSES), nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x.flatten(1)) / self.temperature


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.turn = nn.Linear(64, CLASSES), nn.Parameter(torch.ones(64, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return self.a((x.flatten(1) * self.turn).real)


class Attributes(nn.Module):
    """A buffer that is not saved, and a plain tensor, both in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.o, self.scale = nn.Linear(64, 16), nn.Linear(16, CLASSES), torch.full((64,), 2.0)
        self.register_buffer("shift", torch.full((64,), 0.5), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.sigmoid(self.a(self.scale * (x.flatten(1) - self.shift))))


class PerExample(nn.Module):
    """A layer that gets one example without a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.o = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.o(one.flatten()) for one in x])


def _small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, CLASSES))


def _pruned() -> nn.Module:
    model = _small()
    prune.random_unstructured(model[1], "weight", 0.5)
    return model


def _changed(function: Callable[[Any], Any]) -> nn.Module:
    model = _small()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Some are deprecated, but in use.
        function(model[1])
    model(torch.rand(1, *SHAPE))
    return model


def _normed(**options: Any) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, **options), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, CLASSES)
    )


ODD: dict[str, Callable[[], nn.Module]] = {
    "cosine": Cosine,
    "temperature": Temperature,
    "complex": Complex,
    "attributes": Attributes,
    "per_example": PerExample,
    "weight_norm": partial(_changed, nn.utils.weight_norm),
    "spectral_norm": partial(_changed, partial(nn.utils.spectral_norm, n_power_iterations=10)),
    "parametrized": partial(_changed, nn.utils.parametrizations.weight_norm),
    "pruned": _pruned,
    "norm_not_affine": partial(_normed, affine=False),
    "norm_without_statistics": partial(_normed, track_running_stats=False),
    "norm_without_momentum": partial(_normed, momentum=None),
    "compiled": lambda: torch.compile(_small(), backend="eager"),
    "parallel": lambda: nn.DataParallel(_small()),
    "scripted": lambda: torch.jit.script(_small()),
    "traced": lambda: torch.jit.trace(_small(), torch.rand(2, *SHAPE)),
}
"""{name: a network with an unusual parameter, hook, attribute, normalisation or wrapper}."""

LAYERS = sorted(
    name
    for name, kind in vars(nn).items()
    if isinstance(kind, type)
    and issubclass(kind, nn.Module)
    and name not in NO_LAYERS
    and ("Loss" not in name or name == "AdaptiveLogSoftmaxWithLoss")
)
"""Names of the layers of `torch.nn`."""

NAMES = [*LAYERS, *ODD]


def __getattr__(name: str) -> Callable[[], nn.Module]:
    """Return the build function of a network, as `leakbench.models.external` imports it."""
    if name in NAMES:
        return partial(network, name)
    raise AttributeError(name)
