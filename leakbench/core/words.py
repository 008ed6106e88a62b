"""Reads words of the command line and of files: lists with commas, thresholds, times, and rules with a number, such as `shards:2`.

Writes epsilons. This module imports no PyTorch, so that a wrong word is refused at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from leakbench.core.errors import InputError

__all__ = [
    "ALL",
    "FACTOR_RANGE",
    "RELEASED",
    "UNIFORM",
    "Threshold",
    "Trainable",
    "check_audit",
    "check_availability",
    "check_delta",
    "check_device",
    "check_requirements",
    "check_success",
    "check_trials",
    "epsilon_text",
    "factors_of",
    "init_of",
    "partition_words",
    "seconds",
    "success",
    "trainable_of",
    "words",
    "written_availability",
]

LEAST = 5e-4
"""Number below which an epsilon or a noise multiplier rounds to zero, and is printed as an upper bound."""


RMSE, EDIT_DISTANCE, EXACT = "rmse", "edit_distance", "exact"

ACCEPTED = {
    RMSE: "0 < RMSE <= 1, as in --success 'rmse<=0.1'",
    EDIT_DISTANCE: "'edit_distance<=X' with X from 0 to 1, as in --success 'edit_distance<=0.1', or exact",
}
"""{measure that decides: what `--success` accepts}."""


class Threshold(float):
    """A threshold of success as a user wrote it: a number that knows its measure.

    Args:
        value: Largest distance of a reconstruction.
        measure: `rmse` or `edit_distance`; empty for a number alone, which is of the data's own measure.
    """

    measure: str

    def __new__(cls, value: float, measure: str = "") -> Self:
        """Return the number with its measure."""
        found = super().__new__(cls, value)
        found.measure = measure
        return found

    def __reduce__(self) -> tuple[type[Threshold], tuple[float, str]]:
        """Return what makes an equal threshold in another process."""
        return type(self), (float(self), self.measure)

    def __str__(self) -> str:
        return f"{self.measure or RMSE}<={float(self)}" if self else EXACT


def epsilon_text(value: float | None, form: str = ".3g") -> str:
    """Return an epsilon or a noise multiplier as text: `< 0.001` for one that rounds to 0, `none` for None, NaN and infinity.

    Args:
        value: The number, >= 0.
        form: Format of a number that does not round to 0.
    """
    if value is None or not math.isfinite(value):
        return "none"
    if 0 < value < LEAST:
        return "< 0.001"
    return format(value, form) if value else "0"


def words(field: str, text: str) -> tuple[str, ...]:
    """Return the words between commas; raises InputError for a text without a word."""
    words = tuple(word for word in text.replace(" ", "").split(",") if word)
    if not words:
        raise InputError(f"{field}: got {text!r}, expected words with commas between them")
    return words


def success(text: str | None) -> Threshold | None:
    """Return the threshold of `rmse<=0.1`, `edit_distance<=0.1` or `exact`, None for None; raises InputError for another text."""
    if text is None:
        return None
    if text.strip() == EXACT:
        return Threshold(0.0, EDIT_DISTANCE)
    found = re.fullmatch(r"\s*(rmse|edit_distance)\s*<=\s*([0-9.eE+-]+|nan|inf)\s*", text)
    try:
        return Threshold(float(found[2]), found[1]) if found else _badsuccess(text)
    except ValueError:
        return _badsuccess(text)


def check_success(given: float | None, measure: str = "", holds: str = "") -> None:
    """Check a threshold of success.

    Args:
        given: The threshold; None for the data set's own.
        measure: The measure that decides for the data, `rmse` or `edit_distance`; empty where the data are not known yet.
        holds: The data in the message, as in "'reviews' holds texts".

    Raises:
        InputError: The number is not a distance, or the user named another measure than the data's.
    """
    if given is None:
        return
    named = given.measure if isinstance(given, Threshold) else ""
    if measure and named not in ("", measure):
        lacks = "an RMSE" if named == RMSE else "an edit distance"
        raise InputError(f"success: got '{given}', but {holds}, without {lacks}; expected {ACCEPTED[measure]}")
    if not 0 <= given <= 1 or (given == 0 and named != EDIT_DISTANCE):
        raise InputError(f"success: got a threshold of {float(given)}, expected {ACCEPTED[measure or named or RMSE]}")


def seconds(field: str, text: str | float | None) -> float | None:
    """Return the seconds of `60`, `60s`, `2m`, `1.5h` or a number, None for None; raises InputError for other texts and for 0."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([smh]?)\s*", str(text), re.ASCII)
    value = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < value < math.inf:
        raise InputError(f"{field}: got {text!r}, expected a number of seconds above 0, as 60, 60s, 2m or 1h")
    return value


