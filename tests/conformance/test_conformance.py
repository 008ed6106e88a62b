"""leakbench's scorer passes every case; a scorer with one fault fails exactly the cases of that fault."""

import copy
import hashlib
import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import called
from hypothesis import given
from hypothesis import strategies as st

from leakbench.conformance import MEASURES, Answer, Scorer, Truth, all_cases, conform
from leakbench.conformance.case import Between, Close, EachExample, Finite, Unanswered, Worse
from leakbench.conformance.command import OwnScorer
from leakbench.conformance.contract import read_scores
from leakbench.conformance.pictures import black_and_white, reference, turned
from leakbench.conformance.pixel_cases import lpips_case
from leakbench.core.errors import InputError
from leakbench.measure import metrics
from leakbench.measure.metrics import load_lpips

OWN = OwnScorer()
CASES = all_cases()
MEANS = {"rmse: mean with a failure", "psnr: mean with a failure", "ssim: mean with a failure", "asr: no answer"}


KEPT: dict[bytes, Mapping[str, Any]] = {}


def measured(truth: Truth, answer: Answer) -> Mapping[str, Any]:
    """Return our scorer's results, computed once: the tests of faulty scorers reuse them."""
    arrays = (truth["inputs"], truth["labels"], answer["inputs"], answer["labels"])
    key = hashlib.sha256(b"".join(str(a.shape).encode() + np.ascontiguousarray(a).tobytes() for a in arrays)).digest()
    if key not in KEPT:
        KEPT[key] = OWN(truth, answer)
    return copy.deepcopy(KEPT[key])


def outcomes(scorer: Scorer, outcome: str) -> set[str]:
    return {result.case for result in conform(scorer, CASES) if result.outcome == outcome}


def test_our_scorer_gives_every_known_answer() -> None:
    """All except LPIPS, whose weights are not available here."""
    results = conform(OWN, CASES)
    assert [r.case for r in results if r.outcome == "failed"] == []
    assert [(r.case, r.reason) for r in results if r.outcome == "not measured"] == [
        ("order: lpips", "the scorer returns no lpips or overall lpips"),
        ("lpips: range", metrics.LPIPS_ABSENT),
    ]
    assert len({r.case for r in results}) == len(results) >= 40
    assert all(r.why.endswith(".") and r.expected for r in results if r.outcome == "passed")


@pytest.mark.slow
def test_an_inverse_permutation_fails_on_a_cycle_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """It undoes a swap, so every other case passes."""
    match = metrics.match
    monkeypatch.setattr(metrics, "match", lambda answer, truth: match(answer, truth).argsort(1))
    assert outcomes(OWN, "failed") == {"order: 3-cycle", "order: matched", "order: labels", "order: success"}


def over_survivors(truth: Truth, answer: Answer) -> Mapping[str, Any]:
    found = dict(measured(truth, answer))
    answered = np.isfinite(found["rmse"])
    means = {name: found[name][answered].mean() for name in ("rmse", "psnr", "ssim")}
    return found | {"asr": found["success"][answered].mean(), "overall": means}


def root_mean_squares_of_survivors(truth: Truth, answer: Answer) -> Mapping[str, Any]:
    found = dict(measured(truth, answer))
    return found | {"overall": {"rmse": np.sqrt(np.nanmean(np.square(found["rmse"])))}}


def medians_of_survivors(truth: Truth, answer: Answer) -> Mapping[str, Any]:
    found = dict(measured(truth, answer))
    return found | {"overall": {name: np.nanmedian(found[name]) for name in ("rmse", "psnr", "ssim")}}


def test_a_mean_over_survivors_fails() -> None:
    assert outcomes(over_survivors, "failed") == MEANS
    assert outcomes(medians_of_survivors, "failed") == MEANS - {"asr: no answer"}
    assert outcomes(root_mean_squares_of_survivors, "failed") == {"rmse: mean with a failure"}


