"""Reasons why an example has no reconstruction: keys of rows and summaries, which the report puts into words."""

from __future__ import annotations

import numpy as np
import pandas as pd
from torch import Tensor

__all__ = [
    "CLASS_ABSENT",
    "DIVERGED",
    "NONE_GIVEN",
    "NOT_CAUGHT",
    "NOT_FINITE",
    "NOT_ISOLATED",
    "REFUSED",
    "SILENT",
    "explained",
]

# For any attack: it gave fewer reconstructions than there are examples, or one that is not finite.
NONE_GIVEN = "none_given"
NOT_FINITE = "not_finite"
# The leak is zero throughout, because the client refused the model or for another reason.
REFUSED = "refused"
SILENT = "silent"
# The leak, or the network that was sent, is not finite: training has diverged, or a noise exceeds single precision.
DIVERGED = "diverged"
# For a server that isolates one example of a class: the batch does not contain the class, the server isolated no example, or it
# isolated another one.
CLASS_ABSENT = "class_absent"
NOT_CAUGHT = "not_caught"
NOT_ISOLATED = "not_isolated"


def explained(
    rows: pd.DataFrame, silent: Tensor, refuses: bool, fished: int | None, readable: Tensor | None = None
) -> pd.DataFrame:
    """Return the rows of V victims with M examples each, with more specific reasons for missing reconstructions.

    Args:
        silent: (V,) bool, whether a victim's leak is zero throughout.
        refuses: Whether the client sends zeros instead of a gradient where it refuses the model.
        fished: The class from which the server isolates one example; None for any other server.
        readable: (V,) bool, whether a victim's leak is finite; None if all are.
    """
    shape = (len(silent), len(rows) // len(silent))
    reasons = rows["failure_reason"].to_numpy(dtype=object).reshape(shape).copy()
    if fished is not None:
        unanswered = (reasons == NONE_GIVEN) & rows["failure"].to_numpy(dtype=bool).reshape(shape)
        nobody = unanswered.all(1, keepdims=True)
        present = (rows["label"].to_numpy().reshape(shape) == fished).any(1, keepdims=True)
        why = np.where(nobody, np.where(present, NOT_CAUGHT, CLASS_ABSENT), NOT_ISOLATED)
        reasons = np.where(unanswered, why, reasons)
    known = np.isin(reasons.astype(str), [NONE_GIVEN, NOT_FINITE, CLASS_ABSENT, NOT_CAUGHT])
    nothing = silent.cpu().numpy()[:, None] & known
    reasons = np.where(nothing, REFUSED if refuses else SILENT, reasons)
    if readable is not None:
        reasons = np.where(~readable.cpu().numpy()[:, None] & known, DIVERGED, reasons)
    return rows.assign(failure_reason=reasons.reshape(-1))
