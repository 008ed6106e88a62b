"""`leakbench frontier`: the choice of a setting, its recipe, its figure; measured points are not measured again."""

import dataclasses
import json
import math
import shlex
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import called

from leakbench.cell import Request
from leakbench.cell.accounting import cell_epsilon
from leakbench.cell.budget import prepare
from leakbench.cell.cell import hand_out
from leakbench.cell.factors import louder
from leakbench.cell.network import probe_of
from leakbench.cli.frontier import frontier as frontier_command
from leakbench.core.errors import InputError
from leakbench.core.progress import Reporter
from leakbench.core.recipe import describe, load, names, resolve
from leakbench.defense import Defense, facts_at
from leakbench.frontier import frontier as engine
from leakbench.frontier.answer import answer_of
from leakbench.frontier.choose import CORRECTED, Requirements, _holm, chosen, judged, main_rows, reaching, refusals
from leakbench.frontier.figure import draw, figure_of, looks_of, spread
from leakbench.frontier.frontier import store_of
from leakbench.frontier.grid import (
    DEFAULT,
    DEFENSES,
    FACTORS,
    IDENTIFY,
    OUT,
    SEEDS,
    Point,
    defenses_of,
    factors_of,
    points_of,
)
from leakbench.frontier.measure import (
    SAME,
    cells_at,
    command_of,
    halved,
    identified_by,
    measured,
    null_interval,
    sigma_of,
    told_from_chance,
)
from leakbench.frontier.page import CHOSEN_BY, page_of
from leakbench.frontier.write import measured_defense, recipe_text, write
from leakbench.privacy.decay import Scaled
from leakbench.storage.summary import Tap
from leakbench.study.study import Execution, executed
from leakbench.summary.verdict import LEVEL, by_chance
from tests.published_files import RESULTS, published_file

WRITTEN = sorted(path.stem for path in RESULTS.glob("frontier/frontier_*.csv"))

ASKED = json.dumps(
    {"dataset": "cancer", "taps": ["type-1"], "leak_batch": 1, "seeds": 1, "victims": 20, "identify": 1000}
)


def row(defense: str, factor: float | None, accuracy: float, identified: float, **changed: Any) -> dict[str, Any]:
    """Return a row with an interval of .02 around the accuracy, for 20 victims among 1,000 candidates."""
    name = defense if factor is None else f"{defense}, x {factor:g}"
    plain = {"row": name, "cell": name, "defense": defense, "factor": factor or 1.0, "noise": factor is not None}
    shares = {"trained_accuracy": accuracy, "identified": identified, "asr": 0.0, "label_ranked": 0.5}
    ends = {
        f"{key}_{end}": min(1, max(0, v + d))
        for key, v in shares.items()
        for end, d in (("low", -0.02), ("high", 0.02))
    }
    rest = {
        **{"sigma": "0.6", "point": "type-1", "asked": ASKED, "left_out": None, "victims": 20, "candidates": 1000},
        **{
            "identify_victims": 400,
            "identify_p": 1.0,
            "null_identified_low": 0.0,
            "null_identified_high": 0.05,
            "null_asr": 0.05,
            "null_label": 0.6,
            "seeds": 1,
        },
        **{"epsilon_valid": 3.0, "epsilon_reason": "", "epsilon_tap": 3.0, "epsilon_tap_reason": "", "delta": 1e-5},
        **{"epsilon_claimed": None, "verdict": "inconclusive", "wall_minutes": 1.0},
    }
    return {**plain, **shares, **ends, **rest, "choice_accuracy": accuracy, **changed}


