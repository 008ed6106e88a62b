"""Every number of a cell, resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.data.recipe import Federation
from leakbench.models.initialise import DEFAULT

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """What a cell is run with.

    Args:
        leak_rounds: Rounds trained before each leak.
        stop_after: How many of the federation's rounds a budget allows; None for all.
        victim_mode: See `leakbench.cell.victim_mode`; None where no network depends on it.
        init: How the first weights of both networks are drawn, see `leakbench.models.initialise.rule_of`.
        join_rounds: Whether all of them are views of the same victims, for one attack.
        reads: One of `READS`.
        observations: How many looks an attack gets at each gradient, see `leakbench.cell.looks`.
        engine: How gradients are computed, one of `leakbench.request.ENGINES`; noise is drawn in another order by each.
        pictures: Whether examples and reconstructions are kept in the run's folder.
        networks: How many draws of the first weights the victims are spread over; 1 in the live protocol, whose network is
            trained.
        budget: Seconds of wall time that all attacks of the run may take; None for no limit.
    """

    part_name: ClassVar[str] = "settings"

    protocol: str
    taps: tuple[str, ...]
    victims: int
    leak_batch: int
    leak_rounds: tuple[int, ...]
    model: str
    leak_model: str
    federation: Federation
    success: float | None
    candidates: int
    lpips: str
    seed: int
    device: str
    stop_after: int | None = None
    victim_mode: str | None = None
    init: str = DEFAULT
    join_rounds: bool = False
    reads: str = "gradient"
    observations: int = 1
    engine: str = "fast"
    pictures: bool = True
    networks: int = 1
    budget: float | None = None

    @property
    def leaking(self) -> str:
        """The name of the network from which the protocol leaks."""
        return self.leak_model if self.protocol == "paper" else self.model

    @property
    def leaks(self) -> tuple[tuple[int, ...], ...]:
        """The rounds before which each attack sees something: one each, or all together."""
        return (self.leak_rounds,) if self.join_rounds else tuple((number,) for number in self.leak_rounds)
