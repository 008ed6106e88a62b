"""How much of each work is done: the published figures, and the same keys in about a minute."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Size"]


@dataclass(frozen=True)
class Size:
    """repeats: of what takes seconds; `rarely` of what takes longer.

    victims: searched together `turns` times, for so many `outer` iterations at most; alone: of them searched one by one in a
    turn.
    lanes: victims in one evaluation.  clients, iterations: K_t and L of a round.  flower: K_t and L of Flower's round.
    few: clients of the rounds in which local iterations are compared, steps: their L, and of a client of Opacus.
    whitened: victims of the whitened search.  ranked: victims ranked among 1,000.
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
)
