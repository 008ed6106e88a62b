"""The output of `leakbench audit` for the catalog, for a user's recipe and for a user's function."""

import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import called

from leakbench.cell import Request, probe_of, resolve_cell
from leakbench.core.recipe import names
from leakbench.privacy.accountants import pld
from leakbench.privacy.mechanism import Mechanism

KEYS = [
    "noise_data_independent",
    "sigma_measured",
    "sigma_recipe",
    "clip_holds",
    "lower_bound",
    "lower_bound_family",
    "claimed",
    "valid",
    "confidence",
    "trials",
    "verdict",
    "reason",
]

FUNCTIONS = """
import numpy as np

def norm(update):
    return np.sqrt(sum(np.sum(g.astype(float) ** 2) for g in update.values()))

def clipped(update, seed):
    rng = np.random.default_rng(seed)
    factor = min(1.0, 2.0 / max(norm(update), 1e-30))
    return {n: g * factor + rng.normal(0.0, 3.0, g.shape) for n, g in update.items()}

def by_layer(update, rng: np.random.Generator):
    return {n: g * min(1.0, 2.0 / max(np.linalg.norm(g), 1e-30)) + rng.normal(0.0, 3.0, g.shape) for n, g in update.items()}

def unclipped(update, seed):
    rng = np.random.default_rng(seed)
    return {n: g + rng.normal(0.0, 3.0, g.shape) for n, g in update.items()}

def own_scale(update, rng):
    size = min(1.0, norm(update))
    return {n: g * min(1.0, 2.0 / max(norm(update), 1e-30)) + rng.normal(0.0, 1.0 + size, g.shape) for n, g in update.items()}

def laplace(update, rng):
    factor = min(1.0, 2.0 / max(norm(update), 1e-30))
    return {n: g * factor + rng.laplace(0.0, 3.0, g.shape) for n, g in update.items()}

SOURCE = np.random.default_rng(0)

def unseeded(update):
    return by_layer_or_whole(update, 2.0)

def by_layer_or_whole(update, bound):
    factor = min(1.0, bound / max(norm(update), 1e-30))
    return {n: g * factor + SOURCE.normal(0.0, 1.0, g.shape) for n, g in update.items()}

def unseeded_unclipped(update):
    return {n: g + SOURCE.normal(0.0, 1.0, g.shape) for n, g in update.items()}

def returns_list(update):
    return list(update)

def forgets_one(update):
    return dict(list(update.items())[1:])

def half_seeded(update, seed):
    return by_layer(update, SOURCE)

def wrong_shape(update):
    return {n: g[None] for n, g in update.items()}

def not_a_number(update):
    return {n: g * np.nan for n, g in update.items()}

def only_clips(update):
    return {n: g * min(1.0, 2.0 / max(norm(update), 1e-30)) for n, g in update.items()}

def whisper(update, rng):
    return {n: 1e8 * g * min(1.0, 2.0 / max(norm(update), 1e-30)) + rng.normal(0.0, 1.0, g.shape) for n, g in update.items()}

def constant(update):
    return {n: np.ones_like(g) for n, g in update.items()}

def leaves(update):
    raise SystemExit(0)


def imaginary(update):
    return {name: 1j * array.astype(complex) for name, array in update.items()}


def words(update):
    return {name: array.astype(str) for name, array in update.items()}


def raises(update):
    raise RuntimeError("two\\nlines")

def three(update, seed, bound):
    return update

def guarded(update, noise):
    factor = min(1.0, 2.0 / max(norm(update), 1e-30))
    return {n: g * factor + noise[n] for n, g in update.items()}

def drawn(update, seed):
    source = np.random.default_rng(seed)
    return {n: source.normal(0.0, 3.0, g.shape) for n, g in update.items()}

def by_name(update, *, seed):
    return guarded(update, drawn(update, seed))

def bare_corner(update, seed):
    noise = drawn(update, seed)
    next(iter(noise.values())).flat[:3] = 0.0
    return guarded(update, noise)

def one_seed_for_all(update, seed):
    return guarded(update, {n: drawn({n: g}, seed)[n] for n, g in update.items()})

def centred(update, seed):
    return guarded(update, {n: z - z.mean() for n, z in drawn(update, seed).items()})

def few_seeds(update, seed):
    return guarded(update, drawn(update, seed % 1024))

def last_norm(update, seed):
    last = list(update)[-1]
    factor = min(1.0, 1.0 / max(float(np.linalg.norm(update[last])), 1e-30))
    return {n: g * factor + drawn(update, seed)[n] for n, g in update.items()}

def mean_norm(update, seed):
    norms = [float(np.linalg.norm(g)) for g in update.values()]
    factor = min(1.0, 1.0 / max(sum(norms) / len(norms), 1e-30))
    noise = drawn(update, seed)
    return {n: g * factor + noise[n] for n, g in update.items()}

def largest_coordinate(update, seed):
    factor = min(1.0, 1.0 / max(max(float(np.abs(g).max()) for g in update.values()), 1e-30))
    noise = drawn(update, seed)
    return {n: g * factor + noise[n] for n, g in update.items()}

def signed(update, seed):
    clipped = sum(float(g.sum()) for g in update.values()) >= 0
    noise = drawn(update, seed)
    return guarded(update, noise) if clipped else {n: g + noise[n] for n, g in update.items()}

def mirrored(update, seed):
    flat = np.concatenate([z.ravel() for z in drawn(update, seed).values()])
    half = len(flat) // 2
    flat[half:2 * half] = -flat[:half]
    flat[2 * half:] = 0.1
    order = np.random.default_rng(7).permutation(len(flat))
    pieces = np.split(flat[order], np.cumsum([g.size for g in update.values()])[:-1])
    return guarded(update, {n: z.reshape(update[n].shape) for n, z in zip(update, pieces)})

def noise_where_something_is(update, seed):
    return guarded(update, {n: z * (update[n] != 0) for n, z in drawn(update, seed).items()})

def quiet_band(update, seed):
    quiet = 0.3 < norm(update) < 0.5
    return guarded(update, {n: z * (not quiet) for n, z in drawn(update, seed).items()})

number = 3
"""


