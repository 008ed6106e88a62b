"""Tries every transform of every defense on degenerate gradients, at every station, and with numbers at the ends of ranges."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch

from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.rng import generators
from leakbench.core.types import Clock, Local, Network, Signal
from leakbench.defense.recipe import TRANSFORM
from leakbench.defense.transform import apply
from leakbench.models import build, parameters
from leakbench.privacy.decay import DECAY
from tests.reliability.edges_gradients import FINITE, KINDS, made
from tests.reliability.tally import Tally

__all__ = ["clipped_to", "numbers", "try_mechanisms"]

LANES, MEMBERS = 2, 3
SHAPE, CLASSES = (1, 4, 4), 3
CLOCK = Clock(0, 0, 1, 1, cohort=LANES, clients=LANES, examples_per_client=MEMBERS)

CALIBRATION = {"norm": 1.0, "epsilon": 1.0}
PERCENTILE = "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy"
GAUSSIAN = {
    "mechanism": "pfl.privacy.gaussian_mechanism.GaussianMechanism",
    "arguments": {"clipping_bound": 1.0, "relative_noise_stddev": 1.0},
}
PRIORITY = {"which": "least", "calibration": CALIBRATION, "epsilon_selected": 0.5}

FORMS: dict[str, tuple[dict[str, Any], ...]] = {
    "clip_whole": tuple({"norm": n} for n in (1e-15, 1.0, 1e30)),
    "clip_layers": tuple({"norm": n} for n in (1e-15, 1.0, 1e30)),
    "clip_layers_shared": tuple({"norm": n} for n in (1e-15, 1.0, 1e30)),
    "clip_median": ({},),
    "clip_inverted": ({}, {"noise_multiplier": 1e9}),
    "l2_max": ({},),
    "l2_max_released": ({}, {"floor": 1.0, "ceiling": 1.0}),
    "gaussian_noise": tuple(
        {"multiplier": m, "to": to, "uncalibrated": True} for m in (0.0, 1.0, 1e9) for to in ("each", "sum", "mean")
    ),
    "correlated_noise": (
        *({"multiplier": m} for m in (0.0, 1.0, 1e9)),
        *({"multiplier": 1.0, "correlation": {"banded": {"bands": b}}} for b in (1, 1000)),
        {"multiplier": 1.0, "correlation": {"buffered": {"buffers": 1}}},
        {"multiplier": 1.0, "correlation": "independent"},
    ),
    "banded_noise": tuple({"multiplier": m} for m in (0.0, 1.0, 1e9)),
    "share_of_noise": tuple({"multiplier": m} for m in (0.0, 1.0, 1e9)),
    "integer_shares": (
        *({"multiplier": m} for m in (0.0, 1.0, 1e9)),
        {"multiplier": 1.0, "noise": "skellam", "bits": 3, "beta": 0.0},
        {"multiplier": 1.0, "bits": 22, "beta": 0.999999},
    ),
    "clip_quantile": tuple({"initial": n} for n in (1e-15, 1.0, 1e30)),
    "quantile_noise": ({"multiplier": 0.0, "to": "sum"}, {"multiplier": 1.0, "to": "sum", "count_std": 1e9}),
    "quantile_noise_released": ({"multiplier": 0.0}, {"multiplier": 1.0, "count_std": 1e9}),
    "adapt_clip": ({}, {"learning_rate": 1e30}, {"learning_rate": 1e-30}),
    "adaclip": tuple({"multiplier": m} for m in (0.0, 1.0, 1e9)),
    "adaclip_released": ({"noise_variance": 0.0}, {}, {"noise_variance": 1e9}),
    "laplace_noise": tuple({"scale": s} for s in (0.0, 1.0, 1e9)),
    "prune_threshold": tuple({"share": s} for s in (0.0, 0.5, 0.999999)),
    "prune_threshold_released": tuple({"share": s} for s in (0.0, 0.5, 0.999999)),
    "prune_random": tuple({"share": s} for s in (1e-9, 0.5, 1.0)),
    "sign": tuple({"size": s} for s in (1e-30, 1.0, 1e30)),
    "soteria": tuple({"share": s} for s in (0.0, 0.5, 1.0)),
    "outpost": ({}, {"noise": 1e9, "share": 1.0}, {"pruned": 1.0, "decay": 1e9}, {"discarded": True}),
    "conceal": (
        {"iterations": 3},
        {"iterations": 3, "rate": 1e9, "weight": 1.0},
        {"iterations": 3, "enough": 1e-30, "weight": 0.0, "projected": False},
    ),
    "censor": (
        {"trials": 2},
        {"trials": 2, "step": 1e9},
        {"trials": 2, "projection": "released"},
        {"trials": 2, "rounds": 1},
    ),
    "graddefense": ({"noise": 1.0}, {"noise": 1e9, "clip": True}, {"noise": 1e-9, "slices": 1, "perturbed": 1}),
    "nbafl_uplink": tuple({"calibration": {**CALIBRATION, "epsilon": e}} for e in (1e-9, 1.0, 1e30)),
    "nbafl_downlink": tuple({"calibration": {**CALIBRATION, "epsilon": e}} for e in (1e-9, 1.0, 1e30)),
    "priority_noise": tuple(
        {**PRIORITY, "importance": i, "share": s}
        for i in ("variance", "sensitivity", "central")
        for s in (0.0, 0.5, 1.0)
    ),
    "nvflare_filter": ({"filter": PERCENTILE},) if find_spec("nvflare") else (),
    "pfl_mechanism": (GAUSSIAN, {**GAUSSIAN, "step": "constrain_sensitivity"}, {**GAUSSIAN, "step": "add_noise"})
    if find_spec("pfl") and find_spec("multiprocess")
    else (),
    "percentile_filter": ({}, *({"share": s, "gamma": n} for s, n in ((0.0, 1e-30), (1.0, 1e30)))),
    "sparse_vector": ({}, {"fraction": 1e-9, "epsilon": 1e-9}, {"fraction": 1.0, "epsilon": 1e9, "replace": False}),
    "percentile_noise": tuple({"sigma0": s} for s in (0.0, 1.0, 1e9)),
    "qsgd": tuple(
        {"levels": n, "bucket": b, "scale": s} for n, b in ((1, 1), (16, 512)) for s in ("length", "largest")
    ),
    "top_k_feedback": tuple({"share": s} for s in (1e-9, 0.5, 1.0)),
    "random_rate": tuple({"spread": s} for s in (0.0, 0.5, 1.0)),
    "refuse_conspicuous": ({}, {"rows_alike": None, "d_snr": None, "lit_alone": None}),
}
"""{transform: its numbers at the ends of their ranges, and between}."""

BEFORE: dict[str, tuple[dict[str, Any], ...]] = {
    "l2_max": ({"clip_whole": {"norm": 1.0}},),
    "correlated_noise": ({"clip_whole": {"norm": 1.0}},),
    "banded_noise": ({"clip_whole": {"norm": 1.0}},),
    "share_of_noise": ({"clip_whole": {"norm": 1.0}},),
    "integer_shares": ({"clip_whole": {"norm": 1.0}},),
    "quantile_noise": ({"clip_quantile": {"initial": 1.0}},),
    "quantile_noise_released": ({"clip_quantile": {"initial": 1.0}},),
    "adapt_clip": ({"clip_quantile": {"initial": 1.0}},),
}
"""{transform: the parts required before it}."""

WITHOUT = ("client", "server")
"""Stations without the inputs of some transforms, which refuse them."""


def try_mechanisms(tally: Tally, full: bool) -> None:
    """Try all variants of all transforms on all kinds of gradients; a third of the variants if not `full`."""
    if set(FORMS) != set(TRANSFORM.parts):
        tally.expect(False, f"mechanisms: {sorted(set(FORMS) ^ set(TRANSFORM.parts))} are not in the grid")
    for name, forms in FORMS.items():
        for form in forms if full else forms[:1]:
            for station in ("example", "client", "server") if full else ("example",):
                for kind in KINDS if full else ("zero", "huge", "nan"):
                    with tally.case(f"mechanisms: {name} {form} at {station}, {kind} gradients"):
                        _tried(name, form, station, kind)
    for name, form, field, value in _wrong_numbers(full):
        with tally.case(f"mechanisms: {name}.{field} = {value}"):
            refused(
                lambda n=name, f=form, k=field, v=value: construct({**TRANSFORM.parts, **DECAY.parts}[n], {**f, k: v}),
                field,
            )


def _tried(name: str, form: dict[str, Any], station: str, kind: str) -> None:
    steps = tuple(
        construct(TRANSFORM.parts[n], f) for part in (*BEFORE.get(name, ()), {name: form}) for n, f in part.items()
    )
    before = _signal(kind, station)
    try:
        after = apply(steps, before, CLOCK, generators(0, "noise", [(lane,) for lane in range(before.lanes)]))
    except InputError as error:
        if "\n" in str(error) or not str(error):
            raise AssertionError(f"refused in {str(error)!r}, expected one line") from None
        if station not in WITHOUT and name not in ("nbafl_uplink", "nbafl_downlink", "censor", "conceal"):
            raise AssertionError(f"refused at a station where it can stand: {error}") from None
        return
    for n, g in before.grads.items():
        if after.grads[n].shape != g.shape or after.grads[n].dtype != g.dtype:
            raise AssertionError(f"{n} became {tuple(after.grads[n].shape)} of {after.grads[n].dtype}")
    if not after.facts:
        raise AssertionError("states no fact")
    _finite(name, form, station, kind, before, after)
    if kind == "zero":
        _of_zero(name, form, after)
    if name in ("clip_whole", "clip_layers_shared", "clip_quantile") and kind in FINITE:
        bound = form.get("norm", form.get("initial"))
        if name != "clip_layers_shared":
            clipped_to(before, after, bound)
        elif float(_lengths(after).max()) > bound * (1.001 if kind == "huge" else 1.00001):
            raise AssertionError(f"longer than {bound}")


def clipped_to(before: Signal, after: Signal, bound: float) -> None:
    """Raise if a member's length is not min(own, bound), computed in double precision."""
    was, now = _lengths(before), _lengths(after)
    # A factor below 1e-38 is rounded down to a multiple of 1.4e-45.
    coarse = bound / float(was.max().clamp_min(1e-300)) < 1e-38
    near = torch.allclose(now, was.clamp_max(bound), rtol=3e-3 if coarse else 1e-5, atol=0)
    if not near or bool((now > bound * (1 + 1e-5)).any()):
        raise AssertionError(
            f"lengths {was.flatten().tolist()} became {now.flatten().tolist()} behind a clip at {bound}"
        )


