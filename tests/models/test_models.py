"""The networks against their published forms, and every one under what attacks do: vmap over lanes, differentiation twice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Network
from leakbench.defense.transform import Stations
from leakbench.federated.client import Examples, example_signal
from leakbench.federated.leakage import leak
from leakbench.models import MODELS, build, one_hot, parameters
from leakbench.models.batch_norm import in_client_mode
from leakbench.models.convnet import convnet
from leakbench.models.initialise import initialise, rule_of, torch_default
from leakbench.models.resnet import resnet18
from leakbench.models.vision_transformer import Block, vision_transformer

SHAPE, CLASSES = (3, 12, 12), 4
CLOCK = Clock(0, 0, 1, 1)

SMALL: dict[str, Callable[[], nn.Module]] = {
    "convnet": lambda: convnet("convnet", SHAPE, CLASSES, norm=True, width=2),
    "convnet_no_norm": lambda: convnet("convnet_no_norm", SHAPE, CLASSES, norm=False, width=2),
    "resnet18_batch_norm": lambda: resnet18("resnet18", SHAPE, CLASSES, "batch", width=4),
    "resnet18_group_norm": lambda: resnet18("resnet18", SHAPE, CLASSES, "group", width=4),
    "vit_tiny": lambda: vision_transformer("vit_tiny", SHAPE, CLASSES, patch=4, width=12, depth=2, heads=2),
    "lenet_cpl_relu": lambda: MODELS["lenet_cpl_relu"].builder(SHAPE, CLASSES),
    "lenet_dlg_gelu": lambda: MODELS["lenet_dlg_gelu"].builder(SHAPE, CLASSES),
    "lenet_dlg_gelu_batch_norm": lambda: MODELS["lenet_dlg_gelu_batch_norm"].builder(SHAPE, CLASSES),
    "mlp_relu": lambda: MODELS["mlp_relu"].builder(SHAPE, CLASSES),
    "mlp_1000": lambda: MODELS["mlp_1000"].builder(SHAPE, CLASSES),
    "cnn_fc_1024": lambda: MODELS["cnn_fc_1024"].builder(SHAPE, CLASSES),
    "cnn_avg_gelu_femnist": lambda: MODELS["cnn_avg_gelu_femnist"].builder(SHAPE, CLASSES),
}


def small(name: str, seed: int = 0, dtype: torch.dtype = torch.float32) -> Network:
    model = initialise(SMALL[name](), torch_default, generator(seed, "model")).eval().to(dtype)
    return Network(model, parameters(model))


def data(lanes: int, batch: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    rng = generator(1, "data")
    inputs = torch.rand(lanes, 1, batch, *SHAPE, generator=rng, dtype=dtype)
    labels = torch.randint(CLASSES, (lanes, 1, batch), generator=rng)
    return inputs, one_hot(labels, CLASSES).to(dtype)


# As published


def torchvision_resnet18(norm: Callable[[int], nn.Module]) -> nn.Module:
    from torchvision.models import resnet18 as published  # noqa: PLC0415

    model = published(num_classes=10, norm_layer=norm)
    model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    return model


def test_mlp_600_equals_the_released_network() -> None:
    """784-600-100-10 without biases (Geyer et al.), weights of deviation 1 / sqrt(fan in) truncated at two deviations."""
    weights = parameters(build("mlp_600", (1, 28, 28), 10, generator(0, "model")))
    assert [tuple(w.shape) for w in weights.values()] == [(600, 784), (100, 600), (10, 100)]
    assert sum(w.numel() for w in weights.values()) == 531_400
    for weight in weights.values():
        deviation = weight.shape[1] ** -0.5
        assert 1.9 * deviation < float(weight.abs().max()) <= 2 * deviation
        # A normal distribution truncated at two deviations has .88 of its deviation.
        assert float(weight.std()) == pytest.approx(0.88 * deviation, rel=0.05)


def test_cnn_avg_equals_the_released_network() -> None:
    """Dimitrov et al.: 3x3 convolutions of 32 and 64 channels, average pooling, linear layers of 100 and of the classes."""
    model = build("cnn_avg_relu", (1, 28, 28), 10, generator(0, "model"))
    weights = parameters(model)
    assert [tuple(w.shape) for w in weights.values() if w.dim() > 1] == [
        (32, 1, 3, 3), (64, 32, 3, 3), (100, 64 * 7 * 7), (10, 100)
    ]  # fmt: skip
    assert sum(w.numel() for w in weights.values()) == 333_526
    assert all(not w.any() for w in weights.values() if w.dim() == 1)
    x = torch.rand(2, 1, 28, 28, generator=generator(0, "x"))
    hidden = x
    for name in ("0", "3"):
        hidden = F.avg_pool2d(F.conv2d(hidden, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1).relu(), 2)
    hidden = F.linear(hidden.flatten(1), weights["7.weight"], weights["7.bias"]).relu()
    torch.testing.assert_close(model(x), F.linear(hidden, weights["9.weight"], weights["9.bias"]))
    smooth = build("cnn_avg_gelu", (1, 28, 28), 10, generator(0, "model"))
    assert all(torch.equal(w, weights[n]) for n, w in parameters(smooth).items())


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize(("data", "mean", "deviation"), [("femnist", 0.9642, 0.1577), ("omniglot", 0.921, 0.23)])
def test_networks_that_standardise_their_inputs(activation: str, data: str, mean: float, deviation: float) -> None:
    """The same first weights as without, and the same outputs for inputs that are standardised before."""
    plain, inside = (
        build(f"cnn_avg_{activation}{end}", (1, 28, 28), 62, generator(0, "m")) for end in ("", f"_{data}")
    )
    for a, b in zip(plain.parameters(), inside.parameters(), strict=True):
        assert torch.equal(a, b)
    x = torch.rand(3, 1, 28, 28, generator=generator(0, "x"))
    torch.testing.assert_close(inside(x), plain((x - mean) / deviation), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet18_equals_torchvisions(norm: str, mode: str) -> None:
    """torchvision's weights and running statistics by name: the same outputs in both modes, and 11,173,962 weights."""
    ours = build(f"resnet18_{norm}_norm", (3, 32, 32), 10, generator(0, "model"))
    theirs = torchvision_resnet18(nn.BatchNorm2d if norm == "batch" else lambda channels: nn.GroupNorm(32, channels))
    for name, buffer in ours.named_buffers():
        buffer.copy_(torch.rand(buffer.shape, generator=generator(0, name)) + 0.5)
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert unexpected == []
    assert all(name.endswith("num_batches_tracked") for name in missing)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters()) == 11_173_962
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    x = torch.rand(2, 3, 32, 32, generator=generator(0, "inputs"))
    ours.train(mode == "train")
    theirs.train(mode == "train")
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


