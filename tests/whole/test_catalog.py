"""Every catalog recipe loads, runs end to end in the tiniest cell, and matches `list`, `show` and `schema`."""

import dataclasses
import json
import math
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from click.testing import CliRunner

from leakbench.attack import Attack
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.servers.fishing import fished
from leakbench.attack.slots.descent import LbfgsDescent
from leakbench.attack.slots.stop import limited
from leakbench.catalog import KINDS
from leakbench.cell import Cell, Request, identity
from leakbench.cell.budget import prepare
from leakbench.cli import commands
from leakbench.core.recipe import catalog_folder, load, names, resolve
from leakbench.defense import Defense
from leakbench.defense.transform import STATIONS
from leakbench.execute import execute
from leakbench.measure.measures import deciding
from leakbench.models import MODELS
from leakbench.storage.store import open_run

HOME = Path(__file__).parents[2]
FILES = [(kind, name) for kind in KINDS for name in names(kind)]
TAPS = ("type-2", "type-1", "type-0")

FEDERATION = "--train-rounds 1 --clients 4 --clients-per-round 2 --local-iterations 2 --batch 3"
TINY = f"--attack cpl --victims 2 --candidates 10 {FEDERATION}"

SUMMARY = {"cell", "accuracy", "rounds", "threat", "epsilon", "taps", "folder", "notes"}
CELL = {"defense", "attack", "dataset", "seed", "hash"}
EPSILON = {"claimed", "valid", "reason", "unit", "delta", "observer", "by_tap"}
LEDGER = EPSILON | {"claimed_formula", "accountant", "steps", "q", "sigma_effective"}
BY_TAP = {"valid", "reason", "q", "steps", "participations"}
TAP = {
    *("victims", "failures", "asr", "asr_low", "asr_high", "null_asr", "identified", "eta", "rmse", "null_rmse"),
    *("psnr", "ssim", "lpips", "label_accuracy", "label_ranked", "iterations", "seconds"),
}


@pytest.fixture(autouse=True)
def one_thread():
    """Let the tiny cells run on one core: they are too small to share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimate the floor roughly: these tests check that a floor or a reason exists; other tests check its value."""
    monkeypatch.setattr("leakbench.limits.floor.PROBES", 2)


