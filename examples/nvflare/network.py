"""The network and the data of the example: one image of a digit for each client."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


def build() -> nn.Module:
    """Return the network with the same weights each time."""
    torch.manual_seed(0)
    return Network()


class Network(nn.Module):
    """A layer of sigmoids and a last layer; NVFlare builds the class by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.last = nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (n, 10) of images (n, 1, 8, 8)."""
        logits: Tensor = self.last(torch.sigmoid(self.hidden(inputs.flatten(1))))
        return logits


def examples(client: int) -> tuple[Tensor, Tensor]:
    """Return the images (1, 1, 8, 8) in [0, 1] and the labels (1,) of a client, from 0."""
    digits = load_digits()
    mine = slice(client, client + 1)
    return torch.tensor(digits.images[mine] / 16, dtype=torch.float32)[:, None], torch.tensor(digits.target[mine])
