"""Recipes that name code of NVFlare and pfl, without these packages."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from leakbench.core.errors import InputError
from leakbench.core.recipe import construct
from leakbench.core.types import Clock, Signal
from leakbench.defense.frameworks import NVFlareFilter, PflMechanism
from leakbench.defense.recipe import Defense

HOME = Path(__file__).parents[2]
PERCENTILE = "nvflare.app_common.filters.percentile_privacy.PercentilePrivacy"
GAUSSIAN = "pfl.privacy.gaussian_mechanism.GaussianMechanism"


@pytest.mark.parametrize("path", ["os.system", "nvflare", "nvflares.apis.Filter", "pfl.privacy.GaussianMechanism", ""])
def test_a_recipe_names_only_classes_of_nvflare(path):
    with pytest.raises(InputError, match=r"filter: .*expected a class of the package nvflare"):
        construct(NVFlareFilter, {"filter": path})


@pytest.mark.parametrize("path", ["os.system", "pfl", PERCENTILE])
def test_a_recipe_names_only_classes_of_pfl(path):
    with pytest.raises(InputError, match=r"mechanism: .*expected a class of the package pfl"):
        construct(PflMechanism, {"mechanism": path})


@pytest.mark.parametrize(
    ("station", "part"),
    [
        ("server", {"nvflare_filter": {"filter": PERCENTILE}}),
        ("example", {"nvflare_filter": {"filter": PERCENTILE}}),
        ("server", {"pfl_mechanism": {"mechanism": GAUSSIAN}}),
        ("client", {"pfl_mechanism": {"mechanism": GAUSSIAN, "step": "add_noise"}}),
    ],
)
def test_each_acts_where_its_framework_runs_it(station, part):
    with pytest.raises(InputError, match=f"is at the {station} station"):
        construct(Defense, {"title": "t", "cite": "c", "unit": "client", station: [part]})


@pytest.mark.parametrize(
    ("package", "part", "command"),
    [
        ("nvflare", NVFlareFilter(filter=PERCENTILE), "pip install 'leakbench[nvflare]'"),
        ("pfl", PflMechanism(mechanism=GAUSSIAN), "pip install --no-deps 'pfl>=0.6' multiprocess dill prv-accountant"),
    ],
)
def test_a_missing_package_is_one_line_with_its_command(monkeypatch, package, part, command):
    for name in [n for n in sys.modules if n == package or n.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError) as raised:
        part(Signal({"w": torch.ones(1, 1, 2)}), Clock(0, 0, 1, 1), None)
    assert command in str(raised.value) and "\n" not in str(raised.value)


def test_a_missing_nvflare_is_one_line_for_its_filter(monkeypatch):
    import leakbench.frameworks  # noqa: PLC0415

    monkeypatch.setitem(sys.modules, "nvflare", None)
    with pytest.raises(InputError, match=r"pip install 'leakbench\[nvflare\]'"):
        _ = leakbench.frameworks.UpdateTapFilter
    with pytest.raises(AttributeError, match="no attribute 'UpdateTabFilter'"):
        _ = leakbench.frameworks.UpdateTabFilter


@pytest.mark.slow
def test_leakbench_imports_neither_of_them():
    """In a separate process in which an import of nvflare or pfl is an error."""
    script = (
        "import sys\n"
        "sys.modules['nvflare'] = sys.modules['pfl'] = None\n"
        "import leakbench.cli, leakbench.frameworks, leakbench.defense.frameworks, leakbench.execute\n"
        "print('fine')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=HOME, capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
