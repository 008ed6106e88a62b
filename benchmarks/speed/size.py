"""The amount of work of each figure: for the published figures, and for the same keys in about a minute."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Size"]


@dataclass(frozen=True)
class Size:
    """The amount of work of each figure.

    Args:
        repeats: Number of repeats of work that takes seconds.
        rarely: Number of repeats of longer work.
        victims: Number of victims that are searched together.
        outer: Largest number of outer iterations of these searches.
        turns: Number of repeats of these searches.
        alone: Number of victims that are searched one by one in a turn.
        lanes: Number of victims in one evaluation.
        clients: K_t of a round.
        iterations: L of a round.
        flower: K_t and L of Flower's round.
        flower_rounds: Number of Flower's rounds.
        few: Number of clients in the rounds that compare local iterations.
        steps: L of these rounds, and of a client of Opacus.
        whitened: Number of victims of the whitened search.
        ranked: Number of victims that are ranked among 1,000 candidates.
        to_eta: Largest number of outer iterations of the searches whose time until success is measured.
        alone_to_eta: Number of victims of these that are searched one by one; four times as many are searched together.
        peers: Number of victims that breaching and LeakPro search; 0 leaves them out.
        peer_evaluations: Largest number of evaluations of their searches.
        sizes: Whether one evaluation is timed at all sizes of an attack, or at a few.
    """

    repeats: int
    rarely: int
    victims: int
    outer: int
    turns: int
    alone: int
    lanes: int
    clients: int
    iterations: int
    flower: tuple[int, int]
    flower_rounds: int
    few: int
    steps: int
    whitened: int
    ranked: int
    to_eta: int
    alone_to_eta: int
    peers: int
    peer_evaluations: int
    sizes: bool


FULL = Size(
    repeats=5,
    rarely=3,
    victims=100,
    outer=100,
    turns=3,
    alone=3,
    lanes=100,
    clients=100,
    iterations=100,
    flower=(100, 100),
    flower_rounds=4,
    few=20,
    steps=100,
    whitened=100,
    ranked=500,
    to_eta=40,
    alone_to_eta=8,
    peers=3,
    peer_evaluations=4000,
    sizes=True,
)

QUICK = Size(
    repeats=3,
    rarely=1,
    victims=8,
    outer=3,
    turns=3,
    alone=1,
    lanes=24,
    clients=10,
    iterations=10,
    flower=(20, 20),
    flower_rounds=2,
    few=10,
    steps=10,
    whitened=8,
    ranked=50,
    to_eta=8,
    alone_to_eta=2,
    peers=0,
    peer_evaluations=0,
    sizes=False,
)
