"""Networks of pictures of which blocks, LoRA or adapters are trained: what is frozen stays, and the gradients have closed forms."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Network, Parameters
from leakbench.defense.transform import Stations
from leakbench.federated.client import Examples, client_update, example_signal
from leakbench.models import build, one_hot, parameters
from leakbench.models.resnet import resnet18
from leakbench.models.small import cnn
from leakbench.models.trainable import trainable_of, with_trainable
from leakbench.models.vision_transformer import vision_transformer
from tests.transformer_folders import KINDS, folder

SHAPE, CLASSES = (3, 12, 12), 4


def small(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "vit":
        return vision_transformer(name, SHAPE, CLASSES, patch=4, width=24, depth=2, heads=2).double().eval()
    return (
        (resnet18(name, SHAPE, CLASSES, "group", width=4) if name == "resnet" else cnn(SHAPE, CLASSES)).double().eval()
    )


def network(name: str, rule: str) -> Network:
    model = with_trainable(small(name), rule, generator(0, "rule"), SHAPE)
    return Network(model, parameters(model))


def pictures(*lanes: int) -> tuple[Tensor, Tensor]:
    rng = generator(1, "data")
    x = torch.rand(*lanes, *SHAPE, generator=rng, dtype=torch.float64)
    return x, one_hot(torch.randint(CLASSES, lanes, generator=rng), CLASSES).double()


def gradients(of: Network, many: int = 2) -> Parameters:
    x, y = pictures(1, 1, many)
    return example_signal(of, Examples(x, y, torch.ones(1, 1, many).double(), many), 0).grads


RULES = {
    ("vit", "head"): {"head"},
    ("vit", "blocks:1"): {"block1", "head"},
    ("vit", "blocks:2"): {"block0", "block1", "head"},
    ("resnet", "blocks:3"): {"layer3.1", "layer4.0", "layer4.1", "fc"},
    ("vit", "lora:r=2"): {"block0.attention.qkv.lora", "block1.attention.qkv.lora", "head"},
    ("vit", "adapters:r=2"): {
        *(f"block{i}.{end}.adapter" for i in range(2) for end in ("attention.project", "mlp.2")),
        "head",
    },
    ("cnn", "lora:r=2"): {"0.lora", "3.lora", "7"},
}


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_each_rule_trains_what_it_names_and_keeps_the_other_first_weights(name, rule):
    plain, found = parameters(small(name)), network(name, rule)
    starts = tuple(f"{part}." for part in RULES[name, rule])
    assert all(n.startswith(starts) for n in found.parameters)
    assert all(any(n.startswith(start) for n in found.parameters) for start in starts)
    together = found.parameters | found.frozen
    assert set(plain) <= set(together) and all(torch.equal(together[n], p) for n, p in plain.items())


@pytest.mark.parametrize("name", ["vit", "cnn", "resnet"])
def test_lora_begins_with_the_plain_network(name):
    x = pictures(3)[0]
    assert torch.equal(network(name, "lora:r=2").model(x), small(name)(x))


def test_adapters_without_an_up_projection_are_the_plain_network():
    x, found = pictures(3)[0], network("vit", "adapters:r=3").model
    assert not torch.equal(found(x), small("vit")(x))
    assert torch.allclose(found(x), small("vit")(x), atol=1e-2)  # Houlsby et al. begin near the identity.
    with torch.no_grad():
        for name, p in found.named_parameters():
            if "adapter.up" in name:
                p.zero_()
    assert torch.equal(found(x), small("vit")(x))


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_training_moves_what_is_trained_only(name, rule):
    start = network(name, rule)
    before = {n: p.clone() for n, p in start.model.named_parameters()}
    x, y = pictures(1, 2, 2)
    examples = Examples(x, y, torch.ones(1, 2, 2).double(), 2)
    update = client_update(start, examples, 0.5, Stations(), Clock(0, 0, 1, 2), None).grads
    twin = network(name, rule).model
    optimiser = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], 0.5)
    for step in range(2):
        optimiser.zero_grad()
        nn.functional.cross_entropy(twin(x[0, step]), y[0, step]).backward()
        optimiser.step()
    trained = parameters(twin)
    assert set(update) == set(trained) == set(start.parameters)
    assert all(torch.allclose(update[n][0, 0], trained[n] - p, atol=1e-12) for n, p in start.parameters.items())
    assert all(torch.equal(p, before[n]) for n, p in start.model.named_parameters())


@pytest.mark.parametrize(
    ("name", "layer"), [("vit", "block1.attention.qkv"), ("cnn", "3"), ("resnet", "layer2.0.conv1")]
)
def test_the_gradients_of_lora_are_those_of_the_weight_through_the_other_factor(name, layer):
    """dB = dW A^T, and dA = B^T dW once B is not zero; a kernel is one row of numbers for each output."""
    lora, plain = network(name, "lora:r=2"), Network(small(name), parameters(small(name)))
    down, up = (lora.parameters[f"{layer}.lora.{part}.weight"].flatten(1) for part in ("down", "up"))
    found, whole = gradients(lora), gradients(plain)[f"{layer}.weight"].flatten(3)
    assert not found[f"{layer}.lora.down.weight"].any()
    assert torch.allclose(found[f"{layer}.lora.up.weight"].flatten(3), whole @ down.mT, atol=1e-12)
    assert found[f"{layer}.lora.up.weight"].any() and not up.any()
    moved = dict(lora.parameters)
    moved[f"{layer}.lora.up.weight"] = moved[f"{layer}.lora.up.weight"] + 0.3
    other = small(name)
    with torch.no_grad():
        weight = other.get_parameter(f"{layer}.weight")
        weight += ((up + 0.3) @ down).reshape(weight.shape)
    changed = gradients(Network(other, parameters(other)))[f"{layer}.weight"].flatten(3)
    of_a = gradients(Network(lora.model, moved))[f"{layer}.lora.down.weight"].flatten(3)
    assert torch.allclose(of_a, (up + 0.3).mT @ changed, atol=1e-12)


def test_the_gradients_of_an_adapter_are_sums_over_tokens():
    """dU = delta^T H, dD = G^T Y and db = G^T 1, see the module `trainable`."""
    found, layer = network("vit", "adapters:r=3"), "block0.mlp.2"
    x, y = pictures(1)
    seen: list[Tensor] = []
    adapter = found.model.get_submodule(f"{layer}.adapter")
    handles = [
        adapter.register_forward_pre_hook(lambda _, entered: seen.append(entered[0])),
        adapter.register_forward_hook(
            lambda _, entered, left: left.requires_grad_().retain_grad() or seen.append(left)
        ),
    ]
    nn.functional.cross_entropy(found.model(x), y).backward()
    for handle in handles:
        handle.remove()
    tokens, delta = seen[0][0].detach(), seen[1].grad[0]
    weights = {n: p for n, p in found.parameters.items() if layer in n}
    down, bias, up = (weights[f"{layer}.adapter.{n}"] for n in ("down.weight", "down.bias", "up.weight"))
    hidden = (tokens @ down.mT + bias).relu()
    back = (delta @ up) * (hidden > 0)
    own = gradients(found, 1)
    for name, expected in (
        ("up.weight", delta.mT @ hidden),
        ("up.bias", delta.sum(0)),
        ("down.weight", back.mT @ tokens),
        ("down.bias", back.sum(0)),
    ):
        assert torch.allclose(own[f"{layer}.adapter.{name}"][0, 0], expected, atol=1e-12), name


def test_adapters_begin_as_published():
    """N(0, 0.01^2), at most two deviations, biases zero (Houlsby et al., section 2.1); the global generator does not move."""
    state = torch.get_rng_state()
    model = vision_transformer("vit", SHAPE, CLASSES, patch=4, width=96, depth=2, heads=2)
    torch.set_rng_state(state)
    first, again = (
        parameters(with_trainable(model_, "adapters:r=64", generator(0, "a"), SHAPE))
        for model_ in (model, vision_transformer("vit", SHAPE, CLASSES, patch=4, width=96, depth=2, heads=2))
    )
    weight = first["block0.mlp.2.adapter.down.weight"]
    assert weight.shape == (64, 96) and float(weight.abs().max()) <= 0.02
    assert float(weight.std()) == pytest.approx(0.0088, abs=0.0003)  # 0.01 times the deviation after the cut, .8796
    names = [n for n in first if "adapter" in n]
    assert all(torch.equal(first[n], again[n]) for n in names) and not any(first[n].any() for n in names if "bias" in n)


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_networks_of_texts(kind, tmp_path: Path):
    folder(kind, tmp_path / kind)
    found = build(f"hf:{tmp_path / kind}", (8, 300), CLASSES, generator(0, "model"), trainable="adapters:r=2")
    names = {n.partition(".adapter")[0] for n in parameters(found) if ".adapter." in n}
    assert len(names) == 4  # Two blocks, each with an attention and an MLP.
    plain = build(f"hf:{tmp_path / kind}", (8, 300), CLASSES, generator(0, "model"))
    tokens = torch.randint(1, 300, (2, 8), generator=generator(0, "t")).float()
    with torch.no_grad():
        for n, p in found.named_parameters():
            if "adapter.up" in n:
                p.zero_()
        for n, p in found.classifier.named_parameters():
            p.copy_(plain.classifier.get_parameter(n))
    assert torch.equal(found(tokens), plain(tokens))


class Whole(nn.Module):
    """A network with PyTorch's own attention, whose projections are not layers."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.flatten(1)[:, :8]
        return self.head(self.attention(rows, rows, rows)[0])


def test_what_a_network_does_not_have_is_refused():
    assert [str(trainable_of(t)) for t in ("adapters:r=08", "lora:r=1")] == ["adapters:r=8", "lora:r=1"]
    for text in ("adapters", "adapters:8", "adapters:r=0", "adapter:r=8"):
        with pytest.raises(InputError, match=r"^trainable: got .*adapters:r=N with N >= 1"):
            trainable_of(text)
    for model, rule, message in (
        (small("cnn"), "blocks:1", "has no blocks, as a ViT or a ResNet has; expected all or head"),
        (small("cnn"), "adapters:r=2", "takes a transformer; expected head, lora:r=N, or vit_tiny"),
        (small("vit"), "blocks:3", "the network has 2 blocks; expected at most that"),
        (small("cnn"), "lora:r=100000", "expected r of at most [0-9]+, the rank of the largest layer"),
        (Whole(), "lora:r=2", "the network has no layer for LoRA; expected all or head"),
        (nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 2)), "lora:r=2", "the network has no layer for LoRA"),
    ):
        with pytest.raises(InputError, match=f"^trainable: got '{rule}', .*{message}"):
            with_trainable(model, rule, generator(0, "r"), SHAPE)
