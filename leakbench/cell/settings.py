"""The resolved numbers of a cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from leakbench.core.leakage_points import LeakagePoint
from leakbench.core.request import BATCH, CLASS
from leakbench.data.recipe import Federation
from leakbench.models.initialise import DEFAULT
from leakbench.models.trainable import ALL

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """The settings of a cell.

    Args:
        leak_rounds: Number of rounds before each leak.
        model: Name of the network that is trained. A network in a folder has the hash of its files in its name, see
            `leakbench.models.folder`.
        leak_model: Name of the network that leaks in the `paper` protocol, likewise.
        stop_after: Number of the federation's rounds within a budget; None for all.
        victim_mode: See `leakbench.cell.victim_mode`; None if no network depends on it.
        init: Initialisation of both networks, see `leakbench.models.initialise.rule_of`.
        trainable: The parameters of both networks that are trained, see `leakbench.models.trainable`.
        loss: One of `leakbench.core.request.LOSSES`, or a user's function with the hash of its module.
        targets: Name of the targets in the data set's recipe; empty for classes.
        join_rounds: Whether one attack observes the same victims at all leak rounds.
        reads: One of `leakbench.core.request.READS`.
        observations: Number of observations of each gradient, see `leakbench.cell.looks`.
        engine: One of `leakbench.core.request.ENGINES`, which draw noise in different orders.
        pictures: Whether the run's folder has examples and reconstructions.
        networks: Number of draws of the first weights among the victims; 1 in the live protocol, whose network is trained.
        canaries: Number of canaries of the training, see `leakbench.federated.canaries`.
        examples_per_person: Largest number of examples of one person in a client's data, for the epsilons only.
        statistics: One of `leakbench.core.request.STATISTICS`.
        size: Height and width to which pictures are resized; None for the data set's own.
        budget: Wall time in seconds for all attacks of the run; None for no limit.
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
    trainable: str = ALL
    loss: str = CLASS
    targets: str = ""
    canaries: int = 0
    examples_per_person: int = 1
    size: int | None = None
    statistics: str = BATCH

    @property
    def leaking(self) -> str:
        """The name of the network that leaks."""
        return self.leak_model if self.protocol == "paper" else self.model

    @property
    def networks_used(self) -> tuple[str, ...]:
        """The names of the networks that read examples: the one that is trained, and in the `paper` protocol the one that leaks."""
        return (self.model, self.leak_model) if self.protocol == "paper" else (self.model,)

    def point(self, tap: str, last: int) -> LeakagePoint:
        """Return the leakage point of the attack at a tap whose last leak is after `last` rounds."""
        rounds = self.leak_rounds if self.join_rounds else (last,)
        return LeakagePoint(tap, rounds if self.protocol == "live" else ())

    @property
    def leaks(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of rounds before the leaks of each attack: one for each, or all together."""
        return (self.leak_rounds,) if self.join_rounds else tuple((number,) for number in self.leak_rounds)
