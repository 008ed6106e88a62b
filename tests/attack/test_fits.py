"""A learned fit is cached by the hash of its training inputs, read back bit-identical, and used for nothing else."""

import copy
import dataclasses
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from command_line import called
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
from torch import nn

from leakbench.attack.fit_store import FitStore, fit_folder
from leakbench.attack.learn.origin import origin_of
from leakbench.attack.learn.sources import sources
from leakbench.attack.methods import lmmse
from leakbench.attack.methods.autoleak import AutoLeak
from leakbench.attack.methods.gradient_matching import GradientMatching
from leakbench.attack.methods.learning_to_invert import LearningToInvert
from leakbench.attack.methods.lmmse import Lmmse, LmmseStart
from leakbench.attack.methods.stage import Stage
from leakbench.attack.public_gradients import gradients_alone
from leakbench.attack.recipe import Method
from leakbench.attack.slots.space_decoder import Decoder
from leakbench.cell import Cell, Request, resolve_cell
from leakbench.core.answers import Fit
from leakbench.core.errors import InputError
from leakbench.core.fitted import Fitted, Origin, RecordedFits, fitted_anew
from leakbench.core.recipe import construct
from leakbench.core.rng import generator
from leakbench.core.task import Head, Heads, squared_error, with_task
from leakbench.core.types import Clock, Network
from leakbench.defense.clip import ClipWhole
from leakbench.defense.noise import GaussianNoise
from leakbench.defense.transform import Stations
from leakbench.execute import _sent, execute, hand_out
from leakbench.experiment import stage_attack
from leakbench.experiment.victims import draw_victims, view_of
from leakbench.federated.view import Public, View
from leakbench.models import one_hot, parameters
from leakbench.storage.store import open_run, tensor_hash

NOISY = Stations(example=(GaussianNoise(0.1, to="each", uncalibrated=True),))
CLIPPED = Stations(example=(ClipWhole(0.1),))
TINY = LearningToInvert(hidden=8, epochs=2, batch=10)
SMALL = Decoder(hidden=8, latent=2, epochs=2, batch=10)


def seen(seed: int = 0) -> View:
    """Return four victims of a small network, and thirty public examples."""
    rng = generator(seed, "view")
    model = nn.Sequential(nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 2))
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_(generator=rng)
    x, y = torch.rand(34, 5, generator=rng), torch.randint(2, (34,), generator=rng)
    view = View("type-2", Network(model, parameters(model)), {}, 1, (5,), 2, 0.1, public=Public(x[4:], y[4:]))
    leaked = view.respond(x[:4, None], one_hot(y[:4], 2)[:, None])
    return dataclasses.replace(view, update={n: u.detach() for n, u in leaked.items()})


def origin(view: View, **fields: object) -> Origin:
    assert view.public is not None
    return origin_of("part", lmmse.__name__, fields, view.public, (view,))


def moved(view: View) -> View:
    network = dataclasses.replace(view.network, parameters={n: p + 0.1 for n, p in view.network.parameters.items()})
    return dataclasses.replace(view, network=network)


def in_other_mode(view: View) -> View:
    return dataclasses.replace(view, network=dataclasses.replace(view.network, model=nn.Sequential(nn.Tanh()).eval()))


def remembering(view: View) -> View:
    return dataclasses.replace(view, network=dataclasses.replace(view.network, memory={"m": torch.ones(2)}))


def fewer(view: View) -> View:
    assert view.public is not None
    return dataclasses.replace(view, public=Public(view.public.inputs[1:], view.public.labels[1:]))


def later(view: View) -> View:
    return dataclasses.replace(view, stations=NOISY, clock=Clock(3, 0, 9, 1))


