"""Compares two runs on the same victims, victim by victim."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from made_rows import make_rows
from resealed import reseal

from leakbench.api import Comparison
from leakbench.cli import commands
from leakbench.core.errors import InputError
from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.rng import generator
from leakbench.measure.statistics import paired_shares, student_quantile
from leakbench.storage.store import open_run
from leakbench.summary.compare import (
    Difference,
    _at,
    _pooled,
    _sign_test,
    compare,
    compare_lists,
    differs,
    left_out,
    lines,
    sentence,
)

TINY = (
    "run --quiet --json --dataset digits --clients 6 --clients-per-round 3 --local-iterations 2 --batch 2 --train-rounds 0 "
    "--victims 6 --candidates 30 --taps type-2,type-1 --leak-batch 1 --attack inverting_gradients"
)


def call(*arguments: str) -> str:
    result = CliRunner().invoke(commands, arguments, catch_exceptions=False, standalone_mode=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return runs without a defense, with one that hides everything, and without a defense on other victims."""
    folder = tmp_path_factory.mktemp("runs")
    search = (*TINY.split(), "--iterations", "2", "--out")
    call(*search, str(folder / "none"))
    call(*search, str(folder / "cdp"), "--defense", "fed_cdp")
    call(*search, str(folder / "other"), "--seed", "1")
    call(*TINY.split(), "--out", str(folder / "ranks"), "--attack", "identification")
    return folder


@pytest.mark.slow
def test_the_difference_equals_that_of_the_rows(runs: Path) -> None:
    """At type-2 every victim is identified without a defense; the difference and its sign are those of the shares."""
    found = {(d.point, d.measure): d for d in compare(runs / "none", runs / "cdp")}
    assert {point for point, _ in found} == {"type-2", "type-1"}
    rows = {name: pd.read_parquet(runs / name / "rows.parquet") for name in ("none", "cdp")}
    for (point, measure), d in found.items():
        column = {"asr": "success", "identified": "identified", "label_ranked": "label_ranked"}.get(measure)
        if column is None:
            continue
        first, second = (r[r["tap"] == point][column].mean() for r in rows.values())
        assert (d.first, d.second, d.difference) == pytest.approx((first, second, first - second))
        assert d.low <= d.difference <= d.high
        assert d.victims == 6
    assert found["type-2", "identified"].difference > 0.5
    assert found["type-2", "identified"].low > 0


@pytest.mark.slow
def test_a_run_does_not_differ_from_itself(runs: Path) -> None:
    for d in compare(runs / "none", runs / "none"):
        assert d.difference == 0
        assert d.low == d.high == 0 if d.measure == "rmse" else d.low < 0 < d.high


def test_an_attack_that_only_ranks_is_compared_by_identification(runs: Path) -> None:
    assert {d.measure for d in compare(runs / "none", runs / "ranks")} == {"identified", "label_ranked"}


