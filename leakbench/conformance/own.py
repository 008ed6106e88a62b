"""leakbench's own scorer in the form that the cases ask for: what a run does with an answer, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from leakbench.answers import Ranking
from leakbench.attack.null.pictures import NullAttack
from leakbench.conformance.contract import AVERAGED, Answer, Truth
from leakbench.measure import metrics
from leakbench.measure.scores import Truth as Real
from leakbench.measure.scores import no_reconstruction, score
from leakbench.summary.tap import tap_summary

__all__ = ["OwnScorer"]


@dataclass(frozen=True)
class OwnScorer:
    """Score as `leakbench run` does. eta: the threshold of success; lpips: a score, or the reason why there is none."""

    eta: float = 0.1
    lpips: metrics.Score | str = metrics.LPIPS_ABSENT

    def __call__(self, truth: Truth, answer: Answer) -> Mapping[str, Any]:
        """Return every measure, see `leakbench.conformance.Scorer`."""
        inputs, labels, said, guesses = (
            torch.from_numpy(a) for a in (truth["inputs"], truth["labels"], answer["inputs"], answer["labels"])
        )
        victims, members = labels.shape
        lanes = torch.arange(victims)
        real = Real(lanes, inputs, labels, torch.arange(victims * members).reshape(victims, members), lanes)
        given = dataclasses.replace(no_reconstruction(real), inputs=said, labels=guesses, iterates=said[None])
        # No case asks for the null attacker or a ranking: a guess of black, every victim and every class alike.
        null = NullAttack({"black": torch.zeros_like(inputs.flatten(0, 1))}, {}, {}, "black", "black")
        many = {"identified": victims, "label_ranked": int(labels.max()) + 1}
        alike = {name: Ranking(torch.zeros(victims, k)) for name, k in many.items()}
        rows, _ = score("type-1", 0, given, alike, null, real, self.eta, self.lpips)
        return self._returned(rows, (victims, members)) | {"matched": metrics.match(said, inputs).numpy()}

    def _returned(self, rows: pd.DataFrame, shape: tuple[int, int]) -> dict[str, Any]:
        rows = rows.assign(label_accuracy=rows["label"] == rows["label_guess"])
        names = [n for n in (*AVERAGED, "success", "label_accuracy") if n != "lpips" or callable(self.lpips)]
        table = tap_summary(rows, 0.0)
        # A summary says None where the value over all is infinite.
        overall = {n: np.nan if table[n] is None else table[n] for n in AVERAGED if n in names}
        return {n: rows[n].to_numpy().reshape(shape) for n in names} | {"asr": table["asr"], "overall": overall}
