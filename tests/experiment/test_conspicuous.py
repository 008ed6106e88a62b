"""What a client can detect in the received model.

Closed forms, slow references, and what a run reports about a malicious server.
"""

import dataclasses
import itertools
import json
import math

import pytest
import torch
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import relu

import leakbench
import leakbench.experiment.conspicuous as stage
from leakbench.attack.servers.first_layer import QuantileRows, TrapWeights
from leakbench.attack.servers.imprint import Imprint
from leakbench.cell import Request, resolve_cell
from leakbench.core.rng import generator
from leakbench.core.types import Network
from leakbench.execute import _honest, _sent, hand_out
from leakbench.experiment.conspicuous import HONEST, Conspicuous, conspicuous_of, seen_of
from leakbench.federated.view import Knowledge, Public
from leakbench.measure.conspicuous import (
    STATISTICS,
    architecture_changed,
    d_snr,
    lit,
    lit_alone,
    percentile,
    rows_alike,
    weight_names,
)
from leakbench.models import build, parameters
from leakbench.models.gates import gated_biases
from leakbench.report.words import conspicuous
from leakbench.storage.summary import Summary

pytestmark = pytest.mark.usefixtures("with_pages")

SHAPE, CLASSES = (1, 12, 12), 4
PUBLIC = Public(torch.rand(400, *SHAPE, generator=generator(0, "p")), torch.zeros(400, dtype=torch.int64))
X, Y = torch.rand(8, *SHAPE, generator=generator(0, "x")), torch.arange(8) % CLASSES


def honest(model: str) -> Network:
    built = build(model, SHAPE, CLASSES, generator(0, "m"))
    return Network(built, parameters(built))


def everyone(lanes: int, members: int) -> Tensor:
    return torch.ones(lanes, members, dtype=torch.bool)


def test_rows_alike_is_the_mean_over_pairs():
    """(1, 0), (1, 1), (-1, 1): cosines 1/sqrt 2, -1/sqrt 2 and 0; rows of one number and single rows do not count."""
    weights = {
        "a": torch.tensor([[[1.0, 0.0], [1.0, 1.0], [-1.0, 1.0]]]),
        "column": torch.ones(1, 5, 1),
        "row": torch.ones(1, 1, 5),
    }
    torch.testing.assert_close(rows_alike(weights), torch.tensor([2 * 0.5**0.5 / 3]))
    parallel = torch.tensor([1.0, -3.0, 1e-4])[:, None] * torch.rand(4, generator=generator(0, "r"))
    torch.testing.assert_close(rows_alike({**weights, "b": parallel[None]}), torch.ones(1))
    assert rows_alike({"row": torch.ones(2, 1, 5)}).isnan().tolist() == [True, True]
    assert rows_alike({}).isnan().all()


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.integers(2, 5), st.integers(0, 1000))
def test_rows_alike_against_a_loop(rows: int, columns: int, seed: int) -> None:
    """Lane by lane over pairs; the length and the sign of a row do not matter."""
    w = torch.randn(2, rows, columns, 2, generator=torch.Generator().manual_seed(seed))
    found = rows_alike({"w": w})
    for lane in range(2):
        pairs = itertools.combinations(w[lane].flatten(1), 2)
        slow = [abs(float(a @ b) / float(a.norm() * b.norm())) for a, b in pairs]
        assert float(found[lane]) == pytest.approx(sum(slow) / len(slow), abs=1e-5)
    length = torch.randn(2, rows, 1, 1, generator=torch.Generator().manual_seed(seed + 1)).sign() * 3
    torch.testing.assert_close(rows_alike({"w": length * w}), found)


def test_a_sample_of_very_many_rows_is_compared():
    """5,000 rows, alternating between two orthogonal kinds: half of the pairs are alike, which every third row shows."""
    rows = torch.eye(2).repeat(2500, 1)
    assert float(rows_alike({"w": rows[None]})) == pytest.approx(0.5, abs=1e-3)


