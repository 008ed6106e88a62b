"""Inside a Flower client: the defense on its update, the leakage points around it, the probe of its steps."""

import dataclasses
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'leakbench[flower]'")

from flower_apps import RATE, asked, batches, client, fed_avg, network, trained
from flwr.app import Error, Message

from leakbench.core.errors import InputError
from leakbench.core.recipe import names
from leakbench.core.types import Clock
from leakbench.defense import Defense
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.share import ShareOfNoise
from leakbench.flower import DefenseMod, InProcessGrid, StepProbeMod, TapGrid, UpdateTapMod, attach
from leakbench.flower.leaks import read_leaks
from leakbench.privacy.decay import Linear

CLIP = Defense(title="clip", cite="-", unit="client", client=(ClipWhole(norm=0.01),))
NOISE = dataclasses.replace(CLIP, client=(ClipWhole(norm=0.01), GaussianNoise(multiplier=1.0, to="each")))


def update(leak):
    return {n: a - leak.sent[n] for n, a in leak.arrays.items()}


def norm(arrays):
    return float(np.sqrt(sum((a.astype(np.float64) ** 2).sum() for a in arrays.values())))


def run(sink, *mods, clients=2, rounds=1, **options):
    grid = InProcessGrid(client(*mods, **options), clients)
    return trained(TapGrid(grid, sink), fed_avg(clients), rounds, options.get("build", network))


def test_the_received_update_is_the_sent_one_and_the_inner_point_is_undefended(tmp_path):
    run(tmp_path, UpdateTapMod(tmp_path), DefenseMod(NOISE), UpdateTapMod(tmp_path, "bare"), clients=3, rounds=2)
    left, arrived, bare = (read_leaks(tmp_path, tap) for tap in ("type-1", "type-0", "bare"))
    assert [(leak.round, leak.partition) for leak in left] == [(r, p) for r in (1, 2) for p in range(3)]
    by_node = {(leak.round, leak.node): leak for leak in arrived}
    for leak, inner in zip(left, bare, strict=True):
        other = by_node[leak.round, leak.node]
        assert all(a.tobytes() == other.arrays[n].tobytes() for n, a in leak.arrays.items())
        assert all(a.tobytes() == other.sent[n].tobytes() for n, a in leak.sent.items())
        assert all((a != inner.arrays[n]).any() for n, a in leak.arrays.items())


def test_the_clip_bounds_the_whole_update_and_keeps_a_small_one(tmp_path):
    run(tmp_path, UpdateTapMod(tmp_path), DefenseMod(CLIP), UpdateTapMod(tmp_path, "bare"))
    for leak, inner in zip(read_leaks(tmp_path, "type-1"), read_leaks(tmp_path, "bare"), strict=True):
        assert norm(update(inner)) > 0.1
        assert norm(update(leak)) == pytest.approx(0.01, rel=1e-4)
    wide = dataclasses.replace(CLIP, client=(ClipWhole(norm=100.0),))
    run(tmp_path, UpdateTapMod(tmp_path), DefenseMod(wide), UpdateTapMod(tmp_path, "bare"))
    for leak, inner in zip(read_leaks(tmp_path, "type-1"), read_leaks(tmp_path, "bare"), strict=True):
        assert all(np.allclose(a, inner.arrays[n], atol=1e-7) for n, a in leak.arrays.items())


def test_buffers_are_unchanged_and_do_not_count_in_the_norm(tmp_path):
    def build():
        return network(batch_norm=True)

    run(tmp_path, UpdateTapMod(tmp_path), DefenseMod(NOISE), UpdateTapMod(tmp_path, "bare"), build=build)
    buffers = {name for name, _ in build().named_buffers()}
    assert {name.rpartition(".")[2] for name in buffers} == {"running_mean", "running_var", "num_batches_tracked"}
    for leak, inner in zip(read_leaks(tmp_path, "type-1"), read_leaks(tmp_path, "bare"), strict=True):
        for name, array in leak.arrays.items():
            assert (array.tobytes() == inner.arrays[name].tobytes()) == (name in buffers)
            assert array.dtype == inner.arrays[name].dtype
    run(tmp_path, UpdateTapMod(tmp_path), DefenseMod(CLIP), build=build)
    for leak in read_leaks(tmp_path, "type-1"):
        moved = update(leak)
        assert norm({n: a for n, a in moved.items() if n not in buffers}) == pytest.approx(0.01, rel=1e-4)
        assert norm({n: moved[n] for n in buffers}) > 1