def _lengths(signal: Signal) -> torch.Tensor:
    return torch.stack([g.double().flatten(2).square().sum(2) for g in signal.grads.values()]).sum(0).sqrt()


def _finite(name: str, form: dict[str, Any], station: str, kind: str, before: Signal, after: Signal) -> None:
    """Raise if a finite number became infinite or NaN, or the reverse; lanes must stay independent."""
    whole = {n: torch.stack([g.isfinite().flatten(1).all(1) for g in s.grads.values()]).all(0) for n, s in
             (("before", before), ("after", after))}  # fmt: skip
    if kind in FINITE or station == "server":
        held = kind in FINITE
        told = [] if after.sensitivity is None else [after.sensitivity]
        rest = [*told, *after.memory.values()]
        if held and not (bool(whole["after"].all()) and all(bool(t.isfinite().all()) for t in rest)):
            raise AssertionError("is no longer finite")
        if held:
            return
    # What is bounded counts as zero if it is not finite (`Signal.finite`).
    bounded = any(fact.kind == "clip" for fact in after.facts) or name in ("clip_median", "l2_max")
    if bounded and name != "pfl_mechanism":
        if not bool(whole["after"].all()):
            raise AssertionError("passes a bound, and is not finite")
        return
    # An infinite coordinate can be clamped.
    defined = name in ("sparse_vector", "nvflare_filter") and kind == "infinite"
    pruned = name.startswith(("prune", "soteria", "sparse_vector", "top_k")) and kind == "one coordinate nan"
    if bool(whole["after"][0]) and not (defined or pruned):
        raise AssertionError("has become finite: what is not a number goes on quietly")
    if before.lanes > 1 and not bool(whole["after"][1]):
        raise AssertionError("the other lane is no longer finite")


