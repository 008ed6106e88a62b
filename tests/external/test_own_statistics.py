"""Statistics of batch normalisation that the attacker of an own update has: those of public examples, or of the client's batch."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from command_line import called
from safetensors.torch import save_file
from torch import Tensor, nn

import leakbench
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.external.attack import attack_traces
from leakbench.external.attacker import AttackerOptions
from leakbench.external.trace import Trace, Training

SHAPE, CLASSES, BATCH, RATE, VICTIMS = (1, 6, 6), 3, 4, 0.1, 2
ATTACK = "inverting_gradients_batch_norm"


def build() -> nn.Module:
    """Return a network with PyTorch's own batch normalisation, whose running statistics are not those of a fresh layer."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Sigmoid(), nn.Flatten(), nn.Linear(48, CLASSES)]
    model = nn.Sequential(*layers)
    model[1].running_mean.uniform_(0.1, 0.5)
    model[1].running_var.uniform_(0.5, 1.5)
    return model


def silent() -> nn.Module:
    """Return the network with a first layer of zeros, so that its running means stay 0 in every step."""
    model = build()
    with torch.no_grad():
        for tensor in (*model[0].parameters(), model[1].running_mean):
            tensor.zero_()
    return model


def trained(victim: int, make: Callable[[], nn.Module] = build) -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor]:
    """Return (the state that a client sends after one step in train mode, its inputs and labels, its first layer's outputs)."""
    model, rng = make().train(), torch.Generator().manual_seed(victim)
    x, y = torch.rand(BATCH, *SHAPE, generator=rng), torch.arange(BATCH) % CLASSES
    with torch.no_grad():
        entering = model[0](x)
    step = torch.optim.SGD(model.parameters(), RATE)
    nn.functional.cross_entropy(model(x), y).backward()
    step.step()
    return {name: t.clone() for name, t in model.state_dict().items()}, x, y, entering


def trace(
    sent: bool = True, mode: str = "train", make: Callable[[], nn.Module] = build, **more: int
) -> tuple[Trace, list[Tensor]]:
    before = make().state_dict()
    clients = [trained(victim, make) for victim in range(VICTIMS)]
    updates = [{n: after[n] - before[n] for n, _ in make().named_parameters()} for after, *_ in clients]
    truth = torch.stack([x for _, x, _, _ in clients]), torch.stack([y for _, _, y, _ in clients])
    how = Training(BATCH, learning_rate=RATE, mode=mode, **more)
    buffers = [after for after, *_ in clients] if sent else None
    found = Trace(make(), updates, SHAPE, CLASSES, how, before, "type-1", truth, sent=buffers)
    return found, [entering for *_, entering in clients]