def test_resnet18_is_initialised_like_torchvisions() -> None:
    """Convolutions of variance 2 / fan-out, scales one, shifts zero, the last layer within 1 / sqrt(fan-in)."""
    ours = parameters(build("resnet18_batch_norm", (3, 32, 32), 10, generator(0, "model")))
    theirs = parameters(torchvision_resnet18(nn.BatchNorm2d))
    for name in ("layer1.0.conv1.weight", "layer4.1.conv2.weight", "layer2.0.downsample.0.weight", "fc.weight"):
        assert float(ours[name].std()) == pytest.approx(float(theirs[name].std()), rel=0.05), name
    assert all(torch.equal(p, theirs[n]) for n, p in ours.items() if "bn" in n)


def test_convnet_equals_the_published_network() -> None:
    """Eight convolutions of 64, 128, 128, 256 x 5 with batch norm, pooled by 3 twice, layer by layer in torch."""
    widths = (64, 128, 128, 256, 256, 256, 256, 256)
    layers: list[nn.Module] = []
    for index, (entering, leaving) in enumerate(zip((3, *widths), widths, strict=False)):
        layers += [nn.Conv2d(entering, leaving, 3, padding=1), nn.BatchNorm2d(leaving), nn.ReLU()]
        layers += [nn.MaxPool2d(3)] if index in (5, 7) else []
    theirs = nn.Sequential(*layers, nn.Flatten(), nn.Linear(36 * 64, 10))
    ours = build("convnet", (3, 32, 32), 10, generator(0, "model"))
    for mine, published in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.shape == published.shape
        published.data.copy_(mine.detach())
    x = torch.rand(2, 3, 32, 32, generator=generator(0, "inputs"))
    for mode in (False, True):
        torch.testing.assert_close(ours.train(mode)(x), theirs.train(mode)(x), rtol=1e-4, atol=1e-4)
    assert sum(p.numel() for p in ours.parameters()) == 2_904_970
    bare = build("convnet_no_norm", (3, 32, 32), 10, generator(0, "model"))
    assert sum(p.numel() for p in bare.parameters()) == 2_904_970 - 2 * sum(widths)