def test_named_buffers_pass_too(tmp_path):
    run(tmp_path, UpdateTapMod(tmp_path), DefenseMod(NOISE, buffers=("1.bias",)), UpdateTapMod(tmp_path, "bare"))
    [leak, *_], [inner, *_] = read_leaks(tmp_path, "type-1"), read_leaks(tmp_path, "bare")
    assert [n for n, a in leak.arrays.items() if a.tobytes() == inner.arrays[n].tobytes()] == ["1.bias"]


def test_noise_depends_on_the_seed_the_round_and_the_client(tmp_path):
    def noise(folder, seed):
        run(folder, UpdateTapMod(folder), DefenseMod(NOISE, seed=seed), rounds=2, given=lambda c, r: batches(0, 1))
        return {(leak.round, leak.partition): update(leak)["1.weight"] for leak in read_leaks(folder, "type-1")}

    one, again, other = (noise(tmp_path / name, seed) for name, seed in (("one", 1), ("again", 1), ("other", 2)))
    assert all((one[key] == again[key]).all() for key in one)
    assert all((one[key] != other[key]).mean() > 0.9 for key in one)
    assert (one[1, 0] != one[1, 1]).mean() > 0.9
    fresh = [noise(tmp_path / f"fresh{i}", None)[1, 0] for i in range(2)]
    assert (fresh[0] != fresh[1]).mean() > 0.9


def test_another_round_draws_another_noise_for_the_same_update():
    def sent(number):
        grid = InProcessGrid(client(DefenseMod(NOISE), given=lambda c, r: batches(0, 1)), 1)
        return grid.answer(asked(number=number)).content["arrays"]["1.weight"].numpy()

    assert (sent(1) == sent(1)).all() and (sent(1) != sent(2)).mean() > 0.9


def test_the_noise_has_the_recipe_s_size(tmp_path):
    run(tmp_path, UpdateTapMod(tmp_path), DefenseMod(NOISE), clients=40)
    drawn = np.concatenate([update(leak)["1.weight"].ravel() for leak in read_leaks(tmp_path, "type-1")])
    assert len(drawn) == 3200
    assert drawn.std() == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("fed_cdp", ["example station (ClipLayers, GaussianNoise)", "Opacus", "VectorisedGrid"]),
        ("soteria", ["example station (Soteria)", "VectorisedGrid"]),
        ("soteria_as_released", ["batch station (Soteria)", "training loop", "VectorisedGrid"]),
        ("flower_fixed_server", ["server station (GaussianNoise)", "wrap the strategy"]),
        ("adaclip_client", ["client station over rounds (AdaClip)", "adaptiveclipping_mod"]),
        ("precode", ["changes the network"]),
        ("secure_aggregation", ["secaggplus_mod"]),
    ],
)
def test_unsupported_recipes_are_refused_with_an_alternative(recipe, says):
    with pytest.raises(InputError) as raised:
        DefenseMod(recipe)
    assert all(word in str(raised.value) for word in [repr(recipe), *says]), str(raised.value)


def test_every_recipe_of_the_catalog_is_applied_or_refused_in_one_line(tmp_path):
    applied = set()
    InProcessGrid(client(), 1)
    for name in names("defenses"):
        try:
            mod = DefenseMod(name)
        except InputError as error:
            assert "\n" not in str(error)
            continue
        applied.add(name)
        grid = InProcessGrid(client(mod), 1)
        arrays = [array.numpy() for array in grid.answer(asked()).content["arrays"].values()]
        assert all(np.isfinite(array).all() for array in arrays), name
    assert {"none", "fed_sdp_client", "fed_sdp_client_valid", "noise_gaussian_client", "sign_client"} <= applied


def test_a_share_of_noise_is_divided_by_the_cohort(tmp_path):
    share = dataclasses.replace(CLIP, client=(ClipWhole(norm=0.01), ShareOfNoise(multiplier=1.0)))
    run(tmp_path, UpdateTapMod(tmp_path), DefenseMod(share, cohort=100), clients=40)
    drawn = np.concatenate([update(leak)["1.weight"].ravel() for leak in read_leaks(tmp_path, "type-1")])
    assert 0.001 < drawn.std() < 0.003  # A tenth of .01, and the clipped update itself.