def model_shapes(dataset: str) -> list[tuple[int, ...]]:
    """Return the shape of each parameter of the network that a data set's cell trains."""
    cell = resolve_cell(Request(dataset=dataset), None)
    return [tuple(p.shape) for p in probe_of(cell.defense, cell.data, cell.settings).network.parameters.values()]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Work in an empty folder with a module of functions; import paths are restored."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "audited_functions", raising=False)
    (tmp_path / "audited_functions.py").write_text(FUNCTIONS)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the command line and returns (exit code, stdout, stderr)."""

    return partial(called, monkeypatch, capsys, "audit")


@pytest.fixture
def audited(call: Any) -> Any:
    """Return a function that audits and returns what `--json` prints, checked for its keys and for NaN."""

    def run(*arguments: str) -> dict[str, Any]:
        code, out, err = call(*arguments, "--json", "--quiet")
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(out, parse_constant=pytest.fail)
        assert list(found) == KEYS
        return found

    return run


# One of each kind; `pytest -m long` audits the others.
FIRST = ("fed_cdp_valid", "fed_cdp_layers_valid", "fed_sdp_valid", "fed_sdp_client_valid")
CALIBRATED = [
    name if name in FIRST else pytest.param(name, marks=pytest.mark.long)
    for name in names("defenses")
    if name.endswith("_valid")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", CALIBRATED)
def test_every_calibrated_recipe_holds(audited: Any, name: str) -> None:
    """Neither bound exceeds the valid epsilon; for constant noise, the claim uses at most the measured noise."""
    found = audited("--defense", name)
    assert found["verdict"] == "holds"
    assert found["noise_data_independent"] or name == "dssgd_valid"  # The sent coordinates depend on the data.
    assert found["clip_holds"]
    assert 0 <= found["lower_bound"] <= found["valid"]
    assert (
        found["lower_bound_family"] is None
        or not found["noise_data_independent"]
        or found["lower_bound_family"] <= found["valid"]
    )
    assert name not in FIRST or found["sigma_measured"] >= 0.99 * found["sigma_recipe"]


def test_without_sampling_the_bound_comes_near(audited: Any, tmp_path: Path) -> None:
    """All 20 clients take part in all 5 rounds: at least 60 % of the valid epsilon, and directly at least a third."""
    lines = [
        "title: mine",
        "cite: me",
        "unit: client",
        "cohorts: fixed",
        "claim: {moments: {unit: client, noise_multiplier: 3.0}}",
    ]
    server = "server: [{clip_whole: {norm: 1.0}}, {gaussian_noise: {multiplier: 3.0, to: sum}}]"
    (tmp_path / "mine.yaml").write_text("\n".join([*lines, server]))
    found = audited("--defense", "mine.yaml", "--clients-per-round", "20")
    assert found["verdict"] == "holds"
    assert found["sigma_measured"] == pytest.approx(3.0, rel=0.01)
    assert 0.6 * found["valid"] <= found["lower_bound_family"] <= found["valid"]
    assert found["valid"] / 3 <= found["lower_bound"] <= found["lower_bound_family"]


def test_l2_max_has_no_guarantee(audited: Any) -> None:
    """Fed-alphaCDP: one release reveals more than the claim allows for one release."""
    found = audited("--defense", "fed_alpha_cdp", "--trials", "600")
    assert found["verdict"] == "no guarantee"
    assert found["noise_data_independent"] is False
    assert found["sigma_measured"] is found["valid"] is found["lower_bound_family"] is None
    assert found["claimed"] == pytest.approx(0.814, abs=1e-3)
    assert found["lower_bound"] >= 3
    assert "l2-max" in found["reason"]
    assert "one release" in found["reason"]


@pytest.mark.parametrize(("name", "cohort"), [("fed_sdp_server", 5), ("fed_sdp_client", 5), ("fed_sdp_client", 1)])
def test_a_clip_by_layers_costs_the_root_of_the_tensors(audited: Any, name: str, cohort: int) -> None:
    """sigma / sqrt(3) at the server; the sum of `cohort` clients has sqrt(cohort) times one client's noise."""
    found = audited("--defense", name, "--clients-per-round", str(cohort), "--trials", "1000")
    own = math.sqrt(cohort) if name == "fed_sdp_client" else 1.0
    assert found["sigma_measured"] == pytest.approx(own * 6 / math.sqrt(3), rel=0.01)
    assert found["sigma_recipe"] == 6


