"""Whether a network's derivatives jump, read from autograd's graph."""

import pytest
import torch
from torch import Tensor, nn

from leakbench.models import MODELS, build
from leakbench.models.kinks import kinked

SMOOTH = {"lenet_dlg", "lenet_cpl", "lenet_dlg_gelu", "lenet_cpl_gelu", "mlp_sigmoid", "vit_tiny", "vit_tiny_patch8"}
SMOOTH |= {
    "gpt_tiny",
    "gpt_wide",
    "bert_tiny",
    "unet_tiny",
    "vit_tiny_april",
    "cnn_avg_gelu",
    "lenet_dlg_gelu_batch_norm",
    "cnn_avg_gelu_femnist",
    "cnn_avg_gelu_omniglot",
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_kinks_of_every_network(name):
    """Sigmoids and GELUs are smooth; all others have ReLUs."""
    texts = MODELS[name].texts
    layout = (8, 100) if texts else (123,) if name.startswith("mlp") else (3, 32, 32)
    shape = layout[:1] if texts else layout
    assert kinked(build(name, layout, 10, torch.Generator()), shape) is (name not in SMOOTH)


class Written(nn.Module):
    """A network that calls functions and no modules."""

    def __init__(self, function) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(3, 4), function

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.function(self.layer(x))
        return found


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (torch.relu, True),
        (nn.functional.leaky_relu, True),
        (nn.functional.hardtanh, True),
        (lambda x: x.clamp_min(0), True),
        (lambda x: x.amax(1, keepdim=True), True),
        (torch.tanh, False),
        (nn.functional.silu, False),
        (lambda x: x.softmax(1), False),
        (lambda x: x.log_softmax(1), False),
        (lambda x: x, False),
    ],
)
def test_kinks_of_functions(function, expected):
    assert kinked(Written(function), (3,)) is expected


def test_the_network_is_unchanged():
    """Including its mode, its statistics and its derivatives; also with derivatives off."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        assert kinked(model, (1, 4, 4))
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