def test_a_block_of_the_transformer_equals_torchs_layer() -> None:
    """Pre-norm, GELU, four times as wide inside: torch.nn.TransformerEncoderLayer with the same weights."""
    mine = initialise(Block(12, 3), torch_default, generator(0, "model")).eval()
    theirs = nn.TransformerEncoderLayer(12, 3, 48, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True).eval()
    names = {
        **{"attention.qkv.weight": "self_attn.in_proj_weight", "attention.qkv.bias": "self_attn.in_proj_bias"},
        **{f"attention.project.{p}": f"self_attn.out_proj.{p}" for p in ("weight", "bias")},
        **{f"mlp.{a}.{p}": f"linear{b}.{p}" for a, b in ((0, 1), (2, 2)) for p in ("weight", "bias")},
    }
    theirs.load_state_dict({names.get(n, n): p for n, p in mine.state_dict().items()})
    x = torch.randn(2, 5, 12, generator=generator(0, "inputs"))
    torch.testing.assert_close(mine(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_the_transformer_sees_patches_and_their_places() -> None:
    """With equal positional embeddings the place of a patch does not matter, with different ones it does; ViT-Ti's count."""
    net = small("vit_tiny")
    x = torch.rand(1, *SHAPE, generator=generator(0, "inputs"))
    moved = x.roll(4, -1)  # Shifted by one patch.
    alike = {**net.parameters, "patches.positions": torch.zeros(1, 10, 12)}
    torch.testing.assert_close(*(functional_call(net.model, alike, (z,)) for z in (x, moved)), rtol=1e-4, atol=1e-5)
    placed = {**net.parameters, "patches.positions": torch.randn(1, 10, 12, generator=generator(0, "positions"))}
    first, second = (functional_call(net.model, placed, (z,)) for z in (x, moved))
    assert (first - second).abs().max() > 1e-3
    block = 4 * 192 + 12 * 192**2 + (3 + 1 + 4 + 1) * 192
    expected = (48 + 1 + 1 + 65) * 192 + 12 * block + 2 * 192 + 193 * 10
    assert sum(p.numel() for p in build("vit_tiny", (3, 32, 32), 10, generator(0, "m")).parameters()) == expected


@pytest.mark.parametrize("name", ["lenet_dlg", "lenet_cpl"])
def test_lenets_differ_in_their_activation_alone(name: str) -> None:
    """The same weights from the same generator under one initialisation; different outputs."""
    x = torch.rand(1, 1, 28, 28, generator=generator(0, "inputs"))
    several = [build(name + s, (1, 28, 28), 10, generator(0, "model"), "uniform:0.5") for s in ("", "_relu", "_gelu")]
    first = parameters(several[0])
    assert all(torch.equal(p, first[n]) for model in several for n, p in parameters(model).items())
    outputs = [model(x) for model in several]
    assert all(not torch.allclose(a, b) for a, b in ((outputs[0], outputs[1]), (outputs[1], outputs[2])))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_batch_norm_of_a_lenet_is_the_identity_at_its_first_statistics(activation: str) -> None:
    """In eval mode, with a mean of 0 and a variance of 1 up to epsilon; in train mode, the outputs are those of another network."""
    normal = build(f"lenet_dlg_{activation}_batch_norm", (3, 32, 32), 10, generator(0, "model"))
    plain = build(f"lenet_dlg_{activation}", (3, 32, 32), 10, generator(0, "model"))
    state = plain.state_dict()
    for layer in (0, 2, 4):  # Convolution, normalisation and activation are three layers instead of two.
        state[f"{layer}.weight"] = normal.state_dict()[f"{layer // 2 * 3}.weight"]
        state[f"{layer}.bias"] = torch.zeros(12)
    state |= {f"7.{name}": normal.state_dict()[f"10.{name}"] for name in ("weight", "bias")}
    plain.load_state_dict(state)
    x = torch.rand(2, 3, 32, 32, generator=generator(0, "inputs"))
    torch.testing.assert_close(normal(x), plain(x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(in_client_mode(normal, "train")(x), plain(x), rtol=1e-2, atol=1e-2)


# Under what attacks do


@pytest.mark.parametrize("name", list(SMALL))
def test_lanes_equal_a_loop(name: str) -> None:
    """Two lanes with separate weights, three examples each, equal one backward pass after the other."""
    double = torch.float64
    net, other, (x, y) = small(name, 0, double), small(name, 1, double), data(2, 3, double)
    both = {n: torch.stack([p, other.parameters[n]]) for n, p in net.parameters.items()}
    found = example_signal(Network(net.model, both, shared=False), Examples(x, y, x.new_ones(2, 1, 3), 3), 0).grads
    for lane in range(2):
        held = {n: p[lane].clone().requires_grad_() for n, p in both.items()}
        for member in range(3):
            logits = functional_call(net.model, held, (x[lane, 0, member : member + 1],))
            loss = nn.functional.cross_entropy(logits, y[lane, 0, member : member + 1])
            for n, g in zip(held, torch.autograd.grad(loss, list(held.values())), strict=True):
                torch.testing.assert_close(found[n][lane, member], g, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("name", list(SMALL))
def test_a_gradient_can_be_matched(name: str, mode: str) -> None:
    """The squared distance of two leaks has a finite derivative by the guess,
    equal to a finite difference at one pixel (float64).
    """
    net, (x, y) = small(name, dtype=torch.float64), data(1, 3, torch.float64)
    net = dataclasses.replace(net, model=net.model.train(mode == "train"))
    truth = leak("type-1", net, x[:, None], y[:, None], 0.1, Stations(), CLOCK, None)
    start = torch.rand(x[:, None].shape, generator=generator(2, "guess"), dtype=torch.float64)

    def distance(guess: Tensor) -> Tensor:
        seen = leak("type-1", net, guess, y[:, None], 0.1, Stations(), CLOCK, None)
        return torch.stack([(seen[n] - truth[n]).square().sum() for n in truth]).sum()

    guess = start.clone().requires_grad_()
    (slope,) = torch.autograd.grad(distance(guess), guess)
    assert slope.isfinite().all()
    place = int(slope.abs().argmax())
    step = torch.zeros_like(start).flatten().index_fill(0, torch.tensor(place), 1e-6).reshape(start.shape)
    with torch.no_grad():
        expected = (distance(start + step) - distance(start - step)) / 2e-6
    assert float(slope.flatten()[place]) == pytest.approx(float(expected), rel=1e-3)
    assert float(expected) != 0


# Initial weights


@pytest.mark.slow
def test_initial_weights_depend_only_on_the_generator() -> None:
    """The state of torch's own generator changes nothing; ours changes everything that is drawn."""
    for name, architecture in MODELS.items():
        shape = (8, 100) if architecture.texts else (3, 16, 16)
        drawn = []
        for seed, own in ((0, 0), (1, 0), (0, 1)):
            torch.manual_seed(seed)
            drawn.append(parameters(build(name, shape, 2, generator(own, "model"))))
        assert all(torch.equal(p, drawn[1][n]) for n, p in drawn[0].items()), name
        assert any(not torch.equal(p, drawn[2][n]) for n, p in drawn[0].items()), name


@pytest.mark.parametrize(
    ("init", "std", "bias"),
    [
        ("torch", 1 / math.sqrt(3 * 3072), 1 / math.sqrt(3 * 3072)),
        ("kaiming", math.sqrt(2 / 3072), 0.0),
        ("xavier", math.sqrt(2 / (3072 + 200)), 0.0),
        ("uniform:0.5", 0.5 / math.sqrt(3), 0.5 / math.sqrt(3)),
    ],
)
def test_an_initialisation_has_the_spread_of_its_formula(init: str, std: float, bias: float) -> None:
    """The first layer, 3,072 to 200; mean zero; the normalisation of another network stays at one and zero."""
    first = list(parameters(build("mlp_relu", (3, 32, 32), 10, generator(0, "model"), init)).values())
    assert float(first[0].std()) == pytest.approx(std, rel=0.01)
    assert abs(float(first[0].mean())) < 0.01 * std
    assert float(first[1].std()) == pytest.approx(bias, rel=0.15)
    if init in ("torch", "uniform:0.5"):
        assert 0.99 < float(first[0].abs().max()) / (std * math.sqrt(3)) <= 1
    normed = initialise(SMALL["resnet18_group_norm"](), rule_of(init)[1] or torch_default, generator(0, "model"))
    assert {v for n, p in parameters(normed).items() if "bn1" in n for v in p.tolist()} == {0.0, 1.0}


def test_torch_initialisation_equals_torchs_default() -> None:
    """For the layers that torch itself initialises."""
    mine = initialise(nn.Sequential(nn.Conv2d(3, 64, 5), nn.Linear(50, 400)), torch_default, generator(0, "model"))
    for layer, plain in zip(mine, (nn.Conv2d(3, 64, 5), nn.Linear(50, 400)), strict=True):
        for drawn, theirs in zip(parameters(layer).values(), parameters(plain).values(), strict=True):
            assert float(drawn.abs().max()) == pytest.approx(float(theirs.abs().max()), rel=0.06)


def test_each_network_has_a_default_initialisation() -> None:
    """`default` gives the same draw as the rule that the network names."""
    for name, own in (("cnn", "xavier"), ("lenet_cpl", "uniform:0.5"), ("lenet_cpl_relu", "torch"), ("mlp", "xavier")):
        one, two = (parameters(build(name, (1, 28, 28), 10, generator(0, "m"), init)) for init in ("default", own))
        assert all(torch.equal(p, two[n]) for n, p in one.items()), name


@given(st.floats(1e-3, 100))
@settings(max_examples=20, deadline=None)
def test_uniform_stays_within_its_bound(bound: float) -> None:
    """The short name means the same."""
    name, rule = rule_of(f"uniform:{bound}")
    assert rule is not None
    drawn = initialise(nn.Sequential(nn.Linear(9, 5)), rule, generator(0, "model"))
    assert all(float(p.abs().max()) <= bound for p in parameters(drawn).values())
    assert rule_of(name)[0] == name


@pytest.mark.parametrize(
    "text", ["", "Torch", "he", "uniform", "uniform:", "uniform:0", "uniform:-1", "uniform:nan", "uniform:1e9"]
)
def test_another_initialisation_is_refused(text: str) -> None:
    """One line that names the field and what is accepted."""
    with pytest.raises(InputError, match=r"^init: got .*expected default, torch, kaiming, xavier or uniform:<a>"):
        build("mlp", (4,), 2, generator(0, "model"), text)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("convnet", (1, 8, 8), r"at least 9 x 9, got shape \(1, 8, 8\)"),
        ("resnet18_batch_norm", (1, 8, 8), "at least 9 x 9"),
        ("resnet18_group_norm", (30,), r"pictures .* got shape \(30,\)"),
        ("vit_tiny", (1, 25, 25), "patches of 4 x 4, got 25 x 25, expected sides that are multiples of 4"),
        ("vit_tiny_patch8", (1, 28, 28), "multiples of 8"),
        ("lenet_cpl_gelu", (5,), "pictures"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(name: str, shape: tuple[int, ...], words: str) -> None:
    """One line with the network, the given shape and the accepted ones."""
    with pytest.raises(InputError, match=f"^model: '{name}' .*{words}") as raised:
        build(name, shape, 3, generator(0, "model"))
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, architecture in MODELS.items() if not architecture.texts])
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 64, 64)])
def test_every_network_accepts_the_usual_pictures(name: str, shape: tuple[int, ...]) -> None:
    """Shapes only, without numbers; patches of 8 do not divide 28."""
    if name == "vit_tiny_patch8" and shape[1] % 8:
        with pytest.raises(InputError, match="multiples of 8"):
            MODELS[name].builder(shape, 7)
        return
    with torch.device("meta"):
        assert MODELS[name].builder(shape, 7).eval()(torch.empty(2, *shape)).shape == (2, 7)


def test_a_layer_without_a_rule_of_initialisation_is_refused() -> None:
    """torch's batch normalisation would be drawn as noise, and hide that the network depends on the mode."""
    with pytest.raises(TypeError, match="initialise: BatchNorm2d has no rule here"):
        initialise(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), torch_default, generator(0, "model"))