def test_a_noise_schedule_uses_the_number_of_rounds():
    """Rounds are counted from 0 there: the second of 4 is at a quarter of the line from 16 to 8, which is 14."""

    def sent(multiplier, **given):
        clip = dataclasses.replace(CLIP, client=(ClipWhole(norm=0.01), GaussianNoise(multiplier=multiplier, to="each")))
        config = given.pop("config", {})
        grid = InProcessGrid(client(DefenseMod(clip, **given), given=lambda c, r: batches(0, 1)), 1, config)
        return grid.answer(asked(number=2)).content["arrays"]["1.weight"].numpy()

    line = Linear(start=16.0, end=8.0)
    assert np.allclose(sent(line, rounds=4), sent(14.0), atol=1e-6)
    assert np.allclose(sent(line, config={"num-server-rounds": 4}), sent(14.0), atol=1e-6)
    assert np.allclose(sent(line), sent(12.0), atol=1e-6)
    assert not np.allclose(sent(14.0), sent(12.0), atol=1e-3)


def test_an_error_reply_passes_and_is_not_a_leak(tmp_path):
    def failing(message, context, call_next):
        return Message(Error(code=1, reason="no data"), reply_to=message)

    grid = InProcessGrid(client(UpdateTapMod(tmp_path), StepProbeMod(tmp_path), DefenseMod(NOISE), failing), 1)
    assert grid.answer(asked()).error.reason == "no data"
    assert not read_leaks(tmp_path, "type-1") and not read_leaks(tmp_path, "type-2")


def test_arrays_that_were_not_sent_are_an_error():
    def renamed(message, context, call_next):
        reply = call_next(message, context)
        arrays = reply.content["arrays"]
        arrays["extra"] = arrays.pop("1.bias")
        return reply

    grid = InProcessGrid(client(DefenseMod(NOISE), renamed), 1)
    with pytest.raises(InputError, match=r"missing \['1.bias'\], not sent \['extra'\]"):
        grid.answer(asked())


def test_rounds_are_counted_if_messages_do_not_name_them(tmp_path):
    """Once for each message, for any number of mods."""
    grid = InProcessGrid(client(UpdateTapMod(tmp_path), DefenseMod(NOISE), UpdateTapMod(tmp_path, "bare")), 1)
    for _ in range(3):
        grid.answer(asked(number=None))
    assert [leak.round for leak in read_leaks(tmp_path, "type-1")] == [1, 2, 3]
    assert [leak.round for leak in read_leaks(tmp_path, "bare")] == [1, 2, 3]


def test_evaluation_is_unchanged(tmp_path):
    seen = []
    app = client(UpdateTapMod(tmp_path), DefenseMod(NOISE), StepProbeMod(tmp_path))

    @app.evaluate()
    def evaluate(message, context):
        seen.append(message)
        return Message(message.content, reply_to=message)

    question = asked()
    grid = InProcessGrid(app, 1)
    answer = grid.answer(Message(question.content, 2, "evaluate"))
    assert len(seen) == 1
    asked_of, answered = (one.content["arrays"] for one in (question, answer))
    assert {name: a.numpy().tobytes() for name, a in answered.items()} == {
        name: a.numpy().tobytes() for name, a in asked_of.items()
    }
    assert not list(tmp_path.iterdir())


def test_the_probe_shows_examples_whose_mean_is_the_step(tmp_path):
    run(tmp_path, StepProbeMod(tmp_path, steps=2), clients=1)
    [leak] = read_leaks(tmp_path, "type-2")
    model, (x, y) = network(), batches(0, 1)
    for name, parameter in model.named_parameters():
        each, step = leak.arrays[f"example/{name}"], leak.arrays[f"step0/{name}"]
        assert each.shape == (3, *parameter.shape)
        assert np.allclose(each.mean(0), step, atol=1e-7)
        loss = nn.functional.cross_entropy(model(x[0, 1:2]), y[0, 1:2])
        assert np.allclose(each[1], torch.autograd.grad(loss, parameter)[0].numpy(), atol=1e-7)
        assert f"step1/{name}" in leak.arrays and f"step2/{name}" not in leak.arrays
    assert all((leak.arrays[f"inputs/{i}"] == x[i].numpy()).all() for i in range(2))
    assert all((leak.arrays[f"labels/{i}"] == y[i].numpy()).all() for i in range(2))
    said = {"optimizer": "SGD", "learning-rate": f"{RATE}", "momentum": "0", "weight-decay": "0", "local-steps": "2"}
    said["victim-mode"] = "eval"
    assert dict(leak.said) == said and leak.partition == 0


