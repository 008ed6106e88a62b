"""Resolves a request to a cell: first every option is checked against the recipes, then the data are loaded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from leakbench.attack import Attack, attack_on
from leakbench.attack.evaluations import with_evaluations
from leakbench.attack.needs import TEXT, ReadsParameters
from leakbench.attack.servers.server import lies
from leakbench.attack.slots.labels import Solved, with_labels
from leakbench.attack.slots.stop import limited
from leakbench.cell.cell import Cell, identified
from leakbench.cell.device import device_of
from leakbench.cell.federation import by_passes, check_scaffold, federation_of
from leakbench.cell.fit import (
    WORDS,
    check_alone,
    check_class,
    check_fit,
    check_kind,
    check_loss,
    check_statistics,
    check_trained,
)
from leakbench.cell.looks import check_looks
from leakbench.cell.network import probe
from leakbench.cell.settings import Settings
from leakbench.core.errors import InputError
from leakbench.core.extras import need
from leakbench.core.leakage_points import TAPS
from leakbench.core.recipe import resolve
from leakbench.core.request import (
    CLASS,
    NEXT_TOKEN,
    TARGETS,
    Request,
    check_model,
    check_request,
    leak_rounds,
    networks_of,
)
from leakbench.core.task import pinned_loss
from leakbench.core.words import Threshold, check_success
from leakbench.data.dataset import Dataset
from leakbench.data.find import Load, load_dataset, without_examples
from leakbench.data.recipe import DatasetRecipe
from leakbench.data.targets import with_class_head
from leakbench.data.vocabulary import Vocabulary
from leakbench.defense import Defense
from leakbench.measure.measures import EDIT_DISTANCE, RMSE
from leakbench.measure.metrics import Score, load_lpips
from leakbench.models import check_takes, default_leak_model, default_model
from leakbench.models.external import ExternalNetwork
from leakbench.models.folder import NetworkFolder
from leakbench.models.initialise import rule_of
from leakbench.models.references import reference_of
from leakbench.models.trainable import trainable_of

__all__ = ["plan_cell", "resolve_cell", "with_examples"]


def resolve_cell(request: Request, data_dir: Path | None, load: Load = load_dataset) -> Cell:
    """Return the cell of a request with its data.

    Raises:
        InputError: For an option that does not fit, before the data are loaded, and for missing or wrong data.
    """
    cell = plan_cell(request, data_dir, None, load)
    check_fit(cell.settings, cell.data, cell.defense)
    return with_examples(cell, request.dataset, data_dir, None, load)


def with_examples(
    cell: Cell, dataset: str, data_dir: Path | None, progress: Any = None, load: Load = load_dataset
) -> Cell:
    """Return a planned cell with its data.

    Args:
        dataset: Name or path in the cell's request.
    """
    if cell.data.has_examples:
        return cell
    data = _as_read(load(dataset, data_dir, progress=progress, size=cell.settings.size)[2], cell.settings)
    cell = identified(dataclasses.replace(cell, data=data))
    check_looks(cell)
    return cell


def plan_cell(request: Request, data_dir: Path | None, progress: Any = None, load: Load = load_dataset) -> Cell:
    """Return the cell of a request without the examples of its data set, after checks of all options.

    Whether its parts fit together is left to `check_fit`, which runs the defense. The checks use the sizes in the data set's
    recipe. For a user's recipe without sizes, `load` loads the data. A cell without examples has epsilons, but it cannot be run
    and has no hash.

    Raises:
        InputError: For an option that does not fit.
    """
    check_request(request)
    resolve("attacks", Attack, request.attack)  # A wrong name is refused before a data set is read.
    defense_name, defense = resolve("defenses", Defense, request.defense)
    data_name, recipe, data = _data(request, data_dir, progress, load)
    if data.kind == TEXT:
        need("rouge_score", "dataset")  # Else only the scores, after the attack, would miss it.
    attack_name, attack = attack_on(data.kind, request.attack)
    if request.iterations is not None:
        attack = _with_iterations(attack, request.iterations, attack_name)
    if request.knows is not None:
        attack = dataclasses.replace(attack, knows=request.knows)
    names = {"defense": defense_name, "attack": attack_name, "dataset": data_name}
    check_kind(attack, data, (attack_name, data_name))
    request = _with_success(request, data, data_name)
    lpips, weights = _lpips(request.lpips_weights)
    settings = _settings(request, recipe, data, data_name, defense.model, defense.leak_model or attack.leak_model)
    settings = dataclasses.replace(settings, lpips=weights)
    defense, data, attack = by_passes(defense, settings), _as_read(data, settings), _for_targets(attack, settings.loss)
    _check(settings, data, attack, defense, names)
    attack = _on_network(attack, request, settings, defense, data, attack_name)
    cell = identified(Cell(names, attack, defense, recipe, data, settings, lpips, "", request, data_dir))
    check_looks(cell)
    return cell


def _settings(
    request: Request, recipe: DatasetRecipe, data: Dataset, name: str, of_model: str, of_leak_model: str
) -> Settings:
    """Return the settings of a request, with those of the recipes where it has none.

    Args:
        name: Name of the data set.
        of_model: Network in the recipe of the defense; empty without one.
        of_leak_model: Network in the recipe of the defense or the attack; empty without one.
    """
    device = device_of(request.device)
    federation = federation_of(request, recipe.federation)
    heads = None if data.targets is None else data.heads
    model = _model("model", request.model, of_model, default_model(data.layout, heads))
    leak_model = _model("leak-model", request.leak_model, of_leak_model, default_leak_model(data.layout, heads))
    if request.leak_model is not None:
        check_takes(leak_model, data.layout, "leak-model")
    same = {f.name: getattr(request, f.name) for f in dataclasses.fields(Settings) if hasattr(request, f.name)}
    resolved: dict[str, Any] = {
        "taps": tuple(tap for tap in TAPS if tap in request.taps),
        "leak_batch": federation.batch if request.leak_batch is None else request.leak_batch,
        "leak_rounds": leak_rounds(request, federation.rounds),
        "model": model,
        "leak_model": leak_model,
        "federation": federation,
        "success": None if request.success is None else float(request.success),
        "candidates": recipe.candidates if request.candidates is None else request.candidates,
        "lpips": "",
        "device": str(device),
        "init": rule_of(request.init)[0],
        "trainable": str(trainable_of(request.trainable)),
        "loss": _loss(request.loss, data, name),
        "targets": request.targets or "",
        "networks": _networks(request, model if request.protocol == "live" else leak_model),
    }
    return Settings(**same | resolved)


def _check(s: Settings, data: Dataset, attack: Attack, defense: Defense, names: dict[str, str]) -> None:
    """Raise InputError for parts of a cell that do not fit its settings."""
    check_scaffold(s)
    if s.join_rounds and len(s.leak_rounds) < 2:
        raise InputError(
            f"join-rounds: got the leak round {s.leak_rounds[0]} alone, expected two or more in --leak-rounds"
        )
    check_loss(s, attack, defense, names)
    check_alone(s, attack, defense, names["attack"])
    check_statistics(s, attack, defense, names["attack"])
    check_class(s, data, attack, (names["attack"], names["dataset"]))
    if s.victims > len(data.victims):
        raise InputError(
            f"victims: got {s.victims}, the set {names['dataset']!r} holds {len(data.victims)} that may be attacked; give at"
            f" most --victims {len(data.victims)}"
        )


def _on_network(attack: Attack, request: Request, s: Settings, defense: Defense, data: Dataset, name: str) -> Attack:
    """Return the attack with the iterations of the request's evaluations, after checks against the network that leaks."""
    reads = isinstance(attack.method, ReadsParameters) or lies(attack.server)
    if request.evaluations is None and not reads:
        return attack
    network = probe(defense, data, s, s.leaking).network
    if request.evaluations is not None:
        method = with_evaluations(attack.method, request.evaluations, network.model, data.shape)
        attack = dataclasses.replace(attack, method=method)
    if reads:
        check_trained(s, attack, network, name)
    return attack


