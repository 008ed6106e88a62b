"""The verdict on a leakage point: its word, its reason, the excluded rates, and the command that would decide."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import called
from hypothesis import given
from hypothesis import strategies as st
from made_rows import make_rows

from leakbench.cell import Request, resolve_cell
from leakbench.core.verdict_words import VERDICTS, resilient
from leakbench.measure.statistics import wilson
from leakbench.report.verdicts import verdicts
from leakbench.scoring.scores import RANKS_ONLY
from leakbench.storage.summary import Summary, Tap, Violation
from leakbench.summary.evidence import Setup, setup_of
from leakbench.summary.limits import LIMIT, guaranteed
from leakbench.summary.tap import tap_summary
from leakbench.summary.verdict import Evidence, above_baseline, above_chance, verdict, within_chance

pytestmark = pytest.mark.usefixtures("with_pages")

STRONG = Setup(attack="autoleak", strongest=True, adaptive=True, command="leakbench run")

SIZES = st.integers(100, 10_000)


def rows(victims: int = 100, networks: int = 5, **changes: Any) -> pd.DataFrame:
    """Return rows of an attack that finds nothing: no success, farther than the baseline guess, no victim identified."""
    return make_rows(victims, networks=networks, **changes)


def first(count: int, value: Any = True, other: Any = False, of: int = 100) -> list[Any]:
    return [value] * count + [other] * (of - count)


@pytest.mark.parametrize(
    ("changes", "word", "reason"),
    [
        ({}, "no leak found", "100 victims over 5 networks"),
        ({"success": first(60)}, "reconstructs", "the ASR 0.60 is significantly above the baseline guess's 0.00"),
        # The baseline guess's interval reaches .037: an ASR of .03 is above its estimate, not above its interval.
        ({"success": first(3)}, "no leak found", ""),
        ({"rmse": 0.3}, "reconstructs", "100 % of the reconstructions are closer than the baseline guess"),
        ({"identified": first(2, 1.0, 0.0)}, "identifies", "2 of 100 victims are identified among 1000 candidates"),
        ({"failure": first(50), "rmse": first(50, np.nan, 0.5)}, "attack failed", "no answer for 50 % of the examples"),
        ({"failure": True, "rmse": np.nan, "identified": 1.0}, "identifies", "100 of 100 victims"),
        ({"failure": first(49), "rmse": first(49, np.nan, 0.5)}, "no leak found", "nothing is significantly above"),
        # Closer than the baseline guess for 55 of 100, or in the median: neither is significant, and neither excludes a leak.
        ({"rmse": first(55, 0.39, 0.5)}, "inconclusive", "the median RMSE is below the baseline guess's, but not significantly"),
        # One of 100 among 20 candidates is chance; 9 have p = .063 and 10 p = .028; 12 have p = .0043.
        ({"identified": first(9, 1.0, 0.0), "candidates": 20}, "no leak found", ""),
        ({"identified": first(10, 1.0, 0.0), "candidates": 20}, "inconclusive", "significant at 0.05 but not at 0.01"),
        ({"identified": first(12, 1.0, 0.0), "candidates": 20}, "identifies", ""),
        ({"doubts": first(1, "stuck", "")}, "inconclusive", "warning of the search for 1 victim: a search never came closer"),
        ({"identified": np.nan}, "inconclusive", "no candidates were ranked"),
        ({"failure_reason": RANKS_ONLY, "failure": True}, "inconclusive", "only ranks candidates and reconstructs nothing"),
        ({"failure_reason": RANKS_ONLY, "failure": True, "identified": 1.0}, "identifies", "100 of 100 victims"),
        ({"recognised": first(20, 1.0, 0.0), "null_recognised": 0.0}, "reconstructs", "20 % of the reconstructions are recog"),
        ({"recognised": first(20, 1.0, 0.0), "null_recognised": first(18, 1.0, 0.0)}, "no leak found", ""),
        # A photograph of the same person is recognised as often.
        (
            {"recognised": first(20, 1.0, 0.0), "null_recognised": 0.0, "same_class_recognised": first(18, 1.0, 0.0)},
            "no leak found", "",
        ),
        (
            {"recognised": first(20, 1.0, 0.0), "null_recognised": 0.0, "same_class_recognised": first(1, 1.0, 0.0)},
            "reconstructs", "20 % of the reconstructions are recog",
        ),
        ({"doubts": first(1, "budget", "")}, "inconclusive", "warning of the search for 1 victim: a search was stopped by"),
    ],
)  # fmt: skip
def test_each_verdict_from_rows(changes: dict[str, Any], word: str, reason: str) -> None:
    found = tap_summary(rows(**changes), 0.0, STRONG)
    assert found.verdict == word
    assert reason in found.verdict_reason


@pytest.mark.parametrize(
    ("victims", "networks", "setup", "reason", "decidable"),
    [
        (99, 5, STRONG, "99 victims, at least 100 are needed", True),
        (100, 4, STRONG, "4 networks, at least 5 are needed", True),
        (100, 5, dataclasses.replace(STRONG, live=True), "1 training, at least 5 are needed", False),
        (100, 5, dataclasses.replace(STRONG, adaptive=False), "the attacker does not know the defense", True),
        (100, 5, dataclasses.replace(STRONG, strongest=False), "not the catalog's autoleak", True),
        (
            *(100, 5, dataclasses.replace(STRONG, attack="autoleak", strongest=False, shortened="--evaluations 200")),
            *("autoleak was limited by --evaluations 200", True),
        ),
        (100, 5, dataclasses.replace(STRONG, gaps=("the ranking is blind",)), "the ranking is blind", False),
    ],
)
def test_less_evidence_is_inconclusive_with_its_reason(
    victims: int, networks: int, setup: Setup, reason: str, decidable: bool
) -> None:
    found = tap_summary(rows(victims, networks), 0.0, setup)
    assert (found.verdict, found.networks) == ("inconclusive", networks)
    assert reason in found.verdict_reason
    assert found.verdict_command == ("leakbench run" if decidable else None)


def test_a_run_without_the_budget_that_stopped_a_search_would_decide() -> None:
    """A longer run does not remove another doubt of the search, but it removes that of the budget."""
    cut, stuck = (tap_summary(rows(doubts=why), 0.0, STRONG) for why in ("budget", "stuck; budget"))
    assert (cut.verdict_command, stuck.verdict_command) == ("leakbench run", None)


def test_an_attack_that_only_ranks_has_no_reconstruction_limit() -> None:
    ranked = rows(failure_reason=RANKS_ONLY, failure=True, recognised=np.nan, null_recognised=0.0, gallery=1000)
    found = tap_summary(ranked, 0.0, STRONG)
    assert (found.excluded_asr, found.excluded_recognised, found.recognised) == (None, None, None)
    assert (found.null_recognised, found.gallery) == (0.0, 1000)
    assert found.excluded_identified == pytest.approx(1 - 0.05 ** (1 / 100))


def test_all_reasons_are_given_the_most_important_first() -> None:
    found = tap_summary(rows(10, 1), 0.0, Setup(attack="cpl"))
    assert found.verdict_reason.split("; ") == [
        "the attacker does not know the defense",
        "the attack is cpl, not the catalog's autoleak with its own budget",
        "10 victims, at least 100 are needed",
        "1 network, at least 5 are needed",
    ]


def test_the_excluded_rates_are_one_sided_limits_of_clopper_and_pearson() -> None:
    """0 of n: 1 - .05 ** (1 / n). 1 of 20: the root of the binomial distribution, .2161 (Clopper and Pearson's tables)."""
    found = tap_summary(rows(), 0.0, STRONG)
    assert found.excluded_asr == pytest.approx(1 - 0.05 ** (1 / 100))
    assert found.excluded_identified == pytest.approx(1 - 0.05 ** (1 / 100))
    assert found.excluded_recognised is None
    [said] = verdicts(Summary(taps={"type-1": found}))
    assert said.sentences == (
        "Evidence from 100 victims alone does not exclude rates of up to 3 % reconstructed and 3 % identified "
        "(one-sided limits, 95 % confidence, for networks like these 5; up to 45 % over all networks).",
    )
    [said] = verdicts(Summary(taps={"type-1": found.replaced(networks=1, victims=1, excluded_recognised=0.031)}))
    assert said.sentences == (
        "Evidence from 1 victim alone does not exclude rates of up to 3 % reconstructed, 3 % identified and 4 % recognisable "
        "(one-sided limits, 95 % confidence).",
    )
    assert tap_summary(rows(success=True), 0.0, STRONG).excluded_asr is None  # A leak excludes nothing.


def test_an_evidence_limit_above_a_guarantee_is_not_a_contradiction() -> None:
    found = tap_summary(rows(10), 0.0, STRONG).replaced(guaranteed=0.005)
    [said] = verdicts(Summary(taps={"type-1": found}))
    assert said.sentences[0].startswith(
        "Evidence from 10 victims alone does not exclude rates of up to 26 % reconstructed"
    )
    assert "no attacker identifies more than 0.005 of the victims" in said.sentences[1]


def test_members_of_a_batch_are_one_trial_of_the_excluded_rate() -> None:
    found = tap_summary(rows(400).assign(batch=np.arange(400) // 4, victim=np.arange(400) // 4), 0.0, STRONG)
    assert found.excluded_asr == pytest.approx(1 - 0.05 ** (1 / 100))


def test_successes_on_one_network_exclude_less_than_as_many_on_several() -> None:
    """Victim v is at network v modulo 5: three successes on the first network, or one on each of three."""
    on_one, spread = (
        tap_summary(rows(success=np.isin(np.arange(100), which)), 0.0, STRONG) for which in ([0, 5, 10], range(3))
    )
    assert on_one.asr == spread.asr
    assert on_one.excluded_asr > 1.2 * spread.excluded_asr


def test_closer_reconstructions_on_one_network_are_not_a_leak() -> None:
    """70 of 100 victims, all on one network or on five: only over several networks it is significantly more than half."""
    closer = {"rmse": first(70, 0.3, 0.5)}
    one = np.array(first(70, 0, 1)) * (1 + np.arange(100) % 4)
    assert tap_summary(rows(**closer), 0.0, STRONG).verdict == "reconstructs"
    assert tap_summary(rows(**closer, network=one), 0.0, STRONG).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("right", "guessed", "trials", "above"),
    [
        # Of 20 trials, 18 have a Wilson interval from .699, 14 one up to .855 and 12 one up to .781.
        (18, 14, 20, False),
        (18, 12, 20, True),
        # Of 20 trials, 6 have an interval from .145 and 2 one up to .301.
        (6, 2, 20, False),
        (7, 2, 20, True),
        (0, 0, 20, False),
        (20, 20, 20, False),
    ],
)
def test_a_share_is_above_the_baseline_if_each_interval_excludes_the_other_estimate(
    right: int, guessed: int, trials: int, above: bool
) -> None:
    """The second condition is the stricter one below one half, and the first one above."""
    share, guess = ((count / trials, *wilson(count, trials)) for count in (right, guessed))
    assert above_baseline(share, guess) == above


@pytest.mark.parametrize(("shares", "word"), [([0.5, 0.4], "no leak found"), ([1 / 17] * 17, "identifies")])
def test_ties_count_as_identified_where_they_make_a_whole_victim(shares: list[float], word: str) -> None:
    """One of 100 victims among 20,000 candidates has p = .005. Seventeen parts of 1 / 17 have a sum below 1 in double precision."""
    identified = [*shares, *[0.0] * (100 - len(shares))]
    assert tap_summary(rows(identified=identified, candidates=20_000), 0.0, STRONG).verdict == word


def evidence(**changes: Any) -> Evidence:
    plain: dict[str, Any] = {"victims": 100, "networks": 5, "attack": "autoleak", "strongest": True, "adaptive": True}
    return Evidence(**{**plain, "ranked": 100, **changes})


@given(SIZES, st.integers(5, 50), SIZES, st.integers(0, 20))
def test_more_victims_never_turn_no_leak_found_into_inconclusive(
    victims: int, networks: int, more: int, more_networks: int
) -> None:
    one = evidence(victims=victims, ranked=victims, networks=networks)
    other = evidence(victims=victims + more, ranked=victims + more, networks=networks + more_networks)
    assert verdict(one).word == verdict(other).word == "no leak found"


ANY = st.builds(
    Evidence,
    victims=st.integers(1, 5000),
    networks=st.integers(1, 20),
    attack=st.just("x"),
    strongest=st.booleans(),
    adaptive=st.booleans(),
    ranks_only=st.booleans(),
    live=st.booleans(),
    unanswered=st.floats(0, 1),
    above=st.sampled_from([(), ("a",)]),
    higher=st.sampled_from([(), ("h",)]),
    identified=st.integers(0, 10),
    ranked=st.integers(10, 5000),
    candidates=st.integers(2, 1000),
    gaps=st.sampled_from([(), ("g",)]),
    cuts=st.sampled_from([{}, {"c": 1}]),
    doubts=st.sampled_from([{}, {"d": 1}]),
)


@given(ANY)
def test_no_leak_found_needs_every_requirement(found: Evidence) -> None:
    word = verdict(found).word
    assert word in VERDICTS
    enough = (
        found.victims >= 100 and found.networks >= 5 and found.strongest and found.adaptive and not found.ranks_only
    )
    nothing = not (found.above or found.higher or found.gaps or found.cuts or found.doubts) and found.unanswered < 0.5
    chance = within_chance(found.identified, found.ranked, 1 / found.candidates)
    enough = enough and found.ranked >= found.victims
    assert (word == "no leak found") == (enough and nothing and chance)


@given(ANY)
def test_an_oblivious_attacker_never_yields_no_leak_found(found: Evidence) -> None:
    assert verdict(dataclasses.replace(found, adaptive=False)).word != "no leak found"


@given(ANY)
def test_a_leak_is_reported_with_incomplete_evidence(found: Evidence) -> None:
    leaks = (found.above and found.victims >= 4) or above_chance(found.identified, found.ranked, 1 / found.candidates)
    assert (verdict(found).word in ("reconstructs", "identifies")) == bool(leaks)


@given(ANY)
def test_only_an_inconclusive_verdict_has_a_reason_and_a_command(found: Evidence) -> None:
    result = verdict(found)
    assert result.reason
    assert not result.decidable or result.word in ("inconclusive", "attack failed")


def test_a_guarantee_is_a_bound_of_at_most_the_stated_limit() -> None:
    tap = Tap(identified_bound=LIMIT, candidates=1000)
    assert guaranteed(tap, []) == LIMIT
    assert guaranteed(tap.replaced(identified_bound=LIMIT + 1e-6), []) is None
    assert guaranteed(tap.replaced(identified_bound=None), []) is None
    assert guaranteed(tap.replaced(candidates=1001), []) is None  # With fewer it would be larger.
    assert guaranteed(tap, [Violation(tap="type-1", measure="identified", value=0.5, low=0.4, bound=0.1)]) is None


def test_the_deciding_command_repeats_the_settings_of_the_run() -> None:
    asked = Request(defense="noise_gaussian", dataset="digits", attack="cpl", train_rounds=0, iterations=3, victims=10)
    asked = dataclasses.replace(asked, success=0.2, pictures=False, noise_factor=2.0, knows="oblivious", device="auto")
    command = setup_of(resolve_cell(asked, None), 1).command
    assert shlex.split(command) == shlex.split(
        "leakbench run --defense noise_gaussian --dataset digits --train-rounds 0 --no-pictures --success 'rmse<=0.2' "
        "--noise-factor 2.0 --victims 100 --networks 5 --knows defense --attack autoleak"
    )


def test_the_deciding_command_has_the_folder_of_the_data_sets_that_was_given(tmp_path: Path) -> None:
    asked, place = Request(dataset="digits", train_rounds=0, victims=10), tmp_path / "my data"
    place.mkdir()
    given, usual = resolve_cell(asked, place), resolve_cell(asked, None)
    words = shlex.split(setup_of(given, 1).command)
    assert words[words.index("--data-dir") + 1] == str(place)
    assert "--data-dir" not in setup_of(usual, 1).command and given.hash == usual.hash


@pytest.mark.parametrize(
    ("victims", "networks", "more"),
    [(10, 5, 100), (100, 5, 100), (250, 3, 250)],
)
def test_the_deciding_command_has_no_budget_and_as_many_victims_as_are_needed(
    victims: int, networks: int, more: int
) -> None:
    asked = Request(dataset="digits", train_rounds=0, victims=victims, networks=networks, budget=60.0)
    words = shlex.split(setup_of(resolve_cell(asked, None), 1).command)
    assert "--budget" not in words
    assert words[words.index("--victims") + 1] == str(more)
    assert words[words.index("--networks") + 1] == "5"


def test_a_data_set_with_too_few_victims_is_named() -> None:
    small, large = (
        setup_of(resolve_cell(Request(dataset=name, train_rounds=0), None), 1) for name in ("faces", "digits")
    )
    assert small.gaps == ("faces holds 75 victims, fewer than 100: use a larger data set, such as digits or mnist",)
    assert (small.command, large.gaps) == ("", ())
    found = tap_summary(rows(75), 0.0, dataclasses.replace(STRONG, gaps=small.gaps))
    assert small.gaps[0] in found.verdict_reason
    assert found.verdict_command is None


@pytest.mark.parametrize(
    ("changes", "shortened"),
    [
        ({"evaluations": 200}, "--evaluations 200"),
        ({"iterations": 5}, "--iterations 5"),
        ({"iterations": 5, "evaluations": 200}, "--iterations 5 --evaluations 200"),
        ({}, ""),
        ({"attack": "cpl", "iterations": 5}, ""),
    ],
)
def test_the_limit_that_shortened_autoleak_is_named(changes: dict[str, Any], shortened: str) -> None:
    asked = Request(**{"dataset": "digits", "train_rounds": 0, **changes})
    assert setup_of(resolve_cell(asked, None), 1).shortened == shortened


@pytest.mark.parametrize(
    ("changes", "strongest", "adaptive"),
    [
        ({"attack": "autoleak"}, True, True),
        ({"attack": "autoleak", "iterations": 5}, False, True),
        ({"attack": "autoleak", "knows": "oblivious"}, True, False),
        ({"attack": "cpl"}, False, False),
        ({"attack": "cpl", "defense": "none"}, False, True),
    ],
)
def test_the_attacker_is_read_from_the_cell(changes: dict[str, Any], strongest: bool, adaptive: bool) -> None:
    """A shortened autoleak is not autoleak, and without a defense there is nothing to know."""
    asked = Request(**{"defense": "noise_gaussian", "dataset": "digits", "train_rounds": 0, **changes})
    setup = setup_of(resolve_cell(asked, None), 1)
    assert (setup.strongest, setup.adaptive) == (strongest, adaptive)


def test_resilient_is_neither_yes_nor_no_if_inconclusive() -> None:
    assert [resilient(word) for word in ("no leak found", "reconstructs", "identifies")] == [1.0, 0.0, 0.0]
    assert np.isnan([resilient("inconclusive"), resilient("attack failed")]).all()


@pytest.mark.slow
def test_a_run_prints_its_verdict_with_reason_and_command(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    """An oblivious attacker that fails on a defense shows nothing about it."""
    monkeypatch.setenv("COLUMNS", "200")
    line = "run -v --quiet --defense fed_alpha_cdp --attack cpl --dataset digits --train-rounds 0 --taps type-2 --iterations 3"
    out = ("--out", str(tmp_path / "run"))
    code, printed, err = called(monkeypatch, capsys, *line.split(), *out)
    assert code == 0, err
    reason = "the attacker does not know the defense; the attack is cpl, not the catalog's autoleak with its own budget; 10 victims"
    first = "INCONCLUSIVE: the attacker does not know the defense; could still reconstruct up to 26 % of the images and identify"
    assert printed.startswith(f"{first} up to 26 % of the victims from one example's gradient\n")
    assert f"example gradient (type-2): inconclusive: {reason}" in printed
    assert (
        "Evidence from 10 victims alone does not exclude rates of up to 26 % reconstructed and 26 % identified"
        in printed
    )
    assert (
        "To decide: leakbench run --defense fed_alpha_cdp --dataset digits --taps type-2 --train-rounds 0 --victims 100"
        in printed
    )
    _, again, _ = called(monkeypatch, capsys, *line.split(), *out, "--json")
    tap = json.loads(again)["taps"]["type-2"]
    assert (tap["verdict"], tap["guaranteed"]) == ("inconclusive", None)
    assert tap["verdict_reason"].startswith(reason)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert '<span class="pill inconclusive">inconclusive</span>' in page and "To decide: <code>leakbench run" in page


HOME = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((HOME / "results").glob("*/*.csv")), ids=lambda path: path.name)
def test_every_published_row_has_a_verdict_of_the_scale(path: Path) -> None:
    published = pd.read_csv(path)
    words = set(published["verdict"].dropna()) if "verdict" in published else set()
    assert words <= set(VERDICTS)


def test_no_page_and_no_card_says_protected() -> None:
    """docs/papers.md is about the papers' statements; its verdicts are on claims."""
    pages = [HOME / "README.md", *(HOME / "results").rglob("*.md"), *(HOME / "docs").glob("*.md")]
    files = [*pages, *(HOME / "leaderboard").rglob("*.json"), *(HOME / "studies").glob("*/*.yaml")]
    said = [path.name for path in files if re.search(r"\bprotected\b", path.read_text(encoding="utf-8"), re.IGNORECASE)]
    assert set(said) <= {"papers.md"}


@pytest.mark.parametrize(
    ("victims", "identified", "word"),
    [
        (1, np.nan, "inconclusive"),
        (3, 0.0, "inconclusive"),
        (1, 1.0, "reconstructs"),
        (4, np.nan, "reconstructs"),
        (10, 0.0, "reconstructs"),
    ],
)
def test_fewer_than_four_reconstructed_examples_count_with_a_significant_identification(
    victims: int, identified: float, word: str
) -> None:
    found = tap_summary(rows(victims, success=True, identified=identified), 0.0, STRONG)
    assert found.verdict == word
    if word == "inconclusive":  # What keeps the leak from being stated comes first, and is said once.
        reason, _, rest = found.verdict_reason.partition("; ")
        assert reason.startswith("the ASR 1.00 is significantly above") and reason.endswith(
            "but on fewer than 4 victims, without a significant identification, an exact sentence, or an RMSE of at most 1 % of"
            " the baseline guess's"
        )
        assert "not significantly" not in rest


@pytest.mark.parametrize(("rmse", "word"), [(0.0039, "reconstructs"), (0.0041, "inconclusive")])
def test_one_exact_reconstruction_is_enough(rmse: float, word: str) -> None:
    """The baseline guess's RMSE is .4."""
    assert tap_summary(rows(1, success=True, identified=np.nan, rmse=rmse), 0.0, STRONG).verdict == word


@pytest.mark.parametrize(("victims", "word"), [(1, "inconclusive"), (3, "inconclusive"), (4, "reconstructs")])
def test_the_examples_of_a_batch_count_as_one_victim(victims: int, word: str) -> None:
    """They come back together or not at all: counted each, one batch of equal rates of one half would pass in 24 % of runs."""
    of_batch = rows(victims, success=True, identified=np.nan)
    batch = pd.concat([of_batch.assign(member=member) for member in range(8)], ignore_index=True)
    assert tap_summary(batch, 0.0, STRONG).verdict == word


@pytest.mark.parametrize(
    ("asked", "batch", "said"),
    [
        ({"protocol": "live", "local_iterations": 2}, 3, "reads the first of several local iterations"),
        ({"protocol": "live", "local_iterations": 1}, 3, ""),
        ({"protocol": "live", "local_iterations": 2}, 1, ""),
        ({"local_iterations": 2}, 3, ""),
        ({"protocol": "live", "client_optimizer": "adam"}, 3, "Adam sends a quotient"),
    ],
)
def test_what_a_ranking_of_updates_misses_is_a_gap(asked: dict[str, Any], batch: int, said: str) -> None:
    """The paper's protocol attacks one step. For an update of a single example, no gap is reported."""
    request = Request(dataset="faces", train_rounds=1, **asked)
    gaps = " ".join(setup_of(resolve_cell(request, None), batch).gaps)
    assert said in gaps if said else "local iterations" not in gaps and "Adam" not in gaps