def rows(*given: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(list(given))


def test_the_most_accurate_setting_without_a_significant_leak_is_chosen() -> None:
    found = rows(
        row("none", None, 0.95, 1.0, verdict="reconstructs", identify_p=0.0),
        row("a", 1.0, 0.50, 0.0),
        row("a", 0.1, 0.80, 0.05, identify_p=0.05),
        row("a", 0.01, 0.93, 0.10, verdict="identifies", identify_p=0.0099),
        row("b", 0.1, 0.94, 0.0, verdict="reconstructs"),
        row("c", 0.1, 0.92, math.nan, identify_p=math.nan),
    )
    choice = chosen(found)
    assert choice.best is not None
    assert (choice.best["row"], choice.qualified, choice.settings) == ("a, x 0.1", 1, 6)
    assert list(choice.alike["row"]) == []
    said = answer_of(found, choice)
    assert (
        "use `a` at noise x 0.1 (sigma 0.6)**: accuracy 0.800 [0.780, 0.820] "
        "(undefended 0.950, commonest class 0.60)" in said
    )
    assert (
        "identification 0.050 [0.030, 0.070], not significantly above chance for 400 victims among 1,000 candidates"
        in said
    )
    assert "one-sided exact binomial test, p = 0.050; corrected for 6 settings: p = 0.150, level 0.05" in said
    assert "does not exclude identification of up to 0.070 of the victims" in said


def test_a_leak_among_many_settings_is_stated_by_the_corrected_verdict() -> None:
    """Holm: 33 settings of which the smallest has p times 33. A setting alone follows the verdict's own level of 1 %."""
    others = [row("b", 1.0 + place, 0.7, 0.0) for place in range(31)]
    for p, verdict, word in (
        (0.02, "inconclusive", "inconclusive"),
        (0.0049, "identifies", "inconclusive"),
        (0.0015, "identifies", "identifies"),
    ):
        found = judged(rows(row("a", 0.1, 0.9, 0.004, identify_p=p, verdict=verdict), row("c", 0.1, 0.8, 0.0), *others))
        assert found["verdict"].iloc[0] == word
        assert found[CORRECTED].iloc[0] == pytest.approx(33 * p)
        assert (refusals(found).iloc[0] == "leak") == (word == "identifies")
        assert judged(found).equals(found)
    said = answer_of(found := rows(row("a", 0.1, 0.9, 0.004, identify_p=0.02), *others), chosen(found))
    assert "p = 0.020; corrected for 32 settings: p = 0.640" in said
    assert "Tested alone, its identification would be above chance at level 0.05" in said
    for p, verdict, reason in ((0.03, "inconclusive", ""), (0.009, "identifies", "leak")):
        assert refusals(rows(row("a", 0.1, 0.9, 0.0, identify_p=p, verdict=verdict))).tolist() == [reason]
    # The attack on few victims may state an identification or a reconstruction by itself.
    for verdict in ("identifies", "reconstructs"):
        assert refusals(rows(row("a", 0.1, 0.9, 0.0, verdict=verdict), *others)).iloc[0] == "leak"


def test_no_corrected_p_value_is_below_that_of_a_smaller_one() -> None:
    """Holm over six settings: .009 x 6 = .054, so that .0095 x 5 = .0475 counts as .054 too."""
    found = _holm(pd.Series([0.5, 0.0095, math.nan, 0.009, 0.6, 0.7, 0.8]))
    assert found.round(6).dropna().tolist() == [1.0, 0.054, 0.054, 1.0, 1.0, 1.0]
    assert found.isna().tolist() == [False, False, True, False, False, False, False]


def test_other_leakage_points_do_not_count_in_the_correction() -> None:
    found = judged(rows(*(row("a", 0.1, 0.9, 0.0, identify_p=0.006, point=point) for point in ("type-1", "type-2"))))
    assert found[CORRECTED].tolist() == [0.006, 0.006]


def test_settings_without_a_leak_are_rarely_excluded() -> None:
    """In at most 5 % of frontiers one of 33 settings, also where all victims of a network get the same candidate."""
    rng, found = np.random.default_rng(5), rows(*(row("a", 1.0 + place, 0.9, 0.0) for place in range(33)))
    p_of = {hits: by_chance(hits, 1000, 0.001) for hits in range(30)}
    for hits in (rng.binomial(1000, 0.001, (200, 33)), rng.binomial(5, 0.2, (200, 33))):
        wrong = []
        for drawn in hits:
            p = pd.Series([p_of[count] for count in drawn])
            alone = found.assign(identify_p=p, verdict=np.where(p < LEVEL, "identifies", "inconclusive"))
            wrong.append((p < LEVEL).any() and (judged(alone)["verdict"] == "identifies").any())
        assert np.mean(wrong) <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


def test_a_leak_on_one_of_five_networks_is_a_leak() -> None:
    """One victim in twenty on one network, nobody on the others: 10 of 1,000, where chance has 1."""
    tap = Tap(identified=0.01, victims=1000, candidates=1000)
    found = identified_by(tap, "inconclusive")
    assert found["verdict"] == "identifies"
    assert refusals(rows({**row("a", 0.1, 0.9, 0.01), **found})).tolist() == ["leak"]


def test_a_failed_attack_does_not_exclude_a_setting_and_an_untrained_attack_does_not_support_it() -> None:
    found = rows(row("a", 0.1, 0.9, 0.0, verdict="attack failed"), row("b", 0.1, math.nan, 0.0))
    assert list(refusals(found) == "") == [True, False]
    assert "The verdict on this setting is `attack failed`." in answer_of(found, chosen(found))


def test_ties_go_to_the_smaller_epsilon_then_to_more_noise_and_are_named() -> None:
    found = rows(
        row("a", 0.1, 0.90, 0.0, epsilon_valid=None),
        row("b", 0.1, 0.90, 0.0, epsilon_valid=9.0),
        row("c", 0.1, 0.90, 0.0, epsilon_valid=4.0),
        row("c", 1.0, 0.885, 0.0, epsilon_valid=0.5),
        row("c", 3.0, 0.87, 0.0, epsilon_valid=0.1),
        row("c", 9.0, 0.85, 0.0, epsilon_valid=0.01),
    )
    choice = chosen(found)
    assert choice.best is not None
    assert choice.best["row"] == "c, x 0.1"
    assert list(choice.alike["row"]) == ["b, x 0.1", "a, x 0.1", "c, x 1", "c, x 3"]
    assert "Of these, c, x 3 has the smallest epsilon: valid epsilon 0.1" in answer_of(found, choice)
    equal = rows(row("a", 0.1, 0.9, 0.0), row("a", 0.3, 0.9, 0.0))
    assert chosen(equal).best["factor"] == 0.3  # type: ignore[index]


def test_remaining_leaks_of_the_setting_are_reported() -> None:
    found = rows(
        row(
            "a",
            0.1,
            0.9,
            0.0,
            epsilon_valid=6000.0,
            epsilon_tap=None,
            epsilon_tap_reason="none: later",
            label_ranked_low=0.9,
        )
    )
    said = answer_of(found, chosen(found))
    assert "Against an observer of the client update (type-1) the valid epsilon is none (later)." in said
    assert "The label leaks" in said
    assert "is not a guarantee" in said


def test_the_answer_may_be_that_no_setting_qualifies() -> None:
    found = rows(row("a", 0.1, 0.9, 0.4, verdict="identifies"), row("b", 0.1, 0.8, 0.2, verdict="identifies"))
    choice = chosen(found)
    assert choice.best is None
    said = answer_of(found, choice)
    assert "**no usable setting qualifies** among 2 settings of 2 defenses." in said
    assert "The usable setting that leaks least is `b` at noise x 0.1" in said


@pytest.mark.parametrize(
    ("victims", "candidates", "high"), [(20, 1000, 0.0), (50, 1000, 1 / 50), (30, 426, 1 / 30), (10, 2, 8 / 10)]
)
def test_the_null_interval_is_that_of_the_binomial_distribution(victims: int, candidates: int, high: float) -> None:
    """Of 20 at 1 / 1,000, zero are found with a probability of .98; of 50 with .951, less than .975."""
    low, found = null_interval(Tap(victims=victims, candidates=candidates))
    assert found == pytest.approx(high)
    assert low == pytest.approx(0.2 if candidates == 2 else 0.0)


def test_the_most_noise_that_reaches_an_accuracy() -> None:
    """By its mean: the upper end of the interval does not count as its accuracy."""
    found = rows(
        row("none", None, 0.95, 1.0),
        *(row("a", f, y, 0.0, epsilon_valid=e) for f, y, e in ((0.01, 0.95, 90.0), (0.1, 0.885, 9.0), (1.0, 0.5, 1.0))),
        row("b", 1.0, 0.2, 0.0),
    )
    reached = {r.sweep: (r.mean.cell, r.mean.valid) for r in reaching(found, 0.9)}
    assert reached == {"a": ("x 0.01", "90.000"), "b": ("none of those measured", "-")}


def numbers(value: Any) -> Any:
    """Return a description with twelve digits of each number, as in a recipe."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {key: numbers(each) for key, each in value.items()}
    return [numbers(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", names("defenses"))
def test_a_recipe_is_read_back_as_it_was_written(name: str, tmp_path: Path) -> None:
    defense = resolve("defenses", Defense, name)[1]
    path = tmp_path / "again.yaml"
    for noisy in (defense, louder(defense, 0.1)):
        path.write_text(recipe_text(noisy, "Written again."))
        again = load(Defense, path)
        assert again.note.strip() == " ".join(f"{defense.note} Written again.".split())
        before, after = (describe(dataclasses.replace(d, note="")) for d in (noisy, again))
        if "Scaled" not in str(before):
            assert numbers(before) == numbers(after)


@dataclasses.dataclass(frozen=True)
class Own:
    """A part that is not in the catalog."""

    step: float = 0.5

    def __call__(self, signal: Any, clock: Any, rngs: Any) -> Any:
        return signal


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_a_user_part_has_the_name_of_its_entry_point(named: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """Without one the page explains why a recipe is missing, and an old recipe is deleted."""
    found = rows(row("none", None, 0.9, 1.0), row("fed_cdp_valid", 0.1, 0.8, 0.0))
    defense = dataclasses.replace(resolve("defenses", Defense, "fed_cdp_valid")[1], client=(Own(0.25),))
    monkeypatch.setattr("leakbench.frontier.write.measured_defense", lambda best: defense)
    where = EntryPoint("transform.rounded", f"{__name__}:Own", "leakbench.parts")
    monkeypatch.setattr("leakbench.core.recipe.entry_points", lambda group: [where] if named else [])
    recipe = tmp_path / "frontier_cancer_best.yaml"
    recipe.write_text("of other rows")
    said = list(write(found, tmp_path, "cancer"))
    page = (tmp_path / "frontier_cancer.md").read_text()
    if named:
        assert "client: [{rounded: {step: 0.25}}]" in recipe.read_text()
    else:
        assert not recipe.exists()
        assert "Own: no recipe can name this part" in page
        assert said[-1].startswith("recipe: none was written: Own")


@pytest.mark.parametrize(
    "curve", ["linear", "exponential", "staircase", "cyclic", "cyclic_as_released", "staircase_as_released"]
)
def test_a_schedule_times_a_factor_is_written_as_the_same_noise(curve: str, tmp_path: Path) -> None:
    defense = louder(resolve("defenses", Defense, f"fed_alpha_cdp_{curve}")[1], 0.1)
    path = tmp_path / "again.yaml"
    path.write_text(recipe_text(defense, ""))
    # A schedule whose whole steps do not grow.
    assert ("factor" in path.read_text()) == (curve == "staircase_as_released")
    again = load(Defense, path)
    now, then = ([t.multiplier for t in (*d.example, *d.batch) if hasattr(t, "multiplier")] for d in (defense, again))
    assert isinstance(now[0], Scaled)
    asked = Request(dataset="cancer", defense="none", attack="cpl", train_rounds=7, clients=4)
    federation = prepare(asked, None).settings.federation
    clocks = [federation.clock(r, i) for r in range(8) for i in (0, 3)]
    for one, other in zip(now, then, strict=True):
        assert [other(c) for c in clocks] == pytest.approx([one(c) for c in clocks], rel=1e-9)


def test_the_recipe_is_the_measured_cells_defense(tmp_path: Path) -> None:
    """Its facts and epsilons are those of the cell with the factor."""
    best = pd.Series({"defense": "fed_cdp_valid", "factor": 0.03})
    path = tmp_path / "frontier_cancer_best.yaml"
    path.write_text(recipe_text(measured_defense(best), "Chosen."))
    assert "{multiplier: 0.18, to: sum}" in path.read_text()
    sizes: dict[str, Any] = {"dataset": "cancer", "attack": "cpl", "victims": 2, "clients": 20, "train_rounds": 2}
    cells = [
        prepare(Request(defense="fed_cdp_valid", noise_factor=0.03, **sizes), None),
        prepare(Request(defense=str(path), **sizes), None),
    ]
    facts, epsilons = [], []
    for cell in cells:
        probe = probe_of(cell.defense, cell.data, cell.settings)
        facts.append(facts_at(cell.defense, probe, cell.defense.clock(probe.federation, 0)))
        epsilons.append(cell_epsilon(cell.defense, cell.data, cell.settings, hand_out(cell), None))
    assert facts[0] == facts[1]
    assert (epsilons[0].valid, epsilons[0].claimed) == (epsilons[1].valid, epsilons[1].claimed)


ROUNDS = "nbafl"
"""A defense whose noise depends on the number of rounds."""

TINY = (
    *("frontier", "--dataset", "cancer", "--victims", "2", "--candidates", "9", "--iterations", "2", "--clients", "4"),
    *("--clients-per-round", "2", "--local-iterations", "1", "--train-rounds", "1", "--identify", "9", "--defenses"),
)


@pytest.mark.slow
def test_a_point_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after the rows were lost, since the cells are in --runs; one more factor measures one more point."""
    monkeypatch.chdir(tmp_path)
    count: list[str] = []
    plain = engine.measured
    monkeypatch.setattr(engine, "measured", lambda point, *rest: [count.append(point.name), *plain(point, *rest)][1:])
    ends = ("--out", "o", "--seeds", "2")
    code, out, _ = called(monkeypatch, capsys, *TINY, "none,noise_gaussian", "--noise-factors", "1", *ends)
    assert (code, count) == (0, ["none", "noise_gaussian, x 1"])
    assert "ASR" in out
    first = store_of(tmp_path / "o/frontier_cancer.csv").read()
    assert list(first["seeds"]) == [2, 2]
    called(monkeypatch, capsys, *TINY, "none,noise_gaussian", "--noise-factors", "1", *ends)
    assert len(count) == 2
    called(monkeypatch, capsys, *TINY, "none,noise_gaussian", "--noise-factors", "1,0.5", *ends)
    assert count[2:] == ["noise_gaussian, x 0.5"]
    again = store_of(tmp_path / "o/frontier_cancer.csv").read()
    assert list(again["row"]) == ["none", "noise_gaussian, x 1", "noise_gaussian, x 0.5"]
    pd.testing.assert_frame_equal(again.iloc[:2], first, check_dtype=False)
    assert all((tmp_path / f"o/frontier_cancer{end}").stat().st_size for end in (".md", ".svg", ".png"))
    code, _, err = called(monkeypatch, capsys, *TINY, "none", "--out", "o", "--seeds", "1")
    assert (code, err.count("\n")) == (2, 1)
    assert "rows of other sizes (seeds 2, asked 1)" in err


def test_unsuitable_defenses_are_left_out_and_refused_if_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network of pictures for a table; and a budget that one noise meets and a tenth of it does not."""
    monkeypatch.setattr(
        engine, "measured", lambda point, _, asked, *rest: [row(point.defense, point.factor, 0.9, 0.0, asked=asked)]
    )
    own = tmp_path / "of_pictures.yaml"
    own.write_text("title: t\ncite: c\nunit: example\nmodel: cnn\n")
    sizes: dict[str, Any] = {"victims": 2, "clients": 4, "clients_per_round": 2, "leak_batch": 1, "train_rounds": 1}
    request = Request(dataset="cancer", knows="defense", taps=("type-1",), **sizes)
    here = Execution(tmp_path, None, Reporter(quiet=True))
    places: tuple[Any, ...] = (1, 9, tmp_path, "", here, lambda _: None)
    found = engine.frontier(request, (str(own), "geyer"), (1.0, 0.01), *places, False)
    assert dict(zip(found["row"], found["left_out"].notna(), strict=True)) == {
        "geyer, x 1": False,
        "geyer, x 0.01": True,
        "of_pictures": True,
    }
    assert "- geyer, x 0.01: stop-at-epsilon: the first round alone spends" in page_of(
        found, chosen(main_rows(found)), "f"
    )
    with pytest.raises(InputError, match=r"of_pictures\.yaml: "):
        engine.frontier(request, (str(own),), (1.0,), *places, True)


def test_a_factor_is_tried_if_it_scales_noise() -> None:
    request = Request(dataset="cancer", knows="defense", taps=("type-1",), victims=2, clients=4, train_rounds=1)
    many = {
        name: len(points_of(dataclasses.replace(request, defense=name), (1.0, 0.1), None))
        for name in ("none", "sign", "prune_threshold", "fed_cdp_valid", "adaclip", "flower_fixed_client")
    }
    assert many == {
        **dict.fromkeys(("none", "sign", "prune_threshold"), 1),
        **dict.fromkeys(("fed_cdp_valid", "adaclip", "flower_fixed_client"), 2),
    }
    assert set(DEFENSES) <= set(names("defenses"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--defenses", "fed_cpd"), "defenses: unknown name 'fed_cpd'; did you mean 'fed_cdp'?"),
        (("--defenses", "./none.yaml"), "defenses: no file './none.yaml'"),
        (("--defenses", "none,none"), "defenses: 'none' is given twice"),
        (("--noise-factors", "1,zero"), "noise-factors: got 'zero'"),
        (("--noise-factors", "0"), "noise-factors: got '0'"),
        (("--noise-factors", "1,1.0"), "noise-factors: '1.0' is given twice"),
        (("--reach", "1.5"), "reach: got 1.5, expected an accuracy in (0, 1]"),
        (("--identify", "0"), "identify: got 0, expected at least 1"),
        (("--seeds", "0"), "seeds: got 0, expected at least 1"),
        (("--taps", "type-3", "--defenses", "none"), "taps: got 'type-3'"),
        (("--page",), "frontier_cancer.csv does not exist"),
        (("--observer", "type-2"), "observer: got 'type-2', expected released or type-1"),
        (("--max-epsilon", "0"), "max-epsilon: got 0, expected a finite number above 0"),
    ],
)
def test_wrong_input_is_one_line(
    words: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = called(monkeypatch, capsys, "frontier", "--dataset", "cancer", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_the_page_names_settings_that_diverged() -> None:
    found = rows(row("none", None, 0.9, 1.0), row("a", 10.0, 0.0, 0.0))
    assert "An accuracy of 0 is that of a network that diverged, so that no output is finite: a, x 10.\n" in page_of(
        found, chosen(found), "f"
    )


def test_the_page_begins_with_the_limits_of_the_answer() -> None:
    """Settings without a row or left out; that an interval is for one seed; that one test set is used to choose and to report."""
    two = rows(row("none", None, 0.9, 1.0), row("a", 1.0, 0.5, 0.0), row("b", 0.1, 0.5, 0.0))
    top = page_of(two, chosen(two), "f").partition("![")[0]
    assert "Not measured: 2 of the 5 settings of the grid" in top
    assert "Default defenses that were not tried (13 of 14): `fed_cdp`" in top
    assert "With one seed, the interval of an accuracy covers the choice of test examples" in top
    assert "The setting is selected by its accuracy on one half of the test examples" in top
    both = two.assign(choice_accuracy=0.5)
    assert "by its accuracy on one half of the test examples" in page_of(both, chosen(both), "f").partition("![")[0]
    several = two[:2].assign(seeds=3)
    top = page_of(several, chosen(several), "f").partition("![")[0]
    assert "All 2 settings of the grid" in top
    assert "one seed" not in top
    out = rows(row("none", None, 0.9, 1.0), {**row("b", None, 0.5, 0.0), "left_out": "why"})
    assert "Not measured: 1 of the 2 settings" in page_of(out, chosen(main_rows(out)), "f")


@pytest.mark.parametrize(
    ("found", "victims", "candidates", "p"),
    [(6, 200, 426, 9e-6), (11, 400, 426, 5e-9), (4, 300, 1000, 2.6e-4), (5, 1000, 1000, 3.6e-3), (0, 30, 426, 1.0)],
)
def test_identification_is_compared_with_chance_by_an_exact_test(
    found: int, victims: int, candidates: int, p: float
) -> None:
    """Many victims show what few hide; the p-value includes the probability of equality."""
    tap = Tap(identified=found / victims, victims=victims, candidates=candidates)
    assert told_from_chance(tap) == pytest.approx(p, rel=0.06)
    for before in ("inconclusive", "reconstructs"):
        got = identified_by(tap, before)
        assert got["verdict"] == ("identifies" if before == "inconclusive" and found else before)
        assert (got["identify_victims"], got["identified"]) == (victims, found / victims)
    assert math.isnan(told_from_chance(tap.replaced(identified=None)))


@pytest.mark.slow
def test_a_point_combines_trainings_with_all_seeds_at_the_same_noise(tmp_path: Path) -> None:
    """Its accuracy is the seeds' mean, its identification uses the many victims, each epsilon names its observer."""
    sizes: dict[str, Any] = {"victims": 2, "candidates": 9, "iterations": 2, "clients": 4, "clients_per_round": 2}
    more: dict[str, Any] = {"local_iterations": 9, "train_rounds": 2, "leak_batch": 1, "taps": ("type-1",)}
    request = Request(dataset="cancer", knows="defense", seed=5, **sizes, **more)
    point = Point("fed_sdp_client", 0.1, noise=True)
    cells = cells_at(point, request, 3, 400, None)
    *trained, many = cells
    assert [cell.settings.seed for cell in trained] == [5, 6, 7]
    assert [sigma_of(cell.defense) for cell in cells] == ["0.6"] * 4
    assert (many.settings.victims, many.settings.federation.rounds, many.settings.seed) == (9, 0, 5)
    [found] = measured(point, cells, "{}", "", Execution(tmp_path, None, Reporter()))
    told = []
    for cell in cells:
        with executed(cell, tmp_path, "") as (summary, _):
            told.append(summary)
    accuracies = [summary.accuracy for summary in told[:3]]
    assert len(set(accuracies)) > 1
    chose, shown = halved(cells[0])
    halves = (found["choice_accuracy"] * len(chose) + found["trained_accuracy"] * len(shown)) / (
        len(chose) + len(shown)
    )
    assert halves == pytest.approx(sum(accuracies) / 3)  # The two halves together are the test examples of each run.
    assert found["trained_accuracy"] != pytest.approx(found["choice_accuracy"])
    epsilon = told[0].epsilon
    assert found["epsilon_tap"] == epsilon.by_tap["type-1"].valid != epsilon.valid == found["epsilon_valid"]
    assert (found["identify_victims"], found["victims"], found["seeds"]) == (9, 2, 3)
    assert found["identified"] == told[3].taps["type-1"].identified


def test_the_test_examples_are_divided_once_for_all_settings() -> None:
    sizes: dict[str, Any] = {"victims": 1, "candidates": 9, "leak_batch": 1, "taps": ("type-1",)}
    halves = [
        halved(prepare(Request(dataset="cancer", defense=defense, seed=seed, **sizes), None))
        for defense, seed in (("none", 0), ("fed_cdp", 3))
    ]
    for one, other in zip(*halves, strict=True):
        assert torch.equal(one, other)
    assert sorted(torch.cat(halves[0]).tolist()) == list(range(143))
    assert [len(half) for half in halves[0]] == [71, 72]


def test_one_half_of_the_test_examples_chooses_and_the_other_is_reported() -> None:
    found = rows(
        row("none", None, 0.9, 1.0, verdict="reconstructs", identify_p=0.0, choice_accuracy=0.8),
        row("a", 1.0, 0.86, 0.0, choice_accuracy=0.81),
        row("b", 1.0, 0.88, 0.0, choice_accuracy=0.79),
        row("c", 1.0, 0.99, 0.0, choice_accuracy=0.69),
        row("d", 1.0, 0.70, 0.0, choice_accuracy=0.60),
    )
    choice = chosen(found)
    assert choice.usable == pytest.approx(0.6 + 0.5 * (0.8 - 0.6))
    assert choice.best is not None and choice.best["defense"] == "a"
    assert refusals(found).tolist() == ["leak", "", "", "accuracy", "accuracy"]
    said = answer_of(found, choice)
    assert "**use `a` at noise x 1 (sigma 0.6)**: accuracy 0.860 [0.840, 0.880]" in said
    assert "the most accurate of 2 that qualify (on the choosing half)" in said
    assert choice.higher == 1 and "On the other half 1 other is more accurate." in said
    best = found.assign(trained_accuracy=[0.9, 0.89, 0.88, 0.99, 0.70])
    assert "On the other half" not in answer_of(best, chosen(best))
    page = page_of(found, choice, "f")
    assert "| `a`, x 1 | 0.6 | 0.810 | 0.860 [0.840, 0.880] |" in page.replace("| a, x 1 |", "| `a`, x 1 |")
    assert "accuracy: on one half of the test examples after the last round" in page
    weak = found.assign(choice_accuracy=[0.8, 0.65, 0.66, 0.69, 0.60])
    unusable = chosen(weak).unusable
    assert unusable is not None and unusable["defense"] == "c"


def test_all_available_victims_are_used_and_rounds_follow_if_the_noise_depends_on_them() -> None:
    request = Request(
        dataset="cancer", knows="defense", taps=("type-1",), victims=2, clients=4, leak_batch=1, train_rounds=2
    )
    made = {}
    for name in ("fed_cdp_valid", ROUNDS):
        [_, many] = cells_at(Point(name), request, 1, 500, None)
        made[name] = (many.settings.victims, many.settings.federation.rounds)
    assert made == {"fed_cdp_valid": (426, 0), ROUNDS: (426, 2)}


def test_the_printed_noise_of_a_schedule_includes_the_factor() -> None:
    plain = resolve("defenses", Defense, "fed_alpha_cdp_exponential")[1]
    before, after = (sigma_of(d).split() for d in (plain, louder(plain, 0.1)))
    assert (before[0], after[0]) == ("exponential", "exponential")
    ends = [(float(one), float(other)) for one, other in zip(before[1::2], after[1::2], strict=True)]
    assert len(ends) == 2
    assert all(other == pytest.approx(one / 10, rel=1e-5) for one, other in ends)


SOME = (
    row("none", None, 0.95, 1.0, verdict="reconstructs", asr_low=0.9, epsilon_valid=None),
    row("fed_cdp_valid", 1.0, 0.3, 0.0, epsilon_valid=0.5),
    row("fed_cdp_valid", 0.1, 0.9, 0.0, epsilon_valid=9.0),
    row("fed_cdp_valid", 0.001, 0.94, 0.9, verdict="reconstructs", asr_low=0.5, epsilon_valid=1e6),
    row("sign", None, 0.6, 0.3, verdict="identifies", epsilon_valid=None),
)


def test_every_setting_is_a_point_in_both_panels_and_the_chosen_one_is_starred() -> None:
    found = rows(*SOME)
    choice = chosen(found)
    left, right = figure_of(found, choice).axes
    for axes, wanted in (
        (left, {-0.30, 0.95, 6.0}),
        (right, {0.0, 0.3, 0.9, 1.0}),
    ):
        points = [p for c in axes.collections if c.get_label() == "settings" for p in np.asarray(c.get_offsets())]
        assert len(points) == len(SOME)
        assert wanted <= {round(float(x), 2) for x, _ in points}
        [star] = [c for c in axes.collections if c.get_label() == "chosen"]
        assert np.asarray(star.get_offsets())[0, 1] == 0.9
    full = [c for c in right.collections if c.get_label() == "settings" and len(c.get_facecolor())]
    back = [c for c in full if not np.allclose(c.get_facecolor()[0, :3], 1.0) for _ in c.get_offsets()]
    assert len(back) == 2
    assert not [
        c for axes in figure_of(found, chosen(found[:1])).axes for c in axes.collections if c.get_label() == "chosen"
    ]


def test_the_figure_is_the_same_for_the_same_rows_and_follows_dark_pages(tmp_path: Path) -> None:
    found = rows(*SOME)
    draw(found, chosen(found), tmp_path / "one")
    draw(found, chosen(found), tmp_path / "two")
    for end in (".svg", ".png"):
        assert (tmp_path / f"one{end}").read_bytes() == (tmp_path / f"two{end}").read_bytes()
    svg = (tmp_path / "one.svg").read_text()
    assert "viewBox" in svg
    assert "prefers-color-scheme: dark" in svg
    assert "fill: #ffffff" in svg  # Selectors of the rule for dark pages.


def test_labels_keep_distance_order_and_limits() -> None:
    assert spread([0.5, 0.2], 0.1, 0.0, 1.0) == [0.5, 0.2]
    assert spread([1.0, 1.0, 0.99], 0.1, 0.0, 1.0) == pytest.approx([0.9, 1.0, 0.8])
    assert spread([0.0, 0.0], 0.1, 0.0, 1.0) == pytest.approx([0.0, 0.1])
    assert spread([0.5] * 5, 0.5, 0.0, 1.0) == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])


