"""Values of updates, weights and truths as programs have them: each works, or is one line that names the field."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn import functional as F

import leakbench
from leakbench import canaries
from leakbench.core.errors import InputError
from leakbench.external.arrays import as_parameters, as_state, read_arrays
from leakbench.external.outcome import Outcome
from leakbench.external.trace import Trace, Training
from leakbench.measure.rates import TARGET_ERROR
from leakbench.models.external import ExternalNetwork
from leakbench.summary.targets import ALONE, target_fields


class Spare(nn.Module):
    """A layer that the loss does not reach, a buffer, and weights tied under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.spare, self.o = nn.Linear(64, 16), nn.Linear(5, 5), nn.Linear(16, 10)
        self.again = self.a
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return self.o(torch.sigmoid(self.a(x.flatten(1))) * self.scale)


def trained() -> tuple[nn.Module, dict[str, Any], Tensor, Tensor]:
    """Return a network, the gradients of one example by name, and the example."""
    torch.manual_seed(0)
    model, x, y = Spare(), torch.rand(1, 1, 8, 8), torch.tensor([3])
    F.cross_entropy(model(x), y).backward()
    return model, {n: p.grad for n, p in model.named_parameters()}, x, y


def attacked(model: nn.Module, update: Any, **more: Any) -> Outcome:
    return leakbench.attack_update(
        model, update, **{"shape": (1, 8, 8), "classes": 10, "attack": "cpl", "iterations": 1} | more
    )


EXACT: dict[str, Any] = {"attack": "analytic_fc", "iterations": None}


@pytest.mark.filterwarnings("ignore:type-1. only 1 of 2 victims")
def test_a_gradient_that_is_none_counts_as_a_frozen_parameter_or_as_zero_if_other_victims_have_one() -> None:
    model, update, x, y = trained()
    assert update["spare.weight"] is None
    truth = (x[None], y[None])
    found = attacked(model, update, truth=truth, **EXACT)
    assert found.summary["asr"] == 1 and found.summary["label_accuracy"] == 1
    assert model.spare.weight.requires_grad
    other = update | {"spare.weight": torch.zeros(5, 5), "spare.bias": torch.zeros(5)}
    both = attacked(
        model, [update, other], attack="analytic_fc", truth=(x[None].repeat(2, 1, 1, 1, 1), [[3], [3]]), iterations=None
    )
    assert both.summary["asr"] == 1


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_attack_is_the_same_without_the_callers_gradients(mode: Callable[[], Any]) -> None:
    model, update, x, y = trained()
    wanted = attacked(model, update, truth=(x[None], y[None]), iterations=3)
    with mode():
        grads = {n: None if g is None else g.clone() for n, g in update.items()}  # In inference mode, its tensors.
        given = {"truth": (x[None].clone(), y[None].clone()), "before": model.state_dict()}
        found = attacked(model, grads, iterations=3, **given)
        assert not torch.is_grad_enabled() and torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
    for one in (found, attacked(model, grads, iterations=3, **given)):
        assert torch.equal(one.answer.inputs, wanted.answer.inputs) and not one.answer.inputs.is_inference()


def test_a_frozen_first_layer_has_none_and_the_rest_is_attacked() -> None:
    model, _, x, y = trained()
    model.a.requires_grad_(False)
    model.zero_grad()
    F.cross_entropy(model(x), y).backward()
    update = {n: p.grad if p.requires_grad else None for n, p in model.named_parameters()}
    found = attacked(model, update, truth={"inputs": x[None], "labels": y[None]})
    assert found.summary["label_accuracy"] == 1


def test_gradients_that_are_all_none_are_one_line() -> None:
    model, update, _, _ = trained()
    with pytest.raises(InputError, match="update: every gradient is None"):
        attacked(model, dict.fromkeys(update))


