"""The network and the data: plain PyTorch and scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def build() -> nn.Module:
    """Return the network at its first weights, the same in every process."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2, stride=2),
        nn.Sigmoid(),
        nn.Conv2d(12, 12, 5, padding=2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(48, 10),
    )
    for parameter in net.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    return net


def batches(partition: int, partitions: int, number: int, steps: int, batch: int) -> list[tuple[Tensor, Tensor]]:
    """Return what one client trains on in a round: other examples in every step and round."""
    digits = load_digits()
    inputs = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    mine = torch.arange(partition, len(labels), partitions)
    first = (number - 1) * steps * batch
    places = mine[torch.arange(first, first + steps * batch) % len(mine)].reshape(steps, batch)
    return [(inputs[p], labels[p]) for p in places]