def test_no_two_lines_look_alike() -> None:
    many = [f"d{i}" for i in range(90)]
    looks = looks_of(many)
    assert len({(look.colour, look.marker) for look in looks.values()}) == 90
    assert len({look.marker for look in looks_of(many[:14]).values()}) == 14


def given_by(command: str) -> dict[str, Any]:
    """Return the parameters that the command line gives to `leakbench frontier`."""
    return frontier_command.make_context("frontier", shlex.split(command)[2:]).params


@pytest.mark.parametrize("name", WRITTEN)
def test_the_command_of_a_page_asks_for_its_rows(name: str) -> None:
    """Parsed as a command line, it has the defenses, factors, sizes and folder of the rows."""
    found = store_of(published_file(f"{name}.csv")).read()
    asked, noisy = json.loads(found["asked"].iloc[0]), found[found["noise"].astype(bool)]
    given = given_by(command_of(found, Path("results/frontier")))
    fixed = {"protocol", "attack"}
    assert {key: given[key] for key in SAME if key not in fixed} == {
        key: asked[key] for key in SAME if key not in fixed
    }
    assert (given["seeds"], given["identify"], given["taps"].split(",")) == (
        asked["seeds"],
        asked["identify"],
        asked["taps"],
    )
    defenses = DEFENSES if given["defenses"] is None else defenses_of(given["defenses"].split(","))
    factors = FACTORS if given["noise_factors"] is None else factors_of(given["noise_factors"].split(","))
    assert (set(defenses), set(factors)) == (set(found["defense"]), set(noisy["factor"]))
    assert given["out"] == Path("results/frontier")


