"""One cell of the benchmark: what was asked for, resolved and checked; its content hash is its identity."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from leakbench import __version__
from leakbench.attack import Attack
from leakbench.attack.gradient_matching import GradientMatching
from leakbench.data.dataset import Dataset
from leakbench.data.find import load_dataset
from leakbench.data.recipe import DatasetRecipe, Federation
from leakbench.defense import Defense, Probe, facts_at
from leakbench.defense.network import extended
from leakbench.errors import InputError, nearest
from leakbench.federated.leakage import TAPS
from leakbench.metrics import Score, load_lpips
from leakbench.models import MODELS, build, default_leak_model, default_model, parameters
from leakbench.models.initialise import DEFAULT, rule_of
from leakbench.provenance import versions
from leakbench.recipe import describe, resolve
from leakbench.store import SCHEMA, content_hash
from leakbench.types import Clock, Network
from leakbench.victim_mode import check_mode, check_mode_word

__all__ = [
    "PROTOCOLS",
    "Cell",
    "Request",
    "Settings",
    "identified",
    "identity",
    "leak_rounds",
    "probe_of",
    "resolve_cell",
]

PROTOCOLS = ("paper", "live")

READS = ("gradient", "weights")
"""What an update is read as: a gradient to the last bit, or the float32 difference of the weights before and after."""

MOST_INDICES = 100_000_000


@dataclass(frozen=True)
class Request:
    """What a user asked for; None where the recipes decide.

    leak_rounds: round numbers, counted as rounds trained before the leak, and `last`.  join_rounds: whether one attack sees the
    same examples at all of them.  reads: `gradient`, or `weights`, whose float32 difference is rounded.
    epsilon, stop_at_epsilon, stop_at_delta: see `leakbench.budget`.
    """

    defense: str = "none"
    attack: str = "cpl"
    dataset: str = "faces"
    model: str | None = None
    leak_model: str | None = None
    victim_mode: str | None = None
    init: str = "default"
    protocol: str = "paper"
    taps: tuple[str, ...] = ("type-2", "type-1", "type-0")
    victims: int = 10
    iterations: int | None = None
    train_rounds: int | None = None
    clients: int | None = None
    clients_per_round: int | None = None
    local_iterations: int | None = None
    batch: int | None = None
    dropout: float | None = None
    leak_batch: int | None = None
    leak_rounds: tuple[str, ...] = ("0",)
    join_rounds: bool = False
    reads: str = "gradient"
    success: float | None = None
    candidates: int = 1000
    lpips_weights: Path | None = None
    epsilon: float | None = None
    stop_at_epsilon: float | None = None
    stop_at_delta: float | None = None
    seed: int = 0
    device: str = "cpu"


@dataclass(frozen=True)
class Settings:
    """Every number of a cell, resolved.

    leak_rounds: rounds trained before each leak.  join_rounds: whether all of them are views of the same victims, for one attack.
    reads: one of `READS`.  stop_after: how many of the federation's rounds a budget allows; None for all.
    victim_mode: see `leakbench.victim_mode`; None where no network depends on it.  init: how the first weights of both networks
    are drawn, see `leakbench.models.initialise.rule_of`.
    """

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

    @property
    def leaking(self) -> str:
        """The name of the network from which the protocol leaks."""
        return self.leak_model if self.protocol == "paper" else self.model

    @property
    def leaks(self) -> tuple[tuple[int, ...], ...]:
        """The rounds before which each attack sees something: one each, or all together."""
        return (self.leak_rounds,) if self.join_rounds else tuple((number,) for number in self.leak_rounds)


@dataclass(frozen=True)
class Cell:
    """One cell, ready to run."""

    names: dict[str, str]
    attack: Attack
    defense: Defense
    recipe: DatasetRecipe
    data: Dataset
    settings: Settings
    lpips: Score | str
    hash: str

    @property
    def name(self) -> str:
        """A name for its folder."""
        return "-".join([self.names["dataset"], self.names["defense"], self.names["attack"], self.hash[:8]])


def _at_least(name: str, value: int, least: int) -> int:
    if value < least:
        raise InputError(f"{name}: got {value}, expected at least {least}")
    return value


def resolve_cell(request: Request, data_dir: Path | None, progress: Any = None) -> Cell:
    """Resolve names to recipes, find the data, check every number; raises InputError in one line for whatever does not fit."""
    attack_name, attack = resolve("attacks", Attack, request.attack)
    defense_name, defense = resolve("defenses", Defense, request.defense)
    if request.iterations is not None:
        attack = _with_iterations(attack, _at_least("iterations", request.iterations, 1))
    _check_words(request)
    device = _device(request.device)
    data_name, recipe, data = load_dataset(request.dataset, data_dir, progress=progress)
    if attack.needs_table and not data.features:
        raise InputError(f"attack: {attack_name!r} needs a table, {data_name!r} holds pictures (try --dataset adult)")
    federation = _federation(request, recipe)
    lpips, weights = _lpips(request.lpips_weights)
    settings = Settings(
        protocol=request.protocol,
        taps=tuple(tap for tap in TAPS if tap in request.taps),
        victims=_at_least("victims", request.victims, 1),
        leak_batch=_at_least("leak-batch", federation.batch if request.leak_batch is None else request.leak_batch, 1),
        leak_rounds=leak_rounds(request, federation.rounds),
        model=_model("model", request.model, defense.model, default_model(data.shape)),
        leak_model=_model("leak-model", request.leak_model, defense.leak_model, default_leak_model(data.shape)),
        federation=federation,
        success=request.success,
        candidates=_at_least("candidates", request.candidates, 2),
        lpips=weights,
        seed=_at_least("seed", request.seed, 0),
        device=str(device),
        victim_mode=request.victim_mode,
        init=rule_of(request.init)[0],
        join_rounds=request.join_rounds,
        reads=request.reads,
    )
    if settings.join_rounds and len(settings.leak_rounds) < 2:
        raise InputError(
            f"join-rounds: got the leak round {settings.leak_rounds[0]} alone, expected two or more in --leak-rounds"
        )
    _check_fit(settings, data, defense)
    if settings.victims > len(data.victims):
        raise InputError(
            f"victims: got {settings.victims}, the set {data_name!r} holds {len(data.victims)} that may be attacked"
        )
    names = {"defense": defense_name, "attack": attack_name, "dataset": data_name}
    return identified(Cell(names, attack, defense, recipe, data, settings, lpips, ""))


def identified(cell: Cell) -> Cell:
    """Return the cell with the hash of its content."""
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "version": __version__,
        "names": cell.names,
        "recipes": [describe(cell.attack), describe(cell.defense)],
        "data": cell.data.content,
        "settings": describe(cell.settings),
    }
    if not cell.settings.federation.dropout:
        # Where nobody can drop out, nothing that is said of it changes a result, and so neither the identity.
        del content["settings"]["federation"]["dropout"], content["recipes"][1]["on_dropout"]
    for name, usual in (
        ("stop_after", None),
        ("victim_mode", None),
        ("init", DEFAULT),
        ("join_rounds", False),
        ("reads", READS[0]),
    ):
        if content["settings"][name] == usual:
            del content["settings"][name]
    return dataclasses.replace(cell, hash=content_hash(content))


def _check_fit(s: Settings, data: Dataset, defense: Defense) -> None:
    """Refuse at once what would otherwise be found out after minutes of work."""
    f = s.federation
    if s.candidates < s.victims <= len(data.victims):
        raise InputError(f"candidates: got {s.candidates}, fewer than the {s.victims} victims, who are among them")
    if f.local_iterations * f.batch > MOST_INDICES:
        raise InputError(
            f"local-iterations: {f.local_iterations} of batch {f.batch} are more than {MOST_INDICES} examples"
        )
    if f.clients * f.examples_per_client > MOST_INDICES:
        raise InputError(
            f"clients: {f.clients} clients of {f.examples_per_client} examples are more than {MOST_INDICES} indices"
        )
    probes = {name: _probe(defense, data, s, name) for name in (s.model, s.leaking)}
    check_mode(s.victim_mode, {n: p.network.model for n, p in probes.items()}, s.leaking, s.taps, defense)
    for probe in probes.values():
        facts_at(defense, probe, defense.clock(f, 0))
    if s.protocol == "live":
        needed = s.victims * (f.clients_per_round if any(map(defense.shows_sum, s.taps)) else 1)
        if needed > f.clients:
            raise InputError(f"victims: {needed} clients are needed in the live protocol, there are {f.clients}")
        if s.leak_batch > f.examples_per_client:
            raise InputError(
                f"leak-batch: got {s.leak_batch}, more than the {f.examples_per_client} examples that a client holds"
            )


def probe_of(defense: Defense, data: Dataset, settings: Settings) -> Probe:
    """Return the network that is trained in a cell, with what the defense adds to it, and the federation."""
    return _probe(defense, data, settings, settings.model)


def leak_federation(cell: Cell) -> Federation:
    """Return the federation as a leak sees it: the batch that leaks, of a client that holds as many."""
    s = cell.settings
    held = max(s.leak_batch, s.federation.examples_per_client)
    return dataclasses.replace(s.federation, batch=s.leak_batch, examples_per_client=held)


def leak_clock(cell: Cell, round_number: int) -> Clock:
    """Return the clock at a leak: of all local iterations in the live protocol, of one in the paper's."""
    federation = leak_federation(cell)
    steps = federation.local_iterations if cell.settings.protocol == "live" else 1
    clock = cell.defense.clock(federation, round_number)
    return dataclasses.replace(clock, rounds=max(1, federation.rounds), local_iterations=steps)