def answer(command: str, *more: str) -> str:
    """Return what a command prints on stdout."""
    result = CliRunner().invoke(commands, [*command.split(), *more], standalone_mode=False, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def strict_json(text: str):
    """Parse strict JSON, which has no NaN and no Infinity."""

    def refuse(constant: str):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def absent(value, path: str = ""):
    """Yield the path of each null."""
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from absent(inner, f"{path}.{key}" if path else key)


SMALL = {
    "attack": "cpl",
    "train_rounds": 1,
    "clients": 4,
    "clients_per_round": 2,
    "local_iterations": 2,
    "batch": 3,
    "iterations": 2,
}


def with_little_public(cell: Cell) -> Cell:
    """Keep every fourth public example, which the rankings of an attack use: they take most of a tiny cell's time."""
    fewer = {"test_inputs": cell.data.test_inputs[::4], "test_targets": cell.data.test_targets[::4]}
    return dataclasses.replace(cell, data=dataclasses.replace(cell.data, **fewer))


def executed(folder: Path, **asked) -> dict:
    """Run a cell as `run` does, without its page, which takes as long as the rest; return the summary as JSON."""
    cell = with_little_public(prepare(Request(**{**SMALL, **asked}), None))
    with open_run(folder, identity(cell, "test")) as run:
        return strict_json(json.dumps(execute(cell, run, lambda *_: None).as_dict(), allow_nan=False))


def run_tiny(folder: Path, **asked) -> tuple[dict, pd.DataFrame]:
    """Run the tiniest cell; check what holds for every cell; return (summary, rows)."""
    summary = executed(folder, **{"victims": 2, "candidates": 10, **asked})
    rows = pd.read_parquet(folder / "rows.parquet")
    check_contract(summary)
    check_rows(summary, rows, asked.get("leak_batch") or 3)
    return summary, rows


def check_contract(summary: dict) -> None:
    assert summary.keys() >= SUMMARY
    assert summary["cell"].keys() >= CELL
    assert summary["epsilon"].keys() >= EPSILON
    assert tuple(summary["taps"]) == TAPS
    assert tuple(summary["epsilon"]["by_tap"]) == TAPS
    for tap in TAPS:
        assert summary["taps"][tap].keys() >= TAP
        assert summary["epsilon"]["by_tap"][tap].keys() >= BY_TAP
    by_tap = [path for path in absent(summary["epsilon"]["by_tap"]) if path.endswith(".valid")]
    assert all(summary["epsilon"]["by_tap"][path.split(".")[0]]["reason"] for path in by_tap)
    # Other nulls within the epsilon have the reason of the epsilon itself.
    inside = {path for path in absent(summary) if path.startswith("epsilon.")} - {"epsilon.claimed", "epsilon.valid"}
    # A null interval has the reason of its value.
    plain = {path.removesuffix("_low").removesuffix("_high") for path in absent(summary) if path not in inside}
    unexplained = [path for path in plain if not summary["notes"].get(path)]
    assert unexplained == []


def check_rows(summary: dict, rows: pd.DataFrame, batch: int = 3) -> None:
    """Check that there is one row for each example behind each leak, in order, with or without a reconstruction."""
    defense = load(Defense, catalog_folder("defenses") / f"{summary['cell']['defense']}.yaml")
    # B examples behind an update; behind a sum, those of K_t = 2 clients.
    behind = {t: 1 if t == "type-2" else (2 if defense.shows_sum(t) else 1) * batch for t in TAPS}
    expected = [(t, v, m) for t in TAPS for v in range(2) for m in range(behind[t])]
    assert list(zip(rows["tap"], rows["victim"], rows["member"], strict=True)) == expected
    ruler = deciding(rows)
    assert (rows[ruler.name].map(math.isfinite) == ~rows["failure"]).all()
    assert (rows["failure"] == (rows["failure_reason"] != "")).all()
    assert not (rows["success"] & rows["failure"]).any()
    assert rows[[ruler.baseline, "eta"]].map(math.isfinite).all().all()
    first = rows["member"] == 0
    assert (rows["identified"].notna() == first).all()
    assert (rows["label_ranked"].notna() == first).all()  # In the embedded sets every class is public.
    for tap in TAPS:
        mine = rows[rows["tap"] == tap]
        shown = summary["taps"][tap]
        assert shown["victims"] == 2
        if shown["asr"] is None:  # The attack ranks candidates and reconstructs no pictures.
            assert mine["failure"].all()
            continue
        assert shown["failures"] == mine["failure"].sum()
        assert shown["asr"] == pytest.approx(mine["success"].mean())
        assert 0 <= shown["asr_low"] <= shown["asr"] <= shown["asr_high"] <= 1


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_a_recipe_loads_is_short_cited_and_named_like_a_word(kind, name):
    path = catalog_folder(kind) / f"{name}.yaml"
    recipe = load(KINDS[kind], path)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 30
    assert re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", name)
    assert recipe.title.strip() and recipe.cite.strip()


@pytest.mark.parametrize("kind", KINDS)
def test_a_catalog_folder_contains_only_recipes(kind):
    assert sorted(p.name for p in catalog_folder(kind).iterdir()) == [f"{name}.yaml" for name in names(kind)]
    assert names(kind)


def test_titles_are_distinct():
    titles = [load(KINDS[kind], catalog_folder(kind) / f"{name}.yaml").title for kind, name in FILES]
    assert len(set(titles)) == len(titles)


DEAR = {"soteria", "soteria_as_released"}  # On faces; they run below on smaller pictures.


def alike() -> set[str]:
    """Return defenses that combine parts of earlier ones with other numbers; all run on small pictures and tables."""
    seen, found = set(), set()
    for name in names("defenses"):
        defense = resolve("defenses", Defense, name)[1]
        parts = tuple(tuple(type(t).__name__ for t in getattr(defense, station)) for station in STATIONS)
        other = tuple(
            type(getattr(defense, f.name)).__name__ for f in dataclasses.fields(defense) if f.name not in STATIONS
        )
        found |= {name} if (parts, other) in seen else set()
        seen.add((parts, other))
    return found


APART = DEAR | alike()


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in APART)) for n in names("defenses")])
def test_a_defense_runs(name, tmp_path):
    """With two search steps; each step computes the defense's effect on a guess."""
    summary, rows = run_tiny(tmp_path / "run", defense=name, attack="inverting_gradients")
    assert summary["cell"]["defense"] == name
    assert summary["rounds"] == 1
    assert 0 <= summary["accuracy"] <= 1
    assert rows["iterations"].between(1, 2).all()


LARGE = {
    "see_through",
    "inverting_gradients_batch_norm",
}  # Their network is a ResNet-18, which takes a minute for two iterations.


SLOW = {"learning_to_invert"}  # It trains for hours; its own tests run it with fewer epochs.
SHORT = [n for n in names("attacks") if n not in SLOW]