def _badsuccess(text: str) -> Threshold:
    raise InputError(
        f"success: got {text!r}, expected a threshold like 'rmse<=0.1', or for texts 'edit_distance<=0.1' or 'exact'"
    )


UNIFORM = "uniform"
"""Every client is available in every round."""


def check_availability(availability: str) -> tuple[str, tuple[float, ...]]:
    """Return the kind of an availability and its numbers.

    Args:
        availability: `uniform`; `beta:A,B`, where each client has its own probability from a Beta(A, B) distribution; or
            `diurnal:D`, where the probability of client i in round t is (1 + D sin(2 pi (t / 24 + u_i))) / 2, with u_i uniform in
            [0, 1).

    Raises:
        InputError: For another text, A or B not above 0, and D outside [0, 1].
    """
    kind, _, text = availability.partition(":")
    try:
        numbers = tuple(float(number) for number in text.split(",")) if text else ()
    except ValueError:
        numbers = (math.nan,)
    fits = {
        UNIFORM: numbers == (),
        "beta": len(numbers) == 2 and all(0 < n < math.inf for n in numbers),
        "diurnal": len(numbers) == 1 and all(0 <= n <= 1 for n in numbers),
    }
    if not fits.get(kind, False) or (kind == UNIFORM and availability != UNIFORM):
        raise InputError(
            f"availability: got {availability!r}, expected uniform, beta:A,B with numbers above 0, or diurnal:D with a number"
            " from 0 to 1"
        )
    return kind, numbers


def written_availability(availability: str) -> str:
    """Return an availability with its numbers in one form, as `beta:1,2` for `beta:1.0, 2`; raises InputError for another text."""
    kind, numbers = check_availability(availability)
    return f"{kind}:{','.join(str(int(n)) if n.is_integer() else repr(n) for n in numbers)}" if numbers else kind


ALL = "all"
"""Name of the rule that trains every parameter."""

RULES = "all, head, no_embeddings, blocks:N, lora:r=N or adapters:r=N with N >= 1"

STARTS = {"blocks": ":", "lora": ":r=", "adapters": ":r="}
"""{rule with a number: the signs between its name and the number}."""


@dataclass(frozen=True)
class Trainable:
    """A rule that selects the trained parameters.

    Args:
        name: `all`, `head`, `no_embeddings`, `blocks`, `lora` or `adapters`.
        number: Number of the last blocks, the rank of LoRA, or the width of the adapters.
    """

    name: str
    number: int = 0

    def __str__(self) -> str:
        return self.name + STARTS.get(self.name, "") + (str(self.number) if self.name in STARTS else "")


def trainable_of(text: str) -> Trainable:
    """Return the rule of a text, as `lora:r=8`; raises InputError for any other text."""
    if text in (ALL, "head", "no_embeddings"):
        return Trainable(text)
    for name, sign in STARTS.items():
        number = text.removeprefix(name + sign)
        if text.startswith(name + sign) and number.isascii() and number.isdecimal() and 1 <= int(number) <= 10**6:
            return Trainable(name, int(number))
    raise InputError(f"trainable: got {text!r}, expected {RULES}")


DEFAULT, *_ = INITS = ("default", "torch", "kaiming", "xavier")
"""Initialisations without a number; `default` is the network's own, see `leakbench.models.initialise.rule_of`."""


def init_of(text: str) -> tuple[str, float | None]:
    """Return the name of an initialisation in its standard form, and the bound of `uniform:<a>`, else None.

    Raises:
        InputError: For another text, and a bound that is not in (0, 100].
    """
    if text in INITS:
        return text, None
    kind, _, number = text.partition(":")
    try:
        bound = float(number) if kind == "uniform" else math.nan
    except ValueError:
        bound = math.nan
    if not 0 < bound <= 100:
        raise InputError(
            f"init: got {text!r}, expected {', '.join(INITS)} or uniform:<a> with 0 < a <= 100, as uniform:0.5"
        )
    return f"uniform:{bound:g}", bound