def _with_success(request: Request, data: Dataset, name: str) -> Request:
    """Return the request with the measure of its threshold of success; raises InputError for another than the data's."""
    if request.success is None:
        return request
    measure = EDIT_DISTANCE if data.kind == TEXT else RMSE
    check_success(request.success, measure.name, f"{name!r} holds {WORDS[data.kind]}")
    return dataclasses.replace(request, success=Threshold(request.success, measure.name))


def _model(field: str, asked: str | None, of_recipe: str, usual: str) -> str:
    """Return the network of the request, else the one of a recipe, else the data's usual one.

    Raises:
        InputError: For an unknown name, and for a recipe that names a user's function: a recipe imports no code.
    """
    name = (of_recipe or usual) if asked is None else asked
    reference = reference_of(name)
    if isinstance(reference, ExternalNetwork) and reference.runs_code and asked is None:
        raise InputError(
            f"{field}: the recipe names the function {name!r}; a recipe imports no code, so give --{field} {name}"
        )
    if reference is not None:
        return reference.pinned(field)
    check_model(field, name)
    return name


def _networks(request: Request, leaking: str) -> int:
    """Return the number of draws of the first weights; 1 if the weights are those of a file, since those are fixed."""
    network = ExternalNetwork.of(leaking)
    if network is None or not network.trained:
        return networks_of(request)
    if request.networks not in (None, 1):
        raise InputError(
            f"networks: got {request.networks}, but the weights of {str(network)!r} are not drawn; expected 1"
        )
    return 1


