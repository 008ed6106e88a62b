"""The threat model of a cell in the letters of Carletti et al., SoK: Gradient Inversion Attacks in FL (USENIX Security 2025).

Here every attacker is told the batch size and the learning rate, so that no cell is below C; no cell is H.
"""

from __future__ import annotations

import re

from leakbench.attack.recipe import Attack
from leakbench.attack.servers.server import lies
from leakbench.core.request import BATCH

__all__ = ["LETTERS", "MEANS", "letter", "printed_threat", "threat"]

LETTERS = {
    "A": "sees updates",
    "B": "knows what inputs are like in general",
    "C": "knows how clients train",
    "D": "has public data of the victims' kind",
    "E": "has the statistics of the victims' batch normalisation",
    "F": "may change the model",
    "G": "may change it, and has public data",
    "H": "adds its own clients",
}
"""All of them."""

MEANS = {
    "C": "knows how clients train",
    "D": "knows how clients train, has public data",
    "E": "knows how clients train, has the statistics of the victims' batch normalisation",
    "F": "changes the model",
    "G": "changes the model, has public data",
}
"""The meaning of each combination that attacks have."""


def letter(attack: Attack, statistics: str = BATCH) -> str:
    """Return `C`, `D`, `E`, `F` or `G`, from what the parts of an attack need, from its server, and from its statistics.

    Args:
        attack: The attack.
        statistics: One of `leakbench.core.request.STATISTICS`.
    """
    public = attack.needs.public > 0
    if lies(attack.server):
        return "G" if public else "F"
    if statistics in ("given", "inferred"):
        return "E"
    return "D" if public else "C"


def threat(attack: Attack) -> str:
    """Return what the server does, the letter and its meaning, in the words of files."""
    found = letter(attack)
    return f"{attack.server.threat} ({found}: {MEANS[found]})"


def printed_threat(threat: str) -> str:
    """Return the text after `threat:` for what a file calls the threat; files call an honest-but-curious server honest."""
    return re.sub(r"^honest(?!-)", "honest-but-curious", threat)