def test_the_statistics_of_each_batch_are_solved_from_what_pytorch_sends() -> None:
    found, entering = trace()
    view = AttackerOptions(ATTACK, statistics="inferred")().for_network(found).view(found)
    assert view.statistics is not None and view.knowledge.statistics == "inferred"
    for victim, x in enumerate(entering):
        flat = x.transpose(0, 1).flatten(1)
        torch.testing.assert_close(view.statistics["1.running_mean"][victim], flat.mean(1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            view.statistics["1.running_var"][victim], flat.var(1, correction=0), rtol=1e-3, atol=1e-5
        )


def test_one_statistic_that_did_not_move_is_solved_with_the_others() -> None:
    """A layer whose outputs are 0 leaves its running mean at 0, and moves its running variance."""
    found, _ = trace(make=silent)
    solved = found.solved
    assert torch.equal(solved["1.running_mean"], torch.zeros(VICTIMS, 3))
    torch.testing.assert_close(solved["1.running_var"], torch.zeros(VICTIMS, 3), rtol=0, atol=1e-5)


def test_statistics_of_public_examples_leave_out_the_truth() -> None:
    """A dataset whose public examples are the truth and one other gives the statistics of the other alone."""
    found, _ = trace()
    assert found.inputs is not None
    attacker = AttackerOptions(ATTACK, statistics="proxy")()
    public = attacker.public(SHAPE, CLASSES)
    other = public.first(5)
    both = dataclasses.replace(
        other,
        inputs=torch.cat([found.inputs.flatten(0, 1), other.inputs]),
        labels=torch.cat([torch.zeros(VICTIMS * BATCH, dtype=torch.int64), other.labels]),
    )
    seen = {}
    for name, examples in (("both", both), ("other", other)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("leakbench.external.attacker.Attacker.public", lambda *_, e=examples: e)
            statistics = attacker.view(found).statistics
        assert statistics is not None
        seen[name] = statistics["1.running_mean"]
    assert torch.equal(seen["both"], seen["other"])
    assert torch.equal(seen["other"][0], seen["other"][1])


@pytest.mark.parametrize(
    ("statistics", "attack", "how", "words"),
    [
        ("given", ATTACK, {}, "got 'given', expected batch or proxy or inferred"),
        ("inferred", ATTACK, {"mode": "eval"}, "not trained by its batches' statistics"),
        ("proxy", "inverting_gradients", {}, "this attack has no prior of batch normalization"),
        ("inferred", ATTACK, {"steps": 2}, "expected one local step"),
    ],
)
def test_statistics_that_do_not_fit_are_refused(statistics: str, attack: str, how: dict[str, int], words: str) -> None:
    found, _ = trace(**how)
    if how.get("steps"):
        found = dataclasses.replace(found, truth=None)
    with pytest.raises(InputError, match=words):
        AttackerOptions(attack, statistics=statistics)().for_network(found).view(found)


def test_a_batch_of_changed_examples_is_not_inferred() -> None:
    """A defense of the examples changes the batch whose statistics the client sends."""
    found, _ = trace()
    attacker = AttackerOptions(ATTACK, defense="mixup", knows="oblivious", statistics="inferred")()
    with pytest.raises(InputError, match="expected one local step without a defense of the examples"):
        attacker.for_network(found)
    AttackerOptions(ATTACK, defense="mixup", knows="oblivious", statistics="proxy")().for_network(found)
    AttackerOptions(ATTACK, defense="noise_gaussian", knows="oblivious", statistics="inferred")().for_network(found)


def test_a_folder_resumes_only_with_the_same_statistics(tmp_path: Path) -> None:
    """Another choice of statistics and other buffers of the clients are another attack; the same ones are not."""
    found, _ = trace()
    buffers = [{**trained(victim)[0]} for victim in range(VICTIMS)]
    other = [{**b, "1.running_var": b["1.running_var"] * 1.01} for b in buffers]

    def attacked(statistics: str, seen: Trace) -> Tensor:
        options = AttackerOptions(ATTACK, iterations=2, statistics=statistics)
        folder, quiet = tmp_path / ("inferred" if statistics == "inferred" else "public"), Reporter(quiet=True)
        return attack_traces({"type-1": (seen, options())}, folder, {}, "test", quiet)["type-1"].answer.inputs

    for choice in ("inferred", "proxy"):
        assert torch.equal(attacked(choice, found), attacked(choice, found))
    for choice, seen in (("batch", found), ("inferred", dataclasses.replace(found, sent=other))):
        with pytest.raises(InputError, match="contains another attack"):
            attacked(choice, seen)


def test_running_statistics_that_were_not_sent_are_refused() -> None:
    attacker = AttackerOptions(ATTACK, statistics="inferred")()
    found, _ = trace(sent=False)
    with pytest.raises(InputError, match="got those of 0 clients of 2"):
        attacker.view(found)
    same = dataclasses.replace(found, sent=[build().state_dict()] * VICTIMS)
    with pytest.raises(InputError, match="equal to those that the clients received"):
        attacker.view(same)


def test_buffers_that_are_not_those_of_one_step_are_refused() -> None:
    """Another number of steps by the counter, and variances that one step cannot give."""
    attacker, (found, _) = AttackerOptions(ATTACK, statistics="inferred")(), trace()
    buffers = [trained(victim)[0] for victim in range(VICTIMS)]
    later = [{**b, "1.num_batches_tracked": b["1.num_batches_tracked"] + 7} for b in buffers]
    with pytest.raises(InputError, match="a counter of batches rose by 8"):
        attacker.view(dataclasses.replace(found, sent=later))
    smaller = [{**b, "1.running_var": b["1.running_var"] * 0.1} for b in buffers]
    with pytest.raises(InputError, match="solves variances below 0"):
        attacker.view(dataclasses.replace(found, sent=smaller))


def test_the_command_and_the_function_read_what_a_client_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    after, x, y, _ = trained(0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\ndef build():\n    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Sigmoid(),"
        f" nn.Flatten(), nn.Linear(48, {CLASSES}))\n"
    )
    save_file(dict(build().state_dict()), tmp_path / "before.safetensors")
    save_file(after, tmp_path / "after.safetensors")
    asked = (
        f"attack --model mine:build --before before.safetensors --after after.safetensors --shape 1,6,6 --classes {CLASSES}"
        f" --batch {BATCH} --learning-rate {RATE} --victim-mode train --attack {ATTACK} --iterations 2 -v"
    )
    code, out, _ = called(monkeypatch, capsys, *asked.split(), "--statistics", "inferred")
    assert code == 0
    assert "statistics of batch normalisation of the client's batch" in " ".join(out.split())
    answers = {
        choice: leakbench.attack_update(
            build(),
            {n: after[n] - p.detach() for n, p in build().named_parameters()},
            shape=SHAPE,
            classes=CLASSES,
            batch=BATCH,
            before=build().state_dict(),
            learning_rate=RATE,
            victim_mode="train",
            attack=ATTACK,
            iterations=40,
            statistics=choice,
            sent=after,
            truth=(x[None], y[None]),
        ).answer.inputs
        for choice in ("batch", "inferred")
    }
    assert not torch.equal(answers["batch"], answers["inferred"])