OTHERS: dict[str, tuple[Callable[[View], View], str]] = {
    "weights": (moved, "weights"),
    "model": (in_other_mode, "weights"),
    "memory": (remembering, "weights"),
    "defense": (lambda v: dataclasses.replace(v, stations=CLIPPED), "defense"),
    "its numbers": (lambda v: dataclasses.replace(v, stations=Stations(example=(ClipWhole(0.2),))), "defense"),
    "its round": (later, "defense"),
    "noise": (lambda v: dataclasses.replace(v, noise=0.1), "noise"),
    "public examples": (fewer, "public examples"),
    "classes": (lambda v: dataclasses.replace(v, classes=3), "leakage point"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_every_input_of_a_fit_changes_its_origin(what: str) -> None:
    view = seen()
    change, name = OTHERS[what]
    before, after = origin(view), origin(change(view))
    assert [key for key in before if before[key] != after[key]] == [name]


def test_unused_inputs_do_not_change_the_origin() -> None:
    """The victims, their number, the batch of a type-2 gradient, and the clock without a defense."""
    view = seen()
    for other in (
        view.of(torch.tensor([2, 0])),
        dataclasses.replace(view, update={n: u + 1 for n, u in view.update.items()}),
        dataclasses.replace(view, batch=7),
        dataclasses.replace(view, clock=Clock(3, 0, 9, 1)),
        dataclasses.replace(view, learning_rate=0.7),
        seen(),
    ):
        assert origin(other) == origin(view)
    assert origin(view, ridge=1.0) != origin(view, ridge=2.0)


def test_the_version_of_pytorch_changes_the_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    before = origin(seen())
    monkeypatch.setattr(torch, "__version__", "0.0.0")
    assert [key for key, value in origin(seen()).items() if before[key] != value] == ["torch"]


def test_the_code_of_a_fit_includes_the_imports_of_its_part() -> None:
    """In the package of attacks: by hand, the code that the learner runs and no other part.

    Other code does not require a new fit.
    """
    read = {name.rpartition(".")[2] for name in sources("leakbench.attack.methods.lmmse")}
    assert {"lmmse", "linear_map", "ridge", "public", "public_gradients", "looks"} <= read
    assert read.isdisjoint({"null", "autoleak", "attack", "space_whitened", "vae", "learning_to_invert"})
    decoder = {name.rpartition(".")[2] for name in sources("leakbench.attack.slots.space_decoder")}
    assert "vae" in decoder
    assert decoder.isdisjoint({"lmmse", "linear_map"})
    for name in sources("leakbench.attack.methods.autoleak"):
        assert name in sys.modules


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("from leakbench.attack.learn.ridge import leave_one_out", ["leakbench.attack.learn.ridge"]),
        ("import leakbench.attack.learn.ridge as r", ["leakbench.attack.learn.ridge"]),
        ("def f():\n    from leakbench.attack.learn.ridge import leave_one_out", ["leakbench.attack.learn.ridge"]),
        ("import torch\nfrom leakbench.attacker import x\nfrom . import y", []),
    ],
)
def test_a_user_part_counts_with_its_imports(
    line: str, read: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "learner_of_mine.py").write_text(line + "\n")
    before = sources("learner_of_mine")
    assert list(before) == sorted(["learner_of_mine", *read])
    (tmp_path / "learner_of_mine.py").write_text(line + "\n# a word\n")
    after = sources("learner_of_mine")
    assert [name for name in after if after[name] != before[name]] == ["learner_of_mine"]


@pytest.mark.parametrize("module", ["itertools_of_nobody", "sys"])
def test_a_part_without_a_source_is_refused(module: str) -> None:
    with pytest.raises(InputError, match=f"module: got '{module}', which has no source"):
        sources(module)


@pytest.mark.parametrize("stations", [Stations(), NOISY, CLIPPED])
def test_leakage_points_without_a_station_between_them_share_an_origin(stations: Stations) -> None:
    one = dataclasses.replace(seen(), stations=stations)
    other = dataclasses.replace(one, tap="type-1")
    assert origin(one) == origin(other)
    assert one.public is not None
    for a, b in zip(gradients_alone(one, one.public), gradients_alone(other, one.public), strict=True):
        assert torch.equal(a, b)


def test_stations_after_a_leakage_point_do_not_change_its_draws() -> None:
    """One origin is one fit: the learner's noise comes from the stations before the leakage point."""
    one = dataclasses.replace(seen(), stations=NOISY)
    other = dataclasses.replace(one, stations=dataclasses.replace(NOISY, batch=NOISY.example))
    assert origin(one) == origin(other)
    assert one.public is not None
    drawn = [torch.cat(list(gradients_alone(v, one.public, 4, generator(0, "noise")))) for v in (one, other)]
    assert torch.equal(*drawn)


