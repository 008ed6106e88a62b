"""Clients that use Adam: torch's numbers, the resulting leak, statements that no longer apply, and valid epsilons."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import yaml
from click.testing import CliRunner
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leakbench.cell import Cell, Request, identity, resolve_cell
from leakbench.cell import cell as cells
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.cell import hand_out
from leakbench.cli import commands
from leakbench.core.errors import InputError
from leakbench.core.recipe import catalog_folder
from leakbench.core.rng import generator
from leakbench.core.types import Clock, Fact, Network, Parameters
from leakbench.data.find import load_dataset
from leakbench.data.recipe import Federation
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.transform import Stations
from leakbench.execute import execute
from leakbench.experiment.leak_noise import leak_facts, noise_std
from leakbench.experiment.stage_train import fresh_network
from leakbench.experiment.victims import Sent, aware, draw_victims, view_of
from leakbench.federated import simulate
from leakbench.federated.client import Examples
from leakbench.federated.leakage import leak
from leakbench.federated.optimizer import OPTIMIZERS, Adam
from leakbench.federated.view import View
from leakbench.models import parameters
from leakbench.report.words import training
from leakbench.storage.store import open_run
from leakbench.storage.summary import Summary

RATE = 0.05
ADAM = Clock(0, 0, 1, 3, client_optimizer="adam")
SGD = Clock(0, 0, 1, 3)
PLAIN = Stations()


def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def network() -> Network:
    model = module()
    return Network(model, {n: p.detach() for n, p in parameters(model).items()})


def examples(lanes: int = 4, steps: int = 3, batch: int = 2) -> tuple[Tensor, Tensor]:
    """Return inputs (V, 1, L, B, 6) and soft targets (V, 1, L, B, 3)."""
    rng = torch.Generator().manual_seed(1)
    inputs = torch.rand(lanes, 1, steps, batch, 6, generator=rng, dtype=torch.float64)
    return inputs, torch.randn(lanes, 1, steps, batch, 3, generator=rng, dtype=torch.float64).softmax(-1)


def in_torch(start: Parameters, inputs: Tensor, targets: Tensor, clip: float | None = None) -> Parameters:
    """Return the weights after torch's own Adam used inputs (L, B, *s), with each batch's gradient clipped as a whole."""
    model = module()
    model.load_state_dict(start)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    for x, y in zip(inputs, targets, strict=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if clip is not None:
            whole = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
            for p in model.parameters():
                p.grad *= min(1.0, clip / float(whole))
        optimiser.step()
    return {n: p.detach() for n, p in model.named_parameters()}


# The numbers


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.2])
def test_each_lane_follows_torch(steps: int, clip: float | None) -> None:
    """(W_L - W_0) / (-rate * L) as it leaves each of four clients; a station between the batch and Adam acts before Adam."""
    net, (inputs, targets) = network(), examples(steps=steps)
    stations = PLAIN if clip is None else Stations(batch=(ClipWhole(norm=clip),))
    found = leak("type-1", net, inputs, targets, RATE, stations, ADAM, None)
    for lane in range(4):
        after = in_torch(net.parameters, inputs[lane, 0], targets[lane, 0], clip)
        for name, start in net.parameters.items():
            slow = (after[name] - start) / (-RATE * steps)
            torch.testing.assert_close(found[name][lane], slow, rtol=1e-7, atol=1e-9)


def test_adam_restarts_in_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of two clients, L = 2: the mean of the steps of an Adam without memory of earlier rounds."""
    seen: list[tuple[Parameters, Examples]] = []
    plain = simulate.client_update

    def watched(sent: Network, chosen: Examples, *rest: Any) -> Any:
        seen.append((sent.parameters, chosen))
        return plain(sent, chosen, *rest)

    monkeypatch.setattr(simulate, "client_update", watched)
    _, recipe, data = load_dataset("cancer")
    small = {f"{split}_inputs": getattr(data, f"{split}_inputs")[:, :6].double() for split in ("train", "test")}
    data = dataclasses.replace(data, **small, class_names=("a", "b", "c"))
    handed = recipe.federation.partition(data.train_targets, 3, 20, generator(0, "partition"))
    federation = Federation(3, 4, 20, clients=3, clients_per_round=2, local_iterations=2, learning_rate=RATE,
                            client_optimizer="adam")  # fmt: skip
    defense = Defense(title="t", cite="c", unit="example")
    rounds = list(simulate.train(network(), data, handed, federation, defense, 0))
    assert len(seen) == 3
    for (start, chosen), done in zip(seen, rounds, strict=True):
        each = [in_torch(start, x, y) for x, y in zip(chosen.inputs, chosen.targets.double(), strict=True)]
        for name, after in done.parameters.items():
            torch.testing.assert_close(after, (each[0][name] + each[1][name]) / 2, rtol=1e-7, atol=1e-9)


