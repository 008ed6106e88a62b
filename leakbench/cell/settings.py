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

    leak_rounds: rounds trained before each leak.  join_rounds: whether all of them are views of the same victims, for one attack.
    reads: one of `READS`.
    observations: how many looks an attack gets at each gradient, see `leakbench.cell.looks`.
    stop_after: how many of the federation's rounds a budget allows; None for all.
    victim_mode: see `leakbench.cell.victim_mode`; None where no network depends on it.
    networks: how many draws of the first weights the victims are spread over; 1 in the live protocol, whose network is trained.
    engine: how gradients are computed, one of `leakbench.cell.request.ENGINES`; noise is drawn in another order by each.
    pictures: whether examples and reconstructions are kept in the run's folder.
    budget: seconds of wall time that all attacks of the run may take; None for no limit.
    init: how the first weights of both networks are drawn, see `leakbench.models.initialise.rule_of`.
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
