"""The page ranks defenses by the adaptive attacker's success; it shows accuracy, guarantees and missing measurements."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from leaderboard_cards import everywhere, with_points

from leakbench.core import recipe
from leakbench.core.behaviour import SHARED
from leakbench.leaderboard.asked import EVALUATIONS, usual
from leakbench.leaderboard.blocks import Code, Link, Tabular, Text, as_html, as_markdown
from leakbench.leaderboard.card import Card
from leakbench.leaderboard.check import outside, stale
from leakbench.leaderboard.make import warnings_of
from leakbench.leaderboard.page import html_of, markdown_of
from leakbench.leaderboard.rank import above_chance, comparable, standings
from leakbench.leaderboard.read import read_cards
from leakbench.storage.summary import Summary
from leakbench.summary.threat import printed_threat

ROOT = Path(__file__).parents[2]

BOTH = "both trained (accuracy significantly above the majority class) and without a leak (`no leak found` everywhere)"


@pytest.fixture
def card(measured_card: tuple[Path, Card]) -> Card:
    return measured_card[1]


def ranks(*cards: Card) -> list[tuple[int | None, str]]:
    return [(each.rank, each.card.defense.name) for each in standings(cards)]


def test_defenses_without_a_leak_come_first_then_the_least_leak_then_accuracy(card: Card) -> None:
    found = ranks(
        everywhere(card, "none", 1.0, 1.0, 0.9, "reconstructs"),
        everywhere(card, "half", 0.0, 0.55, 0.5, "identifies"),
        everywhere(card, "shown", 0.0, 0.1, 0.4, "no leak found"),
        everywhere(card, "better", 0.0, 0.1, 0.6, "no leak found"),
        everywhere(card, "unshown", 0.0, 0.1, 0.8, "inconclusive"),
    )
    assert found == [(1, "better"), (2, "shown"), (3, "unshown"), (4, "half"), (5, "none")]


def test_ties_share_a_rank_and_the_next_rank_skips_them(card: Card) -> None:
    # Leaks of .0550 and .0556 are equal at two digits.
    one, other = (everywhere(card, name, 0.0, share, 0.5) for name, share in (("one", 0.199), ("other", 0.2)))
    assert ranks(everywhere(card, "worse", 0.5, 0.5, 0.9), other, one) == [(1, "one"), (1, "other"), (3, "worse")]


def test_defenses_with_missing_measurements_have_no_rank(card: Card) -> None:
    whole = everywhere(card, "whole", 1.0, 1.0, 0.9, "reconstructs")
    of_paper = dataclasses.replace(
        everywhere(card, "of_paper", 0.0, 0.1, 0.9, "no leak found"),
        cells=tuple(c for c in whole.cells if c.protocol == "paper"),
    )
    assert ranks(of_paper, whole) == [(1, "whole"), (None, "of_paper")]
    assert "unmeasured" in markdown_of([of_paper, whole], "cards")


def test_one_inconclusive_point_is_enough_to_be_not_clear(card: Card) -> None:
    clear = everywhere(card, "clear", 0.0, 0.1, 0.9, "no leak found")
    mixed = with_points(
        clear, lambda point: dataclasses.replace(point, verdict="inconclusive") if point.name == "type-0" else point
    )
    assert [standings([each])[0].clear for each in (clear, mixed)] == [True, False]


def test_without_a_leak_accuracy_decides_and_a_model_at_chance_has_no_rank(
    card: Card,
) -> None:
    at = card.accuracy.majority
    cards = (
        everywhere(card, "clear_low", 0.0, 0.1, at + 0.1, "no leak found"),
        everywhere(card, "clear_high", 0.0, 0.1, at + 0.5, "no leak found"),
        everywhere(card, "leaks", 0.0, 0.55, 0.9, "identifies"),
        everywhere(card, "nothing", 0.0, 0.1, at, "no leak found"),
        # One right prediction more than the majority class is chance.
        everywhere(card, "lucky", 0.0, 0.2, at + 1 / card.accuracy.examples, "no leak found"),
        everywhere(card, "less", 0.5, 0.5, at - 0.05, "reconstructs"),
    )
    found = [(1, "clear_high"), (2, "clear_low"), (3, "leaks"), (None, "lucky"), (None, "nothing"), (None, "less")]
    assert ranks(*cards) == found
    page, html = markdown_of(cards, "cards"), html_of(cards, "cards")
    for text, end in ((page, "### digits: each attacker"), (html, "<h3")):
        ranked, said, others = text.partition(end)[0].partition("These defenses have no rank because")
        assert said
        for name in ("clear_low", "clear_high", "leaks", "nothing", "lucky", "less"):
            assert (f"/{name}.json" in others) == (name in ("nothing", "lucky", "less")) != (f"/{name}.json" in ranked)
    assert page.splitlines()[2] == f"2 of 6 cards are {BOTH}: digits/clear_high; digits/clear_low."
    assert "2 of 6 cards trained and without a leak; 3 undertrained." in page


def test_the_first_sentence_says_whether_any_defense_is_trained_and_without_a_leak(card: Card) -> None:
    def first(*cards: Card) -> str:
        return markdown_of(cards, "cards").splitlines()[2]

    clear = everywhere(card, "clear", 0.0, 0.1, 0.9, "no leak found")
    leaks = everywhere(card, "leaks", 1.0, 1.0, 0.9, "reconstructs")
    chance = everywhere(card, "chance", 0.0, 0.1, card.accuracy.majority, "no leak found")
    untrained = dataclasses.replace(clear, accuracy=dataclasses.replace(clear.accuracy, value=None))
    assert first(leaks, chance) == first(untrained) == first(card) == f"No measured defense is {BOTH}."
    assert first(leaks, clear) == f"1 of 2 cards is {BOTH}: digits/clear."
    without = markdown_of([chance], "cards")
    assert "| rank |" not in without and "| defense | accuracy | leak |" in without


def test_the_oblivious_attacker_does_not_change_ranks(card: Card) -> None:
    first = everywhere(card, "first", 0.0, 0.1, 0.5, "no leak found")
    worse = everywhere(card, "worse", 0.5, 0.5, 0.5, "reconstructs")
    aware = {c.protocol: c.points for c in worse.cells}
    swapped = tuple(
        dataclasses.replace(c, points=aware[c.protocol]) if c.attacker == "oblivious" else c for c in first.cells
    )
    assert ranks(worse, dataclasses.replace(first, cells=swapped)) == [(1, "first"), (2, "worse")]


def test_excess_over_chance_is_0_for_guessing_and_1_for_full_success(card: Card) -> None:
    def point(asr: float, identified: float, verdict: str = "inconclusive") -> float:
        return above_chance(everywhere(card, "x", asr, identified, 0.5, verdict).cells[0].points[:1])

    assert (point(0.0, 0.1), point(1.0, 1.0), point(0.0, 1.0)) == (0.0, 1.0, 0.5)
    assert point(0.0, 0.55) == pytest.approx(0.25)
    # A reconstructed victim is identified, even if the ranking misses it.
    assert (point(1.0, 0.0), point(0.5, 0.0), point(0.5, 1.0)) == (1.0, 0.5, 0.75)
    # Below chance is not better than chance; chance results do not count if no leak was found.
    assert (point(0.0, 0.0), point(0.0, 0.3, "no leak found")) == (0.0, 0.0)
    silent = with_points(card, lambda p: dataclasses.replace(p, asr=None, identified=None, verdict="inconclusive"))
    assert above_chance(silent.cells[0].points) == 1.0
    # With several rounds, the one that leaks most counts.
    several = [p for share in (0.1, 0.55) for p in everywhere(card, "x", 0.0, share, 0.5).cells[0].points[:1]]
    assert above_chance(several) == pytest.approx(0.25)


def test_only_cards_of_the_same_size_are_ranked_together(card: Card) -> None:
    asked, settings = dataclasses.replace(card.asked, victims=20), {**card.settings, "victims": 20}
    larger = dataclasses.replace(card, asked=asked, settings=settings)
    other = dataclasses.replace(card, defense=dataclasses.replace(card.defense, name="other"))
    assert [len(group) for group in comparable([card, other, larger])] in ([2, 1], [1, 2])
    page = markdown_of([card, other, larger], "cards")
    assert page.count("| rank | defense | accuracy |") == 2
    sizes = [f"## digits, victims {each.asked.victims}" for each in (card, larger)]
    assert sorted(line for line in page.splitlines() if line.startswith("## digits")) == sorted(sizes)
    assert "\n## digits\n" in markdown_of([card, other], "cards")


def test_reasons_for_no_guarantee_and_the_threat_model_are_shown(card: Card) -> None:
    reason = card.epsilon.reason.removeprefix("none: ")
    for page in (markdown_of([card], "cards"), html_of([card], "cards")):
        assert f"none: {reason}" in page and f"threat: {printed_threat(card.threat)}" in page
        assert "not trained" in page and "not measured everywhere" in page and "cards/digits/sign.json" in page
    # Each of ten digits is about a tenth of the test examples.
    assert "450 test examples, majority class 0.102" in markdown_of([card], "cards")


def test_text_of_a_card_is_escaped(card: Card) -> None:
    evil = "<script>alert(1)</script> | x [here](https://evil.example) `y`"
    bad = dataclasses.replace(card, warnings=(evil,), dataset=dataclasses.replace(card.dataset, title=evil))
    page, html = markdown_of([bad], "cards"), html_of([bad], "cards")
    assert "<script" not in page and "](https://evil" not in page and "\\|" in page
    assert "<script" not in html and "&lt;script&gt;" in html


def test_blocks_in_both_forms() -> None:
    blocks = [
        Text(("see ", Link("it", "https://x.y"), " by ", Code("a | b"))),
        Tabular(("h",), ((Link("no", ""),),)),
    ]
    assert as_markdown(blocks) == "see [it](https://x.y) by `a \\| b`\n\n| h |\n| --- |\n| no |\n"
    assert '<a href="https://x.y">it</a> by <code>a | b</code>' in as_html(blocks, "t") and "<td>no</td>" in as_html(
        blocks, "t"
    )


def test_warnings_name_leaks_violated_claims_and_missing_evidence(card: Card) -> None:
    leaks = everywhere(card, "x", 0.5, 1.0, 0.5, "reconstructs")
    weaker = tuple(
        dataclasses.replace(
            c,
            warnings=("type-2: for 3 of 10 victims, no luck", "type-1: for 4 of 10 victims, no luck"),
            points=tuple(dataclasses.replace(p, asr=(0.1, 0.0, 0.3), verdict="inconclusive") for p in c.points),
        )
        if c.attacker == "aware" and c.protocol == "live"
        else c
        for c in leaks.cells
    )
    audited = dataclasses.replace(card.epsilon.audited, verdict="violated", reason="2 audited, more than the claimed 1")
    epsilon = dataclasses.replace(card.epsilon, caveats=("it counts less",), audited=audited)
    found = warnings_of(weaker, [Summary(accuracy=0.5), Summary(accuracy=0.25)], epsilon)
    assert found[:2] == ("not as claimed: it counts less", "audit: violated: 2 audited, more than the claimed 1")
    assert "adaptive attacker, protocol paper: reconstructs at type-2, type-1, type-0" in found
    assert not any(text.startswith("adaptive attacker, protocol live: reconstructs") for text in found)
    assert "protocol live, type-2: the adaptive attacker reconstructs fewer than the oblivious one" in found
    assert "adaptive attacker, protocol live: no luck (type-2, type-1)" in found
    assert found[-1].startswith("accuracy differs between the cells, from 0.2500 to 0.5000")
    quiet = dataclasses.replace(epsilon, caveats=(), audited=dataclasses.replace(audited, verdict="holds"))
    assert (
        warnings_of(everywhere(card, "x", 0, 0.1, 0.5, "no leak found").cells, [Summary(accuracy=0.5)] * 2, quiet) == ()
    )


def test_a_card_of_another_release_is_not_stale(card: Card) -> None:
    assert stale(dataclasses.replace(card, made_with={**card.made_with, "leakbench": "0.0.1"})) == []


@pytest.mark.parametrize("what", ["defense", "dataset", "attack"])
def test_a_card_of_another_defense_attack_or_data_set_is_stale(card: Card, what: str) -> None:
    def of(**changes: str) -> Card:
        return dataclasses.replace(card, **{what: dataclasses.replace(getattr(card, what), **changes)})

    assert stale(of(content="0" * 64)) == [f"its {what} has changed since the card was measured"]
    assert outside(of(content="0" * 64)) == ""
    gone = of(name="of_nobody")
    assert (stale(gone), outside(gone)) == ([], f"{what} 'of_nobody'")


def test_the_page_names_stale_cards_and_reasons_under_its_title(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Stale" not in markdown_of([card], "cards")
    gone, changed = (
        dataclasses.replace(card, defense=dataclasses.replace(card.defense, **fields))
        for fields in ({"name": "of_nobody"}, {"content": "0" * 64})
    )
    monkeypatch.setitem(SHARED, "accounting", 9)
    pages = [markdown_of([gone, card, changed], "cards"), html_of([gone, card, changed], "cards")]
    title, _, box, outside_rule, outside_bullets, rule, bullets, *_ = pages[0].split("\n\n")
    lines = bullets.splitlines()
    assert (title, rule) == ("# Leaderboard", "Stale cards; the commands below each table measure them again:")
    assert "1 of 3 cards is not in the catalog. 2 of 3 cards are stale." in box
    assert outside_rule.startswith("Cards with a recipe that is not in the catalog; ")
    assert outside_bullets == "- digits/of_nobody: its defense 'of_nobody'."
    assert lines[1] == "- its defense has changed since the card was measured: digits/sign."
    assert lines[0].startswith("- measured with another behaviour of accounting (then ")
    assert lines[0].endswith("today 9): digits/sign; digits/sign.")
    assert len(lines) == 2
    assert all(text in pages[1] for text in ("Stale cards", "digits/of_nobody: its defense"))
    assert "1 of 1 card is stale." in markdown_of([changed], "cards")


@pytest.mark.slow
def test_the_published_page_is_rendered_from_the_published_cards() -> None:
    """It fails if `leakbench leaderboard` was not run after a change of a card or its recipe."""
    cards = read_cards(recipe.catalog_folder("leaderboard"))
    page = (ROOT / "results" / "leaderboard.md").read_text(encoding="utf-8")
    assert page == markdown_of(cards, "../leaderboard")
    assert {"none"} <= {card.defense.name for card in cards}


def test_texts_have_exact_sentences_and_the_edit_distance(card: Card) -> None:
    texts = {"edit_distance": (0.25, 0.1, 0.4), "null_edit_distance": 0.9, "exact": (0.5, 0.2, 0.8), "rmse": None}
    page = markdown_of([with_points(card, lambda point: dataclasses.replace(point, **texts))], "cards")
    assert "| baseline ASR | exact [95 % CI] | edit distance | baseline edit distance |" in page
    assert "| 0.50 [0.20, 0.80] | 0.250 | 0.900 |" in page and "RMSE" not in page
    assert "exact" not in markdown_of([card], "cards")


def test_the_usual_sizes_of_a_card_depend_on_its_data_and_its_attack() -> None:
    assert usual("autoleak", "reviews", None) == {"candidates": 100}
    assert usual("tag", "reviews", None) == {"candidates": 100, "evaluations": EVALUATIONS}
    assert usual("autoleak", "digits", None) == {"candidates": 1000, "evaluations": EVALUATIONS}