def test_after_one_iteration_it_is_nearly_the_signs() -> None:
    """g / (|g| + 1e-8), zero if a dead unit's gradient is zero; type-2 shows the gradient, bit-identical."""
    net, (inputs, targets) = network(), examples(steps=1)
    gradient = leak("type-1", net, inputs, targets, RATE, PLAIN, SGD, None)
    found = leak("type-1", net, inputs, targets, RATE, PLAIN, ADAM, None)
    for name, g in gradient.items():
        torch.testing.assert_close(found[name], g / (g.abs() + 1e-8), rtol=1e-9, atol=1e-12)
        assert torch.equal(found[name] == 0, g == 0)
    assert any(bool((g == 0).any()) for g in gradient.values())
    one, other = (leak("type-2", net, inputs, targets, RATE, PLAIN, clock, None) for clock in (SGD, ADAM))
    assert all(torch.equal(one[name], other[name]) for name in one)


@given(st.integers(1, 6), st.floats(1e-3, 1e3), st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_the_scale_of_gradients_does_not_matter(steps: int, scale: float, seed: int) -> None:
    """If all gradients are longer by a factor, the client moves equally far.

    The first step of a coordinate has length one at most.
    """
    gradients = torch.randn(steps, 2, 1, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    one, other = OPTIMIZERS["adam"], OPTIMIZERS["adam"]
    for t, g in enumerate(gradients):
        direction, one = one({"p": g})
        scaled, other = other({"p": scale * g})
        torch.testing.assert_close(scaled["p"], direction["p"], rtol=1e-2, atol=1e-4)
        assert t or float(direction["p"].abs().max()) <= 1
    assert OPTIMIZERS["adam"] == Adam()  # The first step of every round is still one.


def test_sgd_clients_step_along_the_gradient() -> None:
    gradients = {"p": torch.randn(2, 1, 3)}
    direction, after = OPTIMIZERS["sgd"](gradients)
    assert direction is gradients
    assert after is OPTIMIZERS["sgd"]


# What an attacker observes and computes


def view(steps: int = 3, **changed: Any) -> View:
    net, (inputs, targets) = network(), examples(steps=steps)
    update = leak("type-1", net, inputs, targets, RATE, PLAIN, ADAM, None)
    plain = View(
        "type-1", net, update, batch=2, shape=(6,), classes=3, learning_rate=RATE, local_steps=steps, clock=ADAM
    )
    return dataclasses.replace(plain, **changed)


def test_the_attacker_unrolls_the_same_steps() -> None:
    """The truth reproduces the leak, for some lanes or all; with SGD it would not."""
    inputs, targets = (t.flatten(1, 3) for t in examples())
    seen = view()
    found = seen.respond(inputs, targets)
    assert all(torch.equal(found[n], u) for n, u in seen.update.items())
    some = seen.respond(inputs[[2, 0]], targets[[2, 0]], torch.tensor([2, 0]))
    assert all(torch.allclose(some[n], u[[2, 0]], atol=1e-12) for n, u in seen.update.items())
    other = dataclasses.replace(seen, clock=SGD).respond(inputs, targets)
    assert any(not torch.allclose(other[n], u, atol=0.1) for n, u in seen.update.items())


def test_a_guess_has_the_derivatives_of_the_quotient() -> None:
    """Against differences, over three unrolled steps; dead units, whose gradients are zero, give no NaN."""
    inputs, targets = (t.flatten(1, 3) for t in examples(lanes=1))
    seen = view()

    def value(x: Tensor) -> Tensor:
        found = seen.respond(x, targets)
        return sum(((found[n] - 0.3) ** 2).sum() for n in found)  # type: ignore[return-value]

    x = inputs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(x), x)
    assert slope.isfinite().all()
    direction = torch.randn(x.shape, generator=generator(0, "direction"), dtype=x.dtype)
    step = 1e-7 * direction
    difference = (value(inputs + step) - value(inputs - step)) / 2e-7
    assert float((slope * direction).sum()) == pytest.approx(float(difference), rel=1e-3)
    assert float(difference) != 0


def test_adam_updates_are_not_taken_for_gradients() -> None:
    """At type-2 the leak is a gradient, which later steps of the client do not change."""
    assert not view().of_gradients
    assert view(tap="type-2").of_gradients
    assert view(clock=SGD).of_gradients


def test_noise_before_the_quotient_does_not_add_up() -> None:
    """At the example and batch stations. At the client station it does, divided by rate and L; type-2 has no quotient."""
    noise = Fact("noise", std=2.0, each=True)

    def at(station: str, tap: str, optimizer: str) -> float | str:
        done = {name: (noise,) * (name == station) for name in ("example", "batch", "client", "server")}
        return noise_std(done, tap, 4, 1, 1, RATE, optimizer)

    for station in ("example", "batch"):
        assert str(at(station, "type-1", "adam")).startswith("none: clients step by Adam, which divides")
        assert isinstance(at(station, "type-1", "sgd"), float)
    assert at("example", "type-2", "adam") == at("example", "type-2", "sgd") == 2.0
    assert at("client", "type-1", "adam") == pytest.approx(2.0 / RATE)
    none = {name: (Fact("noise", std=0.0),) for name in ("example", "batch", "client", "server")}
    assert noise_std(none, "type-1", 4, 1, 1, RATE, "adam") == "none: no noise"


def test_the_noise_of_a_client_is_added_after_the_quotient() -> None:
    """Measured: the leak minus the noiseless leak has the declared deviation."""
    some = cell(defense="fed_sdp_client", client_optimizer="adam", taps=("type-1",))
    sent = Sent(Network(*fresh_network(some, trained=False)))
    victims = draw_victims(some, "type-1", 0, hand_out(some))
    seen = aware(view_of(some, "type-1", 0, victims, torch.arange(2), sent), some)
    assert seen.clock.client_optimizer == "adam"
    x = some.data.train_inputs[victims.indices].flatten(1, 3)
    y = nn.functional.one_hot(some.data.train_targets[victims.indices].flatten(1), some.data.classes).float()
    bare = seen.respond(x, y)
    noise = torch.cat([(seen.update[n] - bare[n]).flatten() for n in bare])
    assert float(noise.std()) == pytest.approx(float(seen.noise or 0), rel=0.03)


# Cells


def cell(**asked: Any) -> Cell:
    usual = {"attack": "cpl", "dataset": "digits", "victims": 2, "train_rounds": 1, "leak_batch": 2, "candidates": 10}
    return resolve_cell(Request(**{**usual, **asked}), None)


def test_cells_of_plain_clients_keep_their_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer is not hashed for SGD; Adam is a different cell."""
    hashed: list[dict[str, Any]] = []
    plain = cells.content_hash
    monkeypatch.setattr(cells, "content_hash", lambda content: hashed.append(content) or plain(content))
    one, same, other = cell(), cell(client_optimizer="sgd"), cell(client_optimizer="adam")
    assert one.hash == same.hash != other.hash
    assert "client_optimizer" not in json.dumps(hashed[0])
    assert hashed[2]["settings"]["federation"]["client_optimizer"] == "adam"


def epsilon_of(**asked: Any) -> Any:
    some = cell(**asked)
    return cell_epsilon(some.defense, some.data, some.settings, hand_out(some), None)


@pytest.mark.parametrize("defense", ["fed_cdp_valid", "fed_sdp_client_valid"])
def test_steps_computed_from_noisy_gradients_keep_their_epsilon(defense: str) -> None:
    """At every leakage point, for a unit of one example and of one client."""
    one, other = epsilon_of(defense=defense), epsilon_of(defense=defense, client_optimizer="adam")
    assert one.valid is not None
    assert one == other


def test_noises_of_clients_do_not_add_up_in_a_secure_sum(tmp_path: Path) -> None:
    """One local iteration: at type-0 the noises of all SGD clients count; with Adam only one client's own, as at type-1."""
    recipe = yaml.safe_load((catalog_folder("defenses") / "fed_cdp_valid.yaml").read_text())
    path = tmp_path / "secure.yaml"
    path.write_text(yaml.safe_dump({**recipe, "aggregation": "secure", "cohorts": "fixed"}))
    asked = {"defense": str(path), "local_iterations": 1, "clients": 10, "clients_per_round": 4}
    one, other = epsilon_of(**asked), epsilon_of(**asked, client_optimizer="adam")
    assert one.by_tap["type-0"].valid < one.by_tap["type-1"].valid
    assert other.by_tap["type-0"].valid == other.by_tap["type-1"].valid == one.by_tap["type-1"].valid
    assert "each client's Adam divides" in other.by_tap["type-0"].reason
    assert "Adam" not in one.by_tap["type-0"].reason


def test_facts_of_an_adaptive_attacker() -> None:
    """An attacker that knows the defense gets the reason why the noise has no deviation."""
    some = cell(defense="fed_cdp", client_optimizer="adam")
    sent = Sent(Network(*fresh_network(some, trained=False)))
    victims = draw_victims(some, "type-1", 0, hand_out(some))
    seen = aware(view_of(some, "type-1", 0, victims, torch.arange(2), sent), some)
    assert seen.noise is None
    assert seen.unknown.startswith("none: clients step by Adam")
    assert any(fact.std > 0 for facts in leak_facts(some, sent.network, 0).values() for fact in facts)


# The command line

TINY = ("run --dataset digits --attack inverting_gradients --iterations 2 --victims 2 --train-rounds 1 --clients 4"
        " --clients-per-round 2 --local-iterations 2 --batch 3 --candidates 10 --quiet --leak-batch 1")  # fmt: skip


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path) -> None:
    """With one example behind each leak, an update is not the gradient of type-2, but the client's message to the server.

    With several, and the defense's noise before the quotient, there is a reason instead of a floor.
    """
    out = ["--client-optimizer", "adam", "--defense", "fed_cdp_valid", "--json", "--out", str(tmp_path)]
    result = CliRunner().invoke(commands, [*TINY.split(), *out], catch_exceptions=False)
    assert result.exit_code == 0
    summary = json.loads(result.stdout)
    taps, notes = summary["taps"], summary["notes"]
    assert "taps.type-1" not in notes
    assert notes["taps.type-0"].startswith("shows the attacker the same bits as type-1")
    assert taps["type-2"]["rmse"] != taps["type-1"]["rmse"]
    assert taps["type-1"]["rmse_floor"] is None
    assert any("clients step by Adam, which divides" in note for note in notes.values())
    assert "nearly the signs" in notes["client_optimizer"]
    said = CliRunner().invoke(commands, ["report", "-v", str(tmp_path)]).stdout
    assert "clients step by Adam" in " ".join(said.split())