def test_steps_without_observe_are_recorded_by_the_sent_names(tmp_path):
    run(tmp_path, StepProbeMod(tmp_path), clients=1, observes=False, optimizer=torch.optim.Adam)
    [leak] = read_leaks(tmp_path, "type-2")
    assert {name for name in leak.arrays} == {f"step0/{name}" for name, _ in network().named_parameters()}
    assert (leak.said["optimizer"], leak.said["local-steps"]) == ("Adam", "2")


def test_the_probe_changes_nothing_and_leaves_no_hook(tmp_path):
    with_probe = run(tmp_path, StepProbeMod(tmp_path), clients=2, rounds=2)
    before = len(read_leaks(tmp_path, "type-2"))
    without = run(tmp_path / "other", clients=2, rounds=2)
    assert all((with_probe[name] == without[name]).all() for name in without)
    assert before == len(read_leaks(tmp_path, "type-2")) == 4
    assert not _global_optimizer_pre_hooks


def test_steps_of_other_threads_are_not_recorded(tmp_path):
    def beside(client, number):
        other = nn.Linear(2, 2)
        other(torch.ones(1, 2)).sum().backward()
        thread = Thread(target=torch.optim.SGD(other.parameters(), lr=7.0).step)
        thread.start()
        thread.join()
        return batches(client, number)

    run(tmp_path, StepProbeMod(tmp_path), clients=1, given=beside)
    [leak] = read_leaks(tmp_path, "type-2")
    assert (leak.said["local-steps"], leak.said["learning-rate"]) == ("2", f"{RATE}")


def test_batch_normalisation_shows_no_single_example(tmp_path):
    run(tmp_path, StepProbeMod(tmp_path), clients=1, build=lambda: network(batch_norm=True))
    [leak] = read_leaks(tmp_path, "type-2")
    assert "batch normalisation" in leak.said["note"]
    assert not any(name.startswith("example/") for name in leak.arrays) and "inputs/1" in leak.arrays


def test_mods_are_attached_around_an_app_s_own(tmp_path):
    """The first is the outermost; the app's own stay inside."""
    order = []

    def noting(name):
        def mod(message, context, call_next):
            order.append(name)
            return call_next(message, context)

        return mod

    app = attach(client(noting("own")), noting("first"), noting("second"))
    InProcessGrid(app, 1).answer(asked())
    assert order == ["first", "second", "own"]


def test_a_leak_is_written_atomically_and_the_model_once(tmp_path):
    run(tmp_path, UpdateTapMod(tmp_path), clients=5)
    files = sorted(path.relative_to(tmp_path).as_posix() for path in Path(tmp_path).rglob("*") if path.is_file())
    assert len([name for name in files if name.startswith("sent/")]) == 1
    assert all(name.endswith(".safetensors") and "/." not in name for name in files)


@pytest.mark.filterwarnings("ignore:round 1. 1 of the updates was not finite")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
def test_a_diverged_client_sends_a_zero_update_with_its_noise(value):
    """Metrics and arrays that are not parameters pass as they are."""
    received = {"weight": np.ones((2, 3), np.float32), "bias": np.zeros(2, np.float32)}
    trained = {**received, "weight": received["weight"].copy()}
    trained["weight"][1, 2] = value
    clock = Clock(0, 0, 1, 1, cohort=2)
    sent, plain = (
        DefenseMod(NOISE).defended(received, each, clock, torch.Generator().manual_seed(0))
        for each in (trained, received)
    )
    noise = norm({n: sent[n] - plain[n] for n in received})
    assert all(np.isfinite(a).all() for a in sent.values())
    assert noise == 0 if not np.isfinite(value) else noise <= 0.01 + 1e-6
