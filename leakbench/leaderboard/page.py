"""Write the page of the leaderboard: for each data set the ranking, each attacker's numbers, warnings and commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from leakbench.box import count_of, not_covered, part_of
from leakbench.core.leakage_points import LeakagePoint, after_rounds, point_name
from leakbench.core.verdict_words import INCONCLUSIVE, NO_LEAK
from leakbench.core.words import epsilon_text
from leakbench.leaderboard.asked import ATTACKER_NAMES
from leakbench.leaderboard.blocks import (
    Block,
    Bullets,
    Code,
    Heading,
    Inline,
    Link,
    Tabular,
    Text,
    as_html,
    as_markdown,
)
from leakbench.leaderboard.card import Card, CardEpsilon, CardPoint
from leakbench.leaderboard.check import outside, stale
from leakbench.leaderboard.rank import EVERYWHERE, Standing, comparable, points_of, standings
from leakbench.measure.rates import EXACT, upper_limit
from leakbench.measure.statistics import networks_limit
from leakbench.summary.threat import printed_threat
from leakbench.summary.verdict import LEAST_NETWORKS, LEAST_VICTIMS

__all__ = ["html_of", "markdown_of"]

TITLE = "Leaderboard"

HOW = "How to read the tables"

RULES = (
    "Order: first defenses with `no leak found` at every leakage point, by accuracy; then the others, by their leak to the"
    " adaptive attacker, least first. A defense whose network is undertrained (accuracy of a training not significantly above"
    " the majority class) has no rank; the second table of a data set has these defenses, in the same order.",
    "Accuracy: with its 95 % interval. For one training the interval is over test examples. For several seeds it is the mean"
    " and Student's interval over trainings; the attacks read the training of the first seed. All trainings are tested on the same"
    " examples, so that this interval does not cover other test examples. The rounds and the learning rate of the published cards"
    " of Adult were chosen by the test accuracy of one undefended training, which makes these accuracies slightly too high.",
    "Leak: the excess of ASR over the baseline guess and of identification over chance, each as a part of the largest possible"
    " excess; the mean over all leakage points and protocols, 0 where no leak was found. A reconstructed victim counts as"
    " identified.",
    f"Verdicts: `no leak found` needs an adaptive attacker, at least {LEAST_VICTIMS} victims and {LEAST_NETWORKS} networks, and no"
    " warning of the search. `reconstructs` and `identifies` are significant leaks. `inconclusive` is neither a leak nor evidence"
    " against one. `inconclusive` and `no leak found` state the largest rate that the victims do not exclude at 95 % (one-sided,"
    " Clopper and Pearson). `attack failed`: no reconstruction for half of the examples or more.",
    "Intervals of ASR and identification near 0 and 1 are for networks like the measured ones. Over all networks, a share of 0 on"
    f" {LEAST_NETWORKS} networks can be up to {networks_limit(0.0, LEAST_NETWORKS):.2f}, each network counted as one trial.",
    "Each column of a leakage point has ASR / share identified by the adaptive attacker. `paper`: the leak is from networks at"
    " random weights; `live`: from the network in training, the largest of several rounds. A defense at the server does not"
    " protect the points before it. That these attackers found no leak does not prove privacy.",
    "`leakbench card` measures a card, `leakbench leaderboard` writes this page, `docs/submitting.md` explains how to add one.",
)


def markdown_of(cards: Sequence[Card], place: str) -> str:
    """Return the page of all cards in Markdown.

    Args:
        place: Path of the folder of cards, relative to the page.
    """
    return as_markdown(list(_page(cards, place)))


def html_of(cards: Sequence[Card], place: str) -> str:
    """Return the page in HTML."""
    return as_html(list(_page(cards, place)), f"leakbench: {TITLE}")


def _page(cards: Sequence[Card], place: str) -> Iterator[Block]:
    groups = comparable(cards)
    every = [each for group in groups for each in standings(group)]
    yield Heading(1, TITLE)
    yield Text(_with_code(_answer(every)))
    yield _box(cards, every)
    yield from _outside(cards)
    yield from _stale(cards)
    yield Text(
        (
            "Only rows of one table compare. The columns are explained under ",
            Link(HOW, f"#{HOW.lower().replace(' ', '-')}"),
            ".",
        )
    )
    for group in groups:
        ranked, first = standings(group), group[0]
        trained, undertrained = ([each for each in ranked if each.learned is learned] for learned in (True, False))
        others = [other[0] for other in groups if other is not group and other[0].dataset.name == first.dataset.name]
        yield Heading(2, f"{first.dataset.name}{_own_size(first, others)}")
        yield Text((f"{first.dataset.title}. {_size(first)}",))
        yield Text((f"threat: {printed_threat(first.threat)}. {_networks(group)}",))
        if trained:
            yield _ranking(trained, place)
        if undertrained:
            yield Text((WITHOUT_RANK,))
            yield _ranking(undertrained, place, rank=False)
        yield from _without_epsilon(ranked)
        yield Heading(3, f"{first.dataset.name}: each attacker")
        yield Text(
            (
                f"oblivious: does not know the defense; adaptive: knows it. {_measure(ranked)}: medians. baseline: the best"
                " guess without a gradient.",
            )
        )
        yield _details(ranked)
        yield Heading(3, f"{first.dataset.name}: warnings")
        yield Bullets(
            tuple((f"{each.card.defense.name}: {'; '.join(each.card.warnings) or 'none'}.",) for each in ranked)
        )
        yield from _reported(ranked)
        yield Heading(3, f"{first.dataset.name}: commands")
        yield Bullets(tuple((Code(each.card.repeat),) for each in ranked))
    yield Heading(2, HOW)
    yield from (Text(_with_code(rule)) for rule in RULES)


WITHOUT_RANK = (
    "These defenses have no rank because their network is undertrained: the accuracy of at least one training is not"
    " significantly above the majority class, so a weak leak has no accuracy to be weighed against."
)


def _answer(every: Sequence[Standing]) -> str:
    """Return the sentence that answers the title: which defenses are trained and without a leak."""
    both = (
        "both trained (accuracy significantly above the majority class) and without a leak (`no leak found` everywhere)"
    )
    found = [each for each in every if _trained(each) and each.clear]
    if not found:
        return f"No measured defense is {both}."
    named = "; ".join(f"{each.card.dataset.name}/{each.card.defense.name}" for each in found)
    return f"{part_of(len(found), len(every), 'card')} {'is' if len(found) == 1 else 'are'} {both}: {named}."


def _trained(each: Standing) -> bool:
    return each.learned and each.card.accuracy.value is not None


def _box(cards: Sequence[Card], every: Sequence[Standing]) -> Bullets:
    """Return claim, verdict, evidence, caveat and command of the page."""
    clear = sum(_trained(each) and each.clear for each in every)
    undertrained = sum(not each.learned for each in every)
    verdict = f"{part_of(clear, len(cards), 'card')} trained and without a leak; {undertrained} undertrained."
    victims = sorted({card.asked.victims for card in cards})
    count = " to ".join(map(str, dict.fromkeys((victims[0], victims[-1]))))
    states = (
        (sum(map(bool, map(state, cards))), word) for state, word in ((outside, "not in the catalog"), (stale, "stale"))
    )
    caveats = [f"{part_of(n, len(cards), 'card')} {'is' if n == 1 else 'are'} {word}. " for n, word in states if n]
    caveats += [f"{sentence} " for sentence in not_covered({card.dataset.name for card in cards})]
    return Bullets(
        (
            ("Claim: which defense leaks least to an attacker that knows it, and what does it cost in accuracy?",),
            (f"Verdict: {verdict}",),
            (
                f"Evidence: {count_of(len(cards), 'card')}, {count} victims at each leakage point, two attackers, two protocols.",
            ),
            (
                f"Caveat: {''.join(caveats)}Few victims leave most verdicts inconclusive; the column of verdicts states what is"
                " excluded.",
            ),
            ("Command: ", Code("leakbench leaderboard")),
        )
    )


def _outside(cards: Sequence[Card]) -> Iterator[Block]:
    """Yield the cards of recipes that are not in the catalog; nothing where all are."""
    found = [(f"{card.dataset.name}/{card.defense.name}: its {said}.",) for card in cards if (said := outside(card))]
    if found:
        yield Text(
            (
                "Cards with a recipe that is not in the catalog; their commands below need the recipe there, or its path:",
            )
        )
        yield Bullets(tuple(found))


def _stale(cards: Sequence[Card]) -> Iterator[Block]:
    """Yield the stale cards by reason; nothing where no card is stale."""
    found: dict[str, list[str]] = {}
    for card in cards:
        for reason in stale(card):
            found.setdefault(reason, []).append(f"{card.dataset.name}/{card.defense.name}")
    if found:
        yield Text(("Stale cards; the commands below each table measure them again:",))
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
        limit += f", at most {card.asked.evaluations} gradient evaluations for each victim"
    rate = s.get("learning_rate")
    local = f"local iterations {s.get('local_iterations')}, batch {s.get('batch')}, learning rate "
    local += f"{rate:g}" if isinstance(rate, int | float) else "unknown"
    seeds = "" if card.asked.seeds == 1 else f", mean of {card.asked.seeds} trainings (seeds {_seeds(card)})"
    trained = f"accuracy on {card.accuracy.examples} test examples{seeds}, majority class {card.accuracy.majority:.3f}"
    return f"attack {card.attack.name}{limit}; {said}, {local}; {_spread(card)}; {trained}."


def _own_size(card: Card, others: Sequence[Card]) -> str:
    """Return the first size of a card that no other table of its data set has; empty without another table."""
    elsewhere = {part for other in others for part in _parts(other)}
    own = [part for part in _parts(card) if part not in elsewhere]
    return f", {own[0]}" if others and own else ""


def _parts(card: Card) -> list[str]:
    return re.split("[,;] ", _size(card).rstrip("."))


def _spread(card: Card) -> str:
    """Return over how many networks the victims of each protocol are divided, and after which rounds they leak."""
    found = []
    for protocol in dict.fromkeys(cell.protocol for cell in card.cells):
        points = [point for cell in card.cells if cell.protocol == protocol for point in cell.points]
        rounds = dict.fromkeys(leaked for point in points for leaked in LeakagePoint.of(point.name).rounds)
        networks = max(point.networks for point in points)
        over = f"{networks} network{'' if networks == 1 else 's'}"
        found.append(f"{over} in the {protocol} protocol{after_rounds(*rounds)}")
    return f"victims over {', '.join(found)}"


def _seeds(card: Card) -> str:
    return f"{card.asked.seed} to {card.asked.seed + card.asked.seeds - 1}"


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


def _ranking(ranked: Sequence[Standing], place: str, rank: bool = True) -> Tabular:
    """Return the table of the ranked defenses, or without ranks."""
    columns = (f"{point_name(tap)}, {protocol}" for protocol, tap in EVERYWHERE)
    heads = (
        *(("rank",) if rank else ()),
        "defense",
        "accuracy",
        "leak",
        *columns,
        "eps claimed",
        "eps valid",
        "eps audited",
        "warnings",
        "source",
    )
    rows: list[tuple[Inline, ...]] = []
    for each in ranked:
        card = each.card
        of_card = Link(card.defense.name, f"{place}/{card.dataset.name}/{card.defense.name}.json")
        leak = "not measured everywhere" if each.leak is None else f"{each.leak:.2f}{_clear(each)}"
        points = [_short(points_of(card, "aware", *where)) for where in EVERYWHERE]
        accuracy = _share(card.accuracy.value, 3) if card.accuracy.value else "not trained"
        rows.append(
            (
                *(("-" if each.rank is None else str(each.rank),) if rank else ()),
                of_card,
                accuracy,
                leak,
                *points,
                *_epsilons(card.epsilon),
                str(len(card.warnings)),
                Link("link" if card.defense.link else "-", card.defense.link),
            )
        )
    return Tabular(heads, tuple(rows))


def _without_epsilon(ranked: Sequence[Standing]) -> Iterator[Block]:
    """Yield why epsilons in the ranking do not exist; nothing where all exist."""
    items = []
    for each in ranked:
        epsilon = each.card.epsilon
        claimed = f"claimed none: {epsilon.claimed_by.removeprefix('none: ')}" if epsilon.claimed is None else ""
        valid = f"valid none: {epsilon.reason.removeprefix('none: ')}" if epsilon.valid is None else ""
        if claimed or valid:
            items.append((f"{each.card.defense.name}: {'; '.join(filter(None, (claimed, valid)))}.",))
    if items:
        yield Text(("Reasons for epsilons without a value:",))
        yield Bullets(tuple(items))


def _clear(each: Standing) -> str:
    """Return the largest rate that is not excluded at a leakage point, for a defense without a leak; else an empty text."""
    if not each.clear:
        return ""
    points = [point for where in EVERYWHERE for point in points_of(each.card, "aware", *where)]
    return f", {_verdict(max(points, key=_not_excluded))}"


def _verdict(point: CardPoint) -> str:
    """Return the verdict, with the rate that is not excluded where no leak is stated."""
    if point.verdict not in (NO_LEAK, INCONCLUSIVE):
        return point.verdict
    if point.excluded is None:
        return f"{point.verdict}: the card does not say which rates are excluded"
    return f"{point.verdict}: up to {upper_limit(point.excluded)} of victims not excluded"


def _not_excluded(point: CardPoint) -> float:
    """Return the largest rate that is not excluded at 95 %; 1 where the card has none."""
    return 1.0 if point.excluded is None else point.excluded


def _short(points: Sequence[CardPoint]) -> str:
    """Return ASR and share identified, the largest among several rounds."""
    if not points:
        return "unmeasured"
    asr, identified = (max((s[0] for s in shares if s), default=None) for shares in _shares(points))
    return " / ".join("n/a" if value is None else f"{value:.2f}" for value in (asr, identified))


def _shares(points: Sequence[CardPoint]) -> tuple[list[tuple[float, float, float] | None], ...]:
    return [point.asr for point in points], [point.identified for point in points]


def _epsilons(epsilon: CardEpsilon) -> tuple[str, str, str]:
    claimed, valid = map(epsilon_text, (epsilon.claimed, epsilon.valid))
    audited = max(epsilon.audited.lower_bound, epsilon.audited.lower_bound_family or 0.0)
    return claimed, valid, f"at least {audited:.3g}: {epsilon.audited.verdict}"


def _measure(ranked: Sequence[Standing]) -> str:
    """Return the heading of the measure that decides success on the data set of some cards."""
    return ranked[0].card.cells[0].points[0].error[0]


def _details(ranked: Sequence[Standing]) -> Tabular:
    exact = any(point.exact is not None for each in ranked for cell in each.card.cells for point in cell.points)
    heads = (
        "defense",
        "attacker",
        "point",
        "ASR [95 % CI]",
        "baseline ASR",
        *((f"{EXACT.heading} [95 % CI]",) if exact else ()),
        _measure(ranked),
        f"baseline {_measure(ranked)}",
        "identified [95 % CI]",
        "label",
        "verdict",
    )
    rows: list[tuple[Inline, ...]] = []
    for each in ranked:
        for cell in each.card.cells:
            for point in cell.points:
                same = f" (bit-identical to {point_name(point.same_as)})" if point.same_as else ""
                rows.append(
                    (
                        each.card.defense.name,
                        ATTACKER_NAMES[cell.attacker],
                        f"{point_name(point.name)}, {cell.protocol}",
                        _share(point.asr),
                        f"{point.null_asr[0]:.2f}",
                        *((_share(point.exact),) if exact else ()),
                        *map(_number, point.error[1:]),
                        f"{_share(point.identified)} of {point.candidates}",
                        _number(point.label, 2),
                        _verdict(point) + same,
                    )
                )
    return Tabular(heads, tuple(rows))


def _reported(ranked: Sequence[Standing]) -> Iterator[Block]:
    rows = tuple(
        (each.card.defense.name, claim.what, f"{claim.printed:g}", _number(claim.measured), claim.source, claim.comment)
        for each in ranked
        for claim in each.card.reported
    )
    if rows:
        yield Heading(3, f"{ranked[0].card.dataset.name}: printed numbers")
        yield Tabular(("defense", "quantity", "printed", "measured here", "source", "note"), rows)


def _share(share: tuple[float, float, float] | None, digits: int = 2) -> str:
    if share is None:
        return "n/a"
    value, low, high = (f"{number:.{digits}f}" for number in share)
    return f"{value} [{low}, {high}]"


def _number(value: float | None, digits: int = 3) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"