def _probe(defense: Defense, data: Dataset, settings: Settings, name: str) -> Probe:
    rng = torch.Generator().manual_seed(0)
    plain = build(name, data.shape, data.classes, rng, settings.init)
    model = extended(defense.network, plain, data.shape, data.classes, rng).train(settings.victim_mode == "train")
    return Probe(Network(model, parameters(model)), data.shape, data.classes, settings.federation)


def _lpips(folder: Path | None) -> tuple[Score | str, str]:
    """Return (LPIPS or the reason why there is none, the weights' file name, which holds their checksum)."""
    score = load_lpips(folder)
    if folder is None:
        return score, ""
    if isinstance(score, str):
        raise InputError(f"lpips-weights: {str(folder)!r}: {score.removeprefix('n/a: ')}")
    return score, ", ".join(sorted(path.name for path in folder.glob("*.pth")))


def identity(cell: Cell, command: str) -> dict[str, Any]:
    """Return what the manifest of a cell's run says from the start."""
    recipes = {"attack": cell.attack, "defense": cell.defense, "dataset": cell.recipe}
    return {
        "hash": cell.hash,
        "cell": {**cell.names, "seed": cell.settings.seed},
        "seed": cell.settings.seed,
        "device": cell.settings.device,
        "command": command,
        "versions": versions(),
        "recipes": {name: describe(recipe) for name, recipe in recipes.items()},
        "settings": describe(cell.settings),
    }


