"""Filters of NVFlare and privacy mechanisms of pfl as transforms: their own code runs on each update.

leakbench does not read this code, so no epsilon follows from it; `leakbench audit` gives a lower bound. The packages are imported
only when a transform runs. A recipe names only classes inside these packages, so that a recipe from a stranger runs no other code.
"""

from __future__ import annotations

import math
import pkgutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field
from torch import Tensor

from leakbench.core.errors import InputError
from leakbench.core.extras import need
from leakbench.core.imported import reason_of
from leakbench.core.part import part
from leakbench.core.types import Clock, Fact, Generators, Parameters, Signal
from leakbench.defense.guess import surviving
from leakbench.defense.transform import InOrder, Transform
from leakbench.privacy.ledger import UNREAD

__all__ = ["NVFlareFilter", "PflMechanism", "filtered", "processed"]

Arrays: TypeAlias = Mapping[str, NDArray[Any]]
"""{parameter: array}, one client's update."""

Step: TypeAlias = Literal["privatize", "constrain_sensitivity", "add_noise"]

SMALL = np.linspace(-1.0, 1.0, 64, dtype=np.float32)
"""An update for finding out whether a filter draws random numbers."""

GLOBAL_STATE = threading.Lock()
"""The generators of NumPy and PyTorch are the process's, so that only one thread at a time may seed them."""


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of NumPy and PyTorch, from which foreign code draws, and restore them afterwards."""
    with GLOBAL_STATE, torch.random.fork_rng(devices=[]):
        before = np.random.get_state()
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before)


@contextmanager
def _named(part: str) -> Iterator[None]:
    """Turn an error of foreign code into an InputError that names the part."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{part}: its code raised {reason_of(error)}; check its arguments") from None


def filtered(build: Callable[[], Any], update: Arrays, seed: int, steps: int = 1) -> Arrays:
    """Return what an NVFlare filter sends of one client's update.

    The update is the WEIGHT_DIFF of a DXO. A parameter that the filter does not send is zero.

    Args:
        build: Function that returns the filter, so that no state passes from one call to the next.
        update: {parameter: array}, the change of the weights; not changed.
        seed: Seed of the global generators of NumPy and PyTorch during the call.
        steps: Number of local steps, NVFlare's NUM_STEPS_CURRENT_ROUND, by which some filters divide.

    Raises:
        InputError: If NVFlare is not installed, or the filter sends something else than arrays of these parameters.
    """
    need("nvflare", "NVFlare's filters", "nvflare")
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable  # noqa: PLC0415
    from nvflare.apis.fl_context import FLContext  # noqa: PLC0415

    data = {name: np.array(array) for name, array in update.items()}
    sent = DXO(DataKind.WEIGHT_DIFF, data, {MetaKey.NUM_STEPS_CURRENT_ROUND: steps}).to_shareable()
    with _seeded(seed), _named("nvflare_filter"):
        result = from_shareable(build().process(sent, FLContext()))
    return _checked("nvflare_filter", {n: np.zeros_like(a) for n, a in update.items()} | dict(result.data), update)


def processed(
    build: Callable[[], Any], update: Arrays, seed: int, step: Step = "privatize", clients: int = 1
) -> Arrays:
    """Return the result of a step of a pfl mechanism, on arrays of NumPy.

    Args:
        build: Function that returns the mechanism, so that no state passes from one call to the next.
        update: {parameter: array}, of one client, or the sum over clients for `add_noise`; not changed.
        seed: The step's seed, and that of the global generators of NumPy and PyTorch during the call.
        step: `privatize` bounds the update and adds noise, `constrain_sensitivity` and `add_noise` are its two halves.
        clients: Number of clients in the sum.

    Raises:
        InputError: If pfl is not installed, or the mechanism has no such step.
    """
    _pfl("pfl")
    from pfl.stats import MappedVectorStatistics  # noqa: PLC0415

    with _seeded(seed), _named("pfl_mechanism"):
        act = getattr(build(), step, None)
        if act is None:
            raise InputError(
                f"pfl_mechanism: step: got {step!r}, which this mechanism does not have; expected another step"
            )
        more = {"cohort_size": clients} if step == "add_noise" else {}
        statistics = MappedVectorStatistics({name: np.array(array) for name, array in update.items()})
        # pfl takes a seed of 0 for no seed with PyTorch.
        result, _ = act(statistics, seed=1 + seed % (2**32 - 2), **more)
    return _checked("pfl_mechanism", dict(result.items()), update)


def _pfl(module: str) -> Any:
    """Import a module of pfl; raises InputError with the command that installs it."""
    try:
        return need(module, "pfl's mechanisms", "pfl")
    except InputError:
        raise InputError(
            "pfl's mechanisms: need the package 'pfl', which is not installed, or not with what it imports: pip install --no-deps"
            " 'pfl>=0.6' multiprocess dill prv-accountant"
        ) from None