def test_the_command_of_a_page_has_the_folder_and_the_options_that_differ(tmp_path: Path) -> None:
    given = given_by("leakbench frontier --dataset cancer")
    assert (given["identify"], given["seeds"], given["out"]) == (IDENTIFY, SEEDS, OUT)
    assert given["taps"] == ",".join(DEFAULT.taps)
    assert all(given[key] == getattr(DEFAULT, key) for key in SAME if key in given and key != "dataset")
    usual = rows(*(row(name, None, 0.9, 0.0) for name in DEFENSES))
    assert command_of(usual, OUT) == "leakbench frontier --dataset cancer"
    every = rows(*(row(name, None, 0.9, 0.0) for name in names("defenses")))
    assert "--defenses all" in command_of(every, OUT)
    few = rows(row("none", None, 0.9, 1.0), row("sign", None, 0.5, 0.0), row("fed_cdp", 0.1, 0.5, 0.0))
    few["asked"] = json.dumps(json.loads(ASKED) | {"victims": 3, "seeds": 2})
    wanted = Requirements(8.0)
    list(write(few, tmp_path / "my pages", "cancer", wanted))
    options = "--defenses none,sign,fed_cdp --noise-factors 0.1 --victims 3 --seeds 2"
    command = f"leakbench frontier --dataset cancer {options} --out '{tmp_path}/my pages' --max-epsilon 8"
    page = (tmp_path / "my pages" / "frontier_cancer.md").read_text()
    assert page.count(f"`{command}`") == 2
    assert "results/frontier" not in page


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_a_page_is_rendered_from_its_rows(name: str) -> None:
    """Its recipe, too, is that of the named setting, and the page has eight defenses or more."""
    found = store_of(published_file(f"{name}.csv")).read()
    choice = chosen(main_rows(found))
    assert page_of(found, choice, name, out=Path("results/frontier")) == published_file(f"{name}.md").read_text()
    assert found["defense"].nunique() >= 8
    path = RESULTS / "frontier" / f"{name}_best.yaml"
    assert path.exists() == (choice.best is not None)
    if choice.best is not None:
        kept, measured = (dataclasses.replace(d, note="") for d in (load(Defense, path), measured_defense(choice.best)))
        assert numbers(describe(kept)) == numbers(describe(measured))