def _check_words(request: Request) -> None:
    check_mode_word(request.victim_mode)
    if request.protocol not in PROTOCOLS:
        raise InputError(f"protocol: got {request.protocol!r}{nearest(request.protocol, PROTOCOLS)}")
    if request.reads not in READS:
        raise InputError(f"reads: got {request.reads!r}{nearest(request.reads, READS)}")
    if request.join_rounds and request.protocol != "live":
        raise InputError("join-rounds: one attack on several rounds takes --protocol live")
    for tap in request.taps:
        if tap not in TAPS:
            raise InputError(f"taps: got {tap!r}{nearest(tap, TAPS)}")
    if not request.taps:
        raise InputError(f"taps: got none, expected some of {', '.join(TAPS)}")
    if request.success is not None and not 0 < request.success <= 1:
        raise InputError(
            f"success: got a threshold of {request.success}, expected 0 < RMSE <= 1, as in --success 'rmse<=0.1'"
        )


def _with_iterations(attack: Attack, limit: int) -> Attack:
    if not isinstance(attack.method, GradientMatching):
        raise InputError(f"iterations: the attack's method {type(attack.method).__name__} takes no iterations")
    stop = dataclasses.replace(cast(Any, attack.method.stop), limit=limit)
    return dataclasses.replace(attack, method=dataclasses.replace(attack.method, stop=stop))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"device: {name!r} cannot be used ({str(error).splitlines()[0]}); try cpu") from None
    return device


def _model(field: str, asked: str | None, of_defense: str, usual: str) -> str:
    """Return the network that the user asked for, else the one that the defense needs, else the data's usual one."""
    name = (of_defense or usual) if asked is None else asked
    if name not in MODELS:
        raise InputError(f"{field}: unknown name {name!r}{nearest(name, list(MODELS))}")
    return name


def _federation(request: Request, recipe: DatasetRecipe) -> Federation:
    plain = recipe.federation
    asked = {
        "clients": (request.clients, plain.clients, 1),
        "clients-per-round": (request.clients_per_round, plain.clients_per_round, 1),
        "train-rounds": (request.train_rounds, plain.rounds, 0),
        "local-iterations": (request.local_iterations, plain.local_iterations, 1),
        "batch": (request.batch, plain.batch, 1),
    }
    numbers = {
        n: _at_least(n, default if value is None else value, least) for n, (value, default, least) in asked.items()
    }
    dropout = plain.dropout if request.dropout is None else request.dropout
    if not 0 <= dropout <= 1:
        raise InputError(f"dropout: got {dropout}, expected a probability from 0 to 1")
    if request.clients is not None and request.clients_per_round is None:
        numbers["clients-per-round"] = min(numbers["clients-per-round"], numbers["clients"])
    if numbers["clients-per-round"] > numbers["clients"]:
        raise InputError(
            f"clients-per-round: got {numbers['clients-per-round']}, more than there are clients ({numbers['clients']})"
        )
    if numbers["batch"] > plain.examples_per_client:
        raise InputError(
            f"batch: got {numbers['batch']}, more than the {plain.examples_per_client} examples that a client holds"
        )
    return dataclasses.replace(
        plain,
        clients=numbers["clients"],
        clients_per_round=numbers["clients-per-round"],
        rounds=numbers["train-rounds"],
        local_iterations=numbers["local-iterations"],
        batch=numbers["batch"],
        dropout=dropout,
    )


def leak_rounds(request: Request, rounds: int) -> tuple[int, ...]:
    """Return the rounds before which a request wants leaks, of so many that are trained; raises InputError for others."""
    found = set()
    for word in request.leak_rounds:
        if word != "last" and not word.isdecimal():
            raise InputError(f"leak-rounds: got {word!r}, expected round numbers from 0 to {rounds}, or last")
        number = rounds if word == "last" else int(word)
        if number > rounds:
            raise InputError(f"leak-rounds: got {number}, but only {rounds} rounds are trained (--train-rounds)")
        found.add(number)
    if request.protocol == "paper" and found != {0}:
        raise InputError(
            "leak-rounds: the paper protocol leaks before the first round (0); add --protocol live for later rounds"
        )
    return tuple(sorted(found))
