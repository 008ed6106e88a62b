"""The recipe loader: the parts it builds, its refusals and their messages."""

import dataclasses
import importlib
import pkgutil
from pathlib import Path

import pytest
from pydantic_core import PydanticCustomError

import leakbench
from leakbench.attack import Attack
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.recipe import METHOD, SERVER
from leakbench.attack.slots import denoiser, descent, distance, labels, pooling, priors, space, start, stop
from leakbench.attack.slots.start import Patterned
from leakbench.catalog import KINDS
from leakbench.cell import Request, resolve_cell
from leakbench.core.behaviour import part_name
from leakbench.core.errors import InputError
from leakbench.core.part import part
from leakbench.core.recipe import Slot, _own_parts, construct, describe, load, names, recipe_name, resolve
from leakbench.core.untrusted import parse_yaml
from leakbench.data.formats import FORMAT
from leakbench.data.partition import PARTITION
from leakbench.data.targets import TARGETS
from leakbench.defense import Defense
from leakbench.defense.augmentation import AUGMENTATION
from leakbench.defense.clip import ClipLayers
from leakbench.defense.correlated import CORRELATION
from leakbench.defense.importance import IMPORTANCE
from leakbench.defense.network import NETWORK
from leakbench.defense.recipe import TRANSFORM
from leakbench.privacy.claim import CLAIM
from leakbench.privacy.decay import DECAY

SLOTS = (
    *(TRANSFORM, NETWORK, AUGMENTATION, IMPORTANCE, CORRELATION, CLAIM, DECAY, FORMAT, PARTITION, METHOD, SERVER),
    *(TARGETS, denoiser.DENOISER, descent.DESCENT, distance.DISTANCE, labels.LABELS, pooling.POOLING),
    *(priors.PRIOR, space.SPACE, start.START, stop.STOP),
)

GOOD = """
title: Mine
cite: me
method:
  gradient_matching:
    labels: last_layer
    start: {patterned: {tile: 4}}
    distance: squared_l2
    descent: lbfgs
"""