def test_survivors_alone_fail() -> None:
    """A scorer that drops victims without a reconstruction has no number for them."""

    def dropped(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        found = measured(truth, answer)
        answered = np.isfinite(found["rmse"]).all(1)
        return {name: found[name][answered] for name in ("rmse", "psnr", "ssim", "success")}

    assert outcomes(dropped, "failed") == {f"{name}: no answer" for name in ("rmse", "psnr", "ssim", "success")}


def scale_free(truth: Truth, answer: Answer) -> Mapping[str, Any]:
    order = np.asarray(measured(truth, answer)["matched"])
    matched = np.take_along_axis(answer["inputs"], order[..., None, None, None], 1).clip(0, 1)
    squared = np.square(matched - truth["inputs"]).reshape(*order.shape, -1)
    found = dict(measured(truth, answer))
    return found | {"rmse": np.sqrt(squared.mean(2) / squared.max(2))}


def test_a_scale_free_rmse_fails() -> None:
    """It has no number for a perfect reconstruction, and the same number for errors of all sizes."""
    assert outcomes(scale_free, "failed") == {"rmse: scale", "rmse: perfect"}


@pytest.mark.slow
@pytest.mark.parametrize("data_range", [0.0, 2.0, 6.0])
def test_ssim_of_another_data_range_fails(monkeypatch: pytest.MonkeyPatch, data_range: float) -> None:
    """Without a range, with that of floats in [-1, 1], and with that of standardised pictures."""
    monkeypatch.setattr(metrics, "C1", (0.01 * data_range) ** 2 + 1e-12)
    monkeypatch.setattr(metrics, "C2", (0.03 * data_range) ** 2 + 1e-12)
    failed = outcomes(OWN, "failed")
    assert {"ssim: scikit-image", "ssim: flat pictures"} <= failed
    assert all(name.startswith("ssim: ") for name in failed)


@pytest.mark.slow
def test_an_infinite_psnr_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PSNR_CAP", float("inf"))
    assert outcomes(OWN, "failed") == {"psnr: perfect picture"}

    def mean(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        return {"overall": {"psnr": OWN(truth, answer)["psnr"].mean()}}

    assert outcomes(mean, "failed") == {"psnr: mean with a perfect picture"}


def test_an_unclamped_reconstruction_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_scored", lambda answer, truth: (answer.double(), truth.double()))
    failed = outcomes(OWN, "failed")
    assert {"rmse: clamped", "psnr: clamped", "ssim: clamped"} <= failed
    assert failed <= {"rmse: clamped", "psnr: clamped", "ssim: clamped", "success: no answer"}


def test_one_number_a_batch_fails_for_each_example_alone() -> None:
    def batch(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        found = measured(truth, answer)
        return {name: found[name].mean(1) for name in ("rmse", "psnr", "ssim", "label_accuracy")}

    assert outcomes(batch, "failed") == {f"{name}: each example" for name in ("rmse", "psnr", "ssim")}


@pytest.mark.parametrize(("axis", "case"), [(1, "order: two copies"), (2, "order: two alike")])
def test_matching_the_nearest_twice_fails(axis: int, case: str) -> None:
    """Match each reconstruction with the nearest truth, or each truth with the nearest reconstruction."""

    def nearest(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        return {"rmse": nearest_rmse(truth, answer, axis)}

    assert outcomes(nearest, "failed") == {case}


def nearest_rmse(truth: Truth, answer: Answer, axis: int) -> Any:
    distance = np.square(truth["inputs"][:, :, None] - answer["inputs"][:, None].clip(0, 1))
    return np.sqrt(distance.mean((3, 4, 5)).min(axis))


def as_it_came(measure: str, truth: Truth, answer: Answer) -> Any:
    """Return a measure of reconstruction and truth at equal positions, capped as ours."""
    return reference(measure, truth["inputs"], answer["inputs"].clip(0, 1)).clip(max=metrics.PSNR_CAP)


@pytest.mark.slow
@pytest.mark.parametrize("measures", [("rmse",), ("psnr",), ("ssim",), ("psnr", "ssim", "overall"), ("overall",)])
def test_measures_in_the_given_order_fail(measures: tuple[str, ...]) -> None:
    """Although the others are matched: no measure is skipped because another one is right."""

    def unmatched(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        names = ("rmse", "psnr", "ssim") if "overall" in measures else measures
        came: dict[str, Any] = {name: as_it_came(name, truth, answer) for name in names}
        came["overall"] = {name: np.median(values) for name, values in came.items()}
        return {**measured(truth, answer), **{name: came[name] for name in measures}}

    failed = {result.case: result for result in conform(unmatched, CASES) if result.outcome == "failed"}
    assert set(failed) == {"order: swap", "order: 3-cycle"}
    swap = failed["order: swap"]
    first = "overall rmse" if measures == ("overall",) else measures[0]
    assert swap.got.startswith(f"{first} ") and swap.expected.startswith(f"{first} ")
    assert ("; wrong too: " in swap.got) == ("overall" in measures)


def test_success_in_the_given_order_fails() -> None:
    def unmatched(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        return {**measured(truth, answer), "success": as_it_came("rmse", truth, answer) <= OWN.eta}

    assert outcomes(unmatched, "failed") == {"order: success"}


@pytest.mark.parametrize(("axis", "case"), [(1, "success: two answers for one"), (2, "success: one answer for two")])
def test_success_that_counts_one_picture_twice_fails(axis: int, case: str) -> None:
    """Match each reconstruction with the nearest truth, or each truth with the nearest reconstruction."""

    def nearest(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        success = nearest_rmse(truth, answer, axis) <= OWN.eta
        return {**measured(truth, answer), "success": success, "asr": success.mean()}

    assert case in outcomes(nearest, "failed") <= {case, "asr: no answer", "success: no answer"}


@pytest.mark.parametrize("share", [np.any, np.all, lambda success, axis: np.median(success, axis) > 0])
def test_a_share_of_batches_fails(share: Any) -> None:
    """Counts batches in which any member is reconstructed, or all, or most."""

    def of_batches(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        found = measured(truth, answer)
        return {**found, "asr": share(found["success"], axis=1).mean()}

    failed = outcomes(of_batches, "failed")
    assert "asr: pictures, not batches" in failed
    assert failed <= {"asr: pictures, not batches", "success: one answer for two", "success: two answers for one"}


@pytest.mark.parametrize("of_batch", [np.max, np.min])
def test_the_best_or_the_worst_of_each_batch_fails_for_all(of_batch: Any) -> None:
    """A median of one member of each batch; for batches of one it is the median of all."""

    def of_one_member(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        found = measured(truth, answer)
        names = ("rmse", "psnr", "ssim")
        return {**found, "overall": {name: np.median(of_batch(found[name], axis=1)) for name in names}}

    assert outcomes(of_one_member, "failed") == {f"{name}: mean, not best member" for name in ("rmse", "psnr", "ssim")}


def test_means_and_medians_over_all_members_pass() -> None:
    """The contract allows the mean, the median, or for RMSE and PSNR that of the mean squared error."""

    def mean(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        found = measured(truth, answer)
        return {"overall": {name: found[name].mean() for name in ("rmse", "psnr", "ssim")}}

    def of_mean_square(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        square = np.square(measured(truth, answer)["rmse"]).mean()
        return {"overall": {"rmse": np.sqrt(square), "psnr": np.minimum(metrics.PSNR_CAP, -10 * np.log10(square))}}

    assert outcomes(mean, "failed") == outcomes(of_mean_square, "failed") == set()


def test_labels_as_sets_fail() -> None:
    def sets(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        pairs = zip(truth["labels"], answer["labels"], strict=True)
        return {"label_accuracy": [len(set(t) & set(a)) / len(set(t)) for t, a in pairs]}

    assert outcomes(sets, "failed") == {"labels: repeats"}


@pytest.mark.parametrize("what", ["truth", "answer"])
def test_a_scorer_that_changes_its_inputs_fails(what: str) -> None:
    def clamps(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        found = measured(truth, answer)
        np.clip(
            {"truth": truth, "answer": answer}[what]["inputs"],
            0.1,
            0.9,
            out={"truth": truth, "answer": answer}[what]["inputs"],
        )
        return found

    assert outcomes(clamps, "failed") == {"truth: untouched"}


def test_missing_measures_are_reported_as_not_measured() -> None:
    """An empty scorer passes only the case that inputs stay unchanged."""
    assert outcomes(lambda truth, answer: {}, "passed") == {"truth: untouched"}
    assert outcomes(lambda truth, answer: {"ssim": None, "overall": {"rmse": None}}, "failed") == set()
    alone = outcomes(lambda truth, answer: {"rmse": measured(truth, answer)["rmse"]}, "passed")
    assert {name for name in alone if name.startswith("order")} == {
        "order: swap",
        "order: 3-cycle",
        "order: two copies",
        "order: two alike",
    }
    only = outcomes(lambda truth, answer: {"psnr": measured(truth, answer)["psnr"]}, "passed")
    assert {"order: 3-cycle", "psnr: scikit-image"} <= only
    assert not any(name.startswith(("rmse", "ssim", "labels", "asr")) for name in only)


def test_a_scorer_that_raises_has_failed_the_case() -> None:
    def strict(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        if np.isnan(answer["inputs"]).any():
            raise ValueError("an answer is missing")
        return {"rmse": measured(truth, answer)["rmse"]}

    failed = [r for r in conform(strict, CASES) if r.outcome == "failed"]
    assert {r.got for r in failed} == {"raised ValueError: an answer is missing"}
    assert {r.case for r in failed} == {c.name for c in CASES if np.isnan(c.answer["inputs"]).any()}


def test_the_order_is_judged_by_the_rmse_if_available() -> None:
    """If several measures answer a case, the first one that the scorer has is used, and named."""

    def of(*measures: str) -> Scorer:
        return lambda truth, answer: {name: measured(truth, answer)[name] for name in measures}

    for measures, used in ((("ssim", "psnr", "rmse"), "rmse"), (("ssim", "psnr"), "psnr"), (("ssim",), "ssim")):
        swap = next(r for r in conform(of(*measures), CASES) if r.case == "order: swap")
        assert (swap.outcome, swap.got.split()[0], swap.expected.split()[0]) == ("passed", used, used)


def test_a_scorer_that_exits_has_failed_the_case() -> None:
    """A script that exits ends itself, not the cases that follow."""

    def ends(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        if np.isnan(answer["inputs"]).any():
            sys.exit("no picture")
        return {"rmse": measured(truth, answer)["rmse"]}

    failed = [r for r in conform(ends, CASES) if r.outcome == "failed"]
    assert {r.case for r in failed} == {c.name for c in CASES if np.isnan(c.answer["inputs"]).any()}
    assert all(r.got.startswith("raised SystemExit") for r in failed)


def test_measures_missing_only_in_hard_cases_fail() -> None:
    """A scorer that has an RMSE elsewhere cannot skip the case with a missing reconstruction."""

    def evasive(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        return {} if np.isnan(answer["inputs"]).any() else {"rmse": measured(truth, answer)["rmse"]}

    failed = [r for r in conform(evasive, CASES) if r.outcome == "failed"]
    assert [(r.case, r.got) for r in failed] == [("rmse: no answer", "no rmse, which it has elsewhere")]


def test_measures_missing_next_to_right_ones_fail() -> None:
    """A right RMSE does not replace the PSNR that the scorer has for other batches."""

    def evasive(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        found = measured(truth, answer)
        return {name: found[name] for name in (("rmse",) if truth["labels"].shape == (2, 3) else ("rmse", "psnr"))}

    failed = {r.case: r.got for r in conform(evasive, CASES) if r.outcome == "failed"}
    assert {failed["order: swap"], failed["order: 3-cycle"]} == {"no psnr, which it has elsewhere"}
    assert not any(name.startswith("rmse") for name in failed)


def test_lpips_is_compared_with_the_package(tmp_path: Path) -> None:
    """On a random backbone: rescaled to [-1, 1] it passes, and in [0, 1] it fails."""
    from torchvision.models import squeezenet1_1  # noqa: PLC0415

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.save(squeezenet1_1().state_dict(), tmp_path / "weights.pth")
    digest = hashlib.sha256((tmp_path / "weights.pth").read_bytes()).hexdigest()[:8]
    (tmp_path / "weights.pth").rename(tmp_path / f"squeezenet1_1-{digest}.pth")
    lpips = load_lpips(tmp_path)
    assert callable(lpips)

    def as_they_are(truth: Truth, answer: Answer) -> Mapping[str, Any]:
        halved = ({**side, "inputs": (side["inputs"] + 1) / 2} for side in (truth, answer))
        return {"lpips": OwnScorer(lpips=lpips)(*halved)["lpips"]}  # type: ignore[arg-type]

    for scorer, outcome in ((OwnScorer(lpips=lpips), "passed"), (as_they_are, "failed"), (OWN, "not measured")):
        found = {r.case: r for r in conform(scorer, [lpips_case(tmp_path)])}["lpips: range"]
        assert found.outcome == outcome
    assert found.reason == "the scorer returns no lpips"


@given(share=st.integers(0, 3072), other=st.integers(0, 3072))
def test_a_share_of_inverted_pixels_is_the_squared_rmse(share: int, other: int) -> None:
    """For every share, with the PSNR that follows, and the largest error 1."""
    truth = black_and_white(1, 2, seed=0)
    answer = turned(truth, [[share / 3072, other / 3072]])
    assert reference("rmse", truth, answer)[0] == pytest.approx([(share / 3072) ** 0.5, (other / 3072) ** 0.5])
    if share and other:
        expected = [-10 * np.log10(share / 3072), -10 * np.log10(other / 3072)]
        assert reference("psnr", truth, answer)[0] == pytest.approx(expected)
    assert set(np.unique(answer)) <= {0.0, 1.0}


def test_checks_accept_known_answers_and_reject_others() -> None:
    values = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert Close(values, 0.1).holds(values + 0.05) and not Close(values, 0.1).holds(values + 0.2)
    assert Close(values, 0.1).holds(np.array([1.5, 3.5])) and not Close(values, 0.1).holds(np.array([1.5]))
    assert not Close(values, 0.1).holds(values * np.nan)
    assert EachExample(values, 0.1).holds(values) and not EachExample(values, 0.1).holds(values.mean(1))
    missing = Unanswered(np.array([[0.2], [np.nan], [0.4]]), 1, 0.01)
    for value, holds in ((np.nan, True), (np.inf, True), (1.0, True), (0.3, False), (0.0, False), (-np.inf, False)):
        assert missing.holds(np.array([[0.2], [value], [0.4]])) == holds
    assert not missing.holds(np.array([0.2, 0.4])) and not missing.holds(np.array([0.3, np.nan, 0.4]))
    for value, holds in ((0.6, True), (0.5, False), (0.4, False), (np.inf, True), (-np.inf, False), (np.nan, False)):
        assert Worse(0.5, 1, "half").holds(np.array(value)) == holds
        assert Worse(-0.5, -1, "half").holds(np.array(-value)) == holds
    assert Worse(0.5, 1, "half", or_none=True).holds(np.array(np.nan))
    assert [Between(1, 2).holds(np.array(x)) for x in (0.9, 1.0, 2.0, 2.1, np.nan, np.inf)] == [0, 1, 1, 0, 0, 0]
    perfect = Finite(np.array([[np.nan, 12.0]]), 0.1)
    for got, holds in (([[80.0, 12.0]], True), ([[np.inf, 12.0]], False), ([[80.0, 13.0]], False), ([20.0], True)):
        assert perfect.holds(np.array(got)) == holds
    assert not perfect.holds(np.array([np.inf])) and not perfect.holds(np.array([[80.0]]))


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1.0], "it returned list, expected a dict"),
        (None, "it returned NoneType"),
        ({"pnsr": [[1.0]]}, "unknown key 'pnsr'; did you mean 'psnr'?"),
        ({"rmse": "much"}, "for 'rmse' it returned <U4"),
        ({"rmse": [[0.5j]]}, "for 'rmse' it returned complex128"),
        ({"rmse": 0.5}, "for 'rmse' it returned the shape (), expected (V, B) or (V,)"),
        ({"rmse": [[1.0], [1.0, 2.0]]}, "for 'rmse' it returned no array"),
        ({"asr": [0.5]}, "for 'asr' it returned the shape (1,), expected one number"),
        ({"overall": 0.5}, "for 'overall' it returned float"),
        ({"overall": {"asr": 0.5}}, "for 'overall' it returned ['asr']"),
        ({"overall": {"rmse": [0.5]}}, "for 'overall rmse' it returned the shape (1,), expected one number"),
    ],
)
def test_invalid_return_values_are_refused(returned: Any, said: str) -> None:
    with pytest.raises(InputError, match=r"^scorer: ") as raised:
        read_scores(returned)
    assert said in str(raised.value)


def test_every_measure_has_a_case() -> None:
    """Every key of the contract has a case."""
    asked = {name.split()[0] for made in CASES for name in made.known} | {"lpips"}
    assert asked - {"untouched"} == set(MEASURES)


SCORERS = """
import numpy as np
from leakbench.conformance.command import OwnScorer

ours = OwnScorer()
number = 3
print("a module may print")

def wrapped(truth, answer):
    print("and so may a scorer")
    return {"rmse": ours(truth, answer)["rmse"]}

def swallows(truth, answer):
    found = ours(truth, answer)
    return {"asr": np.mean(found["success"][np.isfinite(found["rmse"])])}

def returns_list(truth, answer):
    return [0.0]

def misspelt(truth, answer):
    return {"pnsr": [0.0]}


def measures_nothing(truth, answer):
    return {}

def divides(truth, answer):
    raise ZeroDivisionError("division\\nby zero")

def ran_once(truth, answer):
    return {"rmse": [[0], [0]]} if truth["labels"].shape == (2, 1) else divides(truth, answer)

def interrupted(truth, answer):
    raise KeyboardInterrupt
"""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Return a function that runs `leakbench conformance` with a module of scorers: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "some_scorers", raising=False)
    (tmp_path / "some_scorers.py").write_text(SCORERS)

    return partial(called, monkeypatch, capsys, "conformance")


@pytest.mark.slow
def test_the_command_passes_our_scorer(call: Any) -> None:
    """Exit code 0, one line for each case, and the counts."""
    code, out, err = call()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "38 passed, 0 failed, 2 not measured"
    assert out.splitlines()[0].split() == ["case", "leakbench"]
    assert f"lpips: range                        not measured: {metrics.LPIPS_ABSENT}" in out.splitlines()


@pytest.mark.slow
def test_the_command_takes_a_scorer_by_name(call: Any) -> None:
    code, out, _ = call("--scorer", "some_scorers:wrapped", "--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert (code, found["scorer"], found["failed"]) == (0, "some_scorers:wrapped", 0)
    assert found["passed"] + found["not_measured"] == len(found["cases"])
    assert {c["outcome"] for c in found["cases"] if c["case"].startswith("psnr")} == {"not measured"}


@pytest.mark.slow
def test_a_failed_case_is_exit_1_with_both_numbers(call: Any) -> None:
    code, out, _ = call("--scorer", "some_scorers:swallows")
    assert code == 1
    assert "asr: no answer                      failed: got 1, expected 0.75 +- 1e-06" in out
    assert out.count("failed: ") == 1


def test_a_scorer_that_never_ran_is_reported(call: Any) -> None:
    """Once, in the last line; a scorer that returned something in any case did run."""
    scorer = "some_scorers:divides"
    code, out, _ = call("--scorer", scorer)
    lines = out.splitlines()
    asked = len(CASES) - 1
    assert (code, lines[-2]) == (1, f"0 passed, {asked} failed, 1 not measured")
    told = (
        f"{scorer} never ran: it raised in all {asked} cases that it was asked, "
        "in the first ZeroDivisionError: division by zero"
    )
    assert lines[-1] == told and out.count("never ran") == 1
    found = json.loads(call("--scorer", scorer, "--json")[1])
    assert found["never_ran"] == told and {c["call"] for c in found["cases"]} == {"raised", "not asked"}
    once = json.loads(call("--scorer", "some_scorers:ran_once", "--json")[1])
    assert once["never_ran"] is None and {c["call"] for c in once["cases"]} == {"returned", "raised", "not asked"}


def test_an_interrupted_scorer_ends_the_command(call: Any) -> None:
    """As with Ctrl-C elsewhere: no table, one line, exit code 130."""
    code, out, err = call("--scorer", "some_scorers:interrupted")
    assert (code, out) == (130, "")
    assert [line for line in err.splitlines() if line.startswith("leakbench: ")] == [err.splitlines()[-1]]
    assert "interrupted" in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--scorer", "nowhere"], "scorer: got 'nowhere', expected package.module:name"),
        (["--scorer", "nowhere_at_all:name"], "scorer: 'nowhere_at_all:name' cannot be imported: ModuleNotFoundError"),
        (["--scorer", "some_scorers:nobody"], "nobody"),
        (["--scorer", "some_scorers:number"], "is of type int, expected a function"),
        (["--scorer", "some_scorers:returns_list"], "scorer: it returned list, expected a dict"),
        (["--scorer", "some_scorers:measures_nothing"], "measured nothing, expected at least one of"),
        (["--scorer", "some_scorers:misspelt"], "did you mean 'psnr'?"),
        (["--lpips-weights", "no such folder"], "no such folder"),
    ],
)
def test_wrong_input_is_one_line(call: Any, arguments: list[str], said: str) -> None:
    """Exit code 2, nothing on stdout, one line of leakbench that names the field."""
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if line != "a module may print"]
    assert len(lines) == 1 and lines[0].startswith("leakbench: ")
    assert said in lines[0]


def test_the_example_scorer_of_the_page_works_as_described(tmp_path, monkeypatch, capsys) -> None:
    """As written, in a separate file; the counts are those that the page prints."""
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text(encoding="utf-8")
    example = page.split("in a file `my_scorer.py`:", 1)[1].split("```python\n", 1)[1].split("```", 1)[0]
    (tmp_path / "my_scorer.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code, out, _ = called(monkeypatch, capsys, "conformance", "--scorer", "my_scorer:score")
    assert (code, out.splitlines()[-1]) == (0, "18 passed, 0 failed, 22 not measured")
    assert f"ends with\n`{out.splitlines()[-1]}`" in page


def test_the_help_has_every_measure_and_its_shape(monkeypatch, capsys) -> None:
    _, out, _ = called(monkeypatch, capsys, "conformance", "--help")
    for measure in MEASURES:
        assert any(line.split()[:1] == [measure] for line in out.splitlines())
    for word in ("(V, B, C, H, W) float32 in [0, 1]", "(V, B) int64", "an image of NaN"):
        assert word in out
