"""Caveats: the differences between a training and the training that its claim assumes, one sentence with a number each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from leakbench.privacy.calibration import remarks
from leakbench.privacy.claimed import Claimed
from leakbench.privacy.ledger import Phase, Schedule, Unit
from leakbench.privacy.mechanism import Mechanisms
from leakbench.privacy.release import Observation, Released

__all__ = ["caveats"]


def caveats(
    phases: Sequence[Phase], unit: Unit, claimed: Claimed, seen: Observation, schedule: Schedule
) -> tuple[str, ...]:
    """Return the differences between the claim and the releases to an observer of released models.

    Args:
        seen: The releases. If it is a reason for no guarantee, only the remarks about clips are returned.

    Returns:
        One sentence each; () without a claim.
    """
    if not claimed.mechanisms:
        return ()
    about_clips = dict.fromkeys(remark for phase in phases for remark in remarks(phase.facts, unit))
    if isinstance(seen, str):
        return tuple(about_clips)
    assumed = claimed.mechanisms
    actual = tuple(inner for part in seen.parts for inner in (part.one if unit == "example" else part.drawn))
    differences = (
        *_noise(assumed, actual, schedule.tensors),
        *_sampling(assumed, actual, unit, schedule),
        *_steps(assumed, seen, unit, schedule),
    )
    members = schedule.examples_per_person
    if members > 1 and unit == "example":
        differences = (*differences, f"the claim is for one example, here a person has at most {members}")
    return (*about_clips, *differences)


def _noise(assumed: Mechanisms, actual: Mechanisms, tensors: int) -> Iterator[str]:
    claims, valid = (min(m.noise_multiplier for m in several) for several in (assumed, actual))
    if math.isclose(claims, valid, rel_tol=1e-6):
        return
    sentence = f"the claim counts noise of {claims:.4g} times one unit's bound, here it is at least {valid:.4g}"
    if tensors > 1 and math.isclose(claims, valid * math.sqrt(tensors), rel_tol=1e-6):
        sentence += f": a clip layer by layer bounds {tensors} tensors together only by sqrt({tensors}) times its norm"
    yield sentence


def _sampling(assumed: Mechanisms, actual: Mechanisms, unit: Unit, schedule: Schedule) -> Iterator[str]:
    claims, valid = (max(m.sampling_rate for m in several) for several in (assumed, actual))
    if claims >= 1 or assumed[0].sampling != "poisson":
        return
    if unit == "example" and schedule.batch_sampling == "split":
        yield (
            f"the claim amplifies by Poisson batches with q={claims:.4g}, but each example is used "
            f"{schedule.passes()} time(s) in every participation, from a fixed split (q=1)"
        )
    elif actual[0].sampling == "fixed":
        yield (
            f"the claim amplifies by Poisson sampling with q={claims:.4g}, but a fixed number is drawn without "
            f"replacement (q={valid:.4g}): to replace one unit moves the sum by up to 2 times its bound"
        )
    elif actual[0].sampling == "visible":
        yield f"the claim amplifies by q={claims:.4g}, but the noise shows how many were drawn, so nothing amplifies"
    elif not math.isclose(claims, valid, rel_tol=1e-6):
        yield f"the claim counts q={claims:.4g}, here one release uses a unit with q={valid:.4g}"


def _steps(assumed: Mechanisms, seen: Released, unit: Unit, schedule: Schedule) -> Iterator[str]:
    several = (assumed, seen.mechanisms, seen.without_draw)
    claims, mean, most = (sum(m.releases for m in mechanisms) for mechanisms in several)
    split = unit == "example" and schedule.batch_sampling == "split"
    # A claim that counts participation in every round uses the largest number that the draw of clients can give.
    if claims not in (mean, most) and not split:
        random = f"{mean} releases on average and {most} at most" if mean != most else f"{most} releases"
        yield f"the claim counts {claims} steps, here the worst {unit} is in {random}"
    if unit == "example" and schedule.most_copies > 1:
        yield (
            f"the claim assumes that one client holds each example, here {schedule.copies:.4g} hold it on average and "
            f"{schedule.most_copies} at most"
        )
