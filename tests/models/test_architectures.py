"""Networks of torchvision and timm at first weights: the label of one example is read right from its gradient, without a search."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from leakbench.attack.slots.labels import LastLayer
from leakbench.external.trace import Trace, Training
from leakbench.models.layers import classifier_of

CLASSES = 10

TORCHVISION: dict[str, tuple[int, dict[str, Any]]] = {
    "alexnet": (64, {}),
    "convnext_tiny": (32, {}),
    "densenet121": (32, {}),
    "efficientnet_b0": (32, {}),
    "googlenet": (64, {"init_weights": False}),
    "inception_v3": (80, {"init_weights": False}),
    "mnasnet0_5": (32, {}),
    "mobilenet_v2": (32, {}),
    "mobilenet_v3_small": (32, {}),
    "regnet_y_400mf": (32, {}),
    "resnet18": (32, {}),
    "resnet50": (32, {}),
    "resnext50_32x4d": (32, {}),
    "shufflenet_v2_x0_5": (32, {}),
    "swin_t": (32, {}),
    "vgg11": (32, {}),
    "vit_b_32": (32, {"image_size": 32}),
}
"""{name: (side of its input, options)}."""

TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "beit_base_patch16_224": (32, {"img_size": 32}),
    "cait_xxs24_224": (32, {"img_size": 32}),
    "convmixer_768_32": (32, {}),
    "deit_tiny_distilled_patch16_224": (32, {"img_size": 32}),
    "deit_tiny_patch16_224": (32, {"img_size": 32}),
    "dm_nfnet_f0": (32, {}),
    "efficientvit_b0": (32, {}),
    "gmlp_s16_224": (32, {"img_size": 32}),
    "hiera_tiny_224": (64, {"img_size": 64}),
    "mixer_s32_224": (32, {"img_size": 32}),
    "mobilenetv3_small_050": (32, {}),
    "pit_ti_224": (224, {}),
    "poolformer_s12": (32, {}),
    "regnetx_002": (32, {}),
    "resnet10t": (32, {}),
    "swin_tiny_patch4_window7_224": (64, {"img_size": 64}),
    "vit_tiny_patch16_224": (32, {"img_size": 32}),
    "xcit_nano_12_p16_224": (32, {"img_size": 32}),
}


def built(library: str, name: str) -> tuple[nn.Module, int]:
    """Return a network at first weights as its library builds it, and the side of its input."""
    torch.manual_seed(0)
    if library == "torchvision":
        from torchvision.models import get_model  # noqa: PLC0415

        side, options = TORCHVISION[name]
        return get_model(name, weights=None, num_classes=CLASSES, **options), side
    timm = pytest.importorskip("timm")
    side, options = TIMM[name]
    return timm.create_model(name, pretrained=False, num_classes=CLASSES, **options), side


def labels_right(library: str, name: str) -> bool:
    """Return whether the labels of single examples are read right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, side = built(library, name)
        model.eval()
        shape = (3, side, side)
        x, y = torch.rand(2, *shape, generator=torch.Generator().manual_seed(1)), torch.tensor([3, 7])
        updates = []
        for one, label in zip(x, y, strict=True):
            model.zero_grad()
            nn.functional.cross_entropy(model(one[None]), label[None]).backward()
            updates.append(
                {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
            )
        view = Trace(model, updates, shape, CLASSES, Training()).view
        found = classifier_of(view.network.model, shape)
        guess = LastLayer()(view, tuple(torch.Generator() for _ in y))
    return found is not None and not guess.joint and torch.equal(guess.targets[:, 0].argmax(-1), y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "name"), [*(("torchvision", name) for name in TORCHVISION), *(("timm", name) for name in TIMM)]
)
def test_the_label_of_one_example_is_right(library: str, name: str) -> None:
    assert labels_right(library, name)