FORMS: dict[str, Callable[[Tensor], Any]] = {
    "COO": lambda g: g.to_sparse(),
    "CSR": lambda g: g.to_sparse_csr() if g.dim() == 2 else g,
    "CSC": lambda g: g.to_sparse_csc() if g.dim() == 2 else g,
    "float64": lambda g: g.double(),
    "NumPy": lambda g: g.numpy(),
    "NumPy, read only": lambda g: np.frombuffer(g.numpy().tobytes(), np.float32).reshape(g.shape),
    "NumPy float64": lambda g: g.double().numpy(),
    "NumPy, negative strides": lambda g: g.flip(0).numpy()[::-1],
    "NumPy, big-endian": lambda g: g.numpy().astype(">f4"),
    "list": lambda g: g.tolist(),
    "graph": lambda g: g.clone().requires_grad_() * 1,
    "float16": lambda g: g.half(),
    "bfloat16": lambda g: g.bfloat16(),
    "not contiguous": lambda g: g.t().clone().t(),
}


@pytest.mark.filterwarnings("ignore:Sparse CS")
@pytest.mark.parametrize("form", FORMS)
def test_arrays_of_any_form_are_read(form: str) -> None:
    model = nn.Linear(6, 4)
    given = {n: torch.randn(p.shape) * (torch.rand(p.shape) < 0.5) for n, p in model.named_parameters()}
    found = as_parameters("update", model, {n: FORMS[form](g) for n, g in given.items()})
    near = {"float16": 1e-3, "bfloat16": 1e-2}.get(form, 0.0)
    for name, g in given.items():
        assert found[name].dtype == torch.float32 and found[name].layout == torch.strided
        torch.testing.assert_close(found[name], g, rtol=near, atol=0)


def test_arrays_of_another_byte_order_are_read_from_a_file(tmp_path: Path) -> None:
    array = np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "u.npz", a=array.astype(">f8"), b=np.array(7, ">i4"))
    found = read_arrays("update", tmp_path / "u.npz")
    assert torch.equal(found["a"], torch.from_numpy(array).float()) and found["b"].item() == 7


BAD: dict[str, tuple[Any, str]] = {
    "meta": (torch.zeros(4, 6, device="meta"), "meta device"),
    "complex": (torch.zeros(4, 6, dtype=torch.complex64), "complex"),
    "integers": (torch.zeros(4, 6, dtype=torch.int64), "expected floating"),
    "bool": (torch.zeros(4, 6, dtype=torch.bool), "expected floating"),
    "NaN": (torch.full((4, 6), torch.nan), "not finite"),
    "infinity": (torch.full((4, 6), torch.inf).to_sparse(), "not finite"),
    "too large": (torch.full((4, 6), 1e300, dtype=torch.float64), "single precision"),
    "shape": (torch.zeros(6, 4), r"shape \(6, 4\)"),
    "text": ("weights", "type str"),
    "object": (object(), "type object"),
    "NumPy objects": (np.array([[None]]), "type ndarray"),
    "ragged": ([[1.0], [1.0, 2.0]], "type list"),
    "None": (None, "is None"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_value_that_is_not_an_array_of_finite_numbers_is_one_line_with_its_name(bad: str) -> None:
    value, words = BAD[bad]
    with pytest.raises(InputError, match=f"update: .*'weight'.*{words}") as error:
        as_parameters("update", nn.Linear(6, 4), {"weight": value, "bias": torch.zeros(4)})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "'weight'.* is missing"),
        ({3: torch.zeros(4)}, "the name 3 of type int"),
        ({"weight": torch.zeros(4, 6), "bias": torch.zeros(4), "more": torch.zeros(1)}, "'more'.*not a parameter"),
        ({"weight": torch.zeros(4, 6), "bias": torch.zeros(4), "more": None}, "'more'.*not a parameter"),
        ({"model.weight": torch.zeros(4, 6), "model.bias": torch.zeros(4)}, "'weight'.* is missing"),
    ],
)
def test_other_names_are_one_line(given: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"update: .*{words}"):
        as_parameters("update", nn.Linear(6, 4), given)


def test_the_prefix_of_a_wrapper_is_removed() -> None:
    given = {"_module._orig_mod.weight": torch.ones(4, 6), "_module._orig_mod.bias": torch.ones(4)}
    assert as_parameters("update", nn.Linear(6, 4), given)["bias"].tolist() == [1] * 4