def test_a_station_between_two_leakage_points_separates_their_origins() -> None:
    """Then the length of a step counts too, since the update is clipped."""
    one = dataclasses.replace(seen(), stations=Stations(client=(ClipWhole(0.1),)))
    assert origin(one) == origin(seen())
    other = dataclasses.replace(one, tap="type-1")
    assert origin(other) != origin(one)
    assert origin(dataclasses.replace(other, learning_rate=0.7)) != origin(other)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(1, 6))
def test_a_hash_of_tensors_reads_names_shapes_and_every_bit(seed: int, size: int) -> None:
    x = torch.randn(size, 2, generator=torch.Generator().manual_seed(seed))
    one = {"a": x, "b": x[:1]}
    assert tensor_hash(one) == tensor_hash(dict(reversed(one.items())))
    bit = x.clone()
    bit.view(torch.int32)[-1, -1] ^= 1
    for other in ({"a": x}, {"a": x[:1], "b": x}, {"a": x.T, "b": x[:1]}, {"a": bit, "b": x[:1]}):
        assert tensor_hash(other) != tensor_hash(one) or (size in (1, 2) and other["a"].equal(one["a"]))


# The methods that learn.

LEARNERS: dict[str, Callable[[View], torch.Tensor]] = {
    "lmmse": lambda view: Lmmse()((view,), ()).inputs,
    "start": lambda view: LmmseStart()(view, ()),
    "learning_to_invert": lambda view: TINY((view,), ()).inputs,
    "hashed": lambda view: dataclasses.replace(TINY, hashed=0.3)((view,), ()).inputs,
    "decoder": lambda view: SMALL(view).decode(torch.ones(2, 1, 2)),
}


@dataclasses.dataclass
class Counting:
    """A store that counts the trainings of parts."""

    store: FitStore
    times: int = 0

    def __call__(self, origin: Origin, fit: Callable[[], Fitted]) -> Fitted:
        def counted() -> Fitted:
            self.times += 1
            return fit()

        return self.store(origin, counted)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_cached_fit_is_bit_identical_and_not_learned_again(name: str, tmp_path: Path) -> None:
    view, ask = seen(), LEARNERS[name]
    plain = ask(view)
    first, again, gone = (Counting(FitStore(tmp_path)) for _ in range(3))
    for store, times in ((first, 1), (first, 1), (again, 0)):
        assert torch.equal(ask(dataclasses.replace(view, fits=store)), plain)
        assert store.times == times
    [path] = tmp_path.iterdir()
    assert load_file(path)
    ask(dataclasses.replace(fewer(view), fits=gone))
    assert gone.times == 1
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("name", LEARNERS)
def test_a_fit_of_another_origin_is_refused_in_one_line(name: str) -> None:
    view, ask, held = seen(), LEARNERS[name], []

    def wrong(origin: Origin, fit: Callable[[], Fitted]) -> Fitted:
        held[:] = held or [fit()]
        return held[0]

    ask(dataclasses.replace(view, fits=wrong))
    network_alone = ("defense", "weights", "noise") if name != "decoder" else ()
    for what in (*network_alone, "public examples"):
        with pytest.raises(InputError, match=f"here differs: {what} ") as error:
            ask(dataclasses.replace(OTHERS[what][0](view), fits=wrong))
        assert "\n" not in str(error.value)


def test_the_decoder_depends_only_on_the_public_examples() -> None:
    store = Counting(FitStore(None))
    view = dataclasses.replace(seen(), fits=store)
    for other in (view, moved(view), dataclasses.replace(view, stations=CLIPPED, noise=0.1, tap="type-1")):
        SMALL(other)
    assert store.times == 1
    dataclasses.replace(SMALL, weight=2.0)(view)
    assert store.times == 1
    dataclasses.replace(SMALL, seed=1)(view)
    assert store.times == 2


def test_leakage_points_after_the_same_stations_learn_once() -> None:
    store = Counting(FitStore(None))
    view = dataclasses.replace(seen(), fits=store, noise=0.1, stations=NOISY)
    for tap in ("type-2", "type-1", "type-0"):
        Lmmse()((dataclasses.replace(view, tap=tap),), ())
    assert store.times == 1