def _as_read(data: Dataset, s: Settings) -> Dataset:
    """Return the data as the networks of a cell read them: in their tokens, and without classes for the loss of next tokens."""
    data = _tokenised(data, s.networks_used)
    if s.loss not in (CLASS, NEXT_TOKEN) and data.targets is None:
        return with_class_head(data)
    return data.for_next_tokens() if s.loss == NEXT_TOKEN else data


def _data(request: Request, data_dir: Path | None, progress: Any, load: Load) -> tuple[str, DatasetRecipe, Dataset]:
    """Return (name, recipe, data) of a request: without examples where the recipe has sizes, with those that targets need."""
    if request.targets is None:
        return without_examples(request.dataset, data_dir, progress, load, request.size)
    # Targets are computed from the examples.
    name, recipe, data = load(request.dataset, data_dir, progress=progress, size=request.size)
    return name, recipe, recipe.targets[request.targets](data)


def _loss(asked: str, data: Dataset, name: str) -> str:
    """Return the loss of a request: that of its targets for `class`, and a user's function with the hash of its module.

    Raises:
        InputError: For texts with another loss than their own two.
    """
    if asked == CLASS:
        return CLASS if data.targets is None else TARGETS
    if data.kind == TEXT and asked != NEXT_TOKEN:
        raise InputError(f"loss: got {asked!r}, and {name!r} holds texts; expected {CLASS} or {NEXT_TOKEN}")
    return pinned_loss(asked) if ":" in asked else asked


def _for_targets(attack: Attack, loss: str) -> Attack:
    """Return the attack with solved or searched targets in place of labels from the last layer, for other losses than `class`."""
    if loss in (CLASS, NEXT_TOKEN):
        return attack
    return dataclasses.replace(attack, method=with_labels(attack.method, Solved()))


def _tokenised(data: Dataset, networks: tuple[str, ...]) -> Dataset:
    """Return texts in the tokens of the networks' folders, or unchanged if no folder has a tokenizer.

    Raises:
        InputError: For two folders with different tokenizers, whose networks cannot read the same examples.
    """
    found: dict[str, Vocabulary] = {}
    for folder in filter(None, map(NetworkFolder.of, networks)):
        vocabulary = Vocabulary.of_folder(folder.path) if data.kind == "text" else None
        if vocabulary is not None:
            found[vocabulary.content] = vocabulary
    if len(found) > 1:
        raise InputError(
            f"leak-model: {str(NetworkFolder.of(networks[1]))!r} has another tokenizer than --model"
            f" {str(NetworkFolder.of(networks[0]))!r}; expected the same tokens in both, as with one folder for both"
        )
    return data.tokenised(next(iter(found.values()))) if found else data


def _lpips(folder: Path | None) -> tuple[Score | str, str]:
    """Return (LPIPS or the reason for its absence, the name of the weights' file, which contains their checksum)."""
    score = load_lpips(folder)
    if folder is None:
        return score, ""
    if isinstance(score, str):
        raise InputError(f"lpips-weights: {str(folder)!r}: {score.removeprefix('n/a: ')}")
    return score, ", ".join(sorted(path.name for path in folder.glob("*.pth")))


def _with_iterations(attack: Attack, limit: int, name: str) -> Attack:
    method = limited(attack.method, limit)
    if method is None:
        raise InputError(f"iterations: got {limit}, but the attack {name!r} does not search; leave out --iterations")
    return dataclasses.replace(attack, method=method)