def test_d_snr_is_one_norm_over_the_others():
    """(3, 1, 1) gives 1.5, (2, 2, 2) a half; the larger counts. One example, or none with a gradient, gives no value."""
    norms = {"a": torch.tensor([[3.0, 1.0, 1.0]]), "b": torch.tensor([[2.0, 2.0, 2.0]])}
    assert d_snr(norms, everyone(1, 3)).tolist() == [1.5]
    assert d_snr({"a": torch.tensor([[5.0]])}, everyone(1, 1)).isnan().all()
    assert d_snr({"a": torch.zeros(1, 3)}, everyone(1, 3)).isnan().all()
    padded = {"a": torch.tensor([[3.0, 1.0, 0.0], [3.0, 0.0, 0.0]])}
    real = torch.tensor([[True, True, False], [True, False, False]])
    assert d_snr(padded, real).nan_to_num(nan=-1).tolist() == [3.0, -1.0]


def test_d_snr_of_one_dominant_example_is_limited_by_rounding():
    found = d_snr({"a": torch.tensor([[7.0, 0.0, 0.0], [7.0, 1e-30, 0.0]])}, everyone(2, 3))
    torch.testing.assert_close(found, torch.full((2,), 1 / torch.finfo(torch.float32).eps))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=9))
def test_d_snr_is_at_least_that_of_equal_examples(norms: list[float]) -> None:
    several = torch.tensor([norms], dtype=torch.float64)
    found = float(d_snr({"a": several}, everyone(1, len(norms))))
    assert found >= (1 - 1e-9) / (len(norms) - 1)
    assert found == pytest.approx(max(norms) / (sum(norms) - max(norms)), rel=1e-6)


def test_rows_activated_by_exactly_one_example():
    """Four rows activated by 0, 1, 2 and 1 of three examples: two of three active rows.

    An inactive layer or one example gives no value.
    """
    by_whom = torch.tensor([[[0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 0, 1]]], dtype=torch.float64)
    assert lit_alone(lit({"a": by_whom}, ("a",)), everyone(1, 3)).tolist() == pytest.approx([2 / 3])
    both = {"a": by_whom, "b": torch.ones(1, 3, 2)}
    assert lit_alone(lit(both, ("a", "b")), everyone(1, 3)).tolist() == pytest.approx([2 / 3])
    assert lit_alone({"a": torch.zeros(1, 3, 4, dtype=torch.bool)}, everyone(1, 3)).isnan().all()
    assert lit_alone({}, everyone(1, 3)).isnan().all()
    assert lit_alone(lit({"a": by_whom[:, :1]}, ("a",)), everyone(1, 1)).isnan().all()


