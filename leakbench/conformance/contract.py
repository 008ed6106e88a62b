"""The arguments of a scorer and the scores that it may return; V victims, batches of B examples, pictures of C x H x W."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from leakbench.core.errors import InputError, nearest
from leakbench.measure.rates import ASR, LABELS

__all__ = ["AVERAGED", "MEASURES", "Answer", "Floats", "Scorer", "Truth", "read_scores"]

Floats: TypeAlias = NDArray[np.float64]

AVERAGED = ("rmse", "psnr", "ssim", "lpips")
MEASURES = (*AVERAGED, ASR.column, LABELS.name, "matched", ASR.name, "overall")


class Truth(TypedDict):
    """The true examples.

    Args:
        inputs: (V, B, C, H, W) float32 in [0, 1].
        labels: (V, B) int64.
    """

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]


class Answer(TypedDict):
    """The attacker's reconstruction, in any order within a batch: the b-th label belongs to the b-th picture.

    Args:
        inputs: As in the truth, but NaN for a missing picture, and not always within [0, 1].
        labels: (V, B).
    """

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]


Scorer: TypeAlias = Callable[[Truth, Answer], Mapping[str, Any]]
"""Compares reconstructions with the truth; returns the keys that it measures, and leaves out or gives None for the others.

| key | value | what |
| --- | --- | --- |
| `rmse` | (V, B), in the order of the truth; (V,) where it has one number a batch | root mean squared error, of pixels in [0, 1] |
| `psnr` | likewise | dB, of a data range of 1 |
| `ssim` | likewise | Wang et al. 2004: 11 x 11 Gaussian window, data range 1 |
| `lpips` | likewise | Zhang et al. 2018, of pictures rescaled to [-1, 1] |
| `success` | likewise, 1 or 0 | whether the example counts as reconstructed, by the scorer's own threshold |
| `label_accuracy` | likewise | share of the labels that were found; where labels repeat, each as often as it is there |
| `matched` | (V, B) int | which picture of the answer was taken for which of the truth |
| `asr` | one number | share of all examples that count as reconstructed |
| `overall` | {`rmse`, `psnr`, `ssim`, `lpips`: one number} | the value over all examples in a table: a mean or a median |

Left open, since scorers differ with good reason: the threshold of success (answers are perfect or hopeless), mean or
median, and whether a label counts in a batch whose pictures did not come back.
"""


def read_scores(returned: Any) -> dict[str, Floats]:
    """Return {measure: float64 array} of a scorer's result; a measure of `overall` has a name such as `overall rmse`.

    Raises:
        InputError: If it is not a mapping, or has an unknown key or a value that is not an array of numbers.
    """
    if not isinstance(returned, Mapping):
        raise InputError(f"scorer: it returned {type(returned).__name__}, expected a dict like {{'rmse': array}}")
    scores = {}
    for name, value in returned.items():
        if name not in MEASURES:
            raise InputError(f"scorer: it returned the unknown key {name!r}{nearest(str(name), MEASURES)}")
        if value is None:
            continue
        if name == "overall":
            scores.update(_read_overall(value))
        else:
            scores[name] = _numbers(name, value)
    return scores


def _read_overall(value: Any) -> dict[str, Floats]:
    if not isinstance(value, Mapping) or not set(value) <= set(AVERAGED):
        got = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        raise InputError(f"scorer: for 'overall' it returned {got}, expected a dict with keys of {', '.join(AVERAGED)}")
    return {f"overall {name}": _numbers(f"overall {name}", one) for name, one in value.items() if one is not None}


def _numbers(name: str, value: Any) -> Floats:
    try:
        array = np.asarray(value)
    except Exception as error:
        raise InputError(f"scorer: for {name!r} it returned no array ({type(error).__name__}: {error})") from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"scorer: for {name!r} it returned {array.dtype}, expected an array of real numbers")
    of_all = name == ASR.name or name.startswith("overall")
    if array.ndim not in ((0,) if of_all else (1, 2)):
        shape = "one number" if of_all else "(V, B) or (V,)"
        raise InputError(f"scorer: for {name!r} it returned the shape {array.shape}, expected {shape}")
    return array.astype(np.float64)