@pytest.mark.slow
def test_a_claim_is_violated_only_where_the_bound_exceeds_it(audited: Any) -> None:
    """fed_sdp_server: with many trials the violation of the claimed .562 is found, with few it is not."""
    many = audited("--defense", "fed_sdp_server", "--trials", "1000000")
    assert many["verdict"] == "violated"
    assert many["claimed"] < many["lower_bound_family"] < many["valid"]
    few = audited("--defense", "fed_sdp_server", "--trials", "1000")
    assert few["lower_bound_family"] < few["claimed"]
    assert few["verdict"] == "holds"


def test_errors_of_released_code_are_found(audited: Any) -> None:
    """Fed-SDP's script adds no noise; Fed-CDP's adds a twelfth of its claim."""
    none = audited("--defense", "fed_sdp_as_released", "--trials", "10000")
    assert (none["sigma_measured"], none["clip_holds"], none["verdict"]) == (0.0, False, "no guarantee")
    assert none["lower_bound"] > none["claimed"]
    little = audited("--defense", "fed_cdp_as_released", "--trials", "10000")
    assert little["sigma_measured"] == pytest.approx(0.5 / math.sqrt(3), rel=0.01)
    assert little["verdict"] == "violated"
    assert little["lower_bound"] > little["claimed"]


def test_output_without_json_is_a_few_lines(call: Any) -> None:
    """Without --json, a few plain lines are printed. Without a defense, the verdict is "no guarantee" and the exit code 0."""
    code, out, _ = call("--trials", "1000")
    assert code == 0
    assert out.startswith("verdict: no guarantee: no noise")
    assert len(out.splitlines()) < 10