def test_what_a_module_saves_besides_tensors_is_left_out() -> None:
    class Counts(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"calls": 3}

    model = Counts(6, 4)
    assert as_parameters("before", model, model.state_dict()).keys() == {"weight", "bias"}
    assert as_state("before", model, model.state_dict()) == {}


@pytest.mark.parametrize("kept", ["a", "again"])
def test_tied_weights_have_any_of_their_names(kept: str, tmp_path: Path) -> None:
    model, update, x, y = trained()
    update = {n: g for n, g in update.items() if g is not None}
    alone = {n.replace("a.", f"{kept}.") if n.startswith("a.") else n: g for n, g in update.items()}
    frozen = {"spare.weight": None, "spare.bias": None}
    found = attacked(model, alone | frozen, truth=(x[None], y[None]), **EXACT)
    assert found.summary["asr"] == 1
    save_model(model, str(tmp_path / "model.safetensors"))
    weights = load_file(tmp_path / "model.safetensors")
    none = dict.fromkeys({"a.weight", "again.weight"} - weights.keys())
    for arrays in (weights, weights | none, none | weights):
        before = as_parameters("before", model, arrays)
        assert all(torch.equal(before[n], p) for n, p in model.named_parameters())


def test_tied_weights_with_different_numbers_are_one_line() -> None:
    model, update, _, _ = trained()
    with pytest.raises(InputError, match=r"update: 'a.weight' and 'again.weight' are one parameter"):
        as_parameters("update", model, update | {"again.weight": torch.zeros(16, 64)})


def test_buffers_may_be_arrays_of_numpy_and_weights_in_half_precision() -> None:
    model, update, x, y = trained()
    before = {n: t.numpy() for n, t in model.state_dict().items()}
    assert attacked(model, update, before=before, truth=(x[None], y[None])).summary["label_accuracy"] == 1
    assert as_state("before", model, before | {"scale": np.ones(16)})["scale"].dtype == torch.float32
    assert attacked(model.half(), update, truth=(x[None], y[None])).summary["label_accuracy"] == 1
    with pytest.raises(InputError, match=r"before: 'scale'.*type str"):
        attacked(model, update, before=before | {"scale": "one"})


TRUTHS: dict[str, tuple[Callable[[Tensor, Tensor], Any], str]] = {
    "dictionary": (lambda x, y: {"inputs": x[None], "labels": y[None]}, ""),
    "list": (lambda x, y: [x[None].tolist(), [[3]]], ""),
    "int32": (lambda x, y: (x[None], y[None].int()), ""),
    "uint16": (lambda x, y: (x[None], np.array([[3]], dtype=np.uint16)), ""),
    "uint8": (lambda x, y: (x[None], y[None].byte()), ""),
    "float64 inputs": (lambda x, y: (x[None].double().numpy(), y[None].numpy()), ""),
    "half inputs": (lambda x, y: (x[None].half(), y[None]), ""),
    "sparse inputs": (lambda x, y: (x[None].to_sparse(), y[None]), ""),
    "float labels": (lambda x, y: (x[None], y[None].float()), "labels are .* of torch.float32"),
    "bool labels": (lambda x, y: (x[None], y[None].bool()), "labels are .* of torch.bool"),
    "one-hot labels": (lambda x, y: (x[None], F.one_hot(y, 10)), "labels are .*10"),
    "labels out of range": (lambda x, y: (x[None], y[None] + 10), "labels go from 13"),
    "negative labels": (lambda x, y: (x[None], y[None] - 10), "labels go from -7"),
    "no labels": (lambda x, y: (x[None], None), "'labels'.*NoneType"),
    "no inputs": (lambda x, y: (None, y), "'inputs'.*NoneType"),
    "one tensor": (lambda x, y: x, r"truth: got .*Tensor, expected \(inputs, labels\)"),
    "three": (lambda x, y: (x, y, y), r"expected \(inputs, labels\)"),
    "another name": (
        lambda x, y: {"inputs": x, "targets": y},
        "got the arrays inputs, targets, expected inputs and labels",
    ),
    "text": (lambda x, y: "truth", r"expected \(inputs, labels\)"),
    "NaN": (lambda x, y: (x[None] * torch.nan, y), "inputs have numbers that are not finite"),
    "meta": (lambda x, y: (x[None].to("meta"), y), "meta device"),
}