def only_starts_elsewhere(attack: Attack) -> bool:
    """Say whether an attack is CPL from another start: it treats batches as `cpl` does."""
    usual = load(Attack, catalog_folder("attacks") / "cpl.yaml").method
    if not isinstance(attack.method, GradientMatching) or attack.method == usual:
        return False
    return dataclasses.replace(attack.method, start=usual.start) == usual


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in LARGE)) for n in SHORT])
def test_an_attack_runs(name, tmp_path):
    attack = load(Attack, catalog_folder("attacks") / f"{name}.yaml")
    searches = limited(attack.method, 2) is not None
    stages = len(getattr(attack.method, "stages", (attack,)))
    restarts = attack.method.restarts if isinstance(attack.method, GradientMatching) else 1
    # One iteration of L-BFGS evaluates the distance up to 20 times.
    limit = 1 if stages > 1 or isinstance(getattr(attack.method, "descent", None), LbfgsDescent) else 2
    # No batch of faces has the class that the attack fishes for.
    patches = attack.leak_model.startswith("vit_")  # Their sides are multiples of the patches'.
    pictures = "faces" if fished(attack.server) is None and not patches else "digits"
    data = "cancer" if attack.needs.table else "reviews" if attack.needs.text else pictures
    asked = {"dataset": data, "iterations": limit if searches else None}
    # Features of a batch can be read only with more classes than examples. The stages of an ensemble handle batches themselves.
    single = attack.needs.alone or only_starts_elsewhere(attack) or name == "feature_inversion" or stages > 1
    asked |= {"leak_batch": 1} if single else {}
    if name == "peftleak":
        asked |= {"model": "vit_tiny", "trainable": "adapters:r=8"}
    asked |= {"victim_mode": "eval", "candidates": 2} if name in LARGE else {}
    summary, rows = run_tiny(tmp_path / "run", attack=name, **asked)
    assert summary["cell"]["attack"] == name
    assert summary["threat"] == attack.server.threat
    assert (summary["taps"]["type-2"]["asr"] is None) == attack.needs.candidates
    assert rows["iterations"].le(2 * restarts * stages).all()


ATTACKS = {"cancer": "inverting_gradients_table", "digits": "inverting_gradients"}
ON_DIGITS = {"none", "fed_cdp", "precode"}  # Pictures through an MLP; the other operations also run on tables.


PICTURES = {"ats", "oasis"}
"""Defenses that move or rotate pictures, and refuse tables."""