def _checked(part_name: str, result: Mapping[str, Any], update: Arrays) -> Arrays:
    found = {name: np.asarray(array) for name, array in result.items()}
    wrong = sorted(n for n in found.keys() | update.keys() if n not in update or found[n].shape != update[n].shape)
    if wrong:
        raise InputError(
            f"{part_name}: its code sent {wrong[0]!r} in another shape; expected {sorted(update)} as they were"
        )
    return {name: found[name].astype(update[name].dtype) for name in update}


def _inside(package: str) -> AfterValidator:
    def check(path: str) -> str:
        if not path.startswith(f"{package}."):
            raise ValueError(f"expected a class of the package {package}, such as {EXAMPLES[package]}")
        return path

    return AfterValidator(check)


EXAMPLES = {
    "nvflare": "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy",
    "pfl": "pfl.privacy.gaussian_mechanism.GaussianMechanism",
}

Arguments = Annotated[dict[str, Any], Field(description="Arguments of the class, by name.")]


def _build(name: str, path: str, base: type, arguments: Mapping[str, Any]) -> Any:
    """Return an object of the class at `path`, or of its class method there; raises InputError for anything else."""
    example = EXAMPLES[path.partition(".")[0]]
    try:
        made = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{name}: {path!r} cannot be imported ({error}); expected a class such as {example}") from None
    owner = made if isinstance(made, type) else getattr(made, "__self__", None)
    if not (isinstance(owner, type) and issubclass(owner, base)):
        raise InputError(f"{name}: got {path!r}, expected a subclass of {base.__module__}.{base.__name__}")
    try:
        return made(**{key: _lists(value) for key, value in arguments.items()})
    except Exception as error:
        raise InputError(f"arguments: {path} refuses {dict(arguments)} ({type(error).__name__}: {error})") from None


def _lists(value: Any) -> Any:
    """Return a value with lists as in the recipe, whose lists are read as tuples."""
    if isinstance(value, Mapping):
        return {key: _lists(each) for key, each in value.items()}
    return [_lists(each) for each in value] if isinstance(value, tuple) else value


def _each(signal: Signal, run: Callable[[Arrays, int], Arrays], rngs: Generators | None) -> Parameters:
    """Run a function on each member of each lane, one after another; without generators, all members have the same seed."""
    rows = []
    for lane in range(signal.lanes):
        for member in range(signal.members):
            number = 0 if rngs is None else _number(rngs[lane])
            one = {n: g[lane, member].detach().cpu().numpy() for n, g in signal.grads.items()}
            rows.append({n: torch.from_numpy(a) for n, a in run(one, number).items()})
    return {n: torch.stack([row[n] for row in rows]).reshape(g.shape).to(g) for n, g in signal.grads.items()}


def _number(rng: torch.Generator) -> int:
    return int(torch.randint(2**31, (1,), generator=rng, device=rng.device))


def _followed(before: Parameters, after: Parameters) -> Parameters:
    """Return `after` with a derivative in `before`: foreign code changes a coordinate by a factor, a constant in the derivative."""
    found = {}
    for name, g in before.items():
        factor = torch.where(g == 0, 0.0, after[name] / g).detach()
        found[name] = g * factor + torch.where(g == 0, after[name], 0.0)
    return found