@pytest.mark.slow
def test_a_function_with_clip_and_gaussian_noise_holds(audited: Any) -> None:
    """std 3 over a clip at 2; a clip by layers moves sqrt(3) times as far, which exceeds the stated clip."""
    found = audited("--callable", "audited_functions:clipped", "--sigma", "1.5", "--clip", "2", "--trials", "100000")
    assert found["verdict"] == "holds"
    assert found["sigma_measured"] == pytest.approx(1.5, rel=0.01)
    assert found["sigma_recipe"] == 1.5
    assert 0.6 * found["valid"] < found["lower_bound_family"] < found["valid"]
    layers = audited("--callable", "audited_functions:by_layer", "--clip", "2", "--trials", "1000")
    assert layers["sigma_measured"] == pytest.approx(1.5 / math.sqrt(3), rel=0.01)
    assert (layers["verdict"], layers["clip_holds"]) == ("violated", False)
    assert "stated clip 2" in layers["reason"]


@pytest.mark.slow
def test_a_function_without_clip_is_found(audited: Any) -> None:
    """With a seed and without one."""
    for name in ("unclipped", "unseeded_unclipped"):
        found = audited("--callable", f"audited_functions:{name}", "--trials", "200")
        assert (found["verdict"], found["clip_holds"], found["valid"]) == ("no guarantee", False, None)
        assert found["reason"].startswith("no clip")
        assert found["lower_bound"] > 2


def test_a_function_whose_noise_follows_the_data_is_found(audited: Any) -> None:
    """Noise of std 1 + min(1, own norm)."""
    found = audited("--callable", "audited_functions:own_scale", "--trials", "400")
    assert (found["verdict"], found["noise_data_independent"]) == ("no guarantee", False)
    assert found["lower_bound"] > 2


def test_a_function_with_other_noise(audited: Any) -> None:
    """Laplace noise is additive and independent of the data, but no epsilon of a Gaussian follows."""
    found = audited("--callable", "audited_functions:laplace", "--trials", "200")
    assert found["noise_data_independent"]
    assert found["valid"] is found["lower_bound_family"] is None
    assert found["verdict"] == "no guarantee"


def test_a_seed_may_go_by_name(audited: Any) -> None:
    """As in `def defense(update, *, seed)`."""
    found = audited("--callable", "audited_functions:by_name", "--dataset", "cancer", "--trials", "1000")
    assert found["verdict"] == "holds"
    assert found["sigma_measured"] == pytest.approx(1.5, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("bare_corner", "no noise"),
        ("one_seed_for_all", "not independent Gaussian noise"),
        ("centred", "not independent Gaussian noise"),
        ("few_seeds", "seeds 1024 apart give the same noise"),
        ("quiet_band", "the noise differs where a tensor's norm is about"),
        ("last_norm", "no clip"),
        ("signed", "no clip"),
        ("mirrored", "not independent Gaussian noise"),
        ("noise_where_something_is", "no noise"),
    ],
)
@pytest.mark.parametrize("dataset", ["cancer", "faces"])
def test_noise_that_only_looks_right_is_found(audited: Any, name: str, reason: str, dataset: str) -> None:
    """Missing on three coordinates, equal in every tensor, of sum zero, drawn from few seeds, missing at some norms."""
    found = audited("--callable", f"audited_functions:{name}", "--dataset", dataset, "--trials", "100")
    assert (found["verdict"], found["valid"]) == ("no guarantee", None)
    assert found["reason"].startswith(reason) or reason in found["reason"]


@pytest.mark.parametrize(("name", "farthest"), [("mean_norm", "tensors"), ("largest_coordinate", "coordinates")])
def test_the_update_shape_with_the_largest_move_counts(audited: Any, name: str, farthest: str) -> None:
    """A clip by the mean of M norms lets one tensor move by M; a clip by the largest of d coordinates lets all move by sqrt(d)."""
    found = audited("--callable", f"audited_functions:{name}", "--dataset", "cancer", "--trials", "1000")
    shapes = list(model_shapes("cancer"))
    far = len(shapes) if farthest == "tensors" else math.sqrt(sum(map(math.prod, shapes)))
    assert found["sigma_measured"] == pytest.approx(3 / far, rel=0.05)