CONVOLUTIONS = {"fedkl", "fedkl_evaluation"}
"""Defenses that refuse a network which does not start with a convolution."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        *((n, "cancer") for n in names("defenses") if n not in PICTURES | CONVOLUTIONS),
        *((n, "digits") for n in names("defenses") if n in DEAR | ON_DIGITS | PICTURES | CONVOLUTIONS),
    ],
)
def test_a_defense_runs_on_small_pictures_and_tables(name, dataset, tmp_path):
    less = {"victims": 1, "candidates": 10, "taps": ("type-1",), "leak_batch": 1, "iterations": 1}
    if name in CONVOLUTIONS:
        less = {**less, "model": "lenet_cpl"}
    summary = executed(tmp_path / "run", defense=name, dataset=dataset, attack=ATTACKS[dataset], **less)
    assert (summary["cell"]["dataset"], summary["cell"]["defense"]) == (dataset, name)
    assert 0 <= summary["accuracy"] <= 1
    assert math.isfinite(summary["taps"]["type-1"]["rmse"])
    assert summary["taps"]["type-1"]["psnr"] is not None
    assert summary["taps"]["type-1"]["ssim"] is None  # Neither a table nor 8 x 8 pixels contain its window.


@pytest.mark.slow
def test_the_live_protocol_names_each_leak_by_its_round(tmp_path):
    more = (
        "--iterations",
        "1",
        "--protocol",
        "live",
        "--leak-rounds",
        "0,last",
        "--taps",
        "type-1,global",
        "--defense",
        "fed_cdp_valid",
    )
    summary = strict_json(answer(f"run {TINY} --json --quiet", "--out", str(tmp_path), *more))
    assert list(summary["taps"]) == ["type-1@0", "global@0", "type-1@1", "global@1"]
    for tap in summary["taps"].values():
        assert tap["clients"] * tap["local_iterations"] * tap["local_batch"] == tap["batch"]
    assert [(t["clients"], t["local_iterations"], t["local_batch"]) for t in summary["taps"].values()] == 2 * [
        (1, 2, 3),
        (2, 2, 3),
    ]
    rows = pd.read_parquet(tmp_path / "rows.parquet")
    # L = 2 iterations of B = 3 behind one update; behind a difference of global models, those of K_t = 2 clients.
    assert rows.groupby(["tap", "round"]).size().to_dict() == {
        ("type-1", 0): 12,
        ("type-1", 1): 12,
        ("global", 0): 24,
        ("global", 1): 24,
    }


@pytest.mark.slow
def test_a_missing_accuracy_without_training_has_a_note(tmp_path):
    summary, _ = run_tiny(tmp_path / "run", train_rounds=0)
    assert summary["accuracy"] is None
    assert summary["rounds"] == 0
    assert "train-rounds 0" in summary["notes"]["accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", names("defenses"))
def test_epsilon_computes_a_defense_without_training(name):
    found = strict_json(answer(f"epsilon {FEDERATION} --defense {name} --json"))
    assert found.keys() >= LEDGER
    assert tuple(found["by_tap"]) == TAPS
    for answered in (found, *found["by_tap"].values()):
        assert answered["reason"]
        assert (answered["valid"] is None) == (answered["q"] is None) == (answered["steps"] is None)
    assert found["valid"] is not None or not name.endswith("_valid")


@pytest.mark.parametrize("kind", KINDS)
def test_list_gives_a_list_of_objects(kind):
    entries = strict_json(answer(f"list {kind} --json"))
    assert [entry["name"] for entry in entries] == names(kind)
    for entry in entries:
        assert entry.keys() == {"name", "title", "cite"}
        assert all(entry.values())


def test_list_without_arguments_lists_every_kind():
    each = {kind: strict_json(answer(f"list {kind} --json")) for kind in (*KINDS, "models")}
    assert strict_json(answer("list --json")) == each


def test_list_models_shows_sizes_and_activations():
    """Sizes of the papers' networks on CIFAR-10, and the kinds in the names; every network is listed, in text and in JSON."""
    entries = {entry["name"]: entry for entry in strict_json(answer("list models --json"))}
    assert list(entries) == list(MODELS)
    assert all(
        entry.keys() == {"name", "title", "parameters", "activation", "normalisation"} for entry in entries.values()
    )
    assert entries["convnet"]["parameters"] == 2_904_970
    kinds = {name: (entry["activation"], entry["normalisation"]) for name, entry in entries.items()}
    assert kinds["lenet_cpl"] == ("sigmoid", "none")
    assert kinds["lenet_cpl_gelu"] == ("GELU", "none")
    assert kinds["convnet_no_norm"] == ("ReLU", "none")
    assert kinds["cnn6"] == ("leaky ReLU", "none")
    assert kinds["resnet18_batch_norm"] == ("ReLU", "batch")
    assert kinds["resnet18_group_norm"] == ("ReLU", "group")
    assert kinds["vit_tiny"] == kinds["gpt_tiny"] == kinds["gpt_wide"] == kinds["bert_tiny"] == ("GELU", "layer")
    shown = answer("list models")
    assert all(f"  {name} " in shown for name in MODELS) and "2,904,970" in shown


def test_networks_of_texts_are_listed_without_their_package(monkeypatch):
    """A plain installation does not have it: the list names the command that installs it, in text and in JSON."""
    with_package = strict_json(answer("list models --json"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    entries = strict_json(answer("list models --json"))
    texts = [name for name, architecture in MODELS.items() if architecture.texts]
    for entry, known in zip(entries, with_package, strict=True):
        missing = dict.fromkeys(("parameters", "activation", "normalisation"))
        assert entry == (known | missing if entry["name"] in texts else known)
    for kind in ("", " models"):
        lines = answer(f"list{kind}").splitlines()
        assert [line.split()[0] for line in lines if "pip install 'leakbench[text]'" in line] == texts


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), FILES)
def test_show_points_at_the_code_of_each_part(kind, name):
    shown = answer(f"show {name}")
    places = re.findall(r": (\w+)  \((\w+), (\S+):(\d+)\)", shown)
    assert places and not re.search(r": (None|\(\)|\{\}|)$", shown, re.MULTILINE)
    text = (catalog_folder(kind) / f"{name}.yaml").read_text(encoding="utf-8")
    assert [written for written, _, _, _ in places if re.search(rf"\b{written}\b", text)]
    for _, part, file, line in places:
        lines = (HOME / file).read_text(encoding="utf-8").splitlines()
        start = int(line) - 1
        head = lines[start : start + 2]
        assert any(re.match(rf"class {part}\b", text) for text in head), f"{file}:{line} is not {part}"
    assert str(catalog_folder(kind) / f"{name}.yaml") in shown


# A JSON Schema checker for the keywords that the schema of recipes uses; an unknown keyword is an error.

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": int | float, "null": type(None)}
WORDS = {"title", "description", "default", "$schema"}


