"""ResNet18 for small pictures, with batch or group normalisation; its parameters have torchvision's names."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import Tensor, nn

from leakbench.models.batch_norm import BatchNorm
from leakbench.models.shapes import Shape, picture

__all__ = ["resnet18"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 convolution if the shape changes."""

    def __init__(self, entering: int, leaving: int, stride: int, norm: Literal["batch", "group"]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(entering, leaving, 3, stride=stride, padding=1, bias=False)
        self.bn1 = _norm(norm, leaving)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(leaving, leaving, 3, padding=1, bias=False)
        self.bn2 = _norm(norm, leaving)
        self.downsample = nn.Sequential()
        if stride > 1 or entering != leaving:
            shorter = nn.Conv2d(entering, leaving, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shorter, _norm(norm, leaving))

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, leaving, ceil(H / stride), ceil(W / stride)) for (n, entering, H, W)."""
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out: Tensor = self.relu(inner + self.downsample(x))
        return out


def _norm(norm: Literal["batch", "group"], channels: int) -> nn.Module:
    """Return batch normalisation, or group normalisation in 32 groups (Wu and He, ECCV 2018)."""
    return BatchNorm(channels) if norm == "batch" else nn.GroupNorm(min(32, channels), channels)


def resnet18(name: str, shape: Shape, classes: int, norm: Literal["batch", "group"], width: int = 64) -> nn.Module:
    """ResNet18 (He et al., CVPR 2016) with the stem for small pictures: 3x3, stride 1, no max pooling.

    Four stages of two blocks with width * (1, 2, 4, 8) channels; the last three halve the picture. 11,173,962 parameters on
    CIFAR-10. The default initialisation is torchvision's. Batch norm requires pictures of at least 9 x 9, so that the last
    stage has several values per channel for a single picture.
    """
    channels, _, _ = picture(name, shape, 9 if norm == "batch" else 4)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(channels, width, 3, padding=1, bias=False), bn1=_norm(norm, width), relu=nn.ReLU()
    )
    entering = width
    for stage, stride in enumerate((1, 2, 2, 2)):
        leaving = width * 2**stage
        first = BasicBlock(entering, leaving, stride, norm)
        layers[f"layer{stage + 1}"] = nn.Sequential(first, BasicBlock(leaving, leaving, 1, norm))
        entering = leaving
    layers.update(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(entering, classes))
    return nn.Sequential(layers)