def test_clients_of_a_live_run_train_and_leak_with_adam(tmp_path: Path) -> None:
    """The second round's leak, with L = 2 local iterations; SGD prints nothing about it, and the leaking model differs."""
    asked = {"dataset": "cancer", "attack": "inverting_gradients_table", "iterations": 1, "protocol": "live",
             "leak_rounds": ("1",), "taps": ("type-1",),
             "clients": 4, "clients_per_round": 2, "local_iterations": 2, "batch": 3, "leak_batch": 1}  # fmt: skip
    found = {}
    for word in ("sgd", "adam"):
        some = cell(**asked, client_optimizer=word)
        with open_run(tmp_path / word, identity(some, "test")) as run:
            found[word] = execute(some, run, lambda *_: None).as_dict()
    assert "client_optimizer" not in found["sgd"]["notes"]
    assert "clients step by Adam" in training(Summary.of(found["adam"]))
    assert "clients step by Adam" not in training(Summary.of(found["sgd"]))
    losses = [pd.read_parquet(tmp_path / word / "rounds.parquet")["loss"].iloc[-1] for word in found]
    assert losses[0] != losses[1]


def test_a_data_set_recipe_may_set_the_optimizer(tmp_path: Path) -> None:
    """A user's recipe; the command line overrides it."""
    recipe = yaml.safe_load((catalog_folder("datasets") / "digits.yaml").read_text())
    recipe["federation"]["client_optimizer"] = "adam"
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(recipe))
    assert cell(dataset=str(path)).settings.federation.client_optimizer == "adam"
    assert cell(dataset=str(path), client_optimizer="sgd").settings.federation.client_optimizer == "sgd"
    recipe["federation"]["client_optimizer"] = "adma"
    path.write_text(yaml.safe_dump(recipe))
    with pytest.raises(InputError, match=r"client_optimizer: .*'sgd' or 'adam'") as said:
        cell(dataset=str(path))
    assert "\n" not in str(said.value)


def test_a_wrong_word_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = called(monkeypatch, capsys, *TINY.split(), "--client-optimizer", "adma")
    assert (code, out) == (2, "")
    assert err == "leakbench: client-optimizer: got 'adma', expected sgd or adam; did you mean 'adam'?\n"