def written(tmp_path: Path, text: str, name: str = "mine.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_becomes_parts(tmp_path: Path) -> None:
    """Names become parts, their fields are set, missing fields have the default."""
    name, attack = resolve("attacks", Attack, str(written(tmp_path, GOOD)))
    assert name == "mine"
    assert isinstance(attack.method, GradientMatching)
    assert attack.method.start == Patterned(tile=4)
    assert attack.method.stop.limit == 300
    assert attack.server.threat == "honest"


def test_describe_is_plain_and_distinguishes_parts() -> None:
    """The plain form names each part, so two parts with equal fields have different hashes."""
    defense = construct(
        Defense, {"title": "t", "cite": "c", "unit": "example", "example": [{"clip_layers": {"norm": 4.0}}]}
    )
    assert defense.example == (ClipLayers(norm=4.0),)
    assert describe(defense)["example"] == [{"part": "ClipLayers", "norm": 4.0}]


def test_an_identity_does_not_depend_on_the_name_or_module_of_a_class() -> None:
    @part("transform.clip_layers")
    class AnotherName:
        norm: float

    assert describe(AnotherName(4.0)) == describe(ClipLayers(norm=4.0))


def test_catalog_entries_are_identified_by_names_of_parts() -> None:
    """A class without a name would be identified by its class name, and renaming it would make published rows stale."""
    unnamed = set()

    def look(value: object) -> None:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            unnamed.update([] if part_name(type(value)) else [type(value)])
            look([getattr(value, field.name) for field in dataclasses.fields(value)])
        elif isinstance(value, tuple | list):
            for each in value:
                look(each)

    for kind, cls in KINDS.items():
        for name in names(kind):
            look(resolve(kind, cls, name)[1])
    look(resolve_cell(Request(defense="fed_cdp", attack="cpl", train_rounds=0), None).settings)
    assert unnamed == set()


def test_two_parts_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "from leakbench.core.part import part\n" + "".join(
        f'@part("transform.twice")\nclass {name}:\n    size: int\n' for name in ("One", "Other")
    )
    (tmp_path / "twice_declared.py").write_text(lines, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(TypeError, match=r"transform\.twice: both One and Other have this name"):
        _ = Slot("transform", ("twice_declared",)).parts


def test_every_named_part_is_offered_by_its_slot() -> None:
    offered = {cls for slot in SLOTS for cls in slot.parts.values()}
    named = set()
    for module in pkgutil.walk_packages(leakbench.__path__, "leakbench."):
        if module.name.split(".")[1] in ("attack", "data", "decay", "defense", "federated", "privacy"):
            values = vars(importlib.import_module(module.name)).values()
            named |= {v for v in values if isinstance(v, type) and "." in (part_name(v) or "")}
    assert named == offered
    assert all(name == recipe_name(cls) for slot in SLOTS for name, cls in slot.parts.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("tile: 4", "tlie: 4"),
            "method: gradient_matching: start: patterned: unknown field 'tlie'; did you mean 'tile'?",
        ),
        (("tile: 4", "tile: four"), "tile: "),
        (("tile: 4", "tile: 0"), "tile: "),
        (("tile: 4", "tile: 2.5"), "tile: "),
        (("tile: 4", "tile: true"), "tile: "),
        (("patterned", "paterned"), "unknown part 'paterned'; did you mean 'patterned'?"),
        (("title: Mine\n", ""), "missing field 'title'"),
        (("cite: me\n", ""), "missing field 'cite'"),
        (("cite: me", "cite: 7"), "cite: "),
        (("title: Mine", "titel: Mine"), "unknown field 'titel'; did you mean 'title'?"),
        (("    descent: lbfgs\n", ""), "missing field 'descent'"),
        (("descent: lbfgs", "descent: {lbfgs: {history: .nan}}"), "history: "),
        (("descent: lbfgs", "descent: [lbfgs]"), "descent: "),
        (("cite: me", "cite: me\ncite: you"), "'cite' appears twice"),
        (("cite: me", "cite: [me"), "not valid YAML"),
    ],
)
def test_wrong_types_are_refused_by_name(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    """One line that begins with the file and names the field."""
    assert change[0] in GOOD
    path = written(tmp_path, GOOD.replace(*change))
    with pytest.raises(InputError) as caught:
        load(Attack, path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(("written", "value"), [("1e3", 1000.0), ("1.0e3", 1000.0), ("2.5e-3", 0.0025), ("4.0", 4.0)])
def test_exponents_need_no_sign(tmp_path: Path, written: str, value: float) -> None:
    """As in YAML 1.2, and as people write numbers."""
    path = tmp_path / "mine.yaml"
    path.write_text(f"title: t\ncite: c\nunit: example\nexample:\n  - clip_layers: {{norm: {written}}}\n")
    assert load(Defense, path).example[0].norm == value  # type: ignore[attr-defined]


@pytest.mark.parametrize("norm", [".nan", ".inf", "-1.0", "0"])
def test_meaningless_numbers_are_refused(tmp_path: Path, norm: str) -> None:
    """A clip at NaN, infinity, zero or below."""
    text = f"title: t\ncite: c\nunit: example\nexample: [{{clip_layers: {{norm: {norm}}}}}]\n"
    with pytest.raises(InputError, match=r"example\.0: clip_layers: norm: "):
        load(Defense, written(tmp_path, text))


def test_a_list_or_a_word_is_not_a_recipe(tmp_path: Path) -> None:
    """The top of a recipe is a mapping."""
    for text in ("- a\n", "word\n", ""):
        with pytest.raises(InputError, match="expected a mapping"):
            load(Attack, written(tmp_path, text))


def test_unknown_names_suggest_the_nearest(tmp_path: Path) -> None:
    """A typo in a catalog name."""
    with pytest.raises(InputError, match="did you mean 'fed_alpha_cdp'"):
        resolve("defenses", Defense, "fed_alpa_cdp")
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(InputError, match=r"^attack: '.*folder\.yaml' is a folder, expected a file$"):
        resolve("attacks", Attack, str(tmp_path / "folder.yaml"))
    with pytest.raises(InputError, match="no file"):
        resolve("defenses", Defense, "./nowhere.yaml")


def test_a_recipe_in_the_working_folder_is_suggested(tmp_path, monkeypatch):
    (tmp_path / "defenses").mkdir()
    (tmp_path / "defenses" / "clipped.yaml").write_text("title: A clip\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"give the path \./defenses/clipped\.yaml, or install the checkout by pip install -e \."
    ):
        resolve("defenses", Defense, "clipped")
    with pytest.raises(InputError, match="unknown name"):
        resolve("defenses", Defense, "c" * 300)


def test_a_package_that_cannot_be_imported_stops_only_recipes_that_name_its_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the part and its package; other recipes do not import it."""
    installed = tmp_path / "my_parts-0.1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: my-parts\nVersion: 0.1\n", encoding="utf-8")
    (installed / "entry_points.txt").write_text(
        "[leakbench.parts]\ntransform.rounded = my_lost:Rounded\ntransform.called = json:loads\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    _own_parts.cache_clear()
    try:
        assert TRANSFORM({"clip_whole": {"norm": 1.0}}).norm == 1.0
        with pytest.raises(PydanticCustomError) as refused:
            TRANSFORM("rounded")
        with pytest.raises(PydanticCustomError, match="got json:loads, expected a frozen dataclass"):
            TRANSFORM("called")
    finally:
        _own_parts.cache_clear()
    assert str(refused.value) == (
        "rounded: part 'transform.rounded' of the package my-parts cannot be imported (ModuleNotFoundError: No module named "
        "'my_lost'); install the package again or uninstall it"
    )


def test_a_text_that_is_read_twice_gives_data_of_its_own() -> None:
    """Parsed texts are kept, so that a change of what one reader got must not reach the next."""
    text = "a: &list [1, {b: 2}]\nc: *list\n"
    first = parse_yaml(text)
    first["a"][1]["b"] = 3
    first["d"] = 4
    assert parse_yaml(text) == {"a": [1, {"b": 2}], "c": [1, {"b": 2}]}