@pytest.mark.parametrize("kind", TRUTHS)
def test_a_truth_works_or_is_one_line(kind: str) -> None:
    model, update, x, y = trained()
    make, words = TRUTHS[kind]
    if words:
        with pytest.raises(InputError, match=f"truth: .*{words}|{words}"):
            attacked(model, update, truth=make(x, y))
    else:
        assert attacked(model, update, truth=make(x, y)).summary["label_accuracy"] == 1


def test_no_victim_and_a_scripted_network_are_one_line() -> None:
    with pytest.raises(InputError, match="update: got none"):
        _ = Trace(Spare(), [], (1, 8, 8), 10, Training()).view
    with pytest.warns(), pytest.raises(InputError, match="model: the model is a module of TorchScript"):
        attacked(torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(64, 10))), {})


def errors(*batches: float, null: float = 41.0) -> dict[str, Any]:
    group = pd.DataFrame(
        {"batch": range(len(batches)), "network": 0, TARGET_ERROR.name: batches, TARGET_ERROR.baseline: null}
    )
    return target_fields(group)


def test_errors_of_numbers_on_any_scale_have_an_interval_around_them() -> None:
    one = errors(18.5)
    assert (one["target_error_low"], one["target_error"], one["target_error_high"]) == (0, 18.5, (1 + ALONE) * 18.5)
    assert errors(18.5, 18.5, 18.5) == one
    three = errors(10.0, 20.0, 30.0)
    half = 4.302653 * 10 / 3**0.5
    assert three["target_error_low"] == 0 and three["target_error_high"] == pytest.approx(20 + half, rel=1e-6)
    assert errors(0.0, 50.0, np.inf)["target_error"] == pytest.approx((50 + 41) / 3)
    rate = errors(0.25, null=0.5)
    assert rate["target_error_high"] < 1


def test_the_interval_of_errors_is_wider_where_networks_differ() -> None:
    """Two networks with means of 10 and 30: Student's interval with one degree of freedom, 20 +- 12.7062 x 10."""
    rows = pd.DataFrame({TARGET_ERROR.name: [10.0] * 3 + [30.0] * 3, TARGET_ERROR.baseline: 41.0, "batch": range(6)})
    alone, found = (target_fields(rows.assign(network=network)) for network in ("a", [*"aaabbb"]))
    assert found["target_error_high"] == pytest.approx(147.062, abs=1e-2)
    assert alone["target_error_high"] < 40
    assert found["target_error_low"] == 0


def test_the_interval_from_one_value_covers_the_mean_of_every_normal_distribution() -> None:
    mean = np.linspace(0.001, 20, 20001)  # In standard deviations.
    covered = norm.sf(mean / (1 + ALONE) - mean) + norm.cdf(-mean / (ALONE - 1) - mean)
    assert 0.95 <= covered.min() < 0.9501


def test_canaries_take_gradients_that_are_none_sparse_or_in_half_precision() -> None:
    model = Spare()
    ours = canaries.gradients(model, 10, seed=0)
    released = {n: torch.randn(p.shape) for n, p in model.named_parameters()}
    ours.score(released)
    expected = ours.scores.clone()
    for form in (lambda g: g.to_sparse(), lambda g: g.numpy(), lambda g: g.double()):
        ours.scores.zero_()
        ours.score({n: form(g) for n, g in released.items()} | {"frozen": None})
        torch.testing.assert_close(ours.scores, expected)
    joined = ours.join({n: torch.zeros(0, *p.shape) for n, p in model.named_parameters()} | {"frozen": None})
    assert set(joined) == set(released)
    with pytest.raises(InputError, match=r"canaries: 'a.weight' is on the meta device"):
        ours.score({n: g.to("meta") for n, g in released.items()})
    with pytest.raises(InputError, match=r"without 'a.weight'"):
        ours.score(dict.fromkeys(released))