def fits(value, schema: dict) -> bool:
    """Say whether a schema allows a value."""
    return all(CHECKS[key](value, wanted, schema) for key, wanted in schema.items() if key not in WORDS)


def _type(value, wanted: str, _: dict) -> bool:
    if wanted == "boolean" or isinstance(value, bool):
        return wanted == "boolean" and isinstance(value, bool)
    return isinstance(value, TYPES[wanted])


def _properties(value, wanted: dict, _: dict) -> bool:
    return not isinstance(value, dict) or all(fits(value[k], inner) for k, inner in wanted.items() if k in value)


def _additional(value, wanted, schema: dict) -> bool:
    if not isinstance(value, dict):
        return True
    others = [inner for key, inner in value.items() if key not in schema.get("properties", {})]
    return not others if wanted is False else all(fits(inner, wanted) for inner in others)


def _items(value, wanted: dict, _: dict) -> bool:
    return not isinstance(value, list) or all(fits(inner, wanted) for inner in value)


def _prefix(value, wanted: list, _: dict) -> bool:
    return not isinstance(value, list) or all(fits(v, inner) for v, inner in zip(value, wanted, strict=False))


CHECKS = {
    "type": _type,
    "properties": _properties,
    "additionalProperties": _additional,
    "required": lambda value, wanted, _: not isinstance(value, dict) or value.keys() >= set(wanted),
    "items": _items,
    "prefixItems": _prefix,
    "propertyNames": lambda value, wanted, _: not isinstance(value, dict) or all(fits(name, wanted) for name in value),
    "minProperties": lambda value, wanted, _: not isinstance(value, dict) or len(value) >= wanted,
    "minItems": lambda value, wanted, _: not isinstance(value, list) or len(value) >= wanted,
    "maxItems": lambda value, wanted, _: not isinstance(value, list) or len(value) <= wanted,
    "anyOf": lambda value, wanted, _: any(fits(value, inner) for inner in wanted),
    "const": lambda value, wanted, _: value == wanted,
    "enum": lambda value, wanted, _: value in wanted,
    "pattern": lambda value, wanted, _: not isinstance(value, str) or re.search(wanted, value) is not None,
    "minLength": lambda value, wanted, _: not isinstance(value, str) or len(value) >= wanted,
    "minimum": lambda value, wanted, _: not isinstance(value, int | float) or value >= wanted,
    "maximum": lambda value, wanted, _: not isinstance(value, int | float) or value <= wanted,
    "exclusiveMinimum": lambda value, wanted, _: not isinstance(value, int | float) or value > wanted,
    "exclusiveMaximum": lambda value, wanted, _: not isinstance(value, int | float) or value < wanted,
}


@pytest.fixture(scope="module")
def recipes_schema() -> dict:
    """Return the output of `leakbench schema`."""
    return strict_json(answer("schema"))


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_the_schema_allows_recipes_and_refuses_unknown_fields(kind, name, recipes_schema):
    fields = yaml.safe_load((catalog_folder(kind) / f"{name}.yaml").read_text(encoding="utf-8"))
    assert fits(fields, recipes_schema)
    assert not fits({**fields, "colour": "red"}, recipes_schema)
    for needed in ("title", "cite"):
        assert not fits({key: value for key, value in fields.items() if key != needed}, recipes_schema)


CLIPPED = {"title": "t", "cite": "c", "unit": "example"}


@pytest.mark.parametrize(
    ("example", "allowed"),
    [
        ([{"clip_layers": {"norm": 4.0}}], True),
        ([{"clip_layers": {"norm": 4.0}}, "l2_max"], True),
        (["l2_max_released"], True),
        ([{"l2_max_released": {"floor": 0.5}}], True),
        (["clip_layers"], False),
        ([{"clip_layers": {"norm": 0}}], False),
        ([{"clip_layers": {"norm": "4"}}], False),
        ([{"clip_layers": {"norm": 4.0, "tile": 2}}], False),
        ([{"clip_layer": {"norm": 4.0}}], False),
        ([{"clip_layers": {"norm": 4.0}, "l2_max": {}}], False),
        ({"clip_layers": {"norm": 4.0}}, False),
    ],
)
def test_the_schema_knows_the_fields_of_a_part(example, allowed, recipes_schema):
    assert fits({**CLIPPED, "example": example}, recipes_schema) is allowed


def test_schema_can_be_written_to_a_file(tmp_path):
    answer("schema", "--out", str(tmp_path / "deep" / "schema.json"))
    assert (tmp_path / "deep" / "schema.json").read_text() == answer("schema")
