"""Batch normalisation in a federation: torch's numbers, shared statistics, refusals, and the effect on epsilon."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakbench.attack.needs import Needs
from leakbench.attack.rankings.classes import Classes
from leakbench.cell import Cell, Request, resolve_cell
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.cli import main
from leakbench.core.errors import InputError
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Network, Parameters
from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset
from leakbench.data.partition import Partition
from leakbench.data.recipe import Federation
from leakbench.defense import Defense, FactProbe, phases
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.soteria import Soteria
from leakbench.defense.transform import Stations
from leakbench.experiment.stage_train import fresh_network
from leakbench.federated.client import Examples, example_signal, local_iterations, mean_update
from leakbench.federated.leakage import leak
from leakbench.federated.simulate import Round, accuracy, from_tensors, to_tensors, train
from leakbench.federated.view import View
from leakbench.models import one_hot, parameters
from leakbench.models.batch_norm import BatchNorm, mixes_examples
from leakbench.models.initialise import initialise, torch_default
from leakbench.models.resnet import resnet18

SHAPE, CLASSES = (1, 9, 9), 3
CLOCK = Clock(0, 0, 1, 1)
PLAIN = Defense(title="t", cite="c", unit="example")


def resnet(mode: str, dtype: torch.dtype = torch.float64) -> Network:
    model = initialise(resnet18("resnet18", SHAPE, CLASSES, "batch", width=2), torch_default, generator(0, "model"))
    model = model.to(dtype).train(mode == "train")
    return Network(model, parameters(model))


def data(lanes: int, steps: int, batch: int) -> tuple[Tensor, Tensor]:
    rng = generator(1, "data")
    inputs = torch.rand(lanes, steps, batch, *SHAPE, generator=rng, dtype=torch.float64)
    return inputs, one_hot(torch.randint(CLASSES, (lanes, steps, batch), generator=rng), CLASSES).double()


def in_torch(model: nn.Module) -> nn.Module:
    """Return the same model with torch's own batch normalisation, which writes into its buffers."""
    whole = copy.deepcopy(model)
    for parent in list(whole.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, BatchNorm):
                theirs = nn.BatchNorm2d(len(child.weight)).double()
                theirs.load_state_dict({**child.state_dict(), "num_batches_tracked": torch.tensor(0)})
                setattr(parent, name, theirs.train(model.training))
    return whole


def descend(model: nn.Module, x: Tensor, y: Tensor, rate: float) -> None:
    """Run plain SGD over (L, B, *s) for one client, without functional calls."""
    optimiser = torch.optim.SGD(model.parameters(), rate)
    for inputs, targets in zip(x, y, strict=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimiser.step()


def statistics_of(model: nn.Module) -> Parameters:
    return {n: b for n, b in model.named_buffers() if "num_batches" not in n}


def close(found: Parameters, expected: Parameters, places: int = 9) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=10**-places, msg=name)


# The layer


@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 2, 2), (1, 4, 3, 5)])
def test_a_batch_is_normalised_as_torch_does(shape: tuple[int, ...]) -> None:
    """Three batches one after the other, then eval: outputs, and the running statistics."""
    ours = BatchNorm(4)
    theirs: nn.Module = nn.BatchNorm1d(4) if len(shape) == 2 else nn.BatchNorm2d(4)
    for layer in (ours, theirs):
        layer.load_state_dict({"weight": torch.arange(1.0, 5), "bias": torch.arange(4.0)}, strict=False)
    rng = generator(0, "inputs")
    for _ in range(3):
        x = 3 * torch.randn(shape, generator=rng) + 1
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    close(statistics_of(ours), statistics_of(theirs), 5)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-5)


def test_functional_call_does_not_change_the_module() -> None:
    """The new statistics are in the dict, the old tensors unchanged, and each lane of a vmap has its own."""
    layer = BatchNorm(2).train()
    x = torch.randn(3, 5, 2, generator=generator(0, "inputs"))

    def one(inputs: Tensor) -> Tensor:
        state = {**parameters(layer), **dict(layer.named_buffers())}
        torch.func.functional_call(layer, state, (inputs,))
        return state["running_mean"]

    torch.testing.assert_close(torch.func.vmap(one)(x), 0.1 * x.mean(1))
    assert layer.running_mean.tolist() == [0.0, 0.0]
    assert layer.running_var.tolist() == [1.0, 1.0]


