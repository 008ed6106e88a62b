"""The small networks of the papers: the Fed-alphaCDP paper's CNN and multilayer perceptrons."""

from __future__ import annotations

from torch import Tensor, nn

from leakbench.models.shapes import Shape, features, picture

__all__ = ["cnn", "cnn_avg", "cnn_fc", "mlp", "mlp_100", "mlp_256", "mlp_600", "mlp_1000", "mlp_relu", "mlp_sigmoid"]


def cnn(shape: Shape, classes: int) -> nn.Module:
    """The Fed-alphaCDP paper's CNN as released: conv3x3(32), conv3x3(64), each ReLU and 2x2 max pooling, one linear layer.

    No biases; its own initialisation is Glorot uniform; 34,720 parameters on MNIST.
    """
    channels, height, width = picture("cnn", shape, 10)
    rows, columns = (((side - 2) // 2 - 2) // 2 for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * rows * columns, classes, bias=False),
    )


WHITE: dict[str, tuple[float, float]] = {
    "femnist": (0.9642384386141873, 0.15767843198426892),
    "omniglot": (0.921, 0.230),
}
"""{data set of dark strokes on white: mean and deviation of its pixels}; FEMNIST's are those of Dimitrov et al.'s released code."""


class Standardised(nn.Module):
    """Subtract a mean and divide by a deviation, before the first layer.

    Code that standardises its inputs does so outside the network. Without it, a page that is mostly white gives nearly the same
    activations for all pictures.
    """

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        self.mean, self.deviation = mean, deviation

    def forward(self, x: Tensor) -> Tensor:
        """Return pictures (n, c, H, W) in deviations."""
        return (x - self.mean) / self.deviation


def cnn_avg(name: str, shape: Shape, classes: int, activation: type[nn.Module], standardised: str = "") -> nn.Module:
    """The CNN that Dimitrov et al. attack after several local epochs, with ReLU as released or with GELU, and with biases.

    TMLR 2022, arXiv:2206.12395: conv3x3(32), conv3x3(64), each with 2x2 average pooling, a linear layer of 100 and one of the
    classes; 333,526 parameters on MNIST. First weights normal with deviation 1 / sqrt(fan in), cut at two deviations; the released
    code divides them by 0.88. It also standardises its inputs, which is a first layer here if `standardised` names one of `WHITE`.
    """
    channels, height, width = picture(name, shape, 4)
    return nn.Sequential(
        *([Standardised(*WHITE[standardised])] if standardised else []),
        nn.Conv2d(channels, 32, 3, padding=1),
        activation(),
        nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        activation(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 100),
        activation(),
        nn.Linear(100, classes),
    )


def cnn_fc(name: str, shape: Shape, classes: int, rows: int) -> nn.Module:
    """The CNN that Scale-MIA attacks, as released: three convolutions and fully connected layers of `rows` and 512, with biases.

    Shi et al., NDSS 2025, arXiv:2311.05808, with 1,024 rows on CIFAR-10: 12, 32 and 64 channels, kernels 4x4 of stride 2, each
    with ReLU. The released code also applies a ReLU to the logits, which is left out here. PyTorch's own initialisation.
    """
    channels, height, width = picture(name, shape, 8)
    return nn.Sequential(
        nn.Conv2d(channels, 12, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * (height // 8) * (width // 8), rows),
        nn.ReLU(),
        nn.Linear(rows, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden ReLU layers of 128 and 64, with biases (the paper gives the depth, not the widths); Glorot uniform."""
    return _perceptron(shape, classes, (128, 64), nn.ReLU)


def mlp_100(shape: Shape, classes: int) -> nn.Module:
    """The network that TabLeak attacks (arXiv:2210.01785): two hidden ReLU layers of 100, with biases.

    PyTorch's own initialisation, which its released code leaves as it is.
    """
    return _perceptron(shape, classes, (100, 100), nn.ReLU)


def mlp_256(shape: Shape, classes: int) -> nn.Module:
    """One hidden ReLU layer of 256, with biases: the priority paper's network, 203,530 parameters on MNIST; Glorot uniform."""
    return _perceptron(shape, classes, (256,), nn.ReLU)


def mlp_600(shape: Shape, classes: int) -> nn.Module:
    """Hidden ReLU layers of 600 and 100 without biases, as Geyer et al. (2017) released it; 531,400 parameters on MNIST.

    First weights normal with deviation 1 / sqrt(fan in), cut at two deviations.
    """
    return _perceptron(shape, classes, (600, 100), nn.ReLU, bias=False)


def mlp_1000(shape: Shape, classes: int) -> nn.Module:
    """Hidden ReLU layers of 1,000 and 100, with biases: malicious servers read the first one (Boenisch et al.).

    PyTorch's own initialisation.
    """
    return _perceptron(shape, classes, (1000, 100), nn.ReLU)


def mlp_relu(shape: Shape, classes: int) -> nn.Module:
    """Two hidden ReLU layers of 200, with biases, PyTorch's own initialisation, so that biases are not zero.

    SPEAR's layers (Dimitrov et al., NeurIPS 2024, width 200). Exact attacks reconstruct inputs from the zeros of the ReLU.
    """
    return _perceptron(shape, classes, (200, 200), nn.ReLU)


def mlp_sigmoid(shape: Shape, classes: int) -> nn.Module:
    """The sigmoid LeNet's twin for tables: hidden sigmoid layers of 128 and 64; weights and biases uniform in (-0.5, 0.5)."""
    return _perceptron(shape, classes, (128, 64), nn.Sigmoid)


def _perceptron(
    shape: Shape, classes: int, hidden: tuple[int, ...], activation: type[nn.Module], bias: bool = True
) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    entering = features(shape)
    for width in hidden:
        layers += [nn.Linear(entering, width, bias), activation()]
        entering = width
    return nn.Sequential(*layers, nn.Linear(entering, classes, bias))
