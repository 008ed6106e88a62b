"""Placeholders for what is not installed: modules that no score uses, packages without their `__init__`, random weights."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch

__all__ = ["PLACEHOLDERS", "package_without_init", "random_backbone", "stand_in"]

PLACEHOLDERS = {
    "breaching": "hydra, omegaconf and breaching.cases; its data, users and servers are the given arrays",
    "GradAttack": "pkg_resources, which torchmetrics 0.6.0 uses to find optional packages",
    "LeakPro": "seaborn, optuna and transformers; its package is loaded without the imports of `leakpro/__init__.py`",
}

BACKBONE_FILES = {"alex": "alexnet-random.pth", "vgg": "vgg16-random.pth"}


def stand_in(*names: str) -> None:
    """Let modules be imported that no score needs."""
    for name in names:
        sys.modules[name] = MagicMock(__path__=[], __spec__=None)


def package_without_init(name: str, folder: Path) -> ModuleType:
    """Return a package whose modules can be imported without what its `__init__` imports."""
    sys.modules[name] = module = ModuleType(name)
    module.__path__ = [str(folder)]
    return module


def random_backbone(net: str, folder: Path) -> Any:
    """Return LPIPS on a backbone of random weights, which are saved in `folder` as torchvision names them."""
    import lpips  # noqa: PLC0415

    torch.manual_seed(0)
    network = lpips.LPIPS(net=net, pnet_rand=True, verbose=False)
    weights = {"features." + n.split(".", 1)[1]: w for n, w in network.net.state_dict().items()}
    torch.save(weights, folder / BACKBONE_FILES[net])
    lpips.LPIPS = lambda *_, **__: network
    return network
