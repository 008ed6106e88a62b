"""What all tests share."""

import os

import pytest
import torch


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tests but those that are asked for with `-m cuda`: what is expected here was computed on CPUs."""
    if "cuda" not in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


# The tests' tensors are small: a second thread waits more than it works, and on a busy machine it waits for long.
torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def without_waiting_for_the_disk():
    """Let the tests' files stay in the memory of the system: that they outlive a power cut is nothing that a test can see."""
    before = os.fsync
    os.fsync = lambda _: None
    yield
    os.fsync = before


@pytest.fixture(autouse=True, scope="session")
def fits_of_the_tests(tmp_path_factory):
    """Keep what is fitted apart from the user's own cache, also in child processes."""
    before = os.environ.get("LEAKBENCH_FITS")
    os.environ["LEAKBENCH_FITS"] = str(tmp_path_factory.mktemp("fits"))
    yield
    if before is None:
        del os.environ["LEAKBENCH_FITS"]
    else:
        os.environ["LEAKBENCH_FITS"] = before


@pytest.fixture
def without_pages(monkeypatch):
    """Let `leakbench run` end without its page, which takes a tiny cell as long as its measurement."""
    monkeypatch.setattr("leakbench.report.page.report_into", lambda run, redact=False: run.folder / "report.html")
