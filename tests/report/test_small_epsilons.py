"""An epsilon or a noise multiplier that rounds to 0 is printed as `< 0.001` by every writer; JSON keeps the number."""

import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
from command_line import called

import leakbench
from leakbench.auditing.verdict import _shown
from leakbench.core.types import Fact
from leakbench.core.words import epsilon_text
from leakbench.frontier.answer import epsilon_or_reason
from leakbench.leaderboard.card import Audited, CardEpsilon
from leakbench.leaderboard.page import _epsilons
from leakbench.report.epsilons import epsilons
from leakbench.report.headline import headline
from leakbench.report.latex import latex_table
from leakbench.reproduce.accounting.page import _number
from leakbench.reproduce.columns import COLUMNS
from leakbench.storage.summary import Summary
from tests.privacy.test_privacy_epsilon import valid
from tests.report.test_report import summary_of

TINY = 4e-4


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (TINY, ".3g", "< 0.001"),
        (1e-300, ".3f", "< 0.001"),
        (0.0005, ".3f", "0.001"),
        (0.0, ".3f", "0"),
        (0.5761, ".3f", "0.576"),
        (1234.5, ",.0f", "1,234"),
        (None, ".3g", "none"),
        (math.inf, ".3g", "none"),
        (math.nan, ".3g", "none"),
    ],
)
def test_a_number_that_rounds_to_0_is_an_upper_bound(value: float | None, form: str, text: str) -> None:
    assert epsilon_text(value, form) == text


def test_every_page_prints_it_so() -> None:
    found = summary_of()
    found["epsilon"] |= {"claimed": TINY, "valid": TINY, "without_draw": TINY, "realised": TINY, "realised_count": 3}
    summary = Summary.of(found)
    claimed, (released, *_) = epsilons(summary)
    assert (claimed, released.valid, released.without_draw) == ("< 0.001", "< 0.001", "< 0.001")
    assert released.realised == "< 0.001 (3)"
    assert r"valid epsilon \textless{} 0.001" in latex_table([summary])
    assert r"\textless{} 0.001" in latex_table([summary, summary])
    assert "valid < 0.001 for one example" in headline(summary).epsilon
    row = {f"epsilon_{name}": TINY for name in ("claimed", "valid", "tap")}
    columns = [c for several in COLUMNS.values() for c in several if c.heading.startswith("epsilon ")]
    assert len(columns) >= 4 and {column.show(row) for column in columns} == {"< 0.001"}
    assert (
        epsilon_or_reason(TINY) == epsilon_or_reason(pd.Series([TINY])[0]) == _number(TINY) == _shown(TINY) == "< 0.001"
    )
    audited = Audited("leakbench audit", 0.0, None, 0.95, 1000, "holds", "no bound exceeds it")
    card = CardEpsilon("client", 1e-5, TINY, "the paper", (), TINY, "noise", {}, audited)
    assert _epsilons(card)[:2] == ("< 0.001", "< 0.001")


def test_the_command_prints_it_so_and_json_keeps_the_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("epsilon", "--defense", "fed_sdp_valid", "--dataset", "digits", "--noise-factor")
    _, out, _ = called(monkeypatch, capsys, *asked, "1000")
    assert re.search(r"valid, released models +< 0\.001  noise of 6000 times", out)
    _, out, _ = called(monkeypatch, capsys, *asked, "1000", "--json")
    assert 0 < json.loads(out)["valid"] < 5e-4


def test_a_noise_multiplier_that_rounds_to_0_is_printed_so() -> None:
    least = {"server": (Fact("clip", norm=4.0), Fact("noise", std=4e-4))}
    found = valid(least, "client")
    assert found.sigma_effective == pytest.approx(1e-4)
    assert "noise of < 0.001 times one client's bound" in found.reason


FORMATTED = re.compile(r"\{[^{}]*\b(epsilon|claimed|losses|renyi)\b[^{}]*:,?\.[0-9]+[fg]\}")


def test_no_page_formats_an_epsilon_by_itself() -> None:
    root = Path(leakbench.__file__).parent
    found = [
        f"{path.relative_to(root)}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if FORMATTED.search(line) and "c.claimed:.9g" not in line  # The digits as a paper prints them.
    ]
    assert found == []
