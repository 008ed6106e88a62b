"""Networks outside the catalog: their names, first weights, weights of a file, and their gradients next to PyTorch's own."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from leakbench.cell.resolve import plan_cell, resolve_cell
from leakbench.core.errors import InputError
from leakbench.core.recipe import catalog_folder
from leakbench.core.request import Request
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Network
from leakbench.defense.transform import Stations
from leakbench.federated.leakage import leak
from leakbench.models import build, one_hot, parameters
from leakbench.models.batch_norm import BatchNorm, depends_on_mode, in_client_mode, mixes_examples
from leakbench.models.conversion import convert_norms
from leakbench.models.external import ExternalNetwork
from leakbench.models.references import identity_of, named, shown
from leakbench.reproduce.file import cell_fields
from leakbench.study.grid import grid_of

SHAPE, CLASSES = (3, 12, 12), 4
CLOCK = Clock(0, 0, 1, 1)

SOURCE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.fc = nn.Linear(6, classes)  # Registered first, runs last.
        self.conv = nn.Conv2d(channels, 6, 3, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("steps", torch.tensor([1, 2]))

    def forward(self, x):
        x = self.act(self.norm(self.conv(x)))
        x = x + 1
        return self.fc(nn.functional.dropout(self.drop(x.mean((2, 3))), 0.5, self.training))

def build(shape, classes):
    return Net(shape[0], classes)

def fixed():
    return Net(3, 4)

def other(depth):
    return Net(3, 4)

def number():
    return 3

def wrong():
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 7))

def odd():
    class Own(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x) * 2
    return nn.Sequential(nn.Conv2d(3, 2, 3), Own(2), nn.Flatten(), nn.LazyLinear(4))

class Changed(nn.Sequential):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        z = super().forward(x)
        first = torch.tensor([1.0, 0, 0, 0])
        mixed = {how: z - z.mean(0) / 2 * part for how, part in (("mixing", 1), ("mixing_one", first))}
        return (mixed | {"counting": z * self.calls, "drawing": z + torch.randn_like(z)})[self.how]

def _changed(how):
    model = Changed(nn.Flatten(), nn.Linear(432, 4))
    model.how = how
    return model

def mixing():
    return _changed("mixing")

def mixing_one():
    return _changed("mixing_one")

def counting():
    return _changed("counting")

def drawing():
    return _changed("drawing")

def infinite():
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 4))
    model[1].weight.data.fill_(torch.nan)
    return model

def keeping():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten(), nn.Linear(200, 4))
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder, now the working directory, with a module `mynets`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "mynets", raising=False)
    (tmp_path / "mynets.py").write_text(SOURCE)
    return tmp_path


def _leaked(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    network = Network(model, parameters(model))
    return leak("type-1", network, x[:, None, None], y[:, None, None], 0.1, Stations(), CLOCK, None)


def _batch(victims: int = 2, size: int = 2) -> tuple[Tensor, Tensor]:
    rng = generator(0, "batch")
    x = torch.rand(victims, size, *SHAPE, generator=rng)
    return x, one_hot(torch.randint(CLASSES, (victims, size), generator=rng), CLASSES)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_gradients_are_those_of_pytorch(mine: Path, mode: str) -> None:
    x, y = _batch()
    model = in_client_mode(build("mynets:build", SHAPE, CLASSES, generator(0, "model")), mode)
    assert mixes_examples(model) == (mode == "train")
    update = _leaked(model, x, y)
    import mynets  # noqa: PLC0415

    theirs = mynets.fixed().eval()
    theirs.load_state_dict(model.state_dict(), strict=False)
    theirs.norm.train(mode == "train")
    for victim in range(len(x)):
        own = copy.deepcopy(theirs)
        loss = nn.functional.cross_entropy(own(x[victim]), y[victim])
        loss.backward()
        for name, parameter in own.named_parameters():
            torch.testing.assert_close(update[name][victim], parameter.grad, rtol=1e-3, atol=1e-6)


def test_layers_are_listed_as_they_run_and_dropout_is_off(mine: Path) -> None:
    model = in_client_mode(build("mynets:build", SHAPE, CLASSES, generator(0, "model")), "train")
    assert [n for n, _ in model.named_children()][:2] == ["conv", "norm"]
    assert list(parameters(model))[-2:] == ["fc.weight", "fc.bias"]
    assert isinstance(model.norm, BatchNorm)
    assert model.norm.training
    assert not model.training
    assert not model.drop.training
    assert not model.act.inplace
    assert set(Network(model, parameters(model)).statistics) == {"norm.running_mean", "norm.running_var"}


def test_first_weights_are_drawn_from_the_generator_and_nothing_else_changes(mine: Path) -> None:
    before = torch.get_rng_state()
    first, again, other = (build("mynets:build", SHAPE, CLASSES, generator(seed, "model")) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first.conv.weight, again.conv.weight)
    assert not torch.equal(first.conv.weight, other.conv.weight)
    drawn = build("mynets:build", SHAPE, CLASSES, generator(0, "model"), "uniform:0.01")
    assert bool((drawn.conv.weight.detach().abs() <= 0.01).all())


@pytest.mark.parametrize("name", ["mynets:build", "mynets:fixed"])
def test_a_function_gets_the_arguments_that_it_names(mine: Path, name: str) -> None:
    assert build(name, SHAPE, CLASSES, generator(0, "model")).fc.out_features == CLASSES


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mynets:other", "needs the argument 'depth'"),
        ("mynets:number", "returned int"),
        ("mynets:wrong", r"returns \(1, 7\) for one input, expected logits of shape \(1, 4\)"),
        ("mynets:odd", "whose computation in train mode is not known"),
        ("mynets:keeping", "running statistics"),
        ("mynets:missing", "cannot be imported"),
        ("nowhere.at.all:build", "cannot be imported"),
        ("torchvision:resnet19", "unknown name 'resnet19'; did you mean"),
        ("mynets:mixing", "returns other numbers for an input if it is in a batch"),
        ("mynets:mixing_one", "returns other numbers for an input if it is in a batch"),
        ("mynets:counting", "returns other numbers for the same input"),
        ("mynets:drawing", "returns other numbers for the same input"),
        ("mynets:infinite", "returns numbers that are not finite"),
        ("mynets:build@", "without a file after @"),
        ("torchvision:resnet18@", "without a file after @"),
        ("mynets:build@w.bin", r"expected a file \*.safetensors"),
        ("mynets:build@w.safetensors", "cannot be read"),
    ],
)
def test_wrong_networks_are_refused(mine: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(name, SHAPE, CLASSES, generator(0, "model"))


def _save(path: Path, **changes: Tensor | None) -> None:
    import mynets  # noqa: PLC0415

    torch.manual_seed(5)
    state = {n: t for n, t in mynets.fixed().state_dict().items() if not n.endswith("num_batches_tracked")}
    changed = {**state, **{n.replace("_dot_", "."): t for n, t in changes.items()}}
    save_file({n: t.contiguous() for n, t in changed.items() if t is not None}, path)


def test_weights_of_a_file_are_loaded_and_are_part_of_the_name_without_their_path(mine: Path) -> None:
    ExternalNetwork.of("mynets:build").pinned()  # Imports the module.
    _save(mine / "w.safetensors", norm_dot_running_mean=torch.full((6,), 0.25))
    model = build("mynets:build@w.safetensors", SHAPE, CLASSES, generator(0, "model"))
    torch.manual_seed(5)
    assert torch.equal(model.conv.weight, sys.modules["mynets"].fixed().conv.weight)
    assert float(model.norm.running_mean[0]) == 0.25
    pinned = ExternalNetwork.of("mynets:build@w.safetensors").pinned()
    (mine / "copy.safetensors").write_bytes((mine / "w.safetensors").read_bytes())
    assert identity_of(ExternalNetwork.of("mynets:build@copy.safetensors").pinned()) == identity_of(pinned)
    assert "w.safetensors" not in named(pinned) + shown(pinned) + identity_of(pinned)
    assert shown(pinned).startswith("mynets:build@")
    _save(mine / "w.safetensors", norm_dot_running_mean=torch.full((6,), 0.5))
    with pytest.raises(InputError, match="have changed"):
        build(pinned, SHAPE, CLASSES, generator(0, "model"))
    with pytest.raises(InputError, match=r"init: got 'xavier', but .* has weights"):
        build("mynets:build@w.safetensors", SHAPE, CLASSES, generator(0, "model"), "xavier")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fc_dot_bias": None}, "got no weights 'fc.bias'"),
        ({"head_dot_bias": torch.zeros(2)}, "the unknown weights 'head.bias'"),
        ({"fc_dot_bias": torch.zeros(5)}, r"weights 'fc.bias': got \(5,\), expected \(4,\)"),
        ({"fc_dot_bias": torch.full((4,), torch.nan)}, "NaN, infinity or a number beyond float32"),
        ({"fc_dot_bias": torch.full((4,), 1e300, dtype=torch.float64)}, "a number beyond float32"),
        ({"fc_dot_bias": torch.zeros(4, dtype=torch.int64)}, "expected floating point"),
    ],
)
def test_weights_of_another_network_are_refused(mine: Path, changes: dict[str, Tensor | None], message: str) -> None:
    ExternalNetwork.of("mynets:build").pinned()
    _save(mine / "w.safetensors", **changes)
    with pytest.raises(InputError, match=message):
        build("mynets:build@w.safetensors", SHAPE, CLASSES, generator(0, "model"))


def test_the_source_of_a_function_is_part_of_its_identity(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = identity_of(ExternalNetwork.of("mynets:build").pinned())
    assert identity_of(ExternalNetwork.of("mynets:fixed").pinned()) != first
    (mine / "mynets.py").write_text(SOURCE + "\n# Another version.\n")
    assert identity_of(ExternalNetwork.of("mynets:build").pinned()) != first


def test_an_initialisation_takes_a_rule_for_every_layer() -> None:
    with pytest.raises(
        InputError, match=r"init: got 'xavier', which has no rule for .*, a CNBlock of 'torchvision:convnext_tiny'"
    ):
        build("torchvision:convnext_tiny", (3, 32, 32), CLASSES, generator(0, "model"), "xavier")


@pytest.mark.parametrize("name", ["torchvision:mobilenet_v3_small", "torchvision:resnet18"])
def test_networks_of_torchvision_leak_for_several_victims_at_once(name: str) -> None:
    shape = (3, 40, 40)
    model = in_client_mode(build(name, shape, CLASSES, generator(0, "model")), "train")
    assert depends_on_mode(model)
    x = torch.rand(2, 2, *shape, generator=generator(0, "x"))
    y = one_hot(torch.tensor([[0, 1], [2, 3]]), CLASSES)
    both = _leaked(model, x, y)
    alone = _leaked(model, x[1:], y[1:])
    for name_, update in both.items():
        torch.testing.assert_close(update[1], alone[name_][0], rtol=1e-2, atol=1e-4)


def test_timm_builds_for_the_channels_and_the_size_of_the_data() -> None:
    pytest.importorskip("timm")
    model = build("timm:vit_tiny_patch16_224", (1, 32, 32), CLASSES, generator(0, "model"))
    assert model(torch.zeros(1, 1, 32, 32)).shape == (1, CLASSES)
    with pytest.raises(InputError, match="unknown name 'hf-hub:timm/resnet18"):
        ExternalNetwork.of("timm:hf-hub:timm/resnet18.a1_in1k").pinned()


def test_fused_attention_is_differentiated_twice() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Flatten(2), nn.TransformerEncoderLayer(144, 2, 8, batch_first=True), nn.Flatten(), nn.Linear(432, 4)
    )
    model = layers.eval()
    x, y = _batch()
    guess = x.clone().requires_grad_()
    update = _leaked(model, guess, y)
    (slope,) = torch.autograd.grad(sum(u.square().sum() for u in update.values()), guess)
    assert float(slope.abs().max()) > 0


def test_a_normalisation_of_timm_keeps_its_activation() -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    norm = timm.layers.BatchNormAct2d(3)
    ours = convert_norms(nn.Sequential(copy.deepcopy(norm)))
    x = torch.randn(4, 3, 5, 5)
    torch.testing.assert_close(ours.train()(x), norm.train()(x))
    assert list(dict(ours.named_parameters())) == ["0.weight", "0.bias"]


def test_files_import_no_code(tmp_path: Path) -> None:
    """A grid, a table and a recipe of an attack are data: none of them may name a function to call."""
    body = {"given": {"dataset": "digits", "leak_model": "os:abort"}, "each": {"seed": [0]}}
    with pytest.raises(InputError, match=r"leak_model: got the function 'os:abort'; a file imports no code"):
        grid_of(body, tmp_path / "grid.yaml")
    with pytest.raises(InputError, match=r"loss: got the function 'os:abort'; a file imports no code"):
        cell_fields("", {"loss": "os:abort"})
    with pytest.raises(InputError, match=r"row 1: model: got the function 'os:abort'"):
        cell_fields("row 1: ", {"model": "os:abort"})
    with pytest.raises(InputError, match=r"row 1: loss: got the function 'torchvision:fn'"):
        cell_fields("row 1: ", {"loss": "torchvision:fn"})
    assert cell_fields("", {"model": "torchvision:resnet18"}) == {"model": "torchvision:resnet18"}
    recipe = (catalog_folder("attacks") / "cpl.yaml").read_text() + "leak_model: os:abort\n"
    (tmp_path / "mine.yaml").write_text(recipe)
    with pytest.raises(
        InputError, match=r"leak-model: the recipe names the function 'os:abort'; a recipe imports no code"
    ):
        plan_cell(Request(attack=str(tmp_path / "mine.yaml"), dataset="digits"), None)


def test_weights_of_a_file_are_one_network_and_the_cell_does_not_depend_on_their_path(mine: Path) -> None:
    ExternalNetwork.of("mynets:build").pinned()
    import mynets  # noqa: PLC0415

    net = mynets.Net(1, 10)
    save_file(net.state_dict(), mine / "w.safetensors")
    save_file(net.state_dict(), mine / "copy.safetensors")
    usual = {"dataset": "digits", "attack": "cpl", "victim_mode": "eval", "train_rounds": 0, "size": 12}
    one, other, drawn = (
        resolve_cell(Request(**usual, leak_model=name), None)
        for name in ("mynets:build@w.safetensors", "mynets:build@copy.safetensors", "mynets:build")
    )
    assert one.settings.networks == other.settings.networks == 1
    assert drawn.settings.networks > 1
    assert one.hash == other.hash != drawn.hash
    with pytest.raises(InputError, match=r"networks: got 3, but the weights of .* are not drawn"):
        plan_cell(Request(**usual, leak_model="mynets:build@w.safetensors", networks=3), None)