@part("transform.nvflare_filter")
class NVFlareFilter:
    """Send each update through a filter of NVFlare, whose real code runs: one call for each member, with a new filter.

    The filter gets the update W_L - W_0 as a WEIGHT_DIFF with the number of local steps. It draws from NumPy's global generator,
    which is seeded from the member's generator during the call and restored after it; so is PyTorch's. A parameter that the filter
    does not send is zero.
    """

    stations: ClassVar[tuple[str, ...]] = ("client",)

    filter: Annotated[
        str,
        _inside("nvflare"),
        Field(description=f"Class of the filter, inside nvflare, such as {EXAMPLES['nvflare']}."),
    ]
    arguments: Arguments = Field(default_factory=dict)

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Filter each member.

        Without `rngs`, a filter that draws random numbers changes nothing, since it has no deterministic part. The derivative of
        another one takes the factor of each coordinate for a constant.
        """

        def run(update: Arrays, seed: int) -> Arrays:
            return filtered(self.build, update, seed, clock.local_iterations)

        if rngs is None and self.draws():
            sent = {n: g.clone() for n, g in signal.grads.items()}
        else:
            sent = _each(signal, run, rngs)
            sent = _followed(signal.grads, sent) if rngs is None else sent
        name = self.filter.rpartition(".")[2]
        return signal.replace(sent, None, Fact("other", reason=f"{UNREAD}: {name} of NVFlare"))

    def draws(self) -> bool:
        """Return whether the filter draws random numbers, by two seeds on a small update."""
        first, again = (filtered(self.build, {"small": SMALL}, seed)["small"] for seed in (0, 1))
        return not np.array_equal(first, again)

    def build(self) -> Any:
        """Return a new filter."""
        base = need("nvflare.apis.filter", "nvflare_filter", "nvflare").Filter
        return _build("filter", self.filter, base, self.arguments)

    def on_a_guess(self, seen: Parameters) -> Transform:
        """Return what the attacker runs on a guess: the zeros of the leaked update, then the filter."""
        mask = surviving(self, seen)
        return self if mask is self else InOrder((mask, self))


@part("transform.pfl_mechanism")
class PflMechanism:
    """Run a step of a privacy mechanism of pfl (Apple), whose real code runs with NumPy.

    A mechanism of local privacy is `privatize` at the client. One of central privacy (pfl's CentrallyAppliedPrivacyMechanism) is
    `constrain_sensitivity` at the client and, with the same arguments, `add_noise` at the server: one noise on the sum of a round.
    A new mechanism is built for each call. Mechanisms that need a function as an argument (adaptive clipping, matrix factorization)
    cannot be named in a recipe; they remember earlier rounds too. `correlated_noise` has banded noise without pfl. The noise is
    measured for an attacker that knows the defense.
    """

    mechanism: Annotated[
        str,
        _inside("pfl"),
        Field(
            description=f"Class of the mechanism, inside pfl, such as {EXAMPLES['pfl']}, or a class method that builds one."
        ),
    ]
    arguments: Arguments = Field(default_factory=dict)
    step: Annotated[Step, Field(description="Method of the mechanism that runs.")] = "privatize"

    @property
    def stations(self) -> tuple[str, ...]:
        """See `leakbench.defense.transform.Transform`."""
        return ("server",) if self.step == "add_noise" else ("client",)

    @property
    def acts_on(self) -> Literal["each", "sum"]:
        """See `leakbench.defense.transform.Transform`."""
        return "sum" if self.step == "add_noise" else "each"

    def __call__(self, signal: Signal, clock: Clock, rngs: Generators | None) -> Signal:
        """Bound each member, or add the noise, or both; without `rngs`, only the bound."""
        return self._noised_sum(signal, rngs) if self.step == "add_noise" else self._processed(signal, rngs)

    def _processed(self, signal: Signal, rngs: Generators | None) -> Signal:
        bounded = _each(signal, self._run("constrain_sensitivity"), None)
        if self.step == "constrain_sensitivity":
            sent = _followed(signal.grads, bounded) if rngs is None else bounded
            # A bound from before does not hold after code that is not read; a clip after it counts.
            return signal.replace(sent, None, Fact("clip", norm=math.inf, reason=f"{UNREAD}: {self._name} of pfl"))
        noisy = _each(signal, self._run("privatize"), rngs)
        fact = self._fact({n: noisy[n] - bounded[n] for n in noisy}, each=True)
        return signal.replace(_followed(signal.grads, bounded) if rngs is None else noisy, None, fact)

    def _noised_sum(self, signal: Signal, rngs: Generators | None) -> Signal:
        items = signal.averaged * signal.members
        total = {n: g.detach().sum(1, keepdim=True) * signal.averaged for n, g in signal.grads.items()}
        if rngs is None:  # The noise is only measured, and would vanish in the rounding of a large sum.
            total = {n: torch.zeros_like(g) for n, g in total.items()}
        noisy = _each(Signal(total), self._run("add_noise", items), rngs)
        noise = {n: noisy[n] - total[n] for n in noisy}
        # Every member gets its share, so that the sum gets the whole noise.
        sent = {n: g if rngs is None else g + noise[n] / items for n, g in signal.grads.items()}
        return signal.replace(sent, None, self._fact(noise, each=False))

    def _run(self, step: Step, clients: int = 1) -> Callable[[Arrays, int], Arrays]:
        return lambda update, seed: processed(self.build, update, seed, step, clients)

    def _fact(self, noise: Parameters, each: bool) -> Fact:
        flat = torch.cat([g.flatten() for g in noise.values()])
        reason = f"{UNREAD}: {self._name} of pfl"
        return Fact("uncalibrated_noise", std=_root_mean_square(flat), each=each, reason=reason)

    @property
    def _name(self) -> str:
        return ".".join(word for word in self.mechanism.split(".") if word[:1].isupper()) or self.mechanism

    def build(self) -> Any:
        """Return a new mechanism."""
        base = _pfl("pfl.privacy.privacy_mechanism").SplitPrivacyMechanism
        return _build("mechanism", self.mechanism, base, self.arguments)


def _root_mean_square(values: Tensor) -> float:
    return math.sqrt(float(values.double().square().mean()))