def _of_zero(name: str, form: dict[str, Any], after: Signal) -> None:
    """Raise if zeros changed although no noise was drawn."""
    quiet = (
        "clip_",
        "l2_max",
        "percentile",
        "prune",
        "qsgd",
        "random_rate",
        "sign",
        "top_k",
        "soteria",
        "refuse",
        "adapt",
    )
    silent = name.startswith(quiet) or (form.get("multiplier") == 0.0 and name in ("gaussian_noise", "share_of_noise"))
    if silent and name != "clip_inverted" and any(bool((g != 0).any()) for g in after.grads.values()):
        raise AssertionError("zeros are no longer zero")


def _signal(kind: str, station: str) -> Signal:
    """Return a signal whose first lane (at the server: whose first member) is degenerate; all others are plain."""
    model = build("mlp_sigmoid", SHAPE, CLASSES, torch.Generator().manual_seed(0))
    network = Network(model, parameters(model))
    shapes = {n: tuple(p.shape) for n, p in network.parameters.items()}
    members = MEMBERS if station == "example" else 1
    grads = made("plain" if kind in ("nan", "infinite", "one coordinate nan") else kind, shapes, (LANES, members), 1)
    for n, g in made(kind, shapes, (1, members)).items():
        grads[n][:1] = g
    rng = torch.Generator().manual_seed(2)
    inputs = torch.rand(LANES, MEMBERS, *SHAPE, generator=rng)
    targets = torch.eye(CLASSES)[torch.zeros(LANES, MEMBERS, dtype=torch.int64)]
    found = Signal(grads, local=Local(network, inputs, targets))
    return found.gathered(LANES) if station == "server" else found


