"""The result of a run in its first lines: each verdict from rows built by hand, then accuracy and epsilon."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from made_rows import make_rows

from leakbench.auditing.verdict import Audit
from leakbench.core.verdict_words import VERDICTS
from leakbench.data.dataset import Dataset
from leakbench.data.recipe import Federation
from leakbench.report.headline import STYLES, Headline, headline
from leakbench.report.words import warnings
from leakbench.scoring.scores import RANKS_ONLY
from leakbench.storage.summary import Summary
from leakbench.summary.evidence import Setup
from leakbench.summary.tap import tap_summary
from leakbench.summary.utility import utility

STRONG = Setup(attack="autoleak", strongest=True, adaptive=True, command="leakbench run --victims 100")
TARGETS = torch.arange(100) % 20


def answering(targets: torch.Tensor) -> Dataset:
    """Return a data set with these test labels."""
    x, names = torch.zeros(len(targets), 1), tuple(map(str, range(20)))
    return Dataset("made", "tabular", x, targets, x, targets, names, torch.arange(1), "")


PLANNED = Federation(rounds=5, batch=2, examples_per_client=4)


def rows(victims: int = 100, batch: int = 1, networks: int = 5, **changes: Any) -> pd.DataFrame:
    """Return rows of an attack on images that finds nothing, one for each example."""
    return make_rows(victims, batch, networks, **{"identified": 0.0, "label_ranked": 0.0, **changes})


def first(count: int, value: Any = True, other: Any = False, of: int = 100) -> list[Any]:
    return [value] * count + [other] * (of - count)


def summary(**taps: pd.DataFrame) -> dict[str, Any]:
    """Return the summary of these leakage points, whose names have no hyphen here."""
    points = {f"type-{name[-1]}": tap_summary(group, 1.0, STRONG).as_dict() for name, group in taps.items()}
    return {"taps": points, "notes": {}}


def headline_of(fields: dict[str, Any], *audit: Any, **options: Any) -> Headline:
    return headline(Summary.of(fields), *audit, **options)


ALL = {"success": True, "rmse": 0.01}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"victims": 10, **ALL}, "RECONSTRUCTS: 10 of 10 images from one client's update (baseline guess: 0 of 10)"),
        (
            {"victims": 10, "batch": 2, "success": first(19, of=20), "rmse": 0.01},
            "RECONSTRUCTS: 19 of 20 images from one client's updates of 2 images each (baseline guess: 0 of 20)",
        ),
        (
            {"recognised": first(20, 1.0, 0.0), "null_recognised": 0.0},
            "RECONSTRUCTS: 20 of 100 images recognisably from one client's update (baseline guess: 0 of 100)",
        ),
        (
            {"rmse": 0.3},
            "RECONSTRUCTS: 100 % of the reconstructions are closer than the baseline guess from one client's update",
        ),
        (
            {"identified": first(9, 1.0, 0.0)},
            "IDENTIFIES: 9 of 100 victims among 1,000 candidates from one client's update (chance: 1 in 1,000)",
        ),
        # With equally likely candidates a victim counts in part.
        (
            {"identified": first(9, 0.75, 0.0)},
            "IDENTIFIES: 7 % of 100 victims among 1,000 candidates from one client's update (chance: 1 in 1,000)",
        ),
        (
            {},
            "NO LEAK FOUND: at most 3 % of the images reconstructed and 3 % of the victims identified from one client's"
            " update (more is excluded at 95 % for networks like these 5; up to 45 % over all networks)",
        ),
        (
            {"victims": 10},
            "INCONCLUSIVE: 10 victims, at least 100 are needed; could still reconstruct up to 26 % of the images and identify"
            " up to 26 % of the victims from one client's update",
        ),
        (
            {"failure": first(60), "rmse": first(60, np.nan, 0.5)},
            "ATTACK FAILED: the attack has no answer for 60 % of the examples from one client's update (this is not evidence"
            " against a leak)",
        ),
        (
            {"failure_reason": RANKS_ONLY, "failure": True, "victims": 100},
            "INCONCLUSIVE: the attack autoleak only ranks candidates and reconstructs nothing; could still identify up to 3 % of"
            " the victims from one client's update",
        ),
    ],
)  # fmt: skip
def test_each_verdict_is_one_line(changes: dict[str, Any], line: str) -> None:
    found = headline_of(summary(at_1=rows(**changes)))
    assert found.findings[0].line == line
    assert found.verdict.upper() == line.partition(":")[0]


def test_every_verdict_has_a_style() -> None:
    assert set(STYLES) == set(VERDICTS) and len(set(STYLES.values())) == len(VERDICTS)


def test_the_worst_leakage_point_comes_first_and_the_others_have_a_short_line_each() -> None:
    found = headline_of(summary(at_2=rows(), at_1=rows(identified=1.0), at_0=rows(**ALL)))
    assert found.lines() == [
        "RECONSTRUCTS: 100 of 100 images from one client's update at the server (baseline guess: 0 of 100)",
        "client update (type-1): identifies 100 of 100 victims among 1,000 candidates",
        "example gradient (type-2): no leak found: at most 3 % of the images reconstructed and 3 % of the victims identified",
    ]


def test_a_reason_shared_with_the_first_finding_is_printed_once() -> None:
    found = headline_of(summary(at_2=rows(victims=10), at_1=rows(victims=10), at_0=rows(victims=10)))
    assert found.lines()[1] == "server-side update (type-0) and example gradient (type-2): inconclusive: as above"


def test_a_warning_of_several_leakage_points_is_printed_once() -> None:
    said = ["type-1: too few", "type-1@20: too few", "type-0: another", "training: loss rose", "nothing was learned"]
    assert warnings(Summary(warnings=said)) == [
        "client update (type-1) and client update (type-1) after 20 rounds: too few",
        "server-side update (type-0): another",
        "training: loss rose",
        "nothing was learned",
    ]


def test_a_client_update_is_the_headline_of_points_that_leak_equally() -> None:
    found = headline_of(summary(at_2=rows(**ALL), at_1=rows(**ALL), at_0=rows(**ALL)))
    assert [finding.points for finding in found.findings] == [("type-1",), ("type-0", "type-2")]
    assert found.findings[1].short == (
        "server-side update (type-0) and example gradient (type-2), each: reconstructs 100 of 100 images"
    )


def test_more_reconstructed_is_worse() -> None:
    found = headline_of(summary(at_1=rows(success=first(60), rmse=0.3), at_2=rows(**ALL)))
    assert found.findings[0].points == ("type-2",)


def test_an_inconclusive_finding_has_the_deciding_command() -> None:
    (finding,) = headline_of(summary(at_1=rows(victims=10))).findings
    assert finding.command == STRONG.command
    (finding,) = headline_of(summary(at_1=rows())).findings
    assert finding.command == ""


def test_a_guarantee_is_a_sentence_of_its_own() -> None:
    of = summary(at_1=rows())
    assert headline_of(of).findings[0].guaranteed == ""
    of["taps"]["type-1"]["guaranteed"] = 0.0123
    assert headline_of(of).findings[0].guaranteed == (
        "Guaranteed by the valid epsilon of the leak: no attacker identifies more than 0.0123 of the victims among 1,000"
        " candidates."
    )


@pytest.mark.parametrize("victims", [10, 200])
def test_a_measured_limit_above_the_guarantee_is_not_in_the_headline(victims: int) -> None:
    of = summary(at_1=rows(victims=victims))
    result = headline_of(of).findings[0].result
    for guarantee, said in ((None, True), (0.9, True), (1e-4, False)):
        of["taps"]["type-1"]["guaranteed"] = guarantee
        now = headline_of(of).findings[0].result
        assert ("identif" in now) == said
        assert said is (now == result)


@pytest.mark.parametrize(
    ("name", "changes", "place"),
    [
        ("type-2", {}, "from one example's gradient"),
        ("type-1@1", {}, "from one client's update after 1 round"),
        ("type-0", {"clients": 8, "batch": 16}, "from sums of 8 clients' updates of 16 images each"),
        ("type-0", {"clients": 8}, "from the sum of 8 clients' updates"),
        ("global@40", {}, "from the global update after 40 rounds"),
    ],
)
def test_the_leakage_point_names_what_the_attacker_read(name: str, changes: dict[str, Any], place: str) -> None:
    of = summary(at_1=rows(**ALL))
    of["taps"] = {name: of["taps"]["type-1"] | changes}
    assert headline_of(of).findings[0].place == place


def test_records_are_reconstructed_by_their_features() -> None:
    of = summary(at_1=rows(rmse=0.3))
    of["taps"]["type-1"] |= {
        "psnr": None, "feature_accuracy": 0.81, "feature_accuracy_low": 0.7, "feature_accuracy_high": 0.9,
        "null_feature_accuracy": 0.53, "random_feature_accuracy": 0.4,
    }  # fmt: skip
    assert headline_of(of).findings[0].text == (
        "81 % of the features of 100 records from one client's update (baseline guess: 53 %)"
    )


@pytest.mark.parametrize(
    ("accuracies", "rest"),
    [
        ([0.1, 0.2, 0.3, 0.5, 0.83], "0.83 (chance 0.05)"),
        ([0.83], "0.83 (chance 0.05), undertrained: 1 of the data set's 5 rounds"),
        # 8 of 100 right at chance .05 have p = .13.
        ([0.08] * 5, "0.08 (chance 0.05), undertrained: not significantly above chance"),
        ([], "not measured, nothing was trained"),
    ],
)
def test_accuracy_with_chance_and_whether_the_network_is_undertrained(accuracies: list[float], rest: str) -> None:
    rounds = pd.DataFrame({"accuracy": accuracies})
    of = summary(at_1=rows()) | {"accuracy": accuracies[-1] if accuracies else None, "rounds": len(accuracies)}
    assert headline_of(of | utility(rounds, answering(TARGETS), PLANNED)).accuracy == f"Accuracy: {rest}"


def test_a_set_of_one_class_has_nothing_above_chance() -> None:
    found = utility(pd.DataFrame({"accuracy": [1.0] * 5}), answering(torch.zeros(10, dtype=torch.int64)), PLANNED)
    assert found == {"chance": 1.0, "undertrained": "not significantly above chance"}


VALID = {"valid": 8.02, "reason": "Gaussian", "unit": "example", "delta": 1e-5, "observer": "global", "claimed": 0.6}
NONE = {"valid": None, "reason": "none: no noise"}
AUDIT = Audit(True, 1.0, 1.0, True, 0.3, 0.5, 0.6, 8.02, 0.95, 1000, "holds", "")


@pytest.mark.parametrize(
    ("epsilon", "audit", "line"),
    [
        (VALID, None, "claimed 0.6; valid 8.02 for one example in the released models at delta 1e-05"),
        (
            {**VALID, "by_tap": {"type-1": {"valid": None, "reason": "none: trusts the server"}}}, AUDIT,
            "claimed 0.6; valid 8.02 for one example in the released models at delta 1e-05; none at the client update (type-1);"
            " audited at least 0.5 (holds)",
        ),
        ({**VALID, **NONE}, None, "claimed 0.6; valid none (no noise)"),
        ({**VALID, **NONE, "caveats": ["x"]}, None, "claimed 0.6 for another training than this one; valid none (no noise)"),
        ({**VALID, **NONE, "claimed": None}, None, "none (no noise)"),
    ],
)  # fmt: skip
def test_epsilon_is_one_line(epsilon: dict[str, Any], audit: Audit | None, line: str) -> None:
    assert headline_of(summary(at_1=rows()) | {"epsilon": epsilon}, audit).epsilon == f"Epsilon: {line}"


@pytest.mark.parametrize(
    ("bound", "valid", "compared"),
    [
        (0.7, 0.5, "more than the valid 0.5 of one example: it is violated"),
        (0.4, 0.5, "not more than the valid 0.5 of one example"),
        (0.4, None, "no valid epsilon of one example to compare it with"),
    ],
)
def test_canaries_are_compared_with_the_epsilon_of_one_example_not_of_a_person(
    bound: float, valid: float | None, compared: str
) -> None:
    canaries = {
        **{"lower_bound": bound, "lower_bound_family": None, "delta": 1e-5, "confidence": 0.95, "unit": "example"},
        **{"canaries": 100, "included": 50, "guesses": 10, "correct": 10, "choices": 4, "limits": "", "valid": valid},
    }
    person = {**VALID, "unit": "person with at most 5 examples at no more than one client"}
    of = summary(at_1=rows()) | {"epsilon": person, "audited": canaries}
    line = headline_of(of, AUDIT).epsilon
    assert line.endswith(f"; audited at least {bound} for one example in this training ({compared})")
    assert "; audited at least 0.5 for one example (holds);" in line
    alone = headline_of(of | {"epsilon": VALID}).epsilon
    assert alone.endswith(f"; audited at least {bound} in this training (not more than the valid one)")


def test_without_a_defense_there_is_no_epsilon() -> None:
    of = summary(at_1=rows()) | {"epsilon": {**VALID, **NONE, "claimed": None}}
    of["notes"]["epsilon.claimed"] = "none: no defense"
    assert headline_of(of).epsilon == "Epsilon: none (no defense)"


def test_a_failed_attack_on_an_external_update_is_compared_with_the_baseline() -> None:
    closer = rows(victims=1, rmse=0.144, null_rmse=0.275)
    found = headline_of(summary(at_1=closer), external=True).findings[0]
    assert found.beside.endswith("closer than the baseline guess: median RMSE 0.1440 against 0.2750")
    farther = headline_of(summary(at_1=rows(victims=1, rmse=0.3, null_rmse=0.275)), external=True).findings[0]
    assert "closer" not in farther.beside


def test_limits_are_rounded_up() -> None:
    """0 of 90 exclude more than 3.27 %; 3 % would exclude too much."""
    assert "reconstruct up to 4 % of the images" in headline_of(summary(at_1=rows(victims=90))).findings[0].line


def test_points_without_a_leak_begin_with_the_one_that_excludes_least() -> None:
    found = headline_of(summary(at_1=rows(victims=90), at_2=rows(victims=10)))
    assert [finding.points for finding in found.findings] == [("type-2",), ("type-1",)]