@pytest.mark.slow
def test_a_function_without_a_seed(audited: Any) -> None:
    """Its clip is only bounded as stated; the measured multiplier agrees with 1 / 2 to a tenth or two."""
    stated = audited(
        "--callable",
        "audited_functions:unseeded",
        "--dataset",
        "cancer",
        "--sigma",
        "0.5",
        "--clip",
        "2",
        "--trials",
        "400",
    )
    assert stated["verdict"] == "holds"
    assert stated["claimed"] == pytest.approx(pld((Mechanism(0.5, 1.0, 1),), 1e-5))
    assert stated["sigma_measured"] == pytest.approx(0.5, rel=0.2)
    assert 0 < stated["lower_bound_family"] < stated["valid"]
    silent = audited("--callable", "audited_functions:unseeded", "--dataset", "cancer", "--trials", "200")
    assert silent["verdict"] == "no guarantee"
    assert "--clip" in silent["reason"]
    broken = audited(
        "--callable", "audited_functions:unseeded", "--dataset", "cancer", "--clip", "0.5", "--trials", "200"
    )
    assert broken["verdict"] == "violated"


@pytest.mark.slow
def test_a_function_without_noise(audited: Any) -> None:
    """A clip alone makes every update distinguishable; a constant reveals nothing, but the audit did not show any protection."""
    clips = audited("--callable", "audited_functions:only_clips", "--dataset", "cancer", "--trials", "200")
    assert (clips["verdict"], clips["sigma_measured"], clips["clip_holds"]) == ("no guarantee", 0, True)
    assert clips["lower_bound"] > 2
    whisper = audited("--callable", "audited_functions:whisper", "--dataset", "cancer", "--trials", "200")
    assert (whisper["verdict"], whisper["valid"]) == ("no guarantee", None)
    constant = audited("--callable", "audited_functions:constant", "--dataset", "cancer", "--trials", "200")
    assert constant["lower_bound"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--delta", "2"], "delta: got 2.0"),
        (["--delta", "nan"], "delta: got nan"),
        (["--trials", "3"], "trials: got 3"),
        (["--defense", "fed_cpd"], "did you mean 'fed_cdp'?"),
        (["--seed", "-1"], "seed: got -1"),
        (["--sigma", "6"], "sigma: got 6.0"),
        (["--callable", "nowhere"], "expected package.module:name"),
        (["--callable", "nowhere_at_all:name"], "ModuleNotFoundError"),
        (["--callable", "audited_functions:nobody"], "nobody"),
        (["--callable", "audited_functions:number"], "is of type int, expected a function"),
        (["--callable", "audited_functions:three"], "takes (update, seed, bound)"),
        (["--callable", "audited_functions:returns_list"], "it returned list"),
        (["--callable", "audited_functions:forgets_one"], "it returned the keys"),
        (["--callable", "audited_functions:wrong_shape"], "it returned the shape"),
        (["--callable", "audited_functions:half_seeded"], "the same update and seed twice gave releases"),
        (["--callable", "audited_functions:not_a_number"], "it returned NaN or infinity"),
        (["--callable", "audited_functions:raises"], "it raised RuntimeError: two lines"),
        (["--callable", "audited_functions:leaves"], "it raised SystemExit"),
        (["--callable", "audited_functions:imaginary"], "it returned complex128"),
        (["--callable", "audited_functions:words"], "expected an array of real numbers"),
        (["--callable", "audited_functions:clipped", "--defense", "fed_cdp"], "one of the two"),
        (["--callable", "audited_functions:clipped", "--clip", "-1"], "clip: got -1.0"),
    ],
)
def test_wrong_input_is_one_line(call: Any, arguments: list[str], said: str) -> None:
    """Exit code 2, nothing on stdout, one line that names the field."""
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("leakbench: ")
    assert err.count("\n") == 1
    assert said in err
