"""The pages about malicious servers follow from their rows, and closed forms give results measured elsewhere."""

import dataclasses
import math
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from scipy.stats import binom
from torch import nn

from leakbench.cell import Request
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.types import Network
from leakbench.experiment.victims import draw_victims, public_examples, truth
from leakbench.federated.view import View
from leakbench.models import parameters
from leakbench.reproduce import measure
from leakbench.reproduce.file import body_of
from leakbench.reproduce.measure import OTHERS, cells_of
from leakbench.reproduce.published import rows_of
from leakbench.reproduce.table import read_table, table_of
from leakbench.storage.summary import Tap
from leakbench.study.rows import RowStore, of_table
from leakbench.study.stale import stale_names
from tests.published_files import STUDIES, published_file


@pytest.fixture
def in_results(monkeypatch):
    monkeypatch.syspath_prepend(str(STUDIES))


def test_coded_candidates_are_found_like_orthogonal_signals(in_results):
    """1 in 1,000 without signal, all with much; 1.00, .52 and .016 were measured at sigma .1, .3 and 1, and .002 at 6."""
    from ideal_server import coded  # noqa: PLC0415

    assert coded(0.0) == pytest.approx(1e-3, rel=1e-6)
    assert coded(1 / 0.001) == pytest.approx(1.0)
    found = [coded(1 / sigma) for sigma in (0.1, 0.3, 1.0, 6.0)]
    assert found == pytest.approx([1.0, 0.52, 0.016, 0.002], abs=0.02)


def test_the_ideal_server_s_page_follows_from_its_rows(in_results):
    from ideal_server import page  # noqa: PLC0415

    rows = pd.read_csv(published_file("ideal_server.csv"))
    assert page(rows) == published_file("ideal_server.md").read_text(encoding="utf-8")
    assert (rows["coded"] <= rows["bound"] + 1e-6).all()
    # .042, .079, .125 and .179 were measured before, on CIFAR-10 with another prior.
    once = rows[(rows["dataset"] == "cifar10") & (rows["releases"] == 1)].set_index("sigma")["rmse"]
    assert [once[sigma] for sigma in (0.003, 0.01, 0.03, 0.1)] == pytest.approx([0.042, 0.079, 0.125, 0.179], abs=0.005)
    assert math.isclose(once[6.0], 0.236, abs_tol=0.005)


def test_the_matrix_has_a_line_for_each_defense(in_results):
    from threat_matrix import matrix  # noqa: PLC0415

    rows = pd.DataFrame(
        [
            {"cell": "clip, alone, honest", "point": "type-1", "asr": 1.0, "verdict": "reconstructs", "above": 0},
            {"cell": "clip, alone, lying", "point": "type-1", "asr": 0.1, "verdict": "identifies", "above": 1},
            {"cell": "clip, alone, lying", "point": "type-0", "asr": 0.0, "verdict": "attack failed", "above": 0},
            {"cell": "clip, alone, honest", "point": "type-0", "asr": 0.0, "verdict": "inconclusive", "above": 0},
            {"cell": "clip, alone, honest", "point": "global", "asr": 0.0, "verdict": "no leak found", "above": 0},
        ]
    )
    page = matrix(rows)
    assert "| clip, alone | - | - | 1.00 | 0.10* | 0.00** | 0.00 (no answer) | 0.00 | - |" in page
    assert "1 of 5 cells is above" in page
    said = "1 of 1 defenses leak to at least one server at the client update (type-1)"
    assert said in page
    undefended = pd.DataFrame(
        [{**rows.iloc[0].to_dict(), "cell": f"undefended, {server}"} for server in ("honest", "lying")]
    )
    assert said in matrix(pd.concat([undefended, rows]))


def test_servers_with_a_network_of_their_own_have_a_table_below_the_matrix(in_results):
    from threat_matrix import rows_of_others, table_of_others  # noqa: PLC0415

    row = {"row": "seer, clip", "point": "type-1", "asr": 0.01, "precision": 0.5, "picked": 0.015, "null_asr": 0.02}
    # An output for .02 of the images; three quarters of them pick.
    assert "| seer, clip | client update (type-1) | 0.01 | 0.75 | 0.50 | - | 0.02 |" in table_of_others(
        pd.DataFrame([row])
    )
    names = rows_of_others()["row"]
    assert {name.partition(",")[0].removesuffix(" loud") for name in names} == {"scale_mia", "seer", "peftleak"}
    assert names.is_unique