def test_five_victims_to_none_are_not_a_difference() -> None:
    """McNemar's sign test: 5 to 0 has p = 2 / 2**5, 6 to 0 has 2 / 2**6; a whole batch counts once."""
    table = make_rows(12, tap="type-2", candidates=9, label_guess=0)
    for better, p in ((0, 1.0), (5, 2 / 32), (6, 2 / 64)):
        other = table.assign(success=table["victim"] < better)
        found = next(d for d in _at(LeakagePoint("type-2"), other, table) if d.measure == "asr")
        assert found.sign == pytest.approx(p)
        assert (found.low > 0) == (better > 0)
        assert list(lines([found]))[3].endswith("differs") == (better == 6)
    pairs = table.assign(victim=table["victim"] // 2, batch=table["victim"] // 2, member=table["victim"] % 2)
    found = next(
        d for d in _at(LeakagePoint("type-1"), pairs.assign(success=pairs["victim"] < 2), pairs) if d.measure == "asr"
    )
    assert found.sign == pytest.approx(0.5)


@pytest.mark.parametrize(("changes", "differs"), [({}, True), ({"victims": 9}, False), ({"low": 0.0}, False)])
def test_differences_need_an_interval_and_a_sign_test(changes: dict[str, float], differs: bool) -> None:
    """Ten victims, an interval without 0 and a sign below .05; nine are too few, and an interval that begins at 0 contains it."""
    clear = Difference("type-2", "asr", 10, 1.0, 0.5, 0.5, 0.2, 0.8, 0.002)
    assert list(lines([dataclasses.replace(clear, **changes)]))[3].endswith("differs") == differs  # type: ignore[arg-type]


@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_is_not_a_difference_of_a_victim(sign: int) -> None:
    gains = pd.Series([1.0, 1.0, -1.0] + [1e-12] * 20)
    assert _sign_test(sign * gains) == 1.0


CLEAR = Difference("type-1", "asr", 10, 1.0, 0.1, 0.9, 0.7, 1.0, 0.002, 5, 0.001)
SMALL_ONE = Difference("type-2", "asr", 10, 1.0, 1.0, 0.0, -0.2, 0.2, 1.0)


@pytest.mark.parametrize(
    ("found", "accuracies", "said"),
    [
        (
            [CLEAR, SMALL_ONE], (0.83, 0.31),
            "At the client update (type-1) ASR fell from 1.00 to 0.10 (difference -0.90 [-1.00, -0.70]); accuracy fell from 0.83"
            " to 0.31.",
        ),
        # If the ASR does not differ, identification may.
        (
            [SMALL_ONE, dataclasses.replace(CLEAR, point="type-2", measure="identified", first=0.1, second=0.4, difference=-0.3,
                                            low=-0.5, high=-0.1)],
            (None, 0.31),
            "At the example gradient (type-2) identification rose from 0.10 to 0.40 (difference +0.30 [+0.10, +0.50]).",
        ),
        (
            [SMALL_ONE], (0.5, 0.5),
            "No measured difference in leakage is significant (compared: example gradient (type-2)); accuracy stayed at"
            " 0.50.",
        ),
        ([CLEAR, dataclasses.replace(CLEAR, measure="identified")], (None, None),
         "At the client update (type-1) ASR fell from 1.00 to 0.10 (difference -0.90 [-1.00, -0.70])."),
        # On one network, the difference says nothing about another network.
        ([dataclasses.replace(CLEAR, networks=1, networks_p=None)], (None, None),
         "At the client update (type-1) ASR fell from 1.00 to 0.10 (difference -0.90 [-1.00, -0.70], for victims of one network"
         " only)."),
    ],
)  # fmt: skip
def test_changes_are_summarised_in_one_sentence(
    found: list[Difference], accuracies: tuple[float | None, float | None], said: str
) -> None:
    assert sentence(found, accuracies) == next(lines(found, accuracies)) == said


def test_points_of_only_one_run_are_named(runs: Path, tmp_path: Path) -> None:
    call(*TINY.replace("type-2,type-1", "type-2").split(), "--iterations", "1", "--out", str(tmp_path / "less"))
    assert left_out(runs / "none", tmp_path / "less") == ["type-1@0"]
    assert left_out(tmp_path / "less", runs / "none") == ["type-1@0"]
    assert left_out(runs / "none", runs / "cdp") == []


def test_the_command_prints_a_table_or_json(runs: Path) -> None:
    table = call("compare", str(runs / "none"), str(runs / "cdp"))
    assert table.startswith(("At the ", "No measured difference in leakage is significant"))
    assert "difference" in table.splitlines()[2]
    assert any(
        line.startswith("example gradient (type-2)") and not line.endswith("differs") for line in table.splitlines()
    )
    found = json.loads(call("compare", str(runs / "none"), str(runs / "cdp"), "--json"))
    assert next(d["point"] for d in found) == "type-2"


def test_rounds_are_compared_separately(tmp_path: Path) -> None:
    live = TINY.replace("--train-rounds 0", "--train-rounds 1").replace("type-2,type-1", "type-1")
    more = ("--iterations", "1", "--protocol", "live", "--leak-rounds", "0,1", "--victims", "2")
    call(*live.split(), *more, "--out", str(tmp_path / "run"))
    points = [d.point for d in compare(tmp_path / "run", tmp_path / "run")]
    assert list(dict.fromkeys(points)) == ["type-1@0", "type-1@1"]


def test_other_victims_and_unfinished_runs_are_refused(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="attacked different examples"):
        compare(runs / "none", runs / "other")
    with pytest.raises(InputError, match="no manifest"):
        compare(runs / "none", tmp_path)
    with pytest.raises(InputError, match=r"no folder '.*nope'"):
        compare(runs / "none", tmp_path / "nope")
    with pytest.raises(InputError, match=r"manifest.json' is a file, expected the folder of a run"):
        compare(runs / "none", runs / "none" / "manifest.json")
    half = tmp_path / "half"
    half.mkdir()
    manifest = json.loads((runs / "none" / "manifest.json").read_text())
    reseal(half, {**manifest, "complete": False})
    with pytest.raises(InputError, match="is not finished; run the same command again to resume"):
        compare(runs / "none", half)


def test_changed_rows_are_refused(runs: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "manifest.json").write_text((runs / "none" / "manifest.json").read_text())
    (changed / "rows.parquet").write_bytes((runs / "cdp" / "rows.parquet").read_bytes())
    with pytest.raises(InputError, match="is not what the run wrote"):
        compare(runs / "none", changed)


def by_hand(folder: Path, members: int, **columns: object) -> Path:
    """Return a finished run of 12 victims with this many examples each, with the requested rows."""
    plain = {"label": 1, "label_guess": 0, "candidates": 30, "null_rmse": 0.3, "rmse": 0.2, "batch": members}
    with open_run(folder, {"hash": "h", "command": "c", "seed": 0, "cell": {"dataset": "digits"}}) as run:
        run.write_rows("rows.parquet", make_rows(12, members, **{**plain, **columns}))
        run.manifest |= {"complete": True, "summary": {}}
        run.save()
    return folder


def test_a_victim_of_several_runs_of_a_list_counts_once(tmp_path: Path) -> None:
    """Two runs on the same examples add rows, not victims; other examples add victims."""
    sides = []
    for side, success in (("a", True), ("b", False)):
        runs = [by_hand(tmp_path / f"{side}{n}", 2, success=success) for n in range(2)]
        far = by_hand(tmp_path / f"{side}2", 2, success=success, example=np.arange(24) + 100)
        for number, folder in enumerate([*runs, far]):
            reseal(folder, json.loads((folder / "manifest.json").read_text()) | {"hash": f"h{number}"})
        sides.append([*runs, far])
    for count, victims in ((1, 12), (2, 12), (3, 24)):
        found = {d.measure: d for d in compare_lists(sides[0][:count], sides[1][:count])}
        assert found["asr"].victims == victims
        assert found["asr"].sign == pytest.approx(2 / 2**victims)


def found_in(one: Path, other: Path) -> dict[str, Difference]:
    return {d.measure: d for d in compare(one, other)}


@pytest.mark.parametrize(
    ("measure", "right"),
    [("asr", {"success": lambda even: even}), ("label_accuracy", {"label_guess": lambda even: even.astype(int)})],
)
def test_equal_outcomes_within_a_batch_do_not_narrow_the_interval(
    measure: str, right: dict[str, object], tmp_path: Path
) -> None:
    """Half of 12 victims in one run and none in the other.

    With one example a batch or eight equal ones, the interval is the same.
    """
    found = []
    for members in (1, 8):
        even = np.repeat(np.arange(12) % 2 == 0, members)
        columns = {name: of(even) for name, of in right.items()}  # type: ignore[operator]
        one = by_hand(tmp_path / f"one{members}", members, **columns)
        found.append(found_in(one, by_hand(tmp_path / f"other{members}", members))[measure])
    assert [d.difference for d in found] == [0.5, 0.5]
    assert (found[0].low, found[0].high) == (found[1].low, found[1].high)
    assert found[0].high - found[0].low == pytest.approx(2 * 1.96 * (0.25 / 12) ** 0.5, abs=0.12)


def test_rows_in_another_order_are_compared_victim_by_victim(tmp_path: Path) -> None:
    """The victims of one run are in reverse order in the other: the same six succeed, so nothing differs."""
    six = np.arange(12) < 6
    one = by_hand(tmp_path / "one", 1, success=six)
    backwards = np.arange(12)[::-1]
    other = by_hand(tmp_path / "other", 1, victim=backwards, example=backwards, success=six[::-1])
    found = found_in(one, other)["asr"]
    assert (found.difference, found.first, found.sign) == (0.0, 0.5, 1.0)
    assert -found.low == found.high == pytest.approx(0.2)


def test_a_tie_among_candidates_counts_in_part(tmp_path: Path) -> None:
    """A victim that ties with one other counts half: twelve of them are half as much as twelve identified ones."""
    tied, clear = by_hand(tmp_path / "tied", 1, identified=0.5), by_hand(tmp_path / "clear", 1, identified=1.0)
    d = found_in(clear, tied)["identified"]
    assert (d.victims, d.first, d.second, d.difference) == (12, 1.0, 0.5, 0.5)


def test_victims_without_a_rank_in_one_run_are_left_out_of_both(tmp_path: Path) -> None:
    """Victims of a class without a public example have no rank.

    The others of the twelve are compared, and their number is shown.
    """
    ranks = np.where(np.arange(12) < 3, np.nan, 1.0)
    some, everybody = by_hand(tmp_path / "a", 1, label_ranked=ranks), by_hand(tmp_path / "b", 1, label_ranked=0.0)
    d = found_in(some, everybody)["label_ranked"]
    assert (d.victims, d.first, d.second) == (9, 1.0, 0.0)
    nobody = by_hand(tmp_path / "c", 1, label_ranked=np.nan)
    assert "label_ranked" not in found_in(some, nobody)


def test_ties_of_batches_do_not_depend_on_the_order_of_sums(tmp_path: Path) -> None:
    """5 + 7 + 9 of 42 and 7 + 7 + 7 are equal; their floats differ in the last digit, which must not count as a difference."""
    one = by_hand(tmp_path / "one", 3, feature_accuracy=np.tile(np.array([5, 7, 9]) / 42, 12))
    other = by_hand(tmp_path / "other", 3, feature_accuracy=np.tile(np.array([7, 7, 7]) / 42, 12))
    assert found_in(one, other)["feature_accuracy"].sign == 1.0


def test_scores_are_compared_by_their_means_and_a_failure_is_the_worst(tmp_path: Path) -> None:
    """Twelve batches of two: half of the first run's examples have no reconstruction, so the baseline's RMSE and nothing right."""
    lost = np.arange(24) % 2 == 1
    scores = {name: np.where(lost, np.nan, 0.25) for name in ("rmse", "feature_accuracy", "record_match")}
    one = by_hand(tmp_path / "one", 2, **{**scores, "record_match": np.where(lost, np.nan, 1.0)})
    other = by_hand(tmp_path / "other", 2, rmse=0.5, feature_accuracy=0.25, record_match=0.0)
    found = found_in(one, other)
    expected = {"rmse": (0.275, 0.5), "feature_accuracy": (0.125, 0.25), "record_match": (0.5, 0.0)}
    for measure, (first, second) in expected.items():
        d = found[measure]
        assert (d.first, d.second, d.difference) == pytest.approx((first, second, first - second))
        # All batches are alike: means have one outcome, shares have two more batches; all twelve change in the same direction.
        assert d.sign == pytest.approx(2 / 2**12)
        if measure == "record_match":
            assert 0 < d.low < 0.5 < d.high < 1
        else:
            assert (d.low, d.high) == pytest.approx((first - second, first - second))
    without = found_in(one, by_hand(tmp_path / "pictures", 2, rmse=0.5))
    assert "rmse" in without and not {"feature_accuracy", "record_match"} & set(without)


def test_a_small_difference_of_rmse_has_enough_digits(tmp_path: Path) -> None:
    """Four digits, which the RMSE of a good reconstruction needs; the notes explain sign."""
    one, other = (by_hand(tmp_path / str(rmse), 1, rmse=rmse) for rmse in (0.0004, 0.0001))
    _, _, head, *rows = lines(compare(one, other))
    line = next(row for row in rows if " rmse " in row)
    assert "0.0004  0.0001     -0.0003  [-0.0003, -0.0003]" in line and line.endswith("0.000  differs")
    assert head.endswith("sign") and "sign: p of the exact two-sided sign test" in "\n".join(rows)


def test_the_sentence_the_table_and_the_notebook_have_the_same_sign() -> None:
    """All print the second run minus the first; the fields of JSON and of Python keep the first minus the second."""
    found = Comparison((CLEAR,), (), (None, None))
    assert "(difference -0.90 [-1.00, -0.70])" in found.text
    assert "-0.90  [-1.00, -0.70]" in found.text.splitlines()[3]
    assert "<th>second - first</th>" in found._repr_html_() and "<td>-0.9</td>" in found._repr_html_()
    assert found.as_dicts()[0]["difference"] == found.table()["difference"].iloc[0] == 0.9
    changes = [found.as_dicts()[0][name] for name in ("change", "change_low", "change_high")]
    assert changes == [-0.9, -1.0, -0.7]


def test_the_help_explains_sign() -> None:
    assert "exact two-sided sign test" in " ".join(call("compare", "--help").split())


@pytest.mark.parametrize("changes", [{"example": np.arange(12) + 1}, {"label": 2}, {"victim": np.arange(12) + 1}])
def test_other_examples_or_labels_alone_are_refused(changes: dict[str, object], tmp_path: Path) -> None:
    """One column at a time, with equally many victims."""
    with pytest.raises(InputError, match="attacked different examples"):
        compare(by_hand(tmp_path / "one", 1), by_hand(tmp_path / "other", 1, **changes))


def test_another_data_set_is_refused(tmp_path: Path) -> None:
    """Example 3 of one set is not example 3 of another, although all else is equal."""
    one, other = by_hand(tmp_path / "one", 1), by_hand(tmp_path / "other", 1)
    manifest = json.loads((other / "manifest.json").read_text())
    reseal(other, {**manifest, "cell": {"dataset": "faces"}})
    with pytest.raises(InputError, match="of the data sets 'digits' and 'faces'"):
        compare(one, other)


def test_different_thresholds_and_candidates_are_refused(tmp_path: Path) -> None:
    """The same reconstructions with another threshold, and with fewer candidates."""
    one, eta = by_hand(tmp_path / "one", 1), by_hand(tmp_path / "eta", 1, eta=0.01)
    few = by_hand(tmp_path / "few", 1, candidates=10)
    with pytest.raises(InputError, match=r"the runs have eta 0\.1 and 0\.01"):
        compare(one, eta)
    with pytest.raises(InputError, match="the runs have candidates 30 and 10"):
        compare(one, few)


def on_networks(success: np.ndarray, network: np.ndarray) -> pd.DataFrame:
    """Return the rows of a run at one leakage point, with one example a victim."""
    each = np.arange(len(success))
    rows = pd.DataFrame({"tap": "type-2", "round": 0, "victim": each, "member": 0, "example": each, "label": 0})
    return rows.assign(
        eta=0.1, candidates=9, failure_reason="", label_guess=0, success=success, identified=0.0, network=network
    )


def asr_difference(one: pd.DataFrame, other: pd.DataFrame) -> Difference:
    return next(d for d in _at(LeakagePoint("type-2"), one, other) if d.measure == "asr")


def test_the_interval_over_several_networks_is_students_over_their_differences() -> None:
    """All twenty victims of two of five networks succeed in one run only: the networks' differences are 1, 1, 0, 0, 0."""
    network = np.arange(100) % 5
    found = asr_difference(on_networks(network < 2, network), on_networks(network < 0, network))
    half = student_quantile(0.975, 4) * (0.3 / 5) ** 0.5
    assert (found.difference, found.low, found.high) == pytest.approx((0.4, 0.4 - half, min(1.0, 0.4 + half)))
    assert found.networks == 5 and found.networks_p == pytest.approx(0.178, abs=0.001)
    assert not differs(found)
    # About victims of these networks as one, forty of a hundred are a clear difference.
    alone = asr_difference(on_networks(network < 2, 0 * network), on_networks(network < 0, 0 * network))
    assert differs(alone) and (alone.networks, alone.networks_p) == (1, None)


def test_networks_that_agree_leave_the_interval_over_victims() -> None:
    """Four of twenty victims succeed on each network: no variance between networks, so the bootstrap over victims decides."""
    network = np.arange(100) % 5
    hit = np.arange(100) < 20
    found, alone = (asr_difference(on_networks(hit, n), on_networks(hit & False, n)) for n in (network, 0 * network))
    assert (found.low, found.high) == (alone.low, alone.high)
    assert found.networks_p == 0.0 and differs(found)


@pytest.mark.parametrize(("mine", "theirs", "groups"), [(5, 5, 5), (5, 10, 5), (10, 5, 5), (5, 3, 1), (1, 5, 1)])
def test_networks_that_share_a_victim_are_one(mine: int, theirs: int, groups: int) -> None:
    each = np.arange(60)
    one, other = (on_networks(each < 9, each % count) for count in (mine, theirs))
    assert asr_difference(one, other).networks == groups


def test_runs_of_a_list_have_the_networks_of_their_seeds(tmp_path: Path) -> None:
    """Three runs with three networks each: two of one seed have the same first weights."""
    sides = []
    for side in ("a", "b"):
        folders = [by_hand(tmp_path / f"{side}{n}", 1, network=np.arange(12) % 3) for n in range(3)]
        for number, folder in enumerate(folders):
            changed = {"hash": f"h{number}", "seed": number // 2}
            reseal(folder, json.loads((folder / "manifest.json").read_text()) | changed)
        sides.append(folders)
    for count, networks in ((1, 3), (2, 3), (3, 6)):
        found = {d.measure: d for d in compare_lists(sides[0][:count], sides[1][:count])}
        assert found["asr"].networks == networks
    manifest = json.loads((sides[0][0] / "manifest.json").read_text())
    del manifest["seed"]
    reseal(sides[0][0], manifest)
    with pytest.raises(InputError, match="seed is missing"):
        compare_lists(sides[0], sides[1])


def false_differences(
    networks: int, victims: int, deviation: float, paired: bool, repeats: int, mean: float = 0.5
) -> float:
    """Return how often two runs with the same mean rate over all networks that could be drawn are said to differ.

    Args:
        networks: Number of networks.
        victims: Victims on each.
        deviation: Standard deviation of a run's success rate between networks.
        paired: Whether a victim is as easy in both runs; else the runs share nothing but the number of the network.
        repeats: Number of pairs of runs.
        mean: Mean success rate of both runs.
    """
    rng, source = np.random.default_rng(31), generator(0, "false differences")
    each = np.arange(networks * victims)
    network, wrong = each % networks, 0
    strength = mean * (1 - mean) / deviation**2 - 1 if deviation else 0.0
    for _ in range(repeats):
        rates = (
            rng.beta(mean * strength, (1 - mean) * strength, (2, networks))
            if deviation
            else np.full((2, networks), mean)
        )
        ease = rng.random((1 if paired else 2, len(each)))
        x, y = (ease < rates[:, network]).astype(float)
        ends = paired_shares(x, y, each, source, network=network, draws=400)
        found = Difference("type-2", "asr", len(each), x.mean(), y.mean(), *ends, _sign_test(pd.Series(x - y)))
        wrong += differs(found)
    return wrong / repeats


def test_equal_runs_rarely_differ_where_networks_vary() -> None:
    """At most 5 %, up to the error of 300 simulations; independent victims gave 54 % here."""
    assert false_differences(5, 40, 0.2, paired=True, repeats=300) <= 0.05 + 3 * (0.05 * 0.95 / 300) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("networks", [2, 3, 5, 10])
def test_equal_runs_differ_in_at_most_five_percent(networks: int) -> None:
    """For 2 to 10 networks of 10 to 100 victims, any deviation between networks, and paired or unpaired runs."""
    repeats = 400
    for victims, deviation, mean in ((20, 0.0, 0.5), (20, 0.2, 0.5), (100, 0.1, 0.5), (100, 0.4, 0.5), (10, 0.2, 0.2)):
        for paired in (True, False):
            found = false_differences(networks, victims, deviation, paired, repeats, mean)
            error = 3 * (0.05 * 0.95 / repeats) ** 0.5
            assert found <= 0.05 + error, (networks, victims, deviation, mean, paired, found)


def test_victims_of_several_runs_are_numbered_on() -> None:
    rows = pd.DataFrame({"tap": "type-2", "round": 0, "victim": [0, 1], "member": 0, "example": [4, 5], "network": 0})
    pooled = _pooled([(rows, "digits"), (rows.assign(example=[6, 4]), "digits")], [1, 2])
    assert pooled["victim"].tolist() == [0, 1, 2, 0]  # Both runs attacked example 4.
    assert pooled["network"].tolist() == [0, 0, 1, 1]