def test_a_request_that_cannot_be_measured_is_refused_once(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """The refusal is not repeated in the row of each defense."""
    given = ["frontier", "--dataset", "cancr", "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    code, out, err = called(monkeypatch, capsys, *given)
    assert (code, out) == (2, "")
    assert (
        err
        == "leakbench: dataset: unknown name 'cancr'; did you mean 'cancer'? (or a path that ends in .yaml, or folder:PATH)\n"
    )
    assert not (tmp_path / "out").exists()


UNDEFENDED = row("none", None, 0.9, 1.0, identify_p=0.0, verdict="reconstructs", epsilon_valid=None, epsilon_tap=None)
"""It is .3 above the commonest class at .6, so a usable setting has an accuracy of at least .75."""


@pytest.mark.parametrize(("accuracy", "usable"), [(0.76, True), (0.74, False)])
def test_a_setting_that_keeps_less_than_half_of_what_is_learned_is_not_recommended(
    accuracy: float, usable: bool
) -> None:
    main = main_rows(rows(UNDEFENDED, row("a", 1.0, accuracy, 0.0)))
    choice = chosen(main)
    answer = answer_of(main, choice)
    assert choice.usable == pytest.approx(0.75)
    if usable:
        assert "**use `a`" in answer
        assert "(undefended 0.900, commonest class 0.60)" in answer
    else:
        assert choice.best is None
        assert "no usable setting qualifies" in answer
        assert "The most accurate setting that meets the other conditions is `a`" in answer
        assert "use `a`" not in answer


def test_the_answer_reports_a_missing_undefended_training() -> None:
    main = main_rows(rows(row("a", 1.0, 0.61, 0.0), row("b", 1.0, 0.59, 0.0)))
    choice = chosen(main)
    assert choice.qualified == 1
    assert "Usefulness was not checked" in answer_of(main, choice)


TWO = (
    UNDEFENDED,
    row("a", 0.1, 0.88, 0.0, epsilon_valid=7.0, epsilon_tap=90.0),
    row("a", 1.0, 0.80, 0.0, epsilon_valid=0.7, epsilon_tap=8.0),
    row("b", 0.1, 0.89, 0.0, epsilon_valid=None, epsilon_tap=None),
    row("c", 0.1, 0.895, 0.0, epsilon_valid=2.0, epsilon_tap=None),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "observer", "best"),
    [
        (None, "released", "c, x 0.1"),
        (8.0, "released", "c, x 0.1"),
        (1.0, "released", "a, x 1"),
        (0.5, "released", None),
        (100.0, "type-1", "a, x 0.1"),
        (8.0, "type-1", "a, x 1"),
        (7.9, "type-1", None),
    ],
)
def test_the_setting_meets_the_epsilon_against_the_required_observer(
    most: float | None, observer: str, best: str | None, tmp_path: Path
) -> None:
    found, wanted = rows(*TWO), Requirements(most, observer)
    choice = chosen(main_rows(found, wanted), wanted)
    assert (None if choice.best is None else choice.best["row"]) == best
    answer = answer_of(main_rows(found, wanted), choice)
    assert ("with a valid epsilon of at most" in answer) == (most is not None)
    if best is None:
        assert "No usable setting has an epsilon this small" in answer
    if most in (None, 0.5):  # With and without a chosen setting.
        draw(main_rows(found, wanted), choice, tmp_path / "figure")
    page = page_of(found, choice, "f")
    assert f"--max-epsilon {most:g}" in page if most is not None else "--max-epsilon" not in page.rpartition("Sizes")[2]


def test_the_page_has_the_answer_for_each_largest_epsilon_and_observer() -> None:
    found = rows(*TWO)
    page = page_of(found, chosen(found), "f")
    table = page.partition("## Answers by required epsilon")[2].partition("## Every setting")[0]
    assert "| 1 | released models | `a` at noise x 1 (sigma 0.6) | 0.800 | 0.800 [0.780, 0.820] |" in table
    assert "| 1 | client update (type-1) | no usable setting | - | - | - |" in table
    assert "| any | - | `c` at noise x 0.1" in table
    assert "no: leak" in page and "| yes |" in page


def test_the_page_says_why_an_answer_among_fewer_settings_can_be_more_accurate() -> None:
    loose = {**row("a", 0.1, 0.85, 0.0, epsilon_valid=50.0), "choice_accuracy": 0.9}
    strict = {**row("a", 1.0, 0.88, 0.0, epsilon_valid=2.0), "choice_accuracy": 0.8}
    found = rows(UNDEFENDED, loose, strict)
    table = page_of(found, chosen(found), "f").partition("## Answers by required epsilon")[2].partition("## Every")[0]
    assert "| any | - | `a` at noise x 0.1 (sigma 0.6) | 0.900 | 0.850" in table
    assert "| 8 | released models | `a` at noise x 1 (sigma 0.6) | 0.800 | 0.880" in table
    assert CHOSEN_BY in table


def test_the_answer_for_another_leakage_point_uses_its_own_rows() -> None:
    here = row("a", 1.0, 0.85, 0.0, epsilon_tap=3.0)
    there = row("a", 1.0, 0.85, 0.4, point="type-2", verdict="identifies", identify_p=0.0, epsilon_tap=3.0)
    found = rows(UNDEFENDED, here, {**UNDEFENDED, "point": "type-2"}, there)
    assert chosen(main_rows(found)).best is not None
    wanted = Requirements(8.0, "type-2")
    main = main_rows(found, wanted)
    assert set(main["point"]) == {"type-2"}
    assert chosen(main, wanted).best is None


@pytest.mark.parametrize(
    ("more", "network", "distance"),
    [
        ({"null_edit_distance": 0.9}, "transformer", "edit distance"),
        ({"null_edit_distance": None}, "sigmoid network", "RMSE"),
        ({}, "sigmoid network", "RMSE"),
    ],
)
def test_the_page_names_the_network_and_the_distance_of_the_data(more: Any, network: str, distance: str) -> None:
    given = rows(row("none", None, 0.9, 0.9)).assign(**more)
    page = page_of(given, chosen(main_rows(given)), "frontier_x")
    assert f"a {network} at random weights" in page and f"One attacker, {network}s at random weights" in page
    assert f"reconstructs to the calibrated {distance};" in page