def partition_words(text: str) -> tuple[str, float | None]:
    """Return the name and the number, None without one, of the partition `iid`, `shards`, `shards:N` or `dirichlet:A`.

    Raises:
        InputError: For other words, and for a number that is not above 0.
    """
    name, colon, word = text.partition(":")
    try:
        number = None if not colon else int(word) if name == "shards" else float(word)
    except ValueError:
        number = math.nan
    fits = {"iid": not colon, "shards": number is None or number > 0, "dirichlet": 1e-30 <= (number or 0) <= 1e30}
    if not fits.get(name, False):
        raise InputError(
            f"partition: got {text!r}, expected iid, shards:N with a whole number N > 0, or dirichlet:A with a number A > 0"
        )
    return name, number


DEVICES = (
    *(
        "auto",
        "cpu",
        "cuda",
        "mps",
        "xpu",
        "hip",
        "hpu",
        "mtia",
        "xla",
        "meta",
        "ipu",
        "mkldnn",
        "opengl",
        "opencl",
        "ideep",
    ),
    *("ve", "fpga", "maia", "lazy", "vulkan", "privateuseone"),
)
"""`auto`, and the kinds of devices that PyTorch has names for."""


def check_device(name: str) -> None:
    """Raise InputError for a name that is not of a device; whether the device is there needs PyTorch."""
    if not re.fullmatch(rf"({'|'.join(DEVICES)})(:\d+)?", name, re.ASCII):
        raise InputError(
            f"device: {name!r} cannot be used (no kind of device that torch knows); try cpu, or cuda where there is a GPU"
        )


def check_delta(delta: float) -> None:
    """Raise InputError for a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise InputError(f"delta: got {delta}, expected a number in (0, 1)")


TRIALS = (100, 10_000_000)
"""Range of the number of trials of an audit."""


def check_trials(trials: int | None) -> None:
    """Raise InputError for a number of trials outside `TRIALS`; None is the default of the audit."""
    if trials is not None and not TRIALS[0] <= trials <= TRIALS[1]:
        raise InputError(f"trials: got {trials}, expected {TRIALS[0]} to {TRIALS[1]}")


def check_audit(delta: float, trials: int | None, function: bool, sigma: float | None, clip: float | None) -> None:
    """Raise InputError for a number of an audit outside its range.

    Args:
        delta: Delta of the epsilons.
        trials: Number of trials; None for the default.
        function: Whether a user's function is audited.
        sigma: The function's stated noise multiplier.
        clip: The function's stated L2 bound.
    """
    check_delta(delta)
    check_trials(trials)
    least, most = FACTOR_RANGE
    for name, value in (("sigma", sigma), ("clip", clip)):
        if value is not None and not function:
            raise InputError(f"{name}: got {value}, expected only with --callable; a recipe states it")
        if value is not None and not least <= value <= most:
            raise InputError(f"{name}: got {value}, expected a number from 1e-6 to 1e6")


FACTOR_RANGE = (1e-6, 1e6)
"""Range of a factor on noise or clips, such that single precision, JSON and an axis can hold the numbers."""


def factors_of(words: Sequence[str]) -> tuple[float, ...]:
    """Return the factors, the largest first; raise InputError for a factor that is not a number in range, or is given twice."""
    found = []
    for word in words:
        try:
            factor = float(word)
        except ValueError:
            factor = math.nan
        least, most = FACTOR_RANGE
        if not least <= factor <= most:
            between = f"numbers from {least:g} to {most:g} with commas between them"
            raise InputError(f"noise-factors: got {word!r}, expected {between}")
        if factor in found:
            raise InputError(f"noise-factors: {word!r} is given twice")
        found.append(factor)
    return tuple(sorted(found, reverse=True))


RELEASED = "released"
"""The observer of the released models."""


def check_requirements(max_epsilon: float | None, observer: str, points: Iterable[str]) -> None:
    """Raise InputError for an epsilon that is not above 0, and for an observer at a leakage point that is not measured."""
    known = (RELEASED, *points)
    if observer not in known:
        raise InputError(
            f"observer: got {observer!r}, expected {' or '.join(known)}; --taps measures other leakage points"
        )
    if max_epsilon is not None and not 0 < max_epsilon < math.inf:
        raise InputError(f"max-epsilon: got {max_epsilon:g}, expected a finite number above 0")