class Functional(nn.Module):
    """A ReLU and a hardtanh as functions, a layer without a bias and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Linear(3, 2), nn.Linear(4, 3)
        self.bare, self.second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = relu(self.bare(relu(self.first(x))))
        return self.last(torch.nn.functional.hardtanh(self.second(torch.sigmoid(hidden)), 0, 1))


def test_gated_layers_are_read_from_the_graph():
    """In any order of the modules, also for functions; not before a sigmoid, without a bias, nor the last layer."""
    network = Functional()
    before = [p.clone() for p in network.parameters()]
    assert gated_biases(network, (4,)) == ("first.bias", "second.bias")
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    for model, found in (("mlp", ("1.bias", "3.bias")), ("cnn", ()), ("lenet_cpl", ()), ("mlp_sigmoid", ())):
        assert gated_biases(honest(model).model, SHAPE) == found
    frozen = honest("mlp").model.requires_grad_(False)
    assert gated_biases(frozen, SHAPE) == ("1.bias", "3.bias")
    assert not any(p.requires_grad for p in frozen.parameters())
    imprinted = sent(Imprint(bins=8), "cnn")
    assert gated_biases(imprinted.model, SHAPE) == ("rows.bias",)
    assert weight_names(imprinted.model)[:2] == ("rows.weight", "back.weight")


def sent(server, model: str, examples: int = 8) -> Network:
    return server(honest(model), PUBLIC, Knowledge(examples=examples), generator(0, "server"))[0]


def test_a_percentile_counts_equal_ones_half():
    assert percentile(2.0, [1.0, 2.0, 3.0, 4.0]) == 37.5
    assert (percentile(0.0, [1.0]), percentile(9.0, [1.0, math.nan])) == (0.0, 100.0)
    assert percentile(math.nan, [1.0]) is None
    assert percentile(1.0, [math.nan]) is None


def test_added_layers_change_the_architecture_and_chosen_values_do_not():
    for server, model, changed in (
        (Imprint(), "cnn", True),
        (TrapWeights(), "mlp", False),
        (QuantileRows(), "mlp", False),
    ):
        assert architecture_changed(honest(model).parameters, sent(server, model).parameters) is changed
    assert architecture_changed({"a": torch.ones(2)}, {"a": torch.ones(3)})


@pytest.mark.parametrize("server", [None, QuantileRows(), Imprint(bins=16), Imprint(bins=16, form="cumulative")])
def test_the_statistics_of_a_batch_against_one_example_at_a_time(server):
    """By a backward pass for each example, over all weights; the loss is the mean cross-entropy."""
    network = honest("mlp") if server is None else sent(server, "mlp")
    found = seen_of(network, X, Y)
    norms: dict[str, list[float]] = {n: [] for n in weight_names(network.model)}
    rows: dict[str, list[Tensor]] = {n: [] for n in gated_biases(network.model, SHAPE)}
    losses = []
    leaves = {n: p.clone().requires_grad_() for n, p in network.parameters.items()}
    for x, y in zip(X, Y, strict=True):
        logits = torch.func.functional_call(network.model, leaves, (x[None],))
        loss = nn.functional.cross_entropy(logits, y[None])
        grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        losses.append(float(loss.detach()))
        for name, each in norms.items():
            each.append(float(grads[name].norm()))
        for name, of_each in rows.items():
            of_each.append(grads[name] != 0)
    counts = [torch.stack(each).sum(0) for each in rows.values()]
    assert found["loss"] == pytest.approx(sum(losses) / 8, rel=1e-5)
    assert found["d_snr"] == pytest.approx(max(max(n) / (sum(n) - max(n)) for n in norms.values() if sum(n)), rel=1e-4)
    assert found["lit_alone"] == pytest.approx(max(float((c == 1).sum() / (c > 0).sum()) for c in counts))


def test_chunks_give_the_same_statistics(monkeypatch):
    whole = seen_of(honest("mlp"), X, Y)
    monkeypatch.setattr(stage, "AT_ONCE", 1)
    assert seen_of(honest("mlp"), X, Y) == pytest.approx(whole)


def test_a_network_that_mixes_its_batch_has_no_example_gradients():
    """Batch normalisation in train mode: only the loss and the rows remain."""
    network = honest("convnet")
    network = dataclasses.replace(network, model=network.model.train())
    found = seen_of(network, X, Y)
    assert [name for name, value in found.items() if math.isnan(value)] == ["d_snr", "lit_alone"]


def test_an_imprint_shows_in_its_rows_and_a_sparse_one_in_its_activations():
    """As planned: parallel rows; .92 and .03 of the rows are activated by only one example, B = 32."""
    found = {form: seen_of(sent(Imprint(bins=64, form=form), "cnn"), X, Y) for form in ("sparse", "cumulative")}
    assert all(each["rows_alike"] == pytest.approx(1, abs=1e-4) for each in found.values())
    assert found["sparse"]["lit_alone"] > 0.8
    assert found["cumulative"]["lit_alone"] < 0.5
    assert seen_of(honest("cnn"), X, Y)["rows_alike"] < 0.4


def cell_of(**asked):
    given_ = {
        "dataset": "digits",
        "victims": 3,
        "candidates": 5,
        "taps": ("type-1",),
        "leak_batch": 8,
        "train_rounds": 0,
    }
    return resolve_cell(Request(**{**given_, **asked}), None)


def found_of(cell) -> Conspicuous:
    return conspicuous_of(
        cell, lambda n, network: _sent(cell, None, n, network=network), lambda n: _honest(cell, None, n), hand_out(cell)
    )


def test_only_cells_of_a_malicious_server_have_statistics():
    cell = cell_of(attack="quantile_rows")
    found = found_of(cell).found
    assert tuple(found) == STATISTICS
    assert found["architecture"] == {"value": 0.0, "percentile": 50.0, "honest_median": 0.0}
    assert found["lit_alone"]["percentile"] == 100
    assert found["lit_alone"]["value"] > 2 * found["lit_alone"]["honest_median"]
    assert found_of(cell) == found_of(cell)
    assert found_of(cell_of(attack="rows")) == Conspicuous(None, {"conspicuous": HONEST})


def test_honest_models_are_differentiated_by_the_engine_of_the_cell():
    for engine in ("fast", "reference"):
        cell = cell_of(attack="quantile_rows")
        cell = dataclasses.replace(cell, settings=dataclasses.replace(cell.settings, engine=engine))
        assert stage._fresh(cell, 0).engine == engine


def test_missing_statistics_have_a_reason():
    """One example has no comparisons; a sigmoid network has no inactive rows."""
    alone = found_of(cell_of(attack="trap", leak_batch=1))
    for name in ("d_snr", "lit_alone"):
        assert alone.found[name] == {"value": None, "percentile": None, "honest_median": None}
        for what in ("value", "percentile", "honest_median"):
            assert "fewer than two" in alone.notes[f"conspicuous.{name}.{what}"]
    imprinted = found_of(cell_of(attack="imprint", leak_model="mlp_sigmoid"))
    assert imprinted.found["architecture"] == {"value": 1.0, "percentile": 100.0, "honest_median": 0.0}
    assert imprinted.found["rows_alike"]["percentile"] == 100
    assert imprinted.found["lit_alone"]["percentile"] is None
    assert "honest" in imprinted.notes["conspicuous.lit_alone.percentile"]


@pytest.mark.slow
def test_after_training_the_honest_model_is_the_trained_one(monkeypatch, capsys, tmp_path):
    """From the command line at two rounds: the last round counts, the honest rows are one model's, and table and page report it."""
    asked = "--dataset digits --attack trap --model mlp --protocol live --train-rounds 1 --leak-rounds 0,1 --victims 3"
    asked += " --taps type-1 --leak-batch 8 --local-iterations 1 --quiet --json"
    code, out, err = called(monkeypatch, capsys, "run", *asked.split(), "--out", str(tmp_path / "run"))
    assert code == 0, err
    summary = json.loads(out)
    found = summary["conspicuous"]
    assert "before round 2; honest is the network as it was trained" in summary["notes"]["conspicuous"]
    assert found["rows_alike"]["percentile"] in (0.0, 100.0)
    assert found["loss"]["value"] > 0
    (line,) = conspicuous(Summary.of(summary))
    assert line.startswith("clients could see: the architecture is the honest one's; rows alike 0.")
    assert line in (tmp_path / "run" / "report.html").read_text().replace("&#39;", "'")
    json.loads(json.dumps(found, allow_nan=False))


def test_an_honest_server_has_no_statistics_in_the_summary():
    assert conspicuous(Summary()) == conspicuous(Summary(conspicuous=None)) == []


def test_a_lying_server_of_a_live_training_with_several_local_iterations_is_judged(tmp_path) -> None:
    """The victims of L local iterations are a view of their table, which `torch.isin` takes only as a copy."""
    asked = {"dataset": "digits", "attack": "imprint", "protocol": "live", "local_iterations": 2, "victims": 2}
    found = leakbench.run(**asked, train_rounds=1, taps=["type-1"], candidates=10, pictures=False, out=tmp_path / "run")
    assert found.summary["taps"]["type-1@0"]["victims"] == 2