@pytest.mark.slow
def test_the_matrix_names_stale_rows_and_rows_of_one_network(in_results):
    from threat_matrix import caution, matrix, rows_of_others  # noqa: PLC0415

    table = table_of(*body_of("servers_matrix"))
    rows = RowStore(published_file("servers_matrix.csv"), of_table("servers")).read()
    stale = stale_names(list(rows_of(table, rows)))
    page = matrix(rows, caution(table, rows), stale, rows_of_others())
    assert page == published_file("threat_matrix.md").read_text(encoding="utf-8")
    older = rows.assign(behaviours='{"batches": 1, "rankings": 1}', networks=1.0)
    page = matrix(older, caution(table, older))
    assert "Stale rows; `leakbench reproduce servers_matrix --stale` measures them again:" in page
    assert "Measured on one network, so that the intervals do not cover others: all rows." in page


def test_examples_in_rows_are_counted_by_the_truth(in_results):
    """Rows with an example, nearly one, a mixture, an inactive one; examples of another victim do not count."""
    from leakbench.reproduce.measure import within  # noqa: PLC0415

    inputs = torch.rand(2, 3, 50, generator=torch.Generator().manual_seed(0))
    rows = torch.stack([inputs[:, 0], (inputs[:, 1] + 0.04).clamp(0, 1), inputs.mean(1), torch.zeros(2, 50)], 1)
    rows[1, 0] = inputs[0, 0]
    bias = torch.tensor([-2.0, 1e-3, 1.0, 0.0]).expand(2, 4)
    update = {"0.weight": rows * bias[..., None], "0.bias": bias}
    model = nn.Linear(50, 4)
    view = View("type-1", Network(model, parameters(model)), update, 3, (50,), 2, 0.1)
    assert within(view, "0.", inputs, 0.05).tolist() == [[True, True, False], [False, True, False]]
    assert within(view, "0.", inputs, 0.03).tolist() == [[True, False, False], [False, False, False]]


