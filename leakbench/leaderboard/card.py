"""The fields of a card, which describes one defense on one data set; a card omits a number that was not measured, or has None."""

from __future__ import annotations

import re
from dataclasses import field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field

from leakbench.cell import Cell
from leakbench.core.part import Count, Probability, part
from leakbench.core.recipe import content_of, describe, nested
from leakbench.leaderboard.asked import CardSizes
from leakbench.measure.measures import EDIT_DISTANCE, RMSE

__all__ = [
    "FORMAT",
    "Accuracy",
    "Audited",
    "Card",
    "CardClaim",
    "CardEpsilon",
    "CardPoint",
    "Measured",
    "Source",
    "TapEpsilon",
    "contents_of",
    "link_of",
    "sources_of",
]


LONGEST = 2000


def _name(text: str) -> str:
    """Refuse names that are not in the catalog, so that a card cannot leave its folder."""
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,99}", text):
        raise ValueError("expected small letters, digits and _, as the catalog's names are")
    return text


def _hash(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text):
        raise ValueError("expected a sha256 of 64 digits")
    return text


def _sentence(text: str) -> str:
    if len(text) > LONGEST or not text.isprintable():
        raise ValueError(f"expected one printable line of at most {LONGEST} characters")
    return text


def _link(text: str) -> str:
    if text and not re.fullmatch(r"https://[\w./:%()-]+", text):
        raise ValueError("expected an https:// address, or nothing")
    return text


def _inside(share: tuple[float, float, float]) -> tuple[float, float, float]:
    value, low, high = share
    if not low <= value <= high:
        raise ValueError("expected [value, low, high] with low <= value <= high")
    return share


def _spread(spread: tuple[float, float | None, float | None]) -> tuple[float, float | None, float | None]:
    value, low, high = spread
    if (low is not None and low > value) or (high is not None and high < value):
        raise ValueError("expected [value, low, high] with low <= value <= high")
    return spread


Chance = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Share: TypeAlias = Annotated[tuple[Chance, Chance, Chance], AfterValidator(_inside)]
"""[a share, and its 95 % interval]."""

Spread: TypeAlias = Annotated[tuple[Amount, Amount | None, Amount | None], AfterValidator(_spread)]
"""[a median, and its 95 % interval]; None for an end that failures reach."""

Name: TypeAlias = Annotated[str, AfterValidator(_name)]
Hash: TypeAlias = Annotated[str, AfterValidator(_hash)]
Sentence: TypeAlias = Annotated[str, AfterValidator(_sentence)]
Link: TypeAlias = Annotated[str, AfterValidator(_link)]


FORMAT: Literal[1] = 1

Several: TypeAlias = tuple[Sentence, ...]
Whole = Annotated[int, Field(ge=0)]
Scalar: TypeAlias = bool | int | Annotated[float, Field(allow_inf_nan=False)] | Sentence | None


@part
class Source:
    """A recipe, or a data set: what it is, who published it, and the hash of its content.

    Args:
        link: To the paper, where the citation has its number; else empty.
    """

    name: Name
    title: Sentence
    cite: Sentence
    link: Link
    content: Hash


@part
class CardPoint:
    """What an attacker got at one leakage point.

    Args:
        name: The leakage point, with its round where several are.
        failures: Examples without an answer.
        asr: Share rebuilt within the threshold; failures count as failures.
        null_asr: ASR of the baseline guess.
        rmse: Median; None where at least half of the examples have no answer, and for texts.
        null_rmse: RMSE of the baseline guess.
        identified: Among `candidates`, `chance` without any leak.
        label: Accuracy of the labels of the reconstruction.
        label_ranked: Accuracy of the label by a ranking of classes that knows the defense.
        features: Share of right features of a table; `null_features` is that of the baseline guess.
        records: Share of records of a table that are right as a whole.
        same_as: The leakage point that showed the same bits; empty without one.
        networks: Over how many draws of the first weights the victims are spread, victim v at draw v modulo this number; one
            training counts as one.
        by_network: {a share: how many victims of each network it counts}, from which its interval follows.
        excluded: The rate of reconstruction, identification or recognition above which the evidence excludes every one at 95 %;
            None where a leak is stated, and on cards from before.
        edit_distance: Median of texts, None as `rmse`; `null_edit_distance` is that of the baseline guess.
        exact: Share of sentences that are reconstructed token for token; None for other data, and on cards from before.
    """

    name: Annotated[str, Field(pattern=r"^(type-[012]|global)(@\d+)?$")]
    victims: Count
    batch: Count
    failures: Whole | None
    asr: Share | None
    null_asr: Share
    rmse: Spread | None
    null_rmse: Amount | None
    identified: Share | None
    candidates: Count
    chance: Chance
    label: Chance | None
    label_ranked: Share | None
    features: Share | None
    null_features: Chance | None
    records: Share | None
    verdict: Literal["reconstructs", "identifies", "no leak found", "inconclusive", "attack failed"]
    same_as: Sentence
    networks: Count = 1
    by_network: dict[Literal["asr", "identified", "label_ranked"], tuple[Amount, ...]] = field(default_factory=dict)
    excluded: Chance | None = None
    edit_distance: Spread | None = None
    null_edit_distance: Amount | None = None
    exact: Share | None = None

    @property
    def error(self) -> tuple[str, float | None, float | None]:
        """Return (heading of the measure that decides success, its median, that of the baseline guess)."""
        if self.null_edit_distance is None:
            return RMSE.heading, None if self.rmse is None else self.rmse[0], self.null_rmse
        found = None if self.edit_distance is None else self.edit_distance[0]
        return EDIT_DISTANCE.heading, found, self.null_edit_distance