MATCHING = {"labels": "last_layer", "distance": "squared_l2", "descent": "lbfgs", "stop": {"iterations": {"limit": 2}}}


def test_a_search_reports_the_fits_of_its_parts(tmp_path: Path) -> None:
    """A start, a space, or both; in an ensemble of several searches the same start counts once."""
    view = dataclasses.replace(seen(), fits=FitStore(tmp_path))
    start, public = LmmseStart(public=20), {"public_mean": {}}
    small = {"decoder": dataclasses.asdict(SMALL)}
    cases = ((start, "pixels", 20), (public, small, 30), (start, small, 30), (public, "pixels", None))
    found = {}
    for i, (begin, space, count) in enumerate(cases):
        search = construct(GradientMatching, {**MATCHING, "start": begin, "space": space})
        fit = search((view,), tuple(generator(0, "v", v) for v in range(4))).fit
        assert (None if fit is None else fit.public) == count
        found[i] = (search, fit)
    search, fit = found[0]
    twice = AutoLeak(stages=(Stage(method=search), Stage(method=search)))(
        (view,), tuple(generator(0, "v", v) for v in range(4))
    )
    assert twice.fit == fit


def test_the_fits_of_several_parts_add_up() -> None:
    asked = RecordedFits(fitted_anew)
    assert asked.fit is None
    for name, seconds, public in (("a", 1.0, 10), ("b", 2.0, 30), ("a", 1.0, 10)):
        here = {"part": name}
        asked(here, lambda here=here, seconds=seconds, public=public: Fitted(here, {}, Fit(seconds, public)))
    assert asked.fit == Fit(3.0, 30)


# The files.


def one(value: float = 1.0, name: str = "a", size: int = 3) -> Fitted:
    return Fitted({"part": name}, {"z": torch.full((size,), value), "a": torch.arange(size)}, Fit(1.5, 7))


def asked_of(folder: Path | None, fitted: Fitted, **fields: object) -> tuple[Fitted, int]:
    store = Counting(FitStore(folder, **fields))  # type: ignore[arg-type]
    return store(fitted.origin, lambda: fitted), store.times


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def headless(path: Path) -> None:
    save_file(load_file(path), path)


def mistold(path: Path) -> None:
    save_file(load_file(path), path, {"fit": json.dumps({"origin": {"part": "b"}, "seconds": 1, "public": 1})})


def of_another(path: Path) -> None:
    asked_of(path.parent, one(2.0, "b"))
    [other] = set(path.parent.iterdir()) - {path}
    other.replace(path)