def test_patches_are_read_by_their_own_rmse(in_results):
    """Of four patches of a picture: exact, just within .01, just beyond it, and missing."""
    from leakbench.reproduce.measure import patches_read  # noqa: PLC0415

    truth = torch.rand(2, 3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    answers = truth.clone()
    answers[..., :4, 4:] += 0.0099
    answers[..., 4:, :4] -= 0.0101
    answers[..., 4:, 4:] = torch.nan
    assert patches_read(answers, truth, 4).tolist() == [[True, True, False, False] * 3] * 2
    answers[1, 2] = torch.nan
    assert patches_read(answers, truth, 4).sum(1).tolist() == [6, 4]


def test_the_rows_of_a_layer_contain_what_a_run_recovers(in_results):
    """Digits behind quantiles: each recovered example is in some row; an attack that reads no rows has no share."""
    from leakbench.reproduce.measure import in_any_row  # noqa: PLC0415

    asked = Request(
        dataset="digits",
        attack="quantile_rows",
        victims=3,
        leak_batch=8,
        train_rounds=0,
        taps=("type-1",),
        success=0.05,
    )
    found = in_any_row(prepare(asked, None), "type-1")
    assert list(found) == ["in_any_row", "in_any_row_low", "in_any_row_high"]
    assert 0 < found["in_any_row_low"] < found["in_any_row"] <= found["in_any_row_high"] <= 1
    assert found["in_any_row"] > 0.7
    one = in_any_row(prepare(dataclasses.replace(asked, networks=1), None), "type-1")
    assert one["in_any_row_low"] < one["in_any_row"] <= one["in_any_row_high"]
    for attack, network in (("cpl", None), ("imprint", "mlp_1000")):
        other = prepare(dataclasses.replace(asked, attack=attack, leak_model=network), None)
        assert set(in_any_row(other, "type-1").values()) == {None}


def test_a_row_that_only_ranks_has_no_share_of_reconstructions():
    rows = pd.read_csv(published_file("fine_tuning.csv"))
    ranks = rows["attack"] == "identification"
    assert ranks.sum() == 4
    for column in ("within_tenth", "picked"):
        assert rows.loc[ranks, column].isna().all() and rows.loc[~ranks, column].notna().all()


@pytest.mark.parametrize("asr", [None, 0.0])
def test_an_attack_that_only_ranks_picks_nothing(asr):
    """A share of zero is one of reconstructions; an attack without any has no share."""
    data = SimpleNamespace(victims=torch.arange(4), train_inputs=torch.rand(4, 2), shape=(2,))
    attack = SimpleNamespace(server=None, method=None)
    cell = SimpleNamespace(data=data, attack=attack, settings=SimpleNamespace(protocol="paper"))
    rows = pd.DataFrame({"tap": ["type-1"], "round": [0], "example": [0], "rmse": [math.nan]})
    missing = torch.full((1, 1, 2), torch.nan)
    tensors = {"type-1.round0.reconstruction": missing, "type-1.round0.truth": torch.rand(1, 1, 2)}
    found = measure._of_servers(cell, Tap(asr=asr), LeakagePoint("type-1"), rows, tensors)
    assert (found["picked"], found["within_tenth"]) == (asr, asr)


@pytest.mark.data
def test_a_fixed_public_digit_is_right_in_more_batches_than_seer(data_dir):
    """Without a gradient: the public digit with the most public digits within eta, and the mean of the digits around it.

    Both are an image for a batch, matched to the nearest of its 64, as SEER's is. The page prints 27 and 34 of 50, and that
    they pick an example in 9 and 3.
    """
    name = "seer, mnist, B = 64, undefended, oblivious"
    row = pd.read_csv(published_file("servers_learned.csv")).set_index("row").loc[name]
    [line] = [line for line in read_table("servers_learned").lines if line.name == name]
    [cell] = cells_of(line, "full", {}, data_dir)
    inputs, _, indices = truth(cell, "type-1", draw_victims(cell, "type-1", 0, hand_out(cell)))
    inputs = inputs.flatten(2)
    public = public_examples(cell, len(cell.data.public_targets)).inputs.flatten(1)
    reach = cell.settings.success * public.shape[1] ** 0.5
    count = torch.cat([(torch.cdist(each, public) <= reach).sum(1) for each in public.split(1000)])
    digit = public[count.argmax()]
    mean = digit
    for _ in range(20):
        mean = public[(public - mean).norm(dim=1) <= reach].mean(0)
    right = [((inputs - each).norm(dim=2) <= reach).any(1) for each in (digit, mean)]
    assert [int(each.sum()) for each in right] == [27, 34]
    others = cell.data.train_inputs[cell.data.victims[~torch.isin(cell.data.victims, indices)][: OTHERS - 1]].flatten(1)
    picked = [(inputs - each).norm(dim=2).amin(1) < (others - each).norm(dim=1).amin() for each in (digit, mean)]
    assert [int(each.sum()) for each in picked] == [9, 3]
    by_seer, outputs = 50 * 64 * row["asr"], 50 * 64 * row["asr"] / row["precision"]
    assert (by_seer, outputs) == pytest.approx((25, 32))
    assert all(each.double().mean() > 64 * row["asr"] for each in right)
    # Among its outputs alone, SEER's precision is not significantly above the mean digit's share either.
    low, high = wilson(by_seer, outputs)
    assert low < right[1].double().mean() < high


def test_seer_picks_its_example_far_more_often_than_by_chance():
    """An output is nearer to one of its 64 than to 499 others in 64 / 563 by chance; also sigma .01 leaves more than that."""
    rows = pd.read_csv(published_file("servers_learned.csv"))
    rows = rows[rows["attack"] == "seer"]
    outputs = rows["victims"] * rows["batch"] * rows["asr"] / rows["precision"]
    picked = rows["victims"] * rows["batch"] * rows["picked"]
    # At sigma .01 no output is within the threshold, so that the number of outputs does not follow from the row.
    known = rows["precision"] > 0
    assert picked.round().tolist() == [31, 31, 30, 31, 38, 31, 15, 35]
    assert outputs[known].round().tolist() == [32, 32, 31, 31, 49, 50, 36]
    chance = 64 / (64 + OTHERS - 1)
    assert round(chance, 3) == 0.114 and round(50 * chance) == 6
    assert (picked / outputs)[known].min() > 0.6
    assert binom.sf(15 - 1, 50, chance) < 0.001


def wilson(right: float, many: float) -> tuple[float, float]:
    """Return the 95 % interval of Wilson (1927) of a share."""
    z, share = 1.96, right / many
    middle = (share + z**2 / (2 * many)) / (1 + z**2 / many)
    half = z * math.sqrt(share * (1 - share) / many + z**2 / (4 * many**2)) / (1 + z**2 / many)
    return middle - half, middle + half