@part
class Measured:
    """One cell: its attacker, its protocol, the command that runs it, its hash, and its results.

    Args:
        network: The one that leaks.
    """

    attacker: Literal["oblivious", "aware"]
    protocol: Literal["paper", "live"]
    command: Sentence
    hash: Hash
    network: Sentence
    points: Annotated[tuple[Annotated[CardPoint, nested(CardPoint)], ...], Field(min_length=1)]
    warnings: Several


@part
class Accuracy:
    """Accuracy of the trained network on the test examples; for several seeds the mean over their trainings.

    Args:
        value: With its 95 % interval: over test examples for one training, over trainings for several.
        majority: Of who always names their commonest class.
        by_seed: How many test examples the network of each training classifies correctly, from which `value` follows; empty
            for one seed.
    """

    value: Share | None
    majority: Chance
    examples: Count
    rounds: Whole
    by_seed: tuple[Amount, ...] = ()

    @property
    def of_trainings(self) -> tuple[float, ...]:
        """The accuracy of each training; empty where nothing was trained."""
        if self.value is None:
            return ()
        return tuple(right / self.examples for right in self.by_seed) or self.value[:1]


@part
class TapEpsilon:
    """The valid epsilon against an attacker at one leakage point, or the reason without one."""

    valid: Amount | None
    reason: Sentence


@part
class Audited:
    """Lower bounds on epsilon from the defense's own code: no epsilon below is true, at `confidence`.

    Args:
        lower_bound_family: Of Gaussian noise; None where the noise is not.
    """

    command: Sentence
    lower_bound: Amount
    lower_bound_family: Amount | None
    confidence: Probability
    trials: Count
    verdict: Literal["holds", "violated", "no guarantee"]
    reason: Sentence


@part
class CardEpsilon:
    """The claimed epsilon, the valid ones for the released models and for each leakage point, and the audited bound."""

    unit: Literal["example", "client"]
    delta: Probability
    claimed: Amount | None
    claimed_by: Sentence
    caveats: Several
    valid: Amount | None
    reason: Sentence
    by_tap: dict[str, Annotated[TapEpsilon, nested(TapEpsilon)]]
    audited: Annotated[Audited, nested(Audited)]


@part
class CardClaim:
    """A printed number for this data set and the measured one; None if it was not measured."""

    what: Sentence
    printed: Annotated[float, Field(allow_inf_nan=False)]
    measured: Annotated[float, Field(allow_inf_nan=False)] | None
    source: Sentence
    comment: Sentence


@part
class Card:
    """One defense on one data set.

    Args:
        hash: Hash of the cells' hashes and of the audit's command.
        asked: What the command said.
        settings: Every number of the cells, resolved.
        made_with: Versions, threads and the machine's kind, which decide how closely numbers repeat.
    """

    format: Literal[1]
    hash: Hash
    repeat: Sentence
    defense: Annotated[Source, nested(Source)]
    dataset: Annotated[Source, nested(Source)]
    attack: Annotated[Source, nested(Source)]
    threat: Sentence
    asked: Annotated[CardSizes, nested(CardSizes)]
    settings: dict[str, Scalar]
    reported: tuple[Annotated[CardClaim, nested(CardClaim)], ...]
    accuracy: Annotated[Accuracy, nested(Accuracy)]
    epsilon: Annotated[CardEpsilon, nested(CardEpsilon)]
    cells: Annotated[tuple[Annotated[Measured, nested(Measured)], ...], Field(min_length=1)]
    warnings: Several
    made_with: dict[str, Sentence]


def contents_of(cell: Cell) -> dict[str, str]:
    """Return {`defense`, `dataset`, `attack`: the hash of its content} of a cell; empty for data that were not read."""
    return {
        "defense": content_of(describe(cell.defense)),
        "dataset": cell.data.content,
        "attack": content_of(describe(cell.attack)),
    }


def sources_of(cell: Cell) -> dict[str, Source]:
    """Return {`defense`, `dataset`, `attack`: what it is} of a cell whose data were read."""
    contents = contents_of(cell)
    recipes: dict[str, Any] = {"defense": cell.defense, "dataset": cell.recipe, "attack": cell.attack}
    return {
        what: Source(
            name=cell.names[what].partition(" (")[0],
            title=" ".join(str(recipe.title).split()),
            cite=" ".join(str(recipe.cite).split()),
            link=link_of(str(recipe.cite)),
            content=contents[what],
        )
        for what, recipe in recipes.items()
    }


def link_of(cite: str) -> str:
    """Return the address of the paper by the arXiv number or the DOI in a citation; nothing where it has neither."""
    if found := re.search(r"arXiv:\s?(\d{4}\.\d{4,5})", cite):
        return f"https://arxiv.org/abs/{found[1]}"
    if found := re.search(r"\b(10\.\d{4,9}/[\w./:()-]*\w)", cite):
        return f"https://doi.org/{found[1]}"
    return ""