@pytest.mark.parametrize("damage", [cut, flip, empty, headless, mistold, of_another, Path.unlink])
def test_a_damaged_file_is_learned_again_and_replaced(damage: Callable[[Path], None], tmp_path: Path) -> None:
    assert asked_of(tmp_path, one())[1] == 1
    [path] = tmp_path.iterdir()
    damage(path)
    again, times = asked_of(tmp_path, one(2.0))
    assert times == 1
    assert again.tensors["z"].tolist() == [2.0] * 3
    kept, times = asked_of(tmp_path, one(3.0))
    assert times == 0
    assert kept.tensors["z"].tolist() == [2.0] * 3
    assert (kept.fit, kept.origin) == (Fit(1.5, 7), {"part": "a"})
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_an_interrupted_write_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(self: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", dying)
    with pytest.raises(KeyboardInterrupt):
        asked_of(tmp_path, one())
    monkeypatch.undo()
    assert not list(tmp_path.iterdir())


def test_an_unwritable_folder_is_reported_once_and_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[str] = []
    store = FitStore(tmp_path / "file" / "fits", warn=told.append)
    for _ in range(3):
        assert store({"part": "a"}, one).tensors["z"].tolist() == [1.0] * 3
    assert len(told) == 1
    assert "cannot be kept here" in told[0]
    assert "\n" not in told[0]


def test_the_least_recently_used_fits_are_removed_when_space_is_short(tmp_path: Path) -> None:
    """Files of some 10 kB, three in 40 kB; the file just read stays."""
    for name in "abc":
        asked_of(tmp_path, one(name=name, size=800), room=45_000)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    sizes = {p.stat().st_size for p in files}
    assert max(sizes) < 11_000
    ages = {FitStore(tmp_path)._path({"part": name}): age for name, age in (("a", 3), ("b", 2), ("c", 1))}
    for path, age in ages.items():
        assert path is not None
        os.utime(path, (1e9 - age, 1e9 - age))
    assert asked_of(tmp_path, one(name="a", size=800))[1] == 0
    for name in "de":
        asked_of(tmp_path, one(name=name, size=800), room=45_000)
    left = {path.name for path in tmp_path.iterdir()}
    kept = {name: FitStore(tmp_path)._path({"part": name}).name in left for name in "abcde"}  # type: ignore[union-attr]
    assert kept == {"a": True, "b": False, "c": True, "d": True, "e": True}
    asked_of(tmp_path, one(name="f", size=1000), room=45_000)
    assert {path.name for path in tmp_path.iterdir()} == left


def test_only_fits_and_stale_temporary_files_are_removed(tmp_path: Path) -> None:
    """Tensors of other programs in the folder stay, and so do files that may be written now."""
    mine, old, now = (
        tmp_path / name for name in ("my_model.safetensors", ".a.safetensors.x.tmp", ".b.safetensors.y.tmp")
    )
    mine.write_bytes(b"0" * 60_000)
    old.write_bytes(b"0")
    now.write_bytes(b"0")
    os.utime(old, (1e9, 1e9))
    os.utime(mine, (1e9, 1e9))
    for name in "abcde":
        asked_of(tmp_path, one(name=name, size=800), room=45_000)
    assert mine.exists()
    assert now.exists()
    assert not old.exists()
    # Four fits of five, and the other program's file.
    assert len([p for p in tmp_path.iterdir() if p.suffix == ".safetensors"]) == 5


@pytest.mark.parametrize("told", [{"seconds": float("nan")}, {"seconds": -1.0}, {"public": 0}])
def test_an_impossible_fit_is_learned_again(tmp_path: Path, told: dict[str, float]) -> None:
    asked_of(tmp_path, one(name="a"))
    (path,) = tmp_path.iterdir()
    with safe_open(path, framework="pt") as file:
        head = json.loads(file.metadata()["fit"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    path.write_bytes(save(tensors, {"fit": json.dumps({**head, **told})}))
    assert asked_of(tmp_path, one(name="a"))[1] == 1


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEAKBENCH_FITS", str(tmp_path))
    assert fit_folder() == tmp_path
    monkeypatch.delenv("LEAKBENCH_FITS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert fit_folder() == tmp_path / "cache" / "leakbench" / "fits"


# Whole runs.

LINE = [
    "run",
    "--quiet",
    "--json",
    "--dataset",
    "digits",
    "--victims",
    "6",
    "--candidates",
    "20",
    "--networks",
    "1",
    "--train-rounds",
    "0",
]


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Return a list with one entry for each training; fits are cached in a folder of this test."""
    monkeypatch.setenv("LEAKBENCH_FITS", str(tmp_path / "fits"))
    made: list[int] = []
    linear_map = lmmse.linear_map

    def counted(*given):
        made.append(1)
        return linear_map(*given)

    monkeypatch.setattr(lmmse, "linear_map", counted)
    return made


@pytest.mark.slow
def test_another_run_does_not_learn_again(learned, tmp_path, monkeypatch, capsys):
    line = (*LINE, "--attack", "lmmse", "--defense", "noise_gaussian", "--taps", "type-2,type-1", "--leak-batch", "1")
    for number in range(2):
        code, out, _ = called(monkeypatch, capsys, *line, "--out", str(tmp_path / f"run{number}"))
        assert code == 0
        assert len(learned) == 1
    rows = [pd.read_parquet(tmp_path / f"run{n}" / "rows.parquet") for n in (0, 1)]
    pd.testing.assert_frame_equal(*rows, check_exact=True)
    assert (rows[0]["fit_public"] == rows[0]["fit_public"].iloc[0]).all()
    taps = json.loads(out)["taps"]
    assert {tap["fit_public"] for tap in taps.values()} == {450}
    assert all(tap["fit_seconds"] > 0 for tap in taps.values())


def test_an_attack_that_does_not_learn_reports_it(tmp_path, monkeypatch, capsys):
    line = (*LINE, "--attack", "identification", "--taps", "type-2")
    code, out, _ = called(monkeypatch, capsys, *line, "--out", str(tmp_path / "run"))
    assert code == 0
    summary = json.loads(out)
    assert summary["taps"]["type-2"]["fit_seconds"] is None
    assert summary["taps"]["type-2"]["fit_public"] is None
    assert summary["notes"]["taps.type-2.fit_seconds"] == "the attack learns nothing before it answers"
    assert pd.read_parquet(tmp_path / "run" / "rows.parquet")["fit_seconds"].isna().all()


def go(cell: Cell, folder: Path, progress: Callable[..., None] = lambda *_: None) -> pd.DataFrame:
    with open_run(folder, {"hash": cell.hash, "cell": cell.names, "command": "test"}) as run:
        execute(cell, run, progress)
    return pd.read_parquet(folder / "rows.parquet")


@pytest.mark.slow
def test_a_run_killed_between_two_chunks_resumes_with_the_same_fit(learned, tmp_path, monkeypatch):
    """Six victims in chunks of two: one fit for all of them, for the interrupted run and for the uninterrupted one."""
    monkeypatch.setattr(stage_attack, "_chunk", lambda *_: 2)
    request = Request(
        attack="lmmse", dataset="digits", taps=("type-2",), victims=6, networks=1, candidates=20, train_rounds=0
    )
    cell = resolve_cell(dataclasses.replace(request, defense="noise_gaussian"), None)

    def stop(phase: str, done: int, total: int | None) -> None:
        if done == 2 and phase.startswith("attack"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(cell, tmp_path / "run", stop)
    assert len(learned) == 1
    rows = go(cell, tmp_path / "run")
    pd.testing.assert_frame_equal(rows, go(cell, tmp_path / "whole"), check_exact=True)
    assert len(learned) == 1
    assert rows["fit_seconds"].nunique() == 1


@pytest.mark.parametrize("dataset", ["digits", "faces", "cancer"])
@pytest.mark.parametrize("method", [Lmmse(), LearningToInvert(), Decoder()])
def test_a_fit_reads_no_victim(dataset: str, method: Method) -> None:
    """By content, for all possible victims and all inputs of a part that learns."""
    cell = resolve_cell(Request(attack="lmmse", dataset=dataset, taps=("type-2",), victims=3), None)
    needs = dataclasses.replace(cell.attack, method=Lmmse(public=method.public))
    cell = dataclasses.replace(cell, attack=needs)
    victims = draw_victims(cell, "type-2", 0, hand_out(cell))
    view = view_of(cell, "type-2", 0, victims, torch.arange(3), _sent(cell, None, None))  # type: ignore[arg-type]
    assert view.public is not None
    assert len(view.public.labels) == min(method.public, len(cell.data.public_targets))
    attacked = {x.numpy().tobytes() for x in cell.data.train_inputs[cell.data.victims].flatten(1)}
    read = {x.numpy().tobytes() for x in view.public.inputs.flatten(1)}
    assert len(read) >= 50
    assert attacked.isdisjoint(read)


def test_another_loss_or_other_targets_are_another_origin() -> None:
    """Otherwise a map that was learned from the gradients of one loss would read those of another."""
    view = seen()
    assert view.public is not None
    heads = (Head("class", "classes", 2), Head("labels", "labels", 2))
    origins = [origin_of("lmmse", lmmse.__name__, {}, view.public, (view,))]
    for head, function in ((heads[0], None), (heads[1], None), (heads[0], squared_error)):
        model = with_task(copy.deepcopy(view.network.model), Heads((head,), function))
        other = dataclasses.replace(view, network=dataclasses.replace(view.network, model=model))
        origins.append(origin_of("lmmse", lmmse.__name__, {}, view.public, (other,)))
    answers = dataclasses.replace(view.public, answers=one_hot(view.public.labels, 2))
    origins += [origin_of("lmmse", lmmse.__name__, {}, public, (view,)) for public in (answers,)]
    assert len({json.dumps(dict(origin)) for origin in origins}) == len(origins)