@given(st.floats(0.5, 100), st.floats(-100, 100))
@settings(max_examples=25, deadline=None)
def test_scale_and_shift_of_a_batch_do_not_matter_in_train_mode(scale: float, shift: float) -> None:
    """In train mode the output is the same for a scaled and shifted batch; in eval mode it is not."""
    layer = BatchNorm(3, eps=0.0).double().train()
    x = torch.randn(6, 3, 2, generator=generator(0, "inputs"), dtype=torch.float64)
    torch.testing.assert_close(layer(scale * x + shift), layer(x), rtol=1e-6, atol=1e-9)
    fresh = BatchNorm(3, eps=0.0).double().eval()
    torch.testing.assert_close(fresh(scale * x + shift), scale * x + shift)


def test_a_normalised_batch_has_its_second_derivatives() -> None:
    """An attacker's search uses them: against differences of first derivatives, and against torch's layer."""
    x = torch.randn(4, 2, 3, generator=generator(0, "inputs"), dtype=torch.float64, requires_grad=True)
    slopes = []
    for layer in (BatchNorm(2), nn.BatchNorm1d(2)):
        layer.double().train()
        assert torch.autograd.gradgradcheck(layer, (x,))
        (first,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
        slopes.append(torch.autograd.grad(first.square().sum(), x)[0])
    torch.testing.assert_close(slopes[0], slopes[1])


def test_one_value_has_no_variance() -> None:
    """As torch refuses it."""
    with pytest.raises(InputError, match=r"^victim-mode: .*one value a channel, expected several"):
        BatchNorm(4).train()(torch.zeros(1, 4, 1, 1))
    assert BatchNorm(4).eval()(torch.zeros(1, 4, 1, 1)).shape == (1, 4, 1, 1)


# In a federation


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_lane_is_one_client_with_its_own_batches_and_statistics(mode: str) -> None:
    """Two clients, three local iterations: weights and running statistics of two loops of torch's own SGD and batch norm."""
    net, (x, y) = resnet(mode), data(2, 3, 4)
    update = mean_update(net, Examples(x, y, x.new_ones(2, 3, 4), 4), 0.1, Stations(), CLOCK, None)
    for lane in range(2):
        theirs = in_torch(net.model)
        descend(theirs, x[lane], y[lane], 0.1)
        weights = {n: p - 0.3 * update.grads[n][lane, 0] for n, p in net.parameters.items()}
        close(weights, parameters(theirs))
        close({n: m[lane, 0] for n, m in update.memory.items()}, statistics_of(theirs))
    moved = any(not torch.equal(m[0], m[1]) for m in update.memory.values())
    assert moved == (mode == "train")


def test_statistics_continue_from_the_previous_iteration() -> None:
    """One iteration after the other, in the memory of the batch's signal; the module's own stay at zero and one."""
    net, (x, y) = resnet("train"), data(1, 3, 4)
    theirs = in_torch(net.model)
    steps = local_iterations(net, Examples(x, y, x.new_ones(1, 3, 4), 4), 0.1, Stations(), CLOCK, None)
    for step, iteration in enumerate(steps):
        descend(theirs, x[0, step : step + 1], y[0, step : step + 1], 0.1)
        close({n: m[0, 0] for n, m in iteration.batch.memory.items()}, statistics_of(theirs))
    assert all(b.unique().tolist() in ([0.0], [1.0]) for b in net.model.buffers())


def federation(**changed: Any) -> tuple[Dataset, Partition, Federation]:
    """Return four clients of ten cropped faces: two of them a round, two iterations of four."""
    _, recipe, faces = load_dataset("faces")
    cut = {name: getattr(faces, name)[:, :, 8:17, 8:17].double() for name in ("train_inputs", "test_inputs")}
    small = dataclasses.replace(faces, **cut)
    handed = recipe.federation.partition(small.train_targets, 4, 10, generator(0, "partition"))
    f = {"clients": 4, "clients_per_round": 2, "local_iterations": 2, "learning_rate": 0.1, **changed}
    return small, handed, Federation(2, 4, 10, **f)


def rounds(mode: str, defense: Defense = PLAIN, done: Round | None = None) -> tuple[Network, list[Round], Dataset]:
    small, handed, f = federation()
    model = initialise(resnet18("resnet18", SHAPE, 2, "batch", width=2), torch_default, generator(0, "model"))
    net = Network(model.double().train(mode == "train"), {})
    net = dataclasses.replace(net, parameters=parameters(model))
    return net, list(train(net, small, handed, f, defense, 0, done)), small


def test_the_server_sends_the_plain_mean_of_the_clients_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variances are averaged directly; the next round starts from the mean; accuracy uses it, in eval mode."""
    from leakbench.federated import simulate  # noqa: PLC0415

    arrived: list[Parameters] = []
    sent: list[Parameters] = []
    plain = simulate.client_update

    def watched(network: Network, *rest: Any) -> Any:
        signal = plain(network, *rest)
        sent.append(network.statistics)
        arrived.append(signal.memory)
        return signal

    monkeypatch.setattr(simulate, "client_update", watched)
    net, states, small = rounds("train")
    close(sent[0], statistics_of(net.model))
    for state, signal in zip(states, arrived, strict=True):
        close(state.memory, {n: m[:, 0].mean(0) for n, m in signal.items()})
        assert all(float((m[0] - m[1]).abs().max()) > 0 for m in signal.values())
    close(sent[1], states[0].memory)
    judge = in_torch(net.model).eval()
    judge.load_state_dict({**states[1].parameters, **states[1].memory}, strict=False)
    right = float((judge(small.test_inputs).argmax(1) == small.test_targets).double().mean())
    assert states[1].accuracy == pytest.approx(right)
    assert net.model.training


def test_statistics_do_not_change_in_eval_mode() -> None:
    """Zero and one before and after; with batch norm in train mode the same weights give other outputs."""
    net, states, _ = rounds("eval")
    close(states[-1].memory, statistics_of(net.model), 12)
    other = rounds("train")[1][-1].parameters
    assert any(not torch.allclose(p, other[n]) for n, p in states[-1].parameters.items())


def test_a_checkpoint_contains_the_statistics() -> None:
    """The second round after a checkpoint of the first: bit-identical weights and statistics."""
    states = rounds("train")[1]
    first = states[0]
    row = {
        name: float(getattr(first, name))
        for name in ("round", "accuracy", "loss", "between_client_variance", "update_scale")
    }
    resumed = rounds("train", done=from_tensors(to_tensors(first), row | first.members))[1][-1]
    assert all(torch.equal(p, resumed.parameters[n]) for n, p in states[1].parameters.items())
    assert all(torch.equal(m, resumed.memory[n]) for n, m in states[1].memory.items())


def test_accuracy_uses_the_given_statistics() -> None:
    """A running mean of 5 subtracts 5 from every logit."""
    layer, inputs = BatchNorm(2, eps=0.0).eval(), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    state = {**parameters(layer), "running_mean": torch.tensor([5.0, 0.0]), "running_var": torch.ones(2)}
    assert accuracy(layer, state, inputs, torch.tensor([0, 1]))[0] == 0.5
    assert accuracy(layer, parameters(layer), inputs, torch.tensor([0, 1]))[0] == 1.0


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_truth_reproduces_the_leak(mode: str) -> None:
    """Over two iterations of three examples; in train mode another batch member changes more than its own part."""
    net, (x, y) = resnet(mode), data(2, 2, 3)
    update = leak("type-1", net, x[:, None], y[:, None], 0.1, Stations(), CLOCK, None)
    view = View("type-1", net, update, batch=3, shape=SHAPE, classes=CLASSES, learning_rate=0.1, local_steps=2)
    close(view.respond(x.flatten(1, 2), y.flatten(1, 2)), update)
    one = leak("type-1", net, x[:, None, :1], y[:, None, :1], 0.1, Stations(), CLOCK, None)
    parts = [
        leak("type-1", net, x[:, None, :1, i : i + 1], y[:, None, :1, i : i + 1], 0.1, Stations(), CLOCK, None)
        for i in range(3)
    ]
    off = max(float((one[n] - sum(p[n] for p in parts) / 3).abs().max()) for n in one)
    assert (off > 1e-3) == (mode == "train")


# Refusals


def test_single_examples_have_no_gradient_in_train_mode() -> None:
    """On a direct request; in eval mode it exists."""
    (x, y), ones = data(1, 1, 3), torch.ones(1, 1, 3, dtype=torch.float64)
    with pytest.raises(
        InputError, match=r"^victim-mode: in train mode .* no single example has a gradient; choose eval"
    ):
        example_signal(resnet("train"), Examples(x, y, ones, 3), 0)
    assert example_signal(resnet("eval"), Examples(x, y, ones, 3), 0).members == 3
    with pytest.raises(InputError, match=r"^soteria: in train mode .*--victim-mode eval"):
        mean_update(resnet("train"), Examples(x, y, ones, 3), 0.1, Stations(batch=(Soteria(0.5),)), CLOCK, None)


def test_soteria_uses_the_sent_statistics() -> None:
    """Other running statistics give other scores, so another mask."""
    net, (x, y) = resnet("eval"), data(1, 1, 3)
    sent = dataclasses.replace(net, memory={n: b + 3 * torch.rand_like(b) for n, b in net.statistics.items()})
    examples, soteria = Examples(x, y, x.new_ones(1, 1, 3), 3), Stations(example=(Soteria(0.5),))
    masks = [mean_update(n, examples, 0.1, soteria, CLOCK, None).grads["fc.weight"] == 0 for n in (net, sent)]
    assert all(mask.any() for mask in masks)
    assert not torch.equal(*masks)


def cell(**asked: object) -> Cell:
    return resolve_cell(Request(**{"attack": "cpl", "victims": 2, "train_rounds": 1, "candidates": 5, **asked}), None)  # type: ignore[arg-type]


REFUSED = [
    ({"leak_model": "convnet"}, "'convnet' has batch normalisation|--victim-mode train|--victim-mode eval"),
    ({"model": "resnet18_batch_norm"}, "'resnet18_batch_norm'|expected --victim-mode train"),
    ({"victim_mode": "train"}, "got 'train'|cnn or lenet_cpl|leave it out"),
    ({"victim_mode": "eval", "leak_model": "resnet18_group_norm"}, "got 'eval'|leave it out"),
    ({"victim_mode": "evl", "model": "convnet"}, "got 'evl'|did you mean 'eval'"),
    (
        {"victim_mode": "train", "model": "convnet", "defense": "fed_cdp"},
        "no single example|example station|group norm",
    ),
    ({"victim_mode": "train", "leak_model": "convnet", "taps": ("type-1", "type-2")}, "type-2 reads|--taps type-1"),
    ({"victim_mode": "train", "model": "convnet", "defense": "soteria_as_released"}, "soteria|eval"),
]


@pytest.mark.parametrize(("asked", "words"), REFUSED)
def test_a_mode_that_is_missing_or_does_not_fit(asked: dict[str, Any], words: str) -> None:
    """One line that names the field, the given value and what to do."""
    with pytest.raises(InputError, match=r"^victim-mode: ") as raised:
        cell(**asked)
    assert "\n" not in str(raised.value)
    assert all(word in str(raised.value) for word in words.split("|"))


def test_a_poisson_batch_has_no_statistics(tmp_path: Path) -> None:
    """Its padding would enter them."""
    recipe = tmp_path / "own.yaml"
    recipe.write_text("title: t\ncite: c\nunit: client\nbatches: poisson\n")
    with pytest.raises(InputError, match=r"^victim-mode: 'convnet': .*Poisson batch"):
        cell(victim_mode="train", model="convnet", defense=str(recipe))
    assert cell(victim_mode="eval", model="convnet", defense=str(recipe)).settings.victim_mode == "eval"


def test_the_mode_and_the_initial_weights_are_in_the_identity() -> None:
    """Each changes the hash; both networks have that mode and start that way; a plain name of the same start does not."""
    some = {"leak_model": "convnet", "taps": ("type-1",)}
    several = [cell(**some, victim_mode="train"), cell(**some, victim_mode="eval")]
    assert several[0].hash != several[1].hash
    assert [mixes_examples(fresh_network(c, trained=False)[0]) for c in several] == [True, False]
    plain, torchs = cell(), cell(init="torch")
    assert plain.hash == cell(init="default").hash != torchs.hash
    assert cell(init="uniform:.5").hash == cell(init="uniform:0.50").hash
    bounds = [max(float(p.abs().max()) for p in fresh_network(c, trained=False)[1].values()) for c in (plain, torchs)]
    assert bounds == [pytest.approx(0.5, abs=1e-3), pytest.approx(1 / 5, rel=0.05)]


# Effects on an epsilon


def guarded(mode: str) -> str | None:
    noise = Defense(title="t", cite="c", unit="client", client=(ClipWhole(1.0), GaussianNoise(1.0, "each")))
    f = federation()[2]
    found = phases(noise, FactProbe(resnet(mode, torch.float32), SHAPE, CLASSES, f))[0].facts["client"]
    return next((fact.reason for fact in found if fact.raw), None)


def test_statistics_without_noise_remove_the_guarantee() -> None:
    """In train mode they are sent to the server without noise; in eval mode nothing is."""
    assert guarded("eval") is None
    assert "running statistics" in str(guarded("train"))
    valid = {}
    for mode in ("train", "eval"):
        some = prepare(Request(defense="fed_sdp_client", model="convnet", victim_mode=mode, train_rounds=2), None)
        valid[mode] = cell_epsilon(some.defense, some.data, some.settings, hand_out(some), None)
    assert valid["train"].valid is None
    assert "running statistics" in valid["train"].reason
    assert valid["eval"].valid is not None


# From the command line

TINY = [
    "--attack",
    "cpl",
    "--clients",
    "2",
    "--clients-per-round",
    "2",
    "--local-iterations",
    "1",
    "--batch",
    "2",
    "--victims",
    "1",
]


def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr("sys.argv", ["leakbench", *arguments])
    main()
    return capsys.readouterr().out


@pytest.mark.slow
def test_a_run_with_batch_norm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The live protocol in train mode: trained one round, leaked before and after, and reported."""
    # Classes are ranked by few: this network's gradients are large.
    monkeypatch.setattr(Classes, "needs", Needs(public=4))
    live = ["--protocol", "live", "--train-rounds", "1", "--leak-rounds", "0,1"]
    live += ["--taps", "type-1", "--leak-batch", "1", "--candidates", "5"]
    some = ["--dataset", "faces", "--model", "convnet", "--victim-mode", "train", "--attack", "identification"]
    found = json.loads(
        call(monkeypatch, capsys, "run", *TINY, *some, *live, "--json", "--quiet", "--out", str(tmp_path / "run"))
    )
    assert (found["victim_mode"], found["init"]) == ("train", "default")
    assert "running statistics" in found["notes"]["victim_mode"]
    assert all(0 <= tap["identified"] <= 1 for tap in found["taps"].values())
    printed = call(monkeypatch, capsys, "report", "-v", str(tmp_path / "run"))
    assert "victims in train mode" in " ".join(printed.split())


def test_a_run_with_other_initial_weights(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A LeNet with GELU and He's initial weights: searched, and reported."""
    some = ["--dataset", "digits", "--leak-model", "lenet_cpl_gelu", "--init", "kaiming", "--taps", "type-2"]
    quick = ["--iterations", "2", "--train-rounds", "0", "--candidates", "5", "--quiet", "--out", str(tmp_path / "run")]
    printed = " ".join(call(monkeypatch, capsys, "run", *TINY, *some, *quick, "-v").split())
    assert "init: kaiming" in printed
    assert "mode" not in printed.partition("protocol: paper")[2].partition("epsilon")[0].replace("model", "")
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["settings"]["init"] == "kaiming"