@pytest.mark.parametrize("header", ["score,score,included", "score,included,included", "score,included,score,other"])
def test_two_columns_of_one_name_are_one_line(header: str, tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text(header + "\n" + "1,0,1,1\n"[: 2 * header.count(",") + 1] + "\n")
    with pytest.raises(InputError, match=r"scores: .*2 columns"):
        canaries.read_scores(path)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_a_probe_and_canaries_of_a_network_of_another_precision(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10)).to(kind)
    optimizer, x, y = torch.optim.SGD(model.parameters(), lr=0.1), torch.rand(2, 1, 8, 8).to(kind), torch.arange(2)
    with leakbench.probe(model) as probe:
        probe.observe(x, y, F.cross_entropy)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    ours = canaries.examples(torch.rand(12, 1, 8, 8), classes=10, seed=0)
    ours.score(model)
    assert ours.losses[0].isfinite().all()
    found = probe.leak(attack="cpl", iterations=1, victims=1)
    assert found["type-2"].summary["label_accuracy"] == 1


def test_a_probe_of_an_embedding_with_sparse_gradients() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(20, 8, sparse=True), nn.Linear(8, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leakbench.probe(model) as probe:
        F.cross_entropy(model(torch.randint(0, 20, (2, 5))), torch.arange(2)).backward()
        optimizer.step()
    assert probe.gradient["0.weight"].layout == torch.strided and probe.heard.fault == ""


def test_a_probe_names_an_empty_batch() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leakbench.probe(model) as probe:
        x, y = torch.rand(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64)
        probe.observe(x, y, F.cross_entropy)
        (F.cross_entropy(model(x), y, reduction="sum") + model[1].weight.sum() * 0).backward()
        optimizer.step()
    with pytest.raises(InputError, match="probe: step 1 has an empty batch"):
        probe.leak()


@pytest.mark.parametrize("kept", ["a", "again"])
def test_weights_of_a_file_may_be_tied(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Spare()
    weights = {
        n: t.clone() for n, t in model.state_dict().items() if not n.startswith({"a": "again", "again": "a."}[kept])
    }
    save_file(weights, tmp_path / "weights.safetensors")
    (tmp_path / "tied_network.py").write_text(
        "from tests.external.test_own_values import Spare\ndef build(): return Spare()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = ExternalNetwork("tied_network:build", tmp_path / "weights.safetensors").made((1, 8, 8), 10)
    assert all(torch.equal(p, q) for p, q in zip(found.parameters(), model.parameters(), strict=True))


class Masked(nn.Module):
    """Attention of the rows of an image with a mask of minus infinity, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x[:, 0])
        weights = (h @ h.transpose(1, 2) + self.mask).softmax(-1)
        return self.head((weights @ h)[:, -1])


def test_a_mask_may_have_infinite_numbers_and_other_buffers_may_not(tmp_path: Path) -> None:
    model, file = Masked(), tmp_path / "before.safetensors"
    save_file(dict(model.state_dict()), file)
    assert torch.equal(as_state("before", model, read_arrays("before", file))["mask"], model.mask)
    bad = {**model.state_dict(), "norm.running_var": torch.full((4,), torch.nan)}
    with pytest.raises(InputError, match=r"before: 'norm\.running_var' has numbers that are not finite"):
        as_state("before", model, bad)


def test_a_sparse_batch_is_observed() -> None:
    model, x = nn.Linear(6, 4), torch.rand(2, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with leakbench.probe(model) as probe:
        probe.observe(x.to_sparse(), torch.tensor([0, 1]), nn.functional.cross_entropy)
        nn.functional.cross_entropy(model(x), torch.tensor([0, 1])).backward()
        optimizer.step()
    assert torch.equal(probe.observed.inputs[0], x)