def numbers(cls: type[Any]) -> Iterator[str]:
    """Yield the numeric fields of a part."""
    for field in dataclasses.fields(cls):
        text = str(typing.get_type_hints(cls, include_extras=False).get(field.name, ""))
        if "float" in text or text == "<class 'int'>":
            yield field.name


def _wrong_numbers(full: bool) -> Iterator[tuple[str, dict[str, Any], str, float]]:
    """Yield (transform, its other fields, a numeric field, a value that the field must refuse)."""
    for name, forms in FORMS.items():
        for field in numbers(TRANSFORM.parts[name]):
            for value in (math.nan, math.inf, -math.inf, -1.0, 1e31, 1e-31, True) if full else (math.nan, -1.0):
                if value == 1e-31 and field in (
                    "share",
                    "fraction",
                    "spread",
                    "pruned",
                    "rows_alike",
                    "lit_alone",
                    "weight",
                    "beta",
                    "beta1",
                    "beta2",
                    "target",
                    "least",
                ):
                    continue  # A share may be arbitrarily small.
                yield name, forms[0], field, value


def refused(attempt: Any, field: str) -> None:
    """Raise unless the attempt is refused in one line that names the field."""
    try:
        found = attempt()
    except InputError as error:
        if "\n" in str(error) or field not in str(error):
            raise AssertionError(f"refused in {str(error)!r}, expected one line that names {field}") from None
        return
    raise AssertionError(f"accepted as {found}")
