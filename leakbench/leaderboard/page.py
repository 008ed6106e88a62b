"""The page of the leaderboard: for each data set the ranking, then each attacker's numbers, warnings, and how to repeat them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from leakbench.leaderboard.blocks import Block, Bullets, Code, Grid, Heading, Inline, Link, Text, as_html, as_markdown
from leakbench.leaderboard.card import Card, Epsilon, Point
from leakbench.leaderboard.rank import EVERYWHERE, Standing, comparable, points_of, standings
from leakbench.leaderboard.stale import stale
from leakbench.summary.verdict import LEAST_NETWORKS, LEAST_VICTIMS
from leakbench.summary.verdict_words import INCONCLUSIVE, NO_LEAK

__all__ = ["html_of", "markdown_of"]

TITLE = "Leaderboard"

RULES = (
    "Written by `leakbench leaderboard` from the cards in leaderboard/, one for each defense and data set, which `leakbench card`"
    " measured; docs/submitting.md says how one is added and checked.",
    "Ranked on the attacker that knows the defense. First come defenses with the verdict `no leak found` at every leakage point by"
    f" both protocols: nothing significant leaked to `autoleak`, on at least {LEAST_VICTIMS} victims over at least {LEAST_NETWORKS}"
    " networks, without a warning of its search. Then by leak: the ASR above the baseline guess's and the share identified above"
    " chance (at least the ASR, since a victim that is reconstructed is known), each divided by what is left above the guess; the"
    " leak is their mean over the six columns, to two digits, and 0 where no leak was found. Then by accuracy. Equals share a rank."
    " A defense that is not measured everywhere has none.",
    "Verdicts: `reconstructs` and `identifies` are significant leaks. `inconclusive` is neither a leak nor evidence against one."
    " `inconclusive` and `no leak found` state the largest rate of reconstruction or identification that the victims do not"
    " exclude at 95 % (one-sided, Clopper and Pearson). `attack failed`: no answer for half of the examples or more.",
    "The rank says nothing of accuracy or of a guarantee: a network that learned nothing can stand first. Accuracy and the valid"
    " epsilon stand beside it, and only rows of one table, measured at one size, compare. A defense at the server cannot protect"
    " type-2 and type-1, which are read before it; the columns show where each acts. No leak found by these attackers is no proof.",
    "Each column of a protocol and leakage point has the aware attacker's ASR / share identified. type-2 is one example's gradient"
    " inside the client, type-1 the client's update, type-0 an update as the server's sum carries it. paper: the leak is from a"
    " network at random weights; live: from the one that is trained. none, in the stead of an epsilon, has its reason beside it.",
)


def markdown_of(cards: Sequence[Card], place: str) -> str:
    """Return the page of all cards in Markdown; place: of the folder of cards, seen from the page."""
    return as_markdown(list(_page(cards, place)))


def html_of(cards: Sequence[Card], place: str) -> str:
    """Return the page in HTML."""
    return as_html(list(_page(cards, place)), f"leakbench: {TITLE}")


def _page(cards: Sequence[Card], place: str) -> Iterator[Block]:
    yield Heading(1, TITLE)
    yield from _stale(cards)
    for rule in RULES:
        yield Text(_with_code(rule))
    groups = comparable(cards)
    several = {before[0].dataset.name for before, after in pairwise(groups) if before[0].dataset == after[0].dataset}
    for group in groups:
        ranked, first = standings(group), group[0]
        beside = ", another size" if first.dataset.name in several and group is not groups[0] else ""
        yield Heading(2, f"{first.dataset.name}{beside}")
        yield Text((f"{first.dataset.title}. {_size(first)}",))
        yield Text((f"threat: {first.threat}. {_networks(group)}",))
        yield _ranking(ranked, place)
        yield Heading(3, f"{first.dataset.name}: each attacker")
        yield Text(
            (
                "oblivious: without the defense's recipe; aware: with it. Medians of RMSE; baseline: a guess without any gradient.",
            )
        )
        yield _details(ranked)
        yield Heading(3, f"{first.dataset.name}: warnings")
        yield Bullets(
            tuple((f"{each.card.defense.name}: {'; '.join(each.card.warnings) or 'none'}.",) for each in ranked)
        )
        yield from _reported(ranked)
        yield Heading(3, f"{first.dataset.name}: again")
        yield Bullets(tuple((Code(each.card.repeat),) for each in ranked))


def _stale(cards: Sequence[Card]) -> Iterator[Block]:
    """Yield which cards are stale, a reason each; nothing where none is."""
    found: dict[str, list[str]] = {}
    for card in cards:
        for reason in stale(card):
            found.setdefault(reason, []).append(f"{card.dataset.name}/{card.defense.name}")
    if found:
        yield Text(("Stale cards, which the commands below each table measure again:",))
        yield Bullets(tuple((f"{reason}: {'; '.join(names)}.",) for reason, names in found.items()))


def _with_code(rule: str) -> tuple[str | Code, ...]:
    return tuple(Code(part) if number % 2 else part for number, part in enumerate(rule.split("`")))


def _size(card: Card) -> str:
    s = card.settings
    numbers = {
        name: s.get(name) for name in ("victims", "leak_batch", "clients", "clients_per_round", "rounds", "seed")
    }
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in numbers.items())
    limit = "" if card.asked.iterations is None else f", at most {card.asked.iterations} iterations a search"
    if card.asked.evaluations is not None:
        limit += f", at most {card.asked.evaluations} gradient evaluations of each victim"
    local = f"local iterations {s.get('local_iterations')}, batch {s.get('batch')}"
    trained = (
        f"accuracy on {card.accuracy.examples} test examples, of which {card.accuracy.majority:.3f} are of one class"
    )
    return f"attack {card.attack.name}{limit}; {said}, {local}; {trained}."


def _networks(group: Sequence[Card]) -> str:
    found: dict[tuple[str, str], list[str]] = {}
    for card in group:
        for cell in card.cells:
            named = found.setdefault((cell.protocol, cell.network), [])
            if card.defense.name not in named:
                named.append(card.defense.name)
    most = {protocol: max((len(names) for (p, _), names in found.items() if p == protocol)) for protocol, _ in found}
    said = [
        f"{protocol}: {network}" + ("" if len(names) == most[protocol] else f" ({', '.join(names)})")
        for (protocol, network), names in sorted(found.items(), reverse=True)
    ]
    return f"The leak is from, {'; '.join(said)}."


def _ranking(ranked: Sequence[Standing], place: str) -> Grid:
    columns = (f"{protocol} {tap}" for protocol, tap in EVERYWHERE)
    heads = (
        "rank",
        "defense",
        "source",
        "leak",
        *columns,
        "accuracy",
        "eps claimed",
        "eps valid",
        "eps audited",
        "warnings",
    )
    rows: list[tuple[Inline, ...]] = []
    for each in ranked:
        card = each.card
        of_card = Link(card.defense.name, f"{place}/{card.dataset.name}/{card.defense.name}.json")
        leak = "not ranked" if each.leak is None else f"{each.leak:.2f}{_clear(each)}"
        points = [_short(points_of(card, "aware", *where)) for where in EVERYWHERE]
        rows.append(
            (
                "-" if each.rank is None else str(each.rank),
                of_card,
                Link("link" if card.defense.link else "-", card.defense.link),
                leak,
                *points,
                _share(card.accuracy.value, 3) if card.accuracy.value else "not trained",
                *_epsilons(card.epsilon),
                str(len(card.warnings)),
            )
        )
    return Grid(heads, tuple(rows))


def _clear(each: Standing) -> str:
    """Return, for a defense behind which no leak was found anywhere, the largest rate that is not excluded at a point."""
    if not each.clear:
        return ""
    points = [point for where in EVERYWHERE for point in points_of(each.card, "aware", *where)]
    return f", {_verdict(max(points, key=_not_excluded))}"


def _verdict(point: Point) -> str:
    """Return the verdict; where no leak is stated, with the rate that so many victims do not exclude."""
    if point.verdict not in (NO_LEAK, INCONCLUSIVE):
        return point.verdict
    if point.excluded is None:
        return f"{point.verdict}: the card does not say which rates are excluded"
    return f"{point.verdict}: up to {100 * point.excluded:.0f} % of victims not excluded"


def _not_excluded(point: Point) -> float:
    """Return the largest rate that is not excluded at 95 %; 1 where the card has none."""
    return 1.0 if point.excluded is None else point.excluded


def _short(points: Sequence[Point]) -> str:
    """Return the ASR and who is identified, of several rounds where most leaked."""
    if not points:
        return "unmeasured"
    asr, identified = (max((s[0] for s in shares if s), default=None) for shares in _shares(points))
    return " / ".join("n/a" if value is None else f"{value:.2f}" for value in (asr, identified))


def _shares(points: Sequence[Point]) -> tuple[list[tuple[float, float, float] | None], ...]:
    return [point.asr for point in points], [point.identified for point in points]


def _epsilons(epsilon: Epsilon) -> tuple[str, str, str]:
    claimed = (
        f"none: {epsilon.claimed_by.removeprefix('none: ')}" if epsilon.claimed is None else f"{epsilon.claimed:.3g}"
    )
    valid = f"none: {epsilon.reason.removeprefix('none: ')}" if epsilon.valid is None else f"{epsilon.valid:.3g}"
    audited = max(epsilon.audited.lower_bound, epsilon.audited.lower_bound_family or 0.0)
    return claimed, valid, f"at least {audited:.3g}: {epsilon.audited.verdict}"


def _details(ranked: Sequence[Standing]) -> Grid:
    heads = (
        "defense",
        "attacker",
        "point",
        "ASR [95 % CI]",
        "baseline ASR",
        "RMSE",
        "baseline RMSE",
        "identified [95 % CI]",
        "label",
        "verdict",
    )
    rows: list[tuple[Inline, ...]] = []
    for each in ranked:
        for cell in each.card.cells:
            for point in cell.points:
                same = f" (same bits as {point.same_as})" if point.same_as else ""
                rows.append(
                    (
                        each.card.defense.name,
                        cell.attacker,
                        f"{cell.protocol} {point.name}",
                        _share(point.asr),
                        f"{point.null_asr[0]:.2f}",
                        _number(point.rmse[0] if point.rmse else None),
                        _number(point.null_rmse),
                        f"{_share(point.identified)} of {point.candidates}",
                        _number(point.label, 2),
                        _verdict(point) + same,
                    )
                )
    return Grid(heads, tuple(rows))


def _reported(ranked: Sequence[Standing]) -> Iterator[Block]:
    rows = tuple(
        (each.card.defense.name, claim.what, f"{claim.printed:g}", _number(claim.measured), claim.source, claim.comment)
        for each in ranked
        for claim in each.card.reported
    )
    if rows:
        yield Heading(3, f"{ranked[0].card.dataset.name}: what papers print")
        yield Grid(("defense", "what", "printed", "measured here", "by", "to be known"), rows)


def _share(share: tuple[float, float, float] | None, digits: int = 2) -> str:
    if share is None:
        return "n/a"
    value, low, high = (f"{number:.{digits}f}" for number in share)
    return f"{value} [{low}, {high}]"


def _number(value: float | None, digits: int = 3) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"
